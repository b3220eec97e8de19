/**
 * A resource that a view shows: fetched at intervals and after events, kept while the service does not answer.
 * Each panel has its own, so one that fails leaves the others as they are.
 */
import { ApiError, get } from "./api.js";

const RETRY_MS_MAX = 15_000;
/** Paths of responses about all jobs. The service may answer with one that is up to a minute old, if it takes seconds to compute. */
const KEPT = new Set(["/v1/jobs", "/v1/explanations"]);
const KEPT_S = 60;
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

  soon(isChanged = false) {
    this.isChanged ||= isChanged;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.fetch(), 40 + Math.random() * 60);
  }

  async fetch() {
    const path = this.path();
    clearTimeout(this.timer);
    this.fetched = path ?? "";
    if (path === null) return;
    this.running?.abort();
    const running = (this.running = new AbortController());
    const mayBeKept = KEPT.has(path) && !this.isChanged;
    this.isChanged = false;
    try {
      const data = await get(mayBeKept ? `${path}?max_age_s=${KEPT_S}` : path, running.signal);
      if (running.signal.aborted) return;
      this.data = data;
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
    this.host.requestUpdate();
  }
}
