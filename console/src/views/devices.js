/** Devices of a stream: last record, rate and rejected records, silent devices first. The service searches and orders them. */
import { html, nothing } from "lit";
import { quoted } from "../core/api.js";
import { duration, time, whole } from "../core/format.js";
import { REJECTED_SHARE, SILENT_MS } from "../core/limits.js";
import { Poll } from "../core/poll.js";
import { route } from "../core/route.js";
import { Element, Follow, Tick } from "../elements/base.js";
import { badge, command, empty, panel, since } from "../elements/parts.js";

const PAGE = 100;
const ORDERS = { silence: "Silent devices first", errors: "Most rejected records first", records: "Most records first" };

/** @typedef {import("../core/api.js").Json} Json */

export class DevicesView extends Element {
  static properties = { name: { type: String } };

  constructor() {
    super();
    this.name = "";
    this.devices = new Poll(this, () => this.#path, 30_000);
    this.tick = new Tick(this, 5_000);
    this.follow = new Follow(this, [route, "change"]);
  }

  get #path() {
    const query = new URLSearchParams({ limit: String(PAGE) });
    for (const name of ["search", "order", "skip"]) {
      const value = route.now.query.get(name);
      if (value) query.set(name, value);
    }
    return `/v1/streams/${quoted(this.name)}/devices?${query}`;
  }

  get #skip() {
    return Number(route.now.query.get("skip") ?? 0);
  }

  render() {
    return html`<div class="view">
      <div class="title">
        <p class="crumbs"><a href=${route.href(["streams"])}>Streams</a> <a href=${route.href(["streams", this.name])}>${this.name}</a></p>
        <h1>Devices</h1>
        <p class="about">A device is a value of the key of the stream. Without a key, it is the sender that the gateway noted.</p>
      </div>
      ${panel("Devices", this.devices, () => this.#list())}
    </div>`;
  }

  #list() {
    const found = this.devices.data;
    const order = route.now.query.get("order") ?? "silence";
    if (!found.records) return empty("The stream has no record.");
    const range = found.read_ms - found.from_ms;
    return html`<form class="controls place" @submit=${this.#search}>
        <label>Device contains<input name="search" .value=${route.now.query.get("search") ?? ""} autocomplete="off" spellcheck="false" /></label>
        <label>Order<select name="order">${Object.entries(ORDERS).map(([name, label]) => html`<option value=${name} .selected=${order === name}>${label}</option>`)}</select></label>
        <button class="primary">Search</button>
      </form>
      <p class="muted">${found.is_complete
        ? html`The list contains all devices of the topic: ${whole(found.devices)} in ${whole(found.records)} records, since ${time(found.from_ms)}.`
        : html`The list covers the newest ${whole(found.records)} records, complete since ${time(found.from_ms)} (${duration(range)}). Devices without a record since then can be missing.`}</p>
      ${found.page.length
        ? html`<div class="scroll" tabindex="0"><table>
            <thead><tr><th>Device</th><th>Last record</th><th>State</th><th class="number">Records</th><th class="number">One record in</th><th class="number">Rejected</th><th class="number wide">Partition</th></tr></thead>
            <tbody>${found.page.map((/** @type {Json} */ one) => html`<tr>
              <td><a href=${route.href(["records", this.name, String(one.partition), String(one.offset)])} title="Its newest record">${one.device || html`<span class="muted">unknown</span>`}</a></td>
              <td title=${time(one.last_ms)}>${since(one.last_ms)} <small class="muted">${time(one.last_ms)}</small></td>
              <td>${state(one)}</td>
              <td class="number">${whole(one.records)}</td>
              <td class="number">${duration(one.interval_ms)}</td>
              <td class="number ${one.rejected ? "warn" : ""}">${one.rejected
                ? html`<a href=${route.href(["dead-letters", one.rejected_job], { reason: one.rejected_reason })} title="Dead letters of job ${one.rejected_job} with this reason">${whole(one.rejected)} <small>${one.rejected_reason}</small></a>`
                : "0"}</td>
              <td class="number wide">${one.partition}</td>
            </tr>`)}</tbody></table></div>`
        : empty("No device has such a name.")}
      <div class="actions">
        ${this.#skip > 0 ? html`<a class="button" href=${this.#page(Math.max(0, this.#skip - PAGE))}>Previous</a>` : nothing}
        ${found.next ? html`<a class="button" href=${this.#page(this.#skip + PAGE)}>Next</a>` : nothing}
        ${found.matches > PAGE ? html`<span class="muted">${whole(this.#skip + 1)} to ${whole(this.#skip + found.page.length)} of ${whole(found.matches)}</span>` : nothing}
      </div>
      ${command(`GET ${this.#path}`)}`;
  }

  /** @param {number} skip */
  #page(skip) {
    return route.href(route.now.parts, { search: route.now.query.get("search"), order: route.now.query.get("order"), skip: skip ? String(skip) : null });
  }

  /** @param {SubmitEvent} event */
  #search(event) {
    event.preventDefault();
    const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
    route.set({ search: String(form.get("search")).trim(), order: String(form.get("order")), skip: null });
  }
}
customElements.define("sl-devices", DevicesView);

/** Whether the device sends, and whether its records count. @param {Json} device */
function state(device) {
  const share = device.rejected / device.records;
  const rejected = share === 1 ? badge("bad", "all rejected") : share >= REJECTED_SHARE ? badge("warn", `${Math.floor(100 * share)} % rejected`) : null;
  if (Date.now() - device.last_ms > SILENT_MS) return html`${badge("warn", "silent")} ${rejected ?? nothing}`;
  return rejected ?? badge("ok", "sending");
}
