/** Time limits of a sign-in: when to renew it, when to warn the user, and when to check whether it has ended. */

/** Time before the end from which the page shows a notice. */
export const NOTICE_MS = 300_000;
const RENEW_BEFORE_MS = 60_000;
const RETRY_MS = 10_000;

/**
 * Time until the next renewal by the service. Short sign-ins are renewed after half of their time.
 * @param {number} leftMs @param {boolean} hasFailed true if the provider didn't respond to the last attempt
 */
export const renewalDelay = (leftMs, hasFailed) => (hasFailed ? Math.min(RETRY_MS, Math.max(1_000, leftMs / 2)) : Math.max(0, leftMs - Math.min(RENEW_BEFORE_MS, leftMs / 2)));
