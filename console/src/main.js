/** The page: its frame, sign-in, and the view of the address. */
import { html, nothing } from "lit";
import { keyed } from "lit/directives/keyed.js";
import { connection, live } from "./core/live.js";
import { duration, spaced } from "./core/format.js";
import { OPERATION, isOfOperation } from "./core/operation.js";
import { RANGES, route } from "./core/route.js";
import { session } from "./core/session.js";
import "./elements/action.js";
import { Element, Follow, Tick } from "./elements/base.js";
import "./elements/leave.js";
import "./elements/palette.js";
import "./elements/sign-in.js";
import "./views/audits.js";
import "./views/begin.js";
import "./views/devices.js";
import "./views/doctor.js";
import "./views/edit.js";
import "./views/home.js";
import "./views/job.js";
import "./views/letters.js";
import "./views/life.js";
import "./views/lookups.js";
import "./views/notices.js";
import "./views/operation.js";
import "./views/repair.js";
import "./views/results.js";
import "./views/settings.js";
import "./views/streams.js";
import "./views/tokens.js";
import "./views/windows.js";

const VIEWS = /** @type {[string, string][]} */ ([["", "Home"], ["results", "Results"], ["dead-letters", "Dead letters"], ["streams", "Streams"], ["records", "Records"], ["operation", "Operation"]]);
const THEME = "strandline-theme";

class App extends Element {
  static properties = { problem: { state: true } };

  constructor() {
    super();
    this.problem = "";
    this.follow = new Follow(this, [route, "change"], [route, "shown"], [session, "change"], [live, "connection"]);
    this.tick = new Tick(this, 1_000);
    addEventListener("keydown", (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        this.#search();
      }
    });
    route.addEventListener("change", () => {
      scrollTo(0, 0);
      this.querySelector("details.who")?.removeAttribute("open");
      document.title = this.#name;
    });
    void this.#load();
  }

  async #load() {
    try {
      await session.load();
      this.problem = "";
      if (isRenewalWindow() && session.now?.provider) await session.signInAtProvider(true);
    } catch (error) {
      this.problem = error instanceof Error ? error.message : String(error);
      if (session.now === null) setTimeout(() => void this.#load(), 3_000);
    }
  }

  get #name() {
    const [view, name] = route.now.parts;
    const own = name && isOfOperation(view ?? "") ? "" : { ...Object.fromEntries(OPERATION.map((one) => [one.view, one.name])), begin: "Begin with a sample", edit: route.now.parts[2] ? `Edit ${route.now.parts[2]}` : "New documents" }[view ?? ""];
    if (own) return `${own} · Strandline`;
    const title = name ?? VIEWS.find(([path]) => path === (view ?? ""))?.[1] ?? "Strandline";
    return title === "Home" ? "Strandline" : `${title} · Strandline`;
  }

  #search() {
    if (session.isSignedIn && !session.hasEnded) void /** @type {any} */ (this.querySelector("sl-palette")).open();
  }

  render() {
    if (session.now === null) return html`<main class="alone"><p class="muted" role="status">${this.problem || "Loading…"}</p></main>`;
    if (session.hasRenewedOther) return html`<main class="alone"><p role="status">You are signed in again. Close this window.</p></main>`;
    if (!session.isSignedIn || isRenewalWindow()) return this.#signIn();
    const current = route.now.parts[0] ?? "";
    return html`
      <a class="skip" href="#main" @click=${(/** @type {Event} */ event) => { event.preventDefault(); this.querySelector("main")?.focus(); }}>Skip to the content</a>
      <header class="top">
        <a class="brand" href=${route.href([])} aria-label="Strandline, home">${mark()}<span>Strandline</span></a>
        <nav aria-label="Views">
          ${VIEWS.map(([path, name]) => html`<a href=${addressOf(path)} aria-current=${current === path || (path === "" && ["jobs", "windows", "begin", "edit"].includes(current)) || (path === "operation" && isOfOperation(current)) ? "page" : nothing}>${name}</a>`)}
        </nav>
        <div class="tools">
          ${this.#connection()}
          <button class="search" @click=${() => this.#search()} aria-keyshortcuts="Control+K"><span>Search</span><kbd>Ctrl K</kbd></button>
          <label class="pick"><span class="visually-hidden">Time range</span>
            <select @change=${(/** @type {any} */ event) => route.set({ range: event.target.value })}>
              ${Object.keys(RANGES).map((one) => html`<option value=${one} .selected=${route.range === one}>Last ${spaced(one)}</option>`)}
            </select></label>
          <label class="pick"><span class="visually-hidden">Time zone</span>
            <select @change=${(/** @type {any} */ event) => route.set({ zone: event.target.value === "utc" ? null : "local" })}>
              <option value="utc" .selected=${route.isUtc}>UTC</option><option value="local" .selected=${!route.isUtc}>Local</option>
            </select></label>
          <button class="quiet icon" @click=${toggleTheme} aria-label="Dark or light theme" title="Dark or light theme">
            <svg viewBox="0 0 16 16" aria-hidden="true"><path d="M8 1.5a6.5 6.5 0 1 0 0 13zM8 1.5a6.5 6.5 0 0 1 0 13" fill="none" stroke="currentColor" stroke-width="1.4"></path><path d="M8 2a6 6 0 0 0 0 12z" fill="currentColor"></path></svg>
          </button>
          ${session.now.requires_token
            ? html`<details class="who"><summary>${session.now.name}</summary><div><p>Role: ${session.now.role ?? "none"}</p><a href=${route.href(["tokens"])}>Tokens</a>${this.problem ? html`<p class="problem" role="alert">${this.problem}</p>` : nothing}<button class="quiet" @click=${() => void this.#signOut()}>Sign out</button></div></details>`
            : nothing}
        </div>
      </header>
      <sl-sign-in-again></sl-sign-in-again>
      ${keyed(session.users, html`<main id="main" tabindex="-1">${this.#view()}</main>`)}
      <sl-action></sl-action>
      <sl-leave></sl-leave>
      <sl-palette></sl-palette>`;
  }

  #connection() {
    if (connection.state === "live") return html`<span class="link ok" title="Changes appear as they happen"><i></i>Live</span>`;
    if (connection.state === "connecting") return html`<span class="link"><i></i>Connecting</span>`;
    return html`<span class="link bad" role="status"><i></i>No answer${Date.now() - connection.since < 1_000 ? "" : ` for ${duration(Math.floor((Date.now() - connection.since) / 1000) * 1000)}`}</span>`;
  }

  #view() {
    const [view, name, more] = route.now.parts;
    if (view === undefined) return html`<sl-home></sl-home>`;
    if (view === "jobs" && name) return keyed(name, html`<sl-job .name=${name}></sl-job>`);
    if (view === "windows" && name) return keyed(name, html`<sl-windows .name=${name}></sl-windows>`);
    if (view === "results") return keyed(name, html`<sl-results .alias=${name ?? ""}></sl-results>`);
    if (view === "dead-letters" && more && route.now.parts[3] === "repair") return keyed(`${name}/${more}`, html`<sl-repair .job=${name} .number=${more}></sl-repair>`);
    if (view === "dead-letters") return keyed(name, html`<sl-letters .job=${name ?? ""} .number=${more ?? ""}></sl-letters>`);
    if (view === "streams" && name && more === "devices") return keyed(name, html`<sl-devices .name=${name}></sl-devices>`);
    if (view === "streams") return keyed(name, html`<sl-streams .name=${name ?? ""}></sl-streams>`);
    if (view === "records") return html`<sl-records .parts=${route.now.parts.slice(1)}></sl-records>`;
    if (view === "begin") return html`<sl-begin></sl-begin>`;
    if (view === "edit") return keyed(`${name}/${more}`, html`<sl-edit .kind=${name ?? ""} .name=${more ?? ""}></sl-edit>`);
    if (view === "operation") return html`<sl-operation></sl-operation>`;
    if (view === "audits") return keyed(name, html`<sl-audits .job=${name ?? ""}></sl-audits>`);
    if (view === "lookups") return keyed(name, html`<sl-lookups .name=${name ?? ""}></sl-lookups>`);
    if (view === "notices") return keyed(name, html`<sl-notices .name=${name ?? ""}></sl-notices>`);
    if (view === "settings") return html`<sl-settings></sl-settings>`;
    if (view === "doctor") return html`<sl-doctor></sl-doctor>`;
    if (view === "tokens") return html`<sl-tokens></sl-tokens>`;
    if (view === "activity") return html`<sl-activity></sl-activity>`;
    return html`<div class="view"><div class="title"><h1>No such view</h1></div><p><a href=${route.href([])}>Home</a></p></div>`;
  }

  #signIn() {
    return html`<main class="alone">
      <div class="sign-in">
        <div class="brand">${mark()}<span>Strandline</span></div>
        <h1>Sign in</h1>
        <sl-sign-in .problem=${this.problem}></sl-sign-in>
      </div>
    </main>`;
  }

  async #signOut() {
    this.problem = "";
    try {
      await session.signOut();
    } catch (error) {
      this.problem = `${session.isSignedIn ? "Signing out failed" : "You are signed out here, but may still be signed in at the provider"}: ${error instanceof Error ? error.message : error}`;
    }
  }
}

/** The address of a view of the menu. Views of a job stay at the job that is open. @param {string} path */
function addressOf(path) {
  const job = route.job;
  if (path === "dead-letters" && job) return route.href([path, job]);
  return route.href(path ? [path] : [], path === "results" ? { job } : {});
}

const mark = () => html`<svg viewBox="0 0 24 24" aria-hidden="true"><path d="M2 7c5 0 5 5 10 5s5-5 10-5M2 12c5 0 5 5 10 5s5-5 10-5"></path></svg>`;

/** True in a window that only renews the sign-in of another tab. */
const isRenewalWindow = () => new URLSearchParams(location.search).has("renewal");

function toggleTheme() {
  const isDark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  const next = isDark ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem(THEME, next);
  document.dispatchEvent(new Event("theme"));
}
const kept = localStorage.getItem(THEME);
if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("theme")));

customElements.define("sl-app", App);
