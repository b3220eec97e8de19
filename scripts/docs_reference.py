"""Writes the reference pages of the docs from the code, so that the two cannot drift. MkDocs calls `on_files` at each build."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

import strandline
from strandline.processing.pipelines.model.pipeline import json_schema
from strandline.services.cli.commands import app

ROOT = Path(__file__).parents[1]
OPENAPI = ROOT / "docs" / "openapi.json"
BENCHMARKS = "benchmarks.md"
"""The page that shows benchmarks/RESULTS.md, which stands outside of docs/."""
MERMAID = "assets/mermaid/mermaid-11.6.0.min.js"
"""Vendored with its licence and checksum (docs/assets/mermaid), unchanged from the npm package."""
BODIES = {"StreamSpec": "`stream:`", "LookupSpec": "`lookup:`", "PipelineSpec": "`pipeline:`"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages. MkDocs' hook: called once a build, before any page is rendered."""
    pages = {
        "command-line": command_line(),
        "pipeline-fields": pipeline_fields(),
        "rest": rest(json.loads(OPENAPI.read_text())),
        "settings": settings(),
    }
    for name, text in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    files.append(File.generated(config, BENCHMARKS, content=(ROOT / "benchmarks" / "RESULTS.md").read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Let links to the benchmarks' results lead to their page. MkDocs' hook: called once a page."""
    up = "../" * page.file.src_uri.count("/")
    return re.sub(r"\]\((\.\./)+benchmarks/RESULTS\.md", f"]({up}{BENCHMARKS}", markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Add the script of Mermaid to a page with a diagram; otherwise the theme loads it from a CDN. Once a page."""
    if 'class="mermaid"' not in output:
        return output
    up = "../" * page.url.rstrip("/").count("/") + ("../" if page.url.rstrip("/") else "")
    before, end, rest = output.rpartition("<script src=")
    return f'{before}<script src="{up}{MERMAID}"></script>\n{end}{rest}'


def command_line() -> str:
    """Every verb of the command line, with its arguments and options."""
    lines = ["# Command line", "", "Exit codes: 0 done; 1 failed; 2 wrong use; 3 an audit found differences.", ""]
    for path, command in _verbs(typer.main.get_command(app), ("strandline",)):
        usage = " ".join([*path, *filter(None, map(_usage, command.params))])
        lines += [f"## `{' '.join(path)}`", "", _help(command.help), "", f"    {usage}", ""]
        options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
        for option in options:
            lines.append(f"- `{', '.join(option.opts)}`: {option.help or ''}")
        lines += [""] if options else []
    return "\n".join(lines)


def _verbs(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    children = getattr(command, "commands", None)
    if not children:
        yield path, command
        return
    for name, child in children.items():
        yield from _verbs(child, (*path, name))


def _help(text: str | None) -> str:
    """A verb's help, its example as code."""
    plain = (text or "").replace("\b", "").strip()
    return re.sub(r"^Example: (.+)$", r"Example: `\1`", plain, flags=re.MULTILINE)


def _usage(parameter: Any) -> str:
    if parameter.param_type_name == "option":
        return ""
    name = (parameter.metavar or parameter.name or "").upper()
    return name if parameter.required else f"[{name}]"


def settings() -> str:
    """Every environment variable, by the process that reads it."""
    lines = ["# Settings", "", "Environment variables, read once when a process starts.", ""]
    seen: set[str] = set()
    for kind in _settings_classes():
        own = [(name, field) for name, field in kind.model_fields.items() if name not in seen]
        seen.update(name for name, _ in own)
        if own:
            lines += [f"## {_first_line(kind)}", "", "| variable | default | meaning |", "| --- | --- | --- |"]
            lines += [
                f"| `STRANDLINE_{name.upper()}` | {_default(field)} | {_cell(field.description or '')} |"
                for name, field in own
            ]
            lines.append("")
    return "\n".join(lines)


def _settings_classes() -> list[type[BaseSettings]]:
    """Those that are the base of others first, so that a variable stands where it is declared."""
    for module in pkgutil.walk_packages(strandline.__path__, "strandline."):
        if ".migrations." not in module.name and not module.name.endswith(".__main__"):
            importlib.import_module(module.name)
    found: list[type[BaseSettings]] = []
    left: list[type[BaseSettings]] = [BaseSettings]
    while left:
        children = sorted(left.pop(0).__subclasses__(), key=lambda kind: kind.__name__)
        left += children
        found += [kind for kind in children if kind.__module__.startswith("strandline.") and kind not in found]
    return found


def _first_line(kind: type[BaseSettings]) -> str:
    return (kind.__doc__ or kind.__name__).strip().splitlines()[0].rstrip(".")


def _default(field: Any) -> str:
    if field.default_factory is not None:
        return "by user"
    if field.default is PydanticUndefined:
        return "required"
    return "none" if field.default in (None, ()) else f"`{field.default}`"


def pipeline_fields() -> str:
    """Every field of the documents, as the schema has it."""
    schema = json_schema()
    lines = [
        "# Fields of the documents",
        "",
        "Made from the JSON Schema of both documents. [Streams and pipelines](../pipeline.md) says what they mean to each other.",
        "",
    ]
    definitions: dict[str, Any] = schema["$defs"]  # type: ignore[assignment]
    for name in [*BODIES, *sorted(set(definitions) - set(BODIES))]:
        definition = definitions[name]
        if "properties" not in definition:
            continue
        lines += [f"## {BODIES.get(name, name)}", "", definition.get("description", ""), ""]
        lines += ["| field | type | default | meaning |", "| --- | --- | --- | --- |"]
        needed = definition.get("required", [])
        for field, what in definition["properties"].items():
            default = (
                "required" if field in needed else f"`{json.dumps(what['default'])}`" if "default" in what else "none"
            )
            lines.append(f"| `{field}` | {_cell(_type(what))} | {default} | {_cell(what.get('description', ''))} |")
        lines.append("")
    return "\n".join(lines)


def _type(what: dict[str, Any]) -> str:
    if "$ref" in what:
        return str(what["$ref"]).rsplit("/", 1)[-1]
    if "enum" in what or "const" in what:
        return ", ".join(f"`{value}`" for value in what.get("enum", [what.get("const")]))
    for many in ("anyOf", "oneOf"):
        if many in what:
            return " or ".join(dict.fromkeys(_type(one) for one in what[many]))
    kind = what.get("type", "any")
    if kind == "array":
        return f"list of {_type(what.get('items', {}))}"
    return ", ".join(kind) if isinstance(kind, list) else str(kind)


def rest(description: dict[str, Any]) -> str:
    """Every route of the REST API."""
    lines = ["# REST API", "", "Made from [openapi.json](../openapi.json), which describes every answer's fields.", ""]
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            lines += [
                f"## `{method.upper()} {path}`",
                "",
                operation.get("description") or operation.get("summary", ""),
                "",
            ]
            for parameter in operation.get("parameters", []):
                need = ", required" if parameter.get("required") else ""
                kind = _type(parameter.get("schema", {}))
                lines.append(
                    f"- `{parameter['name']}` ({parameter['in']}, {kind}{need}): {parameter.get('description', '')}"
                )
            answers = [
                f"{status}: {answer.get('description', '')}" for status, answer in operation["responses"].items()
            ]
            lines += ["", "Answers: " + "; ".join(answers) + ".", ""]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
