/** Streams: arrival by partition, the declared fields, fields that are not declared, and the jobs that read the stream. */
import { html, nothing } from "lit";
import { quoted } from "../core/api.js";
import { duration, short, spaced, time, whole } from "../core/format.js";
import { SILENT_MS } from "../core/limits.js";
import { Poll } from "../core/poll.js";
import { route } from "../core/route.js";
import { session } from "../core/session.js";
import { Element, Follow, Tick } from "../elements/base.js";
import { addButton, badge, command, empty, operationCrumbs, panel, since } from "../elements/parts.js";
import "../elements/found.js";
import "../elements/sending.js";

export class StreamsView extends Element {
  static properties = { name: { type: String } };

  constructor() {
    super();
    this.name = "";
    this.streams = new Poll(this, () => "/v1/streams", 30_000);
    this.arrivals = new Poll(this, () => "/v1/arrivals", 10_000);
    this.jobs = new Poll(this, () => "/v1/jobs", 15_000);
    this.stream = new Poll(this, () => (this.name ? `/v1/streams/${quoted(this.name)}` : null), 30_000);
    this.undeclared = new Poll(this, () => (this.name ? `/v1/streams/${quoted(this.name)}/undeclared` : null), 0);
    this.tick = new Tick(this, 5_000);
    this.follow = new Follow(this, [route, "change"], [session, "change"]);
  }

  render() {
    return this.name ? this.#one() : this.#all();
  }

  #all() {
    return html`<div class="view">
      <div class="title"><div class="heading"><h1>Streams</h1>${addButton()}</div></div>
      ${panel("Registered", [this.streams, this.arrivals], () => {
        const of = new Map(this.arrivals.data.arrivals.map((/** @type {any} */ one) => [one.stream, one]));
        const rows = this.streams.data.streams;
        if (!rows.length) return empty("No stream is registered.", html`${addButton()}${command("strandline stream infer --sample records.ndjson --name readings")}`);
        return html`<div class="scroll" tabindex="0"><table>
          <thead><tr><th>Stream</th><th>Format</th><th>Newest record</th><th class="number">Records</th><th class="number wide">Partitions</th><th class="number wide">Fields</th><th class="wide">Read by</th></tr></thead>
          <tbody>${rows.map((/** @type {any} */ row) => {
            const arrival = of.get(row.name);
            const readers = (this.jobs.data?.jobs ?? []).filter((/** @type {any} */ job) => job.streams.includes(row.name));
            return html`<tr>
              <td><a href=${route.href(["streams", row.name])}>${row.name}</a></td><td>${row.document.format ?? "json"}</td>
              <td>${arrival?.problem ? badge("bad", "unknown") : arrival?.newest_ms ? since(arrival.newest_ms) : "none"}</td>
              <td class="number">${short(arrival?.records)}</td><td class="number wide">${arrival?.partitions.length || "–"}</td>
              <td class="number wide">${Object.keys(row.document.schema ?? {}).length}</td>
              <td class="wide">${readers.map((/** @type {any} */ job, /** @type {number} */ at) => html`${at ? ", " : ""}<a href=${route.href(["jobs", job.name])}>${job.name}</a>`)}</td>
            </tr>`;
          })}</tbody></table></div>`;
      })}
    </div>`;
  }

  #one() {
    const readers = (this.jobs.data?.jobs ?? []).filter((/** @type {any} */ job) => job.streams.includes(this.name));
    return html`<div class="view">
      <div class="title">
        <p class="crumbs"><a href=${route.href(["streams"])}>Streams</a></p>
        <h1>${this.name}</h1>
        <p class="about">${readers.length ? html`Read by ${readers.map((/** @type {any} */ job, /** @type {number} */ at) => html`${at ? ", " : ""}<a href=${route.href(["jobs", job.name])}>${job.name}</a>`)}` : "No job reads it."}</p>
      </div>
      <div class="columns">
        ${panel("Arrival by partition", this.arrivals, () => this.#partitions(), { aside: html`<a href=${route.href(["streams", this.name, "devices"])}>Devices</a>` })}
        ${panel("Fields", this.stream, () => this.#fields(), { aside: html`<a href=${route.href(["edit", "streams", this.name])}>Edit</a>` })}
      </div>
      <sl-found-records .stream=${this.name}></sl-found-records>
      <sl-sending .stream=${this.name}></sl-sending>
      ${panel("Undeclared fields", this.undeclared, () => this.#undeclared(), { aside: html`<button class="quiet" @click=${() => this.undeclared.soon()}>Look again</button>` })}
    </div>`;
  }

  #partitions() {
    const { now_ms, arrivals } = this.arrivals.data;
    const found = arrivals.find((/** @type {any} */ one) => one.stream === this.name);
    if (!found) return empty(`No stream is called ${this.name}.`);
    if (found.problem) return empty(found.problem);
    return html`<table>
      <thead><tr><th>Partition</th><th>Newest record</th><th class="number">Next offset</th><th>State</th></tr></thead>
      <tbody>${found.partitions.map((/** @type {any} */ one) => html`<tr>
        <td>${one.partition}</td><td>${one.newest_ms ? since(one.newest_ms) : "none"}</td><td class="number">${whole(one.offset_next)}</td>
        <td>${one.newest_ms === null ? badge("wait", "empty") : now_ms - one.newest_ms > SILENT_MS ? badge("warn", "silent") : badge("ok", "receiving")}</td>
      </tr>`)}</tbody></table>`;
  }

  #fields() {
    const stream = this.stream.data;
    const schema = Object.entries(stream.document.schema ?? {});
    return html`<table class="fields">
        <thead><tr><th>Field</th><th>Type</th></tr></thead>
        <tbody>${schema.map(([name, type]) => html`<tr><td>${name}</td><td><code>${typeText(type)}</code></td></tr>`)}</tbody>
      </table>
      <p class="muted">Version ${stream.version}, ${stream.document.format ?? "json"}, registered ${time(stream.created_ms)}, kept ${stream.retention_ms === -1 ? "forever" : `for ${duration(stream.retention_ms)}`}.</p>`;
  }

  /** Edit the stream's document with this field added. A list, a null, and a member of elements have no simple type. @param {any} one */
  #addition(one) {
    const type = one.types.find((/** @type {string} */ kind) => kind !== "null");
    if (type === undefined || type === "array" || one.path.includes("[*]") || session.refusal("POST /v1/documents")) return nothing;
    return html`<a href=${route.href(["edit", "streams", this.name], { add: one.path, type })} aria-label="Add ${one.path} to the schema">Add to the schema…</a>`;
  }

  #undeclared() {
    const found = this.undeclared.data;
    if (!found.records) return empty("The stream has no record yet.");
    if (!found.fields.length) return empty(`The newest ${whole(found.records)} ${found.records === 1 ? "record contains" : "records contain"} declared fields only.`);
    return html`<table>
        <thead><tr><th>Path</th><th>Type</th><th class="number">Records</th><th></th></tr></thead>
        <tbody>${found.fields.slice(0, 100).map((/** @type {any} */ one) => html`<tr><td><code>${one.path}</code></td><td>${one.types.join(", ")}</td><td class="number">${whole(one.records)} of ${whole(found.records)}</td><td>${this.#addition(one)}</td></tr>`)}</tbody>
      </table>
      <p class="muted">Nothing changes before you apply the document of the stream with the new field.</p>`;
  }
}
customElements.define("sl-streams", StreamsView);

/** The type of a field, as a document writes it. @param {any} field */
function typeText(field) {
  if (typeof field === "string") return field;
  const { type, required, text, ...more } = field;
  const rest = Object.entries(more).filter(([, value]) => value !== null && value !== false && !(typeof value === "object" && Object.keys(value).length === 0)).map(([name, value]) => `${name}: ${typeof value === "object" ? JSON.stringify(value) : value}`);
  return `${typeof type === "string" ? type : JSON.stringify(type)}${required === false ? "?" : ""}${text ? ", text" : ""}${rest.length ? `, ${rest.join(", ")}` : ""}`;
}

/** What happened, newest first. */
export class ActivityView extends Element {
  constructor() {
    super();
    this.events = new Poll(this, () => "/v1/events?last=300", 15_000);
    this.follow = new Follow(this, [route, "change"]);
  }

  render() {
    return html`<div class="view">
      <div class="title">${operationCrumbs()}<h1>Activity</h1></div>
      ${panel("What happened", this.events, () => {
        const from = Date.now() - route.rangeMs;
        const shown = this.events.data.events.filter((/** @type {any} */ one) => one.at_ms >= from).reverse();
        if (!shown.length) return empty(`Nothing happened in the last ${spaced(route.range)}.`);
        return html`<ol class="events">${shown.map((/** @type {any} */ one) => html`<li>
          <time>${time(one.at_ms)}</time><span class="kind">${one.kind.replaceAll("_", " ")}</span>
          <span>${one.job ? html`<a href=${route.href(["jobs", one.job])}>${one.job}</a> ` : nothing}${one.message}${one.principal ? html` <em>by ${one.principal}</em>` : nothing}</span>
        </li>`)}</ol>`;
      })}
    </div>`;
  }
}
customElements.define("sl-activity", ActivityView);
