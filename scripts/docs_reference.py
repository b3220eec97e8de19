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
from pydantic._internal._docs_extraction import extract_docstrings_from_cls
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

import strandline
from strandline.processing.pipelines.model.pipeline import json_schema
from strandline.services.cli.commands import app

ROOT = Path(__file__).parents[1]
OPENAPI = ROOT / "docs" / "openapi.json"
BENCHMARKS = "benchmarks.md"
"""The page that shows benchmarks/RESULTS.md, which is outside of docs/."""
MERMAID = "assets/mermaid/mermaid-11.6.0.min.js"
"""Vendored with its licence and checksum (docs/assets/mermaid), unchanged from the npm package."""
SETTINGS_INTRODUCTION = """\
# Settings

Environment variables, read once when a process starts. In the column *meaning*, the prefix `STRANDLINE_` is omitted.

`strandline up` sets the variables that follow from `--data-dir` and `--port-offset`, and listens on 127.0.0.1 only.
It refuses to start if you set another `*_HOST`, TLS for its own ports, or a login for a server that it starts.

A secret can be in a file: `STRANDLINE_KAFKA_PASSWORD_FILE=/run/secrets/kafka` instead of `STRANDLINE_KAFKA_PASSWORD`.
This works for `*_PASSWORD`, `*_API_KEY`, `KAFKA_OAUTH_CLIENT_SECRET`, `KAFKA_PROPERTIES`, `SQL_SOURCES`, `SQL_SINK_URL`,
`POLL_SECRETS`, `NOTICE_SECRETS`, `ELASTICSEARCH_URL`, and `LEDGER_URL`.
Setting both forms is an error, and so is `_FILE` for any other variable.
[Connect to secured servers](../security.md#when-a-secret-or-a-certificate-changes) says when a changed file is read again.
"""
SETTING_GROUPS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Directories and logs", "", ("",)),
    ("Kafka", "[Connect to secured servers](../security.md#kafka) has examples.", ("kafka_", "stream_replication")),
    ("Elasticsearch", "[Connect to secured servers](../security.md#elasticsearch) has examples.", ("elasticsearch_",)),
    (
        "Ledger, databases, schema registry",
        "See [tables](../sinks.md#write-to-a-table), [lookups](../lookups.md), and "
        "[schemas](../../strandline/processing/formats/avro/page.md#schema-registry).",
        ("ledger_", "sql_", "schema_registry_"),
    ),
    (
        "Access control",
        "[Access](../access.md) explains tokens and roles.",
        ("auth", "oidc_", "allow_unauthenticated", "tokens_", "check_"),
    ),
    ("Control service", "", ("control_", "lease_", "slices_kept_", "standbys")),
    ("Jobs and Spark", "", ("spark_", "slice_", "scratch_", "snapshot_", "audit_", "allow_functions")),
    (
        "All gateways",
        "",
        ("gateway_", "record_", "streams_look", "confirm_", "spool_", "pages_", "port_offset"),
    ),
    ("HTTP gateway", "[HTTP ingest](../http-ingest.md) is the reference.", ("http_",)),
    ("MQTT server", "[MQTT server](../../strandline/ingest/mqtt/server_page.md) is the guide.", ("mqtt_listener_",)),
    ("MQTT bridge", "", ("mqtt_",)),
    ("UDP gateway", "", ("udp_",)),
    ("TCP gateway", "", ("tcp_",)),
    ("Polling gateway", "[HTTP polling](../http-polling.md) is the guide.", ("poll_",)),
    ("Notices", "[Notices](../notices.md) is the guide.", ("notice_",)),
)
"""Title, introduction, and prefixes of the settings of each group."""
FOR_CONTRIBUTORS = (
    "decisions/",
    "reference/evidence",
    BENCHMARKS,
    "testing",
    "job-faults",
    "ingest-faults",
    "container-tests",
    "nexmark",
    "code-map",
    "add-a-protocol",
)
"""Beginnings of the files of pages that users seldom search for."""
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


def on_page_markdown(markdown: str, page: Page, **_: object) -> None:
    """Rank pages for contributors lower in the search. MkDocs' hook: called once a page."""
    if page.file.src_uri.startswith(FOR_CONTRIBUTORS):
        page.meta["search"] = {"boost": 0.2}


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
    """Every environment variable, by topic. The meaning is the docstring of the field."""
    fields: dict[str, tuple[Any, str]] = {}
    for kind in _settings_classes():
        meanings = extract_docstrings_from_cls(kind, use_inspect=True)
        for name, field in kind.model_fields.items():
            if name in kind.__annotations__ or name not in fields:
                fields[name] = field, meanings.get(name, fields.get(name, (None, ""))[1])
    lines = [SETTINGS_INTRODUCTION]
    grouped: dict[str, list[str]] = {title: [] for title, _, _ in SETTING_GROUPS}
    for name in fields:
        grouped[_group(name)].append(name)
    for title, introduction, _ in SETTING_GROUPS:
        lines += [f"## {title}", "", *([introduction, ""] if introduction else [])]
        lines += ["| variable | default | meaning |", "| --- | --- | --- |"]
        for name in grouped[title]:
            field, meaning = fields[name]
            lines.append(f"| `STRANDLINE_{name.upper()}` | {_default(field)} | {_cell(meaning)} |")
        lines.append("")
    return "\n".join(lines)


def _group(name: str) -> str:
    """Return the title of the group with the longest prefix of `name`; the first group contains all others."""
    matches = [
        (len(prefix), title) for title, _, prefixes in SETTING_GROUPS for prefix in prefixes if name.startswith(prefix)
    ]
    return max(matches)[1]


def _settings_classes() -> list[type[BaseSettings]]:
    """Return all classes of settings, base classes first, so that a variable is listed with the class that declares it."""
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


def _default(field: Any) -> str:
    if field.default_factory is not None:
        made = field.default_factory()
        return f"`{json.dumps(made)}`" if isinstance(made, dict | list) else "see the meaning"
    if field.default is PydanticUndefined:
        return "required"
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    return "none" if field.default in (None, (), "") else f"`{field.default}`"


def pipeline_fields() -> str:
    """Every field of the documents, as the schema has it."""
    schema = json_schema()
    lines = [
        "# Fields of the documents",
        "",
        "All fields, from the JSON Schema of the documents. [Streams and pipelines](../pipeline.md) explains them.",
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
