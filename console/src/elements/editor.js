/** The editor of documents. Its code is a bundle of its own, which is loaded when the first editor is shown. */
import { get } from "../core/api.js";
import { html, nothing } from "lit";
import { Element } from "./base.js";

/** @typedef {{line: number | null, column: number | null, pointer: string, detail: string}} Found */
const BUNDLE = "/console/editor.js";
/** @type {Promise<any> | null} */
let bundle = null;
/** @type {Record<string, any> | null} the JSON schema of documents; null until it is read */
let schema = null;

/** @type {Record<string, string[]> | null} registered streams with their fields; null until they are read */
let streams = null;

/** Read what completion needs, unless it was read before. Without it, the editor works but completes no words. @param {boolean} isSql */
async function readWords(isSql) {
  schema ??= await get("/v1/documents/schema");
  if (isSql) streams ??= Object.fromEntries((await get("/v1/streams")).streams.map((/** @type {any} */ one) => [one.name, Object.keys(one.document.schema ?? {})]));
}

export class DocumentEditor extends Element {
  static properties = { text: { attribute: false }, problems: { attribute: false }, line: { attribute: false }, form: { type: String }, failure: { state: true }, withoutSchema: { state: true } };

  constructor() {
    super();
    this.text = "";
    /** @type {Found[]} */ this.problems = [];
    /** @type {"yaml" | "sql"} */ this.form = "yaml";
    /** @type {number | null} line at which the editor opens */ this.line = null;
    this.failure = "";
    /** why words aren't completed; empty if the schema was read */ this.withoutSchema = "";
    /** @type {any} */ this.editor = null;
  }

  render() {
    // Without the bundle, a plain text area does the same work.
    if (this.failure) {
      return html`<textarea class="plain-editor" aria-label="Documents in ${this.form.toUpperCase()}" spellcheck="false" rows="24" .value=${this.text} @input=${(/** @type {any} */ event) => this.#changed(event.target.value)}></textarea>
        <p class="muted">The editor could not be loaded: ${this.failure}</p>`;
    }
    return html`${this.editor ? nothing : html`<p class="muted" role="status">Loading the editor…</p>`}<div class="editor"></div>
      <p class="muted" role="status">${this.withoutSchema
        ? html`Words can't be completed, because the schema of documents can't be read: ${this.withoutSchema} <button type="button" class="quiet small" @click=${() => void this.#loadSchema()}>Try again</button>`
        : "Ctrl-Space completes words. Esc, then Tab leaves the editor."}</p>`;
  }

  async #loadSchema() {
    try {
      await readWords(this.form === "sql");
      this.withoutSchema = "";
    } catch (error) {
      this.withoutSchema = error instanceof Error ? error.message : String(error);
    }
  }

  async firstUpdated() {
    void this.#loadSchema();
    try {
      bundle ??= import(BUNDLE);
      const { createEditor } = await bundle;
      const holder = document.createElement("div");
      const root = holder.attachShadow({ mode: "open" });
      this.querySelector(".editor")?.append(holder);
      this.editor = createEditor(root, root, { text: this.text, line: this.line, form: this.form, schema: () => schema, streams: () => streams ?? {}, changed: (/** @type {string} */ text) => this.#changed(text) });
      this.editor.show(this.problems);
      this.requestUpdate();
    } catch (error) {
      bundle = null;
      this.failure = error instanceof Error ? error.message : String(error);
    }
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    this.editor?.destroy();
  }

  /** @param {Map<string, unknown>} changed */
  updated(changed) {
    if (changed.has("form") && this.form === "sql") void this.#loadSchema();
    if (!this.editor) return;
    if (changed.has("form")) this.editor.setForm(this.form);
    if (changed.has("text")) this.editor.setText(this.text);
    if (changed.has("problems")) this.editor.show(this.problems);
  }

  /** @param {Found} problem */
  goTo(problem) {
    this.editor?.goTo(problem);
  }

  /** @param {Found} problem */
  columnOf(problem) {
    return this.editor?.columnOf(problem) ?? 1;
  }

  /** @param {string} text */
  #changed(text) {
    this.text = text;
    this.dispatchEvent(new CustomEvent("edited", { detail: text }));
  }
}
customElements.define("sl-editor", DocumentEditor);
