/** Event time of each partition, with the watermark as a line over them. */
import { html, nothing, svg } from "lit";
import { clock, duration, time } from "../core/format.js";
import { empty } from "./parts.js";

const SHOWN = 24;

/** @typedef {import("../core/api.js").Json} Json */

/** @param {Json} job @param {Json | undefined} newest the newest checkpoint */
export function partitions(job, newest) {
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
  return html`<div class="partitions">
      <table>
        <thead><tr><th>Partition</th><th class="line"><span class="visually-hidden">Event time</span></th><th class="number">Reached</th></tr></thead>
        <tbody>
          ${shown.map(
            (row, at) => html`<tr class=${at === 0 && rows.length > 1 ? "slowest" : ""}>
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
      ${rows.length > 1 ? html`Partition ${shown[0].partition} is the slowest, ${duration(high - shown[0].at)} behind the fastest.` : nothing}
      ${rows.length > shown.length ? html`${rows.length - shown.length} more.` : nothing}
    </p>`;
}
