/** Documents in a text that a user edits. Only the first line of each is read; the service checks the rest. */

const FIRST_LINE = /^(stream|lookup|pipeline|notice)\s*:\s*(["']?)([^"'#\s]+)\2\s*(?:#.*)?$/;
const KINDS = ["pipeline", "stream", "lookup", "notice"];

/** The documents of a text, in its order, with their lines. @param {string} text @returns {{kind: string, name: string, line: number}[]} */
export function documentsIn(text) {
  return text.split("\n").flatMap((line, at) => {
    const found = FIRST_LINE.exec(line.trimEnd());
    return found ? [{ kind: found[1], name: found[3], line: at + 1 }] : [];
  });
}

/** The number of documents by kind: "6 pipelines and 5 streams". Empty if there is none. @param {{kind: string}[]} documents */
export function countedKinds(documents) {
  const parts = KINDS.flatMap((kind) => {
    const count = documents.filter((one) => one.kind === kind).length;
    return count ? [`${count} ${kind}${count === 1 ? "" : "s"}`] : [];
  });
  return parts.length > 1 ? `${parts.slice(0, -1).join(", ")} and ${parts[parts.length - 1]}` : parts.join("");
}

/** @type {Record<string, string>} type of a member of records -> type of a field; an integer can be a fraction in the next record */
const FIELD_TYPES = { long: "double", double: "double", string: "string", boolean: "boolean" };
const MEMBER = /^\$\.([A-Za-z_]\w*)$/;

/**
 * The document of a stream with another field, which records may lack. The text is unchanged if no schema begins at a line.
 *
 * @param {string} text in YAML
 * @param {string} path of the member, as `$.status.rssi`
 * @param {string} type of the member, as the service counts undeclared members
 */
export function withField(text, path, type) {
  const name = (path.match(/[A-Za-z_]\w*/g) ?? ["field"]).at(-1);
  const from = MEMBER.test(path) ? "" : `, from: ${JSON.stringify(path)}`;
  return text.replace(/^schema:[ \t]*$/m, `schema:\n  ${name}: {type: ${FIELD_TYPES[type] ?? "string"}, required: false${from}}`);
}
