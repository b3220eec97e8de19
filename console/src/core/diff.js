/** The difference between two strings, by lines. */

const LINES_MAX = 2_000;
const AROUND = 3;

/** @typedef {{sign: " " | "+" | "-" | "…", text: string}} Line */

/**
 * Return the changed lines with some lines around them. Empty if the strings are equal.
 * @param {string} before @param {string} after @returns {Line[]}
 */
export function difference(before, after) {
  if (before === after) return [];
  const [a, b] = [before.split("\n").slice(0, LINES_MAX), after.split("\n").slice(0, LINES_MAX)];
  let first = 0;
  while (first < a.length && first < b.length && a[first] === b[first]) first += 1;
  let same = 0;
  while (same < a.length - first && same < b.length - first && a[a.length - 1 - same] === b[b.length - 1 - same]) same += 1;
  const [old, fresh] = [a.slice(first, a.length - same), b.slice(first, b.length - same)];
  /** @type {Uint16Array[]} length of the longest common part of the rests */
  const common = Array.from({ length: old.length + 1 }, () => new Uint16Array(fresh.length + 1));
  for (let at = old.length - 1; at >= 0; at -= 1) {
    for (let to = fresh.length - 1; to >= 0; to -= 1) {
      common[at][to] = old[at] === fresh[to] ? common[at + 1][to + 1] + 1 : Math.max(common[at + 1][to], common[at][to + 1]);
    }
  }
  /** @type {Line[]} */
  const lines = a.slice(0, first).map((text) => ({ sign: " ", text }));
  let [at, to] = [0, 0];
  while (at < old.length || to < fresh.length) {
    if (at < old.length && to < fresh.length && old[at] === fresh[to]) {
      lines.push({ sign: " ", text: old[at] });
      at += 1;
      to += 1;
    } else if (at < old.length && (to >= fresh.length || common[at + 1][to] >= common[at][to + 1])) lines.push({ sign: "-", text: old[at++] });
    else lines.push({ sign: "+", text: fresh[to++] });
  }
  lines.push(...a.slice(a.length - same).map((text) => /** @type {Line} */ ({ sign: " ", text })));
  return shortened(lines);
}

/** @param {Line[]} lines @returns {Line[]} */
function shortened(lines) {
  const near = lines.map((_, at) => lines.slice(Math.max(0, at - AROUND), at + AROUND + 1).some((one) => one.sign !== " "));
  /** @type {Line[]} */
  const shown = [];
  lines.forEach((one, at) => {
    if (near[at]) shown.push(one);
    else if (shown[shown.length - 1]?.sign !== "…") shown.push({ sign: "…", text: "" });
  });
  return shown;
}
