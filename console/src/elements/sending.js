/** Send records to a stream: from the page, through an HTTP gateway, or from a device, with complete commands. */
import { html, nothing } from "lit";
import { quoted } from "../core/api.js";
import { whole } from "../core/format.js";
import { Poll, refreshAll } from "../core/poll.js";
import { session } from "../core/session.js";
import { ask } from "./action.js";
import { Element, Follow } from "./base.js";
import { command, empty, panel } from "./parts.js";

/** Maximum size of the body of a request to the control service. */
const BYTES_MAX = 1_000_000;
const LINES = "application/x-ndjson";
const SEND = "POST /v1/streams/{name}/records";

export class Sending extends Element {
  static properties = { stream: { type: String }, text: { state: true }, outcome: { state: true } };

  constructor() {
    super();
    this.stream = "";
    this.text = "";
    this.outcome = "";
    this.ways = new Poll(this, () => (this.stream ? `/v1/streams/${quoted(this.stream)}/senders` : null), 0);
    this.follow = new Follow(this, [session, "change"]);
  }

  render() {
    return panel("Send records", this.ways, () => this.#content(), { kind: "sending" });
  }

  #content() {
    const { ways, can_relay, record, content_type } = this.ways.data;
    const refusal = session.refusal(SEND, this.stream);
    return html`${refusal
        ? html`<p class="muted why-not">Send ${refusal}.</p>`
        : !can_relay
          ? html`<p class="note">This page can't send records, because the control service knows no HTTP gateway. Set <code>STRANDLINE_INGEST_URL</code> to the address of one.</p>`
          : html`<form @submit=${(/** @type {SubmitEvent} */ event) => this.#submit(event, content_type, ways)}>
              <label for="records">Records, one per line or a JSON array</label>
              <textarea id="records" rows="4" spellcheck="false" autocomplete="off" .value=${this.text} @input=${(/** @type {any} */ event) => (this.text = event.target.value)}></textarea>
              <div class="actions">
                <button class="primary" ?disabled=${!this.text.trim()}>Send…</button>
                ${record ? html`<button type="button" class="quiet" @click=${() => (this.text = record)}>Use an example</button>` : nothing}
                <span class="muted" role="status">${this.outcome}</span>
              </div>
            </form>`}
      <h3>From a device</h3>
      ${ways.length
        ? html`<dl class="senders">${ways.map((/** @type {any} */ way) => html`<dt>${way.title.replace(/^the /, "")}</dt>
            <dd><p>${way.topics.length ? html`Topics <code>${way.topics.join(", ")}</code> at ` : nothing}<code>${way.address}</code></p>
              ${way.command ? command(way.command) : nothing}${way.note ? html`<p class="muted">${way.note}</p>` : nothing}</dd>`)}</dl>`
        : empty(html`The control service knows the address of no gateway. Set <code>STRANDLINE_SENDER_URLS</code>.`)}
      ${ways.some((/** @type {any} */ way) => way.command.includes("TOKEN")) ? html`<p class="muted">TOKEN is a token that may write to the stream: ${html`<code>strandline token create NAME --write ${this.stream}</code>`}</p>` : nothing}
      ${record === null && ways.length ? html`<p class="muted">RECORD is a record in the format of the stream.</p>` : nothing}`;
  }

  /** @param {SubmitEvent} event @param {string} contentType @param {any[]} ways */
  #submit(event, contentType, ways) {
    event.preventDefault();
    sendRecords(this.stream, this.text, typeOf(this.text, contentType), ways, (outcome) => {
      this.outcome = outcome;
      this.text = "";
    });
  }
}
customElements.define("sl-sending", Sending);

/**
 * Ask the user, and send records to a stream through the control service.
 *
 * - `ways`: as `GET /v1/streams/{name}/senders` returns them.
 * - `done`: called with the outcome in words.
 * - `what`: number of records in words.
 *
 * @param {string} stream
 * @param {string | Uint8Array} body
 * @param {string} contentType
 * @param {any[]} ways
 * @param {(outcome: string) => void} done
 * @param {string} [what]
 */
export function sendRecords(stream, body, contentType, ways, done, what = "The records") {
  const bytes = typeof body === "string" ? new TextEncoder().encode(body) : body;
  const http = ways.find((one) => one.gateway === "http");
  const isTooLarge = bytes.length > BYTES_MAX;
  ask({
    title: `Send records to ${stream}`,
    does: isTooLarge
      ? `The records have ${whole(bytes.length)} bytes; at most ${whole(BYTES_MAX)} can be sent from this page. Use the command.`
      : `${what} (${whole(bytes.length)} bytes) are appended to stream ${stream} by its HTTP gateway. Jobs that read the stream compute them. Records can't be removed from a stream.`,
    label: "Send",
    operation: SEND,
    path: `/v1/streams/${quoted(stream)}/records`,
    body: /** @type {any} */ (bytes),
    type: contentType,
    command: `curl -H 'Content-Type: ${contentType}' --data-binary @FILE ${http?.address ?? `GATEWAY/v1/streams/${stream}/records`}`,
    done: (answer) => {
      done(inWords(answer));
      refreshAll();
    },
  });
}

/** @param {any} answer of the gateway */
function inWords(answer) {
  if (typeof answer?.accepted !== "number") return "The gateway has accepted the records.";
  const refused = answer.refused ?? [];
  const accepted = `${whole(answer.accepted)} ${answer.accepted === 1 ? "record is" : "records are"} in the log.`;
  return refused.length ? `${accepted} ${whole(refused.length)} refused: ${refused[0].detail}.` : accepted;
}

/** Content type of pasted records: one JSON value, or lines. @param {string} text @param {string} ofRecord */
export function typeOf(text, ofRecord) {
  try {
    JSON.parse(text);
    return "application/json";
  } catch {
    return ofRecord.includes("json") ? LINES : ofRecord.startsWith("text/") ? ofRecord : LINES;
  }
}
