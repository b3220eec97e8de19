/** Documents that a user edits: the editor, the problems while the user types, the plan, the difference, a preview, and applying. */
import { html, nothing } from "lit";
import { ApiError, quoted, request } from "../core/api.js";
import { difference } from "../core/diff.js";
import { documentsIn } from "../core/documents.js";
import { capital, duration, exact, readable, short, sum, time, whole } from "../core/format.js";
import { route } from "../core/route.js";
import { session } from "../core/session.js";
import { ask } from "./action.js";
import { Element, Follow } from "./base.js";
import "./editor.js";
import { badge, empty } from "./parts.js";
import { differenceOf } from "./versions.js";

const PAUSE_MS = 400;
/** Time after which a plan is computed again while it is shown: its cost grows with each record. */
const RENEW_MS = 15_000;
const NEWEST = 500;
const RESULTS_SHOWN = 30;
/** @typedef {"yaml" | "sql"} Form */
/** @type {Record<Form, string>} form -> media type */
const TYPES = { yaml: "application/yaml", sql: "application/sql" };
/** @type {[Form, string][]} */
const FORMS = [["yaml", "YAML"], ["sql", "SQL"]];
/** @type {Record<Form, RegExp>} text with a comment, which a conversion drops */
const COMMENTS = { yaml: /(^|\s)#/m, sql: /--|\/\*/ };
/** @type {Record<Form, RegExp>} */
const PIPELINE = { yaml: /^pipeline\s*:/m, sql: /\bcreate\s+job\b/i };
const APPLY = "POST /v1/documents";
/** @type {Record<string, string>} effect of a change -> tone */
const TONES = { forbidden: "bad", rewind: "warn", safe: "ok" };

export class Documents extends Element {
  static properties = {
    text: { attribute: false }, running: { attribute: false }, sample: { attribute: false }, topic: { attribute: false }, line: { attribute: false }, pipeline: { attribute: false }, file: { type: String },
    edited: { state: true }, form: { state: true }, former: { state: true }, runningInForm: { state: true }, isConverting: { state: true }, check: { state: true }, plan: { state: true }, preview: { state: true }, failure: { state: true }, isChecking: { state: true }, isRunning: { state: true },
  };

  constructor() {
    super();
    /** @type {string} initial text */ this.text = "";
    /** @type {string | null} text of the running version; null for new documents */ this.running = null;
    /** @type {string | null} sample in base64, over which the preview runs; null for the newest records */ this.sample = null;
    /** @type {string | null} topic of the newest records, if it need not be a stream; null for the stream of the pipeline */ this.topic = null;
    /** @type {number | null} line of the document that was opened, among those of the text */ this.line = null;
    /** @type {string} pipeline of the preview, if the text contains several. Empty for new documents. */ this.pipeline = "";
    this.file = "documents.yaml";
    this.edited = "";
    /** @type {Form} */ this.form = "yaml";
    /** @type {{form: Form, text: string, had: boolean} | null} text before the last conversion, until the user edits its result */ this.former = null;
    /** @type {string | null} text of the running version in the form of the editor */ this.runningInForm = null;
    this.isConverting = false;
    /** @type {any} */ this.check = null;
    /** @type {any} */ this.plan = null;
    /** Time of the plan. */ this.plannedAt = 0;
    /** True if the user has typed, and neither applied nor undone it. */ this.isTyped = false;
    /** @type {ReturnType<typeof setInterval> | undefined} */ this.renewal = undefined;
    /** @param {BeforeUnloadEvent} event */
    this.closing = (event) => this.isChanged && event.preventDefault();
    /** @type {any} */ this.preview = null;
    this.failure = "";
    this.isChecking = false;
    this.isRunning = false;
    /** @type {ReturnType<typeof setTimeout> | undefined} */ this.timer = undefined;
    /** @type {AbortController | null} */ this.working = null;
    this.follow = new Follow(this, [session, "change"], [route, "change"]);
    /** Check the text again after a sign-in that had ended. */ this.continued = () => this.#later(0);
  }

  /** @param {Map<string, unknown>} changed */
  willUpdate(changed) {
    if (changed.has("text")) {
      this.edited = this.text;
      this.isTyped = false;
      this.form = "yaml";
      this.former = null;
      this.runningInForm = this.running;
      this.#later(0);
    } else if (changed.has("sample") || changed.has("topic")) this.#later(0);
  }

  /** True if the text would be lost with the view. */
  get isChanged() {
    return this.isTyped && !(this.form === "yaml" && this.edited === this.text);
  }

  /** The part of an address that chooses the text. @param {import("../core/route.js").Route} one */
  #viewOf(one) {
    return [...one.parts, one.query.get("version")].join("/");
  }

  connectedCallback() {
    super.connectedCallback();
    const here = this.#viewOf(route.now);
    route.guard = (next) => this.isChanged && this.#viewOf(next) !== here;
    addEventListener("beforeunload", this.closing);
    this.renewal = setInterval(() => document.hidden || void this.#renew(), RENEW_MS);
    session.addEventListener("continued", this.continued);
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    session.removeEventListener("continued", this.continued);
    removeEventListener("beforeunload", this.closing);
    route.guard = null;
    clearInterval(this.renewal);
    clearTimeout(this.timer);
    this.working?.abort();
  }

  /** Compute the plan again, because its cost changes while the user reads it. */
  async #renew() {
    const text = this.edited;
    if (this.plan === null || this.isChecking || this.failure) return;
    const plan = await request("POST", "/v1/documents/plan", { body: text, type: TYPES[this.form] }).catch(() => null);
    if (plan !== null && text === this.edited && !this.isChecking) this.#planned(plan);
  }

  /** @param {any} plan */
  #planned(plan) {
    this.plan = plan;
    this.plannedAt = Date.now();
  }

  /** @param {number} ms */
  #later(ms) {
    clearTimeout(this.timer);
    this.isChecking = true;
    this.timer = setTimeout(() => void this.#examine(), ms);
  }

  /** Check the text, then plan it, then run a sample through it. A newer text ends the work on this one. */
  async #examine() {
    this.working?.abort();
    const { signal } = (this.working = new AbortController());
    const { edited: text, form } = this;
    const type = TYPES[form];
    this.failure = "";
    this.isChecking = true;
    try {
      const check = await request("POST", "/v1/pipelines/check", { body: text, type, signal });
      this.check = check;
      if (check.valid) {
        const plan = request("POST", "/v1/documents/plan", { body: text, type, signal });
        plan.catch(() => undefined); // the preview may fail first
        if (this.topic !== null) this.preview = await request("POST", `/v1/topics/${quoted(this.topic)}/preview?records=${NEWEST}`, { body: text, type, signal });
        else if (this.sample !== null) this.preview = await request("POST", "/v1/samples/preview", { body: { documents: text, form, sample: this.sample }, signal });
        this.#planned(await plan);
      } else this.plan = null;
    } catch (error) {
      if (signal.aborted) return;
      this.failure = error instanceof ApiError ? error.message : String(error);
    }
    this.isChecking = false;
  }

  async #previewNewest() {
    this.isRunning = true;
    this.failure = "";
    try {
      const isInText = this.form === "sql" ? this.pipeline !== "" && this.edited.includes(this.pipeline) : documentsIn(this.edited).some((one) => one.kind === "pipeline" && one.name === this.pipeline);
      const chosen = isInText ? `&pipeline=${quoted(this.pipeline)}` : ""; // a pipeline that was renamed is chosen only if it is alone
      this.preview = await request("POST", `/v1/pipelines/preview?records=${NEWEST}${chosen}`, { body: this.edited, type: TYPES[this.form] });
    } catch (error) {
      this.failure = error instanceof Error ? error.message : String(error);
    }
    this.isRunning = false;
  }

  /** Show the documents in another form. @param {Form} form */
  async #convert(form) {
    if (form === this.form || this.isConverting) return;
    this.isConverting = true;
    this.failure = "";
    const before = { form: this.form, text: this.edited, had: COMMENTS[this.form].test(this.edited) };
    try {
      const [edited, running] = await Promise.all([this.edited.trim() ? this.#inForm(this.edited, form, this.form) : "", this.running === null ? null : this.#inForm(this.running, form, "yaml")]);
      if (this.edited === before.text) this.#become(form, edited, running, before);
    } catch (error) {
      this.failure = `The documents stay in ${this.form.toUpperCase()}: ${error instanceof Error ? error.message : error}`;
    }
    this.isConverting = false;
  }

  /** @param {string} text @param {Form} form @param {Form} from @returns {Promise<string>} */
  async #inForm(text, form, from) {
    return form === from ? text : (await request("POST", `/v1/documents/conversion?as=${form}`, { body: text, type: TYPES[from] })).text;
  }

  /** @param {Form} form @param {string} text @param {string | null} running @param {{form: Form, text: string, had: boolean} | null} former */
  #become(form, text, running, former) {
    this.form = form;
    this.edited = text;
    this.runningInForm = running;
    this.former = former;
    this.#later(0);
  }

  async #undoConversion() {
    const former = this.former;
    if (!former) return;
    this.#become(former.form, former.text, this.running === null ? null : await this.#inForm(this.running, former.form, "yaml"), null);
  }

  #forms() {
    return html`<div class="forms" role="group" aria-label="Form of the documents">${FORMS.map(([form, name]) => html`<button type="button" class="quiet small" aria-pressed=${this.form === form ? "true" : "false"} ?disabled=${this.isConverting} @click=${() => void this.#convert(form)}>${name}</button>`)}</div>`;
  }

  render() {
    const problems = this.check?.problems ?? [];
    return html`<div class="documents">
        <section class="panel">
          <header><h2>Documents</h2><div class="aside">${this.#forms()}${this.#state(problems)}</div></header>
          ${this.former ? html`<p class="note" role="status">Converted from ${this.former.form.toUpperCase()}${this.former.had ? ", without its comments" : ""}. <button type="button" class="quiet small" @click=${() => void this.#undoConversion()}>Undo</button></p>` : nothing}
          <sl-editor .form=${this.form} .text=${this.edited} .problems=${problems} .line=${this.line}
            @edited=${(/** @type {CustomEvent} */ event) => {
              if (event.detail === this.edited) return;
              this.edited = event.detail;
              this.isTyped = true;
              this.former = null;
              this.#later(PAUSE_MS);
            }}></sl-editor>
          ${this.#problems(problems)}
        </section>
        <div class="consequences">
          ${this.#plan(problems)}
          ${this.running === null ? nothing : this.#difference()}
        </div>
      </div>
      ${this.#preview()}`;
  }

  /** @param {any[]} problems */
  #state(problems) {
    if (this.isChecking) return html`<span class="muted" role="status">Checking…</span>`;
    if (this.failure) return badge("warn", "not checked");
    return problems.length ? badge("bad", `${problems.length} ${problems.length === 1 ? "problem" : "problems"}`) : badge("ok", "valid");
  }

  /** @param {any[]} problems */
  #problems(problems) {
    const editor = () => /** @type {import("./editor.js").DocumentEditor | null} */ (this.querySelector("sl-editor"));
    return html`<div aria-live="polite">
      ${this.failure ? html`<p class="problem">${this.failure} <button class="quiet small" @click=${() => this.#later(0)}>Try again</button></p>` : nothing}
      ${problems.length
        ? html`<ul class="found">${problems.map((one) => html`<li><button class="quiet small" @click=${() => editor()?.goTo(one)}>${one.line === null ? "document" : `line ${one.line}, column ${editor()?.columnOf(one) ?? 1}`}</button>
            <span>${one.pointer ? html`<code>${one.pointer}</code> ` : nothing}${one.detail}</span></li>`)}</ul>`
        : nothing}
    </div>`;
  }

  /** @param {any[]} problems */
  #plan(problems) {
    const plan = this.plan;
    const refusal = session.refusal(APPLY);
    const forbidden = plan ? [...plan.documents, ...plan.jobs].flatMap((one) => one.changes).filter((one) => one.effect === "forbidden") : [];
    const changes = plan !== null && (plan.documents.length > 0 || plan.jobs.some((/** @type {any} */ one) => one.outcome !== "unchanged"));
    const why = problems.length
      ? "Correct the problems first."
      : refusal
        ? `Apply ${refusal}.`
        : forbidden.length
          ? `Apply would be refused: ${forbidden.length} ${forbidden.length === 1 ? "change is" : "changes are"} forbidden.`
          : plan && !changes
            ? "Applying would change nothing."
            : "";
    return html`<section class="panel plan"><header><h2>What applying does</h2></header>
      ${plan === null
        ? empty(problems.length ? "The plan appears when the documents are valid." : "Planning…")
        : html`${plan.documents.map((/** @type {any} */ one) => html`<div class="planned"><h3>${capital(one.kind)} ${one.name}</h3>${this.#changes(one.changes)}${one.notes.map((/** @type {string} */ note) => html`<p class="note">${note}</p>`)}
              ${!one.changes.length && !one.notes.length ? html`<p class="muted">Is registered, unless it is registered like this already.</p>` : nothing}</div>`)}
            ${plan.jobs.map((/** @type {any} */ one) => this.#job(one))}
            <p class="muted" role="status">As of ${time(this.plannedAt, "time")}. The plan is renewed while you read it.</p>`}
      ${why ? html`<p class="muted why-not">${why}</p>` : nothing}
      ${refusal ? nothing : html`<div class="actions"><button class="primary" ?disabled=${plan === null || this.isChecking || why !== ""} @click=${() => this.#apply()}>Apply…</button></div>`}
    </section>`;
  }

  /** @param {any} one */
  #job(one) {
    const rewind = one.rewind;
    return html`<div class="planned"><h3>Job ${one.job}</h3>
      <p>${one.outcome === "created" ? "Is created and starts." : one.outcome === "unchanged" ? "Stays as it is." : `Restarts with version ${one.version}.`}</p>
      ${this.#changes(one.changes)}
      ${rewind
        ? html`<p><b>Cost:</b> ${costOf(rewind)}</p>
            ${rewind.warning ? html`<p class="note">${rewind.warning}</p>` : nothing}`
        : one.outcome === "changed"
          ? html`<p><b>Cost:</b> nothing is read again.</p>`
          : nothing}
    </div>`;
  }

  /** @param {any[]} changes */
  #changes(changes) {
    return changes.length
      ? html`<ul class="changes">${changes.map((one) => html`<li>${badge(TONES[one.effect] ?? "wait", one.effect)}<div><b>${readable(one.change)}</b><p>${readable(one.reason)}</p></div></li>`)}</ul>`
      : nothing;
  }

  #difference() {
    const lines = difference(this.runningInForm ?? "", this.edited);
    return html`<section class="panel"><header><h2>Difference from the running version</h2></header>
      ${lines.length
        ? differenceOf(lines, "Difference from the running version")
        : empty("The text is that of the running version.")}
    </section>`;
  }

  #apply() {
    ask({
      title: "Apply the documents",
      does: [
        ...(this.plan?.documents ?? []).map((/** @type {any} */ one) => `Registers ${one.kind} ${one.name}.`),
        ...(this.plan?.jobs ?? []).map((/** @type {any} */ one) => (one.outcome === "created" ? `Creates and starts job ${one.job}.` : one.outcome === "changed" ? `Restarts job ${one.job} with version ${one.version}.` : `Job ${one.job} stays as it is.`)),
      ].join(" "),
      details: () => effects(this.plan, this.plannedAt),
      label: "Apply",
      operation: APPLY,
      path: "/v1/documents",
      body: this.edited,
      type: TYPES[this.form],
      command: `strandline apply ${this.file.replace(/\.yaml$/, "")}.${this.form}`,
      done: (answer) => {
        this.isTyped = false;
        this.dispatchEvent(new CustomEvent("applied", { detail: answer.applied }));
      },
    });
  }

  #preview() {
    const found = this.preview;
    const ofSample = this.sample !== null || this.topic !== null;
    const valid = this.check?.valid ?? false;
    const hasPipeline = PIPELINE[this.form].test(this.edited);
    const button = ofSample || !hasPipeline ? nothing : html`<button class="quiet" ?disabled=${!valid || this.isRunning} @click=${() => void this.#previewNewest()}>${this.isRunning ? "Running…" : `Run over the newest ${NEWEST} records`}</button>`;
    if (!ofSample && !hasPipeline) return nothing;
    return html`${ofSample && found?.fields ? this.#records(found) : nothing}
      <section class="panel results"><header><h2>${ofSample ? "First results" : "Preview"}</h2><div class="aside">${button}</div></header>
        ${found === null ? empty(ofSample ? "Computing…" : "The pipeline runs over the newest records of its stream, and closes all windows. Nothing is written.") : this.#results(found)}
      </section>`;
  }

  /** @param {any} found */
  #records(found) {
    const rejected = found.records - found.accepted;
    return html`<section class="panel decoded"><header><h2>Decoded records</h2><div class="aside"><span class="muted">${found.rows.length} of ${whole(found.accepted)}${rejected ? "" : ", none rejected"}</span></div></header>
      ${rejected ? html`<p class="note">${whole(rejected)} of ${whole(found.records)} records are rejected: ${found.reasons.join("; ")}</p>` : nothing}
      ${rowsTable(found.rows, Object.entries(found.fields))}
    </section>`;
  }

  /** @param {any} found */
  #results(found) {
    const rejected = sum(found.rejected);
    const counts = Object.entries(found.result_counts).map(([stage, count]) => `${whole(/** @type {number} */ (count))} of ${stage}`);
    if (found.pipeline === null) return empty("The documents contain no pipeline.");
    const columns = [...new Set(found.results.slice(0, RESULTS_SHOWN).flatMap((/** @type {any} */ one) => Object.keys(flat(one))))];
    return html`<p>Pipeline <code>${found.pipeline}</code>: ${whole(found.records)} records, ${whole(found.accepted)} accepted${rejected ? html`, <b class="warn">${whole(rejected)} rejected</b>` : ""}; results: ${counts.join(", ") || "none"}.</p>
      ${found.results.length
        ? rowsTable(found.results.slice(0, RESULTS_SHOWN).map(flat), columns.map((name) => [name, ""]))
        : empty(found.dead_letters.length ? "No record led to a result." : "The pipeline has no result for these records.")}
      ${found.dead_letters.length
        ? html`<h3>Dead letters</h3><ul class="found">${found.dead_letters.slice(0, 5).map((/** @type {any} */ one) => html`<li><span class="reason">${one.reason}</span><span>${one.message} <code>${one.value}</code></span></li>`)}</ul>`
        : nothing}`;
  }
}
customElements.define("sl-documents", Documents);

/** @param {any} rewind */
const costOf = (rewind) => `reads ${whole(rewind.records)} records again, about ${duration(rewind.seconds * 1000)}.${rewind.retention_left_ms === null ? "" : ` Retention keeps them for ${duration(rewind.retention_left_ms)}.`}`;

/** What the confirmation of a plan lists: each change that is more than safe, with its reason, and the cost. @param {any} plan @param {number} plannedAt @returns {string[]} */
function effects(plan, plannedAt) {
  const jobs = plan?.jobs ?? [];
  const changes = [...(plan?.documents ?? []), ...jobs].flatMap((one) => one.changes.filter((/** @type {any} */ change) => change.effect !== "safe").map((/** @type {any} */ change) => readable(`${one.job ?? one.name}, ${change.change} (${change.effect}): ${change.reason}.`)));
  const costs = jobs.flatMap((/** @type {any} */ one) => (one.rewind ? [`${one.job} ${costOf(one.rewind)}${one.rewind.warning ? ` ${capital(one.rewind.warning)}.` : ""}`] : one.outcome === "changed" ? [`${one.job} reads nothing again.`] : []));
  return [...changes, ...costs, ...(costs.length ? [`As of ${time(plannedAt, "time")}.`] : [])];
}

/** A result without the members that describe the job. @param {Record<string, any>} result */
function flat(result) {
  const { strandline, window, "@timestamp": at, ...values } = result;
  return { ...(window ? { "window start": window.start, "window end": window.end } : at ? { time: at } : {}), ...values };
}

/** @param {Record<string, any>[]} rows @param {[string, any][]} columns name and type */
function rowsTable(rows, columns) {
  if (!rows.length) return empty("No record was accepted.");
  const isNumber = (/** @type {string} */ name) => rows.some((row) => typeof row[name] === "number");
  return html`<div class="scroll" tabindex="0"><table class="values">
    <thead><tr>${columns.map(([name, type]) => html`<th class=${isNumber(name) ? "number" : ""}>${name}${type ? html` <small>${type}</small>` : nothing}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${columns.map(([name]) => html`<td class=${isNumber(name) ? "number" : ""}>${shown(row[name])}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

const INSTANT = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/;
/** @param {any} value */
function shown(value) {
  if (value === null || value === undefined) return html`<span class="muted">–</span>`;
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : exact(value);
  if (typeof value === "string" && INSTANT.test(value)) return time(Date.parse(value));
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
