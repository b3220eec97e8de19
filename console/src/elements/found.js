/** Records of a stream with their fields: the newest ones, or those that a search finds. Each links to its life. */
import { html, nothing } from "lit";
import { quoted, request } from "../core/api.js";
import { short, time, whole } from "../core/format.js";
import { Poll } from "../core/poll.js";
import { route } from "../core/route.js";
import { Element, Follow } from "./base.js";
import { badge, command, empty, panel } from "./parts.js";

/** @typedef {import("../core/api.js").Json} Json */
/** @typedef {{device: string, from: number | null, to: number | null, payload: string}} Search */

const FIELDS_SHOWN = 6;
const TEXT_SHOWN = 160;
/** Time between two requests for the newest records. A search is requested once. */
const NEWEST_MS = 30_000;

export class FoundRecords extends Element {
  static properties = { stream: { type: String }, search: { attribute: false }, limit: { type: Number } };

  constructor() {
    super();
    this.stream = "";
    /** @type {Search | null} null for the newest records */ this.search = null;
    this.limit = 10;
    this.found = new Poll(this, () => (this.stream && !this.search?.payload ? this.#path : null), 0);
    /** The answer about a pasted payload, which no address contains. */
    this.posted = { search: /** @type {Search | null} */ (null), data: /** @type {Json | null} */ (null), error: /** @type {Error | null} */ (null), isStale: false, at: Date.now(), soon: () => this.#post() };
    this.follow = new Follow(this, [route, "change"]);
  }

  get #query() {
    const { device, from, to } = this.search ?? { device: "", from: null, to: null };
    return new URLSearchParams({ limit: String(this.limit), ...(device ? { device } : {}), ...(from === null ? {} : { from_ms: String(from) }), ...(to === null ? {} : { to_ms: String(to) }) });
  }

  get #path() {
    return `/v1/streams/${quoted(this.stream)}/records?${this.#query}`;
  }

  willUpdate() {
    this.found.everyMs = this.search ? 0 : NEWEST_MS;
  }

  updated() {
    if (this.search?.payload && this.posted.search !== this.search) this.#post();
  }

  async #post() {
    const search = this.search;
    if (!search) return;
    this.posted = { ...this.posted, search, data: null, error: null };
    const path = `/v1/streams/${quoted(this.stream)}/records/search?${this.#query}`;
    try {
      const data = await request("POST", path, { body: search.payload, type: "application/octet-stream" });
      if (this.search === search) this.posted = { ...this.posted, data };
    } catch (error) {
      if (this.search === search) this.posted = { ...this.posted, error: /** @type {Error} */ (error) };
    }
    this.requestUpdate();
  }

  render() {
    const source = /** @type {Poll} */ (this.search?.payload ? this.posted : this.found);
    return panel(this.search ? "Found records" : "Newest records", source, () => this.#list(source.data), {
      aside: this.search ? nothing : html`<a href=${route.href(["records"], { stream: this.stream })}>Find a record</a>`,
    });
  }

  /** @param {Json} found */
  #list(found) {
    if (!found.page.length) return html`${empty(this.search ? "No record was found." : "The stream has no record yet.")}${this.#range(found)}`;
    return html`<div class="scroll" tabindex="0"><table>
        <thead><tr><th>Log time</th><th class="wide">Device</th><th>Position</th><th>Fields</th></tr></thead>
        <tbody>${found.page.map((/** @type {Json} */ one) => this.#row(one))}</tbody>
      </table></div>
      ${this.#range(found)}`;
  }

  /** @param {Json} one */
  #row(one) {
    const href = route.href(["records", this.stream, String(one.partition), String(one.offset)]);
    return html`<tr>
      <td>${time(one.log_time_ms)}</td><td class="wide">${one.device || "–"}</td>
      <td><a href=${href} title="Life of the record at partition ${one.partition}, offset ${one.offset}">${one.partition}/${one.offset}</a></td>
      <td>${one.reason ? html`${badge("bad", "rejected")} ${one.reason} ` : nothing}${one.rows.length ? fields(one.rows) : html`<code class="payload">${one.size === null ? "no payload" : one.text.slice(0, TEXT_SHOWN)}</code>`}</td>
    </tr>`;
  }

  /** @param {Json} found */
  #range(found) {
    if (!this.search) return nothing;
    const part = found.from_ms === null ? "The range contains no record." : found.is_complete ? "All records of the range were searched." : `Only records since ${time(found.from_ms)} were searched, the newest ${short(found.records_read)}. Choose a smaller range for older ones.`;
    return html`<p class="muted">${found.matches > found.page.length ? `${whole(found.matches)} records match; the newest ${found.page.length} are shown. ` : ""}${part}</p>
      ${command(this.search.payload ? `POST /v1/streams/${this.stream}/records/search?${this.#query}` : `GET ${this.#path}`)}`;
  }
}
customElements.define("sl-found-records", FoundRecords);

/** @param {Json[]} rows */
function fields(rows) {
  const [first] = rows;
  const known = Object.entries(first).filter(([, value]) => value !== null);
  return html`${known.slice(0, FIELDS_SHOWN).map(([name, value]) => html`<span class="value">${name} <code>${typeof value === "string" ? value : JSON.stringify(value)}</code></span> `)}${known.length > FIELDS_SHOWN ? html`<span class="muted">and ${known.length - FIELDS_SHOWN} more</span>` : nothing}${rows.length > 1 ? html`<span class="muted">, first of ${rows.length} rows</span>` : nothing}`;
}
