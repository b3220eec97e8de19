/** Operation: the views with which operators run the installation, each with its current state. */
import { html } from "lit";
import { OPERATION } from "../core/operation.js";
import { Poll } from "../core/poll.js";
import { route } from "../core/route.js";
import { session } from "../core/session.js";
import { Element, Follow } from "../elements/base.js";
import { badge } from "../elements/parts.js";

/** @typedef {import("../core/operation.js").OperationView} OperationView */

export class OperationList extends Element {
  constructor() {
    super();
    this.polls = OPERATION.map((one) => new Poll(this, () => (session.refusal(one.operation) ? null : one.path), 10_000));
    this.follow = new Follow(this, [session, "change"], [route, "change"]);
  }

  render() {
    return html`<div class="view">
      <div class="title"><h1>Operation</h1></div>
      <ul class="operation">${OPERATION.map((one, at) => html`<li class="panel"><h2><a href=${route.href([one.view])}>${one.name}</a></h2><p class="muted">${one.about}</p><p>${this.#state(one, this.polls[at])}</p></li>`)}</ul>
    </div>`;
  }

  /** @param {OperationView} one @param {Poll} poll */
  #state(one, poll) {
    const refusal = session.refusal(one.operation);
    if (refusal) return html`<span class="muted">${refusal}</span>`;
    if (!one.state) return "";
    if (poll.error) return badge("bad", poll.error.message);
    if (poll.data === null) return html`<span class="muted">…</span>`;
    const [tone, text] = one.state(poll.data);
    return badge(tone, text);
  }
}
customElements.define("sl-operation", OperationList);
