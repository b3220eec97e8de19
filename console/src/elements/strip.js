/** The last 24 hours of a job in one line: results as bars, rejected records above them in red, restarts as marks. */
import { html, nothing, svg } from "lit";
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
  return html`<div class="strip" role="img" aria-label=${label}>
    <svg viewBox="0 0 ${count * 4} ${HEIGHT}" preserveAspectRatio="none" aria-hidden="true">
      ${all.map((value, at) => {
        const height = value ? Math.max(2, (Math.sqrt(value / most) * (HEIGHT - 6))) : 0;
        const part = bad[at] / Math.max(1, value);
        const refused = part > 0.01 ? Math.min(height, Math.max(2, height * part)) : 0;
        return svg`<g><title>${time(from_ms + at * group * step_ms, "minute")} · ${whole(value)} records · ${whole(bad[at])} rejected · ${whole(out[at])} results</title>
          <rect class="none" x=${at * 4} y="0" width="4" height=${HEIGHT}></rect>
          ${height ? svg`<rect class="bar" x=${at * 4 + 0.5} y=${HEIGHT - height} width="3" height=${height}></rect>` : svg`<rect class="gap" x=${at * 4 + 0.5} y=${HEIGHT - 1} width="3" height="1"></rect>`}
          ${refused ? svg`<rect class="bad" x=${at * 4 + 0.5} y=${HEIGHT - height} width="3" height=${refused}></rect>` : nothing}
          ${started[at] ? svg`<rect class="mark" x=${at * 4 + 0.5} y="0" width="3" height="3"></rect>` : nothing}
        </g>`;
      })}
    </svg>
  </div>`;
}
