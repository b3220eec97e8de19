/** Small pieces that views share: states, panels, numbers, commands. They are functions, not elements. */
import { html, nothing } from "lit";
import { ago, clock, duration, readable, time } from "../core/format.js";
import { route } from "../core/route.js";
import { session } from "../core/session.js";

/** @param {string} tone @param {string} text */
export const badge = (tone, text) => html`<span class="badge ${tone}"><i aria-hidden="true"></i>${text}</span>`;

/**
 * Part of a view with its own errors. It shows its last data, their age, and the reason if an update failed.
 *
 * @param {unknown} heading
 * @param {import("../core/poll.js").Poll | import("../core/poll.js").Poll[]} polls
 * @param {() => unknown} content Called if there are data.
 * @param {{aside?: unknown, kind?: string, id?: string}} [more]
 */
export function panel(heading, polls, content, more = {}) {
  const all = Array.isArray(polls) ? polls : [polls];
  const failed = all.find((one) => one.error !== null);
  const missing = all.find((one) => one.data === null);
  const stale = all.find((one) => one.isStale);
  return html`<section class="panel ${more.kind ?? ""}" id=${more.id ?? nothing}>
    <header>
      <h2>${heading}</h2>
      ${stale
        ? html`<span class="stale" role="status">${duration(Date.now() - (stale.at ?? 0))} old: ${stale.error?.message}</span>`
        : nothing}
      ${more.aside ? html`<div class="aside">${more.aside}</div>` : nothing}
    </header>
    ${missing === undefined ? content() : failed ? failure(failed) : skeleton()}
  </section>`;
}

/** @param {import("../core/poll.js").Poll} poll */
const failure = (poll) => html`<div class="failure" role="status">
  <p>${poll.error?.message}</p>
  <button class="quiet" @click=${() => poll.soon()}>Try again</button>
</div>`;

const skeleton = () => html`<div class="skeleton" role="status" aria-label="Loading"><i></i><i></i><i></i></div>`;

/** @param {unknown} text @param {unknown} [more] */
export const empty = (text, more = nothing) => html`<div class="empty"><p>${text}</p>${more}</div>`;

/** @param {unknown} label @param {unknown} value @param {unknown} [note] @param {string} [tone] */
export const figure = (label, value, note = nothing, tone = "") =>
  html`<div class="figure ${tone}"><dt>${label}</dt><dd>${value}${note === nothing || note === "" ? nothing : html`<small>${note}</small>`}</dd></div>`;

/** Button to begin with new records, for users who can apply documents. */
export const addButton = () => (session.refusal("POST /v1/documents") ? nothing : html`<a class="button" href=${route.href(["begin"])}>Add records…</a>`);

/** The way back from one of the views of Operation. */
export const operationCrumbs = () => html`<p class="crumbs"><a href=${route.href(["operation"])}>Operation</a></p>`;

/** @param {string} text a command line or a REST call */
export const command = (text) => html`<div class="command">
  <code tabindex="0">${text}</code>
  <button class="quiet" title="Copy" aria-label="Copy: ${text}" @click=${(/** @type {Event} */ event) => copy(text, event)}>Copy</button>
</div>`;

/** @param {string} text @param {Event} event */
function copy(text, event) {
  const button = /** @type {HTMLButtonElement} */ (event.currentTarget);
  void navigator.clipboard?.writeText(text).then(() => {
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1_500);
  });
}

const COMMAND = /(strandline (?:job|batch|stream|lookup|dead-letters) [a-z]+ [\w.-]+(?: --[a-z-]+(?: (?:earliest|latest|start))?)*)/;

const INSTANT = /(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)/;

/** Views of the page that show what a group of commands shows or does, each for one job or stream. */
const VIEWS = /** @type {Record<string, string>} */ ({ job: "jobs", stream: "streams", "dead-letters": "dead-letters" });

/**
 * A sentence of the service: command lines become code, and times those of the zone of the page.
 * A command is a link to the view that does the same, unless this view is shown.
 * @param {string} text
 */
export function sentence(text) {
  return text.split(COMMAND).map((part, at) => (at % 2 ? linked(part) : part.split(INSTANT).map((piece, place) => (place % 2 ? instant(piece) : readable(piece)))));
}

/** @param {string} text a command line */
function linked(text) {
  const [, group, , name] = text.split(" ");
  const [view, shown, ...more] = route.now.parts;
  const isHere = view === VIEWS[group] && shown === name && more.length === 0;
  return VIEWS[group] && !isHere ? html`<a href=${route.href([VIEWS[group], name])}><code>${text}</code></a>` : html`<code>${text}</code>`;
}

/** A time of today without its date. @param {string} text */
function instant(text) {
  const at = Date.parse(text);
  return html`<time datetime=${text} title=${time(at)}>${clock(at)}</time>`;
}

/** A text in which backquotes enclose code. @param {string} text */
export const withCode = (text) => text.split("`").map((part, at) => (at % 2 ? html`<code>${part}</code>` : part));

/** @param {number | null | undefined} ms */
export const since = (ms) => html`<time datetime=${ms == null ? nothing : new Date(ms).toISOString()}>${ago(ms)}</time>`;

/** @param {string} path the `d` of an icon of 16 by 16 */
export const icon = (path) => html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true"><path d=${path}></path></svg>`;
