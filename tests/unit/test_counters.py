"""Counters and the record before: the page with its example, and the mistakes that the check reports."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from strandline.core.errors import InvalidDocument
from strandline.processing.desk.desk import Desk, DeskResult
from strandline.processing.desk.desk_pipeline import read_pipeline
from strandline.processing.desk.pipeline_graph import pipeline_graph
from strandline.processing.desk.records import DeskRecords
from tests.unit.test_command_line import Say, say

__all__ = ["say"]

ROOT = Path(__file__).parents[2]
DOCUMENT = """\
stream: plugs
schema: {plug: string, ts: timestamp, wh: long, cost: "decimal(38,2)", state: "string?"}
key: plug
retention: RETENTION
---
pipeline: plug-quarters
input: {stream: plugs}
event_time: {field: ts, delay: 10s}
steps:
  - window: {name: quarters, WINDOW, by: [plug], aggregate: AGGREGATE}
    emit: [{elasticsearch: quarters}]
"""


def text_of(aggregate: dict[str, str], window: str = "tumbling: 15m", retention: str = "7d") -> str:
    document = DOCUMENT.replace("AGGREGATE", json.dumps(aggregate)).replace("WINDOW", window)
    return document.replace("RETENTION", retention)


def problems_of(text: str) -> str:
    with pytest.raises(InvalidDocument) as refused:
        read_pipeline(text.encode(), "plugs.yaml")
    return str(refused.value)


def test_the_example_passes_its_tests_and_contains_the_steps_of_the_page(say: Say) -> None:
    said = say("pipeline", "test", str(ROOT / "examples" / "tests" / "counters.yaml"))
    assert said.code == 0, said.out + said.err
    page = (ROOT / "docs" / "counters.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    steps: list[Any] = [
        step
        for document in yaml.safe_load_all((ROOT / "examples" / "counters.yaml").read_text())
        for step in document.get("steps", [])
    ]
    assert len(blocks) == 2
    assert [step for block in blocks for step in block if step not in steps] == []


def test_the_quarters_of_an_hour_add_up_although_the_counter_is_reset() -> None:
    """1 Wh each minute, and a reset to 0 after 50 minutes."""
    pipeline = read_pipeline(text_of({"used": "increase(wh)"}).encode(), "plugs.yaml")
    lines = []
    for minute in range(121):
        wh = 500 + minute if minute < 50 else minute - 50
        record = {"plug": "a", "ts": _iso(1_790_000_100_000 + minute * 60_000), "wh": wh, "cost": "1"}
        lines.append(json.dumps(record).encode())
    desk = Desk(pipeline, 7)
    found = [*desk.feed(DeskRecords(lines, [0] * len(lines))), *desk.drain()]
    used = [json.loads(one.document.source)["used"] for one in found if isinstance(one, DeskResult)]
    assert len(used) == len(found) == 9
    assert sum(used) == 119, "120 steps, and the one of the reset counts 0"
    assert used[1:-1] == [15, 15, 14, 15, 15, 15, 15]


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()


def test_the_maximum_time_between_two_records_is_part_of_the_reach() -> None:
    graph = pipeline_graph(read_pipeline(text_of({"used": "increase(wh, '6h')"}).encode(), "plugs.yaml"))
    assert graph["reach_ms"] == 6 * 3_600_000 + 900_000 + 1
    problems = problems_of(text_of({"used": "increase(wh, '6h')"}, retention="5h"))
    assert "the windows and the delay reach back 6h15m10s1ms" in problems


@pytest.mark.parametrize(
    ("aggregate", "problem"),
    [
        ("increase(wh, '1h') + increase(wh, '2h')", "different times between two records (1h and 2h); write one time"),
        ("increase(wh, 60)", "expected the maximum time between two records as the second argument, as '2h'"),
        ("increase(wh, 'soon')", "the maximum time between two records"),
        ("duration(wh)", "expected a condition, as duration(state = 'on'), got a long"),
        ("rate(state)", "expected a number, got a string"),
        ("delta(cost)", "decimal(38,2) has all digits; cast it to fewer digits"),
    ],
)
def test_a_mistake_is_reported_with_its_remedy(aggregate: str, problem: str) -> None:
    assert problem in problems_of(text_of({"used": aggregate}))


def test_a_window_of_two_records_needs_a_time_between_them() -> None:
    assert "no record would have a previous one" in problems_of(text_of({"used": "lag(wh)"}, "previous: {within: 0s}"))
    assert "windows begin and end with records" in problems_of(
        text_of({"used": "lag(wh)"}, "previous: {within: 1h}, offset: 1m")
    )
