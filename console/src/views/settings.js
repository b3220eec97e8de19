/** Settings of the control service: value, source, and meaning. The service reports of secrets only whether they are set. */
import { html, nothing } from "lit";
import { Poll } from "../core/poll.js";
import { route } from "../core/route.js";
import { session } from "../core/session.js";
import { Element, Follow } from "../elements/base.js";
import { badge, command, empty, operationCrumbs, panel, withCode } from "../elements/parts.js";

const LIST = "GET /v1/settings";
/** @typedef {import("../core/api.js").Json} Json */

export class SettingsView extends Element {
  static properties = { search: { state: true }, isChanged: { state: true } };

  constructor() {
    super();
    this.search = "";
    /** True if only settings with another value than their default are shown. */ this.isChanged = false;
    this.settings = new Poll(this, () => (session.refusal(LIST) ? null : "/v1/settings"), 0);
    this.follow = new Follow(this, [session, "change"], [route, "change"]);
  }

  render() {
    const refusal = session.refusal(LIST);
    return html`<div class="view">
      <div class="title">${operationCrumbs()}<h1>Settings</h1><p class="about">Settings of the control service that answers. Gateways and runners read their own environment. A change of a variable is effective after a restart.</p></div>
      ${refusal ? html`<section class="panel">${empty(`The list of settings ${refusal}.`)}</section>` : panel("Settings", this.settings, () => this.#list())}
    </div>`;
  }

  #list() {
    const all = this.settings.data.settings;
    const words = this.search.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = all.filter((/** @type {Json} */ one) => (one.is_changed || !this.isChanged) && words.every((word) => `${one.name} ${one.meaning}`.toLowerCase().includes(word)));
    return html`<form class="controls place" @submit=${(/** @type {Event} */ event) => event.preventDefault()}>
        <label>Setting contains<input type="search" .value=${this.search} autocomplete="off" spellcheck="false" @input=${(/** @type {any} */ event) => (this.search = event.target.value)} /></label>
        <label class="check"><input type="checkbox" .checked=${this.isChanged} @change=${(/** @type {any} */ event) => (this.isChanged = event.target.checked)} />Only values that differ from their default</label>
      </form>
      <p class="muted" role="status">${shown.length} of ${all.length} settings</p>
      ${shown.length
        ? html`<ol class="settings">${shown.map((/** @type {Json} */ one) => html`<li>
            <h3><code>${one.name}</code></h3>
            <div>${valueOf(one)}<p class="muted">${sourceOf(one)}</p></div>
            <p class="muted">${withCode(one.meaning)}</p>
          </li>`)}</ol>`
        : empty(all.length ? "No setting matches." : "The control service reports no settings.")}
      ${command(LIST)}`;
  }
}
customElements.define("sl-settings", SettingsView);

/** @param {unknown} value */
const written = (value) => html`<code>${typeof value === "string" ? value : JSON.stringify(value)}</code>`;

/** @param {Json} setting */
function valueOf(setting) {
  if (!setting.is_set) return html`<span class="muted">not set</span>`;
  if (setting.value === null) return badge("rest", "set, and secret");
  return html`${written(setting.value)}${setting.is_secret ? html` <small>without user, password, and query</small>` : nothing}`;
}

/** @param {Json} setting */
function sourceOf(setting) {
  const source = { default: "default", environment: "from the environment", file: "from a file" }[/** @type {string} */ (setting.source)];
  if (setting.source === "default") return source;
  if (!setting.is_changed) return `${source}, equal to the default`;
  return setting.is_secret || setting.default === null ? source : html`${source}, default ${written(setting.default)}`;
}
