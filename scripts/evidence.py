"""Evidence of the guarantees: the tests that show each promise of docs/guarantees.md, from the markers at the tests.

    @pytest.mark.guarantee("G12", "A job never starts over a hole in the log.", promise="a-damaged-log-stops-the-job")
    def test_a_log_with_a_hole_stops_the_job(): ...

A claim is a number and a sentence at one test. `promise` is the anchor of its promise. Other tests of the claim name only
its number: `@pytest.mark.guarantee("G12")`. MkDocs writes the page; to print it, run `python scripts/evidence.py`.
`python scripts/evidence.py G12` prints one claim with its tests, and `--next` prints the next free number.

The tests are parsed and not imported. Only the standard library is used.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
PAGE = "reference/evidence.md"
CONTAINERS = frozenset({"tests/integration/test_containers.py", "tests/integration/test_dockerfile.py"})
"""Modules that only `make test-containers` runs."""
INTRODUCTION = """\
# Evidence of the guarantees

This page lists the tests that show each promise of [Guarantees](../guarantees.md).
A promise consists of numbered claims. Tests of `make test` or `make test-all` show each claim; the command is next to each test.
[Tests](../testing.md) explains the kinds of tests and the commands.

"""


class Promise(NamedTuple):
    """A promise of docs/guarantees.md: a heading of the third level."""

    group: str
    title: str

    @property
    def anchor(self) -> str:
        """Anchor that MkDocs and GitHub make of the title."""
        return anchor(self.title)


class Marker(NamedTuple):
    """One `@pytest.mark.guarantee(...)`."""

    path: str
    line: int
    test: str
    """Name of the test, after the name of its class."""
    command: str
    """Shortest command that runs the test, for example `make test`."""
    arguments: tuple[object, ...]
    keywords: dict[str | None, object]
    """None as a value if the source has no literal."""

    @property
    def number(self) -> str:
        return str(self.arguments[0]) if self.arguments else ""

    @property
    def kind(self) -> str:
        """Folder of the test, for example `unit`."""
        return self.path.split("/")[1]


class Claim(NamedTuple):
    """A numbered sentence, and the markers of the tests that show it."""

    number: str
    sentence: str
    promise: str
    markers: tuple[Marker, ...]


def anchor(title: str) -> str:
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


def read_promises(text: str) -> list[Promise]:
    """Return the promises of the page of guarantees, in its order."""
    promises, group = [], ""
    for level, title in re.findall(r"^(##|###) (.+)$", text, re.MULTILINE):
        if level == "##":
            group = title
        else:
            promises.append(Promise(group, title))
    return promises


def read_markers(root: Path = ROOT) -> list[Marker]:
    """Return the markers of all tests, by path and line."""
    found = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        source = path.read_text(encoding="utf-8")
        if "mark.guarantee" in source:
            found += markers_of(source, path.relative_to(root).as_posix())
    return found


def markers_of(source: str, path: str) -> Iterator[Marker]:
    """Yield the markers of one module. Raise ValueError if a marker isn't at a test function."""
    tree = ast.parse(source)
    bodies: list[tuple[str, list[ast.stmt], bool]] = [("", tree.body, _is_long(_module_marks(tree)))]
    count = 0
    for name, body, long in bodies:
        for node in body:
            if isinstance(node, ast.ClassDef):
                bodies.append((f"{node.name}::", node.body, long or _is_long(node.decorator_list)))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for call in node.decorator_list:
                    if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.guarantee":
                        count += 1
                        arguments = tuple(_literal(one) for one in call.args)
                        keywords = {one.arg: _literal(one.value) for one in call.keywords}
                        command = _command(path, long or _is_long(node.decorator_list))
                        yield Marker(path, call.lineno, name + node.name, command, arguments, keywords)
    if count != len(re.findall(r"^ *(?:@|pytestmark\b.*)pytest\.mark\.guarantee\b", source, re.MULTILINE)):
        raise ValueError(f"{path}: each marker `guarantee` must be a decorator of a test function")


def _module_marks(tree: ast.Module) -> list[ast.expr]:
    """Return the elements of `pytestmark`."""
    marks: list[ast.expr] = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            marks += node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [node.value]
    return marks


def _is_long(marks: list[ast.expr]) -> bool:
    return any(isinstance(mark, ast.Attribute) and ast.unparse(mark) == "pytest.mark.long" for mark in marks)


def _literal(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _command(path: str, long: bool) -> str:
    if not long:
        return "make test"
    return "make test-containers" if path in CONTAINERS else "make test-all"


def read_claims(markers: list[Marker]) -> list[Claim]:
    """Return the claims, by number. Markers without a claim are left out; `problems` reports them."""
    by_number: dict[str, list[Marker]] = {}
    for marker in markers:
        by_number.setdefault(marker.number, []).append(marker)
    claims = []
    for number, those in sorted(by_number.items(), key=lambda item: int(re.sub(r"\D", "", item[0]) or 0)):
        for marker in those:
            if len(marker.arguments) == 2:
                sentence, promise = str(marker.arguments[1]), str(marker.keywords.get("promise"))
                claims.append(Claim(number, sentence, promise, tuple(those)))
    return claims


def problems(promises: list[Promise], markers: list[Marker], claims: list[Claim]) -> list[str]:
    """Return a message for each marker, claim, and promise that breaks a rule of this module."""
    messages = []
    anchors = {promise.anchor for promise in promises}
    sentences = {claim.number for claim in claims}
    for marker in markers:
        where = f"{marker.path}:{marker.line}: guarantee {marker.number}"
        if len(marker.arguments) not in (1, 2) or not all(isinstance(one, str) for one in marker.arguments):
            messages.append(f"{where}: takes a number and at most one sentence, as literals")
        elif not re.fullmatch(r"G[1-9]\d*", marker.number):
            messages.append(f"{where}: the number must be a G and digits, for example G12")
        elif marker.number not in sentences:
            messages.append(f"{where}: no test has its sentence; add it to one marker, with promise=ANCHOR")
        elif list(marker.keywords) != ["promise"] * (len(marker.arguments) - 1):
            messages.append(f"{where}: a sentence needs promise=ANCHOR, and a number alone has no promise")
    for number in sorted(sentences):
        same = [claim for claim in claims if claim.number == number]
        if len(same) > 1:
            tests = ", ".join(sorted({marker.path for marker in same[0].markers if len(marker.arguments) == 2}))
            messages.append(f"guarantee {number}: has {len(same)} sentences ({tests}); give one claim another number")
    for claim in claims:
        if claim.promise not in anchors:
            messages.append(f"guarantee {claim.number}: docs/guarantees.md has no promise {claim.promise}")
        if all(marker.command == "make test-containers" for marker in claim.markers):
            messages.append(f"guarantee {claim.number}: only `make test-containers` shows it; add another test")
    shown = {claim.promise for claim in claims if any(marker.command == "make test" for marker in claim.markers)}
    messages += [
        f"docs/guarantees.md: no test of `make test` shows `{one.title}`; add a claim with a short test"
        for one in promises
        if one.anchor not in shown
    ]
    return messages


def claim_text(claim: Claim) -> str:
    """Return a claim with its tests as Markdown."""
    tests = [f"- {one.kind}, `{one.command}`: `{one.path}::{one.test}`\n" for one in claim.markers]
    return "".join([f"**{claim.number}.** {claim.sentence}\n{{: #{claim.number.lower()} }}\n\n", *tests])


def page(promises: list[Promise], claims: list[Claim]) -> str:
    """Return the page of the evidence as Markdown."""
    parts = [INTRODUCTION]
    group = ""
    for promise in promises:
        if promise.group != group:
            group = promise.group
            parts.append(f"## {group}\n\n")
        parts.append(f"### {promise.title}\n\n[Promise](../guarantees.md#{promise.anchor})\n\n")
        for claim in claims:
            if claim.promise == promise.anchor:
                parts += [claim_text(claim), "\n"]
    return "".join(parts).rstrip("\n") + "\n"


def evidence_page(root: Path = ROOT) -> str:
    """Return the current page of the evidence. Raise ValueError with all problems of the markers."""
    promises = read_promises((root / "docs" / "guarantees.md").read_text(encoding="utf-8"))
    markers = read_markers(root)
    claims = read_claims(markers)
    if messages := problems(promises, markers, claims):
        raise ValueError("\n".join(messages))
    return page(promises, claims)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page of the evidence. MkDocs' hook: called once a build, before any page is rendered."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, PAGE, content=evidence_page()))
    return files


def answer(arguments: list[str]) -> str:
    """Return the output of the command. Raise ValueError if a marker or the argument is wrong."""
    if not arguments:
        return evidence_page()
    markers = read_markers()
    if arguments == ["--next"]:
        return f"G{max(int(re.sub(r'[^0-9]', '', one.number) or 0) for one in markers) + 1}\n"
    claims = [one for one in read_claims(markers) if [one.number] == arguments]
    if not claims:
        raise ValueError(f"no claim {' '.join(arguments)}; pass one number, as G12, or --next for the next free number")
    return "".join(claim_text(one) for one in claims)


if __name__ == "__main__":
    try:
        print(answer(sys.argv[1:]), end="")
    except ValueError as problem:
        sys.exit(str(problem))
