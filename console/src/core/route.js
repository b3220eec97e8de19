/**
 * The address of a view: `#/jobs/power?range=24h&zone=utc`. It contains the time range and the time zone of the whole page.
 * The part after `#` is never sent to the server, so one path serves every view.
 */

export const RANGES = { "1h": 3_600_000, "6h": 21_600_000, "24h": 86_400_000, "7d": 604_800_000 };
/** @typedef {{parts: string[], query: URLSearchParams}} Route */

/** @returns {Route} */
function read() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decodeURIComponent), query: new URLSearchParams(query ?? "") };
}

export const route = new (class extends EventTarget {
  now = read();
  /** Return true if another view would lose what the user has typed. @type {((next: Route) => boolean) | null} */
  guard = null;
  /** Address that the user wants to go to, and has not confirmed yet; null if there is none. @type {string | null} */
  held = null;
  #hash = location.hash || "#/";

  /** Stay at this view. */
  stay() {
    this.held = null;
    this.dispatchEvent(new Event("held"));
  }

  /** Go to the address that was held. */
  leave() {
    const wanted = this.held;
    this.guard = null;
    this.stay();
    if (wanted !== null) location.hash = wanted.slice(1);
  }

  constructor() {
    super();
    addEventListener("hashchange", () => {
      const wanted = location.hash;
      if (this.guard?.(read())) {
        // The address of the view that asks is shown until the user has decided.
        history.pushState(null, "", this.#hash);
        this.held = wanted;
        this.dispatchEvent(new Event("held"));
        return;
      }
      this.#hash = wanted || "#/";
      this.now = read();
      this.shownJob = null;
      this.dispatchEvent(new Event("change"));
    });
  }

  /** @returns {keyof typeof RANGES} */
  get range() {
    const wanted = this.now.query.get("range") ?? "24h";
    return wanted in RANGES ? /** @type {keyof typeof RANGES} */ (wanted) : "24h";
  }

  /** Job that the view shows, if its address doesn't contain it, such as that of an alias. @type {string | null} */
  shownJob = null;

  /** The job that is open; null if none is. */
  get job() {
    const [view, name, more] = this.now.parts;
    if (["jobs", "windows", "dead-letters"].includes(view) && name) return name;
    if (view === "edit" && name === "jobs") return more ?? null;
    return this.shownJob ?? this.now.query.get("job");
  }

  /** @param {string} job */
  show(job) {
    if (this.shownJob === job) return;
    this.shownJob = job;
    this.dispatchEvent(new Event("shown"));
  }

  get rangeMs() {
    return RANGES[this.range];
  }

  get isUtc() {
    return this.now.query.get("zone") !== "local";
  }

  /** @param {Record<string, string | null>} changes */
  set(changes) {
    location.hash = this.href(this.now.parts, { ...Object.fromEntries(this.now.query), ...changes }).slice(1);
  }
  /**
   * The address of a view, with the range and the zone of the page.
   * @param {string[]} parts
   * @param {Record<string, string | null>} [query]
   */
  href(parts, query = {}) {
    const all = { range: this.now.query.get("range"), zone: this.now.query.get("zone"), ...query };
    const kept = Object.entries(all).filter(([, value]) => value !== null && value !== "");
    const text = new URLSearchParams(/** @type {[string, string][]} */ (kept)).toString();
    return `#/${parts.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
  }
})();
