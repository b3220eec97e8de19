/** Event time of each partition, with the watermark as a line over them. */
import { html, nothing, svg } from "lit";
import { clock, duration, time } from "../core/format.js";
import { empty } from "./parts.js";

const SHOWN = 24;

/** @typedef {import("../core/api.js").Json} Json */

/**
 * @param {Json} job @param {Json | undefined} newest the newest checkpoint
 * @param {Json[]} slices the newest slices, with the silence of each partition when the slice was planned
 */
export function partitions(job, newest, slices) {
  if (!newest) return empty("No slice is committed yet.");
  const rows = Object.entries(newest.reached).flatMap(([stream, found]) =>
    Object.entries(/** @type {Record<string, number>} */ (found)).map(([partition, at]) => ({ stream, partition, at: Number(at) })),
  );
  if (!rows.length) return empty("No record was accepted yet.");
  const watermark = job.watermark_ms;
  const marks = [...rows.map((row) => row.at), ...(watermark === null ? [] : [watermark])];
  const [low, high] = [Math.min(...marks), Math.max(...marks)];
  const span = Math.max(1_000, high - low);
  /** @param {number} at */
  const x = (at) => 2 + (94 * (at - low)) / span;
  rows.sort((a, b) => a.at - b.at);
  const shown = rows.slice(0, SHOWN);
  const ignored = ignoredSince(slices[slices.length - 1], newest.reached);
  const sinceOf = (/** @type {{stream: string, partition: string}} */ row) => ignored.get(`${row.stream}/${row.partition}`);
  const holders = rows.filter((row) => sinceOf(row) === undefined);
  return html`<div class="partitions">
      <table>
        <thead><tr><th>Partition</th><th class="line"><span class="visually-hidden">Event time</span></th><th class="number">Reached</th></tr></thead>
        <tbody>
          ${shown.map(
            (row) => html`<tr class=${row === holders[0] && holders.length > 1 ? "slowest" : sinceOf(row) === undefined ? "" : "muted"}>
              <td>${Object.keys(newest.reached).length > 1 ? `${row.stream} ` : ""}${row.partition}</td>
              <td class="line">
                <svg viewBox="0 0 100 12" preserveAspectRatio="none" aria-hidden="true">
                  <line class="base" x1="0" x2="100" y1="6" y2="6"></line>
                  ${watermark === null ? nothing : svg`<line class="mark" x1=${x(watermark)} x2=${x(watermark)} y1="0" y2="12"></line>`}
                  <line class="reached" x1="0" x2=${x(row.at)} y1="6" y2="6"></line>
                </svg>
              </td>
              <td class="number">${time(row.at, "time")}</td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
    <p class="muted">
      <span class="legend"><i class="mark"></i></span> watermark ${clock(watermark)}.
      ${holders.length > 1 ? html`Partition ${holders[0].partition} is the slowest, ${duration(holders[holders.length - 1].at - holders[0].at)} behind the fastest.` : nothing}
      ${rows.filter((row) => sinceOf(row) !== undefined).slice(0, SHOWN).map((row) => html`Partition ${row.partition}${Object.keys(newest.reached).length > 1 ? ` of ${row.stream}` : ""} is silent: it is ignored since ${clock(sinceOf(row) ?? null)}, and doesn't hold windows open. `)}
      ${rows.length > shown.length ? html`${rows.length - shown.length} more.` : nothing}
    </p>`;
}

/**
 * The partitions that don't hold the watermark back, because they have been silent for longer than their idle timeout, and the time since
 * which that is so. Empty if all partitions are silent, because then all of them count.
 * @param {Json | undefined} slice @param {Record<string, Record<string, number>>} reached @returns {Map<string, number>}
 */
export function ignoredSince(slice, reached) {
  const found = new Map();
  if (!slice || slice.rule.watermark !== "partitions") return found;
  const rules = Object.fromEntries(slice.rule.by_stream);
  let all = 0;
  for (const [stream, partitions] of Object.entries(reached)) {
    const timeout = (rules[stream] ?? slice.rule).idle_timeout_ms;
    for (const [partition, at] of Object.entries(partitions)) {
      all += 1;
      const silence = slice.silence_ms[stream]?.[partition] ?? 0;
      const isNewer = at > (slice.reached[stream]?.[partition] ?? -1); // the slice itself has a record of the partition
      if (timeout !== null && !isNewer && silence >= timeout) found.set(`${stream}/${partition}`, slice.planned_ms - silence + timeout);
    }
  }
  return found.size === all ? new Map() : found;
}
