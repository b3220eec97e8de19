/** What becomes of requeued records: how many the job has read, and which are dead letters again. It ends when all are read. */
import { html, nothing } from "lit";
import { get, quoted } from "../core/api.js";
import { readable, sum, whole } from "../core/format.js";
import { Poll } from "../core/poll.js";
import { route } from "../core/route.js";
import { Element, Follow } from "./base.js";

const EVERY_MS = 2_000;
const SHOWN = 10;

export class Requeued extends Element {
  static properties = { job: { type: String }, paths: { attribute: false }, found: { state: true }, problem: { state: true } };

  constructor() {
    super();
    this.job = "";
    /** @type {string[]} of the outcome of each part */ this.paths = [];
    /** @type {Map<string, any>} path -> its last answer */ this.found = new Map();
    this.problem = "";
    this.isLeft = false;
    this.status = new Poll(this, () => `/v1/jobs/${quoted(this.job)}`, 5_000);
    this.aliases = new Poll(this, () => "/v1/results", 0);
    this.follow = new Follow(this, [route, "change"]);
    /** @type {ReturnType<typeof setTimeout> | undefined} */ this.timer = undefined;
  }

  /** @param {Map<string, unknown>} changed */
  updated(changed) {
    if (!changed.has("paths")) return;
    this.found = new Map();
    void this.#look();
  }

  connectedCallback() {
    super.connectedCallback();
    this.isLeft = false;
    if (this.hasUpdated) void this.#look();
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    this.isLeft = true;
    clearTimeout(this.timer);
  }

  /** Read the parts of which the job has not read all records, and again until there are none. */
  async #look() {
    clearTimeout(this.timer);
    const paths = this.paths;
    try {
      for (const path of paths) {
        if (this.found.get(path)?.waiting === 0) continue;
        const answer = await get(path);
        if (paths !== this.paths || this.isLeft) return;
        this.found = new Map(this.found).set(path, answer);
      }
      this.problem = "";
    } catch (error) {
      this.problem = error instanceof Error ? error.message : String(error);
    }
    if (paths === this.paths && !this.isLeft && !this.#isDone) this.timer = setTimeout(() => void this.#look(), EVERY_MS);
  }

  get #isDone() {
    return this.paths.every((path) => this.found.get(path)?.waiting === 0);
  }

  render() {
    const all = [...this.found.values()];
    const [waiting, accepted] = ["waiting", "accepted"].map((name) => all.reduce((total, one) => total + one[name], 0));
    const rejected = all.reduce((total, one) => total + sum(one.rejected), 0);
    const count = waiting + accepted + rejected;
    if (!all.length) return html`<p class="muted" role="status">${this.problem || "Looking for the records in their stream…"}</p>`;
    const records = all.flatMap((one) => one.records);
    const again = records.filter((one) => one.state === "rejected");
    const alias = this.aliases.data?.results.find((/** @type {any} */ one) => one.job === this.job)?.alias;
    const state = this.status.data?.state;
    return html`<div class="requeued">
      <p role="status">${this.#isDone ? "The job has read all requeued records" : `The job has read ${whole(count - waiting)} of ${whole(count)} requeued records`}: <b>${whole(accepted)}</b> accepted, <b>${whole(rejected)}</b> dead letters again.${waiting && state && state !== "running" ? html` The job is ${state}: it reads the others when it runs.` : nothing}</p>
      ${this.#isDone ? nothing : html`<progress max=${count} value=${count - waiting} aria-label="Requeued records that the job has read"></progress>`}
      ${this.problem ? html`<p class="problem" role="alert">${this.problem}</p>` : nothing}
      ${all.some((one) => !one.is_complete) ? html`<p class="note">The counts are not complete: the stream no longer contains all of these records, or too many others were written at the same time.</p>` : nothing}
      ${again.length ? html`<ul class="found">${again.slice(0, SHOWN).map((one) => html`<li><a href=${route.href(["dead-letters", this.job, String(one.rejected_as)])}>Dead letter ${one.rejected_as}</a><span>${one.reason}: ${readable(one.message)}</span></li>`)}</ul>` : nothing}
      <div class="actions">
        ${accepted && alias ? html`<a class="button quiet" href=${route.href(["results", alias])}>Results of ${this.job}</a>` : nothing}
        ${records.filter((one) => one.state === "accepted").slice(0, 3).map((one) => html`<a href=${route.href(["records", one.stream, String(one.partition), String(one.offset)])}>Life of ${one.stream}/${one.partition}/${one.offset}</a>`)}
      </div>
    </div>`;
  }
}
customElements.define("sl-requeued", Requeued);
