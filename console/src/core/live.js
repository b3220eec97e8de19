/** The events of the service as they happen. They tell the views what to fetch again, and whether the service answers. */
import { refreshAll, refreshWhere } from "./poll.js";

export const live = new EventTarget();
/** @type {{state: "connecting" | "live" | "away", since: number}} */
export const connection = { state: "connecting", since: Date.now() };
/** Time for which a page may show a response about all jobs without a change: it requests one of the last 30 s, every 30 s. */
const CHANGED_MS = 65_000;
const CHANGED_MAX = 75;
/** @type {Map<string, number>} job -> time of its last event, the newest last. See `changedJobs`. */
const changed = new Map();
/** @type {EventSource | null} */
let source = null;
let isWanted = false;
/** @type {string | null} number of the last event */
let last = null;
let leftAt = 0;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let again;

/** @param {"connecting" | "live" | "away"} state */
function become(state) {
  if (connection.state !== state) {
    connection.state = state;
    connection.since = Date.now();
    live.dispatchEvent(new Event("connection"));
  }
}

/** Jobs that changed so shortly ago that a response about all jobs may not contain the change, the newest last. */
export function changedJobs() {
  for (const [job, at] of changed) if (Date.now() - at > CHANGED_MS || changed.size > CHANGED_MAX) changed.delete(job);
  return [...changed.keys()];
}

/** Follow the events while the page is visible. */
export function follow() {
  isWanted = true;
  if (!document.hidden) connect();
}

export function stop() {
  isWanted = false;
  last = null;
  disconnect();
}

function connect() {
  disconnect();
  if (Date.now() - leftAt > CHANGED_MS) last = null;
  source = new EventSource(last === null ? "/v1/events" : `/v1/events?after=${last}`);
  source.onopen = () => {
    const wasAway = connection.state === "away";
    become("live");
    if (wasAway) refreshAll();
  };
  source.onmessage = (message) => {
    const event = JSON.parse(message.data);
    last = message.lastEventId;
    if (event.job !== null) {
      changed.delete(event.job);
      changed.set(event.job, Date.now());
    }
    refreshWhere((poll) => {
      const path = poll.path() ?? "";
      return event.job === null || (path.includes(event.job) && !path.startsWith("/v1/histories"));
    });
    live.dispatchEvent(new CustomEvent("happened", { detail: event }));
  };
  source.onerror = () => {
    become("away");
    if (source?.readyState === EventSource.CLOSED) {
      clearTimeout(again);
      again = setTimeout(connect, 3_000);
    }
  };
}

function disconnect() {
  clearTimeout(again);
  if (source !== null) leftAt = Date.now();
  source?.close();
  source = null;
}

document.addEventListener("visibilitychange", () => {
  if (!isWanted) return;
  if (document.hidden) disconnect();
  else if (source === null) connect();
});
