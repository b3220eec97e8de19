"""The promises of docs/guarantees.md, the claims at the tests, and the page that lists them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from scripts import evidence
from scripts.evidence import (
    PAGE,
    ROOT,
    Claim,
    Marker,
    answer,
    evidence_page,
    markers_of,
    problems,
    read_claims,
    read_markers,
    read_promises,
)
from scripts.words_check import MESSAGE, Text, check_text, joined

GUARANTEES = "# Guarantees\n\n## Storage\n\n### Records are stored\n\nText.\n\n### Nothing is lost\n\nText.\n"


@cache
def markers() -> list[Marker]:
    return read_markers()


def claims() -> list[Claim]:
    return read_claims(markers())


def test_each_promise_has_a_claim_with_a_test_of_make_test():
    promises = read_promises((ROOT / "docs" / "guarantees.md").read_text())
    assert len(promises) >= 20 and len(claims()) > 300 and len(markers()) > 900, "the search finds too few"
    assert problems(promises, markers(), claims()) == []


def test_each_claim_is_plain_english_and_short():
    findings = [
        str(finding)
        for claim in claims()
        for finding in check_text(Text(0, MESSAGE, joined([claim.sentence])), claim.number)
    ]
    assert findings == []
    assert [claim.number for claim in claims() if len(claim.sentence) > 400] == []


def test_each_claim_that_a_document_names_exists():
    known = {claim.number for claim in claims()}
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        named = set(re.findall(r"(?<![\w/])G[1-9]\d*\b", page.read_text()))
        assert named <= known, f"{page.name} names {sorted(named - known)}"
    assert all(set(re.findall(r"\bG[1-9]\d*\b", claim.sentence)) <= known for claim in claims())


def test_each_group_of_guarantees_lists_its_known_gaps_and_the_page_is_short():
    text = (ROOT / "docs" / "guarantees.md").read_text()
    groups = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert len(groups) == 10
    assert [group.splitlines()[0] for group in groups if group.count("**Known gaps.**") != 1] == []
    assert len(text.encode()) < 20_000
    assert re.findall(r"^\| G\d+|`tests/", text, re.MULTILINE) == [], (
        "claims are markers at the tests (docs/testing.md)"
    )


def test_the_site_writes_the_page_of_the_evidence():
    config = (ROOT / "mkdocs.yml").read_text()
    assert "scripts/evidence.py" in config and PAGE in config


def module(text: str) -> str:
    """Return the source of a module. `MARK` is replaced, because the search must not find these markers here."""
    return "import pytest\n\n" + text.replace("MARK", "@pytest.mark.guarantee")


def a_project(root: Path, **modules: str) -> Path:
    (root / "docs").mkdir()
    (root / "docs" / "guarantees.md").write_text(GUARANTEES)
    for kind, text in modules.items():
        (root / "tests" / kind).mkdir(parents=True)
        (root / "tests" / kind / f"test_{kind}s.py").write_text(module(text))
    return root


def test_the_page_lists_the_tests_of_each_claim_by_promise(tmp_path: Path):
    unit = """
MARK(
    "G2",
    "A record is "
    "stored.",
    promise="records-are-stored",
)
def test_stored(): ...

class TestLoss:
    MARK("G10", "A kill loses nothing.", promise="nothing-is-lost")
    @pytest.mark.parametrize("n", [1])
    async def test_kill(self, n): ...
"""
    fault = """
@pytest.mark.long
MARK("G2")
MARK("G10")
def test_under_load(): ...
"""
    page = evidence_page(a_project(tmp_path, unit=unit, fault=fault))
    assert page[page.index("## ") :].splitlines() == [
        "## Storage",
        "",
        "### Records are stored",
        "",
        "[Promise](../guarantees.md#records-are-stored)",
        "",
        "**G2.** A record is stored.",
        "{: #g2 }",
        "",
        "- fault, `make test-all`: `tests/fault/test_faults.py::test_under_load`",
        "- unit, `make test`: `tests/unit/test_units.py::test_stored`",
        "",
        "### Nothing is lost",
        "",
        "[Promise](../guarantees.md#nothing-is-lost)",
        "",
        "**G10.** A kill loses nothing.",
        "{: #g10 }",
        "",
        "- fault, `make test-all`: `tests/fault/test_faults.py::test_under_load`",
        "- unit, `make test`: `tests/unit/test_units.py::TestLoss::test_kill`",
    ]


GOOD = """
MARK("G1", "A record is stored.", promise="records-are-stored")
MARK("G2", "A kill loses nothing.", promise="nothing-is-lost")
def test_good(): ...
"""


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ('MARK("G3", "It is red.", promise="red")\ndef test_red(): ...', "G3: docs/guarantees.md has no promise red"),
        ('MARK("G3", "It is red.")\ndef test_red(): ...', "G3: a sentence needs promise=ANCHOR"),
        ('MARK("G1", promise="nothing-is-lost")\ndef test_red(): ...', "G1: a sentence needs promise=ANCHOR"),
        ('MARK("G3")\ndef test_red(): ...', "G3: no test has its sentence"),
        ('MARK("G1", "Else.", promise="nothing-is-lost")\ndef test_red(): ...', "G1: has 2 sentences"),
        ('MARK("red", "It is red.", promise="nothing-is-lost")\ndef test_red(): ...', "must be a G and digits"),
        ("MARK()\ndef test_red(): ...", "takes a number and at most one sentence"),
        ('MARK("G1", TEXT, promise="nothing-is-lost")\ndef test_red(): ...', "as literals"),
        ('MARK("G1")\nclass TestRed: ...', "must be a decorator of a test function"),
    ],
)
def test_a_wrong_marker_is_reported(bad: str, message: str, tmp_path: Path):
    with pytest.raises(ValueError, match=re.escape(message)):
        evidence_page(a_project(tmp_path, unit=f"{GOOD}\n{bad}\n"))


def test_a_promise_without_a_claim_is_reported(tmp_path: Path):
    text = 'MARK("G1", "A record is stored.", promise="records-are-stored")\ndef test_stored(): ...\n'
    with pytest.raises(ValueError, match="no test of `make test` shows `Nothing is lost`"):
        evidence_page(a_project(tmp_path, unit=text))


def test_a_promise_that_only_long_tests_show_is_reported(tmp_path: Path):
    text = GOOD.replace("def test_good", "@pytest.mark.long\ndef test_good")
    with pytest.raises(ValueError, match="no test of `make test` shows `Records are stored`"):
        evidence_page(a_project(tmp_path, unit=text))


def test_a_claim_that_only_containers_show_is_reported():
    source = module('@pytest.mark.long\nMARK("G1", "A record is stored.", promise="a")\ndef test_it(): ...\n')
    markers = list(markers_of(source, "tests/integration/test_containers.py"))
    assert problems([], markers, read_claims(markers))[-1] == (
        "guarantee G1: only `make test-containers` shows it; add another test"
    )


@pytest.mark.parametrize("marks", ["pytest.mark.long", "[pytest.mark.timeout(900), pytest.mark.long]"])
def test_the_marks_of_a_module_count(marks: str):
    source = module(f'pytestmark = {marks}\n\nMARK("G1")\ndef test_it(): ...\n')
    assert [one.command for one in markers_of(source, "tests/fault/test_it.py")] == ["make test-all"]
    assert [one.command for one in markers_of(source, "tests/integration/test_containers.py")] == [
        "make test-containers"
    ]


def test_the_command_prints_one_claim_and_the_next_free_number(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evidence, "read_markers", markers)  # each call would parse all tests again
    assert "`tests/unit/test_kinds.py::test_results_do_not_depend_on_slices`" in answer(["G870"])
    number = answer(["--next"]).strip()
    assert number not in {one.number for one in markers()}
    with pytest.raises(ValueError, match=f"no claim {number}; pass one number"):
        answer([number])
