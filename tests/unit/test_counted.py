"""Windows that count records: what a document can say, what is reported about them, and their forms in SQL and Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strandline.core.documents import read_documents
from strandline.core.errors import InvalidDocument
from strandline.frontends.python.printer import as_python
from strandline.frontends.sql.printer import as_sql
from strandline.frontends.sql.translation import translate
from strandline.processing.desk.desk import Desk, DeskResult
from strandline.processing.desk.desk_pipeline import read_pipeline
from strandline.processing.desk.pipeline_graph import pipeline_graph
from strandline.processing.desk.records import DeskRecords
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.upgrade import Effect, changes_between
from tests.unit.test_front_ends import canonical, of_python

EXAMPLE = (Path(__file__).parents[2] / "examples" / "counted.yaml").read_text()
HOUR_MS = 3_600_000


def pipeline(old: str = "", new: str = "") -> CheckedPipeline:
    assert old in EXAMPLE
    return read_pipeline(EXAMPLE.replace(old, new).encode(), "counted.yaml")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            ", max: 1h",
            "",
            "count.max: is missing; expected: Length of a period. At its multiples since 1970-01-01 UTC",
        ),
        ("max: 1h", "max: 0s", "counting would start again immediately"),
        ("size: 3", "size: 0", "count.size"),
        ("by: [press]", "offset: 5m, by: [press]", "counting begins at multiples of 'max'; remove it"),
        ("count: {", "tumbling: 1h, count: {", "exactly one of: tumbling, sliding, cumulative, session, count"),
        ("key: press", "retention: 30m", "the windows and the delay reach back 1h10s"),
    ],
)
def test_what_is_wrong_in_a_window_that_counts_is_told(old: str, new: str, said: str) -> None:
    with pytest.raises(InvalidDocument) as error:
        pipeline(old, new)
    assert said in str(error.value)


def test_what_a_window_that_counts_keeps_and_reaches_back_is_told() -> None:
    checked = pipeline()
    graph = pipeline_graph(checked)
    (stage,) = graph["stages"]
    assert (stage["windows"], graph["reach_ms"]) == ("of 3 records, within 1h", HOUR_MS)
    assert any("keeps each row until event time is 10s past it" in hint for hint in graph["hints"])
    assert pipeline_graph(pipeline("by: [press]", "by: []"))["exchange"]["buckets"] == "one"
    (change,) = changes_between(checked, pipeline("size: 3", "size: 4"))
    assert (change.change, change.effect) == (
        "window batches from of 3 records, within 1h to of 4 records, within 1h",
        Effect.REWIND,
    )
    assert checked.digest != pipeline("size: 3", "size: 4").digest, "no snapshot of the one fits the other"


@pytest.mark.guarantee("G536")
def test_windows_that_begin_and_end_in_one_millisecond_have_ids_of_their_own() -> None:
    desk = Desk(pipeline("size: 3", "size: 1"))
    line = json.dumps({"press": "p1", "ts": 1_000, "grams": 1.0}).encode()
    list(desk.feed(DeskRecords([line] * 4, [0] * 4)))
    found = [one.document for one in desk.drain() if isinstance(one, DeskResult)]
    assert (len(found), len({one.id for one in found})) == (4, 4)
    assert {json.loads(one.source)["window"]["end"] for one in found} == {"1970-01-01T00:00:01.001Z"}


def test_records_of_one_time_stand_in_the_order_of_their_partitions_whichever_came_first() -> None:
    desk = Desk(pipeline("size: 3", "size: 2"), 1)
    for partition, grams in ((1, 1.0), (0, 2.0), (0, 3.0)):
        line = json.dumps({"press": "p1", "ts": 5_000, "grams": grams}).encode()
        assert not list(desk.feed(DeskRecords([line], [partition])))
    found = [json.loads(one.document.source) for one in desk.drain() if isinstance(one, DeskResult)]
    assert [(one["n"], one["mean"], one["last"]) for one in found] == [(2, 2.5, 3.0), (1, 1.0, 1.0)]


def test_a_restart_reads_back_to_where_counting_began() -> None:
    """With one record per slice, two are far below the watermark when a start forgets all, and still wait for the
    third."""
    ids = []
    for restarts in (False, True):
        desk = Desk(pipeline(), 1, restarts=True)
        for ts in (5_000, 10_000, 11_000, 12_000, 13_000, 1_800_000, 1_900_000):
            list(desk.feed(DeskRecords([json.dumps({"press": "p1", "ts": ts, "grams": 1.0}).encode()], [0])))
            if restarts:
                desk.restart()
        found = [one.document for one in desk.drain() if isinstance(one, DeskResult)]
        assert [json.loads(one.source)["n"] for one in found] == [1]
        ids.append([one.id for one in found])
    assert ids[0] == ids[1], "it is the third of its hour"


def test_a_window_that_counts_is_one_document_in_each_form() -> None:
    documents = read_documents(EXAMPLE, "counted.yaml")
    wanted, data = canonical(documents), [one.data for one in documents]
    sql, python = as_sql(data), as_python(data)
    assert "counted(table parts, descriptor(ts), 3, interval '1' hour)" in sql
    assert canonical(read_documents(translate(sql, "counted.sql").yaml, "counted.sql")) == wanted
    assert "counted(3, '1h')" in python
    assert of_python(python) == wanted
    with pytest.raises(InvalidDocument, match="is not a number of records"):
        translate(sql.replace("(ts), 3,", "(ts), 'three',"), "counted.sql")
