/** Tokens: list, create, and revoke them. Only admins can. */
import { html, nothing } from "lit";
import { quoted } from "../core/api.js";
import { time } from "../core/format.js";
import { Poll } from "../core/poll.js";
import { route } from "../core/route.js";
import { session } from "../core/session.js";
import { ask } from "../elements/action.js";
import { Element, Follow } from "../elements/base.js";
import { badge, command, empty, operationCrumbs, panel, since } from "../elements/parts.js";

/** @type {[string, string][]} */
const ROLES = [["", "none: only the streams below"], ["metrics", "metrics"], ["viewer", "viewer"], ["operator", "operator"], ["admin", "admin"]];
/** @type {[string, string][]} */
const EXPIRIES = [["30d", "30 days"], ["90d", "90 days"], ["365d", "a year"], ["", "never"]];

export class TokensView extends Element {
  static properties = { made: { state: true } };

  constructor() {
    super();
    /** @type {any} the token that was created; its secret can't be shown again */ this.made = null;
    this.tokens = new Poll(this, () => (this.#refusal ? null : "/v1/tokens"), 0); // the service logs each request of an admin
    this.follow = new Follow(this, [session, "change"], [route, "change"]);
  }

  get #refusal() {
    if (!session.now?.requires_token) return "Tokens have no effect while STRANDLINE_AUTH is none: each client may do everything.";
    const refusal = session.refusal("GET /v1/tokens");
    return refusal ? `The list of tokens ${refusal}.` : "";
  }

  render() {
    return html`<div class="view">
      <div class="title">${operationCrumbs()}<h1>Tokens</h1><p class="about">Each token has a role, or may write to some streams, or both.</p></div>
      ${this.#refusal ? html`<section class="panel">${empty(this.#refusal)}</section>` : html`${this.made ? this.#secret() : nothing}${this.#form()}${panel("All tokens", this.tokens, () => this.#table())}`}
    </div>`;
  }

  #secret() {
    return html`<section class="panel" role="status"><header><h2>Token ${this.made.name}</h2><div class="aside"><button class="quiet" @click=${() => (this.made = null)}>Hide</button></div></header>
      ${command(this.made.token)}
      <p class="note">Copy the token now: it can't be shown again.</p></section>`;
  }

  #form() {
    return html`<section class="panel"><header><h2>New token</h2></header>
      <form @submit=${this.#create}><div class="controls place">
        <label>Name<input name="name" required maxlength="100" pattern="[a-z0-9][a-z0-9._\\-]*" autocomplete="off" spellcheck="false" /></label>
        <label>Role<select name="role">${ROLES.map(([value, text]) => html`<option value=${value} ?selected=${value === "viewer"}>${text}</option>`)}</select></label>
        <label>Expires after<select name="expires">${EXPIRIES.map(([value, text]) => html`<option value=${value} ?selected=${value === "90d"}>${text}</option>`)}</select></label>
        <label>May write to streams<input name="writes" placeholder="names, or *" autocomplete="off" spellcheck="false" /></label>
        <button class="primary">Create…</button>
      </div></form></section>`;
  }

  /** @param {SubmitEvent} event */
  #create(event) {
    event.preventDefault();
    const form = /** @type {HTMLFormElement} */ (event.target);
    const [name, role, expires, scope] = ["name", "role", "expires", "writes"].map((one) => String(new FormData(form).get(one)).trim());
    const writes = scope.split(/[\s,]+/).filter(Boolean);
    const options = [role ? ` --role ${role}` : "", ...writes.map((one) => ` --write '${one}'`), expires ? ` --expires ${expires}` : ""].join("");
    ask({
      title: `Create token ${name}`,
      does: `Creates a token with ${role ? `the role ${role}` : "no role"}${writes.length ? ` that may write to ${writes.join(", ")}` : ""}. It ${expires ? `expires after ${expires}` : "never expires"}. The page shows it once.`,
      label: "Create",
      operation: "POST /v1/tokens",
      path: "/v1/tokens",
      body: { name, role: role || null, writes, expires: expires || null },
      command: `strandline token create ${name}${options}`,
      done: (answer) => {
        this.made = answer;
        form.reset();
      },
    });
  }

  #table() {
    const rows = this.tokens.data.tokens;
    if (!rows.length) return empty("There is no token.");
    return html`<div class="scroll" tabindex="0"><table>
      <thead><tr><th>Name</th><th>Role</th><th>Writes to</th><th>State</th><th class="wide">Created</th><th class="wide">Last use</th><td></td></tr></thead>
      <tbody>${rows.map((/** @type {any} */ one) => html`<tr><td>${one.name}</td><td>${one.role ?? "–"}</td><td>${one.writes.join(", ") || "–"}</td><td>${stateOf(one)}</td>
        <td class="wide">${time(one.created_ms)} by ${one.created_by}</td><td class="wide">${one.used_ms === null ? "never" : since(one.used_ms)}</td>
        <td>${one.revoked_ms === null ? html`<button class="danger-quiet small" aria-label="Revoke ${one.name}" @click=${() => revoke(one.name)}>Revoke</button>` : nothing}</td></tr>`)}</tbody>
    </table></div>`;
  }
}
customElements.define("sl-tokens", TokensView);

/** @param {any} token */
function stateOf(token) {
  if (token.revoked_ms !== null) return badge("rest", `revoked by ${token.revoked_by}`);
  if (token.expires_ms === null) return badge("ok", "never expires");
  return token.expires_ms <= Date.now() ? badge("rest", "expired") : badge("ok", `until ${time(token.expires_ms)}`);
}

/** @param {string} name */
function revoke(name) {
  ask({
    title: `Revoke token ${name}`,
    does: "Makes the token invalid forever. The REST API and the gateways refuse it within seconds, and sign-ins with it end.",
    label: "Revoke",
    operation: "POST /v1/tokens/{name}/revoke",
    path: `/v1/tokens/${quoted(name)}/revoke`,
    command: `strandline token revoke ${name}`,
    isDangerous: true,
  });
}
