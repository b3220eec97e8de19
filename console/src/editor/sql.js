/** SQL in the editor: its words and their colours, and the completion of keywords, streams, columns, and functions. */
import { SQLDialect, sql } from "@codemirror/lang-sql";

/** @typedef {{name: string, call: string, description: string}} Call a function of expressions, as the API describes it */
/** @typedef {{streams: Record<string, string[]>, functions: Call[]}} Known registered streams with their fields, and functions */
/** @typedef {import("@codemirror/autocomplete").Completion} Completion */

const KEYWORDS = [
  "all and as asc begin between by case cast create cross descriptor distinct div elasticsearch else end",
  "except false files filter from full group having in insert interval into is job join left like lookup",
  "map not null on or order over partition select sink stream table then true union view when where with",
].join(" ");
const UNITS = "second minute hour day";
const TYPES = "array bigint boolean decimal double float int integer json long short string struct timestamp timestamp_ltz varchar";
const DIALECT = SQLDialect.define({ keywords: `${KEYWORDS} ${UNITS}`, types: TYPES, identifierQuotes: "\x60", doubleQuotedStrings: true, backslashEscapes: true, charSetCasts: false });
/** Functions that make windows -> text of a call. @type {Record<string, string>} */
const WINDOWS = {
  tumble: "tumble(table , descriptor(), interval '1' minute)",
  hop: "hop(table , descriptor(), interval '5' second, interval '1' minute)",
  cumulate: "cumulate(table , descriptor(), interval '1' hour, interval '1' day)",
  counted: "counted(table , descriptor(), 100, interval '1' hour)",
  previous: "previous(table , descriptor(), interval '1' hour)",
  session: "session(table  partition by , descriptor(), interval '30' second)",
};
const WINDOW_COLUMNS = ["window_start", "window_end", "window_time"];
const STRINGS_AND_COMMENTS = /'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|--[^\n]*|\/\*[\s\S]*?\*\//g;
const CREATED = /\bcreate\s+(stream|view)\s+(\x60[^\x60]+\x60|"[^"]+"|[\w$]+)/gi;
const PLAIN = /^[A-Za-z_]\w*$/;

export const sqlLanguage = () => sql({ dialect: DIALECT, upperCaseKeywords: false }).language;

/**
 * @param {import("@codemirror/autocomplete").CompletionContext} context
 * @param {Known} known
 */
export function sqlCompletions(context, known) {
  const word = context.matchBefore(/[\w\x60]*/);
  if (!word || (word.from === word.to && !context.explicit)) return null;
  const text = context.state.doc.toString();
  const before = text.slice(0, word.from).replace(STRINGS_AND_COMMENTS, " ");
  if (/'|"|--[^\n]*$|\/\*/.test(before)) return null; // in a string or a comment that isn't closed
  const declared = declaredIn(text);
  const streams = { ...known.streams, ...declared.streams };
  const isRelation = /\b(from|join|table)\s+$/i.test(before);
  /** @type {Completion[]} */
  const relations = [
    ...Object.keys(streams).map((name) => ({ label: name, apply: quoted(name), detail: "stream", type: "class", boost: isRelation ? 2 : 0 })),
    ...declared.views.map((name) => ({ label: name, apply: quoted(name), detail: "view", type: "class", boost: isRelation ? 3 : 0 })),
  ];
  const read = Object.entries(streams).filter(([name]) => declared.streams[name] || new RegExp(`(?<![\\w-])${name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}(?![\\w-])`).test(text));
  /** @type {Completion[]} */
  const columns = [...new Set([...read.flatMap(([, fields]) => fields), ...declared.aliases, ...WINDOW_COLUMNS])].map((name) => ({ label: name, apply: quoted(name), detail: "column", type: "variable", boost: 1 }));
  const options = isRelation
    ? [...relations, ...windows()]
    : [...columns, ...relations, ...windows(), ...known.functions.map((one) => ({ label: one.name, apply: `${one.name}(`, detail: one.call, info: one.description, type: "function" })), ...words()];
  const unique = [...new Map(options.map((one) => [one.label, one])).values()];
  return unique.length ? { from: word.from, options: unique, validFor: /^[\w\x60]*$/ } : null;
}

const words = () => [...KEYWORDS.split(" "), ...TYPES.split(" ")].map((word) => ({ label: word, type: "keyword" }));
const windows = () => Object.entries(WINDOWS).map(([name, call]) => ({ label: name, apply: call, detail: "window", type: "function" }));
/** @param {string} name */
const quoted = (name) => (PLAIN.test(name) ? name : "\x60" + name + "\x60");
/** @param {string} name */
const plain = (name) => name.replace(/^[\x60"]|[\x60"]$/g, "");

/**
 * Streams with their columns, views, and names after `as`, which the text declares.
 * @param {string} text @returns {{streams: Record<string, string[]>, views: string[], aliases: string[]}}
 */
function declaredIn(text) {
  /** @type {Record<string, string[]>} */
  const streams = {};
  const views = [];
  for (const found of text.matchAll(CREATED)) {
    const name = plain(found[2]);
    if (found[1].toLowerCase() === "view") views.push(name);
    else streams[name] = columnsAt(text, found.index + found[0].length);
  }
  const aliases = [...text.matchAll(/\bas\s+(\x60[^\x60]+\x60|[A-Za-z_]\w*)/gi)].map(([, name]) => plain(name)).filter((name) => !["select", "insert", "begin"].includes(name.toLowerCase()));
  return { streams, views, aliases };
}

/** The names of the columns in the parentheses after a position. @param {string} text @param {number} from */
function columnsAt(text, from) {
  const names = [];
  let depth = 0;
  let isName = false;
  for (let at = from; at < text.length; at += 1) {
    const char = text[at];
    if ("(<".includes(char)) depth += 1;
    else if (")>".includes(char)) depth -= 1;
    if ((char === "(" && depth === 1) || (char === "," && depth === 1)) isName = true;
    else if (isName && /\S/.test(char)) {
      const found = /^(\x60[^\x60]+\x60|"[^"]+"|[\w$]+)/.exec(text.slice(at));
      if (found) names.push(plain(found[1]));
      isName = false;
    }
    if ((depth === 0 && char === ")") || char === ";") break;
  }
  return names;
}
