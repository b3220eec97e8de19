/**
 * Sign-in at the OIDC provider: an authorization code with PKCE (RFC 7636), as a public client without a secret.
 * The page exchanges the access token for a session of the control service, and keeps no token.
 * While the user is at the provider, `sessionStorage` has the random values of this sign-in. They are removed at the return.
 */

/** @typedef {{issuer: string, client_id: string, scope: string, audience: string}} Provider */
const PENDING = "strandline-sign-in";
const LEEWAY_MS = 60_000;

/** Send the user to the provider. @param {Provider} provider @param {boolean} [isRenewal] true in a window that only renews a sign-in */
export async function goToProvider(provider, isRenewal = false) {
  const about = await discover(provider);
  const [state, nonce, verifier] = [random(), random(), random()];
  const challenge = base64url(new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier))));
  sessionStorage.setItem(PENDING, JSON.stringify({ state, nonce, verifier, view: location.hash, isRenewal }));
  leaveTo(provider, about.authorization_endpoint, {
    response_type: "code", client_id: provider.client_id, redirect_uri: returnAddress(), scope: provider.scope, audience: provider.audience,
    state, nonce, code_challenge: challenge, code_challenge_method: "S256",
  });
}

/** True if the provider has sent the user back. */
export const isReturn = () => {
  const answer = new URLSearchParams(location.search);
  return answer.has("state") && (answer.has("code") || answer.has("error"));
};

/**
 * The tokens for the code in the address. Restores the view that the user had left.
 * @param {Provider} provider
 * @returns {Promise<{token: string, refresh: string | null, isRenewal: boolean}>}
 */
export async function tokenOfReturn(provider) {
  const answer = new URLSearchParams(location.search);
  const pending = JSON.parse(sessionStorage.getItem(PENDING) ?? "null");
  sessionStorage.removeItem(PENDING);
  history.replaceState(null, "", `${location.pathname}${pending?.view ?? ""}`); // the code must not stay in the history
  dispatchEvent(new HashChangeEvent("hashchange"));
  if (pending === null || answer.get("state") !== pending.state) throw new Error("The provider's answer doesn't belong to a sign-in that this page began. Sign in again.");
  if ((answer.get("iss") ?? provider.issuer) !== provider.issuer) throw new Error("The answer is from another provider. Sign in again.");
  if (answer.has("error")) throw new Error(`The provider refused the sign-in: ${answer.get("error_description") ?? answer.get("error")}.`);
  const about = await discover(provider);
  const tokens = await exchange(provider, about.token_endpoint, { grant_type: "authorization_code", code: answer.get("code") ?? "", redirect_uri: returnAddress(), client_id: provider.client_id, code_verifier: pending.verifier });
  checkIdToken(provider, tokens.id_token, pending.nonce);
  if (typeof tokens.access_token !== "string") throw new Error("The provider sent no access token.");
  return { token: tokens.access_token, refresh: typeof tokens.refresh_token === "string" ? tokens.refresh_token : null, isRenewal: pending.isRenewal === true };
}

/** Sign out at the provider, too, if it offers this. @param {Provider} provider */
export async function leaveProvider(provider) {
  const { end_session_endpoint: end } = await discover(provider);
  if (end) leaveTo(provider, end, { client_id: provider.client_id, post_logout_redirect_uri: returnAddress() });
}

/** @param {Provider} provider @returns {Promise<any>} the provider's description of itself */
async function discover(provider) {
  const about = await ask(provider, `${provider.issuer.replace(/\/$/, "")}/.well-known/openid-configuration`, {});
  if (about.issuer !== provider.issuer) throw new Error("The provider's description names another issuer. Tell your administrator.");
  return about;
}

/** @param {Provider} provider @param {string} address @param {Record<string, string>} form */
async function exchange(provider, address, form) {
  if (new URL(address).origin !== new URL(provider.issuer).origin) throw new Error("The provider's tokens come from another host than its issuer; the page may not connect to it. Sign in with a token.");
  return ask(provider, address, { method: "POST", body: new URLSearchParams(form) });
}

/** @param {Provider} provider @param {string} address @param {RequestInit} options @returns {Promise<any>} */
async function ask(provider, address, options) {
  const host = new URL(provider.issuer).host;
  /** @type {Response} */
  let answer;
  try {
    answer = await fetch(address, { ...options, credentials: "omit", cache: "no-store", redirect: "error" });
  } catch {
    throw new Error(`${host} doesn't respond, or doesn't allow requests of ${location.origin}. Try again, or sign in with a token.`);
  }
  const value = await answer.json().catch(() => null);
  if (!answer.ok || value === null || typeof value !== "object") throw new Error(`${host} refused the request: ${value?.error_description ?? value?.error ?? `status ${answer.status}`}.`);
  return value;
}

/**
 * Check the claims of the ID token. Its signature isn't checked: it came from the provider itself, over the connection of this
 * request (OpenID Connect Core, 3.1.3.7). The control service checks that of the access token.
 * @param {Provider} provider @param {any} token @param {string} nonce
 */
function checkIdToken(provider, token, nonce) {
  /** @type {any} */
  let claims = null;
  try {
    const bytes = Uint8Array.from(atob(token.split(".")[1].replaceAll("-", "+").replaceAll("_", "/")), (one) => one.charCodeAt(0));
    claims = JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    throw new Error("The provider sent no ID token that can be read.");
  }
  const audiences = [claims.aud].flat();
  if (claims.nonce !== nonce) throw new Error("The provider's answer belongs to another sign-in. Sign in again.");
  if (claims.iss !== provider.issuer || !audiences.includes(provider.client_id)) throw new Error("The provider's answer is for another application.");
  if (!(claims.exp * 1000 > Date.now() - LEEWAY_MS)) throw new Error("The provider's answer has expired. Check the clock of this device.");
}

/** @param {Provider} provider @param {string} address @param {Record<string, string>} parameters */
function leaveTo(provider, address, parameters) {
  const target = new URL(address);
  if (target.protocol !== new URL(provider.issuer).protocol) throw new Error("An address of the provider has another scheme than its issuer.");
  for (const [name, value] of Object.entries(parameters)) target.searchParams.set(name, value);
  location.assign(target);
}

const returnAddress = () => `${location.origin}/`;
const random = () => base64url(crypto.getRandomValues(new Uint8Array(32)));
/** @param {Uint8Array} bytes */
const base64url = (bytes) => btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
