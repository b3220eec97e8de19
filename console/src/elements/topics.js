/** Topics of the Kafka cluster, from which the user chooses one for a new stream. Only operators can see them. */
import { html, nothing } from "lit";
import { duration, whole } from "../core/format.js";
import { Poll } from "../core/poll.js";
import { route } from "../core/route.js";
import { session } from "../core/session.js";
import { Element, Follow } from "./base.js";
import { command, empty, panel } from "./parts.js";

const PAGE = 20;
const LIST = "GET /v1/topics";
const FOREVER_MS = -1;

/** Dispatches `chosen` with the name of a topic. */
export class Topics extends Element {
  static properties = { chosen: { type: String }, isBusy: { type: Boolean }, search: { state: true }, skip: { state: true } };

  constructor() {
    super();
    /** Name of the chosen topic. */ this.chosen = "";
    this.isBusy = false;
    this.search = "";
    this.skip = 0;
    this.topics = new Poll(this, () => (session.refusal(LIST) ? null : this.#path), 0);
    this.follow = new Follow(this, [session, "change"], [route, "change"]);
  }

  get #path() {
    return `/v1/topics?${new URLSearchParams({ search: this.search, skip: String(this.skip), limit: String(PAGE) })}`;
  }

  render() {
    const refusal = session.refusal(LIST);
    if (refusal) return html`<section class="panel topics"><header><h2>Topic</h2></header>${empty(`The list of topics ${refusal}.`)}</section>`;
    return panel("Topic", this.topics, () => this.#list(), { kind: "topics" });
  }

  #list() {
    const found = this.topics.data;
    return html`<p class="muted">Or choose a topic that exists in Kafka. Its newest records are the sample. Topics of Kafka itself and dead letters of jobs aren't listed.</p>
      <form class="controls place" @submit=${this.#search}>
        <label>Topic contains<input name="search" .value=${this.search} maxlength="250" autocomplete="off" spellcheck="false" /></label>
        <button>Search</button>
      </form>
      ${found.topics.length
        ? html`<div class="scroll" tabindex="0"><table>
            <thead><tr><th>Topic</th><th class="number">Records, at most</th><th class="number">Partitions</th><th class="number wide">Retention</th><th><span class="visually-hidden">Choice</span></th></tr></thead>
            <tbody>${found.topics.map((/** @type {any} */ one) => html`<tr>
              <td>${one.topic}</td>
              <td class="number">${one.records === null ? "–" : whole(one.records)}</td>
              <td class="number">${one.partitions ?? "–"}</td>
              <td class="number wide">${one.retention_ms === null ? "–" : one.retention_ms === FOREVER_MS ? "forever" : duration(one.retention_ms)}</td>
              <td>${this.#choice(one)}</td>
            </tr>`)}</tbody></table></div>`
        : empty(this.search ? "No topic has such a name." : "Kafka has no topic of another application.")}
      <div class="actions">
        ${this.skip > 0 ? html`<button class="quiet" @click=${() => (this.skip = Math.max(0, this.skip - PAGE))}>Previous</button>` : nothing}
        ${found.next ? html`<button class="quiet" @click=${() => (this.skip += PAGE)}>Next</button>` : nothing}
        ${found.matches > PAGE ? html`<span class="muted">${whole(this.skip + 1)} to ${whole(this.skip + found.topics.length)} of ${whole(found.matches)}</span>` : nothing}
      </div>
      ${command(`GET ${this.#path}`)}`;
  }

  /** @param {any} one */
  #choice(one) {
    if (one.is_stream) return html`<a href=${route.href(["streams", one.topic])}>is a stream</a>`;
    if (one.problem) return html`<span class="muted">${one.problem}</span>`;
    return html`<button class="quiet small" aria-label="Choose ${one.topic}" ?disabled=${this.isBusy} @click=${() => this.dispatchEvent(new CustomEvent("chosen", { detail: one.topic }))}>${this.isBusy && this.chosen === one.topic ? "Reading…" : "Choose"}</button>`;
  }

  /** @param {SubmitEvent} event */
  #search(event) {
    event.preventDefault();
    this.search = String(new FormData(/** @type {HTMLFormElement} */ (event.target)).get("search")).trim();
    this.skip = 0;
  }
}
customElements.define("sl-topics", Topics);
