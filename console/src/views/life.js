/** The life of a record: its fields, the outcome of each step, and its results. And the records of a result. */
import { html, nothing } from "lit";
import { keyed } from "lit/directives/keyed.js";
import { quoted } from "../core/api.js";
import { time, whole } from "../core/format.js";
import { Poll } from "../core/poll.js";
import { route } from "../core/route.js";
import { Element, Follow } from "../elements/base.js";
import { Computed } from "../elements/computed.js";
import "../elements/found.js";
import { badge, command, empty, panel } from "../elements/parts.js";
import { session } from "../core/session.js";

const RECORDS_SHOWN = 200;

/** @typedef {import("../core/api.js").Json} Json */

/** The life of one record in one job. */
class RecordLife extends Computed {
  static properties = { ...Computed.properties, job: { type: String } };

  constructor() {
    super();
    this.job = "";
  }

  render() {
    return this.shown(html`In job <a href=${route.href(["jobs", this.job])}>${this.job}</a>`, (life) => this.#life(life));
  }

  /** @param {Json} life */
  #life(life) {
    if (life.state === "waiting") return empty("The job has not read this record yet.");
    if (life.state === "in_progress") return empty(`The record is in slice ${life.slice}, which the job processes now.`);
    const lookups = Object.entries(life.lookups).map(([name, version]) => `${name} version ${version}`);
    const isRejected = life.rows.some((/** @type {Json} */ row) => row.outcome !== "accepted");
    return html`<p class="lead">${outcome(life)}</p>
      ${isRejected ? html`<sl-letter-of .job=${life.job} .record=${`${life.stream}/${life.partition}/${life.offset}`} .sinceMs=${life.log_time_ms}></sl-letter-of>` : nothing}
      <dl class="facts">
        <dt>Slice</dt><dd>${life.slice}, by version ${life.version} of the pipeline</dd>
        <dt>Log time</dt><dd>${time(life.log_time_ms)}</dd>
        <dt>Late below</dt><dd>${life.late_below_ms === null ? "no record can be late" : time(life.late_below_ms)}</dd>
        ${lookups.length ? html`<dt>Lookups</dt><dd>${lookups.join(", ")}</dd>` : nothing}
      </dl>
      ${life.rows.map((/** @type {Json} */ row) => recordRow(row))}
      ${life.row_count > life.rows.length ? html`<p class="muted">The record has ${whole(life.row_count)} elements; the first ${life.rows.length} are shown.</p>` : nothing}
      ${this.#results(life)}
      ${command(`strandline record show ${life.stream} ${life.partition} ${life.offset} --job ${life.job}`)}
      ${command(`GET ${this.path}`)}`;
  }

  /** @param {Json} life */
  #results(life) {
    const more = life.open_until_ms === null ? nothing : html`<p class="muted">More results can contain it until event time ${time(life.open_until_ms)}.</p>`;
    if (!life.results.length) return html`<h3>Results</h3>${empty("No result contains the record.")}${more}`;
    return html`<h3>Results that contain it</h3>
      <ol class="lives">${life.results.map((/** @type {Json} */ one) => recordResult(one))}</ol>${more}`;
  }
}
customElements.define("sl-record-life", RecordLife);

/** The dead letters of a record, with the ways to repair and requeue it. */
class LetterOfRecord extends Element {
  static properties = { job: { type: String }, record: { type: String }, sinceMs: { attribute: false } };

  constructor() {
    super();
    this.job = "";
    this.record = "";
    this.sinceMs = 0;
    this.letters = new Poll(this, () => `/v1/jobs/${quoted(this.job)}/dead-letters?order=newest&limit=20&since_ms=${this.sinceMs}&record=${quoted(this.record)}`, 0);
    this.follow = new Follow(this, [route, "change"], [session, "change"]);
  }

  render() {
    const letters = this.letters.data?.dead_letters ?? [];
    if (!letters.length) return html`<p class="muted">${this.letters.error?.message ?? (this.letters.data ? "Its dead letter no longer exists." : "Looking for its dead letter…")}</p>`;
    const refusal = session.refusal("POST /v1/jobs/{name}/dead-letters/repair");
    return html`<div class="actions">${letters.map((/** @type {Json} */ one) => html`
        <a class="button quiet" href=${route.href(["dead-letters", this.job, String(one.number)])}>Dead letter ${one.number}${one.element === null ? "" : ` (element ${one.element})`}</a>
        ${refusal ? nothing : html`<a class="button" href=${route.href(["dead-letters", this.job, String(one.number), "repair"])}>Repair…</a>`}`)}
      ${refusal ? html`<span class="muted">Repair ${refusal}.</span>` : nothing}</div>`;
  }
}
customElements.define("sl-letter-of", LetterOfRecord);

/** @param {Json} life one sentence: what became of the record */
function outcome(life) {
  const rejected = life.rows.find((/** @type {Json} */ row) => row.outcome !== "accepted");
  const emitted = life.results.filter((/** @type {Json} */ one) => one.state === "emitted" && one.replaced_by === null).length;
  const open = life.results.filter((/** @type {Json} */ one) => one.state === "open").length;
  if (rejected && !life.results.length) return html`The record is a dead letter: ${rejected.outcome}.`;
  if (life.duplicates && !life.results.length) return "The record is a duplicate, so no result contains it.";
  if (!life.results.length && life.open_until_ms === null) return "The steps left the record out, so no result contains it.";
  const parts = [];
  if (emitted) parts.push(`${whole(emitted)} ${emitted === 1 ? "result contains" : "results contain"} it`);
  if (open) parts.push(`${whole(open)} open ${open === 1 ? "window contains" : "windows contain"} it`);
  if (!parts.length) return "The record is accepted, and no result contains it yet.";
  return `The record is accepted: ${parts.join(", and ")}.`;
}

/** @param {Json} row */
function recordRow(row) {
  const fields = Object.entries(row.fields);
  return html`<div class="columns row">
    <div>
      <h3>${row.element === null ? "Fields" : `Element ${row.element}`}</h3>
      ${fields.length
        ? html`<table class="fields"><thead><tr><th>Field</th><th>Value</th></tr></thead><tbody>
            ${fields.map(([name, value]) => html`<tr><td>${name}</td><td><code>${JSON.stringify(value)}</code></td></tr>`)}
          </tbody></table>`
        : nothing}
      ${row.outcome === "accepted" ? nothing : html`<p class="note"><span class="reason">${row.outcome}</span> ${row.message}</p>`}
    </div>
    <div>
      <h3>Steps</h3>
      ${row.paths.length
        ? row.paths.map((/** @type {Json} */ path) => html`<ol class="steps" aria-label="Steps to ${path.stage}">
            ${path.steps.map((/** @type {Json} */ step) => html`<li class=${step.outcome}>
              <span class="mark" aria-hidden="true"></span><code>${step.step}</code> ${step.outcome === "kept" ? valuesOf(step.values) : html`<b>${step.outcome.replace("_", " ")}</b> ${step.message || html`by <code>${step.text}</code>`}`}
            </li>`)}
            ${path.steps.every((/** @type {Json} */ step) => step.outcome === "kept") ? html`<li class="kept"><span class="mark" aria-hidden="true"></span>reaches <b>${path.stage}</b></li>` : html`<li class="muted">doesn't reach <b>${path.stage}</b></li>`}
          </ol>`)
        : html`<p class="muted">The record was rejected before its steps.</p>`}
    </div>
  </div>`;
}

/** @param {Record<string, unknown>} values */
const valuesOf = (values) => Object.entries(values).map(([name, value]) => html`<span class="value">${name} <code>${JSON.stringify(value)}</code></span> `);

/** @type {Record<string, [string, string]>} */
const STATES = { emitted: ["ok", "emitted"], open: ["wait", "open window"], dead_letter: ["bad", "dead letter"] };

/** @param {Json} one */
function recordResult(one) {
  const [tone, word] = one.replaced_by === null ? STATES[one.state] : ["rest", `replaced by backfill ${one.replaced_by}`];
  const alias = one.sinks.map((/** @type {string} */ sink) => sink.split(" ")).find((/** @type {string[]} */ [kind]) => kind === "elasticsearch")?.[1];
  return html`<li>
    <header><b>${one.stage}</b>${one.window_end_ms === null ? nothing : html`<span>${time(one.window_start_ms)} to ${time(one.window_end_ms)}</span>`}${badge(tone, word)}</header>
    <p>${one.message || valuesOf(one.values)}</p>
    <p class="muted">${one.slice === null ? nothing : html`by slice ${one.slice}, `}version ${one.version}${one.sinks.length ? `, to ${one.sinks.join(", ")}` : ", read by later stages"}${alias && one.state === "emitted"
      ? html` · <a href=${route.href(["records", "of", alias, one.document])}>Records of this result</a>`
      : nothing}</p>
  </li>`;
}

/** The records of one result. */
class ResultRecords extends Computed {
  render() {
    return this.shown("Records", (found) => html`
      <p class="lead">The result contains ${whole(found.record_count)} ${found.record_count === 1 ? "record" : "records"}.</p>
      <dl class="facts">
        <dt>Job</dt><dd><a href=${route.href(["jobs", found.job])}>${found.job}</a>, stage ${found.stage}, version ${found.version}</dd>
        <dt>Slice</dt><dd>${found.slice}</dd>
        <dt>Replay</dt><dd>${whole(found.records_read)} records were read again</dd>
      </dl>
      <div class="scroll" tabindex="0"><table>
        <thead><tr><th>Stream</th><th class="number">Partition</th><th class="number">Offset</th></tr></thead>
        <tbody>${found.records.slice(0, RECORDS_SHOWN).map((/** @type {Json} */ one) => html`<tr><td>${one.stream}</td><td class="number">${one.partition}</td>
          <td class="number"><a href=${route.href(["records", one.stream, String(one.partition), String(one.offset)])}>${one.offset}</a></td></tr>`)}</tbody>
      </table></div>
      ${found.record_count > RECORDS_SHOWN ? html`<p class="muted">The first ${RECORDS_SHOWN} records are shown.</p>` : nothing}
      ${command(`GET ${this.path}`)}`);
  }
}
customElements.define("sl-result-records", ResultRecords);

export class RecordsView extends Element {
  static properties = { parts: { attribute: false }, search: { state: true } };

  constructor() {
    super();
    /** @type {string[]} */ this.parts = [];
    /** @type {{stream: string, search: import("../elements/found.js").Search} | null} */ this.search = null;
    this.streams = new Poll(this, () => "/v1/streams", 60_000);
    this.jobs = new Poll(this, () => "/v1/jobs", 60_000);
    this.follow = new Follow(this, [route, "change"]);
  }

  render() {
    const isResult = this.parts[0] === "of";
    return html`<div class="view">
      <div class="title">
        <h1>${isResult ? "Records of a result" : "Life of a record"}</h1>
        <p class="about">${isResult
          ? html`Result <code>${this.parts[2]}</code> of ${this.parts[1]}. The job's operators compute its records from the log.`
          : "From its place in the log to each result that contains it. The job's operators compute it from the log, also for past slices."}</p>
      </div>
      ${isResult ? this.#result() : this.#record()}
    </div>`;
  }

  #result() {
    const [, alias, document] = this.parts;
    const path = `/v1/results/${quoted(alias ?? "")}/${quoted(document ?? "")}/sources`;
    return keyed(path, html`<sl-result-records .path=${path}></sl-result-records>`);
  }

  #record() {
    const [stream, partition, offset] = this.parts;
    if (offset !== undefined) {
      return html`${panel("Record", this.streams, () => this.#form(stream, partition, offset))}
        ${panel("Jobs", this.jobs, () => this.#lives(stream, partition, offset), { kind: "bare" })}`;
    }
    return html`${panel("Find a record", this.streams, () => this.#finder())}
      ${this.search ? html`<sl-found-records .stream=${this.search.stream} .search=${this.search.search} .limit=${50}></sl-found-records>` : nothing}
      ${panel("Or name its position", this.streams, () => this.#form(stream, partition, offset))}`;
  }

  /** The choice of a stream. @param {string | null | undefined} chosen */
  #streamChoice(chosen) {
    return html`<label>Stream<select name="stream">${this.streams.data.streams.map((/** @type {Json} */ one) => html`<option .selected=${one.name === chosen}>${one.name}</option>`)}</select></label>`;
  }

  #finder() {
    if (!this.streams.data.streams.length) return empty("No stream is registered.");
    const zone = route.isUtc ? "UTC" : "local time";
    return html`<form class="controls place finder" @submit=${this.#find}>
      ${this.#streamChoice(route.now.query.get("stream"))}
      <label>Device contains<input name="device" maxlength="200" placeholder="any" /></label>
      <label>Appended from (${zone})<input name="from" type="datetime-local" step="1" /></label>
      <label>Appended until (${zone})<input name="to" type="datetime-local" step="1" /></label>
      <label class="whole">Payload<textarea name="payload" rows="2" placeholder="Any; paste the bytes of a record to find it"></textarea></label>
      <button class="primary">Find</button>
    </form>`;
  }

  /** @param {SubmitEvent} event */
  #find(event) {
    event.preventDefault();
    const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
    const text = (/** @type {string} */ name) => String(form.get(name) ?? "").trim();
    const at = (/** @type {string} */ name) => (text(name) ? Date.parse(`${text(name)}${route.isUtc ? "Z" : ""}`) : null);
    this.search = { stream: text("stream"), search: { device: text("device"), from: at("from"), to: at("to"), payload: text("payload") } };
  }

  /** @param {string | undefined} stream @param {string | undefined} partition @param {string | undefined} offset */
  #form(stream, partition, offset) {
    if (!this.streams.data.streams.length) return empty("No stream is registered.");
    return html`<form class="controls place" @submit=${this.#go}>
      ${this.#streamChoice(stream)}
      <label>Partition<input name="partition" inputmode="numeric" pattern="[0-9]+" required .value=${partition ?? "0"} /></label>
      <label>Offset<input name="offset" inputmode="numeric" pattern="[0-9]+" required .value=${offset ?? ""} /></label>
      <button class="primary">Show</button>
    </form>
    ${offset === undefined ? html`<p class="muted">A dead letter, a result, and a device link to their records. The page of a stream shows its newest records.</p>` : html`<p class="muted"><a href=${route.href(["records"], { stream: stream ?? null })}>Find another record</a></p>`}`;
  }

  /** @param {SubmitEvent} event */
  #go(event) {
    event.preventDefault();
    const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
    location.hash = route.href(["records", ...["stream", "partition", "offset"].map((name) => String(form.get(name)))]).slice(1);
  }

  /** @param {string} stream @param {string} partition @param {string} offset */
  #lives(stream, partition, offset) {
    const readers = this.jobs.data.jobs.filter((/** @type {Json} */ job) => job.streams.includes(stream));
    if (!readers.length) return empty(`No job reads stream ${stream}.`);
    return readers.map((/** @type {Json} */ job) => {
      const path = `/v1/jobs/${quoted(job.name)}/records/${quoted(stream)}/${quoted(partition)}/${quoted(offset)}`;
      return keyed(path, html`<sl-record-life .job=${job.name} .path=${path}></sl-record-life>`);
    });
  }
}
customElements.define("sl-records", RecordsView);
