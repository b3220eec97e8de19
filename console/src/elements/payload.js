/** The payload of a record: its fields next to their declared types, and its bytes. */
import { html } from "lit";
import { whole } from "../core/format.js";

const BYTES_SHOWN = 2_048;

/** The bytes of a payload. @param {string} text in base64 */
export const bytesOf = (text) => Uint8Array.from(atob(text), (one) => one.charCodeAt(0));

/** The payload as text; null if it isn't UTF-8. @param {string} text in base64 @returns {string | null} */
export function textOf(text) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytesOf(text));
  } catch {
    return null;
  }
}

/**
 * The fields of a record in JSON, next to the types that the stream declares. Other formats are shown as bytes only.
 * @param {string} text @param {Record<string, any> | null} schema
 */
export function fields(text, schema) {
  /** @type {any} */
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return html`<p class="muted">The bytes are not JSON: ${error instanceof Error ? error.message : ""}.</p>`;
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) return html`<pre class="bytes">${JSON.stringify(value, null, 2)}</pre>`;
  const declared = schema ?? {};
  const names = [...new Set([...Object.keys(declared), ...Object.keys(value)])];
  return html`<table class="fields">
    <thead><tr><th>Field</th><th>Value</th><th>Declared</th></tr></thead>
    <tbody>${names.map((name) => {
      const type = typeof declared[name] === "string" ? declared[name] : declared[name]?.type;
      const isThere = name in value;
      return html`<tr class=${isThere ? "" : "missing"}><td>${name}</td><td><code>${isThere ? JSON.stringify(value[name]) : "missing"}</code></td><td class="muted">${type ?? (schema ? "not declared" : "")}</td></tr>`;
    })}</tbody>
  </table>`;
}

/** The first bytes of a payload, as numbers and characters. @param {string} text in base64 */
export function bytes(text) {
  const all = bytesOf(text);
  return html`<h3>Bytes <span class="muted">${whole(all.length)}</span></h3>
    <pre class="bytes" tabindex="0">${hex(all.subarray(0, BYTES_SHOWN))}</pre>
    ${all.length > BYTES_SHOWN ? html`<p class="muted">The first ${whole(BYTES_SHOWN)} bytes.</p>` : ""}`;
}

/** @param {Uint8Array} all */
function hex(all) {
  const lines = [];
  for (let at = 0; at < all.length; at += 16) {
    const row = [...all.subarray(at, at + 16)];
    const numbers = row.map((one) => one.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    lines.push(`${at.toString(16).padStart(4, "0")}  ${numbers}  ${row.map((one) => (one >= 32 && one < 127 ? String.fromCharCode(one) : "·")).join("")}`);
  }
  return lines.join("\n");
}
