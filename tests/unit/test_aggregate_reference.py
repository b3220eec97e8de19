"""The reference of aggregates: the example of each call has its value over the records of docs/aggregates.md."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from strandline.processing.aggregates.registry import BUILT_IN
from strandline.processing.desk.desk import Desk, DeskResult, LocalDeadLetter, Outcome
from strandline.processing.desk.desk_pipeline import read_pipeline
from strandline.processing.desk.records import DeskRecords

TEXT = (Path(__file__).parents[2] / "docs" / "aggregates.md").read_text()
RECORDS = [line for line in TEXT.split("```")[1].removeprefix("json\n").splitlines() if line]
FILTERED = re.search(r"`([^`]* filter \(where [^`]*)` is `([^`]*)`", TEXT)
assert FILTERED is not None
EXAMPLES = [(one.example, one.value) for function in BUILT_IN for one in function.docs]
EXAMPLES.append((FILTERED[1], json.loads(FILTERED[2])))
STREAM = """\
stream: pumps
schema: {pump: string, ts: timestamp, flow: "double?", state: string, level: "long?"}
key: pump
---
pipeline: pump-minutes
input: {stream: pumps}
event_time: {field: ts, delay: 1m}
steps:
  - window: {name: per_minute, tumbling: 1m, by: [pump], aggregate: AGGREGATES}
    emit: [{elasticsearch: pump-minute}]
"""


def document(aggregates: dict[str, str], slice_records: int | None = None) -> dict[str, Any]:
    """The one result of these aggregates over the page's records."""
    pipeline = read_pipeline(STREAM.replace("AGGREGATES", json.dumps(aggregates)).encode(), "pumps.yaml")
    desk = Desk(pipeline, slice_records)
    outcomes = [*desk.feed(DeskRecords([line.encode() for line in RECORDS], [0] * len(RECORDS))), *desk.drain()]
    (result,) = outcomes
    assert isinstance(result, DeskResult)
    found: dict[str, Any] = json.loads(result.document.source)
    return found


@pytest.mark.guarantee("G400")
@pytest.mark.guarantee("G480")
@pytest.mark.parametrize(("expression", "expected"), EXAMPLES)
def test_each_example_gives_what_the_page_says(expression: str, expected: object) -> None:
    found = document({"value": expression, "n": "count(*)"})
    assert (found["n"], found.get("value")) == (len(RECORDS), expected)
    assert type(found.get("value")) is type(expected)
    assert document({"value": expression}, slice_records=1).get("value") == expected, "a record a slice"


@pytest.mark.parametrize(("expression", "expected"), [one for one in EXAMPLES if "filter" not in one[0]])
def test_a_filter_says_which_rows_count(expression: str, expected: object) -> None:
    """All of them, none, and some; where it is null, none."""
    of_none: object = 0 if "count" in expression else None
    if isinstance(expected, list):
        of_none = [0] * len(expected) if expression.startswith("histogram") else []
    sql = {
        name: f"{expression} filter (where {name})" for name in ("ts > timestamp '2020-01-01'", "false", "level > 100")
    }
    found = document({f"value_{at}": text for at, text in enumerate(sql.values())} | {"n": "count(*)"})
    assert [found.get(f"value_{at}") for at in range(3)] == [expected, of_none, of_none]


def test_a_filter_of_two_arguments_leaves_out_the_row() -> None:
    least = {
        "least": "min_by(state, flow) filter (where flow > 5)",
        "most": "max_by(state, flow) filter (where level > 25)",
    }
    assert {name: document(least)[name] for name in least} == {"least": "on", "most": "on"}
    assert document({"first": "first(flow) filter (where level > 20)"})["first"] == 6.0


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("count(flow) * 9223372036854775807", LocalDeadLetter),
        ("cast(max(level) as integer) * 2147483647 - min(level)", LocalDeadLetter),
        ("sum(flow) / (count(*) - count(pump))", LocalDeadLetter),
        ("sum(flow) / nullif(count(*) - count(pump), 0)", DeskResult),
        ("case when count(*) > 1 then sum(flow) / (count(*) - count(pump)) end", LocalDeadLetter),
        ("case when count(*) < 1 then sum(flow) / (count(*) - count(pump)) end", DeskResult),
        ("1 / count(*) filter (where false)", LocalDeadLetter),
        ("max(flow) filter (where false) + 1", DeskResult),
        ("sum(flow / (level - level))", DeskResult),
    ],
)
def test_a_result_that_can_not_be_computed_is_a_dead_letter(expression: str, expected: type[Outcome]) -> None:
    """One that is null by choice, or for want of rows with a value, is null; an argument that can't be computed is left out."""
    pipeline = read_pipeline(STREAM.replace("AGGREGATES", json.dumps({"value": expression})).encode(), "pumps.yaml")
    desk = Desk(pipeline, None)
    (found,) = [*desk.feed(DeskRecords([line.encode() for line in RECORDS], [0] * len(RECORDS))), *desk.drain()]
    assert type(found) is expected
    if isinstance(found, LocalDeadLetter):
        assert f"per_minute.value: no value from {pipeline.stages[0].aggregates[0].sql}" in str(found)
    else:
        assert json.loads(found.document.source)["value"] is None


def test_the_records_show_what_the_rules_are_about() -> None:
    records = [json.loads(line) for line in RECORDS]
    assert any(before["ts"] > after["ts"] for before, after in pairwise(records)), "one comes out of order"
    assert {one["flow"] is None for one in records} == {one["level"] is None for one in records} == {True, False}
