/**
 * A resource that a view shows: fetched at intervals and after events, kept while the service does not answer.
 * Each panel has its own, so one that fails leaves the others as they are.
 */
import { ApiError, getAgain } from "./api.js";

const RETRY_MS_MAX = 15_000;
/** Resources that the service computes once for all pages. */
const KEPT = new Set(["/v1/jobs", "/v1/explanations", "/v1/histories", "/v1/arrivals"]);
/** Accepted age of a response about all jobs. Their changes are requested by name (`changedJobs`). */
const KEPT_S = 30;
/** Time from an event to the request for its effect. All pages receive the event, and share a response that is at most as old as this. */
const AFTER_EVENT_MS = 1_050;
/** @typedef {import("lit").ReactiveController} ReactiveController */
/** @type {Set<Poll>} */
const active = new Set();

/** Fetch every resource that is shown, soon. Called after an action, after an event, and after a reconnect. */
export function refreshAll() {
  for (const poll of active) poll.soon(true);
}

/** @param {(poll: Poll) => boolean} wanted */
export function refreshWhere(wanted) {
  for (const poll of active) if (wanted(poll)) poll.soon(true);
}

/** @implements {ReactiveController} */
export class Poll {
  /**
   * @param {import("lit").ReactiveControllerHost} host
   * @param {() => string | null} path null while nothing is to be fetched
   * @param {number} everyMs 0: only once and after events
   */
  constructor(host, path, everyMs) {
    this.host = host;
    this.path = path;
    this.everyMs = everyMs;
    /** @type {any} the last answer */
    this.data = null;
    /** @type {number | null} when it came */
    this.at = null;
    /** @type {ApiError | null} why the last request failed */
    this.error = null;
    /** @type {string | null} the path of the last answer */
    this.answered = null;
    /** @type {string | null} tag of the last answer */
    this.tag = null;
    /** @type {string | null} */
    this.fetched = null;
    /** @type {AbortController | null} */
    this.running = null;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    this.failures = 0;
    /** True if the next answer must contain a change that has just happened. */
    this.isChanged = false;
    host.addController(this);
  }

  hostConnected() {
    active.add(this);
    document.addEventListener("visibilitychange", this);
    this.soon();
  }

  hostDisconnected() {
    active.delete(this);
    document.removeEventListener("visibilitychange", this);
    clearTimeout(this.timer);
    this.running?.abort();
    this.running = null;
  }

  /** Fetch again if the path has changed. The data of another resource are dropped; those of another query stay until then. */
  hostUpdated() {
    const path = this.path() ?? "";
    if (this.fetched === null || path === this.fetched) return;
    if (path.split("?")[0] !== this.fetched.split("?")[0]) {
      this.data = null;
      this.tag = null;
      this.at = null;
      this.error = null;
      this.host.requestUpdate();
    }
    this.fetched = path;
    this.soon();
  }

  handleEvent() {
    if (!document.hidden) this.soon();
  }

  get isLoading() {
    return this.data === null && this.error === null;
  }

  /** The service answered before, and does not now. */
  get isStale() {
    return this.data !== null && this.error !== null;
  }

  /** Fetch shortly. A page that isn't visible fetches nothing until it is. */
  soon(isChanged = false) {
    this.isChanged ||= isChanged;
    clearTimeout(this.timer);
    // An update that was due when the view was left can still change the path. A view that was left requests nothing.
    if (document.hidden || !active.has(this)) return;
    const isShared = this.isChanged && KEPT.has((this.path() ?? "").split("?")[0]);
    this.timer = setTimeout(() => void this.fetch(), isShared ? AFTER_EVENT_MS : 40 + Math.random() * 60);
  }

  /** The address of the next request. It allows shared responses to be as old as those of the last request. */
  #address(/** @type {string} */ path) {
    const [resource, query] = path.split("?");
    if (!KEPT.has(resource)) return path;
    const isOfAll = !query && resource !== "/v1/arrivals";
    const ageS = isOfAll ? KEPT_S : this.isChanged ? Math.floor(AFTER_EVENT_MS / 1_000) : Math.min(KEPT_S, Math.max(1, Math.floor(this.everyMs / 1_000) - 1));
    return `${path}${query ? "&" : "?"}max_age_s=${ageS}`;
  }

  async fetch() {
    const path = this.path();
    clearTimeout(this.timer);
    this.fetched = path ?? "";
    if (path === null || document.hidden) return;
    this.running?.abort();
    const running = (this.running = new AbortController());
    const address = this.#address(path);
    this.isChanged = false;
    let isSame = false;
    try {
      const answer = await getAgain(address, this.tag, running.signal);
      if (running.signal.aborted) return;
      isSame = answer.isSame && this.error === null;
      if (!answer.isSame) this.data = answer.value;
      this.answered = path;
      this.tag = answer.tag;
      this.at = Date.now();
      this.error = null;
      this.failures = 0;
    } catch (error) {
      if (running.signal.aborted) return;
      this.error = error instanceof ApiError ? error : new ApiError(0, "page_failed", String(error));
      this.failures += 1;
    }
    this.running = null;
    const wait = this.error ? Math.min(RETRY_MS_MAX, 1_000 * 2 ** Math.min(this.failures, 4)) : this.everyMs;
    if (wait && !document.hidden) this.timer = setTimeout(() => void this.fetch(), wait);
    if (!isSame) this.host.requestUpdate();
  }
}
