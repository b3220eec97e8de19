/** The editor of documents. It is a bundle of its own, which the page loads when a view first needs it. */
import { autocompletion, completionKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { yaml } from "@codemirror/lang-yaml";
import { HighlightStyle, bracketMatching, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { lintKeymap, setDiagnostics } from "@codemirror/lint";
import { Compartment, EditorState, StateField } from "@codemirror/state";
import { Decoration, EditorView, drawSelection, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { positionAt, schemasAt } from "./path.js";
import { sqlCompletions, sqlLanguage } from "./sql.js";

/** @typedef {{line: number | null, column: number | null, pointer: string, detail: string}} Found a problem, as the API reports it */
/** @typedef {"yaml" | "sql"} Form */
/** @typedef {{text: string, line?: number | null, form: Form, schema: () => Record<string, any> | null, streams: () => Record<string, string[]>, changed: (text: string) => void}} Options */

const COLOURS = HighlightStyle.define([
  { tag: [tags.propertyName, tags.definition(tags.propertyName)], color: "var(--accent)" },
  { tag: [tags.string, tags.content], color: "var(--text)" },
  { tag: [tags.comment, tags.lineComment], color: "var(--muted)", fontStyle: "italic" },
  { tag: [tags.keyword, tags.meta, tags.typeName], color: "var(--series-4)" },
  { tag: [tags.punctuation, tags.separator, tags.squareBracket, tags.brace], color: "var(--muted)" },
]);
const THEME = EditorView.theme({
  "&": { color: "var(--text)", backgroundColor: "var(--raised)", borderRadius: "8px", fontSize: "13px", border: "1px solid var(--line)" },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "1px" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.6", overflow: "auto" },
  ".cm-content": { caretColor: "var(--text)", padding: "10px 0" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  ".cm-gutters": { backgroundColor: "transparent", color: "var(--muted)", border: "0" },
  ".cm-activeLine": { backgroundColor: "transparent" },
  "&.cm-focused .cm-activeLine": { backgroundColor: "color-mix(in srgb, var(--accent-soft) 55%, transparent)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--strong-line)" },
  ".cm-opened": { backgroundColor: "var(--accent-soft)", boxShadow: "inset 3px 0 var(--accent)" },
  ".cm-lintRange-error": { backgroundImage: "none", textDecoration: "underline wavy var(--bad)", textUnderlineOffset: "3px" },
  ".cm-tooltip": { backgroundColor: "var(--surface)", border: "1px solid var(--strong-line)", borderRadius: "8px", overflow: "hidden", color: "var(--text)" },
  ".cm-tooltip-autocomplete > ul": { fontFamily: "var(--mono)" },
  ".cm-tooltip-autocomplete > ul > li[aria-selected]": { backgroundColor: "var(--accent-soft)", color: "var(--text)" },
  ".cm-completionDetail": { color: "var(--muted)", fontStyle: "normal", fontFamily: "var(--sans)" },
  ".cm-completionInfo": { fontFamily: "var(--sans)", maxWidth: "320px", padding: "8px 10px" },
  ".cm-diagnostic-error": { borderLeft: "3px solid var(--bad)" },
});

/** Highlights a line, wherever changes move it. @param {number} number */
const markedLine = (number) =>
  StateField.define({
    create: (state) => Decoration.set([Decoration.line({ class: "cm-opened" }).range(state.doc.line(Math.min(number, state.doc.lines)).from)]),
    update: (marks, change) => marks.map(change.changes),
    provide: (field) => EditorView.decorations.from(field),
  });

/**
 * @param {Element} parent @param {ShadowRoot} root root of the styles
 * @param {Options} options
 */
export function createEditor(parent, root, options) {
  const language = new Compartment();
  let { form } = options;
  const known = () => ({ streams: options.streams(), functions: options.schema()?.["x-strandline-functions"] ?? [] });
  const view = new EditorView({
    parent,
    root,
    state: EditorState.create({
      doc: options.text,
      extensions: [
        lineNumbers(), history(), drawSelection(), indentOnInput(), bracketMatching(), highlightActiveLine(), language.of(partsOf(form)),
        indentUnit.of("  "), EditorState.tabSize.of(2), syntaxHighlighting(COLOURS), THEME, EditorView.lineWrapping,
        autocompletion({ override: [(context) => (form === "sql" ? sqlCompletions(context, known()) : completions(context, options.schema()))], icons: false }),
        keymap.of([...completionKeymap, ...historyKeymap, ...lintKeymap, ...defaultKeymap, indentWithTab]),
        EditorView.updateListener.of((update) => {
          if (update.docChanged) options.changed(update.state.doc.toString());
        }),
        options.line ? markedLine(options.line) : [],
        EditorView.domEventHandlers({ beforeinput: replaceSelected }),
      ],
    }),
  });
  if (options.line && options.line > 1) {
    const { from } = view.state.doc.line(Math.min(options.line, view.state.doc.lines));
    view.dispatch({ selection: { anchor: from }, effects: EditorView.scrollIntoView(from, { y: "center" }) });
  }
  return {
    /** @param {string} text */
    setText(text) {
      if (text !== view.state.doc.toString()) view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } });
    },
    /** @param {Form} wanted */
    setForm(wanted) {
      form = wanted;
      view.dispatch({ effects: language.reconfigure(partsOf(form)) });
    },
    /** @param {Found[]} problems */
    show(problems) {
      const diagnostics = problems.map((one) => ({ ...rangeOf(view.state.doc, one), severity: /** @type {const} */ ("error"), message: one.detail }));
      view.dispatch(setDiagnostics(view.state, diagnostics.sort((a, b) => a.from - b.from)));
    },
    /** @param {Found} problem */
    goTo(problem) {
      const { from } = rangeOf(view.state.doc, problem);
      view.dispatch({ selection: { anchor: from }, effects: EditorView.scrollIntoView(from, { y: "center" }) });
      view.focus();
    },
    /** @param {Found} problem */
    columnOf(problem) {
      const { from } = rangeOf(view.state.doc, problem);
      return from - view.state.doc.lineAt(from).from + 1;
    },
    destroy: () => view.destroy(),
  };
}

/** The language of a form, and the name of the editor. @param {Form} form */
const partsOf = (form) => [
  form === "sql" ? sqlLanguage() : yaml(),
  EditorView.contentAttributes.of({ "aria-label": `Documents in ${form.toUpperCase()}`, spellcheck: "false", autocapitalize: "off" }),
];

/**
 * Replace the selection by typed text. Browsers would merge the lines with inline styles, which the content security policy forbids.
 * @param {InputEvent} event @param {EditorView} view
 */
function replaceSelected(event, view) {
  if (event.inputType !== "insertText" || event.data === null || event.isComposing || view.state.selection.main.empty) return false;
  event.preventDefault();
  view.dispatch(view.state.replaceSelection(event.data), { userEvent: "input.type", scrollIntoView: true });
  return true;
}

/**
 * The word at a problem's column; without a column, the value of its field in its line. The whole line, if the line doesn't contain the field.
 * @param {import("@codemirror/state").Text} doc @param {Found} problem
 */
function rangeOf(doc, problem) {
  const line = doc.line(Math.min(Math.max(problem.line ?? 1, 1), doc.lines));
  const indent = line.text.length - line.text.trimStart().length;
  if (problem.column != null) {
    const from = Math.min(problem.column - 1, line.length);
    const word = /^(\x60[^\x60]*\x60|"[^"]*"|'[^']*'|[\w.$]+|\S)/.exec(line.text.slice(from));
    return { from: line.from + from, to: line.from + from + (word?.[0].length ?? 0) };
  }
  const key = problem.pointer.replace(/(\[\d+\])+$/, "").split(".").pop() ?? "";
  const found = key ? new RegExp(`(?<![\\w.-])["']?${key.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}["']?\\s*:\\s*`).exec(line.text) : null;
  if (!found) return { from: line.from + indent, to: line.to };
  const begin = found.index + found[0].length;
  const value = /^("[^"]*"|'[^']*'|\[[^\]]*\]|\{[^}]*\}|[^,}\]#]+)/.exec(line.text.slice(begin));
  const [from, to] = value ? [begin, begin + value[0].trimEnd().length] : [found.index, line.text.length];
  return { from: line.from + from, to: line.from + Math.max(from, to) };
}

/**
 * Keys and values that the schema of documents allows at the position, and fields of the streams in the text.
 * @param {import("@codemirror/autocomplete").CompletionContext} context
 * @param {Record<string, any> | null} schema
 */
function completions(context, schema) {
  const word = context.matchBefore(/[\w.-]*/);
  if (!schema || !word || (word.from === word.to && !context.explicit)) return null;
  const text = context.state.doc.toString();
  const { path, key } = positionAt(text.slice(0, word.from));
  const kind = kindAt(text, word.from);
  /** @type {import("@codemirror/autocomplete").Completion[]} */
  let options;
  if (key === null) {
    const known = schemasAt(schema, path, path.length ? kind : null);
    options = known.flatMap((one) => Object.entries(one.properties ?? {}).map(([name, property]) => ({
      label: name, apply: `${name}: `, detail: typeOf(property), info: property.description, type: "property",
    })));
  } else {
    const known = schemasAt(schema, path, kind);
    const values = known.flatMap((one) => one.enum ?? (one.const === undefined ? [] : [one.const]));
    const keys = known.flatMap((one) => Object.entries(one.properties ?? {}).map(([name, property]) => ({
      label: name, apply: `{${name}: }`, detail: typeOf(property), info: property.description, type: "property",
    })));
    options = [...values.map((value) => ({ label: String(value), type: "enum" })), ...fieldsOf(text).map((name) => ({ label: name, detail: "field", type: "variable" })), ...keys];
  }
  const unique = [...new Map(options.map((one) => [one.label, one])).values()];
  return unique.length ? { from: word.from, options: unique, validFor: /^[\w.-]*$/ } : null;
}

/** @param {string} text @param {number} at */
function kindAt(text, at) {
  const before = text.slice(0, at).split(/^---.*$/m).pop() ?? "";
  return /^(stream|pipeline|lookup)\s*:/m.exec(before)?.[1] ?? null;
}

/** @param {any} property */
const typeOf = (property) => (typeof property.type === "string" ? property.type : "");

/** Names of the fields that the streams of the text declare. @param {string} text */
function fieldsOf(text) {
  /** @type {Set<string>} */
  const names = new Set();
  for (const [, flow] of text.matchAll(/^schema:\s*\{([^\n]*)\}?/gm)) for (const [, name] of flow.matchAll(/([A-Za-z_]\w*)\s*:/g)) names.add(name);
  for (const [, block] of text.matchAll(/^schema:[^\S\n]*\n((?:[ \t]+[^\n]*\n?)+)/gm)) for (const [, name] of block.matchAll(/^\s{1,4}([A-Za-z_]\w*)\s*:/gm)) names.add(name);
  for (const name of ["type", "unit", "from", "required", "text"]) names.delete(name);
  return [...names];
}
