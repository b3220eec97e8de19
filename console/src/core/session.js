/** The caller and its rights, as `GET /v1/session` reports them. */
import { request, signals } from "./api.js";
import { follow, stop } from "./live.js";

/** @typedef {{requires_token: boolean, name: string | null, role: string | null, operations: Record<string, {needs: string, allowed: boolean}>}} Session */

export const session = new (class extends EventTarget {
  /** @type {Session | null} */
  now = null;

  get isSignedIn() {
    return this.now !== null && (!this.now.requires_token || this.now.name !== null);
  }

  async load() {
    this.#become(await request("GET", "/v1/session"));
  }

  /** @param {string} token */
  async signIn(token) {
    this.#become(await request("POST", "/v1/session", { body: { token } }));
  }

  async signOut() {
    this.#become(await request("DELETE", "/v1/session"));
  }

  /**
   * @param {string} operation such as `POST /v1/jobs/{name}/stop`
   * @returns {string} why it isn't allowed; empty if it is
   */
  refusal(operation) {
    const right = this.now?.operations[operation];
    if (right?.allowed) return "";
    const who = this.now?.name ?? "you";
    return `needs the role ${right?.needs ?? "operator"}; ${who} has ${this.now?.role ?? "no role"}`;
  }

  /** @param {Session} now */
  #become(now) {
    this.now = now;
    if (this.isSignedIn) follow();
    else stop();
    this.dispatchEvent(new Event("change"));
  }
})();

signals.addEventListener("signed-out", () => {
  if (session.now && session.now.name !== null) {
    session.now = { ...session.now, name: null, role: null };
    stop();
    session.dispatchEvent(new Event("change"));
  }
});
