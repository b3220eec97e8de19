/** Search by Ctrl-K: views, jobs, streams, results, and the actions on jobs. */
import { html, nothing } from "lit";
import { get, quoted } from "../core/api.js";
import { audited } from "./audit.js";
import { ACTIONS } from "../core/jobs.js";
import { OPERATION } from "../core/operation.js";
import { route } from "../core/route.js";
import { session } from "../core/session.js";
import { ask } from "./action.js";
import { Element } from "./base.js";

/** `words`: other words that find it. `isHidden`: it is listed only after a word was typed. */
/** @typedef {{kind: string, text: string, words?: string, isHidden?: boolean, run: () => void}} Found */
/** Kinds in the order of the list. */
const KINDS = ["View", "Job", "Windows", "Stream", "Devices", "Results", "Edit", "Action"];
const SHOWN = 12;

export class Palette extends Element {
  static properties = { wanted: { state: true }, at: { state: true }, all: { state: true } };

  constructor() {
    super();
    this.wanted = "";
    this.at = 0;
    /** @type {Found[]} */ this.all = [];
  }

  async open() {
    if (this.querySelector("dialog")?.open) return;
    this.wanted = "";
    this.at = 0;
    this.all = views();
    await this.updateComplete;
    this.querySelector("dialog")?.showModal();
    this.querySelector("input")?.focus();
    const [jobs, streams, results] = await Promise.allSettled([get("/v1/jobs?max_age_s=30"), get("/v1/streams"), get("/v1/results")]);
    /** @type {Found[]} */
    const found = views();
    if (jobs.status === "fulfilled") {
      for (const job of jobs.value.jobs) {
        found.push({ kind: "Job", text: job.name, run: () => go("jobs", job.name) });
        found.push({ kind: "Edit", text: `Edit ${job.name}`, run: () => go("edit", "jobs", job.name) });
        found.push({ kind: "Windows", text: `Open windows of ${job.name}`, run: () => go("windows", job.name) });
        for (const action of ACTIONS) {
          if (action.blocked(job) || session.refusal(action.operation)) continue;
          found.push({ kind: "Action", text: `${action.label} ${job.name}`, run: () => askFor(action, job.name) });
        }
      }
    }
    if (streams.status === "fulfilled") {
      for (const one of streams.value.streams) {
        if (!session.refusal("POST /v1/streams/{name}/records", one.name)) found.push({ kind: "Action", text: `Send records to ${one.name}`, run: () => go("streams", one.name) });
        found.push({ kind: "Stream", text: one.name, run: () => go("streams", one.name) });
        found.push({ kind: "Devices", text: `Devices of ${one.name}`, run: () => go("streams", one.name, "devices") });
      }
    }
    if (results.status === "fulfilled") {
      for (const one of results.value.results) found.push({ kind: "Results", text: one.alias, run: () => go("results", one.alias) });
    }
    this.all = KINDS.flatMap((kind) => found.filter((one) => one.kind === kind));
  }

  get found() {
    const words = this.wanted.toLowerCase().split(/\s+/).filter(Boolean);
    /** @type {Found[]} */
    const found = [];
    for (const one of this.all) {
      if (found.length === SHOWN) break;
      const text = `${one.kind} ${one.text} ${one.words ?? ""}`.toLowerCase();
      if (one.isHidden && !words.length) continue;
      if (words.every((word) => text.includes(word))) found.push(one);
    }
    return found;
  }

  render() {
    const found = this.found;
    return html`<dialog class="palette" aria-label="Search">
      <input
        type="text"
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-activedescendant=${found.length ? `palette-${this.at}` : nothing}
        placeholder="Search jobs, streams, results, actions"
        aria-label="Search jobs, streams, results, actions"
        autocomplete="off"
        spellcheck="false"
        .value=${this.wanted}
        @input=${(/** @type {Event} */ event) => {
          this.wanted = /** @type {HTMLInputElement} */ (event.target).value;
          this.at = 0;
        }}
        @keydown=${this.#key}
      />
      <ul id="palette-list" role="listbox" aria-label="Found">
        ${found.map(
          (one, at) => html`<li
            id="palette-${at}"
            role="option"
            aria-selected=${at === this.at}
            @click=${() => this.#take(one)}
          >
            <span>${one.text}</span><small>${one.kind}</small>
          </li>`,
        )}
      </ul>
      ${found.length ? nothing : html`<p class="muted">Nothing has this name.</p>`}
    </dialog>`;
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const found = this.found;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      this.at = found.length ? (this.at + (event.key === "ArrowDown" ? 1 : found.length - 1)) % found.length : 0;
    } else if (event.key === "Enter" && found[this.at]) {
      event.preventDefault();
      this.#take(found[this.at]);
    }
  }

  /** @param {Found} one */
  #take(one) {
    this.querySelector("dialog")?.close();
    one.run();
  }
}
customElements.define("sl-palette", Palette);

/** @param {string[]} parts */
const go = (...parts) => (location.hash = route.href(parts).slice(1));
/** @returns {Found[]} */
const views = () => [
  { kind: "View", text: "Home", run: () => go() },
  { kind: "View", text: "Results", run: () => go("results") },
  { kind: "View", text: "Dead letters", run: () => go("dead-letters") },
  { kind: "View", text: "Streams", words: "send topics", run: () => go("streams") },
  { kind: "View", text: "Operation", run: () => go("operation") },
  ...OPERATION.map((one) => ({ kind: "View", text: one.name, words: `operation ${one.words}`, isHidden: true, run: () => go(one.view) })),
  { kind: "View", text: "Begin with a sample", words: "new add create start send sample topic upload import stream job records", run: () => go("begin") },
  { kind: "View", text: "Edit new documents", words: "add create", run: () => go("edit") },
];

/** @param {import("../core/jobs.js").Action} action @param {string} name */
export function askFor(action, name) {
  ask({
    title: `${action.label}: ${name}`,
    does: action.does,
    label: action.label,
    operation: action.operation,
    path: action.path(quoted(name)),
    command: action.command(name),
    isDangerous: action.isDangerous,
    done: action.rel === "delete" ? () => go() : action.rel === "audit" ? () => showAudit(name) : undefined,
  });
}

/** Show the audit of a job that was just ordered. @param {string} name */
function showAudit(name) {
  audited.add(name);
  go("jobs", name);
  route.dispatchEvent(new Event("change"));
}
