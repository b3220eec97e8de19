/** Lookups: source, versions, rows, and the jobs that need them. */
import { html, nothing } from "lit";
import { quoted } from "../core/api.js";
import { duration, time, whole } from "../core/format.js";
import { Poll } from "../core/poll.js";
import { route } from "../core/route.js";
import { session } from "../core/session.js";
import { ask } from "../elements/action.js";
import { Element, Follow, Tick } from "../elements/base.js";
import { badge, command, empty, operationCrumbs, panel, since } from "../elements/parts.js";

const DELETE = "DELETE /v1/lookups/{name}";
const PAGE = 50;
const DIGEST_SHOWN = 12;

/** @typedef {import("../core/api.js").Json} Json */

export class LookupsView extends Element {
  static properties = { name: { type: String } };

  constructor() {
    super();
    /** Name of the lookup; empty for all. */ this.name = "";
    this.lookups = new Poll(this, () => (this.name ? null : "/v1/lookups"), 15_000);
    this.lookup = new Poll(this, () => (this.name ? `/v1/lookups/${quoted(this.name)}` : null), 15_000);
    this.rows = new Poll(this, () => (this.name ? this.#rowsPath : null), 0);
    this.changes = new Poll(this, () => (this.name && this.#compared ? `/v1/lookups/${quoted(this.name)}/versions/${this.#compared}/changes` : null), 0);
    this.tick = new Tick(this, 10_000);
    this.follow = new Follow(this, [route, "change"], [session, "change"]);
  }

  get #compared() {
    return route.now.query.get("changes");
  }

  get #skip() {
    return Number(route.now.query.get("skip") ?? 0);
  }

  get #rowsPath() {
    const query = new URLSearchParams({ limit: String(PAGE) });
    for (const name of ["key", "version", "skip"]) {
      const value = route.now.query.get(name);
      if (value) query.set(name, value);
    }
    return `/v1/lookups/${quoted(this.name)}/rows?${query}`;
  }

  render() {
    return this.name ? this.#one() : this.#all();
  }

  #all() {
    return html`<div class="view">
      <div class="title">${operationCrumbs()}<h1>Lookups</h1><p class="about">A lookup is a table that enriches records by key. Each version is kept as long as a replay can need it.</p></div>
      ${panel("All lookups", this.lookups, () => {
        const all = this.lookups.data.lookups;
        if (!all.length) return empty("No lookup is registered. A lookup is a document, which you apply as a pipeline.");
        return html`<div class="scroll" tabindex="0"><table>
          <thead><tr><th>Lookup</th><th>State</th><th class="number">Rows</th><th class="number">Version</th><th class="wide">Source</th><th class="wide">Age</th></tr></thead>
          <tbody>${all.map((/** @type {Json} */ one) => html`<tr><td><a href=${route.href(["lookups", one.name])}>${one.name}</a></td>
            <td>${stateOf(one)}${one.source?.error ? html`<p class="problem">${one.source.error}</p>` : nothing}</td><td class="number">${whole(one.rows)}</td><td class="number">${one.version}</td>
            <td class="wide">${one.source?.description ?? "its document"}</td><td class="wide">${one.source ? duration(one.source.age_ms) : since(one.applied_ms)}</td></tr>`)}</tbody></table></div>`;
      })}
    </div>`;
  }

  #one() {
    const lookup = this.lookup.data;
    return html`<div class="view">
      <div class="title">
        <p class="crumbs"><a href=${route.href(["operation"])}>Operation</a> <a href=${route.href(["lookups"])}>Lookups</a></p>
        <h1>${this.name} ${lookup ? stateOf(lookup) : nothing}</h1>
      </div>
      ${lookup ? this.#actions(lookup) : nothing}
      ${panel("Source and jobs", this.lookup, () => facts(this.lookup.data))}
      ${panel("Rows", this.rows, () => this.#table())}
      ${panel("Versions", this.lookup, () => this.#versions(), { aside: html`<span class="muted">the newest first</span>` })}
      ${this.#compared ? panel(`Changes by version ${this.#compared}`, this.changes, () => changes(this.changes.data), { id: "changes" }) : nothing}
    </div>`;
  }

  /** @param {Json} lookup */
  #actions(lookup) {
    const refusal = session.refusal(DELETE);
    const reason = lookup.jobs.length ? `needed by ${lookup.jobs.join(", ")}: the current version uses the lookup, or a replay can need it` : "";
    return html`<div class="actions">${refusal
      ? html`<p class="muted">Delete: ${refusal}.</p>`
      : reason
        ? html`<p class="muted">Delete isn't possible: ${reason}.</p>`
        : html`<button class="danger-quiet" @click=${() => remove(lookup.name)}>Delete…</button>`}</div>`;
  }

  #table() {
    const found = this.rows.data;
    const names = [...new Set([...found.key, ...found.page.flatMap((/** @type {Json} */ row) => Object.keys(row))])];
    return html`<form class="controls place" @submit=${this.#search}>
        <label>Key contains<input name="key" .value=${route.now.query.get("key") ?? ""} autocomplete="off" spellcheck="false" /></label>
        <button class="primary">Search</button>
      </form>
      <p class="muted" role="status">${whole(found.matches)} ${found.matches === 1 ? "row" : "rows"} of version ${found.version}</p>
      ${found.page.length
        ? html`<div class="scroll" tabindex="0"><table class="rows"><thead><tr>${names.map((name) => html`<th>${name}</th>`)}</tr></thead>
            <tbody>${found.page.map((/** @type {Json} */ row) => html`<tr>${names.map((name) => html`<td>${shown(row[name])}</td>`)}</tr>`)}</tbody></table></div>`
        : empty("No row has such a key.")}
      <div class="actions">
        ${this.#skip > 0 ? html`<a class="button" href=${this.#page({ skip: this.#skip > PAGE ? String(this.#skip - PAGE) : null })}>Previous</a>` : nothing}
        ${this.#skip + PAGE < found.matches ? html`<a class="button" href=${this.#page({ skip: String(this.#skip + PAGE) })}>Next</a>` : nothing}
      </div>
      ${command(`GET ${this.#rowsPath}`)}`;
  }

  /** @param {Record<string, string | null>} changed */
  #page(changed) {
    return route.href(route.now.parts, { ...Object.fromEntries(route.now.query), ...changed });
  }

  /** @param {SubmitEvent} event */
  #search(event) {
    event.preventDefault();
    route.set({ key: String(new FormData(/** @type {HTMLFormElement} */ (event.target)).get("key")).trim(), skip: null });
  }

  #versions() {
    const all = [...this.lookup.data.versions].reverse();
    return html`<div class="scroll" tabindex="0"><table class="versions">
      <thead><tr><th class="number">Version</th><th>Applied</th><th class="number">Rows</th><th class="wide">Digest</th><td></td></tr></thead>
      <tbody>${all.map((one, at) => html`<tr><td class="number">${one.version}</td><td>${time(one.applied_ms)}</td><td class="number">${whole(one.rows)}</td><td class="wide"><code title=${one.digest}>${one.digest.slice(0, DIGEST_SHOWN)}</code></td>
        <td><a href=${this.#page({ version: String(one.version), skip: null })}>Rows</a>${at + 1 < all.length ? html` <a href=${this.#page({ changes: String(one.version) })}>Changes</a>` : nothing}</td></tr>`)}</tbody></table></div>
      ${command(`strandline lookup show ${this.name}`)}`;
  }
}
customElements.define("sl-lookups", LookupsView);

/** @param {unknown} value */
const shown = (value) => (value === undefined || value === null ? html`<span class="muted">–</span>` : typeof value === "object" ? JSON.stringify(value) : String(value));

/** @param {Json} lookup */
function stateOf(lookup) {
  const state = lookup.source?.state;
  if (!state) return badge("rest", "rows in its document");
  return badge(state === "current" ? "ok" : state === "old" ? "bad" : "warn", state === "failing" ? "reading fails" : state);
}

/** @param {Json} lookup */
function facts(lookup) {
  const source = lookup.source;
  return html`${source?.error ? html`<p class="note">The last reading failed: ${source.error}</p>` : nothing}
    <dl class="facts">
      <dt>Source</dt><dd>${source?.description ?? "its document"}</dd>
      ${source ? html`<dt>Age</dt><dd>${duration(source.age_ms)}, at most ${duration(source.max_age_ms)}; read every ${duration(source.every_ms)}</dd>` : nothing}
      ${source?.skipped ? html`<dt>Skipped</dt><dd>${whole(source.skipped)} records that can't be rows. The last one: ${source.skipped_last}</dd>` : nothing}
      <dt>Version</dt><dd>${lookup.version} with ${whole(lookup.rows)} rows, applied ${time(lookup.applied_ms)}</dd>
      <dt>Key</dt><dd>${[lookup.document.key].flat().join(", ")}</dd>
      <dt>Jobs</dt><dd>${lookup.jobs.length ? lookup.jobs.map((/** @type {string} */ job, /** @type {number} */ at) => html`${at ? ", " : ""}<a href=${route.href(["jobs", job])}>${job}</a>`) : "No job needs it."}</dd>
      ${lookup.version_needed === null ? nothing : html`<dt>Replays</dt><dd>can need the rows from version ${lookup.version_needed} on</dd>`}
    </dl>`;
}

/** @param {Json} found */
function changes(found) {
  /** @param {Json} row */
  const text = (row) => Object.entries(row).map(([name, value]) => html`<span class="value">${name} <code>${shown(value)}</code></span> `);
  return html`<p class="lead">Since version ${found.earlier}: ${whole(found.added)} added, ${whole(found.removed)} removed, and ${whole(found.changed)} changed.</p>
    ${found.page.length
      ? html`<ol class="lives">${found.page.map((/** @type {Json} */ one) => html`<li><header>${badge(one.before === null ? "ok" : one.after === null ? "bad" : "warn", one.before === null ? "added" : one.after === null ? "removed" : "changed")}</header>
          ${one.before === null ? nothing : html`<p>Before: ${text(one.before)}</p>`}${one.after === null ? nothing : html`<p>After: ${text(one.after)}</p>`}</li>`)}</ol>`
      : empty("Both versions have the same rows.")}`;
}

/** @param {string} name */
function remove(name) {
  ask({
    title: `Delete lookup ${name}`,
    does: "Deletes the lookup with all of its versions. The service refuses it if a job needs the lookup.",
    label: "Delete",
    operation: DELETE,
    path: `/v1/lookups/${quoted(name)}`,
    command: `strandline lookup delete ${name}`,
    isDangerous: true,
    done: () => (location.hash = route.href(["lookups"]).slice(1)),
  });
}
