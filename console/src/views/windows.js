/** Open windows of a job by key: when each closes, and the partition that holds it open. */
import { html, nothing } from "lit";
import { keyed } from "lit/directives/keyed.js";
import { quoted } from "../core/api.js";
import { clock, duration, time, whole } from "../core/format.js";
import { Poll } from "../core/poll.js";
import { route } from "../core/route.js";
import { Element, Follow, Tick } from "../elements/base.js";
import { Computed } from "../elements/computed.js";
import { partitions } from "../elements/partitions.js";
import { badge, command, empty, panel, since } from "../elements/parts.js";

const PAGE = 100;

/** @typedef {import("../core/api.js").Json} Json */

/** One page of the list. The service computes it from the log, so it isn't requested at intervals. */
class WindowList extends Computed {
  static properties = { ...Computed.properties, watermark: { attribute: false }, stage: { type: String } };

  constructor() {
    super();
    /** @type {number | null} */ this.watermark = null;
    this.stage = "";
  }

  async compute() {
    await super.compute();
    this.dispatchEvent(new CustomEvent("computed", { detail: this.answer }));
  }

  render() {
    return this.shown("Open windows", (found) => this.#list(found));
  }

  /** @param {Json} found */
  #list(found) {
    const stages = Object.entries(found.stages);
    if (found.slice === null) return empty("No slice is committed yet, so no window is known.");
    if (!stages.length) return empty("The pipeline has no windows.");
    const skip = Number(route.now.query.get("skip") ?? 0);
    const watermark = Math.max(this.watermark ?? found.closed_ms ?? 0, found.closed_ms ?? 0);
    const names = [...new Set(found.windows.flatMap((/** @type {Json} */ one) => Object.keys(one.key)))];
    return html`
      <form class="controls place" @submit=${this.#search}>
        <label>Stage<select name="stage">
          <option value="" .selected=${!this.stage}>All stages</option>
          ${stages.map(([name, count]) => html`<option value=${name} .selected=${this.stage === name}>${name} (${whole(count)})</option>`)}
        </select></label>
        <label>Key contains<input name="key" .value=${route.now.query.get("key") ?? ""} autocomplete="off" spellcheck="false" /></label>
        <button class="primary">Search</button>
        <button type="button" class="quiet" @click=${() => void this.compute()}>Compute again</button>
      </form>
      <p class="muted">${whole(found.matches)} ${found.matches === 1 ? "window is" : "windows are"} open after slice ${found.slice} (${since(found.committed_ms)}), by version ${found.version}.
        The windows that close first come first.</p>
      ${found.windows.length
        ? html`<div class="scroll" tabindex="0"><table class="windows">
            <thead><tr>${names.map((name) => html`<th>${name}</th>`)}<th>Stage</th><th>Window</th><th class="number">Records</th><th>Closes</th></tr></thead>
            <tbody>${found.windows.map((/** @type {Json} */ one) => html`<tr>
              ${names.map((name) => html`<td>${one.key[name] === undefined ? "" : String(one.key[name])}</td>`)}
              <td>${one.stage}</td>
              <td>${clock(one.start_ms)} to ${one.ends_move ? html`${clock(one.end_ms)}, or later` : clock(one.end_ms)}</td>
              <td class="number">${whole(one.records)}</td>
              <td>${one.message ? html`<span class="problem">${one.message}</span>` : this.#closing(one, found, watermark)}</td>
            </tr>`)}</tbody></table></div>`
        : empty("No open window has such a key.")}
      <div class="actions">
        ${skip > 0 ? html`<a class="button" href=${this.#page(Math.max(0, skip - PAGE))}>Earlier</a>` : nothing}
        ${found.next ? html`<a class="button" href=${this.#page(skip + PAGE)}>Later</a>` : nothing}
        ${found.matches > PAGE ? html`<span class="muted">${whole(skip + 1)} to ${whole(skip + found.windows.length)} of ${whole(found.matches)}</span>` : nothing}
      </div>
      <p class="muted">The replay read ${whole(found.records_read)} records. A stage that reads another stage counts the records of closed windows only.</p>
      ${command(`GET ${this.path}`)}`;
  }

  /** @param {Json} one @param {Json} found @param {number} watermark */
  #closing(one, found, watermark) {
    if (one.end_ms <= watermark) return badge("ok", "closed since then");
    const held = found.held_by;
    const needs = held === null ? nothing : html`<small>when ${held.stream} ${held.partition} reaches ${clock(one.end_ms + held.delay_ms)}</small>`;
    return html`${found.closed_ms === null ? "when the watermark reaches its end" : html`after ${duration(one.end_ms - watermark)} of event time`} ${needs}`;
  }

  /** @param {number} skip */
  #page(skip) {
    return route.href(route.now.parts, { key: route.now.query.get("key"), stage: this.stage, skip: skip ? String(skip) : null });
  }

  /** @param {SubmitEvent} event */
  #search(event) {
    event.preventDefault();
    const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
    route.set({ key: String(form.get("key")).trim(), stage: String(form.get("stage")), skip: null });
  }
}
customElements.define("sl-window-list", WindowList);

export class WindowsView extends Element {
  static properties = { name: { type: String }, held: { state: true } };

  constructor() {
    super();
    this.name = "";
    /** @type {Json | null} */ this.held = null;
    const base = () => `/v1/jobs/${quoted(this.name)}`;
    this.job = new Poll(this, base, 3_000);
    this.slices = new Poll(this, () => (this.job.data ? `${base()}/slices?after=${Math.max(0, (this.job.data.slice ?? 0) - 1)}&limit=3` : null), 3_000);
    this.checkpoints = new Poll(this, () => `${base()}/checkpoints?limit=1`, 3_000);
    this.tick = new Tick(this, 2_000);
    this.follow = new Follow(this, [route, "change"]);
  }

  render() {
    const query = new URLSearchParams();
    for (const name of ["stage", "key", "skip"]) {
      const value = route.now.query.get(name);
      if (value) query.set(name, value);
    }
    query.set("limit", String(PAGE));
    const path = `/v1/jobs/${quoted(this.name)}/windows?${query}`;
    return html`<div class="view">
      <div class="title">
        <p class="crumbs"><a href=${route.href([])}>Jobs</a> <a href=${route.href(["jobs", this.name])}>${this.name}</a></p>
        <h1>Open windows</h1>
        <p class="about">The job's operators compute them from the log. A window closes when the watermark reaches its end.</p>
      </div>
      ${panel("Watermark", [this.job, this.checkpoints, this.slices], () => html`${this.#holder()}${partitions(this.job.data, this.checkpoints.data.checkpoints[0], this.slices.data.slices)}`)}
      ${keyed(path, html`<sl-window-list .path=${path} .stage=${route.now.query.get("stage") ?? ""} .watermark=${this.job.data?.watermark_ms ?? null}
        @computed=${(/** @type {CustomEvent} */ event) => (this.held = event.detail)}></sl-window-list>`)}
    </div>`;
  }

  /** The partition that holds the windows open, with its devices. */
  #holder() {
    const found = this.held;
    if (!found?.held_by) return nothing;
    const held = found.held_by;
    const why = found.watermark === "newest" ? "has the newest event, which determines the watermark" : held.is_idle ? "is idle, as all partitions are" : "holds the windows open";
    return html`<p class="lead">Partition ${held.partition} of <a href=${route.href(["streams", held.stream])}>${held.stream}</a> ${why}: it has reached ${time(held.reached_ms, "time")}, and the delay is ${duration(held.delay_ms)}.</p>
      <p class="next">${held.devices.length ? html`Its newest records are from ${held.devices.map((/** @type {string} */ one, /** @type {number} */ at) => html`${at ? ", " : ""}<code>${one}</code>`)}${held.log_ms === null ? nothing : html`, the last one ${since(held.log_ms)}`}.` : "The devices of its newest records aren't known."}</p>`;
  }
}
customElements.define("sl-windows", WindowsView);
