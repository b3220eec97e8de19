/** Begin: from some records of their own, or a topic of Kafka, users get a stream, a pipeline, and first results. Nothing is written before they apply. */
import { html, nothing } from "lit";
import { quoted, request } from "../core/api.js";
import { whole } from "../core/format.js";
import { route } from "../core/route.js";
import { Element, Follow } from "../elements/base.js";
import "../elements/documents.js";
import { command } from "../elements/parts.js";
import "../elements/topics.js";

/** Maximum size of a sample: in base64, and with its documents, it fits into a request. */
const SAMPLE_BYTES_MAX = 650_000;
const NAME = /^[a-z0-9][a-z0-9._-]{0,199}$/;
const NEWLINE = 10;
const EXAMPLE = Array.from({ length: 24 }, (_, at) => at)
  .map((at) => `{"device": "pump-${1 + (at % 2)}", "time": "2026-11-30T08:${String(Math.floor(at / 6)).padStart(2, "0")}:${at % 6}0Z", "pressure": ${(4.2 + 0.3 * Math.sin(at)).toFixed(2)}, "running": true}`)
  .join("\n");

export class BeginView extends Element {
  static properties = { name: { state: true }, bytes: { state: true }, source: { state: true }, proposal: { state: true }, problem: { state: true }, isBusy: { state: true }, isOver: { state: true }, note: { state: true }, topic: { state: true }, topicProblem: { state: true } };

  constructor() {
    super();
    this.name = "readings";
    /** @type {Uint8Array | null} the sample */ this.bytes = null;
    this.source = "";
    this.note = "";
    /** @type {any} with `sample` in base64, or with the name of its `topic` */ this.proposal = null;
    this.problem = "";
    /** Topic that was chosen last. */ this.topic = "";
    this.topicProblem = "";
    this.isBusy = false;
    this.isOver = false;
    this.follow = new Follow(this, [route, "change"]);
  }

  render() {
    return html`<div class="view begin-view">
      <div class="title"><p class="crumbs"><a href=${route.href([])}>Home</a></p>
        <h1>Begin with your own records</h1>
        <p class="about">Paste some records as a device sends them: JSON, CSV, InfluxDB lines, and others. Or choose a topic of Kafka. Strandline proposes a stream and a pipeline, and shows first results. Nothing is written before you apply.</p></div>
      <section class="panel sample ${this.isOver ? "over" : ""}" @dragover=${this.#over} @dragleave=${() => (this.isOver = false)} @drop=${this.#drop}>
        <header><h2>Sample</h2><div class="aside"><button type="button" class="quiet" @click=${() => this.#take(new TextEncoder().encode(EXAMPLE), "an example")}>Use an example</button></div></header>
        <form @submit=${this.#submit}>
          <label for="sample">Records</label>
          <textarea id="sample" name="sample" rows="8" spellcheck="false" autocomplete="off" placeholder="One record per line, or drop a file here" aria-describedby="sample-help" @input=${(/** @type {any} */ event) => this.#typed(event.target.value)}></textarea>
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
          ? html`<ul class="notes">${proposal.notes.map((/** @type {string} */ note) => html`<li>${note}</li>`)}${proposal.rejected.map((/** @type {string} */ one) => html`<li class="warn">rejected: ${one}</li>`)}</ul>`
          : nothing}
        <details class="why"><summary>Command line and REST call</summary><div class="calls">
          ${command(topic ? `strandline stream infer --from-topic ${topic}` : `strandline stream infer --sample FILE --name ${proposal.stream}`)}
          ${command(topic ? `GET /v1/topics/${topic}/proposal` : `POST /v1/samples/proposal?name=${proposal.stream}`)}
        </div></details>
      </section>
      <sl-documents .text=${proposal.documents} .sample=${proposal.sample ?? null} .topic=${topic ?? null} file="${proposal.stream}.yaml" @applied=${this.#applied}></sl-documents>`;
  }

  /** @param {CustomEvent} event */
  #applied(event) {
    const job = event.detail.find((/** @type {any} */ one) => one.kind === "pipeline")?.name;
    location.hash = route.href(job ? ["jobs", job] : ["streams", this.proposal.stream]).slice(1);
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
      this.proposal = { ...proposal, sample: base64(bytes) };
    } catch (error) {
      this.problem = error instanceof Error ? error.message : String(error);
      this.proposal = null;
    }
    this.isBusy = false;
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
      await this.updateComplete;
      this.querySelector(".proposal")?.scrollIntoView({ block: "start" });
    } catch (error) {
      this.topicProblem = error instanceof Error ? error.message : String(error);
      this.proposal = null;
    }
    this.isBusy = false;
  }
}
customElements.define("sl-begin", BeginView);

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
