"""Joins: what their document can say, the borders of an interval, and the meaning of a change."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from strandline.core.errors import InvalidDocument, PermanentError
from strandline.core.streams.stream import StreamSpec
from strandline.processing.desk.desk import Desk, DeskResult, LocalDeadLetter, Outcome
from strandline.processing.desk.pipeline_graph import pipeline_graph
from strandline.processing.desk.records import DeskRecords
from strandline.processing.kinds.join.operator import IntervalJoinOperator
from strandline.processing.kinds.join.step import JoinStage
from strandline.processing.operators.closing import Closing
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.stages import LEFT
from strandline.processing.pipelines.upgrade import changes_between
from strandline.results.writer import ELEMENT, OFFSET

STREAM = StreamSpec.from_document(
    {
        "stream": "shop",
        "schema": {
            "kind": "string",
            "order": "string?",
            "weight": "double?",
            "ts": {"type": "timestamp", "unit": "ms"},
            "more": "json",
            "parts": "array<long>?",
        },
    }
)
JOIN: dict[str, Any] = {
    "name": "met",
    "left": "lefts",
    "right": "rights",
    "on": ["order"],
    "within": {"after": "1s"},
    "type": "left",
    "add": {"at": "left.ts", "came": "right.ts"},
}
BEHIND = [{"emit": [{"elasticsearch": "met"}]}]


def pipeline(join: dict[str, Any], behind: Sequence[dict[str, Any]] = BEHIND, **more: Any) -> CheckedPipeline:
    steps = [
        {"where": "kind = 'l'", "name": "lefts"},
        {"where": "kind = 'r'", "name": "rights", "from": "shop"},
        {"join": {key: value for key, value in join.items() if value is not None}},
        *behind,
    ]
    event_time = {"field": "ts", "delay": "0s", "max_ahead": None}
    document = {"pipeline": "job", "input": {"stream": "shop"}, "event_time": event_time, "steps": steps, **more}
    return check(PipelineSpec.from_document(document), STREAM)


def outcomes(checked: CheckedPipeline, rows: Sequence[tuple[str, str | None, int, int]]) -> list[Outcome]:
    """Return the outcomes of rows (kind, order, ms, partition), each in a separate slice."""
    desk = Desk(checked, 1)
    found: list[Outcome] = []
    for kind, order, ts_ms, partition in rows:
        record = json.dumps({"kind": kind, "order": order, "ts": ts_ms}).encode()
        found += desk.feed(DeskRecords([record], [partition]))
    return [*found, *desk.drain()]


def met(
    checked: CheckedPipeline, rows: Sequence[tuple[str, str | None, int, int]]
) -> list[tuple[str | None, str | None]]:
    """(at, came) of each joined row, seconds and milliseconds of them."""
    documents = [json.loads(one.document.source) for one in outcomes(checked, rows) if isinstance(one, DeskResult)]
    return [tuple(one[name] and one[name][17:23] for name in ("at", "came")) for one in documents]  # type: ignore[misc]


@pytest.mark.guarantee(
    "G462",
    "The bounds of an interval belong to it, also for a row at the watermark. A pair is emitted when its later row is "
    "final, and a single row when no partner can arrive.",
    promise="operators-compute-what-the-reference-describes",
)
def test_the_borders_of_an_interval_belong_to_it_in_whatever_slice_a_row_comes() -> None:
    """The other row comes when the watermark is just where no partner can come any more."""
    after = pipeline(JOIN)
    assert met(after, [("l", "a", 0, 0), ("x", "z", 1_000, 0), ("r", "a", 1_000, 0)]) == [("00.000", "01.000")]
    assert met(after, [("l", "a", 0, 0), ("x", "z", 1_001, 0), ("r", "a", 1_001, 0)]) == [("00.000", None)]
    assert met(after, [("r", "a", 0, 0), ("l", "a", 1, 0)]) == [("00.001", None)], "none before"
    assert met(after, [("l", "a", 7, 0), ("r", "a", 7, 0)]) == [("00.007", "00.007")], "at one time"
    before = pipeline({**JOIN, "within": {"before": "1s"}, "type": "full"})
    assert met(before, [("r", "a", 0, 0), ("x", "z", 1_000, 0), ("l", "a", 1_000, 0)]) == [("01.000", "00.000")]
    assert met(before, [("r", "a", 0, 0), ("x", "z", 1_001, 0), ("l", "a", 1_001, 0)]) == [
        (None, "00.000"),
        ("01.001", None),
    ]
    both = pipeline({**JOIN, "within": "1s", "type": "inner"})
    assert met(both, [("r", "a", 0, 0), ("l", "a", 1_000, 0), ("r", "a", 2_000, 0)]) == [
        ("01.000", "00.000"),
        ("01.000", "02.000"),
    ]


@pytest.mark.guarantee("G462")
def test_a_joined_row_comes_when_the_later_of_its_rows_is_final_and_one_alone_when_no_partner_can_come() -> None:
    results = [
        json.loads(one.document.source)
        for one in outcomes(
            pipeline(JOIN), [("l", "a", 0, 0), ("l", "b", 100, 0), ("r", "a", 500, 0), ("x", "z", 5_000, 0)]
        )
        if isinstance(one, DeskResult)
    ]
    windows = {one["order"]: (one["window"]["start"][17:23], one["window"]["end"][17:23]) for one in results}
    assert windows == {"a": ("00.000", "00.501"), "b": ("00.100", "01.101")}
    assert [one["strandline"]["emission"] for one in results] == [4, 4], "the slice that brings the watermark so far"


def test_a_null_meets_nothing_and_is_alone_where_its_side_is_kept() -> None:
    rows: list[tuple[str, str | None, int, int]] = [("l", None, 0, 0), ("r", None, 0, 0)]
    assert met(pipeline({**JOIN, "type": "inner"}), rows) == []
    assert met(pipeline(JOIN), rows) == [("00.000", None)]
    assert sorted(met(pipeline({**JOIN, "within": "0s", "type": "full"}), rows), key=str) == [
        ("00.000", None),
        (None, "00.000"),
    ]


@pytest.mark.guarantee(
    "G463",
    "The memory of a join is bounded per key: a row beyond the bound is a dead letter, never lost. The log alone "
    "decides which rows these are, not their arrival times.",
    promise="operators-compute-what-the-reference-describes",
)
def test_which_row_is_beyond_the_bound_depends_on_where_it_stands_not_on_when_it_came() -> None:
    """Two rows at one time: that of the first partition counts first, although it comes in a later slice."""
    rows = [("l", "a", 0, 1), ("l", "a", 0, 0), ("r", "a", 10, 0), ("r", "a", 10, 1)]
    found = outcomes(pipeline({**JOIN, "max_rows": 1, "within": "1s"}), rows)
    letters = [one for one in found if isinstance(one, LocalDeadLetter)]
    assert len(letters) == 2
    assert all("more than 1 rows of one key on one side" in one.message for one in letters)
    assert all(one.reason == "expression" and one.step == "steps[2].join" for one in letters)
    (pair,) = [one.document for one in found if isinstance(one, DeskResult)]
    other = outcomes(pipeline({**JOIN, "max_rows": 1, "within": "1s"}), [rows[1], rows[0], *rows[2:]])
    assert pair.id in {one.document.id for one in other if isinstance(one, DeskResult)}, (
        "the same two, in another order"
    )


def test_a_join_that_holds_more_text_than_an_array_has_room_for_says_what_to_lower() -> None:
    """Two rows, each with a string of 1.2 GB that no step reads, so no memory is used for it."""
    (stage,) = pipeline({**JOIN, "add": {"note": "left.kind"}}).stages
    assert isinstance(stage, JoinStage)
    operator = IntervalJoinOperator(stage)
    size = 1_200_000_000
    offsets, text = np.array([0, size], np.int32), np.zeros(size, np.uint8)
    column = pa.StringArray.from_buffers(1, pa.py_buffer(offsets), pa.py_buffer(text))
    columns = {"order": pa.array(["a"]), "kind": column, OFFSET: pa.array([0]), ELEMENT: pa.nulls(1, pa.int32())}
    rows = operator.rows_of_records(LEFT, 0, np.array([0]), columns)
    with pytest.raises(PermanentError, match=r"steps\[2\]\.join: the rows in one bucket have more than 2 GiB"):
        operator.step(operator.empty_state(), [rows, rows], Closing(None, None))


def test_what_a_join_costs_tells_the_results_of_a_key() -> None:
    graph = json.dumps(pipeline_graph(pipeline({**JOIN, "max_rows": 300})))
    assert "(max_rows: 300 on each side)" in graph
    assert "make 90,000 results, which are in memory together" in graph


def test_a_window_join_meets_in_one_window_and_its_results_are_of_that() -> None:
    windows = pipeline({**JOIN, "within": None, "tumbling": "1s", "type": "full"})
    rows = [("l", "a", 0, 0), ("r", "a", 999, 0), ("l", "b", 999, 0), ("r", "b", 1_000, 0)]
    documents = [json.loads(one.document.source) for one in outcomes(windows, rows) if isinstance(one, DeskResult)]
    assert [(one["order"], one["window"]["start"][17:23], one["window"]["end"][17:23]) for one in documents] == [
        ("a", "00.000", "01.000"),
        ("b", "00.000", "01.000"),
        ("b", "01.000", "02.000"),
    ]


@pytest.mark.guarantee(
    "G465",
    "An unsupported join is refused with its position when it is applied: a side without the key, keys of two types, "
    "or a retention shorter than its reach.",
    promise="unusable-documents-are-refused",
)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"within": None}, "exactly one of: within, tumbling"),
        ({"tumbling": "1m"}, "exactly one of: within, tumbling"),
        ({"on": ["ordr"]}, "the left side has no column 'ordr'; did you mean 'order'?"),
        ({"on": ["weight"]}, "'weight' is a double, which makes no reliable key"),
        ({"on": ["more"]}, "'more' is json"),
        ({"on": ["parts"]}, "'parts' is of type array<long>, but a key must be a single value"),
        ({"on": ["order", "order"]}, "'order' is listed twice"),
        ({"add": {"order": "left.order"}}, "'order' is a field of 'on'"),
        ({"add": {"x": "right.nothing"}}, "the right side has no column 'nothing'"),
        ({"add": {"x": "order"}}, "add"),
        ({"add": {"_x": "left.order"}}, "begins with '_'"),
        ({"left": "missing"}, "no step above is called 'missing'"),
        ({"right": "met"}, "'met' is this step itself"),
        ({"add": {"n": "lefts.n"}}, "expected left.FIELD or right.FIELD, got 'lefts.n'"),
        ({"max_rows": 0}, "greater than or equal to 1"),
        ({"type": "right"}, "'inner', 'left' or 'full'"),
    ],
)
def test_what_is_wrong_in_a_join_is_told(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidDocument) as raised:
        pipeline({**JOIN, **change})
    assert message in str(raised.value)


@pytest.mark.guarantee("G465")
def test_a_join_needs_an_emission_and_says_what_it_takes() -> None:
    with pytest.raises(InvalidDocument, match=r"no window reads 'met', so it must emit.* next to 'join'"):
        pipeline(JOIN, [])
    with pytest.raises(InvalidDocument, match="a join names its inputs by 'left' and 'right'"):
        pipeline(JOIN, [{"join": {**JOIN, "name": "again"}, "from": "lefts", "emit": [{"elasticsearch": "b"}]}])


def test_a_window_behind_a_window_join_holds_whole_windows_of_it() -> None:
    per_minute = {**JOIN, "within": None, "tumbling": "1m"}
    behind = {"window": {"name": "w", "tumbling": "90s", "by": ["order"], "aggregate": {"n": "count(*)"}}, **BEHIND[0]}
    with pytest.raises(InvalidDocument, match="1m30s of window 'w' is not a multiple of 1m of window 'met' before it"):
        pipeline(per_minute, [behind])
    assert pipeline(JOIN, [behind]).stages[1].size_ms == 90_000, "rows that meet in an interval end anywhere"


@pytest.mark.guarantee("G465")
def test_reach_and_retention_cover_both_sides_and_what_is_counted() -> None:
    within = {"before": "1m", "after": "1h"}
    assert pipeline({**JOIN, "within": within}).reach_ms == 60_000 + 3_600_000 + 3_600_001
    with pytest.raises(InvalidDocument, match="keeps records for only 1w"):
        pipeline({**JOIN, "within": "4d"})
    (stage,) = pipeline_graph(pipeline({**JOIN, "within": within}))["stages"]
    assert (stage["join"]["left_is_held_ms"], stage["join"]["right_is_held_ms"]) == (3_600_000, 60_000)


def test_a_change_of_a_join_is_computed_from_the_last_result_on() -> None:
    old = pipeline(JOIN)
    changes = {
        "how near rows are of join met": {"within": "2s"},
        "the type of join met": {"type": "full"},
        "the fields of join met": {"add": {"at": "left.ts", "came": "right.ts", "kind": "right.kind"}},
        "max_rows of join met": {"max_rows": 7},
    }
    for what, change in changes.items():
        found = {one.change: one.effect.value for one in changes_between(old, pipeline({**JOIN, **change}))}
        assert found[what] == "rewind", found
    assert changes_between(old, pipeline(JOIN)) == []
    minutes, hours = (pipeline({**JOIN, "within": None, "tumbling": size}) for size in ("1m", "1h"))
    assert [one.change for one in changes_between(minutes, hours)] == ["window met from 1m to 1h"]
    assert "how near rows are of join met" in [one.change for one in changes_between(old, minutes)]
    assert old.digest != pipeline({**JOIN, "type": "full"}).digest
    assert replace(old, stages=()).digest != old.digest
