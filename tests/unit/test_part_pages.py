"""Each kind, aggregate, format, sink, and gateway has a page, and the example of a page has the results that it shows."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from scripts import part_pages
from scripts.part_pages import MODULES, ROOT, SORTS, PartPage, aggregate_page, with_site_links
from strandline.core.document_model import DocumentModel
from strandline.core.documents import read_documents
from strandline.core.streams.entrances import HttpSpec, MqttSpec, PollSpec, TcpSpec, UdpSpec
from strandline.core.streams.format_registry import built_in_form
from strandline.core.streams.stream import StreamSpec
from strandline.processing.aggregates.registry import BUILT_IN
from strandline.processing.pipelines.functions.installed import package_of
from strandline.processing.pipelines.kind_registry import part_of
from strandline.results.sinks.registry import SINKS, form_of
from tests.support.installed_package import install
from tests.support.plugins import forget_toys, install_toys
from tests.unit import test_http_answers
from tests.unit.test_command_line import Say, say
from tests.unit.test_http_answers import ToldStreams, ToldWriter, answer

__all__ = ["say"]

TOYS = ("acme_kinds", "acme_aggregates", "acme_frames", "acme_gateway", "acme_sink")
PAGES = [page for page in part_pages.part_pages() if page.function is None]
SECTIONS = ["Example", "Fields", "Errors and dead letters", "Limits"]
GATEWAY_FIELDS: dict[str, type[DocumentModel]] = {
    "http": HttpSpec,
    "mqtt-listener": MqttSpec,
    "udp": UdpSpec,
    "tcp": TcpSpec,
    "poll": PollSpec,
}
each = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.uri)


@pytest.fixture
def toy_pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[PartPage]]:
    """Pages of toy packages, which have parts of all sorts."""
    install_toys(monkeypatch, *TOYS)
    part_pages.part_pages.cache_clear()
    names = {(sort, one.name) for sort in SORTS for one in entry_points(group=f"strandline.{sort}")}
    yield [page for page in part_pages.part_pages() if (page.sort, page.name) in names]
    part_pages.part_pages.cache_clear()
    forget_toys(monkeypatch)


def test_each_folder_of_a_part_has_a_page() -> None:
    folders = [
        folder
        for parent in ("processing/kinds", "results/sinks")
        for folder in (ROOT / "strandline" / parent).iterdir()
        if (folder / "__init__.py").exists()
    ]
    folders += [path.parent for path in (ROOT / "strandline/processing/formats").glob("*/format.py")]
    entries = [*(ROOT / "strandline/ingest").rglob("*entry.py")]
    expected = {folder / "page.md" for folder in folders}
    expected |= {entry.with_name(entry.name.replace("entry.py", "page.md")) for entry in entries}
    assert len(expected) == len(PAGES) == sum(map(len, MODULES.values()))
    assert sorted(str(path) for path in expected if not path.exists()) == []
    assert {page.file for page in PAGES} == expected
    names = {page.name for page in part_pages.part_pages() if page.sort == "aggregates"}
    assert names == {one.name for one in BUILT_IN}


def test_the_table_of_sinks_contains_each_page() -> None:
    text = (ROOT / "docs/sinks.md").read_text()
    pages = re.findall(r"^\| \[`\{\w+: .*\]\(\.\./strandline/results/sinks/(\w+)/page\.md\)", text, re.MULTILINE)
    assert pages == [module.split(".")[-2] for module in SINKS.values()]


@each
def test_a_page_has_all_sections(page: PartPage) -> None:
    assert missing_sections(page.text()) == []


def missing_sections(text: str) -> list[str]:
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    order = [title for title in titles if title in SECTIONS]
    return [] if text.startswith("# ") and order == SECTIONS else [title for title in SECTIONS if title not in titles]


@each
def test_the_example_has_the_results_of_the_page(
    page: PartPage, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_example(page.text(), say, tmp_path, monkeypatch)


def run_example(text: str, say: Say, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the first pipeline of a page. It is followed by a test of it, or by records and results."""
    example = text.partition("## Example\n")[2].partition("\n## Fields")[0]
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", example, re.MULTILINE | re.DOTALL)
    (folder / "example.yaml").write_text(blocks[0][1])
    if functions := [block for language, block in blocks if language == "python"]:
        monkeypatch.syspath_prepend(install(folder, functions=functions[0]))
        monkeypatch.setenv("STRANDLINE_ALLOW_FUNCTIONS", "acme_quality")
        package_of.cache_clear()
    arguments = ["example.yaml", "--input", "records.txt", "--expect", "expected.ndjson"]
    if tests := [block for language, block in blocks[1:] if language == "yaml" and block.startswith("test: ")]:
        (folder / "tests.yaml").write_text(tests[0])
        arguments = ["tests.yaml"]
    else:
        records, results = [block for language, block in blocks if language in ("json", "text")]
        (folder / "records.txt").write_text(records)
        (folder / "expected.ndjson").write_text(results)
    monkeypatch.chdir(folder)
    said = say("pipeline", "test", *arguments)
    assert said.code == 0, said.out + said.err


def test_the_request_of_the_page_of_the_http_gateway_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway answers what the page shows, and records the query."""
    monkeypatch.setattr(test_http_answers, "RECORD_BYTES_MAX", 1_000)
    text = (ROOT / "strandline/ingest/http/page.md").read_text()
    document, command, shown = (text.partition(f"```{one}\n")[2].partition("```")[0] for one in ("yaml", "sh", "json"))
    stream = StreamSpec.parse(read_documents(document, "page")[0])
    words = shlex.split(command)
    headers = dict(re.findall(r"^([\w-]+): (.*)$", "\n".join(words), re.MULTILINE))
    url = words[-1].partition(":8081")[2]
    writer = ToldWriter()
    found, _ = answer(
        writer, ToldStreams(stream), words[words.index("-d") + 1].encode(), url=url.encode(),
        **{name.lower().replace("-", "_"): value for name, value in headers.items()},
    )  # fmt: skip
    assert (found.status, json.loads(found.body)) == (200, json.loads(shown))
    ((_, about),) = writer.appended
    assert about["headers"] == (("strandline-query", b"?room=attic"),)


@pytest.mark.parametrize("page", [one for one in PAGES if one.name != "mqtt"], ids=lambda page: page.uri)
def test_the_tables_of_fields_name_all_fields(page: PartPage) -> None:
    section = page.text().partition("\n## Fields\n")[2].partition("\n## ")[0]
    assert [name for name in fields_of(page) if not re.search(rf"[`{{]{name}\b", section)] == []


def fields_of(page: PartPage) -> list[str]:
    """Names of the fields that the part adds to documents."""
    models: list[type[DocumentModel]] = []
    if page.sort == "kinds" and page.name not in ("days", "cumulative_days"):
        document: Any = part_of(page.name, "document")
        models = [
            one
            for one in vars(document).values()
            if isinstance(one, type) and issubclass(one, DocumentModel) and one.__module__ == document.__name__
        ]
        models = [one for one in models if one.__name__ not in ("Fields", "WindowFields", "WindowSpec")]
    elif page.sort == "formats":
        options = built_in_form(page.name).options()
        models = [] if options is None else [options]
    elif page.sort == "sinks" and page.name != "stream":
        models = [form_of(page.name).document()]
    elif page.sort == "gateways":
        models = [GATEWAY_FIELDS[page.name]]
    return [field.alias or name for model in models for name, field in model.model_fields.items()]


def test_pages_of_packages_are_in_the_site(
    toy_pages: list[PartPage], say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages of the toy packages have the same sections, and their examples run."""
    assert {page.sort for page in toy_pages} == set(SORTS)
    for page in toy_pages:
        if page.function is not None:
            assert f"# {page.name}\n" in aggregate_page(page.function)
            continue
        assert missing_sections(page.text()) == [], page.uri
        folder = tmp_path / page.sort / page.name
        folder.mkdir(parents=True)
        run_example(page.text(), say, folder, monkeypatch)


def test_the_page_of_an_aggregate_has_its_calls_and_values() -> None:
    for function in BUILT_IN:
        page = aggregate_page(function)
        assert all(f"| `{one.call}` |" in page and f'"{one.example}"' in page for one in function.docs)
    assert all(one.call in part_pages.list_of_aggregates() for function in BUILT_IN for one in function.docs)


def test_links_of_pages_lead_to_files() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)", page.text()):
            path = page.file.parent / target
            is_made = path.resolve().is_relative_to(ROOT / "docs" / "reference")
            assert path.exists() or is_made, f"{page.source} links to {target}"


@pytest.mark.parametrize(
    ("uri", "link", "expected"),
    [
        ("steps.md", "](../strandline/processing/kinds/join/page.md#fields)", "](kinds/join.md#fields)"),
        ("kinds/days.md", "](../windows/page.md)", "](windows.md)"),
        ("kinds/days.md", "](../../../../docs/backfill.md)", "](../backfill.md)"),
        ("decisions/index.md", "](../../strandline/ingest/tcp/page.md)", "](../gateways/tcp.md)"),
        ("sizing.md", "](../benchmarks/RESULTS.md#x)", "](benchmarks.md#x)"),
        ("sizing.md", "](https://kafka.apache.org)", "](https://kafka.apache.org)"),
        ("sizing.md", "](#limits)", "](#limits)"),
    ],
)
def test_links_between_files_become_links_between_pages(uri: str, link: str, expected: str) -> None:
    assert with_site_links(f"[x{link}", uri) == f"[x{expected}"
