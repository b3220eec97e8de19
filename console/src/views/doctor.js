/** Doctor: the findings about servers, rights, versions, and the machine of the control service, each with its remedy. */
import { html, nothing } from "lit";
import { duration } from "../core/format.js";
import { Poll } from "../core/poll.js";
import { session } from "../core/session.js";
import { ask } from "../elements/action.js";
import { Element, Follow, Tick } from "../elements/base.js";
import { badge, empty, operationCrumbs, panel, sentence } from "../elements/parts.js";

const EXAMINE = "POST /v1/doctor";
/** @type {Record<string, string>} state of a finding -> tone, the worst first */
const TONES = { wrong: "bad", warning: "warn", ok: "ok" };

export class DoctorView extends Element {
  constructor() {
    super();
    this.doctor = new Poll(this, () => "/v1/doctor", 2_000);
    this.follow = new Follow(this, [session, "change"]);
    this.tick = new Tick(this, 5_000);
  }

  render() {
    return html`<div class="view">
      <div class="title">${operationCrumbs()}<h1>Doctor</h1><p class="about">Servers, rights, versions, and the machine of this control service.</p></div>
      ${panel("Findings", this.doctor, () => this.#findings(), { aside: this.#button() })}
    </div>`;
  }

  #button() {
    const refusal = session.refusal(EXAMINE);
    if (refusal) return html`<span class="muted">Examine ${refusal}</span>`;
    return html`<button class="quiet" ?disabled=${this.doctor.data?.is_running ?? true} @click=${examine}>Examine…</button>`;
  }

  #findings() {
    const { is_running: isRunning, started_ms: started, ended_ms: ended, findings } = this.doctor.data;
    const state = isRunning
      ? html`<p class="muted" role="status">Examining for ${duration(Math.max(0, Date.now() - started))}…</p>`
      : nothing;
    if (ended === null) return html`${state}${isRunning ? nothing : empty("Nothing was examined since this control service started.")}`;
    const count = (/** @type {string} */ one) => findings.filter((/** @type {any} */ finding) => finding.state === one).length;
    const sorted = Object.keys(TONES).flatMap((one) => findings.filter((/** @type {any} */ finding) => finding.state === one));
    return html`${state}
      <p class="lead">${count("wrong") || count("warning") ? `${count("wrong")} wrong, ${count("warning")} to look at.` : "All is well."} <span class="muted">${duration(Math.max(0, Date.now() - ended))} ago</span></p>
      <ul class="changes">${sorted.map((/** @type {any} */ one) => html`<li>${badge(TONES[one.state], one.state)}<div><b>${one.subject}: ${one.message}</b>${one.remedy ? html`<p>${sentence(one.remedy)}</p>` : nothing}</div></li>`)}</ul>`;
  }
}
customElements.define("sl-doctor", DoctorView);

function examine() {
  ask({
    title: "Examine the deployment",
    does: "Checks each server, right, and version, and the machine, for at most a minute. It writes to a test topic and a test index, and deletes them.",
    label: "Examine",
    operation: EXAMINE,
    path: "/v1/doctor",
    command: "strandline doctor",
  });
}
