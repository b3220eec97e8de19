"""The start and the end of a window as values of expressions: `window_start()` and `window_end()`."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
import yaml

from strandline.core.errors import InvalidDocument
from strandline.processing.desk.desk import Desk, DeskResult
from strandline.processing.desk.desk_pipeline import read_pipeline
from strandline.processing.desk.records import DeskRecords
from strandline.processing.operators.evaluation import ColumnExpression
from strandline.processing.pipelines.expressions import parse_expression
from strandline.processing.pipelines.kind_registry import WINDOW_KEYWORDS
from strandline.results.writer import WINDOW_END, WINDOW_START
from tests.support.window_examples import WINDOWS

DOCUMENT = """
stream: s
partitions: 1
schema: {id: string, ts: timestamp}
key: id
retention: forever
---
pipeline: p
input: {stream: s}
event_time: {field: ts, delay: 1s}
steps: STEPS
"""
DERIVED = [
    {"derive": {"first": "window_start()", "last": "window_end()"}},
    {"where": "window_end() > window_start() and hour(window_end()) < 24"},
    {"emit": [{"elasticsearch": "x"}]},
]
KINDS = {name: fields for name, fields in WINDOWS.items() if name.partition(" ")[0] in WINDOW_KEYWORDS}


def results_of(steps: list[Any]) -> list[dict[str, Any]]:
    pipeline = read_pipeline(DOCUMENT.replace("STEPS", json.dumps(steps)).encode(), "p.yaml")
    desk = Desk(pipeline, 7)
    values = [json.dumps({"id": "a", "ts": f"2026-10-05T06:0{minute}:0{minute}Z"}).encode() for minute in range(6)]
    found = [*desk.feed(DeskRecords(values, [0] * len(values))), *desk.drain()]
    assert all(isinstance(one, DeskResult) for one in found), found
    return [json.loads(one.document.source) for one in found if isinstance(one, DeskResult)]


def window_of(kind: str, name: str = "w", aggregate: str = "{n: count(*)}") -> Any:
    return {"window": yaml.safe_load(f"{{name: {name}, {kind}, by: [id], aggregate: {aggregate}}}")}


@pytest.mark.guarantee(
    "G943",
    "In the steps after a window of any kind, `window_start()` and `window_end()` return the bounds of the window of a "
    "result. A later window reads them through a derived field.",
    promise="all-forms-of-a-pipeline-agree",
)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_bounds_of_each_kind_of_window_are_values(kind: str) -> None:
    found = results_of([window_of(kind), *DERIVED])
    assert found
    assert [(one["first"], one["last"]) for one in found] == [
        (one["window"]["start"], one["window"]["end"]) for one in found
    ]


@pytest.mark.guarantee("G943")
def test_a_later_window_reads_the_bounds_through_a_derived_field() -> None:
    steps = [
        window_of("tumbling: 1m"),
        {"derive": {"minute_end": "window_end()"}},
        window_of("tumbling: 1h", "h", "{n: sum(n), latest: max(minute_end)}"),
        {"derive": {"hours": "date_format(window_start(), 'HH')"}},
        {"emit": [{"elasticsearch": "x"}]},
    ]
    (hour,) = results_of(steps)
    assert (hour["n"], hour["latest"], hour["hours"]) == (6, "2026-10-05T06:06:00.000Z", "06")


@pytest.mark.parametrize(
    ("steps", "place"),
    [
        ([{"derive": {"x": "window_end()"}}, {"emit": [{"elasticsearch": "x"}]}], "derive.x"),
        (
            [window_of("tumbling: 1m", aggregate="{x: max(window_end())}") | {"emit": [{"elasticsearch": "x"}]}],
            "aggregate.x",
        ),
    ],
)
def test_a_step_without_a_window_before_it_is_refused(steps: list[Any], place: str) -> None:
    with pytest.raises(InvalidDocument, match=rf"{place}: window_end\(\) is only allowed in the steps after a window"):
        read_pipeline(DOCUMENT.replace("STEPS", json.dumps(steps)).encode(), "p.yaml")


def test_the_normalised_expression_names_the_function_and_a_field_may_have_its_name() -> None:
    expression = parse_expression("Window_End() - interval '1' minute")
    assert expression.sql == "TIMESTAMPADD(MINUTE, -1, WINDOW_END())"
    assert parse_expression(expression.sql).sql == expression.sql
    assert parse_expression("window_end").columns == ("window_end",)
    compiled = ColumnExpression(expression.sql, {})
    assert (compiled.type, compiled.columns) == ("timestamp", (WINDOW_END,))
    columns = {WINDOW_START: pa.array([0]), WINDOW_END: pa.array([120_000])}
    assert compiled(columns, 1)[0].as_py().isoformat() == "1970-01-01T00:01:00+00:00"
