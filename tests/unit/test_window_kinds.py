"""Kinds of windows: the examples of each, at the desk, and what the page says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from strandline.core.times.time_zones import VERSION
from strandline.processing.desk.desk_pipeline import read_pipeline
from strandline.processing.desk.pipeline_graph import pipeline_graph
from tests.unit.test_command_line import Say, say

__all__ = ["say"]

ROOT = Path(__file__).parents[2]
HOUR_MS = 3_600_000
KINDS = ["sessions", "cumulative", "days", "counted"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_of_a_kind_passes_its_tests(kind: str, say: Say) -> None:
    said = say("pipeline", "test", str(ROOT / "examples" / "tests" / f"{kind}.yaml"))
    assert said.code == 0, said.out + said.err


def test_each_window_on_the_page_is_one_of_an_example() -> None:
    folder = ROOT / "strandline" / "processing" / "kinds"
    pages = [(folder / kind / "page.md").read_text() for kind in ("session", "days", "count")]
    blocks = [
        list(yaml.safe_load_all(page.partition("```yaml\n")[2].partition("```")[0]))[1]["steps"] for page in pages
    ]
    examples = [(ROOT / "examples" / f"{kind}.yaml").read_text() for kind in KINDS]
    steps: list[Any] = [step for text in examples for step in list(yaml.safe_load_all(text))[1]["steps"]]
    assert [step for block in blocks for step in block if step not in steps] == []


def graph_of(kind: str, old: str = "", new: str = "") -> dict[str, Any]:
    text = (ROOT / "examples" / f"{kind}.yaml").read_text()
    assert old in text
    return pipeline_graph(read_pipeline(text.replace(old, new).encode(), kind))


def test_what_a_kind_keeps_and_reaches_back_is_told(say: Say) -> None:
    graph = graph_of("sessions")
    assert graph["reach_ms"] == 2 * HOUR_MS + 30_000 + 24 * HOUR_MS
    sessions, _ = graph["stages"]
    assert sessions["windows"] == "sessions with a gap of 30s, 1h at most"
    assert sessions["state"]["pane_ms"] == 30_000
    assert any("for a key that never pauses, one for each 30s; a shorter 'max'" in hint for hint in graph["hints"])
    graph = graph_of("days")
    assert graph["stages"][0]["windows"] == "1d, 6h later, in Europe/Berlin"
    assert (graph["reach_ms"], len(graph["time_zone_rules"])) == (26 * HOUR_MS, 5)
    assert graph_of("cumulative")["stages"][0]["windows"] == "1d every 1h, cumulative"
    said = say("pipeline", "explain", str(ROOT / "examples" / "days.yaml"))
    assert f"tz database {graph['time_zone_rules']}" in said.out


def test_sessions_that_share_no_field_are_computed_in_one_bucket() -> None:
    graph = graph_of("sessions", "by: [machine]", "by: []")
    assert graph["exchange"] == {"by": [], "exchanges": 1, "buckets": "one"}
    assert any("one bucket does all of the work" in hint for hint in graph["hints"])


def test_with_other_rules_of_time_zones_no_snapshot_of_days_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The panes are days by the old rules, or its records have times or values of expressions by them.

    Otherwise the rules change nothing.
    """
    texts = [(ROOT / "examples" / f"{name}.yaml").read_bytes() for name in ("days", "formats/csv", "cumulative")]
    clocks = texts[2].replace(b"steps:\n", b"steps:\n  - where: hour(from_utc_timestamp(ts, 'Europe/Berlin')) > 5\n")
    asking = [read_pipeline(text, "a.yaml") for text in (*texts[:2], clocks)]
    hours = read_pipeline(texts[2], "a.yaml")
    before = [one.digest for one in asking], hours.digest
    assert (asking[0].zone_rules, hours.zone_rules) == (VERSION, None)
    monkeypatch.setattr("strandline.core.times.time_zones.VERSION", "2099a")
    assert all(one.digest != old for one, old in zip(asking, before[0], strict=True)) and hours.digest == before[1]
