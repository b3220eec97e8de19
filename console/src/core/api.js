/**
 * Requests to the REST API. Each answer is JSON; each failure becomes an `ApiError` with the sentence of the service.
 * The session cookie authenticates the requests. No token is kept in the page.
 */

/** @typedef {Record<string, any>} Json */

export class ApiError extends Error {
  /**
   * @param {number} status 0 if the service did not answer
   * @param {string} code
   * @param {string} detail
   */
  constructor(status, code, detail) {
    super(detail);
    this.status = status;
    this.code = code;
  }
}

/** Dispatches `signed-out` when the service requires a sign-in. Its detail is the time at which the refused request was sent. */
export const signals = new EventTarget();

/** While the sign-in has ended, the page sends no requests that would be refused. */
export const access = { hasEnded: false };
const ENDED = "Your sign-in has ended.";

/**
 * @param {string} method
 * @param {string} path
 * @param {{body?: any, signal?: AbortSignal, type?: string}} [options] an object is sent as JSON, others unchanged
 * @returns {Promise<any>}
 */
export const request = async (method, path, options = {}) => (await answered(method, path, options)).value;

/** Get a resource, unless it still has this tag. @param {string} path @param {string | null} tag @param {AbortSignal} [signal] */
export const getAgain = (path, tag, signal) => answered("GET", path, { signal, tag });

/**
 * @param {string} method
 * @param {string} path
 * @param {{body?: any, signal?: AbortSignal, type?: string, tag?: string | null}} options
 * @returns {Promise<{value: any, tag: string | null, isSame: boolean}>}
 */
async function answered(method, path, options) {
  const { body, signal, type, tag } = options;
  const isOfSession = path.startsWith("/v1/session");
  if (access.hasEnded && !isOfSession) throw new ApiError(401, "unauthenticated", ENDED);
  const sent = performance.now();
  /** @type {Response} */
  let answer;
  try {
    answer = await fetch(path, {
      method,
      signal,
      credentials: "same-origin",
      cache: "no-store",
      headers: { ...(body === undefined ? {} : { "Content-Type": type ?? "application/json" }), ...(tag ? { "If-None-Match": tag } : {}) },
      body: body === undefined ? undefined : typeof body === "string" || body instanceof Uint8Array ? /** @type {any} */ (body) : JSON.stringify(body),
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "control_unavailable", "The control service doesn't respond.");
  }
  if (tag && answer.status === 304) return { value: null, tag, isSame: true };
  const text = await answer.text();
  // The document of a stream can define the response to its senders.
  if (answer.ok && answer.headers.get("Content-Type")?.startsWith("text/plain")) return { value: text, tag: null, isSame: false };
  /** @type {any} */
  let value = null;
  try {
    value = text ? JSON.parse(text) : null;
  } catch {
    throw new ApiError(answer.status, "not_json", `The answer of ${path} is not JSON (status ${answer.status}).`);
  }
  if (answer.ok) return { value, tag: answer.headers.get("ETag"), isSame: false };
  if (answer.status === 401 && !isOfSession) signals.dispatchEvent(new CustomEvent("signed-out", { detail: sent }));
  throw new ApiError(answer.status, value?.code ?? "unknown", value?.detail ?? `Status ${answer.status}`);
}

/** @param {string} path @param {AbortSignal} [signal] */
export const get = (path, signal) => request("GET", path, { signal });

/** @param {string} text */
export const quoted = (text) => encodeURIComponent(text);
