/** The events of the service as they happen. They tell the views what to fetch again, and whether the service answers. */
import { refreshAll, refreshWhere } from "./poll.js";

export const live = new EventTarget();
/** @type {{state: "connecting" | "live" | "away", since: number}} */
export const connection = { state: "connecting", since: Date.now() };
/** @type {EventSource | null} */
let source = null;
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

export function follow() {
  stop();
  source = new EventSource("/v1/events");
  source.onopen = () => {
    const wasAway = connection.state === "away";
    become("live");
    if (wasAway) refreshAll();
  };
  source.onmessage = (message) => {
    const event = JSON.parse(message.data);
    refreshWhere((poll) => {
      const path = poll.path() ?? "";
      return event.job === null || path === "/v1/jobs" || path === "/v1/explanations" || path.includes(event.job);
    });
    live.dispatchEvent(new CustomEvent("happened", { detail: event }));
  };
  source.onerror = () => {
    become("away");
    if (source?.readyState === EventSource.CLOSED) {
      clearTimeout(again);
      again = setTimeout(follow, 3_000);
    }
  };
}

export function stop() {
  clearTimeout(again);
  source?.close();
  source = null;
}
