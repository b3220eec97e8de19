"""The docs and the code say the same."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts.docs_reference import MERMAID, on_post_page, settings
from strandline.core.errors import InvalidSettings
from strandline.core.settings import Settings
from strandline.services.control import ControlSettings
from tests.support.settings_classes import all_settings

ROOT = Path(__file__).parents[2]


def test_every_setting_is_in_the_docs_with_its_meaning():
    rows = re.findall(r"^\| `STRANDLINE_([A-Z_]+)` \| .+ \| (.*) \|$", settings(), re.MULTILINE)
    kinds = all_settings()
    assert {Settings, ControlSettings} < kinds and len(kinds) >= 6, "the search finds too few"
    assert sorted(name for name, _ in rows) == sorted({name.upper() for kind in kinds for name in kind.model_fields})
    assert [name for name, meaning in rows if len(meaning) < 10] == []
    assert {kind.model_config["env_prefix"] for kind in kinds} == {"STRANDLINE_"}


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("CONTROL_PORT", "nowhere", "STRANDLINE_CONTROL_PORT is wrong: Input should be a valid integer"),
        ("CONTROL_NAMES", "control", "STRANDLINE_CONTROL_NAMES is wrong: it is not JSON"),
    ],
)
def test_a_wrong_setting_is_named(variable, value, said, monkeypatch):
    monkeypatch.setenv(f"STRANDLINE_{variable}", value)
    with pytest.raises(InvalidSettings) as refused:
        ControlSettings.read()
    assert str(refused.value).startswith(said)


def test_a_file_for_a_setting_that_is_no_secret_is_refused(monkeypatch, tmp_path):
    """The file would be ignored and the default used: `up` would start its own Kafka."""
    (tmp_path / "address").write_text("farm:9092")
    monkeypatch.setenv("STRANDLINE_KAFKA_BOOTSTRAP_FILE", str(tmp_path / "address"))
    with pytest.raises(
        InvalidSettings, match="STRANDLINE_KAFKA_BOOTSTRAP_FILE is set, but only secrets can be in files"
    ):
        Settings.read()


def test_each_test_that_a_page_names_exists():
    named = {
        (page.name, path, name)
        for page in (ROOT / "docs").rglob("*.md")
        for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text())
    }
    assert len({page for page, _, _ in named}) > 1
    missing = [
        one for one in named if not re.search(rf"^(async )?def {one[2]}\(", (ROOT / one[1]).read_text(), re.MULTILINE)
    ]
    assert missing == []


def test_links_between_documents_lead_somewhere():
    documents = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    for document in documents:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            path = document.parent / target
            # The pages below docs/reference are made from the code by `make docs`, which fails on a link that leads nowhere.
            assert path.exists() or path.parent == ROOT / "docs" / "reference", f"{document.name} links to {target}"


def test_every_page_is_in_the_navigation():
    """`make docs` refuses a site with a page that nothing leads to."""
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    named = set(re.findall(r"[\w/-]+\.md\b", (ROOT / "mkdocs.yml").read_text()))
    made = {page for page in named if page.startswith("reference/") or page == "benchmarks.md"}
    assert pages - made == named - made


def test_every_module_that_the_docs_name_is_there():
    modules = [
        f"/{path.relative_to(ROOT)}"
        for room in ("strandline", "tests", "benchmarks", "examples", "scripts")
        for path in (ROOT / room).rglob("*.py")
    ]
    named = {
        (page.name, name)
        for page in (ROOT / "docs").rglob("*.md")
        for name in re.findall(r"`([a-z_/]+\.py)`", page.read_text())
    }
    assert len(named) > 50
    made_up = {("add-a-protocol.md", f"ingest/coap/{name}.py") for name in ("entry", "gateway", "settings")}
    assert {one for one in named if not any(module.endswith(f"/{one[1]}") for module in modules)} == made_up


def test_every_subpackage_is_in_the_code_map():
    text = (ROOT / "docs" / "code-map.md").read_text()
    rooms = [path.parent for path in (ROOT / "strandline").rglob("__init__.py")]
    assert [
        room.name
        for room in rooms
        if room.name not in ("strandline", "routes")
        and f"`{room.name}`" not in text
        and f"`{room.relative_to(ROOT)}`" not in text
    ] == []


def test_the_index_of_decisions_agrees_with_the_decisions():
    """Each record has an imperative title of at most 60 characters, a status, and an area; the index repeats them."""
    folder = ROOT / "docs" / "decisions"
    rows = []
    for path in sorted(folder.glob("0*.md")):
        found = re.match(r"# (\d+)\. (.{1,60})\n\nStatus: (\w+)\b.*Area: (.*)\.\n", path.read_text())
        assert found, f"{path.name} has no title of at most 60 characters, or no line with status and area"
        number, title, status, area = found.groups()
        assert int(number) == int(path.name[:4])
        rows.append(f"| [{number}]({path.name}) | {title} | {status} | {area} |")
    assert re.findall(r"^\| \[\d+\].*$", (folder / "index.md").read_text(), re.MULTILINE) == rows


def test_the_script_of_the_diagrams_is_unchanged_and_no_page_loads_another():
    folder = ROOT / "docs" / "assets" / "mermaid"
    sums = dict(reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert sums == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name != "SHA256SUMS"
    }
    assert (ROOT / "docs" / MERMAID).name in sums
    html = '<head></head><div class="mermaid"></div><script src="../assets/bundle.js"></script></body>'
    page = SimpleNamespace(url="recovery/")
    assert on_post_page(html, page, None).index(f"../{MERMAID}") < on_post_page(html, page, None).index("bundle.js")
    assert on_post_page("<p>", page, None) == "<p>"


def test_each_page_and_heading_that_a_program_names_exists():
    """Messages, help, comments and configuration name pages of `docs/`, some with a heading."""
    files = [ROOT / name for name in ("docker-compose.yml", ".env.example", "Makefile", "pyproject.toml")]
    for folder in ("strandline", "tests", "benchmarks", "examples", "scripts", "docker"):
        files += [path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".yml", ".yaml", ".sh")]
    named = {found for path in files for found in re.findall(r"\bdocs/([\w/-]+\.md)(?:#([\w-]+))?", path.read_text())}
    assert len(named) > 10
    made = set(re.findall(r"reference/\w[\w-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    for page, heading in sorted(named):
        path = ROOT / "docs" / page
        assert path.exists() or page in made, f"docs/{page} is named and doesn't exist"
        assert not heading or heading in headings(path.read_text()), f"docs/{page} has no heading {heading}"


def headings(text: str) -> set[str]:
    """Return the anchors that MkDocs makes of the headings of a page."""
    found = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in found}


def test_the_changelog_is_short():
    """A rebase of an older branch can bring the entries of development back."""
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 80 and max(len(line.split()) for line in lines) <= 35
