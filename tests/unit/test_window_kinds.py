"""Kinds of windows: the examples of each, at the desk, and what the page says of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.test_command_line import Say, say

__all__ = ["say"]

ROOT = Path(__file__).parents[2]
KINDS = ["sessions", "cumulative", "days"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_of_a_kind_passes_its_tests(kind: str, say: Say) -> None:
    said = say("pipeline", "test", str(ROOT / "examples" / "tests" / f"{kind}.yaml"))
    assert said.code == 0, said.out + said.err


def test_each_window_on_the_page_is_one_of_an_example() -> None:
    page = (ROOT / "docs" / "pipeline.md").read_text()
    of_kinds = page.partition("#### Sessions")[2].partition("\n### ")[0]
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", of_kinds, re.DOTALL)]
    assert len(blocks) == len(KINDS)
    examples = [(ROOT / "examples" / f"{kind}.yaml").read_text() for kind in KINDS]
    steps: list[Any] = [step for text in examples for step in list(yaml.safe_load_all(text))[1]["steps"]]
    assert [step for block in blocks for step in block if step not in steps] == []
