/** The path in a YAML document at a position, also in a text that is not complete yet. */

/** @typedef {{path: string[], key: string | null}} Position the keys around it, `[]` for an element; `key` is null if a key can begin there */

const KEY = /^("[^"]*"|'[^']*'|[\w.$-]+)\s*:(?=\s|$)/;

/**
 * @param {string} text the text before the position
 * @returns {Position}
 */
export function positionAt(text) {
  /** @type {{indent: number, key: string}[]} */
  let blocks = [];
  /** @type {{bracket: string, key: string | null}[]} */
  let flows = [];
  /** @type {string | null} */
  let key = null;
  const lines = text.split("\n");
  for (const [at, line] of lines.entries()) {
    if (/^---(\s|$)/.test(line)) {
      blocks = [];
      flows = [];
      key = null;
      continue;
    }
    let rest = line;
    if (flows.length === 0) {
      let indent = rest.length - rest.trimStart().length;
      rest = rest.trimStart();
      key = null;
      if (/^-(\s|$)/.test(rest)) {
        blocks = blocks.filter((one) => one.indent < indent || (one.indent === indent && one.key !== "[]"));
        while (/^-(\s|$)/.test(rest)) {
          blocks.push({ indent, key: "[]" });
          const inner = rest.slice(1).trimStart();
          indent += rest.length - inner.length;
          rest = inner;
        }
      } else if (rest !== "" || at === lines.length - 1) {
        blocks = blocks.filter((one) => one.indent < indent);
      }
      const found = KEY.exec(rest);
      if (found) {
        key = plain(found[1]);
        blocks.push({ indent, key });
        rest = rest.slice(found[0].length);
      }
    }
    ({ flows } = scanFlow(rest, flows));
  }
  /** @type {string[]} */
  const path = blocks.map((one) => one.key);
  if (flows.length) {
    flows.forEach((one, at) => {
      if (one.bracket === "[") path.push("[]");
      else if (one.key !== null && at < flows.length - 1) path.push(one.key);
    });
    const last = flows[flows.length - 1];
    if (last.bracket === "{" && last.key !== null) return { path: [...path, last.key], key: last.key };
    return { path, key: last.bracket === "[" ? "[]" : null };
  }
  return { path, key };
}

/**
 * @param {string} text
 * @param {{bracket: string, key: string | null}[]} before
 */
function scanFlow(text, before) {
  const flows = [...before];
  let at = 0;
  while (at < text.length) {
    const char = text[at];
    const top = flows[flows.length - 1];
    if (char === "#" && (at === 0 || /\s/.test(text[at - 1]))) break;
    if ((char === "'" || char === '"') && !(top?.bracket === "{" && top.key === null)) {
      const end = text.indexOf(char, at + 1);
      at = end < 0 ? text.length : end + 1;
      continue;
    }
    if ((char === "{" || char === "[") && (flows.length || !text.slice(0, at).trim())) flows.push({ bracket: char, key: null });
    else if ((char === "}" || char === "]") && flows.length) flows.pop();
    else if (char === "," && top) top.key = null;
    else if (top?.bracket === "{" && top.key === null) {
      const found = KEY.exec(text.slice(at));
      if (found) {
        top.key = plain(found[1]);
        at += found[0].length;
        continue;
      }
    }
    at += 1;
  }
  return { flows };
}

/** @param {string} text */
const plain = (text) => (/^["']/.test(text) ? text.slice(1, -1) : text);

/** @typedef {Record<string, any>} Schema */

/**
 * Return the schemas that can describe the value at a path. `kind` is the keyword of the document, or null.
 * @param {Schema} root @param {string[]} path @param {string | null} kind @returns {Schema[]}
 */
export function schemasAt(root, path, kind) {
  let found = spread(root, root).filter((one) => kind === null || one.properties?.[kind]);
  for (const step of path) {
    found = found.flatMap((one) => {
      const next = step === "[]" ? one.items : (one.properties?.[step] ?? (typeof one.additionalProperties === "object" ? one.additionalProperties : null));
      return next ? spread(root, next) : [];
    });
  }
  return found;
}

/**
 * Return the alternatives of a schema, without references.
 * @param {Schema} root @param {Schema} schema @returns {Schema[]}
 */
function spread(root, schema) {
  const named = schema.$ref ? root.$defs[schema.$ref.split("/").pop() ?? ""] : null;
  const alternatives = [...(schema.anyOf ?? []), ...(schema.oneOf ?? []), ...(schema.allOf ?? [])].filter((one) => !one.required || one.properties);
  return [...(named ? spread(root, named) : []), ...(schema.$ref && !schema.properties ? [] : [schema]), ...alternatives.flatMap((one) => spread(root, one))];
}
