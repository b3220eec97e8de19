/** Home: is everything all right? Jobs, the worst first, and streams without new records. */
import { html, nothing } from "lit";
import { repeat } from "lit/directives/repeat.js";
import { quoted } from "../core/api.js";
import { capital, duration, short, sum, whole } from "../core/format.js";
import { rankOf, toneOf } from "../core/jobs.js";
import { Poll } from "../core/poll.js";
import { route } from "../core/route.js";
import { Element, Follow, Tick } from "../elements/base.js";
import { badge, command, empty, figure, panel, sentence, since } from "../elements/parts.js";
import { strip } from "../elements/strip.js";

const SILENT_MS = 300_000;
/** Share of rejected records in the last hour from which a job has a warning. */
const REJECTED_SHARE = 0.1;
const HISTORY_MS = 60_000;
/** With many jobs, each history is read less often. Its steps are 10 minutes. */
const HISTORY_MS_A_JOB = 600;

export class JobRow extends Element {
  static properties = { job: { attribute: false }, explanation: { attribute: false }, tone: { type: String }, jobs: { type: Number } };

  constructor() {
    super();
    /** @type {any} */ this.job = null;
    /** @type {any} */ this.explanation = null;
    this.tone = "wait";
    /** @type {number} share of the records of the last hour that was rejected */ this.recent = 0;
    /** @type {number} of the list */ this.jobs = 1;
    this.history = new Poll(this, () => (this.job ? `/v1/jobs/${quoted(this.job.name)}/history` : null), HISTORY_MS);
  }

  render() {
    this.history.everyMs = Math.max(HISTORY_MS, HISTORY_MS_A_JOB * this.jobs);
    const { job, explanation } = this;
    const tone = this.tone;
    const [watermark, latest] = [job.watermark_ms, job.latest_event_ms];
    return html`<article class="job ${tone}">
      <div class="what">
        <h3><a href=${route.href(["jobs", job.name])}>${job.name}</a> ${badge(tone, job.state)}</h3>
        <p>${explanation ? sentence(capital(explanation.message)) : job.message || "…"}</p>
        ${this.recent >= REJECTED_SHARE ? html`<p class="note"><a href=${route.href(["dead-letters", job.name])}>${Math.round(100 * this.recent)} % of the records of the last hour were rejected</a></p>` : nothing}
        ${explanation && explanation.cause !== "results" ? html`<p class="next">${sentence(capital(explanation.next))}</p>` : nothing}
        ${[...job.warnings, ...job.notes].slice(0, 2).map((note) => html`<p class="note">${sentence(note)}</p>`)}
      </div>
      ${strip(this.history.data, job.name)}
      <dl>
        ${figure("Lag", short(job.lag_records), "records")}
        ${figure("Rejected", short(sum(job.counts.rejected)), `of ${short(job.counts.records)}`)}
        ${figure("Watermark", watermark == null || latest == null ? "–" : duration(latest - watermark), "behind")}
      </dl>
    </article>`;
  }

  updated() {
    const history = this.history.data;
    if (!history) return;
    const steps = Math.round(3_600_000 / history.step_ms);
    const total = (/** @type {number[]} */ values) => values.slice(-steps).reduce((a, b) => a + b, 0);
    const recent = total(history.rejected) / Math.max(1, total(history.records));
    if (recent !== this.recent) {
      this.recent = recent;
      this.dispatchEvent(new CustomEvent("recent", { detail: recent }));
      this.requestUpdate();
    }
  }
}
customElements.define("sl-job-row", JobRow);

export class HomeView extends Element {
  constructor() {
    super();
    /** @type {Map<string, number>} job -> share of the records of the last hour that was rejected */
    this.recent = new Map();
    this.jobs = new Poll(this, () => "/v1/jobs", 5_000);
    this.explanations = new Poll(this, () => "/v1/explanations", 10_000);
    this.arrivals = new Poll(this, () => "/v1/arrivals", 15_000);
    this.tick = new Tick(this, 5_000);
    this.zone = new Follow(this, [route, "change"]);
  }

  get ranked() {
    /** @type {Map<string, any>} */
    const of = new Map((this.explanations.data?.explanations ?? []).map((/** @type {any} */ one) => [one.job, one]));
    return (this.jobs.data?.jobs ?? [])
      .map((/** @type {any} */ job) => ({ job, explanation: of.get(job.name), tone: this.#tone(job, of.get(job.name)) }))
      .sort((/** @type {any} */ a, /** @type {any} */ b) => rankOf(a.tone) - rankOf(b.tone) || a.job.name.localeCompare(b.job.name));
  }

  render() {
    const jobs = this.jobs.data?.jobs;
    if (jobs && jobs.length === 0) return this.#begin();
    /** @type {{job: any, explanation: any, tone: string}[]} */
    const ranked = this.ranked;
    const bad = ranked.filter((one) => one.tone === "bad").length;
    const warn = ranked.filter((one) => one.tone === "warn").length;
    const silent = this.#silent.length;
    return html`<div class="view home">
      <div class="title">
        <h1>${jobs ? headline(bad, warn, silent) : "Home"}</h1>
        ${jobs ? this.#totals(jobs) : nothing}
      </div>
      ${panel("Jobs", this.jobs, () => repeat(ranked, (one) => one.job.name, (one) => html`<sl-job-row
          .job=${one.job} .explanation=${one.explanation} .tone=${one.tone} .jobs=${ranked.length}
          @recent=${(/** @type {CustomEvent} */ event) => {
            this.recent.set(one.job.name, event.detail);
            this.requestUpdate();
          }}></sl-job-row>`), {
        kind: "flush",
        aside: html`<span class="legend"><i class="bar"></i>records, 24 h <i class="bad"></i>rejected <i class="mark"></i>start</span>`,
      })}
      ${panel("Streams", this.arrivals, () => this.#streams(), { aside: html`<span class="muted">the longest silence first</span>` })}
    </div>`;
  }

  /** @param {any[]} jobs */
  #totals(jobs) {
    const running = jobs.filter((job) => job.state === "running").length;
    const lags = jobs.map((job) => job.lag_records);
    return html`<dl class="figures">
      ${figure("Running", `${running} of ${jobs.length}`)}
      ${figure("Lag", lags.includes(null) ? "unknown" : short(lags.reduce((a, b) => a + b, 0)))}
      ${figure("Results", short(jobs.reduce((all, job) => all + sum(job.counts.results), 0)))}
      ${figure("Rejected", short(jobs.reduce((all, job) => all + sum(job.counts.rejected), 0)))}
    </dl>`;
  }

  /** @param {any} job @param {any} explanation @returns {import("../core/jobs.js").Tone} */
  #tone(job, explanation) {
    const tone = toneOf(job, explanation);
    return tone === "ok" && (this.recent.get(job.name) ?? 0) >= REJECTED_SHARE ? "warn" : tone;
  }

  get #silent() {
    const { now_ms, arrivals } = this.arrivals.data ?? { now_ms: 0, arrivals: [] };
    return arrivals.filter((/** @type {any} */ one) => one.newest_ms !== null && now_ms - one.newest_ms > SILENT_MS);
  }

  #streams() {
    const { now_ms, arrivals } = this.arrivals.data;
    if (!arrivals.length) return empty("No stream is registered.");
    const sorted = [...arrivals].sort((a, b) => (a.newest_ms ?? Infinity) - (b.newest_ms ?? Infinity));
    return html`<table>
      <thead>
        <tr><th>Stream</th><th>Newest record</th><th class="number wide">Records</th><th class="number wide">Partitions</th><th>State</th></tr>
      </thead>
      <tbody>
        ${sorted.map((one) => {
          const age = one.newest_ms === null ? null : now_ms - one.newest_ms;
          const quiet = one.partitions.filter((/** @type {any} */ part) => part.newest_ms === null || now_ms - part.newest_ms > SILENT_MS).length;
          const state = one.problem
            ? badge("bad", "unknown")
            : age === null
              ? badge("wait", "no record yet")
              : age > SILENT_MS
                ? badge("warn", `silent for ${duration(age)}`)
                : quiet
                  ? badge("wait", `${quiet} of ${one.partitions.length} partitions silent`)
                  : badge("ok", "receiving");
          return html`<tr>
            <td><a href=${route.href(["streams", one.stream])}>${one.stream}</a></td>
            <td>${age === null ? "–" : since(one.newest_ms)}</td>
            <td class="number wide">${whole(one.records)}</td>
            <td class="number wide">${one.partitions.length || "–"}</td>
            <td>${state}</td>
          </tr>`;
        })}
      </tbody>
    </table>`;
  }

  #begin() {
    return html`<div class="view begin">
      <div class="title"><h1>Nothing runs here yet. Three ways to begin:</h1></div>
      <div class="ways">
        <section class="panel">
          <header><h2>Your own records</h2></header>
          <p>Paste some of them, or drop a file. Strandline proposes a stream and a pipeline, and shows the first results.</p>
          <a class="button primary" href=${route.href(["begin"])}>Begin with a sample</a>
          ${command("strandline stream infer --sample records.ndjson --name readings")}
        </section>
        <section class="panel">
          <header><h2>The example</h2></header>
          <p>A simulated wind farm sends by HTTP, MQTT and UDP. Its job computes means by minute and by hour. Results come within seconds.</p>
          ${command("strandline example")}
        </section>
        <section class="panel">
          <header><h2>The tutorial</h2></header>
          <p>Ten minutes from an empty machine to a stream, a pipeline, and a result that survives <code>kill -9</code>. It is in <code>docs/tutorial.md</code>.</p>
          ${command("strandline apply stream.yaml pipeline.yaml")}
        </section>
      </div>
      <p class="muted">This page shows the first job as soon as it exists.</p>
    </div>`;
  }
}
customElements.define("sl-home", HomeView);

/** @param {number} bad @param {number} warn @param {number} silent */
function headline(bad, warn, silent) {
  const parts = [];
  if (bad) parts.push(`${bad} ${bad === 1 ? "job needs" : "jobs need"} attention`);
  if (warn) parts.push(`${warn} ${warn === 1 ? "job has" : "jobs have"} a warning`);
  if (silent) parts.push(`${silent} ${silent === 1 ? "stream is" : "streams are"} silent`);
  return parts.length ? capital(`${parts.join(", ")}`) : "Everything is all right";
}
