/** The last 24 hours of a job in one line: results as bars, rejected records above them in red, restarts as marks. */
import { html, svg } from "lit";
import { time, whole } from "../core/format.js";

const HEIGHT = 34;

/** @param {any} history the answer of `GET /v1/jobs/{name}/history` @param {string} job */
export function strip(history, job) {
  if (!history) return html`<div class="strip"></div>`;
  const { from_ms, step_ms, results, records, rejected, runs } = history;
  const group = 2;
  const count = records.length / group;
  /** @param {number[]} values */
  const grouped = (values) => Array.from({ length: count }, (_, at) => values.slice(at * group, at * group + group).reduce((a, b) => a + b, 0));
  const [all, bad, out, started] = [records, rejected, results, runs].map(grouped);
  const most = Math.max(1, ...all);
  const total = all.reduce((a, b) => a + b, 0);
  const rejections = bad.reduce((a, b) => a + b, 0);
  const label = `${job}, last 24 hours: ${whole(total)} records, ${whole(rejections)} rejected, ${whole(out.reduce((a, b) => a + b, 0))} results, ${started.reduce((a, b) => a + b, 0)} starts`;
  /** @type {Record<"bar" | "gap" | "bad" | "mark", string>} one path for all steps: an element for each would be thousands in a list */
  const paths = { bar: "", gap: "", bad: "", mark: "" };
  all.forEach((value, at) => {
    const height = value ? Math.max(2, Math.sqrt(value / most) * (HEIGHT - 6)) : 0;
    const part = bad[at] / Math.max(1, value);
    const refused = part > 0.01 ? Math.min(height, Math.max(2, height * part)) : 0;
    if (height) paths.bar += rectangle(at, HEIGHT - height, height);
    else paths.gap += rectangle(at, HEIGHT - 1, 1);
    if (refused) paths.bad += rectangle(at, HEIGHT - height, refused);
    if (started[at]) paths.mark += rectangle(at, 0, 3);
  });
  /** @param {number} at */
  const text = (at) => `${time(from_ms + at * group * step_ms, "minute")} · ${whole(all[at])} records · ${whole(bad[at])} rejected · ${whole(out[at])} results`;
  /** Show the numbers of the step below the pointer. @param {PointerEvent} event */
  const point = (event) => {
    const box = /** @type {Element} */ (event.currentTarget).getBoundingClientRect();
    const at = Math.min(count - 1, Math.max(0, Math.floor((count * (event.clientX - box.left)) / Math.max(1, box.width))));
    /** @type {HTMLElement} */ (event.currentTarget).title = text(at);
  };
  return html`<div class="strip" role="img" aria-label=${label} @pointermove=${point}>
    <svg viewBox="0 0 ${count * 4} ${HEIGHT}" preserveAspectRatio="none" aria-hidden="true">
      ${["bar", "gap", "bad", "mark"].map((kind) => svg`<path class=${kind} d=${paths[/** @type {"bar"} */ (kind)]}></path>`)}
    </svg>
  </div>`;
}

/** A rectangle of one step as a part of a path. @param {number} at @param {number} y @param {number} height */
const rectangle = (at, y, height) => `M${at * 4 + 0.5} ${y.toFixed(1)}h3v${height.toFixed(1)}h-3z`;
