"""Fields that contain metadata of a record: the same from the log, at the desk, and when a record is put back."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from strandline.core.errors import InvalidDocument
from strandline.core.record_headers import (
    HEADER_MQTT_RETAINED,
    HEADER_SOURCE,
    RECORD_KEY,
    RECORD_TIMESTAMP,
    pack_header_values,
    unpack_header_values,
    with_record_metadata,
)
from strandline.core.streams.stream import StreamSpec
from strandline.log.range_reader import FetchedBatches
from strandline.log.reader import OffsetRange
from strandline.log.record_batches import committed_batches
from strandline.processing.desk.case_run import read_cases, run_case
from strandline.processing.formats.record_rows import RowReader, record_format
from strandline.processing.pipelines.schema_changes import refused_changes
from tests.unit.test_record_rows import read

METERS = {"meter": "string", "site": "string?", "kwh": "double", "arrived": "timestamp?"}
OF_METERS = {"meter": "key", "site": "header.site", "arrived": "timestamp"}


def packed(headers: dict[str, bytes], key: bytes | None = None, timestamp_ms: int | None = None) -> bytes | None:
    return pack_header_values(None, with_record_metadata(headers, key, timestamp_ms))


def test_key_headers_and_timestamp_of_a_record_are_fields() -> None:
    """Kafka Connect's MQTT source, an EMQX bridge, ksqlDB: the device is the key, and a header holds the rest."""
    given = {"meter": "m-1", "site": "north", "kwh": 1.5, "arrived": datetime(2026, 11, 1, 12, tzinfo=UTC)}
    source = packed({"site": b"north"}, b"m-1", 1793534400000)
    for times in (1, 100):
        accepted, rejected = read(METERS, *[(b'{"kwh":1.5}', source)] * times, metadata=OF_METERS)
        assert (accepted, rejected) == ([given] * times, [])
    accepted, rejected = read(METERS, (b'{"kwh":1,"meter":"own"}', source), (b'{"kwh":1}', None), metadata=OF_METERS)
    assert [row["meter"] for row in accepted] == ["own"], "metadata fill what the record lacks"
    assert rejected == ["1 schema: meter: required but missing"]


@pytest.mark.parametrize(
    ("what", "headers", "value"),
    [
        ("sender", {HEADER_SOURCE: b"udp:10.0.0.7"}, "10.0.0.7"),
        ("sender", {HEADER_SOURCE: b"http:::1"}, "::1"),
        ("sender", {HEADER_SOURCE: b"file:a.csv"}, None),
        ("source", {HEADER_SOURCE: b"tcp:10.0.0.7"}, "tcp:10.0.0.7"),
        ("file", {HEADER_SOURCE: b"file:pump-7_2026.csv"}, "pump-7_2026.csv"),
        ("url", {HEADER_SOURCE: b"poll:http://10.0.0.5/status"}, "http://10.0.0.5/status"),
        ("topic", {HEADER_SOURCE: b"mqtt:a/b/c"}, "a/b/c"),
        ("topic[-1]", {HEADER_SOURCE: b"mqtt:a/b/c"}, "c"),
        ("topic[1:]", {HEADER_SOURCE: b"mqtt:a/b/c"}, "b/c"),
        ("topic[-2:]", {HEADER_SOURCE: b"mqtt:a/b/c"}, "b/c"),
        ("topic[3]", {HEADER_SOURCE: b"mqtt:a/b/c"}, None),
        ("topic[3:]", {HEADER_SOURCE: b"mqtt:a/b/c"}, None),
        ("topic", {HEADER_SOURCE: b"udp:10.0.0.7"}, None),
        ("retained", {HEADER_MQTT_RETAINED: b"1"}, "true"),
        ("property.fw", {"property-fw": b"1.2"}, "1.2"),
        ("header.fw", {"fw": "ä".encode()}, "ä"),
    ],
)
def test_each_kind_of_metadata_is_a_text(what: str, headers: dict[str, bytes], value: str | None) -> None:
    accepted, rejected = read({"v": "long", "m": "string?"}, (b'{"v":1}', packed(headers)), metadata={"m": what})
    assert (accepted, rejected) == ([{"v": 1, "m": value}], [])


@pytest.mark.guarantee("G843")
def test_metadata_hold_for_each_row_of_a_record_and_for_bare_values() -> None:
    source = packed({HEADER_SOURCE: b"file:f"}, b"k")
    rows, _ = read({"k": "string", "v": "long"}, (b'[{"v":1},{"v":2}]', source), explode="$", metadata={"k": "key"})
    assert rows == [{"k": "k", "v": 1}, {"k": "k", "v": 2}]
    assert read({"k": "string", "v": "double"}, (b"21.5", source), format="value", metadata={"k": "key"})[0] == [
        {"k": "k", "v": 21.5}
    ]


@pytest.mark.guarantee(
    "G843",
    "Fields with metadata of a record (`metadata`) have the same values from the log in every read, for each row of a "
    "record.",
    promise="a-record-is-read-in-the-same-way-everywhere",
)
def test_the_log_hands_on_key_and_timestamp_where_a_stream_wants_them() -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1,
        batch_size=1 << 20,
    )  # fmt: skip
    builder.append(0, timestamp=1000, key=b"m-1", value=b"{}", headers=[("site", b"north")])
    builder.append(1, timestamp=2000, key=None, value=b"{}", headers=[])
    found = committed_batches(bytes(builder.build()), [], 0, 2, [])
    stream = StreamSpec.from_document({"stream": "s", "schema": METERS, "metadata": OF_METERS})
    reader = RowReader(record_format(stream))
    batches = FetchedBatches(OffsetRange("s", 0, 0, 2), list(found.batches))
    (records,) = batches.columns(reader.headers, reader.headers_beside)
    assert [dict(unpack_header_values(one)[1]) for one in records.header_values] == [
        {RECORD_KEY: b"m-1", RECORD_TIMESTAMP: b"1000", "site": b"north"},
        {RECORD_TIMESTAMP: b"2000"},
    ]


def test_a_test_of_a_pipeline_says_key_file_and_sender_of_its_records(tmp_path: Path) -> None:
    (tmp_path / "meters.yaml").write_text(
        """
stream: meters
metadata: {meter: key, site: header.site, file: file}
schema: {meter: string, site: string, file: string, ts: timestamp, kwh: double}
---
pipeline: all-meters
input: {stream: meters}
event_time: {field: ts, delay: 10s}
steps: [{emit: [{elasticsearch: all-meters}]}]
"""
    )
    case = tmp_path / "case.yaml"
    case.write_text(
        """
test: the-key-is-the-meter
file: meters.yaml
steps:
  - {record: {ts: 1793534400000, kwh: 1.5}, key: m-1, headers: {site: north}, file: a.csv}
expect:
  results:
    - {meter: m-1, site: north, file: a.csv, kwh: 1.5}
"""
    )
    (spec,) = read_cases(case)
    report = run_case(spec, tmp_path)
    assert report.passed, report


@pytest.mark.parametrize(
    ("schema", "metadata", "problem"),
    [
        ({"a": "string"}, {"b": "key"}, "is not a field of the schema"),
        ({"a": "string"}, {"a": "offset"}, "'offset' is not metadata of a record; expected one of key"),
        ({"a": "array<long>?"}, {"a": "key"}, "is a string, but the field is array<long>"),
        ({"a": "string"}, {"a": "timestamp"}, "declare the field as timestamp"),
    ],
)
def test_metadata_that_can_not_be_are_refused_in_a_sentence(
    schema: dict[str, Any], metadata: dict[str, str], problem: str
) -> None:
    with pytest.raises(InvalidDocument) as refused:
        StreamSpec.from_document({"stream": "s", "schema": schema, "metadata": metadata})
    assert problem in str(refused.value.problems)


def test_a_field_in_metadata_stays_while_jobs_read_the_stream() -> None:
    old = StreamSpec.from_document({"stream": "s", "schema": METERS, "metadata": OF_METERS})
    new = StreamSpec.from_document(
        {"stream": "s", "schema": METERS, "metadata": {"meter": "key", "site": "header.site"}}
    )
    assert refused_changes([old], new) == [
        "metadata.arrived was removed, but records in the log have it only in their metadata; keep it"
    ]
    assert old.decoding_changes(new) == ["metadata"]
