"""The page that `strandline results --html` writes: it needs nothing else, and a browser draws it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from strandline.services.cli.result_verbs import _caption, _table, page
from tests.support.browser import CHROMIUM, COLORS, look_at

START_MS = 1_793_491_200_000
EVIL = "</script><script>document.title='broken'</script>"


def answer(**more: Any) -> dict[str, Any]:
    """Return an answer of `GET /v1/results/ALIAS`."""
    rising = [[START_MS + n * 60_000, 10.0 + n] for n in range(100)]
    falling = [[START_MS + n * 60_000, 120.0 - n] for n in range(100) if n % 7]
    return {
        "alias": "turbine-minute",
        "job": "turbine-health",
        "stage": "per_minute",
        "size_ms": 60_000,
        "every_ms": 60_000,
        "value": "load",
        "operation": "average",
        "by": "turbine",
        "from_ms": START_MS,
        "to_ms": START_MS + 99 * 60_000,
        "step_ms": 60_000,
        "results": 186,
        "lengths": [],
        "series": [{"key": "t-1", "points": rising}, {"key": EVIL, "points": falling}],
        "counts": {"records": 10_000, "rejected": {"late": 7, "parse": 12}},
    } | more


def data_of(text: str) -> dict[str, Any]:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    data: dict[str, Any] = json.loads(found)
    return data


def test_all_that_it_shows_stands_in_it_and_a_key_can_not_end_its_script() -> None:
    text = page(answer())
    data = data_of(text)
    assert data["series"] == ["t-1", EVIL]
    assert EVIL not in text
    starts, rising, falling = data["data"]
    assert starts == [START_MS / 1000 + 60 * n for n in range(100)]
    assert rising == [10.0 + n for n in range(100)]
    assert falling == [120.0 - n if n % 7 else None for n in range(100)]
    assert data["counts"] == [["records", "10,000"], ["late", "7"], ["dead letters: parse", "12"]]
    assert "__" not in re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)


def test_nothing_is_loaded_from_elsewhere() -> None:
    own = re.sub(r"<script.*?</script>", "", page(answer()), flags=re.DOTALL)
    assert not re.search(r"""(src|href)\s*=|url\(|@import""", own)


def test_before_the_first_result_it_says_so() -> None:
    nothing = answer(series=[], from_ms=None, to_ms=None, step_ms=0, results=0)
    assert data_of(page(nothing))["data"] == [[]]
    assert "has no result yet" in data_of(page(nothing))["about"]


@pytest.mark.parametrize(
    ("step_ms", "text"),
    [
        (300_000, "5 min"),
        (7_200_000, "2 h"),
        (5_400_000, "1.5 h"),
        (172_800_000, "2 d"),
        (90_000, "1.5 min"),
        (61_000, "61 s"),
    ],
)
def test_several_windows_in_a_point_are_said(step_ms: int, text: str) -> None:
    assert f"each point the average of the windows of {text}." in data_of(page(answer(step_ms=step_ms)))["about"]


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the page was NOT looked at")
@pytest.mark.parametrize("is_empty", [False, True])
def test_a_browser_draws_the_lines(tmp_path: Path, is_empty: bool) -> None:
    shown = answer(series=[], from_ms=None, to_ms=None, step_ms=0, results=0) if is_empty else answer()
    dom, pixels = look_at(page(shown), tmp_path, tmp_path / "page.png")
    assert "<title>turbine-minute: load by turbine</title>" in dom
    for color in COLORS:
        assert (pixels[color] > 100) is not is_empty, f"{pixels[color]} pixels of {color}"
    assert ("There is no result yet." in re.sub(r"<script.*?</script>", "", dom, flags=re.DOTALL)) is is_empty


def test_the_terminal_shows_a_line_for_each_key() -> None:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(_caption(answer()))
        console.print(_table(answer()))
    said = console.export_text()
    assert "186 results, each point a window of 1 min" in said
    assert "Since the job began: records 10,000, late 7, dead letters: parse 12." in said
    (line,) = [one for one in said.splitlines() if one.startswith("t-1 ")]
    assert re.search(r"▁+▂+▃+▄+▅+▆+▇+", line)
    assert line.split()[1] == "10"
