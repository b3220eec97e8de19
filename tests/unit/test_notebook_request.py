"""The meaning of the options of `spark.read.format("strandline")`, and a chunk's rejected records in its rows."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from strandline.core.errors import BadRecord, InvalidSettings
from strandline.core.streams.stream import StreamSpec
from strandline.processing.formats.decoder import Decoder
from strandline.processing.formats.record_rows import RowReader, record_format
from strandline.processing.notebook.request import Bound, request_of
from strandline.processing.notebook.tables import SliceNumbers, _schema_of_records, batch_of_chunk
from strandline.processing.pipelines.event_time import EventTimeSource
from strandline.processing.source.decoding import DecodedChunk

STREAM = StreamSpec.from_document({"stream": "s", "schema": {"device": "string", "power": "decimal(6,2)"}})


def test_a_stream_by_time_or_offsets_and_a_job_by_slices() -> None:
    asked = request_of({"stream": "s", "from": "2026-11-24T10:00:00Z", "TO": '{"1": 20, "0": 7}'})
    assert (asked.what, asked.since, asked.until) == (
        "records",
        Bound(time_ms=1_795_514_400_000),
        Bound(offsets={0: 7, 1: 20}),
    )
    assert request_of({"stream": "s", "from": "2026-11-24 11:00:00+01:00"}).since.time_ms == 1_795_514_400_000
    assert request_of({"stream": "s", "from": "12"}).since.time_ms == 12
    for text, expected in {
        "": (None, None),
        "7": (7, 7),
        "3-9": (3, 9),
        "3-": (3, None),
        "-9": (None, 9),
    }.items():
        assert request_of({"job": "j", "slices": text}).slices == expected


@pytest.mark.guarantee("G370")
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "either 'stream'"),
        ({"stream": "s", "slices": "1"}, "slices belong to a job"),
        ({"job": "j", "from": "1"}, "a job is read by slices"),
        ({"job": "j", "slices": "1-x"}, "expected a number or a range"),
        ({"job": "j", "slices": "-"}, "expected a number or a range"),
        ({"stream": "s", "form": "1"}, "did you mean 'from'"),
        ({"stream": "s", "from": "noon"}, "expected a time"),
        ({"stream": "s", "from": '{"0": -1}'}, "offsets by partition"),
        ({"stream": "s", "from": "[1]"}, "expected a time"),
        ({"stream": "s", "mode": "ignore"}, "expected one of: PERMISSIVE"),
        ({"stream": "s", "stage": "w"}, "it is one of what=results"),
        ({"what": "results"}, "needs the option 'job'"),
        ({"what": "everything"}, "expected one of: records"),
        ({"stream": "s", "ledger": "postgresql+psycopg://a:secret@h/db"}, "would appear in Spark's plans"),
        ({"stream": "s", "elasticsearch": "http://a:secret@h:9200"}, "would appear in Spark's plans"),
        ({"stream": "s", "data_dir": "/nowhere"}, "strandline up --data-dir /nowhere"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_sentence(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidSettings, match=sentence) as refused:
        request_of(options)
    assert "secret" not in str(refused.value)


def test_addresses_come_from_options_then_the_stack_then_the_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STRANDLINE_KAFKA_BOOTSTRAP", "settings:1")
    monkeypatch.setenv("STRANDLINE_LEDGER_URL", "postgresql+psycopg://a:secret@h/db")
    places = request_of({"stream": "s"}).addresses
    assert (places.kafka_bootstrap, places.ledger_url) == ("settings:1", "postgresql+psycopg://a@h/db")
    stack = {"ledger_url": "sqlite:////d/l", "kafka_bootstrap": "stack:1", "elasticsearch_url": "http://e:1", "more": 1}
    (tmp_path / "stack.json").write_text(json.dumps(stack))
    places = request_of({"stream": "s", "data_dir": str(tmp_path), "elasticsearch": "http://own:9200"}).addresses
    assert (places.kafka_bootstrap, places.elasticsearch_url) == ("stack:1", "http://own:9200")


def a_chunk(*values: bytes) -> DecodedChunk:
    """At offsets 10, 11, ..."""
    record = record_format(STREAM)
    (rows,) = RowReader(record).parts(values, [])
    decoder = Decoder(record.fields, EventTimeSource(None), list(STREAM.fields))
    decoded = decoder.decode(rows.texts, [5] * len(values), None)
    return DecodedChunk("s", 3, [10 + at for at in range(len(values))], [5] * len(values), decoded, values.__getitem__)


@pytest.mark.guarantee(
    "G370",
    '`spark.read.format("strandline")` returns the contents of streams, slices, dead letters, and results up to their '
    "ends at planning, with slices decoded and evaluated as in the job. `mode` controls rejected records, and no "
    "secret is accepted in an option.",
    promise="all-forms-of-a-pipeline-agree",
)
def test_a_rejected_record_stands_in_its_place_or_is_left_out_or_ends_the_reading() -> None:
    chunk = a_chunk(b"no", b'{"device":"a","power":"1.50"}', b"{}", b'{"device":"b","power":2}')
    schema = _schema_of_records(STREAM, "PERMISSIVE", of_slices=True)
    rows = batch_of_chunk(chunk, "PERMISSIVE", schema, SliceNumbers((11, 12, 20), (4, 5, 6))).to_pylist()
    assert [row["device"] for row in rows] == [None, "a", None, "b"]
    assert [row["strandline_offset"] for row in rows] == [10, 11, 12, 13]
    assert [row["strandline_slice"] for row in rows] == [4, 5, 6, 6]
    assert [row["strandline_reason"] for row in rows] == ["decode", None, "schema", None]
    assert [row["strandline_value"] for row in rows] == [b"no", None, b"{}", None]
    assert [row["strandline_event_time"] is None for row in rows] == [True, False, True, False]
    assert str(rows[1]["power"]) == "1.50"
    without = _schema_of_records(STREAM, "DROPMALFORMED", of_slices=False)
    rows = batch_of_chunk(chunk, "DROPMALFORMED", without).to_pylist()
    assert [(row["strandline_offset"], row["device"]) for row in rows] == [(11, "a"), (13, "b")]
    with pytest.raises(BadRecord, match=r"decode at decode: s/3/10: not JSON"):
        batch_of_chunk(chunk, "FAILFAST", without)
    none = batch_of_chunk(a_chunk(b"no"), "DROPMALFORMED", without)
    assert (none.num_rows, none.schema) == (0, without)


def test_columns_come_back_from_spark_as_they_were_and_never_clash() -> None:
    schema = _schema_of_records(STREAM, "PERMISSIVE", of_slices=True)
    assert to_arrow_schema(from_arrow_schema(schema), timezone="UTC") == schema
    clashing = StreamSpec.from_document({"stream": "s", "schema": {"strandline_offset": "long"}})
    with pytest.raises(InvalidSettings, match="has a field strandline_offset"):
        _schema_of_records(clashing, "FAILFAST", of_slices=False)
    assert isinstance(schema, pa.Schema)
