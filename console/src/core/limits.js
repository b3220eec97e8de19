/** Limits from which the page warns. */

/** Age of the newest record from which a stream, a partition, or a device is silent. */
export const SILENT_MS = 300_000;
/** Share of rejected records from which a job or a device has a warning. */
export const REJECTED_SHARE = 0.1;
