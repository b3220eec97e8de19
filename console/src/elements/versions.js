/** The versions of a job, the newest first, each with its difference from the one before, and a way back to it. */
import { html, nothing } from "lit";
import { get, quoted } from "../core/api.js";
import { difference } from "../core/diff.js";
import { time } from "../core/format.js";
import { Poll } from "../core/poll.js";
import { route } from "../core/route.js";
import { session } from "../core/session.js";
import { Element, Follow } from "./base.js";
import { command, panel } from "./parts.js";

const SHOWN = 20;
/** @typedef {{version: number, created_ms: number, applied_by: string | null, is_current: boolean}} Version */

/** The lines of a difference. @param {import("../core/diff.js").Line[]} lines @param {string} label */
export const differenceOf = (lines, label) => html`<pre class="diff" tabindex="0" aria-label=${label}>${lines.map((one) => html`<span class=${{ "+": "added", "-": "removed", " ": "same", "…": "gap" }[one.sign]}>${one.sign} ${one.text}\n</span>`)}</pre>`;

export class Versions extends Element {
  static properties = { job: { type: String }, texts: { state: true }, problem: { state: true }, all: { state: true } };

  constructor() {
    super();
    this.job = "";
    /** @type {Map<number, string>} version -> its document, if it was read */ this.texts = new Map();
    this.problem = "";
    this.all = false;
    this.versions = new Poll(this, () => `/v1/jobs/${quoted(this.job)}/versions`, 30_000);
    this.follow = new Follow(this, [route, "change"], [session, "change"]);
  }

  render() {
    return panel("Versions", this.versions, () => this.#list());
  }

  #list() {
    /** @type {Version[]} */
    const all = this.versions.data.versions;
    const shown = this.all ? all : all.slice(0, SHOWN);
    return html`<ol class="versions">${shown.map((one, at) => this.#version(one, all[at + 1]))}</ol>
      ${all.length > shown.length ? html`<button class="quiet small" @click=${() => (this.all = true)}>Show ${all.length}</button>` : nothing}
      ${this.problem ? html`<p class="problem" role="alert">${this.problem}</p>` : nothing}
      ${command(`strandline job versions ${this.job}`)}`;
  }

  /** @param {Version} one @param {Version | undefined} before */
  #version(one, before) {
    const isEdited = route.now.query.get("version") === String(one.version);
    return html`<li>
      <header><b>Version ${one.version}</b>${one.is_current ? html`<span class="muted">current</span>` : nothing}<time>${time(one.created_ms)}</time>
        <span class="muted">${one.applied_by ? `by ${one.applied_by}` : ""}</span>
        ${one.is_current ? nothing : isEdited ? html`<span class="muted">in the editor</span>` : html`<a class="button quiet small" href=${route.href(["edit", "jobs", this.job], { version: String(one.version) })}>Edit from this version</a>`}</header>
      ${before
        ? html`<details @toggle=${(/** @type {any} */ event) => event.target.open && void this.#read([one.version, before.version])}><summary>Difference from version ${before.version}</summary>${this.#difference(one.version, before.version)}</details>`
        : nothing}
    </li>`;
  }

  /** @param {number} version @param {number} before */
  #difference(version, before) {
    const [text, earlier] = [this.texts.get(version), this.texts.get(before)];
    if (text === undefined || earlier === undefined) return html`<p class="muted" role="status">Reading…</p>`;
    const lines = difference(earlier, text);
    return lines.length ? differenceOf(lines, `Difference of version ${version} from version ${before}`) : html`<p class="muted">Both versions have the same text.</p>`;
  }

  /** @param {number[]} versions */
  async #read(versions) {
    try {
      for (const version of versions) {
        if (this.texts.has(version)) continue;
        const { text } = await get(`/v1/jobs/${quoted(this.job)}/document?version=${version}`);
        this.texts = new Map(this.texts).set(version, text);
      }
      this.problem = "";
    } catch (error) {
      this.problem = error instanceof Error ? error.message : String(error);
    }
  }
}
customElements.define("sl-versions", Versions);
