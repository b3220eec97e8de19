/** Edit: the documents of a job or a stream, or new ones. */
import { html, nothing } from "lit";
import { quoted } from "../core/api.js";
import { countedKinds, documentsIn, withField } from "../core/documents.js";
import { Poll } from "../core/poll.js";
import { route } from "../core/route.js";
import { Element, Follow } from "../elements/base.js";
import "../elements/documents.js";
import { command, panel } from "../elements/parts.js";
import "../elements/versions.js";

const NEW = `stream: readings
schema: {device: string, ts: timestamp, value: double}
key: device
---
pipeline: readings-per-minute
input: {stream: readings}
event_time: {field: ts, delay: 10s}
steps:
  - window: {name: per_minute, tumbling: 1m, by: [device], aggregate: {n: count(*), value: avg(value)}}
    emit: [{elasticsearch: readings-per-minute}]
`;

export class EditView extends Element {
  static properties = { kind: { type: String }, name: { type: String }, text: { state: true } };

  constructor() {
    super();
    this.kind = "";
    this.name = "";
    /** @type {string | null} text with which the editor began; later versions don't replace what the user has typed */ this.text = null;
    this.document = new Poll(this, () => (this.name ? `/v1/${this.kind === "streams" ? "streams" : "jobs"}/${quoted(this.name)}/document` : null), 0);
    /** Document of the version in the address, with which the editor begins. */
    this.earlier = new Poll(this, () => (this.kind === "jobs" && this.#version ? `/v1/jobs/${quoted(this.name)}/document?version=${this.#version}` : null), 0);
    this.follow = new Follow(this, [route, "change"]);
  }

  /** Version in the address; empty for the current one. */
  get #version() {
    const version = route.now.query.get("version") ?? "";
    return /^\d{1,9}$/.test(version) ? version : "";
  }

  willUpdate() {
    const from = this.#version ? this.earlier.data : this.document.data;
    if (this.text === null && this.document.data && from) this.text = this.#begun(from.text);
  }

  /** The text with the field that the address adds to the schema. @param {string} text */
  #begun(text) {
    const [path, type] = [route.now.query.get("add"), route.now.query.get("type")];
    return this.kind === "streams" && path ? withField(text, path, type ?? "") : text;
  }

  render() {
    const title = this.name ? `Edit ${this.name}` : "New documents";
    const isStream = this.kind === "streams";
    const what = isStream ? "stream" : "job";
    const documents = documentsIn(this.text ?? "");
    const together = documents.length > 1 ? `The text contains ${countedKinds(documents)} that were applied together. ` : "";
    return html`<div class="view edit-view">
      <div class="title">
        <p class="crumbs">${this.name ? html`<a href=${route.href([isStream ? "streams" : "jobs", this.name])}>${isStream ? "Stream" : "Job"} ${this.name}</a>` : html`<a href=${route.href([])}>Home</a>`}</p>
        <h1>${title}</h1>
        <p class="about">${this.name ? `${this.#version ? `The editor began with version ${this.#version}; version ${this.document.data?.version ?? "…"} is running. ` : `The document of the ${what}, version ${this.document.data?.version ?? "…"}. `}${together}` : "Streams, lookups, and pipelines. "}Problems and the plan appear while you type. Nothing changes before you apply.${this.name ? nothing : html` Or <a href=${route.href(["begin"])}>begin with a sample</a>.`}</p>
      </div>
      ${this.name === ""
        ? this.#documents(NEW, null)
        : this.text === null
          ? panel("Document", this.#version ? [this.document, this.earlier] : this.document, () => nothing)
          : this.#documents(this.text, this.document.data.text)}
      ${this.name && !isStream ? html`<sl-versions .job=${this.name}></sl-versions><section class="panel"><header><h2>Command line</h2></header>${command(`strandline apply ${this.name}.yaml --plan`)}${command(`GET /v1/jobs/${this.name}/document`)}</section>` : nothing}
    </div>`;
  }

  /** @param {string} text @param {string | null} running */
  #documents(text, running) {
    const kind = this.kind === "streams" ? "stream" : "pipeline";
    const documents = documentsIn(text);
    const own = documents.length > 1 ? (documents.find((one) => one.kind === kind && one.name === this.name) ?? null) : null;
    return html`<sl-documents .text=${text} .running=${running} .line=${own?.line ?? null} .pipeline=${kind === "pipeline" ? this.name : ""} file="${this.name || "documents"}.yaml" @applied=${this.#applied}></sl-documents>`;
  }

  /** @param {CustomEvent} event */
  #applied(event) {
    const jobs = event.detail.filter((/** @type {any} */ one) => one.kind === "pipeline").map((/** @type {any} */ one) => one.name);
    const job = jobs.includes(this.name) ? this.name : jobs[0];
    const stream = event.detail.find((/** @type {any} */ one) => one.kind === "stream")?.name;
    location.hash = route.href(job ? ["jobs", job] : stream ? ["streams", stream] : []).slice(1);
  }
}
customElements.define("sl-edit", EditView);
