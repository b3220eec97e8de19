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
