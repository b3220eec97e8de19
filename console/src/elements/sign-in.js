/** Sign-in: the form, the notice before a sign-in ends, and the dialog in which users sign in again without leaving their view. */
import { html, nothing } from "lit";
import { clock } from "../core/format.js";
import { route } from "../core/route.js";
import { session } from "../core/session.js";
import { Element, Follow } from "./base.js";

const WINDOW = "popup,width=540,height=720";

export class SignInForm extends Element {
  static properties = { isAgain: { type: Boolean }, problem: { type: String }, isChecking: { state: true } };

  constructor() {
    super();
    /** True in the dialog: the provider's page opens in a window, so that the view stays. */ this.isAgain = false;
    this.problem = "";
    this.isChecking = false;
    this.follow = new Follow(this, [session, "change"]);
    this.shown = () => (this.isChecking = false); // the user may have gone back from the provider
  }

  connectedCallback() {
    super.connectedCallback();
    addEventListener("pageshow", this.shown);
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    removeEventListener("pageshow", this.shown);
  }

  render() {
    const provider = session.now?.provider;
    const host = provider ? new URL(provider.issuer).host : "";
    return html`<form @submit=${this.#submit}>
      ${this.problem ? html`<p class="problem" role="alert">${this.problem}</p>` : nothing}
      ${provider ? html`<button type="button" class="primary" ?disabled=${this.isChecking} @click=${() => void this.#goToProvider()}>Sign in with ${host}</button><p class="muted">${this.isAgain ? "The page of the provider opens in a window. " : ""}Or with a token of Strandline:</p>` : nothing}
      <label for="token">Token</label>
      <input id="token" name="token" type="password" autocomplete="off" spellcheck="false" required ?autofocus=${!provider} aria-describedby="token-help" />
      <button class=${provider ? "quiet" : "primary"} ?disabled=${this.isChecking}>${this.isChecking ? "Checking…" : provider ? "Sign in with the token" : "Sign in"}</button>
      <p id="token-help" class="muted">The token of the local stack is in <code>admin.token</code> in its data directory. Other tokens: <code>strandline token create NAME --role viewer</code>.</p>
    </form>`;
  }

  async #goToProvider() {
    this.problem = "";
    if (this.isAgain) {
      if (!open("/?renewal", "strandline-sign-in", WINDOW)) this.problem = "The browser has blocked the window of the provider. Allow windows of this page, or sign in with a token.";
      return;
    }
    this.isChecking = true;
    try {
      await session.signInAtProvider();
    } catch (error) {
      this.problem = error instanceof Error ? error.message : String(error);
      this.isChecking = false;
    }
  }

  /** @param {SubmitEvent} event */
  async #submit(event) {
    event.preventDefault();
    const form = /** @type {HTMLFormElement} */ (event.target);
    const token = String(new FormData(form).get("token")).trim();
    this.isChecking = true;
    this.problem = "";
    try {
      await session.signIn(token);
      form.reset();
    } catch (error) {
      this.problem = error instanceof Error ? error.message : String(error);
    }
    this.isChecking = false;
  }
}
customElements.define("sl-sign-in", SignInForm);

/** The notice and the dialog of a sign-in that ends. They lie over the view, which keeps what the user has typed. */
export class SignInAgain extends Element {
  static properties = { isOpen: { state: true } };

  constructor() {
    super();
    this.isOpen = false;
    this.follow = new Follow(this, [session, "change"], [route, "change"]);
  }

  updated() {
    const dialog = /** @type {HTMLDialogElement} */ (this.querySelector("dialog"));
    const shows = session.hasEnded || (this.isOpen && session.endsSoon);
    if (shows && !dialog.open) dialog.showModal();
    if (!shows && dialog.open) dialog.close();
    if (!shows) this.isOpen = false;
  }

  render() {
    const { hasEnded } = session;
    return html`${session.endsSoon && session.endsAt !== null
        ? html`<p class="ending" role="status">Your sign-in ends at ${clock(session.endsAt)}. <button class="small" @click=${() => (this.isOpen = true)}>Sign in again…</button></p>`
        : nothing}
      <dialog class="again ${hasEnded ? "ended" : ""}" aria-labelledby="again-title" @cancel=${(/** @type {Event} */ event) => hasEnded && event.preventDefault()} @close=${() => this.#closed()}>
        ${hasEnded || this.isOpen
          ? html`<h2 id="again-title">Sign in again</h2>
              <p class="note" role="status">${hasEnded ? "Your sign-in has ended, because its token expired or was revoked, or because the control service restarted." : "Your sign-in ends soon."} What you have typed is kept.</p>
              <sl-sign-in .isAgain=${true}></sl-sign-in>
              ${hasEnded ? nothing : html`<footer><button class="quiet" @click=${() => (this.isOpen = false)}>Later</button></footer>`}`
          : nothing}
      </dialog>`;
  }

  /** Browsers close a dialog at the second Escape, also if the page refuses it. */
  #closed() {
    this.isOpen = false;
    if (session.hasEnded) this.requestUpdate();
  }
}
customElements.define("sl-sign-in-again", SignInAgain);
