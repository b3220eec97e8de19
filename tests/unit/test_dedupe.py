"""Rules for the document of a `dedupe`, what it costs, and the outcome of repeats at the desk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strandline.core.documents import read_documents
from strandline.core.errors import InvalidDocument
from strandline.core.streams.stream import StreamSpec
from strandline.processing.desk.case_run import read_cases, run_case
from strandline.processing.desk.desk import Desk, DeskResult, LocalDeadLetter
from strandline.processing.desk.pipeline_graph import pipeline_graph
from strandline.processing.desk.records import DeskRecords
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.graph.branches import plan_branches
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.slices.rewind import plan_rewind
from tests.support.ledgers import a_checkpoint

EXAMPLES = Path(__file__).parents[2] / "examples"
STREAM = """
stream: meters
schema: {meter: string, message_id: "string?", site: string, ts: {type: timestamp, unit: ms}, kwh: double}
key: meter
retention: 7d
"""
TEXT = """
pipeline: energy
input: {stream: meters}
event_time: {field: ts, delay: 10m}
steps:
  - dedupe: {by: [meter, message_id], within: 1h}
  - emit: [{elasticsearch: readings}]
  - window: {name: quarters, tumbling: 15m, by: [meter], aggregate: {n: count(*), kwh: sum(kwh)}}
    emit: [{elasticsearch: quarters}]
"""


def energy(*changes: tuple[str, str], stream: str = STREAM) -> CheckedPipeline:
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    (stream_document,) = read_documents(stream, "energy.yaml", ("stream",))
    (document,) = read_documents(text, "energy.yaml", ("pipeline",))
    return check(PipelineSpec.parse(document), StreamSpec.parse(stream_document), document)


STEP = "  - dedupe: {by: [meter, message_id], within: 1h}\n"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("within: 1h", "within: 0s", ":6: steps[0].dedupe.within: no two records would be compared"),
        ("by: [meter, message_id]", "by: [meter, meter]", ":6: steps[0].dedupe.by[1]: 'meter' is listed twice"),
        ("message_id]", "id]", ":6: steps[0].dedupe.by[1]: unknown column 'id'"),
        ("message_id]", "kwh]", ":6: steps[0].dedupe.by[1]: 'kwh' is a double"),
        (
            "by: [meter, message_id]",
            "by: [message_id]",
            ":6: steps[0].dedupe.by: expected the key of stream 'meters', 'meter', among the fields: it puts a record and its "
            "duplicates into one partition; write [meter, message_id]",
        ),
        (STEP, STEP + STEP, ":7: steps[1].dedupe: the pipeline already has a dedupe, steps[0].dedupe"),
        (
            "    emit: [{elasticsearch: quarters}]\n",
            "  - dedupe: {by: [meter], within: 1h}\n  - emit: [{elasticsearch: quarters}]\n",
            ": steps[3].dedupe: is after window 'quarters'",
        ),
        ("within: 1h", "within: 8d", ":5: steps: the windows and the delay reach back"),
    ],
)
def test_a_wrong_one_is_told_with_its_remedy(old: str, new: str, problem: str) -> None:
    with pytest.raises(InvalidDocument) as raised:
        energy((old, new))
    assert problem in str(raised.value)


def test_a_stream_without_a_key_needs_one_partition() -> None:
    without_key = STREAM.replace("key: meter\n", "")
    with pytest.raises(
        InvalidDocument, match="stream 'meters' has no key, so a repeated record can be in another partition"
    ):
        energy(stream=without_key)
    alone = energy(("by: [meter, message_id]", "by: [message_id]"), stream=without_key + "partitions: 1\n")
    assert alone.dedupe is not None


def test_the_horizon_adds_to_the_reach_of_windows_and_of_records() -> None:
    hour_ms, quarter_ms = 3_600_000, 900_000
    assert energy().reach_ms == hour_ms + quarter_ms
    alone = energy((TEXT[TEXT.index("  - window") :], ""))
    assert alone.reach_ms == hour_ms
    at_ms = 100 * hour_ms
    plan = plan_rewind(a_checkpoint(7, 1, closes_ms=at_ms), lambda event_ms: 3, alone.kept)
    assert (plan.slice_first, plan.reaches_back_to_ms) == (3, at_ms - hour_ms), "a start reads what is remembered"
    graph = pipeline_graph(alone)
    assert graph["retention"]["needed_ms"] == hour_ms + 600_000
    assert graph["dedupe"] == {
        "by": ["meter", "message_id"],
        "within_ms": hour_ms,
        "remembers_ms": hour_ms + 600_000,
        "bytes_a_record": 24,
        "times_kept": 1,
    }
    assert graph["record_stages"][0]["steps_before"] == ["dedupe by meter, message_id within 1h"]


def test_buckets_are_cut_by_fields_that_are_compared() -> None:
    def plan(by: str, more: str = "") -> list[tuple[list[str], list[int]]]:
        steps = [("by: [meter], agg", f"by: [{by}], agg"), ("    emit: [{elasticsearch: quarters}]\n", more)]
        pipeline = energy(*steps) if more else energy(steps[0])
        return [(branch.bucket_by, branch.split) for branch in plan_branches(pipeline.stages)]

    assert plan("meter, site") == [(["meter"], [])]
    assert plan("site") == [([], [0])], "a whole partition in one bucket, and parts are merged"
    days = "  - window: {name: days, tumbling: 1d, by: [site], aggregate: {n: sum(n)}}\n    emit: [{elasticsearch: days}]\n"
    assert plan("meter, site", days) == [(["meter"], [1])]
    assert plan("site", days) == [([], [])], "one bucket"


def reading(offset_s: float, message: str | None = "a", meter: str = "m1", kwh: float | None = 1.0) -> bytes:
    record = {"meter": meter, "message_id": message, "site": "s", "ts": round(1_000_000_000_000 + offset_s * 1000)}
    return json.dumps(record | {"kwh": kwh}).encode()


def at_the_desk(pipeline: CheckedPipeline, *values: bytes, slice_records: int | None = 1) -> tuple[Desk, list[Any]]:
    desk = Desk(pipeline, slice_records, restarts=True)
    outcomes: list[Any] = []
    for value in values:
        outcomes += desk.feed(DeskRecords([value], [0]))
        desk.restart()
    return desk, [*outcomes, *desk.drain()]


@pytest.mark.guarantee(
    "G473",
    "Duplicates are counted once each as `duplicate`, have no dead letter, and are no difference in a replay.",
    promise="operators-compute-what-the-reference-describes",
)
@pytest.mark.parametrize("slice_records", [1, None])
def test_repeats_are_counted_and_have_no_dead_letter(slice_records: int | None) -> None:
    values = [
        reading(0),
        reading(0),  # again
        reading(2),  # again, with a new time
        reading(0, meter="m2"),
        reading(1, None),
        reading(1, None),  # without an id nothing says that it came again
        reading(0, kwh=None),  # no reading at all: a dead letter, and no repeat
    ]
    desk, outcomes = at_the_desk(energy(), *values, slice_records=slice_records)
    assert desk.counts.rejected == {"duplicate": 2, "schema": 1}
    assert (desk.counts.records, desk.counts.accepted) == (7, 4)
    assert [one.reason for one in outcomes if isinstance(one, LocalDeadLetter)] == ["schema"]
    documents = [json.loads(one.document.source) for one in outcomes if isinstance(one, DeskResult)]
    emitted = [one["strandline"]["offset"] for one in documents if one["strandline"]["stage"] == "readings"]
    assert sorted(emitted) == [0, 3, 4, 5]
    windows = {one["meter"]: one["n"] for one in documents if "window" in one}
    assert windows == {"m1": 3, "m2": 1}


def test_elements_of_one_record_are_compared_in_their_order() -> None:
    stream = STREAM.replace("kwh: double}", "kwh: double}\nexplode: $.readings").replace(
        "key: meter\n", "partitions: 1\n"
    )
    elements = [json.loads(reading(at, message)) for at, message in ((5, "a"), (0, "b"), (9, "a"))]
    desk, outcomes = at_the_desk(energy(stream=stream), json.dumps({"readings": elements}).encode())
    assert desk.counts.rejected == {"duplicate": 1}
    documents = [json.loads(one.document.source) for one in outcomes if isinstance(one, DeskResult)]
    assert [one["strandline"]["element"] for one in documents if "window" not in one] == [0, 1]


def test_the_tests_of_the_example_pass() -> None:
    reports = [run_case(case, EXAMPLES / "tests") for case in read_cases(EXAMPLES / "tests/dedupe.yaml")]
    assert [(one.name, one.passed) for one in reports] == [(one.name, True) for one in reports]
    assert len(reports) == 2
