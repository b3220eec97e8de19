/** Results over time: a chart by key, and a table with the newest value of each key. */
import { html, nothing } from "lit";
import { quoted } from "../core/api.js";
import { capital, duration, exact, time, whole } from "../core/format.js";
import { firstNumber } from "../core/jobs.js";
import { Poll } from "../core/poll.js";
import { route } from "../core/route.js";
import { Element, Follow } from "../elements/base.js";
import { COLORS } from "../elements/chart.js";
import { command, empty, panel, sentence } from "../elements/parts.js";
import "../elements/sending.js";

/** Maximum number of keys that the service returns. */
const KEYS_MAX = 50;
/** Number of keys that the chart draws at first. */
const DRAWN = 16;

export class ResultsView extends Element {
  static properties = { alias: { type: String }, hidden_: { state: true }, at: { state: true }, order: { state: true } };

  constructor() {
    super();
    this.alias = "";
    /** @type {Set<string>} keys that the user has shown or hidden */ this.hidden_ = new Set();
    /** @type {number | null} time under the pointer */ this.at = null;
    /** @type {{by: "key" | "now" | "least" | "most" | "mean", isDown: boolean}} */ this.order = { by: "key", isDown: false };
    this.aliases = new Poll(this, () => "/v1/results", 30_000);
    this.results = new Poll(this, () => this.#path, 5_000);
    /** Job of an alias without results. */
    this.reason = new Poll(this, () => (this.#isEmpty ? `/v1/jobs/${quoted(this.results.data.job)}/explanation` : null), 5_000);
    this.job = new Poll(this, () => (this.#isEmpty ? `/v1/jobs/${quoted(this.results.data.job)}` : null), 15_000);
    this.follow = new Follow(this, [route, "change"]);
  }

  get chosen() {
    const all = this.aliases.data?.results ?? [];
    if (this.alias) return all.find((/** @type {any} */ one) => one.alias === this.alias) ?? null;
    const job = route.now.query.get("job");
    return (job ? all.find((/** @type {any} */ one) => one.job === job) : all[0]) ?? null;
  }

  get #path() {
    const chosen = this.chosen;
    if (!chosen || !chosen.numbers.length) return null;
    const query = new URLSearchParams({ series: String(KEYS_MAX), points: "400" });
    const [value, by] = [route.now.query.get("value"), route.now.query.get("by")];
    query.set("value", chosen.numbers.some((/** @type {any} */ one) => one.name === value) ? (value ?? "") : firstNumber(chosen.numbers));
    if (by && chosen.keys.includes(by)) query.set("by", by);
    const size = route.now.query.get("size");
    const length = (this.#lengths ?? []).find((/** @type {any} */ one) => String(one.size_ms) === size);
    if (length) query.set("size_ms", length.size_ms);
    query.set("windows", String(Math.max(1, Math.min(100_000, Math.ceil(route.rangeMs / (length ?? chosen).every_ms)))));
    return `/v1/results/${quoted(chosen.alias)}?${query}`;
  }

  /** Lengths of the windows in the alias, if there are several. @returns {any[] | undefined} */
  get #lengths() {
    const data = this.results.data;
    return data?.alias === this.chosen?.alias ? data?.lengths : undefined;
  }

  get #isEmpty() {
    return this.results.data !== null && this.results.data.from_ms === null;
  }

  updated() {
    if (this.chosen) route.show(this.chosen.job);
  }

  render() {
    return html`<div class="view">
      <div class="title"><h1>Results</h1>${this.chosen ? html`<p class="about" title="A stage is a window or an emission of the pipeline. An alias is the name under which its results are found in Elasticsearch.">of job <a href=${route.href(["jobs", this.chosen.job])}>${this.chosen.job}</a>, stage ${this.chosen.stage}</p>` : nothing}</div>
      ${panel("Aliases", this.aliases, () => this.#choices(), { kind: "bare" })}
      ${this.chosen ? this.#shown(this.chosen) : nothing}
    </div>`;
  }

  #choices() {
    const all = this.aliases.data.results;
    if (!all.length) return empty("No job emits to an index yet.", command("strandline apply pipeline.yaml"));
    const chosen = this.chosen;
    const job = route.now.query.get("job");
    if (!chosen) return this.alias || !job ? empty(`No job emits to an alias ${this.alias}.`) : empty(html`Job <a href=${route.href(["jobs", job])}>${job}</a> emits to no index.`, html`<a class="button quiet" href=${route.href(["results"])}>Results of all jobs</a>`);
    const data = this.results.data;
    return html`<div class="controls">
      <label>Alias<select @change=${(/** @type {any} */ event) => (location.hash = route.href(["results", event.target.value], { value: null, by: null, size: null }).slice(1))}>
        ${all.map((/** @type {any} */ one) => html`<option value=${one.alias} .selected=${one === chosen}>${one.alias}</option>`)}
      </select></label>
      <label>Value<select @change=${(/** @type {any} */ event) => route.set({ value: event.target.value })}>
        ${chosen.numbers.map((/** @type {any} */ one) => html`<option .selected=${one.name === data?.value}>${one.name}</option>`)}
      </select></label>
      ${chosen.keys.length
        ? html`<label>Key<select @change=${(/** @type {any} */ event) => route.set({ by: event.target.value })}>
            ${chosen.keys.map((/** @type {string} */ one) => html`<option .selected=${one === data?.by}>${one}</option>`)}
          </select></label>`
        : nothing}
      ${(this.#lengths?.length ?? 0) > 1
        ? html`<label>Windows<select @change=${(/** @type {any} */ event) => route.set({ size: event.target.value })}>
            ${this.#lengths?.filter((one) => one.size_ms !== null).map((one) => html`<option value=${one.size_ms} .selected=${one.size_ms === data.size_ms}>${duration(one.size_ms)}, ${versionsOf(one)} (${whole(one.results)})</option>`)}
          </select></label>`
        : nothing}
    </div>`;
  }

  /** @param {any} chosen */
  #shown(chosen) {
    if (!chosen.numbers.length) return empty(`The documents of ${chosen.alias} have no number that can be drawn.`);
    return panel(this.results.data ? `${this.results.data.value}${this.results.data.by ? ` by ${this.results.data.by}` : ""}` : "Values", this.results, () => this.#chart(), { aside: this.#kibana(chosen) });
  }

  /** @param {any} chosen */
  #kibana(chosen) {
    const url = this.aliases.data.kibana_url;
    return url ? html`<a href="${url}/app/dashboards#/view/strandline-${quoted(chosen.job)}" rel="noreferrer" title="Made by: strandline kibana import ${chosen.job} --kibana ${url}">Dashboard in Kibana</a>` : nothing;
  }

  #chart() {
    const data = this.results.data;
    if (data.from_ms === null) {
      const [reason, job] = [this.reason.data, this.job.data];
      return html`${empty(`Stage ${data.stage} has no result yet.`, html`${reason ? html`<p>${sentence(capital(reason.message))}. ${sentence(capital(reason.next))}</p>` : nothing}<a class="button quiet" href=${route.href(["jobs", data.job])}>Job ${data.job}</a>`)}
        ${reason?.cause === "no_input" && job?.streams.length ? html`<sl-sending .stream=${job.streams[0]}></sl-sending>` : nothing}`;
    }
    const series = data.series.map((/** @type {any} */ one) => ({ label: one.key, points: one.points }));
    const shown = new Set(series.map((/** @type {any} */ one) => one.label).filter((/** @type {string} */ key, /** @type {number} */ at) => this.#isDrawn(key, at)));
    const each = data.step_ms > data.every_ms ? `each point the ${data.operation} of ${duration(data.step_ms)}` : `windows of ${duration(data.size_ms)}`;
    return html`<sl-chart .series=${series} .stepMs=${data.step_ms} .shown=${shown} label="${data.value} over time, ${shown.size} of ${series.length} series; the table below has the values of these ${series.length}"
        @point=${(/** @type {CustomEvent} */ event) => (this.at = event.detail)}></sl-chart>
      ${this.#length(data)}
      <p class="muted">${time(data.from_ms)} to ${time(data.to_ms + data.size_ms)}, ${each}, ${whole(data.results)} results. ${series.length >= KEYS_MAX ? `The table has the ${KEYS_MAX} keys with most results; there may be others.` : `The table has all ${whole(series.length)} keys.`}${shown.size < series.length ? ` The chart draws ${shown.size} of ${series.length}; choose others in the table.` : ""}${series.length > COLORS ? " Series of the same colour differ by their dashes." : ""}</p>
      ${this.#table(data)}`;
  }

  /** Which windows the chart and the table contain, if there are several lengths. @param {any} data */
  #length(data) {
    if (!data.lengths.length) return nothing;
    const shown = data.lengths.find((/** @type {any} */ one) => one.size_ms === data.size_ms) ?? data.lengths[0];
    const others = data.lengths.filter((/** @type {any} */ one) => one !== shown);
    return html`<p class="note" role="status">Chart and table contain the windows of ${duration(data.size_ms)} only, of ${versionsOf(shown)} of the job.
      ${shown.is_current ? "" : "The current version has windows of another length. "}
      ${others.length ? `Not part of them: ${others.map((/** @type {any} */ one) => `${whole(one.results)} results with ${one.size_ms === null ? "windows of an unknown length" : `windows of ${duration(one.size_ms)}`}, of ${versionsOf(one)}`).join("; ")}. Choose them under Windows.` : ""}</p>`;
  }

  /** @param {any} data */
  #table(data) {
    const rows = data.series.map((/** @type {any} */ one, /** @type {number} */ at) => {
      const values = one.points.map((/** @type {[number, number]} */ point) => point[1]);
      const [lastAt, last] = one.points[one.points.length - 1] ?? [null, null];
      return {
        key: one.key, isDrawn: this.#isDrawn(one.key, at), color: (at % COLORS) + 1, line: Math.floor(at / COLORS) % 4, lastAt: this.at ?? lastAt, now: this.at === null ? last : (new Map(one.points).get(this.at) ?? null),
        least: Math.min(...values), most: Math.max(...values), mean: values.reduce((/** @type {number} */ a, /** @type {number} */ b) => a + b, 0) / values.length,
        points: one.points,
      };
    });
    const { by, isDown } = this.order;
    rows.sort((/** @type {any} */ a, /** @type {any} */ b) => (by === "key" ? a.key.localeCompare(b.key, "en", { numeric: true }) : a[by] - b[by]) * (isDown ? -1 : 1));
    /** @param {typeof by} name @param {string} text */
    const head = (name, text) => html`<th class=${name === "key" ? "" : "number"} aria-sort=${by === name ? (isDown ? "descending" : "ascending") : nothing}>
      <button class="sort" @click=${() => (this.order = { by: name, isDown: by === name ? !isDown : name !== "key" })}>${text}${by === name ? (isDown ? " ↓" : " ↑") : ""}</button></th>`;
    return html`<div class="scroll" tabindex="0"><table class="values">
      <thead><tr>${head("key", data.by ?? "series")}${head("now", this.at === null ? "Newest" : "At pointer")}<th class="wide">Window</th><th class="wide spark"><span class="visually-hidden">Course</span></th>${head("least", "Least")}${head("mean", "Mean")}${head("most", "Most")}</tr></thead>
      <tbody>
        ${rows.map((/** @type {any} */ row) => html`<tr class=${row.isDrawn ? "" : "off"}>
          <td><button class="key" aria-pressed=${row.isDrawn} title="Show or hide in the chart" @click=${() => this.#toggle(row.key)}><i class="s${row.color} line${row.line}"></i>${row.key}</button></td>
          <td class="number strong">${exact(row.now)}</td>
          <td class="wide">${time(row.lastAt)}</td>
          <td class="wide spark">${spark(row.points, row.color)}</td>
          <td class="number">${exact(row.least)}</td><td class="number">${exact(row.mean)}</td><td class="number">${exact(row.most)}</td>
        </tr>`)}
      </tbody>
    </table></div>`;
  }

  /** @param {string} key @param {number} at its place by number of results */
  #isDrawn(key, at) {
    return this.hidden_.has(key) !== at < DRAWN;
  }

  /** @param {string} key */
  #toggle(key) {
    const next = new Set(this.hidden_);
    if (!next.delete(key)) next.add(key);
    this.hidden_ = next;
  }
}
customElements.define("sl-results", ResultsView);

/** The versions of a window length. @param {any} one */
function versionsOf({ versions }) {
  const [first, last] = [versions[0], versions[versions.length - 1]];
  if (versions.length === 1) return `version ${first}`;
  return last - first + 1 === versions.length ? `versions ${first} to ${last}` : `versions ${versions.join(", ")}`;
}

/** @param {[number, number][]} points @param {number} color */
function spark(points, color) {
  const last = points.slice(-60);
  if (last.length < 2) return nothing;
  const values = last.map((point) => point[1]);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const d = last
    .map((point, at) => `${at ? "L" : "M"}${((100 * at) / (last.length - 1)).toFixed(1)},${(18 - (16 * (point[1] - low)) / (high - low || 1)).toFixed(1)}`)
    .join("");
  return html`<svg viewBox="0 0 100 20" preserveAspectRatio="none" aria-hidden="true"><path class="s${color}" d=${d}></path></svg>`;
}
