/** A job: why it is in its state, its pipeline, event time, slices, runs and events, and the actions on it. */
import { html, nothing, svg } from "lit";
import { quoted } from "../core/api.js";
import { capital, clock, duration, share, spaced, short, sum, time, whole } from "../core/format.js";
import { ACTIONS, toneOf } from "../core/jobs.js";
import { Poll } from "../core/poll.js";
import { route } from "../core/route.js";
import { session } from "../core/session.js";
import { Element, Follow, Tick } from "../elements/base.js";
import { audited } from "../elements/audit.js";
import "../elements/chart.js";
import "../elements/graph.js";
import { askFor } from "../elements/palette.js";
import { partitions } from "../elements/partitions.js";
import { badge, command, empty, figure, panel, sentence } from "../elements/parts.js";
import "../elements/sending.js";
import "../elements/versions.js";

const SLICES = 12;
const EVENTS = 60;

export class JobView extends Element {
  static properties = { name: { type: String }, showsLog: { state: true } };

  constructor() {
    super();
    this.name = "";
    this.showsLog = false;
    const base = () => `/v1/jobs/${quoted(this.name)}`;
    this.job = new Poll(this, base, 3_000);
    this.explanation = new Poll(this, () => `${base()}/explanation`, 5_000);
    this.graph = new Poll(this, () => `${base()}/graph`, 60_000);
    this.checkpoints = new Poll(this, () => `${base()}/checkpoints?limit=${SLICES}`, 5_000);
    this.slices = new Poll(this, () => (this.job.data ? `${base()}/slices?after=${Math.max(0, (this.job.data.slice ?? 0) - SLICES)}&limit=${SLICES + 2}` : null), 5_000);
    this.runs = new Poll(this, () => `${base()}/runs?limit=100`, 10_000);
    this.events = new Poll(this, () => `/v1/events?job=${quoted(this.name)}&last=${EVENTS}`, 15_000);
    this.history = new Poll(this, () => `${base()}/history`, 60_000);
    this.log = new Poll(this, () => (this.showsLog ? `${base()}/log?lines=200` : null), 3_000);
    this.tick = new Tick(this, 2_000);
    this.follow = new Follow(this, [session, "change"], [route, "change"]);
  }

  render() {
    const job = this.job.data;
    if (this.job.error?.status === 404) {
      return html`<div class="view"><div class="title"><h1>${this.name}</h1></div>${empty(this.job.error.message)}</div>`;
    }
    const explanation = this.explanation.data;
    const tone = job ? toneOf(job, explanation) : "wait";
    return html`<div class="view">
      <div class="title">
        <p class="crumbs"><a href=${route.href([])}>Jobs</a></p>
        <h1>${this.name} ${job ? badge(tone, job.state) : nothing}</h1>
        ${job ? html`<p class="about">Version ${job.version}, run ${job.epoch}${job.leader ? html`, led by ${job.leader.name}` : ", without a leader"}</p>` : nothing}
      </div>
      ${job ? this.#actions(job) : nothing}
      ${panel("Now", [this.job, this.explanation], () => this.#explained(), { kind: `now ${tone}` })}
      ${audited.has(this.name) ? html`<sl-audit .job=${this.name}></sl-audit>` : nothing}
      ${explanation?.cause === "no_input" && job?.streams.length ? html`<sl-sending .stream=${job.streams[0]}></sl-sending>` : nothing}
      ${panel("Pipeline", [this.job, this.graph], () => this.#pipeline(), {})}
      <div class="columns">
        ${panel("Event time by partition", [this.job, this.checkpoints, this.slices], () => partitions(this.job.data, this.checkpoints.data.checkpoints[0], this.slices.data.slices), { aside: html`<a href=${route.href(["windows", this.name])}>Open windows</a>` })}
        ${panel("Last 24 hours", this.history, () => this.#history(), {})}
      </div>
      ${panel(html`<span title="A slice is a numbered range of the log. The job reads, computes, and emits one slice after the other.">Slices</span>`, [this.checkpoints, this.slices], () => this.#slices(), { aside: html`<span class="muted">the newest ${SLICES}</span>` })}
      ${panel("Runs and events", [this.runs, this.events], () => this.#timeline(), {
        aside: html`<span class="muted">last ${spaced(route.range)}</span>`,
      })}
      <sl-versions .job=${this.name}></sl-versions>
      ${this.#logPanel()}
    </div>`;
  }

  /** @param {any} job */
  #actions(job) {
    const refused = ACTIONS.filter((action) => session.refusal(action.operation));
    const allowed = ACTIONS.filter((action) => !session.refusal(action.operation));
    const now = allowed.filter((action) => !action.blocked(job));
    const later = allowed.filter((action) => action.blocked(job));
    return html`<div class="actions">
      <a class="button quiet" href=${route.href(["edit", "jobs", job.name])}>Edit</a>
      ${sum(job.counts.rejected) ? html`<a class="button quiet" href=${route.href(["dead-letters", job.name])} title="Show the rejected records of this job, repair and requeue them">Dead letters: repair or requeue</a>` : nothing}
      <a class="button quiet" href=${route.href(["audits", job.name])}>Audits and backfills</a>
      ${now.map((action) => html`<button class=${action.isDangerous ? "danger-quiet" : "quiet"} @click=${() => askFor(action, job.name)}>${action.label}</button>`)}
      ${later.length
        ? html`<details class="why">
            <summary>Other actions</summary>
            <ul>
              ${later.map((action) => html`<li><b>${action.label}</b>: ${action.blocked(job)}</li>`)}
            </ul>
          </details>`
        : nothing}
      ${refused.length
        ? html`<p class="muted">${refused.map((action) => action.label).join(", ")}: ${session.refusal(refused[0].operation)}.</p>`
        : nothing}
    </div>`;
  }

  #explained() {
    const [job, explanation] = [this.job.data, this.explanation.data];
    const counts = job.counts;
    const late = counts.rejected.late ?? 0;
    const others = sum(counts.rejected) - late;
    const refused = sum(counts.refused);
    return html`<p class="lead">${sentence(capital(explanation.message))}.</p>
      <p class="next">${sentence(capital(explanation.next))}</p>
      ${[...job.warnings, ...explanation.notes].map((note) => html`<p class="note">${sentence(note)}</p>`)}
      ${job.rewind?.warning ? html`<p class="note">${job.rewind.warning}</p>` : nothing}
      <dl class="figures">
        ${figure("Records", short(counts.records), `${share(counts.accepted, counts.records)} accepted`)}
        ${figure("Results", short(sum(counts.results)), refused ? `${short(refused)} refused` : "")}
        ${figure("Late", short(late), share(late, counts.records), late ? "warn" : "")}
        ${figure("Rejected", html`<a href=${route.href(["dead-letters", job.name])}>${short(others)}</a>`, share(others, counts.records), others ? "warn" : "")}
        ${figure("Lag", short(job.lag_records), "records")}
        ${figure("Watermark", job.watermark_ms === null ? "–" : time(job.watermark_ms, "time"), job.latest_event_ms === null || job.watermark_ms === null ? "" : `${duration(job.latest_event_ms - job.watermark_ms)} behind`)}
        ${figure(html`<span title="A rewind reads the log again from the first record that an open window needs. Each start of the job does this, so that no result is lost or repeated.">A rewind now</span>`, job.rewind ? duration(job.rewind.seconds * 1000) : "–", job.rewind ? `${short(job.rewind.records)} records` : "")}
      </dl>
      ${job.batch ? html`<p class="muted">Batch: ${share(job.batch.share, 1)} read, ${short(job.batch.records_left)} records left.</p>` : nothing}`;
  }

  #pipeline() {
    const graph = this.graph.data;
    return html`<sl-graph .graph=${graph} .job=${this.job.data}></sl-graph>
      ${graph.hints.length
        ? html`<details class="why"><summary>${graph.hints.length} ${graph.hints.length === 1 ? "hint" : "hints"} on cost</summary><ul>${graph.hints.map((/** @type {string} */ hint) => html`<li>${hint}</li>`)}</ul></details>`
        : nothing}
      <p class="muted">A stage is a window or an emission of the pipeline; the alias of an emission is its name in Elasticsearch. A rewind, at each start of the job, reads back ${duration(graph.reach_ms)} of event time.</p>`;
  }

  #history() {
    const { from_ms, step_ms, records, rejected, results } = this.history.data;
    if (!records.some(Boolean)) return empty("No slice was committed in the last 24 hours.");
    /** @param {string} label @param {number[]} values */
    const series = (label, values) => ({ label, points: values.map((/** @type {number} */ value, /** @type {number} */ at) => [from_ms + at * step_ms, value]) });
    /** @param {{points: number[][]}} one */
    const total = (one) => short(one.points.reduce((all, point) => all + point[1], 0));
    const [read, bad, out] = [series("records", records), series("rejected", rejected), series("results", results)];
    return html`<p class="keys"><span><i class="s1"></i>records ${total(read)}</span><span><i class="s2"></i>rejected ${total(bad)}</span><span class="muted">in steps of ${duration(step_ms)}</span></p>
      <sl-chart .series=${[read, bad]} .stepMs=${step_ms} .tall=${150} fill label="Records and rejected records, in steps of ${duration(step_ms)}"></sl-chart>
      <p class="keys"><span><i class="s1"></i>results ${total(out)}</span></p>
      <sl-chart .series=${[out]} .stepMs=${step_ms} .tall=${110} fill label="Results, in steps of ${duration(step_ms)}"></sl-chart>`;
  }

  #slices() {
    const rows = this.checkpoints.data.checkpoints;
    /** @type {Map<number, any>} */
    const planned = new Map((this.slices.data?.slices ?? []).map((/** @type {any} */ one) => [one.number, one]));
    const open = [...planned.values()].filter((one) => one.status === "planned");
    if (!rows.length && !open.length) return empty("No slice is planned yet.");
    const took = (/** @type {any} */ row) => (planned.has(row.slice) ? row.committed_ms - planned.get(row.slice).planned_ms : null);
    const longest = Math.max(1, ...rows.map((/** @type {any} */ row) => took(row) ?? 0));
    return html`<div class="scroll" tabindex="0"><table>
      <thead>
        <tr>
          <th class="number">Slice</th><th>Committed</th><th class="wide">Kind</th><th class="number">Took</th><th class="line wide"><span class="visually-hidden">Time</span></th>
          <th class="number">Records</th><th class="number">Rejected</th><th class="number">Results</th><th class="number wide">Records/s</th><th class="number wide">Run</th>
        </tr>
      </thead>
      <tbody>
        ${open.map((one) => html`<tr class="open"><td class="number">${one.number}</td><td>in progress for ${duration(Date.now() - one.planned_ms)}</td><td class="wide">${one.kind.replace("_", " ")}</td><td colspan="7"></td></tr>`)}
        ${rows.map((/** @type {any} */ row) => {
          const ms = took(row);
          return html`<tr>
            <td class="number">${row.slice}</td>
            <td>${clock(row.committed_ms)}</td>
            <td class="wide">${(planned.get(row.slice)?.kind ?? "–").replace("_", " ")}</td>
            <td class="number">${duration(ms)}</td>
            <td class="line wide"><svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect class="bar" width=${(100 * (ms ?? 0)) / longest} height="8"></rect></svg></td>
            <td class="number">${whole(row.records)}</td>
            <td class="number ${sum(row.rejected) ? "warn" : ""}">${whole(sum(row.rejected))}</td>
            <td class="number">${whole(sum(row.results))}</td>
            <td class="number wide">${ms ? short(Math.round((1000 * row.records) / ms)) : "–"}</td>
            <td class="number wide">${row.epoch}</td>
          </tr>`;
        })}
      </tbody>
    </table></div>`;
  }

  #timeline() {
    const now = Date.now();
    const from = now - route.rangeMs;
    const runs = this.runs.data.runs.filter((/** @type {any} */ run) => (run.ended_ms ?? now) >= from);
    const events = this.events.data.events.filter((/** @type {any} */ one) => one.at_ms >= from);
    /** @param {number} at */
    const x = (at) => (1000 * (Math.max(from, at) - from)) / (now - from);
    return html`<div class="timeline">
      <svg viewBox="0 0 1000 44" preserveAspectRatio="none" role="img" aria-label="${runs.length} runs and ${events.length} events">
        <rect class="track" x="0" y="8" width="1000" height="16"></rect>
        ${runs.map(
          (/** @type {any} */ run) => svg`<rect class="run ${run.epoch % 2 ? "odd" : ""} ${["failed", "died", "killed"].includes(run.outcome) ? "bad" : ""}" x=${x(run.started_ms)} y="8" width=${Math.max(1.5, x(run.ended_ms ?? now) - x(run.started_ms) - 1)} height="16"><title>run ${run.epoch}, version ${run.version}: ${time(run.started_ms)} – ${run.ended_ms ? time(run.ended_ms) : "now"} ${run.outcome ?? ""}</title></rect>`,
        )}
        ${events.map((/** @type {any} */ one) => svg`<rect class="event" x=${x(one.at_ms)} y="30" width="2.5" height="9"><title>${time(one.at_ms)} ${one.message}</title></rect>`)}
      </svg>
      <div class="scale"><span>${time(from)}</span><span>${runs.length} ${runs.length === 1 ? "run" : "runs"}</span><span>now</span></div>
      ${events.length
        ? html`<ol class="events">
            ${[...events].reverse().slice(0, 15).map((one) => html`<li><time>${time(one.at_ms)}</time><span class="kind">${one.kind.replaceAll("_", " ")}</span><span>${one.message}${one.principal ? html` <em>by ${one.principal}</em>` : nothing}</span></li>`)}
          </ol>`
        : empty("No event in this period.")}
    </div>`;
  }

  #logPanel() {
    if (!this.showsLog) {
      return html`<section class="panel">
        <header><h2>Log of the run</h2><div class="aside"><button class="quiet" @click=${() => (this.showsLog = true)}>Show</button></div></header>
        ${command(`strandline job logs ${this.name} --follow`)}
      </section>`;
    }
    return panel("Log of the run", this.log, () => html`<pre class="log" tabindex="0">${this.log.data.lines.join("\n")}</pre>`, {
      aside: html`<button class="quiet" @click=${() => (this.showsLog = false)}>Hide</button>`,
    });
  }
}
customElements.define("sl-job", JobView);
