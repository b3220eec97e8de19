/** The views with which operators run the installation. */
import { whole } from "./format.js";

/** @typedef {import("./api.js").Json} Json */

/**
 * A view of operation. The menu, the search, and the page of Operation list all of them.
 *
 * - `words`: other words that find it.
 * - `path`: resource of its state; null if it has none.
 * - `state`: tone and text of the state.
 */
/** @typedef {{view: string, name: string, words: string, about: string, path: string | null, operation: string, state?: (data: Json) => [string, string]}} OperationView */

/** @type {OperationView[]} */
export const OPERATION = [
  { view: "activity", name: "Activity", words: "events log history", about: "Events of all jobs, streams, and users.", path: null, operation: "GET /v1/events" },
  {
    view: "audits",
    name: "Audits and backfills",
    words: "audit backfill compare differences recompute",
    about: "Comparisons of results with the log, and past windows that are recomputed.",
    path: "/v1/audits",
    operation: "GET /v1/audits",
    state: (data) => {
      const all = data.audits;
      const running = all.find((/** @type {Json} */ one) => one.state === "running");
      if (running) return ["wait", `auditing ${running.job}`];
      const differing = all.filter((/** @type {Json} */ one) => one.outcome === "differences").length;
      return differing ? ["bad", `differences in ${counted(differing, "job")}`] : ["rest", all.length ? "no difference" : "no audit yet"];
    },
  },
  {
    view: "lookups",
    name: "Lookups",
    words: "lookup tables rows enrich",
    about: "Tables that enrich records: sources, versions, and rows.",
    path: "/v1/lookups",
    operation: "GET /v1/lookups",
    state: (data) => {
      const bad = data.lookups.filter((/** @type {Json} */ one) => one.source && one.source.state !== "current").length;
      if (bad) return ["warn", `${counted(bad, "source")} with a problem`];
      return data.lookups.length ? ["ok", counted(data.lookups.length, "lookup")] : ["rest", "no lookup"];
    },
  },
  {
    view: "notices",
    name: "Notices",
    words: "notice alarms messages mute channels",
    about: "Conditions that are watched, open problems, and messages.",
    path: "/v1/notices",
    operation: "GET /v1/notices",
    state: (data) => {
      const failing = data.notices.filter((/** @type {Json} */ one) => one.failing).length;
      const open = data.notices.reduce((/** @type {number} */ all, /** @type {Json} */ one) => all + one.open_problems, 0);
      if (failing) return ["bad", `messages of ${counted(failing, "notice")} fail`];
      if (open) return ["warn", counted(open, "open problem")];
      return data.notices.length ? ["ok", "no open problem"] : ["rest", "no notice"];
    },
  },
  {
    view: "doctor",
    name: "Doctor",
    words: "examine servers health",
    about: "Findings about servers, rights, versions, and the machine, each with its remedy.",
    path: "/v1/doctor",
    operation: "GET /v1/doctor",
    state: (data) => {
      if (data.is_running) return ["wait", "examining"];
      if (data.ended_ms === null) return ["rest", "not examined"];
      const wrong = data.findings.filter((/** @type {Json} */ one) => one.state === "wrong").length;
      const warnings = data.findings.filter((/** @type {Json} */ one) => one.state === "warning").length;
      return wrong ? ["bad", `${wrong} wrong`] : warnings ? ["warn", counted(warnings, "warning")] : ["ok", "all is well"];
    },
  },
  { view: "settings", name: "Settings", words: "configuration environment variables", about: "Settings of the control service: value, source, and meaning.", path: null, operation: "GET /v1/settings" },
  { view: "tokens", name: "Tokens", words: "access rights users", about: "Tokens with role, streams, expiry, and last use.", path: null, operation: "GET /v1/tokens" },
];

/** True if one of these views is shown, or their list. @param {string} view */
export const isOfOperation = (view) => view === "operation" || OPERATION.some((one) => one.view === view);

/** @param {number} count @param {string} noun */
export const counted = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
