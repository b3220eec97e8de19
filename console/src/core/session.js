/** The caller and its rights, as `GET /v1/session` reports them. */
import { request, signals } from "./api.js";
import { follow, stop } from "./live.js";
import { goToProvider, isReturn, leaveProvider, tokenOfReturn } from "./oidc.js";

/** @typedef {{requires_token: boolean, name: string | null, role: string | null, provider: import("./oidc.js").Provider | null, operations: Record<string, {needs: string, allowed: boolean}>}} Session */

/** Prefix of the names of users of the provider. */
const OIDC_PREFIX = "oidc:";

export const session = new (class extends EventTarget {
  /** @type {Session | null} */
  now = null;

  get isSignedIn() {
    return this.now !== null && (!this.now.requires_token || this.now.name !== null);
  }

  /** True if the session ended without a sign-out: its token expired or was revoked, or the service restarted. */
  hasEnded = false;

  /** Load the session. If the provider has sent the user back, sign in. Throws if that fails; `now` is set anyway. */
  async load() {
    const now = await request("GET", "/v1/session");
    if (!now.provider || !isReturn()) return this.#become(now);
    try {
      await this.signIn(await tokenOfReturn(now.provider));
    } catch (error) {
      this.#become(now);
      throw error;
    }
  }

  /** Go to the provider to sign in. */
  async signInAtProvider() {
    if (this.now?.provider) await goToProvider(this.now.provider);
  }

  /** @param {string} token */
  async signIn(token) {
    this.#become(await request("POST", "/v1/session", { body: { token } }));
  }

  async signOut() {
    const wasAtProvider = this.now?.name?.startsWith(OIDC_PREFIX);
    this.#become(await request("DELETE", "/v1/session"));
    if (wasAtProvider && this.now?.provider) await leaveProvider(this.now.provider);
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
    this.hasEnded = false;
    if (this.isSignedIn) follow();
    else stop();
    this.dispatchEvent(new Event("change"));
  }
})();

signals.addEventListener("signed-out", () => {
  if (session.now && session.now.name !== null) {
    session.now = { ...session.now, name: null, role: null };
    session.hasEnded = true;
    stop();
    session.dispatchEvent(new Event("change"));
  }
});
