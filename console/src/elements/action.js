/** The dialog of an action: what it does, its command line, its REST call, and the confirmation. */
import { html, nothing } from "lit";
import { request } from "../core/api.js";
import { whole } from "../core/format.js";
import { refreshAll } from "../core/poll.js";
import { Element, Tick } from "./base.js";
import { command } from "./parts.js";

/**
 * An action that the user confirms.
 *
 * - `operation`: its name, such as `POST /v1/jobs/{name}/stop`. A test compares these names with the roles of the REST API.
 * - `details`: more effects. They are read again while the dialog is open.
 * - `send`: replaces the single request to `path`. It reports its progress to the dialog.
 */
/** @typedef {{operation: string, path: string, body?: string | Record<string, any>, type?: string, send?: (report: (progress: string) => void) => Promise<any>}} Call */
/** @typedef {Call & {title: string, does: string, label: string, command: string, details?: () => string[], isDangerous?: boolean, done?: (answer: any) => void}} Order */

export class ActionDialog extends Element {
  static properties = { order: { state: true }, error: { state: true }, isRunning: { state: true }, progress: { state: true } };

  constructor() {
    super();
    /** @type {Order | null} */ this.order = null;
    this.error = "";
    this.isRunning = false;
    this.progress = "";
    this.tick = new Tick(this, 2_000);
  }

  /** @param {Order} order */
  async open(order) {
    this.order = order;
    this.error = "";
    this.isRunning = false;
    this.progress = "";
    await this.updateComplete;
    this.querySelector("dialog")?.showModal();
  }

  render() {
    const order = this.order;
    return html`<dialog aria-labelledby="action-title" @close=${() => (this.order = null)}>
      ${order
        ? html`<form method="dialog" @submit=${this.#run}>
            <h2 id="action-title">${order.title}</h2>
            <p>${order.does}</p>
            ${order.details ? html`<ul class="notes">${order.details().map((one) => html`<li>${one}</li>`)}</ul>` : nothing}
            <h3>Command line</h3>
            ${command(order.command)}
            <h3>REST call</h3>
            ${command(`${methodOf(order)} ${order.path}${bodyOf(order.body)}`)}
            ${this.progress ? html`<p role="status">${this.progress}</p>` : nothing}
            ${this.error ? html`<p class="problem" role="alert">${this.error}</p>` : nothing}
            <footer>
              <button type="button" class="quiet" @click=${() => this.querySelector("dialog")?.close()}>Cancel</button>
              <button class=${order.isDangerous ? "danger" : "primary"} ?disabled=${this.isRunning}>
                ${this.isRunning ? "Sending…" : order.label}
              </button>
            </footer>
          </form>`
        : nothing}
    </dialog>`;
  }

  /** @param {Event} event */
  async #run(event) {
    event.preventDefault();
    const order = this.order;
    if (!order) return;
    this.isRunning = true;
    try {
      const answer = await (order.send ? order.send((progress) => (this.progress = progress)) : request(methodOf(order), order.path, { body: order.body, type: order.type }));
      this.querySelector("dialog")?.close();
      refreshAll();
      order.done?.(answer);
    } catch (error) {
      this.error = error instanceof Error ? error.message : String(error);
      this.isRunning = false;
    }
  }
}
customElements.define("sl-action", ActionDialog);

/** The body of a request as text. Bytes that the user has chosen are only counted. @param {any} body */
const bodyOf = (body) => (body instanceof Uint8Array ? ` (a body of ${whole(body.length)} bytes)` : body && typeof body === "object" ? ` ${JSON.stringify(body)}` : "");

/** @param {Order} order */
const methodOf = (order) => order.operation.split(" ")[0];

/** @param {Order} order */
export function ask(order) {
  void /** @type {ActionDialog} */ (document.querySelector("sl-action")).open(order);
}
