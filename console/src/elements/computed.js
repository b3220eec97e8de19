/** A panel whose content the service computes from the log. It is requested once, not at intervals. */
import { html } from "lit";
import { get } from "../core/api.js";
import { route } from "../core/route.js";
import { Element, Follow } from "./base.js";

/** @typedef {import("../core/api.js").Json} Json */

/** A request that is sent once, because each answer is computed from the log. */
export class Computed extends Element {
  static properties = { path: { type: String }, answer: { state: true }, problem: { state: true } };

  constructor() {
    super();
    this.path = "";
    /** @type {Json | null} */ this.answer = null;
    this.problem = "";
    this.follow = new Follow(this, [route, "change"]);
  }

  connectedCallback() {
    super.connectedCallback();
    void this.compute();
  }

  async compute() {
    this.answer = null;
    this.problem = "";
    try {
      this.answer = await get(this.path);
    } catch (error) {
      this.problem = error instanceof Error ? error.message : String(error);
    }
  }

  /** @param {unknown} heading @param {(answer: Json) => unknown} content */
  shown(heading, content) {
    return html`<section class="panel">
      <header><h2>${heading}</h2></header>
      ${this.problem
        ? html`<div class="failure" role="alert"><p>${this.problem}</p><button class="quiet" @click=${() => void this.compute()}>Try again</button></div>`
        : this.answer
          ? content(this.answer)
          : html`<p class="muted" role="status">Computing from the log…</p>`}
    </section>`;
  }
}
