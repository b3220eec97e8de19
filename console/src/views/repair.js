/** Repair dead letters: edit the payload of one, or of all of the same kind or reason, try it, and requeue the records. */
import { html, nothing } from "lit";
import { quoted, request } from "../core/api.js";
import { readable, spaced, whole } from "../core/format.js";
import { expected, inParts, left, requeues } from "../core/letters.js";
import { Poll } from "../core/poll.js";
import { route } from "../core/route.js";
import { session } from "../core/session.js";
import { ask } from "../elements/action.js";
import { Element, Follow } from "../elements/base.js";
import { empty, panel } from "../elements/parts.js";
import { bytes, fields, textOf } from "../elements/payload.js";
import "../elements/requeued.js";

const REPAIR = "POST /v1/jobs/{name}/dead-letters/repair";
const REPAIRS = "POST /v1/jobs/{name}/dead-letters/repairs";
const MINUTE_MS = 60_000;
const SHOWN = 50;
/** @typedef {{edit: string, field: string, to: string, value: string}} Edit */
/** Edits in the order in which the service applies them: label, label of the field, label of the value. @type {Record<string, [string, string, string]>} */
const EDITS = {
  replace: ["Replace text", "Text", "By"],
  rename: ["Rename a member", "Member", "New name"],
  number: ["Make a string a number", "Member", ""],
  set: ["Set a member", "Member", "Value (JSON)"],
  remove: ["Remove a member", "Member", ""],
};

export class RepairView extends Element {
  static properties = { job: { type: String }, number: { type: String }, edits: { state: true }, text: { state: true }, outcome: { state: true } };

  constructor() {
    super();
    this.job = "";
    this.number = "";
    /** @type {Edit[] | null} null until the letter is read */ this.edits = null;
    /** @type {string | null} payload that the user edits */ this.text = null;
    /** @type {any} of a dry run or a repair, and the request that it is about */ this.outcome = null;
    this.letter = new Poll(this, () => `/v1/jobs/${quoted(this.job)}/dead-letters/${this.number}`, 0);
    this.stream = new Poll(this, () => (this.letter.data?.stream ? `/v1/streams/${quoted(this.letter.data.stream)}` : null), 0);
    this.counts = new Poll(this, () => (this.letter.data ? `/v1/jobs/${quoted(this.job)}/dead-letters/counts?${this.#filter}` : null), 0);
    this.follow = new Follow(this, [route, "change"], [session, "change"]);
    this.sinceMs = Math.floor((Date.now() - route.rangeMs) / MINUTE_MS) * MINUTE_MS;
  }

  /** Which dead letters: this `one`, those of its `kind`, or `all` with its reason. */
  get #of() {
    const of = route.now.query.get("of") ?? "";
    return ["kind", "all"].includes(of) ? of : "one";
  }

  get #filter() {
    const letter = this.letter.data;
    if (this.#of === "one") return new URLSearchParams({ after: String(letter.number - 1), before: String(letter.number + 1) });
    return new URLSearchParams({ since_ms: String(this.sinceMs), reason: letter.reason, ...(this.#of === "kind" ? { kind: letter.kind, ...(letter.step ? { step: letter.step } : {}) } : {}) });
  }

  willUpdate() {
    const letter = this.letter.data;
    if (letter && this.edits === null) {
      this.edits = [proposed(letter)];
      this.text = textOf(letter.value_base64);
    }
  }

  render() {
    const refusal = session.refusal(REPAIRS);
    return html`<div class="view">
      <div class="title">
        <p class="crumbs"><a href=${route.href(["dead-letters", this.job])}>Dead letters</a> <a href=${route.href(["dead-letters", this.job, this.number])}>${this.number}</a></p>
        <h1>Repair dead letters of ${this.job}</h1>
        <p class="about">A repaired record is requeued: it is written to its stream again, with the new payload, at most once. The dead letter itself stays as it is.</p>
      </div>
      ${panel("Which", this.letter, () => this.#which())}
      <div class="columns">
        ${panel("Example", this.letter, () => this.#example())}
        <div class="consequences">
          ${refusal ? html`<section class="panel"><header><h2>Repair</h2></header><p class="muted why-not">Repair ${refusal}.</p></section>` : panel(this.#of === "one" ? "New payload" : "Edits", this.letter, () => (this.#of === "one" ? this.#payload() : this.#edits()), { kind: "edits" })}
          ${this.outcome ? this.#outcome() : nothing}
          ${requeues.has(this.job) ? html`<section class="panel"><header><h2>Requeued records</h2></header><sl-requeued .job=${this.job} .paths=${requeues.get(this.job)}></sl-requeued></section>` : nothing}
        </div>
      </div>
    </div>`;
  }

  #which() {
    const letter = this.letter.data;
    const count = this.counts.data?.dead_letters;
    /** @param {string} of @param {unknown} label */
    const choice = (of, label) => html`<label class="choice"><input type="radio" name="of" .checked=${this.#of === of} @change=${() => this.#choose(of)} /><span>${label}</span></label>`;
    return html`<div class="choices">
      ${choice("one", html`This dead letter, ${letter.number}`)}
      ${choice("kind", html`All of its kind: <code>${letter.kind || letter.reason}</code>`)}
      ${choice("all", html`All with the reason <code>${letter.reason}</code>`)}
    </div>
    ${this.#of === "one" ? nothing : html`<p class="muted">${count === undefined ? "Counting…" : `${this.counts.data.next ? "At least " : ""}${whole(count)} ${count === 1 ? "dead letter" : "dead letters"} in the last ${spaced(route.range)}. The time range at the top of the page applies.`}</p>`}`;
  }

  /** @param {string} of */
  #choose(of) {
    this.outcome = null;
    route.set({ of });
  }

  #example() {
    const letter = this.letter.data;
    return html`<p class="lead">${readable(letter.message)}</p>
      <p class="muted">Reason ${letter.reason}${letter.step ? `, step ${letter.step}` : ""}. ${letter.stream ? html`<a href=${route.href(["records", letter.stream, String(letter.partition), String(letter.offset)])}>Life of the record</a>` : nothing}</p>
      ${fields(letter.value, this.stream.data?.document?.schema ?? null)}${bytes(letter.value_base64)}`;
  }

  #payload() {
    if (this.text === null) return html`<p>The payload isn't text, so it can't be edited here. Use the command with a file:</p><p class="muted"><code>${this.#command}</code></p>`;
    return html`<textarea rows="10" spellcheck="false" aria-label="New payload" .value=${this.text} @input=${(/** @type {any} */ event) => { this.text = event.target.value; this.outcome = null; }}></textarea>
      <div class="actions"><button class="primary" @click=${() => void this.#tryOne()}>Try it</button><span class="muted">Nothing is written.</span></div>`;
  }

  #edits() {
    const edits = this.edits ?? [];
    const names = membersOf(this.letter.data.value);
    return html`<datalist id="members">${names.map((name) => html`<option value=${name}></option>`)}</datalist>
      ${edits.map((one, at) => {
        const [, field, value] = EDITS[one.edit];
        return html`<div class="edit">
          <label>Edit<select @change=${(/** @type {any} */ event) => this.#change(at, { edit: event.target.value })}>${Object.entries(EDITS).map(([edit, [label]]) => html`<option value=${edit} .selected=${edit === one.edit}>${label}</option>`)}</select></label>
          <label>${field}<input list=${one.edit === "replace" ? nothing : "members"} spellcheck="false" .value=${one.field} @input=${(/** @type {any} */ event) => this.#change(at, { field: event.target.value })} /></label>
          ${value ? html`<label>${value}<input spellcheck="false" .value=${one.edit === "set" ? one.value : one.to} @input=${(/** @type {any} */ event) => this.#change(at, one.edit === "set" ? { value: event.target.value } : { to: event.target.value })} /></label>` : nothing}
          ${edits.length > 1 ? html`<button class="quiet small" @click=${() => { this.edits = edits.filter((_, other) => other !== at); this.outcome = null; }}>Remove</button>` : nothing}
        </div>`;
      })}
      <div class="actions"><button class="quiet" @click=${() => (this.edits = [...edits, { edit: "set", field: "", to: "", value: "null" }])}>Another edit</button></div>
      <p class="muted">Members are named by name, or by a path such as <code>$.sensor.value</code>. The rest of each payload stays as it is. Edits are applied in the order of the list of edits.</p>
      <div class="actions"><button class="primary" @click=${() => void this.#tryAll()}>Try it</button><span class="muted">Nothing is written.</span></div>`;
  }

  /** @param {number} at @param {Partial<Edit>} changes */
  #change(at, changes) {
    this.edits = (this.edits ?? []).map((one, other) => (other === at ? { ...one, ...changes } : one));
    this.outcome = null;
  }

  /** The edits as the REST API reads them. Throws if a value isn't JSON. */
  get #body() {
    return {
      edits: (this.edits ?? []).map(({ edit, field, to, value }) => {
        if (edit !== "set") return { edit, field, ...(["rename", "replace"].includes(edit) ? { to } : {}) };
        try {
          return { edit, field, value: JSON.parse(value) };
        } catch {
          throw new Error(`The value of ${field} isn't JSON: a string needs quotes, such as "${value}".`);
        }
      }),
    };
  }

  get #onePath() {
    return `/v1/jobs/${quoted(this.job)}/dead-letters/repair?dead_letter=${this.number}`;
  }

  get #allPath() {
    return `/v1/jobs/${quoted(this.job)}/dead-letters/repairs?${this.#filter}`;
  }

  get #command() {
    if (this.#of === "one") return `strandline dead-letters repair ${this.job} ${this.number} --payload FILE`;
    const letter = this.letter.data;
    const kind = this.#of === "kind" ? ` --kind ${shell(letter.kind)}${letter.step ? ` --step ${shell(letter.step)}` : ""}` : "";
    const edits = (this.edits ?? []).map(({ edit, field, to, value }) => ` --${edit} ${shell(edit === "set" ? `${field}=${value}` : ["rename", "replace"].includes(edit) ? `${field}=${to}` : field)}`);
    return `strandline dead-letters repair ${this.job} --reason ${letter.reason}${kind} --since ${new Date(this.sinceMs).toISOString().slice(0, 19)}Z${edits.join("")}`;
  }

  /** @param {() => Promise<any>} send */
  async #try(send) {
    /** @type {any} */
    const asked = (this.outcome = { isAsked: true, done: 0 });
    let outcome;
    try {
      outcome = await send();
    } catch (error) {
      outcome = { problem: error instanceof Error ? error.message : String(error) };
    }
    if (this.outcome === asked || this.outcome?.asked === asked) this.outcome = outcome;
  }

  #tryOne() {
    const text = this.text ?? "";
    const repair = `${this.#onePath}&dry_run=true`;
    return this.#try(async () => ({ one: await request("POST", repair, { body: text, type: "application/octet-stream" }), text }));
  }

  #tryAll() {
    return this.#try(() => inParts(`${this.#allPath}&dry_run=true`, this.#body, (done) => this.#report(done)));
  }

  /** @param {number} done */
  #report(done) {
    if (this.outcome?.isAsked) Object.assign(this.outcome, { done });
    this.requestUpdate();
  }

  #outcome() {
    const outcome = this.outcome;
    const all = this.counts.data?.dead_letters;
    if (outcome.isAsked) return html`<section class="panel"><p role="status">Trying${outcome.done ? ` ${whole(outcome.done)}${all ? ` of ${whole(all)}` : ""}` : ""}…</p></section>`;
    if (outcome.problem) return html`<section class="panel outcome-panel"><p class="problem" role="alert">${outcome.problem}</p></section>`;
    return html`<section class="panel outcome-panel"><header><h2>${outcome.isDone ? "Repaired" : "What the repair would do"}</h2></header>
      ${outcome.one ? this.#outcomeOfOne(outcome) : this.#outcomeOfAll(outcome)}
    </section>`;
  }

  /** @param {any} outcome */
  #outcomeOfOne({ one, text, isDone }) {
    if (one.requeued_before) return html`<p role="status">Dead letter ${one.number} was requeued before, so it isn't requeued again.</p>`;
    if (isDone) return html`<p role="status">Dead letter ${one.number} is repaired and requeued.</p>`;
    return html`<p role="status">The current version accepts the record: it would be requeued.</p>
      <div class="actions"><button class="primary" @click=${() =>
        ask({
          title: `Repair dead letter ${this.number} of ${this.job}`,
          does: "Writes the record to its stream again, with the new payload, at most once. All jobs that read the stream read it like a new record. This can't be undone.",
          label: "Repair 1",
          operation: REPAIR,
          path: this.#onePath,
          body: text,
          type: "application/octet-stream",
          command: this.#command,
          done: (answer) => this.#done({ one: answer, isDone: true }, answer.follow ? [answer.follow] : []),
        })}>Repair 1</button></div>`;
  }

  /** @param {any} outcome */
  #outcomeOfAll(outcome) {
    const { matched, requeued, repairs, isDone } = outcome;
    const path = this.#allPath;
    const why = left(outcome, whole);
    return html`<p role="status">${isDone ? "Repaired and requeued" : "Would repair and requeue"} <b>${whole(requeued)}</b> of ${whole(matched)} dead letters. ${isDone ? "" : expected(outcome, whole)}</p>
      ${why.length ? html`<ul class="notes">${why.map((one) => html`<li>${one}</li>`)}</ul>` : nothing}
      ${repairs.length
        ? html`<div class="scroll" tabindex="0"><table class="values repairs">
            <thead><tr><th class="number">Letter</th><th>Outcome</th><th>Edited record</th></tr></thead>
            <tbody>${repairs.slice(0, SHOWN).map((/** @type {any} */ one) => html`<tr><td class="number"><a href=${route.href(["dead-letters", this.job, String(one.number)])}>${one.number}</a></td>
              <td class=${one.outcome === "accepted" ? "" : "warn"}>${one.outcome === "accepted" ? "accepted" : html`${one.outcome}: ${readable(one.message)}`}</td><td><code>${one.value}</code></td></tr>`)}</tbody></table></div>
          ${matched > SHOWN ? html`<p class="muted">The first ${Math.min(SHOWN, repairs.length)}, those that would be rejected again first.</p>` : nothing}`
        : empty("The edits apply to none of these dead letters.")}
      ${isDone || !requeued
        ? nothing
        : html`<div class="actions"><button class="primary" @click=${() =>
            ask({
              title: `Repair dead letters of ${this.job}`,
              does: `Edits the payloads of ${whole(requeued)} dead letters, and writes these records to their streams again, each at most once. All jobs that read the streams read them like new records. Records that would be rejected again stay dead letters. This can't be undone.`,
              label: `Repair ${whole(requeued)}`,
              operation: REPAIRS,
              path,
              body: this.#body,
              send: (report) => inParts(path, this.#body, (done) => report(`Repaired ${whole(done)} of ${whole(matched)}…`)),
              command: this.#command,
              done: (answer) => this.#done({ ...answer, isDone: true }, answer.follow),
            })}>Repair ${whole(requeued)}</button></div>`}`;
  }

  /** @param {any} outcome @param {string[]} follow */
  #done(outcome, follow) {
    if (follow.length) requeues.set(this.job, follow);
    this.outcome = outcome;
  }
}
customElements.define("sl-repair", RepairView);

/** Names of the members of a JSON object. @param {string} text @returns {string[]} */
function membersOf(text) {
  try {
    const value = JSON.parse(text);
    return value !== null && typeof value === "object" && !Array.isArray(value) ? Object.keys(value) : [];
  } catch {
    return [];
  }
}

/** A first edit: of the member that the message names. @param {any} letter @returns {Edit} */
function proposed(letter) {
  const field = membersOf(letter.value).find((name) => new RegExp(`(^|\\W)${name.replace(/[^\w]/g, "\\$&")}(\\W|$)`).test(letter.message)) ?? /^([\w-]+): /.exec(letter.message)?.[1] ?? "";
  const value = membersOf(letter.value).includes(field) ? JSON.parse(letter.value)[field] : null;
  return { edit: typeof value === "string" && value.trim() !== "" && Number.isFinite(Number(value.replace(/^(-?\d+),(\d+)$/, "$1.$2"))) ? "number" : "set", field, to: "", value: "null" };
}

/** @param {string} text as an argument of a shell */
const shell = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
