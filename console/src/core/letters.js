/** Requests about many dead letters. The service handles a part of them in each request. */
import { request } from "./api.js";

const REJECTED_SHOWN = 5;
const SKIPPED = /** @type {Record<string, string>} */ ({
  late: "are late, and stay late",
  failed_again: "failed again after an earlier requeue",
  accepted_elsewhere: "were accepted by other branches of the pipeline",
  result: "are results, not records",
  result_stream: "are results of another job",
  no_bytes: "have no bytes any more",
  other_stream: "belong to a stream that the job doesn't read",
  counted: "were accepted by a later version",
  not_edited: "aren't changed by the edits, or can't be edited",
  rejected_again: "would be rejected again, and stay dead letters",
});

/**
 * Send the request for each part, one after the other. Return the sums; `follow` has the path of the outcome of each part.
 *
 * - `path`: of the first part.
 * - `body`: of each request; undefined for none.
 * - `report`: called with the number of dead letters that were handled.
 *
 * @param {string} path @param {any} body @param {(done: number) => void} report
 */
export async function inParts(path, body, report) {
  /** @type {string | null} */
  let next = path;
  /** @type {any} */
  let total = null;
  while (next) {
    /** @type {any} */
    const part = await request("POST", next, body === undefined ? {} : { body });
    total = total === null ? { ...part, follow: [] } : added(total, part);
    if (part.follow) total.follow.push(part.follow);
    report(total.matched);
    next = part.next;
  }
  return total;
}

/** The sums of two parts. @param {any} a @param {any} b */
function added(a, b) {
  /** @param {Record<string, number>} x @param {Record<string, number>} y */
  const counts = (x, y) => Object.fromEntries([...new Set([...Object.keys(x), ...Object.keys(y)])].map((name) => [name, (x[name] ?? 0) + (y[name] ?? 0)]));
  const total = { ...a, skipped: counts(a.skipped, b.skipped), outcomes: counts(a.outcomes, b.outcomes) };
  for (const name of ["matched", "requeued", "requeued_before", "unknown"]) total[name] += b[name];
  if (a.repairs) total.repairs = [...a.repairs, ...b.repairs].sort((x, y) => Number(x.outcome === "accepted") - Number(y.outcome === "accepted"));
  return total;
}

/** @param {any} outcome @param {(count: number) => string} whole what the current version does with the records */
export function expected(outcome, whole) {
  const { accepted = 0, ...rejected } = /** @type {Record<string, number>} */ (outcome.outcomes);
  const reasons = Object.entries(rejected).sort((a, b) => b[1] - a[1]);
  const tried = accepted + reasons.reduce((total, [, count]) => total + count, 0);
  if (!tried) return "";
  const again = tried - accepted;
  const named = reasons.slice(0, REJECTED_SHOWN).map(([reason, count]) => (reasons.length > 1 ? `${whole(count)} ${reason}` : reason));
  const more = reasons.length > named.length ? `, and ${reasons.length - named.length} other reasons` : "";
  return `Of ${whole(tried)} tried with the current version, ${again ? `${whole(again)} would be rejected again (${named.join(", ")}${more})` : "none would be rejected again"}.`;
}

/** Why dead letters are left as they are: a sentence for each reason. @param {any} outcome @param {(count: number) => string} whole @returns {string[]} */
export function left(outcome, whole) {
  return [
    ...Object.entries(/** @type {Record<string, number>} */ (outcome.skipped)).map(([reason, count]) => `${whole(count)} ${SKIPPED[reason] ?? reason.replaceAll("_", " ")}`),
    ...(outcome.requeued_before ? [`${whole(outcome.requeued_before)} were requeued before`] : []),
    ...(outcome.unknown ? [`${whole(outcome.unknown)} may have been requeued by an interrupted request`] : []),
  ];
}

/** Paths of the outcome of the last requeue of each job, while the page is open. @type {Map<string, string[]>} */
export const requeues = new Map();
