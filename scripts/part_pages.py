"""Pages of the site for kinds, aggregate functions, formats, sinks, and gateways. MkDocs calls the functions `on_...`.

The page of a part is next to its code: `page.md` in its folder. A package adds a page in the same way, and a site that is built
where the package is installed contains it. The page of an aggregate function is made from the `docs` of its contract.
Links between these pages and `docs/` are those of the files in the repository, so they also work without the site.
"""

from __future__ import annotations

import json
import posixpath
import re
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from strandline.core.streams import format_registry
from strandline.ingest import registry as gateway_registry
from strandline.processing.aggregates import registry as aggregate_registry
from strandline.processing.aggregates.contract import AggregateFunction
from strandline.processing.pipelines import kind_registry
from strandline.results.sinks import registry as sink_registry

ROOT = Path(__file__).parents[1]
MODULES = {
    "kinds": {
        kind: kind_registry.module_of(kind, "plan").rpartition(".")[0]
        for kind in (*kind_registry.ROW_KINDS, *kind_registry.STAGE_KINDS)
    },
    "formats": {name: format_registry.module_of(name, "format") for name in format_registry.FORMATS},
    "sinks": sink_registry.SINKS,
    "gateways": gateway_registry.GATEWAYS,
}
"""Sort -> name of each part of Strandline -> its module."""
SORTS = ("kinds", "aggregates", "formats", "sinks", "gateways")
OTHER_PAGES = {"benchmarks/RESULTS.md": "benchmarks.md"}
"""File of the repository -> page of the site, for pages that other hooks add."""
LIST_OF_AGGREGATES = "<!-- list of aggregates -->"


class PartPage(NamedTuple):
    """The page of one part."""

    sort: str
    name: str
    file: Path
    """File with the text. For an aggregate function: the file that the page has in the site."""
    function: AggregateFunction | None = None

    @property
    def uri(self) -> str:
        """File in the site."""
        return f"{self.sort}/{self.name}.md"

    @property
    def source(self) -> str:
        """File in the repository, or the absolute path if it is outside."""
        return self.file.relative_to(ROOT).as_posix() if self.file.is_relative_to(ROOT) else self.file.as_posix()

    def text(self) -> str:
        """Return the page as Markdown. Raises OSError if the part has no page."""
        return self.file.read_text(encoding="utf-8") if self.function is None else aggregate_page(self.function)


@cache
def part_pages() -> list[PartPage]:
    """Return the pages of all parts, of Strandline and of installed packages."""
    pages = []
    for sort in SORTS:
        added = {one.name: one.module for one in sorted(entry_points(group=f"strandline.{sort}"))}
        if sort == "aggregates":
            names = [*(one.name for one in aggregate_registry.BUILT_IN), *added]
            pages += [
                PartPage(sort, name, ROOT / "docs" / sort / f"{name}.md", aggregate_registry.function_of(name))
                for name in names
            ]
        else:
            pages += [PartPage(sort, name, page_file(module)) for name, module in (added | dict(MODULES[sort])).items()]
    return pages


def page_file(module: str) -> Path:
    """Return the file with the page of a part. If its module is `X_entry`, the file is `X_page.md`."""
    spec = find_spec(module)
    if spec is None:
        raise ModuleNotFoundError(f"{module}: no such module; install the package of this part again")
    prefix = module.rpartition(".")[2].rpartition("entry")[0]
    folder = (
        Path(spec.submodule_search_locations[0]) if spec.submodule_search_locations else Path(spec.origin or "").parent
    )
    return folder / f"{prefix}page.md"


def aggregate_page(function: AggregateFunction) -> str:
    """Return the page of an aggregate function."""
    lines = [f"# {function.name}", ""]
    if function.other_names:
        lines += [f"Other names: {', '.join(f'`{name}`' for name in function.other_names)}.", ""]
    lines += ["| call | arguments | type of the result | result |", "| --- | --- | --- | --- |"]
    # The links of a summary are those of docs/aggregates.md, which lists it.
    lines += [
        f"| `{one.call}` | {one.accepts} | {_type(one.returns)} | {one.summary.replace('](', '](../')} |"
        for one in function.docs
    ]
    lines += [
        "",
        "## Example",
        "",
        "Over the [five records](../aggregates.md) of the reference:",
        "",
        "```yaml",
        "- window:",
        "    name: per_minute",
        "    tumbling: 1m",
        "    by: [pump]",
        "    aggregate:",
    ]
    lines += [f'      value_{number}: "{one.example}"' for number, one in enumerate(function.docs, start=1)]
    values = {f"value_{number}": one.value for number, one in enumerate(function.docs, start=1)}
    lines += ["```", "", "```json", json.dumps(values), "```", "", "## Nulls and errors", ""]
    nulls = [one.nulls for one in function.docs if one.nulls] or ["Rows whose argument is null are ignored."]
    lines += [
        f"{' '.join(nulls)} An argument that can't be computed counts as null. If the whole expression "
        "can't be computed, the result becomes a dead letter `expression`. See [the rules](../aggregates.md).",
        "",
        "## Limits",
        "",
    ]
    limits = [one.limits for one in function.docs if one.limits]
    lines += [*limits] if limits else ["The state of a window and key is a few numbers or one row for each partition."]
    return "\n".join([*lines, ""])


def list_of_aggregates() -> str:
    """Return a table of all calls, each with a link to the page of its function."""
    lines = ["| aggregate | result | example | value |", "| --- | --- | --- | --- |"]
    for page in part_pages():
        lines += [
            f"| [`{one.call}`]({page.uri}) | {one.summary} | `{one.example}` | `{json.dumps(one.value)}` |"
            for one in (() if page.function is None else page.function.docs)
        ]
    return "\n".join(lines)


def _type(text: str) -> str:
    return text if " " in text or "`" in text else f"`{text}`"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace each entry `SORT/` of the navigation by the pages of this sort. Called once a build."""
    part_pages.cache_clear()
    config.nav = _expanded(config.nav)
    return config


def _expanded(entry: Any) -> Any:
    if isinstance(entry, list):
        return [_expanded(one) for one in entry]
    if isinstance(entry, dict):
        return {title: _expanded(one) for title, one in entry.items()}
    return [page.uri for page in part_pages() if f"{page.sort}/" == entry] or entry


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages. Called once a build, before any page is rendered."""
    for page in part_pages():
        files.append(File.generated(config, page.uri, content=page.text()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Change links between files of the repository into links between pages of the site. Called once a page."""
    if LIST_OF_AGGREGATES in markdown:
        markdown = markdown.replace(LIST_OF_AGGREGATES, list_of_aggregates())
    return with_site_links(markdown, page.file.src_uri)


def with_site_links(markdown: str, uri: str) -> str:
    """Return the text of the page `uri` with links to pages of the site. Links that lead nowhere in the site stay as they are."""
    pages = part_pages()
    by_source = {page.source: page.uri for page in pages} | OTHER_PAGES
    source = {page.uri: page.source for page in pages}.get(uri, f"docs/{uri}")

    def changed(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
        target = by_source.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
        return (
            link[0]
            if target is None
            else f"]({posixpath.relpath(target, posixpath.dirname(uri) or '.')}{link[2] or ''})"
        )

    return re.sub(r"\]\(([^)#:\s]+)(#[^)\s]*)?\)", changed, markdown)
