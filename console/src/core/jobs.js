/** How a job is shown: its tone, its rank among the others, and the actions on it. */

/** @typedef {"bad" | "warn" | "wait" | "ok" | "rest"} Tone */

/** @type {Record<string, Tone>} cause of an explanation -> tone */
const TONE_OF_CAUSE = {
  failed: "bad",
  missing: "bad",
  log_away: "bad",
  writer: "bad",
  refused: "bad",
  rejected: "bad",
  late: "warn",
  filtered: "warn",
  held_back: "warn",
  slow_slice: "warn",
  stalled: "warn",
  behind: "warn",
  duplicates: "warn",
  no_input: "wait",
  first_slice: "wait",
  starting: "wait",
  window_open: "wait",
  results: "ok",
  completed: "rest",
  drained: "rest",
  stopped: "rest",
  not_started: "rest",
};
const RANK = { bad: 0, warn: 1, wait: 2, ok: 3, rest: 4 };

/**
 * @param {import("./api.js").Json} job
 * @param {import("./api.js").Json | undefined} explanation
 * @returns {Tone}
 */
export function toneOf(job, explanation) {
  if (job.state === "failed") return "bad";
  // A condition that drops records is no problem of a job that has had results, such as a job that emits alarms.
  const cause = explanation?.cause === "filtered" && Object.values(job.counts.results).some(Boolean) ? "results" : explanation?.cause;
  const tone = TONE_OF_CAUSE[cause] ?? (job.state === "running" ? "ok" : "wait");
  if (tone === "ok" || tone === "wait") {
    if (job.warnings.length || job.rewind?.warning || job.notes.length) return "warn";
  }
  return tone;
}

/** @param {Tone} tone */
export const rankOf = (tone) => RANK[tone];

/**
 * @typedef {object} Action
 * @property {string} rel
 * @property {string} label
 * @property {string} does
 * @property {string} operation Name of the operation, as in `GET /v1/session`.
 * @property {(name: string) => string} path
 * @property {(name: string) => string} command
 * @property {boolean} [isDangerous]
 * @property {(job: import("./api.js").Json) => string} blocked Reason why it would change nothing now; empty otherwise.
 */

/** @param {string} rel */
const linked = (rel) => (/** @type {import("./api.js").Json} */ job) =>
  job.links.some((/** @type {any} */ link) => link.rel === rel) ? "" : `changes nothing while the job is ${job.state}`;
/** @param {import("./api.js").Json} job */
const resting = (job) =>
  ["created", "stopped", "drained", "failed", "completed"].includes(job.state) ? "" : `stop the job first; it is ${job.state}`;

/** @type {Action[]} */
export const ACTIONS = [
  {
    rel: "start",
    label: "Start",
    does: "Starts the job. It rewinds to its last emission first, and then continues with new records. No result is lost or repeated.",
    operation: "POST /v1/jobs/{name}/start",
    path: (name) => `/v1/jobs/${name}/start`,
    command: (name) => `strandline job start ${name}`,
    blocked: linked("start"),
  },
  {
    rel: "stop",
    label: "Stop",
    does: "Ends the job after its current slice. Open windows stay open, and the next start continues them.",
    operation: "POST /v1/jobs/{name}/stop",
    path: (name) => `/v1/jobs/${name}/stop`,
    command: (name) => `strandline job stop ${name}`,
    blocked: linked("stop"),
  },
  {
    rel: "drain",
    label: "Drain",
    does: "Reads the log to its end, closes every open window, and ends the job. Records of these windows that arrive later are late.",
    operation: "POST /v1/jobs/{name}/drain",
    path: (name) => `/v1/jobs/${name}/drain`,
    command: (name) => `strandline job stop ${name} --drain`,
    isDangerous: true,
    blocked: linked("drain"),
  },
  {
    rel: "restart",
    label: "Restart",
    does: "Ends the current run after its slice and starts a new one. The new run rewinds, so no result is lost or repeated.",
    operation: "POST /v1/jobs/{name}/restart",
    path: (name) => `/v1/jobs/${name}/restart`,
    command: (name) => `strandline job restart ${name}`,
    blocked: linked("restart"),
  },
  {
    rel: "audit",
    label: "Audit",
    does: "Recomputes the results from the log in the background and compares them with the index. It changes no result.",
    operation: "POST /v1/jobs/{name}/audit",
    path: (name) => `/v1/jobs/${name}/audit`,
    command: (name) => `strandline job audit ${name}`,
    blocked: (job) => (job.slice === null ? "the job has no committed slice yet" : ""),
  },
  {
    rel: "reset",
    label: "Reset to the earliest record",
    does: "Lets the job begin again at the earliest record of its streams, under a new generation of results. Its aliases no longer show the earlier results.",
    operation: "POST /v1/jobs/{name}/reset",
    path: (name) => `/v1/jobs/${name}/reset?to=earliest`,
    command: (name) => `strandline job reset ${name} --to earliest`,
    isDangerous: true,
    blocked: resting,
  },
  {
    rel: "delete",
    label: "Delete",
    does: "Deletes the job. Its results and its dead letters stay, and can be deleted later.",
    operation: "DELETE /v1/jobs/{name}",
    path: (name) => `/v1/jobs/${name}`,
    command: (name) => `strandline job delete ${name}`,
    isDangerous: true,
    blocked: resting,
  },
];

/** The number of results that a view shows first: a measured one, not a count. @param {{name: string, type: string}[]} numbers */
export const firstNumber = (numbers) => (numbers.find((one) => one.type !== "long") ?? numbers[0])?.name;
