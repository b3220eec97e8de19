/** Ranges of event time that a user chooses, in the time zone of the page. */
import { time } from "./format.js";
import { route } from "./route.js";

/** The time of an `<input type="datetime-local">`. Null if it is empty. @param {unknown} text @returns {number | null} */
export function chosenMs(text) {
  const at = Date.parse(route.isUtc ? `${text}Z` : String(text));
  return Number.isNaN(at) ? null : at;
}

/** The value of such an input. @param {number} ms */
export const inputTime = (ms) => time(ms - (ms % 60_000)).slice(0, 16).replace(" ", "T");

/** A time as commands take it. @param {number} ms */
export const iso = (ms) => new Date(ms).toISOString().replace(".000Z", "Z");

/** @param {number | null} after exclusive lower bound of the ends of windows @param {number | null} upTo */
export function rangeText(after, upTo) {
  if (after === null && upTo === null) return "all windows";
  if (after === null) return `windows that end up to ${time(upTo)}`;
  return `windows that end after ${time(after)}${upTo === null ? "" : `, up to ${time(upTo)}`}`;
}

/** The options of a command for this range. @param {number | null} after @param {number | null} upTo */
export const rangeOptions = (after, upTo) => `${after === null ? "" : ` --from ${iso(after)}`}${upTo === null ? "" : ` --to ${iso(upTo)}`}`;
