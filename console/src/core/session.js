/**
 * The caller and its rights, as `GET /v1/session` reports them.
 *
 * When a sign-in ends, `now` stays, so that the views stay and keep what the user has typed. `hasEnded` is true until the user has
 * signed in again. The service renews a sign-in at a provider; the page only asks for it in time.
 */
import { ApiError, access, request, signals } from "./api.js";
import { follow, stop } from "./live.js";
import { goToProvider, isReturn, leaveProvider, tokenOfReturn } from "./oidc.js";
import { refreshAll } from "./poll.js";
import { NOTICE_MS, renewalDelay } from "./renewal.js";

/** @typedef {{requires_token: boolean, name: string | null, role: string | null, writes: string[], ends_in_ms: number | null, renews: boolean, provider: import("./oidc.js").Provider | null, operations: Record<string, {needs: string, allowed: boolean}>}} Session */

/** Prefix of the names of users of the provider. */
const OIDC_PREFIX = "oidc:";
const RENEWAL = "/v1/session/renewal";
const TIMER_MS_MIN = 1_000;
/** Maximum delay of a timer of browsers. */
const TIMER_MS_MAX = 2 ** 31 - 1;
/** All tabs of the page. */
const tabs = new BroadcastChannel("strandline-session");

export const session = new (class extends EventTarget {
  /** @type {Session | null} */
  now = null;

  get isSignedIn() {
    return this.now !== null && (!this.now.requires_token || this.now.name !== null);
  }

  /** True if the session ended without a sign-out: its token expired or was revoked, or the service restarted. */
  hasEnded = false;
  /** Time at which the sign-in ends; null if it doesn't. @type {number | null} */
  endsAt = null;
  /** True in a window that only renews the sign-in of another tab, after it has done so. */
  hasRenewedOther = false;
  /** Number of changes of the user after which the views must begin again. */
  users = 0;
  /** Time of the last sign-in or renewal. Refusals of earlier requests say nothing about it. */
  #since = 0;
  #hasFailed = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  /** @type {Promise<boolean> | null} */
  #renewing = null;

  /** True if the user should sign in again soon. */
  get endsSoon() {
    return this.endsAt !== null && !this.hasEnded && this.endsAt - Date.now() < NOTICE_MS && (!this.now?.renews || this.#hasFailed);
  }

  /** Load the session. If the provider has sent the user back, sign in. Throws if that fails; `now` is set anyway. */
  async load() {
    const now = await request("GET", "/v1/session");
    if (now.provider && isReturn()) {
      try {
        const { token, refresh, isRenewal } = await tokenOfReturn(now.provider);
        await this.signIn(token, refresh);
        this.hasRenewedOther = isRenewal;
        if (isRenewal) close();
      } catch (error) {
        this.#become(now);
        throw error;
      }
    } else if (now.name === null && now.renews) {
      this.#become(await request("POST", RENEWAL).catch(() => ({ ...now, renews: false })));
    } else this.#become(now);
  }

  /** Go to the provider to sign in. @param {boolean} [isRenewal] */
  async signInAtProvider(isRenewal = false) {
    if (this.now?.provider) await goToProvider(this.now.provider, isRenewal);
  }

  /** @param {string} token @param {string | null} [refresh] refresh token of the provider, which the service keeps */
  async signIn(token, refresh = null) {
    this.#become(await request("POST", "/v1/session", { body: { token, ...(refresh === null ? {} : { refresh_token: refresh }) } }));
    tabs.postMessage("signed-in");
  }

  async signOut() {
    const wasAtProvider = this.now?.name?.startsWith(OIDC_PREFIX);
    this.#become(await request("DELETE", "/v1/session"));
    if (wasAtProvider && this.now?.provider) await leaveProvider(this.now.provider);
  }

  /**
   * @param {string} operation such as `POST /v1/jobs/{name}/stop`
   * @param {string} [stream] the stream that the operation writes to
   * @returns {string} why it isn't allowed; empty if it is
   */
  refusal(operation, stream) {
    const right = this.now?.operations[operation];
    if (right?.allowed) return "";
    const who = this.now?.name ?? "you";
    if (stream !== undefined && right?.needs === "write") {
      const writes = this.now?.writes ?? [];
      return writes.includes(stream) || writes.includes("*") ? "" : `needs the right to write to stream ${stream}, which ${who} doesn't have; an admin can create a token with it`;
    }
    return `needs the role ${right?.needs ?? "operator"}; ${who} has ${this.now?.role ?? "no role"}`;
  }

  /** The service has refused a request that was sent at this time. @param {number} sent */
  async refused(sent) {
    if (this.hasEnded || !this.now?.name || sent < this.#since) return;
    if (!this.now.renews || !(await this.#renew())) this.#end();
  }

  /** Another tab has signed in. */
  async adopt() {
    if (this.now?.requires_token) this.#become(await request("GET", "/v1/session"));
  }

  #end() {
    this.hasEnded = access.hasEnded = true;
    clearTimeout(this.#timer);
    stop();
    this.dispatchEvent(new Event("change"));
  }

  /** Let the service renew the session. @returns {Promise<boolean>} true if it did */
  #renew() {
    this.#renewing ??= (async () => {
      try {
        this.#become(await request("POST", RENEWAL));
        return true;
      } catch (error) {
        if (error instanceof ApiError && [401, 409].includes(error.status) && this.now) this.now = { ...this.now, renews: false };
        this.#hasFailed = true;
        return false;
      } finally {
        this.#renewing = null;
      }
    })();
    return this.#renewing;
  }

  /** Act at the next time limit: renew the session, show the notice, or check whether the session has ended. */
  #plan() {
    clearTimeout(this.#timer);
    if (this.endsAt === null || this.hasEnded) return;
    const left = this.endsAt - Date.now();
    const isRenewable = this.now?.renews === true && left > 0;
    const delay = isRenewable ? renewalDelay(left, this.#hasFailed) : left > NOTICE_MS ? left - NOTICE_MS : left + 500;
    this.#timer = setTimeout(() => void this.#act(isRenewable), Math.min(Math.max(delay, TIMER_MS_MIN), TIMER_MS_MAX));
  }

  /** @param {boolean} isRenewal */
  async #act(isRenewal) {
    if (this.endsAt === null) return;
    if (isRenewal) await this.#renew();
    else if (Date.now() >= this.endsAt) {
      const now = await request("GET", "/v1/session").catch(() => null);
      if (now?.name === null) return now.renews && (await this.#renew()) ? undefined : this.#end();
      if (now) this.#become(now);
    }
    this.dispatchEvent(new Event("change"));
    this.#plan();
  }

  /** @param {Session} now */
  #become(now) {
    const wasEnded = this.hasEnded;
    if (wasEnded && now.requires_token && now.name === null) return;
    if (this.now && !mayContinue(this.now, now)) this.users += 1;
    this.now = now;
    this.hasEnded = access.hasEnded = false;
    this.#hasFailed = false;
    this.#since = performance.now();
    this.endsAt = now.name === null || now.ends_in_ms === null ? null : Date.now() + now.ends_in_ms;
    if (this.isSignedIn) follow();
    else stop();
    this.#plan();
    this.dispatchEvent(new Event("change"));
    if (wasEnded) {
      refreshAll();
      this.dispatchEvent(new Event("continued"));
    }
  }
})();

/**
 * True if the views, with what the user has typed, may stay. Users of the provider are persons. A token can be replaced by another
 * one with at least the same rights.
 * @param {Session} before @param {Session} now
 */
function mayContinue(before, now) {
  if (before.name === now.name) return true;
  const isOfPerson = [before.name, now.name].some((name) => name === null || name.startsWith(OIDC_PREFIX));
  return !isOfPerson && Object.entries(before.operations).every(([operation, right]) => !right.allowed || now.operations[operation]?.allowed);
}

signals.addEventListener("signed-out", (event) => void session.refused(/** @type {CustomEvent} */ (event).detail));
tabs.addEventListener("message", () => void session.adopt().catch(() => undefined));
