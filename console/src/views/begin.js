/** Begin: from some records of their own, or a topic of Kafka, users get a stream, a pipeline, and first results. Nothing is written before they apply. */
import { html, nothing } from "lit";
import { quoted, request } from "../core/api.js";
import { capital, exact, sum, time, whole } from "../core/format.js";
import { firstNumber } from "../core/jobs.js";
import { Poll } from "../core/poll.js";
import { route } from "../core/route.js";
import { session } from "../core/session.js";
import { Element, Follow } from "../elements/base.js";
import "../elements/documents.js";
import { command, empty, figure, panel, sentence } from "../elements/parts.js";
import { sendRecords } from "../elements/sending.js";
import "../elements/topics.js";

/** Maximum size of a sample: in base64, and with its documents, it fits into a request. */
const SAMPLE_BYTES_MAX = 650_000;
const NAME = /^[a-z0-9][a-z0-9._-]{0,199}$/;
const NEWLINE = 10;
const EXAMPLE = Array.from({ length: 24 }, (_, at) => at)
  .map((at) => `{"device": "pump-${1 + (at % 2)}", "time": "2026-11-30T08:${String(Math.floor(at / 6)).padStart(2, "0")}:${at % 6}0Z", "pressure": ${(4.2 + 0.3 * Math.sin(at)).toFixed(2)}, "running": true}`)
  .join("\n");

/** End of a note that proposes another type. A test compares it with that of the service. */
const DOUBLE = "declare a measured field as double";

export class BeginView extends Element {
  static properties = { name: { state: true }, bytes: { state: true }, source: { state: true }, proposal: { state: true }, problem: { state: true }, isBusy: { state: true }, isOver: { state: true }, note: { state: true }, topic: { state: true }, topicProblem: { state: true }, applied: { state: true } };

  constructor() {
    super();
    this.name = "readings";
    /** @type {Uint8Array | null} the sample */ this.bytes = null;
    this.source = "";
    this.note = "";
    /** @type {any} with `bytes`, and `sample` in base64, or with the name of its `topic` */ this.proposal = null;
    this.problem = "";
    /** Topic that was chosen last. */ this.topic = "";
    this.topicProblem = "";
    /** @type {{stream: string, job: string | null} | null} documents that were applied, whose first records can be sent now */ this.applied = null;
    this.isBusy = false;
    this.isOver = false;
    this.follow = new Follow(this, [route, "change"]);
  }

  render() {
    if (this.applied) {
      const { stream, job } = this.applied;
      return html`<sl-first-records .stream=${stream} .job=${job} .proposal=${this.proposal}></sl-first-records>`;
    }
    return html`<div class="view begin-view">
      <div class="title"><p class="crumbs"><a href=${route.href([])}>Home</a></p>
        <h1>Begin with your own records</h1>
        <p class="about">Paste some records as a device sends them: JSON, CSV, InfluxDB lines, and others. Or choose a topic of Kafka. Strandline proposes a stream and a pipeline, and shows first results. Nothing is written before you apply.</p></div>
      <section class="panel sample ${this.isOver ? "over" : ""}" @dragover=${this.#over} @dragleave=${() => (this.isOver = false)} @drop=${this.#drop}>
        <header><h2>Sample</h2><div class="aside"><button type="button" class="quiet" @click=${() => this.#example()}>Use an example</button></div></header>
        <form @submit=${this.#submit}>
          <label for="sample">Records</label>
          <textarea id="sample" name="sample" rows="8" spellcheck="false" autocomplete="off" placeholder="One record per line, a JSON array, or drop a file here" aria-describedby="sample-help" @input=${(/** @type {any} */ event) => this.#typed(event.target.value)}></textarea>
          <p class="muted" id="sample-help" role="status">${this.bytes && this.source ? html`${this.source}, ${whole(this.bytes.length)} bytes. ${this.note}` : html`Some dozens of records are enough; at most ${whole(SAMPLE_BYTES_MAX)} bytes are used.`}</p>
          <div class="controls place">
            <label>File<input type="file" name="file" @change=${(/** @type {any} */ event) => void this.#file(event.target.files[0])} /></label>
            <label>Name of the stream<input name="name" required pattern="[a-z0-9][a-z0-9._\\-]*" maxlength="200" .value=${this.name} @input=${(/** @type {any} */ event) => (this.name = event.target.value)} aria-describedby="name-help" /></label>
            <button class="primary" ?disabled=${this.isBusy || !this.bytes?.length}>${this.isBusy ? "Reading…" : this.proposal ? "Propose again" : "Propose"}</button>
          </div>
          <p class="muted" id="name-help">Lower-case letters, digits, and <code>. _ -</code>. The name is also that of the topic in Kafka.</p>
          ${this.problem ? html`<p class="problem" role="alert">${this.problem}</p>` : nothing}
        </form>
      </section>
      <sl-topics .chosen=${this.topic} .isBusy=${this.isBusy} @chosen=${(/** @type {CustomEvent} */ event) => void this.#choose(event.detail)}></sl-topics>
      ${this.topicProblem ? html`<p class="problem" role="alert">${this.topicProblem}</p>` : nothing}
      ${this.proposal ? this.#proposed() : nothing}
    </div>`;
  }

  #proposed() {
    const proposal = this.proposal;
    const { topic } = proposal;
    return html`<section class="panel proposal"><header><h2>Proposal${topic ? ` for topic ${topic}` : ""}</h2></header>
        <p>${whole(proposal.records)} ${proposal.records === 1 ? "record" : "records"} of the ${topic ? "topic" : "sample"}: the proposed stream accepts ${whole(proposal.accepted)} ${proposal.accepted === 1 ? "row" : "rows"}.</p>
        ${proposal.notes.length || proposal.rejected.length
          ? html`<ul class="notes">${proposal.notes.map((/** @type {string} */ note) => html`<li>${note} ${this.#changes(note)}</li>`)}${proposal.rejected.map((/** @type {string} */ one) => html`<li class="warn">rejected: ${one}</li>`)}</ul>`
          : nothing}
        <details class="why"><summary>Command line and REST call</summary><div class="calls">
          ${command(topic ? `strandline stream infer --from-topic ${topic}` : `strandline stream infer --sample FILE --name ${proposal.stream}`)}
          ${command(topic ? `GET /v1/topics/${topic}/proposal` : `POST /v1/samples/proposal?name=${proposal.stream}`)}
        </div></details>
      </section>
      <sl-documents .text=${proposal.documents} .sample=${proposal.sample ?? null} .topic=${topic ?? null} file="${proposal.stream}.yaml" @applied=${this.#applied}></sl-documents>`;
  }

  /** Buttons for the change that a note proposes: a measured field becomes a double. @param {string} note */
  #changes(note) {
    if (!note.endsWith(DOUBLE)) return nothing;
    return note.slice(0, note.indexOf(":")).split(", ").map((name) => html`<button class="quiet small" @click=${() => this.#makeDouble(name)}>Make ${name} a double</button> `);
  }

  /** Change the type of a field in the text of the editor. @param {string} name */
  #makeDouble(name) {
    const text = /** @type {any} */ (this.querySelector("sl-documents")).edited;
    const field = new RegExp(`(["']?\\b${name.replace(/[^\w]/g, "\\$&")}["']?: *["']?(?:\\{[^}]*?type: *)?)long\\b`);
    this.proposal = { ...this.proposal, documents: text.replace(field, "$1double"), notes: this.proposal.notes.map((/** @type {string} */ note) => without(note, name)).filter(Boolean) };
  }

  /** @param {CustomEvent} event */
  #applied(event) {
    const named = (/** @type {string} */ kind) => event.detail.find((/** @type {any} */ one) => one.kind === kind)?.name ?? null;
    const [stream, job] = [named("stream") ?? this.proposal.stream, named("pipeline")];
    if (this.proposal.content_type) {
      this.applied = { stream, job };
      scrollTo(0, 0);
    } else location.hash = route.href(job ? ["jobs", job] : ["streams", stream]).slice(1);
  }

  /** @param {string} text */
  #typed(text) {
    this.bytes = cut(new TextEncoder().encode(text));
    this.source = "";
  }

  /** @param {Uint8Array} bytes @param {string} source */
  #take(bytes, source) {
    this.bytes = cut(bytes);
    this.source = source.charAt(0).toUpperCase() + source.slice(1);
    this.note = this.bytes.length < bytes.length ? `The first ${whole(this.bytes.length)} are used.` : "";
    const area = /** @type {HTMLTextAreaElement} */ (this.querySelector("#sample"));
    try {
      area.value = new TextDecoder("utf-8", { fatal: true }).decode(this.bytes);
    } catch {
      area.value = "";
      this.note += " They are not text, so they can't be shown here.";
    }
  }

  /** Replace the sample by an example. What belonged to another sample is removed. */
  #example() {
    const file = /** @type {HTMLInputElement} */ (this.querySelector("input[type=file]"));
    file.value = "";
    this.name = "readings";
    this.proposal = null;
    this.problem = "";
    this.#take(new TextEncoder().encode(EXAMPLE), "an example");
  }

  /** @param {File | undefined} file */
  async #file(file) {
    if (!file) return;
    this.#take(new Uint8Array(await file.slice(0, SAMPLE_BYTES_MAX + 1).arrayBuffer()), `File ${file.name}`);
    const stem = file.name.replace(/\.[^.]*$/, "").toLowerCase().replace(/[^a-z0-9._-]+/g, "-");
    if (this.name === "readings" && NAME.test(stem)) this.name = stem;
  }

  /** @param {DragEvent} event */
  #over(event) {
    event.preventDefault();
    this.isOver = true;
  }

  /** @param {DragEvent} event */
  #drop(event) {
    event.preventDefault();
    this.isOver = false;
    const file = event.dataTransfer?.files[0];
    if (file) void this.#file(file);
  }

  /** @param {SubmitEvent} event */
  async #submit(event) {
    event.preventDefault();
    const bytes = this.bytes;
    if (!bytes) return;
    this.isBusy = true;
    this.problem = "";
    this.topicProblem = "";
    this.topic = "";
    try {
      const proposal = await request("POST", `/v1/samples/proposal?name=${quoted(this.name)}`, { body: bytes, type: "application/octet-stream" });
      this.proposal = { ...proposal, sample: base64(bytes), bytes };
      await this.#showProposal();
    } catch (error) {
      this.problem = error instanceof Error ? error.message : String(error);
      this.proposal = null;
    }
    this.isBusy = false;
  }

  async #showProposal() {
    await this.updateComplete;
    this.querySelector(".proposal")?.scrollIntoView({ block: "start" });
  }

  /** @param {string} topic */
  async #choose(topic) {
    this.isBusy = true;
    this.topic = topic;
    this.problem = "";
    this.topicProblem = "";
    try {
      const proposal = await request("GET", `/v1/topics/${quoted(topic)}/proposal`);
      this.proposal = { ...proposal, topic, stream: topic };
      await this.#showProposal();
    } catch (error) {
      this.topicProblem = error instanceof Error ? error.message : String(error);
      this.proposal = null;
    }
    this.isBusy = false;
  }
}
customElements.define("sl-begin", BeginView);

/** Send the records of a sample to their new stream, and wait for the first results of its job. */
export class FirstRecords extends Element {
  static properties = { stream: { type: String }, job: { type: String }, proposal: { attribute: false }, outcome: { state: true } };

  constructor() {
    super();
    this.stream = "";
    /** @type {string | null} */ this.job = null;
    /** @type {any} */ this.proposal = null;
    this.outcome = "";
    const ofJob = (/** @type {string} */ more) => (this.job ? `/v1/jobs/${quoted(this.job)}${more}` : null);
    this.ways = new Poll(this, () => (this.stream ? `/v1/streams/${quoted(this.stream)}/senders` : null), 0);
    this.status = new Poll(this, () => ofJob(""), 2_000);
    this.explanation = new Poll(this, () => ofJob("/explanation"), 2_000);
    this.aliases = new Poll(this, () => "/v1/results", 0);
    this.results = new Poll(this, () => (this.emission && this.count ? `/v1/results/${quoted(this.emission.alias)}?${this.#drawn}` : null), 3_000);
    this.follow = new Follow(this, [route, "change"], [session, "change"]);
  }

  /** The first alias to which the job emits. */
  get emission() {
    return (this.aliases.data?.results ?? []).find((/** @type {any} */ one) => one.job === this.job) ?? null;
  }

  /** One measured number of each key. As many points as windows, so that no point combines several windows. */
  get #drawn() {
    const value = firstNumber(this.emission.numbers);
    return new URLSearchParams({ series: "10", points: "100", windows: "100", ...(value ? { value } : {}) });
  }

  /** Number of results of the job. */
  get count() {
    return sum(this.status.data?.counts.results);
  }

  render() {
    return html`<div class="view">
      <div class="title"><p class="crumbs"><a href=${route.href([])}>Home</a></p>
        <h1>${this.outcome ? "First results" : "Send the first records"}</h1>
        <p class="about">Stream <a href=${route.href(["streams", this.stream])}>${this.stream}</a> is registered${this.job ? html`, and job <a href=${route.href(["jobs", this.job])}>${this.job}</a> reads it` : nothing}.</p></div>
      ${panel("Your sample", this.ways, () => this.#sample())}
      ${this.outcome && this.job ? panel("Results", [this.status, this.explanation], () => this.#results()) : nothing}
      <sl-sending .stream=${this.stream}></sl-sending>
    </div>`;
  }

  #sample() {
    const { ways, can_relay } = this.ways.data;
    const { records, content_type, body } = this.proposal;
    const refusal = session.refusal("POST /v1/streams/{name}/records", this.stream);
    if (this.outcome) return html`<p class="lead" role="status">${this.outcome}</p>`;
    if (refusal) return html`<p>The sample was only used for the proposal: stream ${this.stream} is empty. Sending ${refusal}.</p>`;
    if (!can_relay) return html`<p>The sample was only used for the proposal: stream ${this.stream} is empty. This page can't send the records, because the control service knows no HTTP gateway (<code>STRANDLINE_INGEST_URL</code>).</p>`;
    const what = `${records === 1 ? "This record" : `These ${whole(records)} records`}`;
    return html`<p>The sample was only used for the proposal: stream ${this.stream} is empty. Send it, and the job computes its first results.</p>
      <div class="actions"><button class="primary" @click=${() => sendRecords(this.stream, body ? bytesOf(body) : this.proposal.bytes, content_type, ways, (outcome) => (this.outcome = outcome), what)}>Send ${what.charAt(0).toLowerCase()}${what.slice(1)}…</button>
        <a class="button quiet" href=${route.href(this.job ? ["jobs", this.job] : ["streams", this.stream])}>Not now</a></div>`;
  }

  #results() {
    const [job, explanation, found] = [this.status.data, this.explanation.data, this.results.data];
    return html`<p role="status">${sentence(capital(explanation.message))}.</p>
      ${this.count ? nothing : html`<p class="next">A window has a result when it closes. ${sentence(capital(explanation.next))}</p>`}
      <dl class="figures">${figure("Records", whole(job.counts.records))}${figure("Rejected", whole(sum(job.counts.rejected)))}${figure("Results", whole(this.count))}</dl>
      ${found?.series?.length
        ? html`<div class="scroll" tabindex="0"><table class="values first-results">
            <thead><tr><th>${found.by ?? "Series"}</th><th>Newest window</th><th class="number">${found.value}</th></tr></thead>
            <tbody>${found.series.map((/** @type {any} */ one) => {
              const [at, value] = one.points[one.points.length - 1];
              return html`<tr><td>${one.key}</td><td>${time(at)}</td><td class="number">${exact(value)}</td></tr>`;
            })}</tbody></table></div>
            <p><a href=${route.href(["results", this.emission?.alias ?? ""])}>All results of ${this.emission?.alias}</a></p>`
        : this.count
          ? empty("The results are being read.")
          : nothing}`;
  }
}
customElements.define("sl-first-records", FirstRecords);

/** A note on fields without one of them; empty if it is about no other field. @param {string} note @param {string} name */
function without(note, name) {
  if (!note.endsWith(DOUBLE)) return note;
  const at = note.indexOf(":");
  const names = note.slice(0, at).split(", ").filter((one) => one !== name);
  return names.length ? names.join(", ") + note.slice(at) : "";
}

/** @param {string} text in base64 */
const bytesOf = (text) => Uint8Array.from(atob(text), (one) => one.charCodeAt(0));

/** The first bytes, up to the end of a line if they are text. @param {Uint8Array} bytes */
function cut(bytes) {
  if (bytes.length <= SAMPLE_BYTES_MAX) return bytes;
  const end = bytes.lastIndexOf(NEWLINE, SAMPLE_BYTES_MAX);
  return bytes.slice(0, end > 0 ? end : SAMPLE_BYTES_MAX);
}

/** @param {Uint8Array} bytes */
function base64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 32_768) text += String.fromCharCode(...bytes.subarray(at, at + 32_768));
  return btoa(text);
}
