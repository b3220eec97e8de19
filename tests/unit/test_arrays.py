"""Arrays and structs on their way through: fields of records, documents, mappings, streams of results, files, and charts without
them; and where they are refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.core.errors import InvalidDocument
from strandline.core.lookups.lookup import LookupSpec
from strandline.core.streams.stream import StreamSpec
from strandline.processing.aggregates.histogram import Histogram
from strandline.processing.aggregates.ranked_rows import Ranked
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.desk.desk import Desk, DeskResult, LocalDeadLetter
from strandline.processing.desk.desk_pipeline import read_pipeline
from strandline.processing.desk.records import DeskRecords
from strandline.processing.desk.result_files import result_file, typed_value
from strandline.processing.formats.decoder import Decoder
from strandline.processing.formats.record_rows import RowReader, record_format
from strandline.processing.pipelines.event_time import EventTimeSource
from strandline.processing.pipelines.result_streams import schema_mismatches, stream_of_results
from strandline.results.comparison import differences, differences_beyond_rounding
from strandline.results.document import Document, DocumentShape
from strandline.results.mapping import build_mapping, field_mapping
from strandline.results.writer import Refused
from strandline.services.jobs.result_views import kibana_objects
from tests.support.stage_batches import stage_batch

STREAM = """\
stream: pumps
format: FORMAT
schema:
  pump: string
  ts: timestamp
  levels: array<double>
  parts: {type: "array<struct<name: string, cost: decimal(6,2), at: timestamp>>", required: false}
  site: "struct<name: string, tags: array<string>>?"
key: pump
"""
PIPELINE = """\
pipeline: pump-minutes
input: {stream: pumps}
event_time: {field: ts, delay: 10s}
steps:
  - where: size(levels) > 0
  - derive: {peak: "array_max(levels)", second: "coalesce(try_element_at(levels, 2), -1.0e0)", city: "coalesce(site.name, '-')"}
  - emit: [{elasticsearch: pump-records}]
    name: readings
  - window:
      name: per_minute
      tumbling: 1m
      by: [pump]
      aggregate:
        peaks: top_n(peak, 2)
        readings: collect_list(struct(ts, peak), 3)
        cities: most_frequent(city, 2)
        bins: histogram(peak, 0, 10, 2)
        widest: "max_by(levels, peak)"
        place: last(site)
    emit: [{elasticsearch: pump-minute}, {stream: pump-minute}]
"""
RECORDS: list[dict[str, Any]] = [
    {"pump": "A", "ts": "2026-11-01T12:00:05Z", "levels": [1, 4.5], "site": {"name": "north", "tags": ["x", None]}},
    {
        "pump": "A",
        "ts": "2026-11-01T12:00:09.5Z",
        "levels": [7],
        "parts": [{"name": "belt", "cost": "1.5", "at": 5}, None],
    },
    {"pump": "A", "ts": "2026-11-01T12:00:07Z", "levels": [], "site": None},
    {"pump": "A", "ts": "2026-11-01T12:00:11Z", "levels": [12.25, None, 3], "site": {"name": "north"}, "parts": []},
]
MINUTE = {
    "pump": "A",
    "peaks": [12.25, 7.0],
    "readings": [
        {"ts": "2026-11-01T12:00:05.000Z", "peak": 4.5},
        {"ts": "2026-11-01T12:00:09.500Z", "peak": 7.0},
        {"ts": "2026-11-01T12:00:11.000Z", "peak": 12.25},
    ],
    "cities": [{"value": "north", "count": 2}, {"value": "-", "count": 1}],
    "bins": [0, 1, 1, 1],
    "widest": [12.25, None, 3.0],
    "place": {"name": "north", "tags": None},
}


def run(format_: str = "json", records: list[bytes] | None = None) -> list[DeskResult | LocalDeadLetter]:
    stream = STREAM.replace("FORMAT", format_).replace("key: pump\n", "key: pump\n" if format_ == "json" else "")
    pipeline = read_pipeline(f"{stream}---\n{PIPELINE}".encode(), "pumps.yaml")
    desk = Desk(pipeline)
    lines = records or [json.dumps(one).encode() for one in RECORDS]
    return [*desk.feed(DeskRecords(lines, [0] * len(lines))), *desk.drain()]


def documents(found: list[DeskResult | LocalDeadLetter], stage: str) -> list[dict[str, Any]]:
    assert all(isinstance(one, DeskResult) for one in found), found
    return [json.loads(one.document.source) for one in found if isinstance(one, DeskResult) and one.stage == stage]


@pytest.mark.guarantee(
    "G482",
    "Arrays and structs pass unchanged from records through expressions and windows to documents, streams of results, "
    "and files. A value that JSON can't represent, at any depth, refuses the result.",
    promise="operators-compute-what-the-reference-describes",
)
@pytest.mark.parametrize(("format_", "encode"), [("json", msgspec.json.encode), ("msgpack", msgspec.msgpack.encode)])
def test_they_go_from_records_to_documents(format_: str, encode: Any) -> None:
    found = run(format_, [encode(one) for one in RECORDS])
    (minute,) = documents(found, "per_minute")
    assert {name: minute[name] for name in MINUTE} == MINUTE
    first, second, third = documents(found, "readings")
    assert (first["levels"], first["site"], first["parts"]) == (
        [1.0, 4.5],
        {"name": "north", "tags": ["x", None]},
        None,
    )
    assert second["parts"] == [{"name": "belt", "cost": "1.50", "at": "1970-01-01T00:00:00.005Z"}, None]
    assert (third["parts"], third["second"]) == ([], -1.0)


@pytest.mark.guarantee("G483")
def test_a_record_whose_array_is_another_is_a_dead_letter() -> None:
    record = {**RECORDS[0], "levels": ["1"]}
    letters = [one for one in run(records=[json.dumps(record).encode()]) if isinstance(one, LocalDeadLetter)]
    assert ["levels: expected an array<double>" in str(one) for one in letters] == [True]


def test_a_struct_has_each_name_once() -> None:
    record = json.dumps({**RECORDS[0], "site": None}).replace('"site": null', '"site": {"name": "a", "name": "b"}')
    (letter,) = [one for one in run(records=[record.encode()]) if isinstance(one, LocalDeadLetter)]
    assert "site: expected a struct<name: string, tags: array<string>>" in str(letter)


@pytest.mark.guarantee("G482")
def test_a_stream_of_results_holds_them_and_is_read_as_it_was_written() -> None:
    pipeline = read_pipeline((STREAM.replace("FORMAT", "json") + "---\n" + PIPELINE).encode(), "pumps.yaml")
    (stage,) = pipeline.stages
    stream = stream_of_results(pipeline, stage, "pump-minute")
    assert stream.fields["cities"].type == "array<struct<value: string, count: long>>"
    assert schema_mismatches(stream, stage) == []
    again = StreamSpec.from_document(stream.as_document())
    assert again == stream
    # The documents of a stream are flat: the times are fields like the others.
    shape = DocumentShape(
        "pump-minute", "j", "per_minute", 1, (("pump", "string"),), tuple(stage.value_types.items()), is_stream=True
    )
    rows = stage_batch([], [()] * 1)
    columns = {
        name: pa.array([typed_value(MINUTE[name], kind)], arrow_type(kind)) for name, kind in stage.field_types.items()
    }
    batch = pa.RecordBatch.from_arrays([*rows.columns, *columns.values()], [*rows.schema.names, *columns])
    (document,) = shape.documents(batch, 1, 1)
    assert isinstance(document, Document)
    config = record_format(stream)
    (part,) = RowReader(config).parts([document.source], [])
    decoder = Decoder(config.fields, EventTimeSource("window_start"), list(columns))
    decoded = decoder.decode(part.texts, [1_714_564_860_000], None)
    assert decoded.rejects == []
    assert {name: one.to_pylist() for name, one in decoded.arrays.items()} == {
        name: one.to_pylist() for name, one in columns.items()
    }


@pytest.mark.guarantee("G482")
def test_a_file_of_results_has_their_types(tmp_path: Path) -> None:
    pipeline = read_pipeline((STREAM.replace("FORMAT", "json") + "---\n" + PIPELINE).encode(), "pumps.yaml")
    found = [one for one in run() if isinstance(one, DeskResult) and one.stage == "per_minute"]
    with result_file(tmp_path / "minutes.parquet", pipeline.stages) as file:
        for one in found:
            file.write(one)
    table = pq.read_table(tmp_path / "minutes.parquet")
    assert table.schema.field("cities").type.value_type == arrow_type("struct<value: string, count: long>")
    (row,) = table.to_pylist()
    assert (row["peaks"], row["cities"], row["place"]) == (MINUTE["peaks"], MINUTE["cities"], MINUTE["place"])
    assert [one["ts"].isoformat() for one in row["readings"]][1] == "2026-11-01T12:00:09.500000+00:00"


def test_the_mapping_is_that_of_what_stands_in_them() -> None:
    assert field_mapping("array<double>") == {"type": "double"}
    pair = {"properties": {"value": {"type": "keyword"}, "count": {"type": "long"}}}
    assert field_mapping("struct<value: string, count: long>") == pair
    assert field_mapping("array<struct<value: string, count: long>>") == {"type": "nested", **pair}
    shape = DocumentShape("e", "j", "s", 1, (), (("tops", "array<long>"),))
    assert build_mapping(shape)["properties"]["tops"] == {"type": "long"}


def test_charts_leave_them_out() -> None:
    pipeline = read_pipeline((STREAM.replace("FORMAT", "json") + "---\n" + PIPELINE).encode(), "pumps.yaml")
    objects = kibana_objects(pipeline)
    drawn = json.dumps([one for one in objects if one["type"] not in ("search", "index-pattern")])
    assert "pump" in drawn
    assert [name for name in MINUTE if f'\\"{name}\\"' in drawn and name != "pump"] == []


@pytest.mark.guarantee("G482")
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_json_cannot_hold_refuses_the_result_wherever_it_stands(value: float) -> None:
    fields = (("xs", "array<double>"), ("pair", "array<struct<x: double>>"))
    shape = DocumentShape("e", "j", "s", 1, (), fields)
    rows = stage_batch([], [()] * 3)
    xs = pa.array([[1.0, value], [2.0], None], arrow_type("array<double>"))
    pairs = pa.array([[], [{"x": 1.0}, {"x": value}], [None]], arrow_type("array<struct<x: double>>"))
    batch = pa.RecordBatch.from_arrays([*rows.columns, xs, pairs], [*rows.schema.names, "xs", "pair"])
    first, second, third = shape.documents(batch, 1, 1)
    assert isinstance(first, Refused)
    assert isinstance(second, Refused)
    assert "xs is" in first.reason
    assert "pair.x is" in second.reason
    assert isinstance(third, Document)
    found = json.loads(third.source)
    assert (found["xs"], found["pair"]) == (None, [None])
    sliced = shape.documents(batch.slice(2), 1, 1)
    assert [one.source for one in sliced if isinstance(one, Document)] == [third.source]


def test_two_documents_differ_in_what_stands_in_them() -> None:
    held: dict[str, Any] = {"xs": [1, 0.1 + 0.2], "top": [{"value": True, "count": 2}]}
    near = {"xs": [1, 0.3], "top": [{"value": True, "count": 2}]}
    assert differences(held, held) == []
    assert len(differences(held, near)) == 1
    assert differences_beyond_rounding(held, near) == []
    assert len(differences_beyond_rounding(held, {**near, "xs": [1]})) == 1
    assert len(differences(held, {**held, "top": [{"value": 1, "count": 2}]})) == 1, "1 is not true"


@pytest.mark.guarantee("G481")
def test_no_more_is_kept_than_a_result_may_need() -> None:
    """A thousand rows, of which three are asked for; and values in as many bins as there are."""
    count = 1_000
    rows, codes, none = (
        [pa.array(np.arange(count) % 700), pa.array(range(count))],
        np.zeros(count, np.int64),
        np.zeros(0),
    )
    for function in (Ranked("collect_list", ["long", "long"], 3), Ranked("top_n_by", ["long", "long", "long"], 3)):
        given = rows if function.partial_types[0].value_type.num_fields == 2 else [rows[0], *rows]
        state = [pa.array([], kind) for kind in function.partial_types]
        (kept,) = function.fold(state, none.astype(np.int64), given, codes, 1)
        assert len(kept[0]) == 3
    histogram = Histogram([0.0, 1.0, 2.0])
    state = [pa.array([], kind) for kind in histogram.partial_types]
    bins, _ = histogram.fold(state, none.astype(np.int64), [rows[0].cast(pa.float64())], codes, 1)
    assert bins.to_pylist() == [[1, 2, 3]]


REFUSED = {
    "by: [pump]": ("by: [levels]", "'levels' has the type array<double>, which makes no key"),
    "top_n(peak, 2)": ("max(levels)", "an array<double> can't be compared"),
    "size(levels) > 0": ("levels = levels", "can't be compared"),
    "array_max(levels)": ("levels[0]", "write element_at(x, 1)"),
    "site.name": ("site.town", "site has the members name, tags"),
    "most_frequent(city, 2)": ("most_frequent(site, 2)", "sorts values"),
    "last(site)": ("collect_list(levels, 2)", "no array contains arrays"),
    "histogram(peak, 0, 10, 2)": ("histogram(peak, array(1, 1))", "the borders must ascend"),
    "max_by(levels, peak)": ("collect_list(peak)", "expected collect_list(x, 100)"),
}


@pytest.mark.guarantee(
    "G481",
    "An array of a result, and the memory for it, is bounded by its call, at most 1,000 elements. Too many values for "
    "`most_frequent` make the result a dead letter.",
    promise="no-client-can-exhaust-a-service",
)
@pytest.mark.guarantee(
    "G484",
    "An array or struct that isn't supported, as a key, in a comparison, in another format, or nested in another one, "
    "is refused when the document is applied.",
    promise="unusable-documents-are-refused",
)
@pytest.mark.parametrize(("old", "new", "sentence"), [(old, *rest) for old, rest in REFUSED.items()])
def test_what_can_not_be_done_with_them_is_said(old: str, new: str, sentence: str) -> None:
    assert old in PIPELINE
    text = STREAM.replace("FORMAT", "json") + "---\n" + PIPELINE.replace(old, new)
    with pytest.raises(InvalidDocument) as refused:
        read_pipeline(text.encode(), "pumps.yaml")
    assert sentence in str(refused.value)


@pytest.mark.guarantee("G484")
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": "influx"}, "can be read from the formats json, msgpack, cbor, but this is influx"),
        ({"key": "xs"}, "can't be the key"),
        ({"schema": {"pump": "string", "xs": {"type": "array<long>", "text": True}}}, "can't be a string"),
        ({"schema": {"pump": "string", "xs": "array<array<long>>"}}, "an array can't contain arrays"),
        ({"schema": {"pump": "string", "xs": "array<float>"}}, "is not a type"),
        (
            {"schema": {"pump": "string", "xs": {"type": "array<long>", "min": 1}}},
            "'min' is for numbers and timestamps",
        ),
    ],
)
def test_a_stream_says_where_they_can_not_stand(change: dict[str, Any], sentence: str) -> None:
    document = {"stream": "pumps", "schema": {"pump": "string", "xs": "array<long>"}} | change
    with pytest.raises(InvalidDocument) as refused:
        StreamSpec.from_document(document)
    assert sentence in str(refused.value)


@pytest.mark.guarantee("G484")
def test_a_lookup_has_none() -> None:
    with pytest.raises(InvalidDocument, match="arrays, and structs"):
        LookupSpec.from_document(
            {"lookup": "sites", "schema": {"site": "string", "xs": "array<long>"}, "key": "site", "rows": []}
        )
