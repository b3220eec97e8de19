/** Numbers, times, and durations as people read them. */
import { route } from "./route.js";

const WHOLE = new Intl.NumberFormat("en");
/** Counts below this are shown in full, so that a count is the same wherever it appears. */
const SHORT_MIN = 1_000_000;
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const EXACT = new Intl.NumberFormat("en", { maximumSignificantDigits: 6 });

/** @param {number | null | undefined} value */
export const whole = (value) => (value == null ? "–" : WHOLE.format(value));
/** @param {number | null | undefined} value */
export const short = (value) => (value == null ? "–" : Math.abs(value) < SHORT_MIN ? WHOLE.format(value) : SHORT.format(value));
/** @param {number | null | undefined} value */
export const exact = (value) => (value == null ? "–" : EXACT.format(value));

const SIZE = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const SIZES = ["B", "kB", "MB", "GB", "TB", "PB"];

/** A number of bytes, in units of 1,000. @param {number} value */
export function bytes(value) {
  const at = Math.min(SIZES.length - 1, Math.max(0, Math.floor(Math.log10(Math.max(1, value)) / 3)));
  return `${SIZE.format(value / 1_000 ** at)} ${SIZES[at]}`;
}

const UNITS = /** @type {[number, string][]} */ ([[86_400, "d"], [3_600, "h"], [60, "min"], [1, "s"]]);

const YEAR_S = 365 * 86_400;
/** Time from which durations are shown in years. */
const YEARS_MIN_S = 2 * YEAR_S;

/** @param {number | null | undefined} ms */
export function duration(ms) {
  if (ms == null) return "–";
  const sign = ms < 0 ? "−" : "";
  const absolute = Math.abs(ms);
  if (absolute < 1_000) return `${sign}${Math.round(absolute)} ms`;
  if (absolute < 10_000) return `${sign}${(absolute / 1_000).toFixed(1).replace(".0", "")} s`;
  const seconds = Math.round(absolute / 1_000);
  if (seconds >= YEARS_MIN_S) return `${sign}${(seconds / YEAR_S).toFixed(1).replace(".0", "")} years`;
  const at = UNITS.findIndex(([size]) => seconds >= size);
  const [size, unit] = UNITS[at];
  const count = Math.floor(seconds / size);
  const [nextSize, nextUnit] = UNITS[at + 1] ?? [0, ""];
  const rest = nextSize && count < 10 ? Math.floor((seconds % size) / nextSize) : 0;
  return `${sign}${count} ${unit}${rest ? ` ${rest} ${nextUnit}` : ""}`;
}

/** @param {number | null | undefined} ms */
export const ago = (ms) => (ms == null ? "never" : `${duration(Math.max(0, Date.now() - ms))} ago`);

/**
 * @param {number | null | undefined} ms
 * @param {"full" | "time" | "minute"} [form]
 */
export function time(ms, form = "full") {
  if (ms == null) return "–";
  const at = new Date(ms);
  const utc = route.isUtc;
  /** @param {number} value @param {number} [size] */
  const two = (value, size = 2) => String(value).padStart(size, "0");
  const date = utc
    ? `${at.getUTCFullYear()}-${two(at.getUTCMonth() + 1)}-${two(at.getUTCDate())}`
    : `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const minutes = utc
    ? `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}`
    : `${two(at.getHours())}:${two(at.getMinutes())}`;
  const seconds = two(utc ? at.getUTCSeconds() : at.getSeconds());
  if (form === "minute") return minutes;
  if (form === "time") return `${minutes}:${seconds}`;
  return `${date} ${minutes}:${seconds}`;
}

const MILLISECONDS = /\b(\d{4,}) ms\b/g;
const WRITTEN = /\b(?=\d+[wd]\d*)(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:\d+ms)?\b/g;

/** A message of the service with durations such as `157679999876 ms` and `260w4d` as people read them. @param {string} text */
export const readable = (text) =>
  text
    .replace(MILLISECONDS, (_, ms) => duration(Number(ms)))
    .replace(WRITTEN, (_, ...parts) => duration([604_800, 86_400, 3_600, 60, 1].reduce((total, size, at) => total + size * Number(parts[at] ?? 0), 0) * 1_000));

/** A range of time such as `24h`, as people write it. @param {string} range */
export const spaced = (range) => range.replace(/([a-z])/, " $1");
/** @param {string} text */
export const capital = (text) => (text.startsWith("strandline ") ? text : text.charAt(0).toUpperCase() + text.slice(1));

/** A time of today without its date. @param {number | null | undefined} ms */
export const clock = (ms) => (ms != null && time(ms).slice(0, 10) === time(Date.now()).slice(0, 10) ? time(ms, "time") : time(ms));

/** @param {number} value @param {number} all */
export const share = (value, all) => (all ? `${value === all ? 100 : Math.min(99.9, (100 * value) / all).toFixed(value / all > 0.1 ? 1 : 2)} %` : "–");

/** @param {Record<string, number> | null | undefined} counts */
export const sum = (counts) => Object.values(counts ?? {}).reduce((total, one) => total + one, 0);
