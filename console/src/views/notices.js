/** Notices: conditions, open problems, last messages and failures of channels; test, mute, and delete them. */
import { html, nothing } from "lit";
import { quoted } from "../core/api.js";
import { duration, time, whole } from "../core/format.js";
import { counted } from "../core/operation.js";
import { Poll } from "../core/poll.js";
import { iso } from "../core/ranges.js";
import { route } from "../core/route.js";
import { session } from "../core/session.js";
import { ask } from "../elements/action.js";
import { Element, Follow, Tick } from "../elements/base.js";
import { badge, command, empty, figure, operationCrumbs, panel, sentence, since } from "../elements/parts.js";

const TEST = "POST /v1/notices/{name}/test";
const MUTE = "POST /v1/notices/{name}/mute";
const DELETE = "DELETE /v1/notices/{name}";
const HOUR_MS = 3_600_000;
/** Hours for which a notice can be muted. */
const MUTES = [1, 4, 24, 168];
const PROBLEMS_SHOWN = 30;

/** @typedef {import("../core/api.js").Json} Json */

export class NoticesView extends Element {
  static properties = { name: { type: String } };

  constructor() {
    super();
    /** Name of the notice; empty for all. */ this.name = "";
    this.notices = new Poll(this, () => (this.name ? null : "/v1/notices"), 10_000);
    this.notice = new Poll(this, () => (this.name ? `/v1/notices/${quoted(this.name)}` : null), 5_000);
    this.tick = new Tick(this, 5_000);
    this.follow = new Follow(this, [route, "change"], [session, "change"]);
  }

  render() {
    return this.name ? this.#one() : this.#all();
  }

  #all() {
    return html`<div class="view">
      <div class="title">${operationCrumbs()}<h1>Notices</h1><p class="about">A notice watches conditions, and sends messages to its channels when something is wrong.</p></div>
      ${panel("All notices", this.notices, () => {
        const rows = this.notices.data.notices;
        if (!rows.length) return empty("There is no notice. A notice is a document, which you apply as a pipeline.", command("strandline apply night.yaml"));
        return html`<div class="scroll" tabindex="0"><table>
          <thead><tr><th>Notice</th><th>State</th><th class="number">Open problems</th><th class="number">Unsent</th><th class="wide">Conditions</th><th class="wide">Channels</th></tr></thead>
          <tbody>${rows.map((/** @type {Json} */ one) => html`<tr>
            <td><a href=${route.href(["notices", one.name])}>${one.name}</a></td><td>${stateOf(one)}</td>
            <td class="number">${whole(one.open_problems)}</td><td class="number">${whole(one.unsent_messages)}</td>
            <td class="wide">${one.conditions.join(", ")}</td><td class="wide">${one.channels.join(", ")}</td>
          </tr>`)}</tbody></table></div>`;
      })}
    </div>`;
  }

  #one() {
    const notice = this.notice.data;
    return html`<div class="view">
      <div class="title">
        <p class="crumbs"><a href=${route.href(["operation"])}>Operation</a> <a href=${route.href(["notices"])}>Notices</a></p>
        <h1>${this.name} ${notice ? stateOf(notice) : nothing}</h1>
        ${notice ? html`<p class="about">Version ${notice.version}, applied ${time(notice.applied_ms)}.</p>` : nothing}
      </div>
      ${notice ? this.#actions(notice) : nothing}
      ${panel("Now", this.notice, () => summary(this.notice.data), { kind: notice && (notice.failing || notice.open_problems) ? "now bad" : "now" })}
      ${panel("Problems", this.notice, () => problems(this.notice.data.problems), { aside: html`<span class="muted">the newest first</span>` })}
      ${panel("Messages", this.notice, () => messages(this.notice.data.messages), { aside: html`<span class="muted">the newest first</span>` })}
      ${panel("Document", this.notice, () => html`<pre class="log" tabindex="0">${JSON.stringify(this.notice.data.document, null, 2)}</pre>${command(`strandline notice show ${this.name}`)}${command(`GET /v1/notices/${quoted(this.name)}`)}`)}
    </div>`;
  }

  /** @param {Json} notice */
  #actions(notice) {
    const refusal = session.refusal(TEST) || session.refusal(MUTE) || session.refusal(DELETE);
    if (refusal) return html`<div class="actions"><p class="muted">Test, Mute, Delete: ${refusal}.</p></div>`;
    return html`<div class="actions">
      <button class="quiet" @click=${() => test(notice)}>Test…</button>
      ${notice.muted_until_ms === null ? nothing : html`<button class="quiet" @click=${() => mute(notice.name, null)}>End muting…</button>`}
      <form class="actions" @submit=${(/** @type {SubmitEvent} */ event) => {
        event.preventDefault();
        mute(notice.name, Number(new FormData(/** @type {HTMLFormElement} */ (event.target)).get("hours")));
      }}>
        <label class="pick">Mute for <select name="hours">${MUTES.map((one) => html`<option value=${one}>${duration(one * HOUR_MS)}</option>`)}</select></label>
        <button class="quiet">Mute…</button>
      </form>
      <button class="danger-quiet" @click=${() => remove(notice.name)}>Delete…</button>
    </div>`;
  }
}
customElements.define("sl-notices", NoticesView);

/** @param {Json} notice */
function stateOf(notice) {
  if (notice.failing) return badge("bad", "messages fail");
  if (notice.muted_until_ms !== null) return badge("wait", `muted until ${time(notice.muted_until_ms)}`);
  return notice.open_problems ? badge("warn", counted(notice.open_problems, "open problem")) : badge("ok", "no open problem");
}

/** @param {Json} notice */
function summary(notice) {
  return html`${notice.failing ? html`<p class="lead problem">The last message isn't confirmed: ${notice.failing}</p>` : nothing}
    <dl class="facts">
      <dt>Conditions</dt><dd>${notice.conditions.join(", ")}</dd>
      <dt>Channels</dt><dd>${notice.channels.join(", ")}</dd>
      ${notice.muted_until_ms === null ? nothing : html`<dt>Muted</dt><dd>until ${time(notice.muted_until_ms)}${notice.muted_by ? ` by ${notice.muted_by}` : ""}</dd>`}
    </dl>
    <dl class="figures">${figure("Open problems", whole(notice.open_problems), "", notice.open_problems ? "warn" : "")}${figure("Unsent messages", whole(notice.unsent_messages), "", notice.unsent_messages ? "warn" : "")}</dl>`;
}

/** @param {Json[]} all the oldest first */
function problems(all) {
  if (!all.length) return empty("The notice has found no problem.");
  // Open problems come first: an old one must not disappear behind ended ones.
  const sorted = [...all].sort((a, b) => Number(a.ended_ms !== null) - Number(b.ended_ms !== null) || b.opened_ms - a.opened_ms);
  return html`<ol class="lives">${sorted.slice(0, PROBLEMS_SHOWN).map((one) => html`<li>
      <header><b>${one.title}</b>${one.job ? html`<a href=${route.href(["jobs", one.job])}>${one.subject}</a>` : html`<span>${one.subject}</span>`}${badge(one.ended_ms === null ? "bad" : "rest", one.ended_ms === null ? `open for ${duration(Math.max(0, Date.now() - one.since_ms))}` : one.end_reason ? "no longer checked" : "over")}</header>
      <p>${sentence(one.reason)}</p>
      ${one.affected ? html`<p class="muted">Affected: ${one.affected}</p>` : nothing}
      ${one.ended_ms === null ? html`<p class="next">${sentence(one.action)}</p>` : nothing}
      <p class="muted">${one.condition}, since ${time(one.since_ms)}${one.ended_ms === null ? "" : ` to ${time(one.ended_ms)}`}${one.reported_ms === null ? ", not reported" : `, reported ${time(one.reported_ms)}`}${one.end_reason ? `: ${one.end_reason}` : ""}</p>
    </li>`)}</ol>
    ${sorted.length > PROBLEMS_SHOWN ? html`<p class="muted">${whole(PROBLEMS_SHOWN)} of ${whole(sorted.length)} are shown.</p>` : nothing}`;
}

/** @param {Json[]} all the oldest first */
function messages(all) {
  if (!all.length) return empty("The notice has sent no message.");
  return html`<div class="scroll" tabindex="0"><table class="messages">
    <thead><tr><th class="number">Number</th><th>Kind</th><th>Channel</th><th>State</th><th class="number wide">Attempts</th><th class="wide">Made</th></tr></thead>
    <tbody>${[...all].reverse().map((one) => html`<tr><td class="number">${one.number}</td><td>${one.kind}</td><td>${one.channel}</td>
      <td>${messageState(one)}${one.error && one.sent_ms === null ? html`<p class="problem">${one.error}</p>` : nothing}</td>
      <td class="number wide">${whole(one.attempts)}</td><td class="wide">${since(one.made_ms)}</td></tr>`)}</tbody></table></div>`;
}

/** @param {Json} message */
function messageState(message) {
  if (message.sent_ms !== null) return badge("ok", `confirmed ${time(message.sent_ms)}`);
  if (message.merged_into !== null) return badge("rest", `joined into ${message.merged_into}`);
  if (message.given_up_ms !== null) return badge("bad", "given up");
  return message.error ? badge("bad", `next attempt ${time(message.due_ms, "time")}`) : badge("wait", "not sent yet");
}

/** @param {Json} notice */
function test(notice) {
  ask({
    title: `Test notice ${notice.name}`,
    does: `Sends a test message to each channel: ${notice.channels.join(", ")}. The messages below show whether the receivers confirm it.`,
    label: "Test",
    operation: TEST,
    path: `/v1/notices/${quoted(notice.name)}/test`,
    command: `strandline notice test ${notice.name}`,
  });
}

/** @param {string} name @param {number | null} hours null to end muting */
function mute(name, hours) {
  const until = hours === null ? null : Date.now() + hours * HOUR_MS;
  ask({
    title: until === null ? `End muting of notice ${name}` : `Mute notice ${name}`,
    does: until === null ? "Messages are sent again. New problems in the meantime are reported together." : `Holds back messages until ${time(until)}. New problems in the meantime are reported together at the end.`,
    label: until === null ? "End muting" : "Mute",
    operation: MUTE,
    path: `/v1/notices/${quoted(name)}/mute${until === null ? "" : `?until_ms=${until}`}`,
    command: `strandline notice mute ${name} ${until === null ? "--off" : `--until ${iso(until)}`}`,
  });
}

/** @param {string} name */
function remove(name) {
  ask({
    title: `Delete notice ${name}`,
    does: "Deletes the notice, its problems, and its messages, also those that are not sent yet.",
    label: "Delete",
    operation: DELETE,
    path: `/v1/notices/${quoted(name)}`,
    command: `strandline notice delete ${name}`,
    isDangerous: true,
    done: () => (location.hash = route.href(["notices"]).slice(1)),
  });
}
