/** Dead letters: how many by reason, those of the same kind together, each with its fields next to its bytes, and requeueing. */
import { html, nothing } from "lit";
import { quoted } from "../core/api.js";
import { clock, duration, readable, spaced, time, whole } from "../core/format.js";
import { expected, inParts, left, requeues } from "../core/letters.js";
import { Poll } from "../core/poll.js";
import { route } from "../core/route.js";
import { session } from "../core/session.js";
import { ask } from "../elements/action.js";
import { Element, Follow } from "../elements/base.js";
import { command, empty, panel } from "../elements/parts.js";
import { bytes, fields } from "../elements/payload.js";
import "../elements/requeued.js";

const REQUEUE = "POST /v1/jobs/{name}/dead-letters/requeue";
const MINUTE_MS = 60_000;
const LETTERS_MAX = 1_000;
const GROUP_SHOWN = 5;

export class LettersView extends Element {
  static properties = { job: { type: String }, number: { type: String }, opened: { state: true }, outcome: { state: true } };

  constructor() {
    super();
    this.job = "";
    this.number = "";
    /** @type {Set<string>} groups of which all letters are listed */ this.opened = new Set();
    /** @type {any} of a dry run or a requeue, and the choice of dead letters that it is about */ this.outcome = null;
    this.jobs = new Poll(this, () => "/v1/jobs", 15_000);
    this.counts = new Poll(this, () => (this.chosen ? `/v1/jobs/${quoted(this.chosen)}/dead-letters/counts?since_ms=${this.#since}` : null), 15_000);
    this.letters = new Poll(this, () => (this.chosen ? `/v1/jobs/${quoted(this.chosen)}/dead-letters?order=newest&limit=${LETTERS_MAX}&since_ms=${this.#since}${this.#before ? `&before=${this.#before}` : ""}${this.#reason ? `&reason=${quoted(this.#reason)}` : ""}` : null), 15_000);
    this.letter = new Poll(this, () => (this.chosen && this.number ? `/v1/jobs/${quoted(this.chosen)}/dead-letters/${this.number}` : null), 0);
    this.stream = new Poll(this, () => (this.letter.data?.stream ? `/v1/streams/${quoted(this.letter.data.stream)}` : null), 0);
    this.follow = new Follow(this, [route, "change"], [session, "change"]);
  }

  get #since() {
    return Math.floor((Date.now() - route.rangeMs) / MINUTE_MS) * MINUTE_MS;
  }

  get #reason() {
    return route.now.query.get("reason") ?? "";
  }

  /** Number of the dead letter before which the list ends. Empty for the newest. */
  get #before() {
    return /^\d+$/.test(route.now.query.get("before") ?? "") ? route.now.query.get("before") : "";
  }

  get chosen() {
    if (this.job) return this.job;
    const all = this.jobs.data?.jobs ?? [];
    /** @param {any} job */
    const rejected = (job) => Object.values(job.counts.rejected).reduce((/** @type {number} */ a, b) => a + Number(b), 0);
    return [...all].sort((a, b) => rejected(b) - rejected(a))[0]?.name ?? "";
  }

  render() {
    return html`<div class="view">
      <div class="title"><h1>Dead letters</h1><p class="about">Records and results that could not be used, in the last ${spaced(route.range)}. Nothing is lost: each is kept with its bytes.</p></div>
      ${panel("Job", this.jobs, () => this.#choices(), { kind: "bare" })}
      ${this.chosen
        ? html`${panel("By reason", this.counts, () => this.#reasons(), { aside: this.#replayButton() })}
            <div class=${this.number ? "split" : ""}>
              ${panel("Letters by kind", this.letters, () => this.#groups(), { kind: "flush" })}
              ${this.number ? panel(`Dead letter ${this.number}`, this.letter, () => this.#letter(), { kind: "letter", aside: html`<a class="button quiet" href=${route.href(["dead-letters", this.chosen], { reason: this.#reason, before: this.#before })}>Close</a>` }) : nothing}
            </div>`
        : nothing}
    </div>`;
  }

  #choices() {
    const all = this.jobs.data.jobs;
    if (!all.length) return empty("There is no job yet.");
    return html`<div class="controls"><label>Job<select @change=${(/** @type {any} */ event) => (location.hash = route.href(["dead-letters", event.target.value]).slice(1))}>
      ${all.map((/** @type {any} */ one) => html`<option .selected=${one.name === this.chosen}>${one.name}</option>`)}
    </select></label></div>`;
  }

  #reasons() {
    const { reasons, dead_letters: letters, next } = this.counts.data;
    const rows = Object.entries(/** @type {Record<string, number>} */ (reasons)).sort((a, b) => b[1] - a[1]);
    if (!rows.length) return empty(`Job ${this.chosen} has no dead letter in the last ${spaced(route.range)}.`);
    const most = rows[0][1];
    return html`<ul class="bars">
        ${rows.map(([reason, count]) => html`<li><a href=${route.href(["dead-letters", this.chosen], { reason: this.#reason === reason ? null : reason })} aria-current=${this.#reason === reason ? "true" : nothing}>
          <span>${reason}</span><svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true"><rect class="bar" width=${(100 * count) / most} height="10" rx="1"></rect></svg><b>${whole(count)}</b></a></li>`)}
      </ul>
      ${next ? html`<p class="muted">Counted: the oldest ${whole(letters)} of this time.</p>` : nothing}
      ${this.#isOfChoice ? this.#outcome() : nothing}
      ${requeues.has(this.chosen) ? html`<sl-requeued .job=${this.chosen} .paths=${requeues.get(this.chosen)}></sl-requeued>` : nothing}`;
  }

  #replayButton() {
    const refusal = session.refusal(REQUEUE);
    if (refusal) return html`<span class="muted">Requeue ${refusal}. The same holds for repairs.</span>`;
    const newest = this.letters.data?.dead_letters[0];
    return html`${newest ? html`<a class="button quiet" href=${this.#repair(newest.number, "all")}>Repair…</a>` : nothing}
      <button class="quiet" @click=${() => void this.#dryRun()}>What would requeueing do?</button>`;
  }

  /** The page that repairs a dead letter. @param {number} number @param {"one" | "kind" | "all"} of and others like it */
  #repair(number, of) {
    return route.href(["dead-letters", this.chosen, String(number), "repair"], { of });
  }

  /** The dead letters that the page shows now. */
  get #choice() {
    return { job: this.chosen, range: route.range, reason: this.#reason, since: this.#since };
  }

  /** True if the outcome is about the dead letters that the page shows now. */
  get #isOfChoice() {
    const [of, now] = [this.outcome?.choice, this.#choice];
    return of?.job === now.job && of.range === now.range && of.reason === now.reason;
  }

  async #dryRun() {
    const choice = this.#choice;
    /** @type {any} */
    const asked = (this.outcome = { choice, isAsked: true, done: 0 });
    /** @type {any} */
    let outcome;
    try {
      outcome = await this.#requeue(choice, true, (done) => {
        asked.done = done;
        this.requestUpdate();
      });
    } catch (error) {
      outcome = { choice, problem: error instanceof Error ? error.message : String(error) };
    }
    if (this.outcome === asked) this.outcome = outcome;
  }

  /**
   * Requeue the chosen dead letters, and return the sums.
   * @param {{job: string, range: string, reason: string, since: number}} choice @param {boolean} isDryRun @param {(done: number) => void} report
   */
  async #requeue(choice, isDryRun, report) {
    return { ...(await inParts(`${this.#requeuePath(choice)}&dry_run=${isDryRun}`, undefined, report)), choice };
  }

  /** @param {{job: string, reason: string, since: number}} choice */
  #requeuePath({ job, reason, since }) {
    return `/v1/jobs/${quoted(job)}/dead-letters/requeue?since_ms=${since}${reason ? `&reason=${quoted(reason)}` : ""}`;
  }

  #outcome() {
    const outcome = this.outcome;
    const all = this.counts.data?.dead_letters;
    if (outcome.isAsked) return html`<p class="outcome" role="status">Reading the dead letters${outcome.done ? `: ${whole(outcome.done)}${all ? ` of ${whole(all)}` : ""}` : ""}…</p>`;
    if (outcome.problem) return html`<p class="problem" role="alert">${outcome.problem}</p>`;
    const why = left(outcome, whole);
    return html`<div class="outcome" role="status">
      <p>
        ${outcome.dry_run ? "Would requeue" : "Requeued"} <b>${whole(outcome.requeued)}</b> of ${whole(outcome.matched)} dead letters. ${outcome.dry_run ? expected(outcome, whole) : ""}
        ${why.length ? `Left as they are: ${why.join("; ")}.` : ""}
      </p>
      ${outcome.dry_run && outcome.requeued
        ? html`<button class="primary" @click=${() =>
            ask({
              title: `Requeue dead letters of ${outcome.choice.job}`,
              does: `Writes ${outcome.requeued} records to their streams again, with the bytes of the sender, each at most once. The job reads them like new records.`,
              label: `Requeue ${outcome.requeued}`,
              operation: REQUEUE,
              path: this.#requeuePath(outcome.choice),
              send: (report) => this.#requeue(outcome.choice, false, (done) => report(`Requeued ${whole(done)} of ${whole(outcome.matched)}…`)),
              command: `strandline dead-letters requeue ${outcome.choice.job}${outcome.choice.reason ? ` --reason ${outcome.choice.reason}` : ""} --since ${new Date(outcome.choice.since).toISOString().slice(0, 19)}Z`,
              done: (answer) => {
                if (answer.follow.length) requeues.set(outcome.choice.job, answer.follow);
                this.outcome = answer;
              },
            })}>Requeue ${whole(outcome.requeued)}</button>`
        : nothing}
    </div>`;
  }

  #groups() {
    const { dead_letters: letters, next } = this.letters.data;
    if (!letters.length) return html`${empty(next ? "None of the newest dead letters matches." : "No dead letters.")}${this.#pages(letters, next)}`;
    /** @type {Map<string, any[]>} */
    const groups = new Map();
    for (const one of letters) {
      const key = `${one.reason} ${one.step} ${one.kind}`;
      const found = groups.get(key);
      if (found) found.push(one);
      else groups.set(key, [one]);
    }
    const sorted = [...groups].sort((a, b) => b[1].length - a[1].length);
    return html`${sorted.map(([key, members]) => {
      const newest = members[0];
      const all = this.opened.has(key);
      const shown = members.slice(0, all ? 200 : GROUP_SHOWN);
      return html`<section class="kind">
        <h3><span class="reason">${newest.reason}</span> ${members.every((one) => one.message === newest.message) ? readable(newest.message) : `for example: ${readable(newest.message)}`}</h3>
        <p class="muted">${whole(members.length)} ${members.length === 1 ? "letter" : "letters"}${newest.step ? `, at ${newest.step}` : ""}, the newest ${clock(newest.log_time_ms)}${session.refusal(REQUEUE) || !newest.stream ? nothing : html` · <a href=${this.#repair(newest.number, members.length === 1 ? "one" : "kind")}>Repair…</a>`}</p>
        <ul class="letters">
          ${shown.map((one) => html`<li><a href=${route.href(["dead-letters", this.chosen, String(one.number)], { reason: this.#reason, before: this.#before })} aria-current=${this.number === String(one.number) ? "true" : nothing}>
            <span class="place">${one.stream ? `${one.stream}/${one.partition}/${one.offset}` : one.number}</span><code>${one.value}</code><time>${clock(one.log_time_ms)}</time></a></li>`)}
        </ul>
        ${members.length > shown.length ? html`<button class="quiet small" @click=${() => (this.opened = new Set([...this.opened, key]))}>Show ${whole(Math.min(200, members.length))}</button>` : nothing}
      </section>`;
    })}
    ${this.#pages(letters, next)}`;
  }

  /** Which part of the dead letters the list shows, and the way to the others. @param {any[]} letters @param {string | null} next */
  #pages(letters, next) {
    if (!next && !this.#before) return nothing;
    const earlier = next ? new URLSearchParams(next.slice(next.indexOf("?"))).get("before") : null;
    const range = letters.length ? `, ${time(letters[letters.length - 1].log_time_ms)} to ${time(letters[0].log_time_ms)}` : "";
    /** @param {string | null} before */
    const page = (before) => route.href(["dead-letters", this.chosen], { reason: this.#reason || null, before });
    return html`<div class="actions letter-pages">
      <span class="muted">${this.#before ? "Earlier" : "The newest"} ${whole(letters.length)} ${letters.length === 1 ? "letter" : "letters"}${range}. The counts by reason are those of the whole time.</span>
      ${this.#before ? html`<a class="button" href=${page(null)}>Newest</a>` : nothing}
      ${earlier ? html`<a class="button" href=${page(earlier)}>Earlier</a>` : nothing}
    </div>`;
  }

  #letter() {
    const letter = this.letter.data;
    const schema = this.stream.data?.document?.schema ?? null;
    return html`<p class="lead">${readable(letter.message)}</p>
      <dl class="facts">
        <dt>Reason</dt><dd>${letter.reason}</dd>
        <dt>Step</dt><dd>${letter.step || "–"}</dd>
        <dt>Record</dt><dd>${letter.stream ? html`<a href=${route.href(["streams", letter.stream])}>${letter.stream}</a>, partition ${letter.partition}, offset ${letter.offset} · <a href=${route.href(["records", letter.stream, String(letter.partition), String(letter.offset)])}>Its life</a>` : "a result"}${letter.element === null ? "" : `, element ${letter.element}`}</dd>
        <dt>Written</dt><dd>${time(letter.log_time_ms)}, ${duration(Date.now() - letter.log_time_ms)} ago</dd>
        ${letter.replay_of ? html`<dt>Put back from</dt><dd>${letter.replay_of}</dd>` : nothing}
      </dl>
      ${letter.stream ? html`<div class="actions">${session.refusal(REQUEUE) ? html`<span class="muted">Repair ${session.refusal(REQUEUE)}.</span>` : html`<a class="button" href=${this.#repair(letter.number, "one")}>Repair…</a>`}</div>` : nothing}
      <h3>Fields</h3>
      ${fields(letter.value, schema)}
      ${bytes(letter.value_base64)}
      ${command(`strandline dead-letters show ${this.chosen} ${letter.number}`)}`;
  }
}
customElements.define("sl-letters", LettersView);
