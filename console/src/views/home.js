/** Home: is everything all right? Jobs, the worst first, and streams without new records. */
import { html, nothing } from "lit";
import { repeat } from "lit/directives/repeat.js";
import { quoted } from "../core/api.js";
import { bytes, capital, duration, exact, short, sum, time, whole } from "../core/format.js";
import { rankOf, toneOf } from "../core/jobs.js";
import { REJECTED_SHARE, SILENT_MS } from "../core/limits.js";
import { changedJobs, live } from "../core/live.js";
import { Poll } from "../core/poll.js";
import { route } from "../core/route.js";
import { session } from "../core/session.js";
import { Element, Follow, Tick } from "../elements/base.js";
import { addButton, badge, command, empty, figure, panel, sentence, since } from "../elements/parts.js";
import { strip } from "../elements/strip.js";

/** Number of jobs on a page. Only these are requested often, with their histories. */
const PAGE = 25;
/** Maximum number of names in a request. */
const NAMES_MAX = 100;
const BY_NAME = new Intl.Collator("en");

export class JobRow extends Element {
  static properties = { job: { attribute: false }, explanation: { attribute: false }, history: { attribute: false }, tone: { type: String } };

  constructor() {
    super();
    /** @type {any} */ this.job = null;
    /** @type {any} */ this.explanation = null;
    /** @type {any} */ this.history = null;
    this.tone = "wait";
  }

  render() {
    const { job, explanation } = this;
    const tone = this.tone;
    const [watermark, latest] = [job.watermark_ms, job.latest_event_ms];
    const rejected = explanation?.rejected_share ?? 0;
    return html`<article class="job ${tone}">
      <div class="what">
        <h3><a href=${route.href(["jobs", job.name])}>${job.name}</a> ${badge(tone, job.state)}</h3>
        <p>${explanation ? sentence(capital(explanation.message)) : job.message || "…"}</p>
        ${rejected >= REJECTED_SHARE ? html`<p class="note"><a href=${route.href(["dead-letters", job.name])}>${Math.round(100 * rejected)} % of the records of the last hour were rejected</a></p>` : nothing}
        ${explanation && explanation.cause !== "results" ? html`<p class="next">${sentence(capital(explanation.next))}</p>` : nothing}
        ${[...job.warnings, ...job.notes].slice(0, 2).map((note) => html`<p class="note">${sentence(note)}</p>`)}
      </div>
      ${strip(this.history, job.name)}
      <dl>
        ${figure("Lag", short(job.lag_records), "records")}
        ${figure("Rejected", short(sum(job.counts.rejected)), `of ${short(job.counts.records)}`)}
        ${figure("Watermark", watermark == null || latest == null ? "–" : duration(latest - watermark), "behind")}
      </dl>
    </article>`;
  }
}
customElements.define("sl-job-row", JobRow);

/** @typedef {{job: any, explanation: any, tone: import("../core/jobs.js").Tone}} Ranked */

export class HomeView extends Element {
  constructor() {
    super();
    this.jobs = new Poll(this, () => "/v1/jobs", 30_000);
    this.explanations = new Poll(this, () => (this.jobs.data ? "/v1/explanations" : null), 30_000);
    this.rows = new Poll(this, () => this.#path("jobs"), 5_000);
    this.reasons = new Poll(this, () => this.#path("explanations"), 10_000);
    this.histories = new Poll(this, () => this.#path("histories", this.shown), 60_000);
    this.arrivals = new Poll(this, () => "/v1/arrivals", 15_000);
    this.machines = new Poll(this, () => "/v1/machines", 30_000);
    /** @type {Ranked[]} */ this.ranked = [];
    /** @type {string[]} names of the jobs on this page of the list */ this.shown = [];
    this.tick = new Tick(this, 5_000);
    this.follow = new Follow(this, [route, "change"], [live, "happened"], [session, "change"]);
  }

  get skip() {
    return Math.max(0, Number(route.now.query.get("skip") ?? 0) || 0);
  }

  willUpdate() {
    const explanations = byName(this.explanations, this.reasons, "explanations", "job");
    this.ranked = [...byName(this.jobs, this.rows, "jobs", "name").values()]
      .map((job) => ({ job, explanation: explanations.get(job.name), tone: tone(job, explanations.get(job.name)) }))
      .sort((a, b) => rankOf(a.tone) - rankOf(b.tone) || BY_NAME.compare(a.job.name, b.job.name));
    this.shown = this.ranked.slice(this.skip, this.skip + PAGE).map((one) => one.job.name);
  }

  /** Path for the jobs on this page, and for those that have just changed. @param {string} kind @param {string[]} names */
  #path(kind, names = [...this.shown, ...changedJobs()]) {
    const sorted = [...new Set(names)].sort().slice(0, NAMES_MAX);
    return this.jobs.data && sorted.length ? `/v1/${kind}?${sorted.map((name) => `name=${quoted(name)}`).join("&")}` : null;
  }

  render() {
    const isKnown = this.jobs.data !== null;
    const { ranked } = this;
    if (isKnown && ranked.length === 0) return this.#begin();
    const bad = ranked.filter((one) => one.tone === "bad").length;
    const warn = ranked.filter((one) => one.tone === "warn").length;
    const silent = this.#silent.length;
    const partly = (this.arrivals.data?.arrivals ?? []).filter((/** @type {any} */ one) => !this.#silent.includes(one) && !one.problem && silentPartitions(one, this.arrivals.data.now_ms)).length;
    return html`<div class="view home">
      <div class="title">
        <div class="heading"><h1>${isKnown ? headline(bad, warn, silent, partly) : "Home"}</h1>${addButton()}</div>
        ${isKnown ? this.#totals(ranked.map((one) => one.job)) : nothing}
      </div>
      ${panel("Jobs", this.rows.isStale ? [this.rows, this.jobs] : this.jobs, () => this.#list(), {
        kind: "flush",
        aside: html`<span class="legend"><i class="bar"></i>records, 24 h <i class="bad"></i>rejected <i class="mark"></i>start</span>`,
      })}
      ${panel("Streams", this.arrivals, () => this.#streams(), { aside: html`<span class="muted">the longest silence first</span>` })}
      ${panel("Machines", this.machines, () => machines(this.machines.data), { aside: html`<a href=${route.href(["doctor"])}>Doctor</a>` })}
    </div>`;
  }

  #list() {
    /** @type {Map<string, any>} */
    const histories = new Map((this.histories.data?.histories ?? []).map((/** @type {any} */ one) => [one.job, one]));
    const shown = this.ranked.slice(this.skip, this.skip + PAGE);
    return html`${repeat(shown, (one) => one.job.name, (one) => html`<sl-job-row
        .job=${one.job} .explanation=${one.explanation} .tone=${one.tone} .history=${histories.get(one.job.name) ?? null}></sl-job-row>`)}
      ${this.ranked.length > PAGE
        ? html`<div class="actions">
            ${this.skip > 0 ? html`<a class="button quiet" href=${this.#page(this.skip - PAGE)}>Earlier</a>` : nothing}
            ${this.skip + PAGE < this.ranked.length ? html`<a class="button quiet" href=${this.#page(this.skip + PAGE)}>Later</a>` : nothing}
            <span class="muted">${whole(this.skip + 1)} to ${whole(this.skip + shown.length)} of ${whole(this.ranked.length)}</span>
          </div>`
        : nothing}`;
  }

  /** @param {number} skip */
  #page(skip) {
    return route.href([], { skip: skip > 0 ? String(skip) : null });
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
          return html`<tr>
            <td><a href=${route.href(["streams", one.stream])}>${one.stream}</a></td>
            <td>${age === null ? "–" : since(one.newest_ms)}</td>
            <td class="number wide">${whole(one.records)}</td>
            <td class="number wide">${one.partitions.length || "–"}</td>
            <td>${arrivalState(one, now_ms)}</td>
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

/**
 * The newest rows of a list. Rows that were requested by name replace those of the response about all jobs.
 * @param {Poll} all
 * @param {Poll} named
 * @param {string} list
 * @param {string} key
 * @returns {Map<string, any>}
 */
function byName(all, named, list, key) {
  const found = new Map((all.data?.[list] ?? []).map((/** @type {any} */ one) => [one[key], one]));
  if (named.data) {
    const wanted = new URLSearchParams(named.answered?.split("?")[1]).getAll("name");
    for (const name of wanted) found.delete(name); // a job that was deleted is in no answer
    for (const one of named.data[list]) found.set(one[key], one);
  }
  return found;
}

/** @param {any} job @param {any} explanation @returns {import("../core/jobs.js").Tone} */
function tone(job, explanation) {
  const found = toneOf(job, explanation);
  return found === "ok" && (explanation?.rejected_share ?? 0) >= REJECTED_SHARE ? "warn" : found;
}

/** Number of partitions with records, but without a new one. An empty partition may never get one. @param {any} arrival @param {number} now_ms */
const silentPartitions = (arrival, now_ms) => arrival.partitions.filter((/** @type {any} */ one) => one.newest_ms !== null && now_ms - one.newest_ms > SILENT_MS).length;

/** @param {any} arrival @param {number} now_ms */
function arrivalState(arrival, now_ms) {
  if (arrival.problem) return badge("bad", "unknown");
  if (arrival.newest_ms === null) return badge("wait", "no record yet");
  const age = now_ms - arrival.newest_ms;
  if (age > SILENT_MS) return badge("warn", `silent for ${duration(age)}`);
  const silent = silentPartitions(arrival, now_ms);
  return silent ? badge("warn", `${silent} of ${arrival.partitions.length} partitions silent`) : badge("ok", "receiving");
}

/** @param {number} bad @param {number} warn @param {number} silent @param {number} partly streams of which some partitions are silent */
function headline(bad, warn, silent, partly) {
  const parts = [];
  if (bad) parts.push(`${bad} ${bad === 1 ? "job needs" : "jobs need"} attention`);
  if (warn) parts.push(`${warn} ${warn === 1 ? "job has" : "jobs have"} a warning`);
  if (silent) parts.push(`${silent} ${silent === 1 ? "stream is" : "streams are"} silent`);
  if (partly) parts.push(`${partly} ${partly === 1 ? "stream has" : "streams have"} silent partitions`);
  return parts.length ? capital(`${parts.join(", ")}`) : "Everything is all right";
}

/** Share of the memory or disk of a machine below which the rest is a warning. */
const FREE_SHARE_MIN = 0.1;

/** The remaining capacity of the machines of the control services. @param {import("../core/api.js").Json} data */
function machines(data) {
  if (!data.machines.length) return empty("No control service has examined its machine yet.");
  return html`<table>
    <thead><tr><th>Machine</th><th class="wide">Control service</th><th>Load</th><th>Free memory</th><th>Free disk</th><th class="wide">Read</th></tr></thead>
    <tbody>${data.machines.map((/** @type {import("../core/api.js").Json} */ one) => html`<tr>
      <td>${one.host || "–"}</td><td class="wide">${one.service}</td>
      <td>${one.cores === null ? "–" : html`${exact(one.load)} of ${one.cores} ${one.cores === 1 ? "core" : "cores"} ${one.load > 2 * one.cores ? badge("warn", "busy") : nothing}`}</td>
      <td>${free(one.memory_free_bytes, one.memory_bytes)}</td>
      <td title=${one.disk_directory ?? nothing}>${one.problem ? badge("bad", one.problem) : free(one.disk_free_bytes, one.disk_bytes)}</td>
      <td class="wide">${one.is_current ? since(one.read_ms) : badge("warn", `no reading since ${time(one.read_ms)}`)}</td>
    </tr>`)}</tbody></table>`;
}

/** @param {number | null} left @param {number | null} all bytes */
function free(left, all) {
  if (left === null || !all) return "–";
  return html`${bytes(left)} of ${bytes(all)} ${left < FREE_SHARE_MIN * all ? badge("warn", `${Math.floor((100 * left) / all)} % left`) : nothing}`;
}
