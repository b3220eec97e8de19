/**
 * Build the console into the Python package: `npm run build`. Vendored sources and this script determine every byte of the output.
 *
 *   node build.mjs            write strandline/services/console/built
 *   node build.mjs --check    build in memory and compare with the committed files; exit code 1 if they differ
 *   node build.mjs --vendor   copy the sources of the libraries that the build reads from node_modules to ../vendor first
 */
import { createHash } from "node:crypto";
import { cpSync, existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const tools = dirname(fileURLToPath(import.meta.url));
const source = resolve(tools, "../src");
const vendor = resolve(tools, "../vendor");
const built = resolve(tools, "../../strandline/services/console/built");
const LIBRARIES = ["lit", "lit-html", "lit-element", "@lit/reactive-element", "uplot", "@dagrejs/dagre", "@tanstack/virtual-core", "@codemirror/autocomplete", "@codemirror/commands", "@codemirror/lang-sql", "@codemirror/lang-yaml", "@codemirror/language", "@codemirror/lint", "@codemirror/state", "@codemirror/streamparser", "@codemirror/view", "@lezer/common", "@lezer/highlight", "@lezer/lr", "@lezer/yaml", "@marijn/find-cluster-break", "crelt", "style-mod", "w3c-keyname"];
const SUMS = "SHA256SUMS";

/** @param {string} modules the folder that contains the libraries */
const bundle = (modules) =>
  build({
    entryPoints: { app: join(source, "main.js"), editor: join(source, "editor/main.js"), style: join(source, "style.css") },
    absWorkingDir: resolve(tools, ".."),
    nodePaths: [modules],
    conditions: ["production"],
    bundle: true,
    minify: true,
    format: "esm",
    target: ["chrome123", "firefox125", "safari17.5"],
    legalComments: "none",
    outdir: built,
    write: false,
    metafile: true,
    logLevel: "warning",
    tsconfigRaw: "{}", // tsconfig.json is for the check of types, and leads to other files
  });

/** @param {string} folder @returns {string[]} */
const filesIn = (folder) =>
  readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((one) => one.isFile())
    .map((one) => relative(folder, join(one.parentPath, one.name)))
    .filter((name) => name !== SUMS)
    .sort();
const sums = () =>
  filesIn(vendor).map((name) => `${createHash("sha256").update(readFileSync(join(vendor, name))).digest("hex")}  ${name}\n`).join("");

if (process.argv.includes("--vendor")) {
  const modules = join(tools, "node_modules");
  const { metafile } = await bundle(modules);
  rmSync(vendor, { recursive: true, force: true });
  const read = Object.keys(metafile.inputs).map((name) => resolve(tools, "..", name)).filter((name) => name.startsWith(modules));
  for (const library of LIBRARIES) {
    const folder = join(modules, library);
    const used = read.filter((name) => name.startsWith(`${folder}/`));
    if (!used.length) continue;
    const licences = readdirSync(folder).filter((name) => /^licen[sc]e/i.test(name)).map((name) => join(folder, name));
    for (const file of [join(folder, "package.json"), ...licences, ...used]) {
      const to = join(vendor, relative(modules, file));
      mkdirSync(dirname(to), { recursive: true });
      cpSync(file, to);
    }
  }
  writeFileSync(join(vendor, SUMS), sums());
}

if (readFileSync(join(vendor, SUMS), "utf8") !== sums()) {
  console.error("console/vendor: the files differ from SHA256SUMS; restore them, or run: npm run build -- --vendor");
  process.exit(1);
}

const { outputFiles } = await bundle(vendor);
/** @param {string} suffix */
const output = (suffix) => Buffer.from(/** @type {any} */ (outputFiles.find((one) => one.path.endsWith(suffix))).contents);
const licences = LIBRARIES.filter((name) => existsSync(join(vendor, name))).map((name) => {
  const { version } = JSON.parse(readFileSync(join(vendor, name, "package.json"), "utf8"));
  const file = readdirSync(join(vendor, name)).find((one) => /^licen[sc]e/i.test(one));
  if (!file) throw new Error(`${name} has no licence file`);
  return `${name} ${version}\n${"=".repeat(name.length + version.length + 1)}\n\n${readFileSync(join(vendor, name, file), "utf8").trim()}\n`;
});
/** @type {Record<string, Buffer>} */
const made = {
  "app.js": output("app.js"),
  "editor.js": output("editor.js"),
  "app.css": output("style.css"),
  "index.html": readFileSync(join(source, "index.html")),
  "icon.svg": readFileSync(join(source, "icon.svg")),
  "LICENSES.txt": Buffer.from(licences.join("\n\n")),
};

if (process.argv.includes("--check")) {
  const differing = Object.entries(made).filter(([name, bytes]) => !existsSync(join(built, name)) || !readFileSync(join(built, name)).equals(bytes));
  for (const [name] of differing) console.error(`strandline/services/console/built/${name} differs from its sources in console/; run: make console`);
  process.exit(differing.length ? 1 : 0);
}
mkdirSync(built, { recursive: true });
for (const [name, bytes] of Object.entries(made)) writeFileSync(join(built, name), bytes);
