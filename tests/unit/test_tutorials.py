"""The pages that a reader types, as far as they can be tried without a stack: their documents hold, and every command exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from strandline.core.documents import read_documents
from strandline.services.cli.commands import app
from tests.support.tutorials import DEVICES, FIRST, blocks, outside_of_blocks
from tests.unit.test_command_line import Say, say

__all__ = ["say"]

PAGES = pytest.mark.parametrize("page", [FIRST, DEVICES], ids=lambda page: page.stem)


def documents(page: Path) -> dict[str, str]:
    """File -> what the page has the reader write into it."""
    return dict(re.findall(r"^cat > (\S+) <<'YAML'\n(.*?)^YAML$", "".join(blocks(page)), re.MULTILINE | re.DOTALL))


def commands(page: Path) -> Iterator[list[str]]:
    """The words behind `strandline` of each command, as a shell reads them."""
    for line in "".join(blocks(page)).splitlines():
        alone, within = r"(?:[A-Z_]+='\S*' )?\.venv/bin/strandline (.+)", r".*\$\(\.venv/bin/strandline ([^)]+)\)"
        if found := re.match(alone, line) or re.match(within, line):
            yield shlex.split(found[1])


def parse(command: Any, words: list[str]) -> str:
    """Read the words as the command line does, and do nothing. Returns the verb. Raises a usage error."""
    while True:
        context = command.make_context(command.name or "strandline", list(words))
        if not hasattr(command, "resolve_command"):
            return str(command.name)
        _, command, words = command.resolve_command(context, [*context._protected_args, *context.args])


@pytest.mark.guarantee("G291")
@PAGES
def test_each_document_of_a_page_passes_the_check_and_each_test_passes(page: Path, tmp_path: Path, say: Say) -> None:
    files = documents(page)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for name, text in files.items():
        kinds = {one.kind for one in read_documents(text.encode(), name, ("stream", "pipeline", "test"))}
        said = say("pipeline", "test" if "test" in kinds else "check", str(tmp_path / name))
        assert said.code == 0, said


@pytest.mark.guarantee(
    "G291",
    "Every command of the two tutorials does what the page says, from an empty directory to documents in "
    "Elasticsearch.",
    promise="all-forms-of-a-pipeline-agree",
)
@PAGES
def test_the_command_line_knows_each_command_of_a_page(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    verbs = []
    for words in commands(page):
        for name in words:
            if re.fullmatch(r"[\w-]+\.(?:yaml|ndjson|txt)", name):
                Path(name).touch()
        verbs.append(parse(typer.main.get_command(app), words))
    assert {"up", "apply", "down"} <= set(verbs)
    assert len(verbs) == "".join(blocks(page)).count(".venv/bin/strandline")


@PAGES
def test_no_command_stands_where_it_is_not_run(page: Path) -> None:
    outside = outside_of_blocks(page)
    assert ".venv/bin/" not in outside and "curl -" not in outside  # the name alone may be in the list of packages
