"""Emissions of records: the document's form, the source task, the keyed task. No server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from strandline.core.documents import YamlDocument
from strandline.core.errors import InvalidDocument
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.states import CheckpointRow
from strandline.processing.emission import keyed_task
from strandline.processing.emission.keyed_task import BucketDone, DeadLetterTarget, KeyedTask
from strandline.processing.emission.result_shapes import document_shape, letter_shape
from strandline.processing.emission.stage_emission import RecordEmission
from strandline.processing.operators import record_rows
from strandline.processing.operators.cascade import Cascade
from strandline.processing.operators.closing import Closing
from strandline.processing.operators.row_steps import RowSteps
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.result_streams import schema_mismatches, stream_of_results
from strandline.processing.pipelines.upgrade import Effect, changes_between
from strandline.processing.slices.rewind import RewindPlan, plan_rewind
from strandline.processing.source.decoding import DecodedChunk, decoder_of, task_config
from strandline.processing.source.slice_rows import RECORD_ROWS, SliceRowBlob, SliceWork, bucket_keys, encode
from strandline.processing.source.source_task import SourceTask
from strandline.results.document import Document, Refused
from strandline.results.mapping import build_mapping
from strandline.results.records.record_document import RecordShape, record_document_id
from strandline.results.writer import ELEMENT, EVENT_US, OFFSET, PARTITION, WriteReport
from strandline.services.jobs.apply_documents import check_documents
from strandline.services.jobs.result_views import kibana_objects, result_views
from tests.support.ledgers import a_checkpoint

STREAM = StreamSpec.from_document(
    {
        "stream": "farm",
        "schema": {"device": "string", "ts": "timestamp", "power": "double", "note": "string?"},
        "key": "device",
    }
)
STEPS: list[dict[str, Any]] = [
    {"derive": {"twice": "power * 2"}},
    {"where": "power < 100"},
    {"drop": ["note"]},
    {"emit": [{"elasticsearch": "farm-raw"}]},
    {"derive": {"inverse": "1 / power"}},
    {"select": ["inverse", "device"]},
    {"emit": [{"elasticsearch": "farm-inverse"}, {"stream": "inverse"}], "name": "inverse"},
]


def pipeline_of(steps: list[dict[str, Any]]) -> CheckedPipeline:
    document: dict[str, object] = {
        "pipeline": "power",
        "input": {"stream": "farm"},
        "event_time": {"field": "ts", "delay": "0s", "max_ahead": None, "idle_timeout": None},
        "steps": steps,
    }
    return check(PipelineSpec.from_document(document), STREAM)


PIPELINE = pipeline_of(STEPS)


def shape_of(**changes: Any) -> RecordShape:
    shape = document_shape(PIPELINE, PIPELINE.record_stages[1], PIPELINE.record_stages[1].emits[0], 3)
    assert isinstance(shape, RecordShape)
    return replace(shape, **changes)


def batch_of(times_us: list[int], elements: list[int | None] | None = None, **columns: pa.Array) -> pa.RecordBatch:
    count = len(times_us)
    return pa.RecordBatch.from_pydict(
        {
            EVENT_US: pa.array(times_us, pa.int64()),
            PARTITION: pa.array([2] * count, pa.int32()),
            OFFSET: pa.array(range(10, 10 + count), pa.int64()),
            ELEMENT: pa.array(elements or [None] * count, pa.int32()),
            "inverse": pa.array([0.5] * count),
            "device": pa.array(["d1"] * count),
            **columns,
        }
    )


@pytest.mark.guarantee(
    "G241",
    "An `emit` without a window gives each record that reaches it one document, in an index and in a stream. Its id "
    "depends on its log position, and its index on its event time. No kill or restart adds, loses, or changes one, "
    "and the audit finds a missing one.",
    promise="each-sink-contains-each-result-once",
)
def test_a_document_is_a_function_of_the_record() -> None:
    """The index is that of the month of its event time, and its id depends on the position of the record."""
    march, april = 1_711_929_599_999_000, 1_711_929_600_000_500
    found = list(shape_of().documents(batch_of([march, april], [None, 4]), 7, 12))
    assert all(isinstance(one, Document) for one in found)
    assert [one.index for one in found] == ["farm-inverse-2024.03", "farm-inverse-2024.04"]
    assert found[0].id == record_document_id("power", "inverse", "farm", 2, 10)
    assert found[1].id == record_document_id("power", "inverse", "farm", 2, 11, 4)
    assert [json.loads(one.source) for one in found] == [
        {
            "@timestamp": "2024-03-31T23:59:59.999Z",
            "inverse": 0.5,
            "device": "d1",
            "strandline": {
                "job": "power", "stage": "inverse", "version": 3, "epoch": 7, "emission": 12, "stream": "farm",
                "partition": 2, "offset": 10,
            },
        },
        {
            "@timestamp": "2024-04-01T00:00:00.000500Z",
            "inverse": 0.5,
            "device": "d1",
            "strandline": {
                "job": "power", "stage": "inverse", "version": 3, "epoch": 7, "emission": 12, "stream": "farm",
                "partition": 2, "offset": 11, "element": 4,
            },
        },
    ]  # fmt: skip


def test_ids_never_meet() -> None:
    places = [("farm", 1, 11), ("farm", 11, 1), ("farm", 1, 1, 1), ("farm1", 1, 1), ("farm", 1, 1), ("farm", 1, 1, 0)]
    assert len({record_document_id("power", "raw", *place) for place in places}) == len(places)


def test_a_stream_has_the_event_time_in_a_field_of_its_own_unless_a_column_is_called_so() -> None:
    (one,) = shape_of(is_stream=True).documents(batch_of([1_500_000]), 1, 1)
    assert list(json.loads(one.source))[:2] == ["@timestamp", "event_time"]
    named = shape_of(is_stream=True, aggregates=(("event_time", "string"),))
    (one,) = named.documents(batch_of([1_500_000], event_time=pa.array(["own"])), 1, 1)
    assert json.loads(one.source)["event_time"] == "own"


def test_what_no_document_can_hold_is_refused() -> None:
    found = list(shape_of().documents(batch_of([0, 2**62], inverse=pa.array([float("nan"), 1.0])), 1, 1))
    assert [(one.type, one.index) for one in found if isinstance(one, Refused)] == [
        ("non_finite_number", "farm-inverse-1970.01"),
        ("timestamp_out_of_range", None),
    ]


def test_with_at_least_once_the_epoch_is_part_of_the_id() -> None:
    (one,) = shape_of(is_once=False).documents(batch_of([0]), 9, 1)
    assert one.id == record_document_id("power", "inverse", "farm", 2, 10) + ".9"


def test_the_mapping_knows_where_a_record_stands_and_no_window() -> None:
    properties = build_mapping(shape_of())["properties"]
    assert "window" not in properties
    origin = properties["strandline"]["properties"]
    assert {origin[name]["type"] for name in ("partition", "element")} == {"integer"}
    assert (origin["offset"]["type"], origin["stream"]["type"]) == ("long", "keyword")


@dataclass
class KeptRows:
    """Keeps the documents that it is to write."""

    shape: RecordShape
    documents: list[dict[str, Any]] = field(default_factory=list)
    prepared: list[int | None] = field(default_factory=list)

    def prepare(self, next_end_ms: int | None) -> None:
        self.prepared.append(next_end_ms)

    def write_batches(
        self, batches: Iterable[pa.RecordBatch], epoch: int, emission: int, slice_digest: str = ""
    ) -> WriteReport:
        rows = [json.loads(one.source) for batch in batches for one in self.shape.documents(batch, epoch, emission)]
        self.documents += rows
        return WriteReport(created=len(rows))


class Engine:
    """One job over some buckets."""

    def __init__(self, pipeline: CheckedPipeline, buckets: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.source = task_config(pipeline, "nowhere", bucket_keys(buckets, 2))
        self.written: dict[str, KeptRows] = {}
        emissions = []
        for stage in pipeline.record_stages:
            shape = document_shape(pipeline, stage, stage.emits[0], 1)
            assert isinstance(shape, RecordShape)
            self.written[stage.name] = KeptRows(shape)
            emissions.append(
                RecordEmission(
                    (self.written[stage.name],),
                    (),
                    letter_shape(pipeline, stage, 1),
                    "power",
                    stage.name,
                    1,
                    5,
                    "",
                    "",
                    0,
                )
            )
        monkeypatch.setattr(keyed_task.DeadLetterTarget, "writer", lambda _self, _bucket: None)
        letters = DeadLetterTarget("", "", "power", 1, 0)
        self.keyed = KeyedTask(self.source.stages, self.source.bucket_keys, (), letters, tuple(emissions))

    def rows(self, partition: int, powers: list[float], *, is_new: bool = True) -> list[SliceRowBlob]:
        values: list[bytes | None] = [
            json.dumps({"device": f"d{at}", "ts": 1000 * at, "power": power}).encode()
            for at, power in enumerate(powers)
        ]
        times = [0] * len(values)
        decoded = decoder_of(self.source.decoding.inputs[0]).decode(values, times, None)
        chunk = DecodedChunk("farm", partition, range(len(values)), times, decoded, values.__getitem__)
        return list(SourceTask(self.source).rows([chunk], is_new=is_new, work=None))

    def step(self, rows: list[SliceRowBlob], *, emits: bool = True) -> Iterator[BucketDone]:
        work = encode(SliceWork(4, emits, None, None, {}, {}))
        for bucket, key in enumerate(self.source.bucket_keys):
            own = [one[1:] for one in rows if one[0] == key]
            yield self.keyed.process(bucket, [*own, (3, 0, 0, work)], None)


@pytest.mark.parametrize("batch_bytes", [1, 1 << 28])
@pytest.mark.parametrize("buckets", [1, 2, 3])
def test_every_record_that_comes_so_far_is_emitted(
    buckets: int, batch_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that fails behind an emission was emitted there, and not at the next one. Order is that of the log."""
    monkeypatch.setattr(record_rows, "_BATCH_BYTES", batch_bytes)
    engine = Engine(PIPELINE, buckets, monkeypatch)
    rows = engine.rows(1, [4.0, 0.0, 500.0, 8.0]) + engine.rows(0, [2.0])
    outcomes = [done.outcome for done in engine.step([one for one in rows if one[1] != 1])]
    raw, inverse = (engine.written[name].documents for name in ("farm_raw", "inverse"))
    of_place = {(one["strandline"]["partition"], one["strandline"]["offset"]): one for one in raw}
    assert {place: one["power"] for place, one in of_place.items()} == {
        (1, 0): 4.0,
        (1, 1): 0.0,
        (1, 3): 8.0,
        (0, 0): 2.0,
    }
    assert of_place[1, 3] == {
        "@timestamp": "1970-01-01T00:00:03.000Z", "device": "d3", "ts": "1970-01-01T00:00:03.000Z", "power": 8.0,
        "twice": 16.0, "strandline": of_place[1, 3]["strandline"],
    }  # fmt: skip
    assert [one["inverse"] for one in inverse if one["strandline"]["partition"] == 1] == [0.25, 0.125]
    assert all(list(one) == ["@timestamp", "inverse", "device", "strandline"] for one in inverse)
    assert sum(one.results.get("farm_raw", 0) for one in outcomes) == 4
    assert sum(one.results.get("inverse", 0) for one in outcomes) == 3


def test_texts_of_more_than_an_array_has_room_for_are_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three chunks, each with a string of 1.2 GB that no step reads, so no memory is used for it."""
    size = 1_200_000_000
    offsets, text = np.array([0, size], np.int32), np.zeros(size, np.uint8)
    column = pa.StringArray.from_buffers(1, pa.py_buffer(offsets), pa.py_buffer(text))
    batch = batch_of([1], device=column).replace_schema_metadata({b"stage": b"inverse"})
    monkeypatch.setattr(record_rows, "unpack", lambda _blob: [batch])
    found = record_rows.unpack_record_rows([(0, 0, b""), (0, 1, b""), (1, 0, b"")])
    assert [one.num_rows for one in found["inverse"]] == [1, 1, 1]


@pytest.mark.guarantee("G241")
def test_a_replayed_slice_does_not_even_build_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(PIPELINE, 2, monkeypatch)
    kinds = {one[1] for one in engine.rows(0, [1.0, 2.0], is_new=False)}
    assert RECORD_ROWS not in kinds
    assert RECORD_ROWS in {one[1] for one in engine.rows(0, [1.0, 2.0])}


def test_a_writer_is_prepared_for_what_may_still_come(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(PIPELINE, 1, monkeypatch)
    for emission in engine.keyed.record_emissions:
        emission.prepare_for_records()
    assert engine.written["inverse"].prepared == [5]


def test_without_a_window_nothing_is_replayed() -> None:
    def never(_event_ms: int) -> int | None:
        raise AssertionError("nothing needs a record of before")

    checkpoints: list[CheckpointRow] = [a_checkpoint(7, closes_ms=1000), a_checkpoint(7, closes_ms=None)]
    for checkpoint in checkpoints:
        assert plan_rewind(checkpoint, never, {}) == RewindPlan(slice_first=8, slice_committed=7)


def test_what_an_upgrade_means_for_emissions_of_records() -> None:
    fewer = pipeline_of(STEPS[:4])
    window = {"window": {"name": "all", "tumbling": "1m", "aggregate": {"n": "count(*)"}}}
    moved = pipeline_of([window, {"emit": [{"elasticsearch": "farm-raw"}]}])
    added = {(one.change, one.effect) for one in changes_between(fewer, PIPELINE)}
    assert ("emission inverse of records is new", Effect.SAFE) in added
    assert {one.effect for one in changes_between(PIPELINE, fewer)} == {Effect.SAFE}
    assert Effect.FORBIDDEN in {one.effect for one in changes_between(fewer, moved)}


@pytest.mark.guarantee(
    "G242",
    "Steps between a window and its `emit` change only its results. A result without a value there is a dead letter "
    "and isn't stored, and the audit computes the same.",
    promise="operators-compute-what-the-reference-describes",
)
def test_steps_behind_a_window_change_its_results() -> None:
    """A result that a `where` omits is no result; one without a value is a dead letter, with null for unknown values.

    A further window takes the rest.
    """
    checked = pipeline_of(
        [
            {
                "window": {
                    "name": "tens",
                    "tumbling": "10s",
                    "by": ["device"],
                    "aggregate": {"n": "count(*)", "sum": "sum(power)"},
                }
            },
            {"derive": {"mean": "sum / (n - 1)"}},
            {"where": "n <> 3"},
            {"drop": ["sum"]},
            {"emit": [{"elasticsearch": "tens"}]},
            {"where": "mean > 1"},
            {
                "window": {"name": "minute", "tumbling": "1m", "aggregate": {"n": "sum(n)"}},
                "emit": [{"elasticsearch": "minute"}],
            },
        ]
    )
    assert checked.stages[0].field_types == {"device": "string", "n": "long", "mean": "double"}
    cascade = Cascade(checked.stages, 1)
    devices = ["one", *["two"] * 2, *["three"] * 3, *["four"] * 4]
    columns = {"device": pa.array(devices), "power": pa.array([1.0] * len(devices))}
    steps = RowSteps(checked.stages[0].inputs[0].first_steps, checked.inputs[0].stream.types)
    stepped = steps.apply(columns, len(devices))
    chunks = [cut for _, cut in cascade.cut(0, 0, pa.array([1] * len(devices)), stepped.columns)]
    results = cascade.step(None, chunks, Closing(None, 60_000)).results
    rows = {row["device"]: row for row in results[0].rows.to_pylist()}
    assert set(rows) == {"one", "two", "four"}
    assert (rows["two"]["mean"], rows["two"]["@problem"], "sum" in rows["two"]) == (2.0, None, False)
    assert rows["one"]["mean"] is None
    assert "steps[1].derive.mean" in rows["one"]["@problem"]
    assert [row["n"] for row in results[1].rows.to_pylist()] == [6]


MISTAKES: list[tuple[list[dict[str, Any]], str]] = [
    ([{"select": ["devise"]}, STEPS[3]], "unknown column 'devise'; did you mean 'device'?"),
    ([{"select": ["device", "device"]}, STEPS[3]], "'device' is listed twice"),
    ([{"drop": ["device", "ts", "power", "note"]}, STEPS[3]], "leaves no field"),
    ([STEPS[3], {"where": "power > 1"}], "is after the last emit, where it changes nothing"),
    ([STEPS[3], {"emit": [{"elasticsearch": "farm-raw"}]}], "'farm-raw' is already emitted to"),
    (
        [{**STEPS[3], "name": "x"}, {"emit": [{"stream": "y"}], "name": "X"}],
        "a stage is already called 'x'; set another with",
    ),
    ([{"emit": [{"stream": "farm"}]}], "this pipeline reads 'farm'"),
    (
        [{"where": "power > 1", "emit": [{"stream": "y"}]}],
        "'emit' is allowed with 'window' or 'join', or in its own step",
    ),
    ([{"where": "power > 1"}], "has neither a window nor an 'emit'"),
]
WINDOW = {"window": {"name": "all", "tumbling": "1m", "by": ["device"], "aggregate": {"n": "count(*)"}}}
MISTAKES += [
    ([WINDOW, {"drop": ["device"]}, STEPS[3]], "leaves out device, but window 'all' groups by it"),
    ([WINDOW, {**STEPS[3], "name": "x"}], "results after a window belong to stage 'all'; remove the name"),
    ([{**WINDOW, "emit": [{"stream": "y"}]}, STEPS[3]], "window 'all' already emits"),
    ([{**WINDOW, "name": "x"}, STEPS[3]], "the name of a window belongs inside 'window'"),
    ([WINDOW, STEPS[3], {"where": "n > 1"}], "is after the last emit"),
]


@pytest.mark.parametrize(("steps", "told"), MISTAKES)
def test_mistakes_are_told(steps: list[dict[str, Any]], told: str) -> None:
    with pytest.raises(InvalidDocument, match=re.escape(told)):
        pipeline_of(steps)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ({"elasticsearch": "farm-raw"}, "farm_raw"),
        ({"stream": "7.raw"}, "emit_7_raw"),
        ({"files": {"path": "/data/farm"}}, "data_farm"),
        ({"files": {"path": "s3://bucket/farm"}}, "s3___bucket_farm"),
        ({"sql": {"table": "public.farm"}}, "public_farm"),
        ({"sink": {"use": "paper", "name": "pad"}}, "paper_pad"),
    ],
)
def test_a_stage_without_a_name_is_called_like_its_first_place(place: dict[str, Any], name: str) -> None:
    assert [one.name for one in pipeline_of([{"emit": [place]}]).record_stages] == [name]


BAD_PLACES: list[tuple[dict[str, Any], str]] = [
    ({"files": {"path": "farm"}}, "expected an absolute directory, or a URI"),
    ({"files": {"path": "s3://key:secret@bucket/farm"}}, "must not contain credentials"),
    ({"files": {"path": "/farm", "format": "csv"}}, "parquet"),
    ({"sql": {"table": "farm; drop table farm"}}, "pattern"),
    ({"sql": {"table": "farm"}, "stream": "x"}, "expected exactly one of: elasticsearch, stream, files, sql, sink"),
]


@pytest.mark.parametrize(("place", "told"), BAD_PLACES)
def test_places_that_cannot_be_are_told(place: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidDocument, match=re.escape(told)):
        PipelineSpec.parse(
            YamlDocument(
                "pipeline",
                "power",
                {
                    "pipeline": "power",
                    "input": {"stream": "farm"},
                    "event_time": {"from": "log", "idle_timeout": None},
                    "steps": [{"emit": [place]}],
                },
                source="x",
            )
        )


def test_no_field_of_a_table_is_called_like_a_column_of_the_platform() -> None:
    with pytest.raises(InvalidDocument, match="has the prefix of the platform's own columns"):
        pipeline_of([{"derive": {"strandline_id": "power"}}, {"emit": [{"sql": {"table": "farm"}}]}])


LONG = "p" * 64
COUNTED = {"name": "minutes", "tumbling": "1m", "by": ["device"], "aggregate": {LONG: "max(power)"}}


@pytest.mark.parametrize(
    ("steps", "path"),
    [
        (
            [{"derive": {LONG: "power"}}, {"emit": [{"stream": "s"}, {"sql": {"table": "farm"}}]}],
            "steps[1].emit[1].sql",
        ),
        ([{"window": COUNTED, "emit": [{"sql": {"table": "farm"}}]}], "steps[0].emit[0].sql"),
    ],
    ids=["records", "a window"],
)
def test_a_field_of_a_table_has_a_name_that_postgresql_does_not_cut(steps: list[dict[str, Any]], path: str) -> None:
    """PostgreSQL cuts names to 63 bytes: the table was created, and its column was then not found."""
    with pytest.raises(InvalidDocument) as refused:
        pipeline_of(steps)
    (problem,) = refused.value.problems
    assert (problem.path, problem.message) == (
        path,
        f"'{LONG}' has 64 characters, but a table's column can have at most 63; choose a shorter name, with 'derive' "
        "and 'drop' if it is a field of the stream",
    )
    spelled = json.loads(json.dumps(steps).replace(LONG, LONG[1:]))
    assert pipeline_of(spelled).all_stages


def test_kibana_is_told_of_records_by_their_event_time() -> None:
    """Strings define the series, numbers are drawn; no chart refers to a window."""
    objects = kibana_objects(PIPELINE)
    views = [one["attributes"] for one in objects if one["type"] == "index-pattern"]
    assert [(one["title"], one["name"], one["timeFieldName"]) for one in views] == [
        ("farm-raw", "farm-raw (records)", "@timestamp"),
        ("farm-inverse", "farm-inverse (records)", "@timestamp"),
    ]
    assert "window" not in json.dumps([one["attributes"] for one in objects if one["type"] != "dashboard"])
    (raw, inverse) = result_views(PIPELINE)
    assert ([name for name, _ in raw.by], [one.name for one in raw.measures]) == (["device"], ["ts", "power", "twice"])
    assert [measure.name for measure, _ in inverse.numbers] == ["inverse"]


def test_the_example_is_right() -> None:
    text = (Path(__file__).parents[2] / "examples" / "records.yaml").read_text()
    (climate,) = check_documents(text, "records.yaml", {}).pipelines
    assert [(one.name, list(one.field_types)) for one in climate.all_stages] == [
        ("readings", ["device", "ts", "celsius", "fahrenheit"]),
        ("minutes", ["device", "n", "mean", "is_warm"]),
    ]


def test_a_stream_of_records_is_made_with_event_time_and_the_inputs_key() -> None:
    stage = PIPELINE.record_stages[1]
    made = stream_of_results(PIPELINE, stage, "inverse")
    assert (list(made.types), made.key) == (["inverse", "device", "event_time"], "device")
    assert schema_mismatches(made, stage) == []
    assert made.fields["event_time"].required


def test_a_job_that_reads_records_gets_the_defaults_of_any_input() -> None:
    """Results of windows come whole and in order, records as they came in."""
    text = """
stream: farm
schema: {device: string, ts: timestamp}
---
pipeline: pass
input: {stream: farm}
event_time: {field: ts, delay: 1s}
steps:
  - emit: [{stream: passed}]
---
pipeline: reads
input: {stream: passed}
event_time: {field: event_time, delay: 1s}
steps:
  - emit: [{elasticsearch: passed}]
"""
    _, reads = check_documents(text, "x.yaml", {}).pipelines
    assert (reads.event_time_rule.watermark, reads.event_time_rule.idle_timeout_ms) == ("partitions", 60_000)
