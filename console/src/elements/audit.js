/** The audit of a job that was ordered from the page: its progress, and its answer. */
import { html, nothing } from "lit";
import { quoted } from "../core/api.js";
import { capital, duration, time, whole } from "../core/format.js";
import { Poll } from "../core/poll.js";
import { route } from "../core/route.js";
import { Element, Follow, Tick } from "./base.js";
import { badge, command, panel } from "./parts.js";

const RUNNING_MS = 1_500;
const ENDED_MS = 60_000;
const SHOWN = 10;
/** Jobs whose audit was ordered since the page was loaded. @type {Set<string>} */
export const audited = new Set();
/** @type {Record<string, [string, string]>} outcome -> tone, word */
const OUTCOMES = { clean: ["ok", "clean"], incomplete: ["warn", "incomplete"] };

export class Audit extends Element {
  static properties = { job: { type: String } };

  constructor() {
    super();
    this.job = "";
    this.audit = new Poll(this, () => `/v1/jobs/${quoted(this.job)}/audit`, RUNNING_MS);
    this.tick = new Tick(this, 1_000);
    this.follow = new Follow(this, [route, "change"]);
  }

  updated() {
    this.audit.everyMs = this.audit.data && this.audit.data.state !== "running" ? ENDED_MS : RUNNING_MS;
  }

  render() {
    return panel("Audit", this.audit, () => this.#shown());
  }

  #shown() {
    const { state, step, done, total, message, started_ms, report } = this.audit.data;
    if (state === "running") {
      return html`<p role="status">${capital(step)}${total ? `: ${whole(done)} of ${whole(total)}` : ""}, for ${duration(Math.max(0, Date.now() - started_ms))}.</p>
        <progress max=${total || 1} value=${total ? done : nothing} aria-label="Progress of the audit"></progress>`;
    }
    if (state === "failed" || !report) return html`<p class="problem" role="alert">The audit failed: ${message}</p>${command(`strandline job audit ${this.job}`)}`;
    const [tone, word] = OUTCOMES[report.outcome] ?? ["bad", `${whole(report.differences)} ${report.differences === 1 ? "difference" : "differences"}`];
    const sentences = [...report.totals_differences, ...report.event_time_differences.slice(0, SHOWN)];
    return html`<p class="lead" role="status">${badge(tone, word)} ${report.outcome === "clean" ? `${whole(same(report))} documents are equal to those computed from the log.` : report.incomplete ? `${capital(report.incomplete)}.` : "The results differ from those computed from the log."}</p>
      <p class="muted">Slices ${report.slice_first} to ${report.slice_last}, ordered ${time(started_ms)}, ${duration(report.seconds * 1_000)}.</p>
      <div class="scroll" tabindex="0"><table><thead><tr><th>Store</th><th>Windows up to</th><th>Found</th></tr></thead>
        <tbody>${report.stores.map((/** @type {any} */ one) => html`<tr><td>${one.store}</td><td>${time(one.up_to_ms)}</td><td>${Object.entries(one.counts).map(([kind, count]) => `${whole(/** @type {number} */ (count))} ${kind.replaceAll("_", " ")}`).join(", ") || "nothing"}</td></tr>`)}</tbody></table></div>
      ${sentences.length ? html`<ul class="notes">${sentences.map((one) => html`<li>${one}</li>`)}</ul>` : nothing}
      ${report.sample.length ? html`<h3>First differences</h3><ul class="found">${report.sample.slice(0, SHOWN).map((/** @type {any} */ one) => html`<li><span class="reason">${one.kind.replaceAll("_", " ")}</span><span>${one.store}, window that ends ${time(one.end_ms)}: ${one.detail} <code>${one.id}</code></span></li>`)}</ul>` : nothing}`;
  }
}
customElements.define("sl-audit", Audit);

/** Number of equal documents. @param {any} report */
const same = (report) => report.stores.filter((/** @type {any} */ one) => one.stage).reduce((/** @type {number} */ total, /** @type {any} */ one) => total + (one.counts.same ?? 0), 0);
