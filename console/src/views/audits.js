/** Audits and backfills of all jobs, or of one: progress, state, range, and answer; and the differences that an audit found. */
import { html, nothing } from "lit";
import { quoted } from "../core/api.js";
import { capital, duration, share, sum, time, whole } from "../core/format.js";
import { counted } from "../core/operation.js";
import { Poll } from "../core/poll.js";
import { chosenMs, rangeOptions, rangeText } from "../core/ranges.js";
import { route } from "../core/route.js";
import { session } from "../core/session.js";
import { ask } from "../elements/action.js";
import { Element, Follow, Tick } from "../elements/base.js";
import { badge, command, empty, figure, operationCrumbs, panel, since } from "../elements/parts.js";

const AUDIT = "POST /v1/jobs/{name}/audit";
const BACKFILL = "POST /v1/jobs/{name}/backfills";
const CANCEL = "POST /v1/jobs/{name}/backfills/{generation}/cancel";
/** States in which a backfill can be cancelled. */
const CANCELLABLE = ["requested", "running"];
/** @type {Record<string, string>} */
const TONES = { requested: "wait", running: "wait", swapping: "wait", complete: "ok", failed: "bad", cancelled: "rest" };
/** Stores that have no documents with an id of their own. */
const DEAD_LETTERS = "(dead letters)";
const PREFIXES = ["stream:", "files:", "table:", "letters:"];

/** @typedef {import("../core/api.js").Json} Json */

export class AuditsView extends Element {
  static properties = { job: { type: String } };

  constructor() {
    super();
    /** Name of the job; empty for all. */ this.job = "";
    this.jobs = new Poll(this, () => "/v1/jobs", 15_000);
    this.audits = new Poll(this, () => "/v1/audits", 3_000);
    this.backfills = new Poll(this, () => (this.job ? `/v1/jobs/${quoted(this.job)}/backfills` : "/v1/backfills"), 3_000);
    this.audit = new Poll(this, () => (this.#ended ? `/v1/jobs/${quoted(this.job)}/audit` : null), 60_000);
    this.tick = new Tick(this, 5_000);
    this.follow = new Follow(this, [route, "change"], [session, "change"]);
  }

  /** The audit of the chosen job, if it has a report. */
  get #ended() {
    return this.audits.data?.audits.find((/** @type {Json} */ one) => one.job === this.job && one.state === "done");
  }

  /** @param {Map<string, unknown>} changed */
  updated(changed) {
    const started = this.#ended?.started_ms;
    // The address of the report of a later audit is the same.
    if (started && this.audit.data && this.audit.data.started_ms !== started) this.audit.soon();
    if (changed.has("job")) this.audit.soon();
  }

  render() {
    return html`<div class="view">
      <div class="title">
        ${this.job ? html`<p class="crumbs"><a href=${route.href(["operation"])}>Operation</a> <a href=${route.href(["audits"])}>Audits and backfills</a></p>` : operationCrumbs()}
        <h1>Audits and backfills${this.job ? ` of ${this.job}` : ""}</h1>
        ${this.job ? html`<p class="about">See also <a href=${route.href(["jobs", this.job])}>job ${this.job}</a>.</p>` : nothing}
        <p class="about">An audit recomputes results from the log, compares them with the stores, and changes nothing. A backfill recomputes past windows with the current version of the pipeline, and replaces their results when all are complete.</p>
      </div>
      ${panel("Order", this.jobs, () => this.#form())}
      ${panel("Audits", this.audits, () => this.#audits(), { aside: html`<span class="muted">the last one of each job since this control service started</span>` })}
      ${this.#ended ? panel(`Report of the audit of ${this.job}`, this.audit, () => report(this.audit.data), { id: "report" }) : nothing}
      ${panel("Backfills", this.backfills, () => this.#backfills(), { aside: html`<span class="muted">the newest first</span>` })}
    </div>`;
  }

  #form() {
    const refusal = session.refusal(AUDIT) || session.refusal(BACKFILL);
    if (refusal) return html`<p class="muted why-not">Audit and Backfill: ${refusal}.</p>`;
    const all = this.jobs.data.jobs;
    if (!all.length) return empty("There is no job.");
    const zone = route.isUtc ? "UTC" : "local time";
    return html`<form class="controls place range" @submit=${this.#order}>
        <label>Job<select name="job">${all.map((/** @type {Json} */ one) => html`<option .selected=${one.name === this.job}>${one.name}</option>`)}</select></label>
        <label>Windows that end after (${zone})<input type="datetime-local" step="1" name="after" /></label>
        <label>up to (${zone})<input type="datetime-local" step="1" name="upTo" /></label>
        <button class="quiet" name="what" value="audit">Audit…</button>
        <button class="quiet" name="what" value="backfill">Backfill…</button>
      </form>
      <p class="muted">Without times, an audit is about all windows. A backfill needs the first time. One audit runs at a time, and one backfill for each job.</p>`;
  }

  /** @param {SubmitEvent} event */
  #order(event) {
    event.preventDefault();
    const form = /** @type {HTMLFormElement} */ (event.target);
    const fields = new FormData(form);
    const job = String(fields.get("job"));
    const [after, upTo] = [chosenMs(fields.get("after")), chosenMs(fields.get("upTo"))];
    const isBackfill = /** @type {HTMLButtonElement} */ (event.submitter).value === "backfill";
    const first = /** @type {HTMLInputElement} */ (form.elements.namedItem("after"));
    first.setCustomValidity(isBackfill && after === null ? "A backfill needs the time after which its windows end." : "");
    first.oninput = () => first.setCustomValidity("");
    if (!form.reportValidity()) return;
    if (isBackfill) orderBackfill(job, /** @type {number} */ (after), upTo);
    else orderAudit(job, after, upTo);
  }

  #audits() {
    const rows = this.audits.data.audits.filter((/** @type {Json} */ one) => !this.job || one.job === this.job);
    if (!rows.length) return empty(this.job ? `Job ${this.job} was not audited since this control service started.` : "No job was audited since this control service started.");
    return html`<div class="scroll" tabindex="0"><table class="audits">
      <thead><tr><th>Job</th><th>State</th><th>Answer</th><th class="wide">Range</th><th class="wide">Started</th></tr></thead>
      <tbody>${rows.map((/** @type {Json} */ one) => html`<tr>
        <td><a href=${route.href(["audits", one.job])}>${one.job}</a></td>
        <td>${auditState(one)}</td><td>${auditAnswer(one)}</td>
        <td class="wide">${capital(rangeText(one.requested_after_ms, one.requested_up_to_ms))}</td><td class="wide">${since(one.started_ms)}</td>
      </tr>`)}</tbody></table></div>`;
  }

  #backfills() {
    const rows = [...this.backfills.data.backfills].sort((/** @type {Json} */ a, /** @type {Json} */ b) => b.requested_ms - a.requested_ms);
    if (!rows.length) return empty("There is no backfill.");
    const refusal = session.refusal(CANCEL);
    const isOpen = rows.some((one) => CANCELLABLE.includes(one.state));
    return html`<div class="scroll" tabindex="0"><table class="backfills">
        <thead><tr><th>Job</th><th>State</th><th class="number">Results</th><th class="wide">Range</th><th class="wide">Requested</th><td></td></tr></thead>
        <tbody>${rows.map((one) => html`<tr>
          <td><a href=${route.href(["audits", one.job])}>${one.job}</a><p class="muted">generation ${one.generation}, version ${one.version}</p></td>
          <td>${badge(TONES[one.state] ?? "rest", one.state)}${one.ended_ms === null ? html` ${progress(one.records_done, one.records, "records")}` : nothing}${one.message ? html`<p class="muted">${one.message}</p>` : nothing}</td>
          <td class="number">${whole(sum(one.results))}${sum(one.refused) ? html`<small class="warn">${whole(sum(one.refused))} refused</small>` : nothing}</td>
          <td class="wide">${capital(rangeText(one.from_ms, one.to_ms))}</td><td class="wide">${since(one.requested_ms)}</td>
          <td>${CANCELLABLE.includes(one.state) && !refusal ? html`<button class="danger-quiet small" aria-label="Cancel backfill ${one.generation} of ${one.job}" @click=${() => cancelBackfill(one)}>Cancel</button>` : nothing}</td>
        </tr>`)}</tbody></table></div>
      ${isOpen && refusal ? html`<p class="muted why-not-cancel">Cancel: ${refusal}.</p>` : nothing}`;
  }
}
customElements.define("sl-audits", AuditsView);

/** @param {number} done @param {number} all @param {string} noun */
const progress = (done, all, noun) => html`<span class="progress"><progress max=${Math.max(1, all)} value=${Math.min(done, Math.max(1, all))} aria-label="Progress"></progress> <small>${all ? `${share(done, all)} of ${counted(all, noun.replace(/s$/, ""))}` : "starting"}</small></span>`;

/** @param {Json} audit */
function auditState(audit) {
  if (audit.state === "failed") return badge("bad", "failed");
  if (audit.state === "done") return badge("rest", `ended after ${duration(audit.seconds * 1000)}`);
  return html`${badge("wait", audit.step)} ${audit.total ? progress(audit.done, audit.total, "parts") : nothing}`;
}

/** @param {Json} audit */
function auditAnswer(audit) {
  if (audit.state === "failed") return audit.message;
  if (audit.outcome === null) return "–";
  if (audit.outcome === "clean") return badge("ok", "no difference");
  if (audit.outcome === "incomplete") return badge("warn", "incomplete, no difference");
  return html`<a href=${route.href(["audits", audit.job])}>${badge("bad", counted(audit.differences, "difference"))}</a>`;
}

/** @param {Json} audit */
function report(audit) {
  const found = audit.report;
  if (!found) return empty("The audit has no report.");
  const sentences = [...found.totals_differences, ...found.event_time_differences];
  return html`<p class="lead">${found.outcome === "clean" ? "Nothing differs." : found.outcome === "incomplete" ? "Nothing differs, but not everything could be compared." : `${capital(counted(found.differences, "difference"))}.`}</p>
    ${found.incomplete ? html`<p class="note">${found.incomplete}</p>` : nothing}
    <dl class="figures">
      ${figure("Slices", `${whole(found.slice_first)} to ${whole(found.slice_last)}`)}
      ${figure("Records", whole(found.computed.records), "computed from the log")}
      ${figure("Accepted", whole(found.computed.accepted))}
      ${figure("Results", whole(sum(found.computed.results)))}
      ${figure("Took", duration(found.seconds * 1000))}
    </dl>
    <h3>Stores</h3>
    <div class="scroll" tabindex="0"><table>
      <thead><tr><th>Store</th><th>Stage</th><th>Outcomes</th></tr></thead>
      <tbody>${found.stores.map((/** @type {Json} */ one) => html`<tr><td>${one.store}</td><td>${one.stage || "–"}</td><td>${Object.entries(one.counts).map(([kind, count]) => `${whole(count)} ${kind}`).join(", ") || "nothing to compare"}</td></tr>`)}</tbody>
    </table></div>
    ${sentences.length ? html`<h3>Totals and event times</h3><ul class="notes">${sentences.map((one) => html`<li>${one}</li>`)}</ul>` : nothing}
    ${found.sample.length ? html`<h3>Differences${found.sample.length < found.differences - sentences.length ? `: the first ${found.sample.length}` : ""}</h3>${differences(found.sample)}` : nothing}
    ${command(`GET /v1/jobs/${quoted(audit.job)}/audit`)}`;
}

/** @param {Json[]} sample the chosen kind is in the address */
function differences(sample) {
  const kinds = [...new Set(sample.map((one) => one.kind))].sort();
  const wanted = route.now.query.get("kind");
  const shown = sample.filter((one) => !wanted || one.kind === wanted);
  return html`${kinds.length > 1
      ? html`<p class="forms" role="group" aria-label="Kind of difference"><button class="quiet small" aria-pressed=${!wanted} @click=${() => route.set({ kind: null })}>All</button>${kinds.map((kind) => html`<button class="quiet small" aria-pressed=${wanted === kind} @click=${() => route.set({ kind })}>${kind}</button>`)}</p>`
      : nothing}
    <ol class="lives differences">${shown.map((one) => html`<li>
      <header><b>${one.kind}</b><span>${one.store}</span>${one.id ? html`<code>${one.id}</code>` : nothing}${one.end_ms === null ? nothing : html`<span class="muted">window to ${time(one.end_ms)}</span>`}</header>
      ${one.detail ? html`<ul>${one.detail.split("; ").map((/** @type {string} */ part) => html`<li>${values(part)}</li>`)}</ul>` : nothing}
      ${origin(one)}
    </li>`)}</ol>`;
}

/** Both values of a field that differs, side by side. @param {string} detail */
function values(detail) {
  const found = /^(\S+) is (.*) in (.+), this run computed (.*)$/.exec(detail);
  if (!found) return detail;
  const [, field, held, store, computed] = found;
  return html`<code>${field}</code>: <code class="held">${held}</code> in ${store}, <code class="computed">${computed}</code> by the log`;
}

/** The records of a result, or the life of the record of a dead letter. @param {Json} one */
function origin(one) {
  if (!one.id) return nothing;
  if (one.store === DEAD_LETTERS) {
    const [stream, partition, offset] = one.id.split("/");
    return offset === undefined ? nothing : html`<p><a href=${route.href(["records", stream, partition, offset])}>Life of the record</a></p>`;
  }
  if (PREFIXES.some((prefix) => one.store.startsWith(prefix)) || one.kind === "missing") return nothing;
  return html`<p><a href=${route.href(["records", "of", one.store, one.id])}>Records of this result</a></p>`;
}

/** @param {string} job @param {number | null} after @param {number | null} upTo */
function orderAudit(job, after, upTo) {
  const query = new URLSearchParams({ ...(after === null ? {} : { after_ms: String(after) }), ...(upTo === null ? {} : { up_to_ms: String(upTo) }) }).toString();
  ask({
    title: `Audit: ${job}`,
    does: `Recomputes the results of ${rangeText(after, upTo)} from the log in the background, and compares them with the stores. It changes no result.`,
    label: "Audit",
    operation: AUDIT,
    path: `/v1/jobs/${quoted(job)}/audit${query ? `?${query}` : ""}`,
    command: `strandline job audit ${job}${rangeOptions(after, upTo)}`,
  });
}

/** @param {string} job @param {number} after @param {number | null} upTo */
function orderBackfill(job, after, upTo) {
  ask({
    title: `Backfill: ${job}`,
    does: `Recomputes the results of ${rangeText(after, upTo)} with the current version of the pipeline, while the job continues. The new results replace the old ones when all are complete. Until then, the aliases show the old ones.`,
    label: "Backfill",
    operation: BACKFILL,
    path: `/v1/jobs/${quoted(job)}/backfills?from_ms=${after}${upTo === null ? "" : `&to_ms=${upTo}`}`,
    command: `strandline job backfill ${job}${rangeOptions(after, upTo)}`,
  });
}

/** @param {Json} backfill */
function cancelBackfill({ job, generation }) {
  ask({
    title: `Cancel backfill ${generation} of ${job}`,
    does: "Ends the backfill and deletes its results, which were never visible. The results before it stay.",
    label: "Cancel",
    operation: CANCEL,
    path: `/v1/jobs/${quoted(job)}/backfills/${generation}/cancel`,
    command: `strandline job backfill ${job} --cancel`,
    isDangerous: true,
  });
}
