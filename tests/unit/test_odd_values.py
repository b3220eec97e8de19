"""Values that devices send in another form than the schema's type.

Markers, words, strings, times by a pattern, any type.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from strandline.core.documents import read_documents
from strandline.core.errors import InvalidDocument
from strandline.core.files.text_rows import lines_of, rows_of_csv, rows_of_lines, without_column_names
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.gateway.framing import Form, frame
from strandline.ingest.gateway.line_splitter import LineSplitter
from strandline.processing.desk.case_run import read_cases, run_case
from strandline.processing.desk.record_files import read_records
from strandline.processing.formats.record_rows import record_format
from tests.unit.test_record_rows import read

MARK = b"\xef\xbb\xbf"
OPTIONAL = {"type": "double", "required": False}


# --- Byte order marks


@pytest.mark.guarantee(
    "G841",
    "A byte order mark at the beginning of a file, a request, or a connection isn't part of its first record.",
    promise="a-record-is-read-in-the-same-way-everywhere",
)
@pytest.mark.parametrize(
    ("form", "body", "records"),
    [
        (Form.JSON, MARK + b'{"a":1}', [b'{"a":1}']),
        (Form.JSON, MARK + b'[{"a":1},{"a":2}]', [b'{"a":1}', b'{"a":2}']),
        (Form.LINES, MARK + b'{"a":1}\r\n{"a":2}\r\n', [b'{"a":1}', b'{"a":2}']),
        (Form.WHOLE, MARK + b"x", [MARK + b"x"]),
    ],
)
def test_a_byte_order_mark_before_a_body_is_no_part_of_its_records(
    form: Form, body: bytes, records: list[bytes]
) -> None:
    assert [value for value, _ in frame(body, form, None, 1_000).records] == records


@pytest.mark.guarantee("G841")
def test_a_byte_order_mark_before_a_file_is_no_part_of_its_first_row() -> None:
    for blocks in ([MARK + b"a\nb\n"], [b"\xef", b"\xbb", b"\xbfa\nb", b"\n"]):
        assert list(lines_of(blocks, 100)) == [b"a", b"b"]
    assert list(lines_of([], 100)) == []
    splitter = LineSplitter(100)
    assert splitter.split(MARK + b"a\n" + MARK + b"b\n") == [b"a", MARK + b"b"]


def test_files_of_excel_and_dos_have_only_their_rows() -> None:
    lines = lines_of([MARK + b"sep=;\r\nAt;FIC101.PV\r\n2026-01-01;1\r\n\x1a"], 100)
    rows = without_column_names(rows_of_csv(lines, b";", 100), ["At", "FIC101_PV"], b";", "f")
    assert [row for row, _ in rows] == [b"2026-01-01;1"]
    assert [row for row, _ in rows_of_lines(lines_of([b"a\n\x1a"], 100), 100)] == [b"a"]


def test_the_desk_reads_the_first_record_behind_a_byte_order_mark(tmp_path: Path) -> None:
    config = record_format(StreamSpec.from_document({"stream": "s", "schema": {"a": "long"}}))
    for name, content in (("a.ndjson", b'{"a":1}\n{"a":2}\n'), ("b.json", b'[{"a":1},\n{"a":2}]')):
        (tmp_path / name).write_bytes(MARK + content)
        assert [one for piece in read_records(tmp_path / name, config) for one in piece] == [b'{"a":1}', b'{"a":2}']


@pytest.mark.parametrize("count", [1, 100])
def test_a_record_may_begin_with_a_byte_order_mark(count: int) -> None:
    """MQTT and Kafka hand on the bytes of the sender."""
    assert read({"a": "long"}, *[MARK + b'{"a":1}', b'{"a":2}'] * count) == ([{"a": 1}, {"a": 2}] * count, [])
    deep = {"a": {"type": "long", "from": "$.b.c"}}
    assert read(deep, *[MARK + b'{"b":{"c":1}}'] * count) == ([{"a": 1}] * count, [])
    assert read({"t": "string", "a": "long"}, *[MARK + b"x,1", b"y,2"] * count, format="csv") == (
        [{"t": "x", "a": 1}, {"t": "y", "a": 2}] * count,
        [],
    )
    assert read({"a": "string"}, *[MARK + b"x"] * count, format="value") == ([{"a": "x"}] * count, [])


# --- Integers with a point or an exponent


@pytest.mark.parametrize("kind", ["long", "integer"])
@pytest.mark.parametrize("document", [{}, {"format": "csv"}])
def test_integers_may_be_written_as_decimals(kind: str, document: dict[str, Any]) -> None:
    texts = [b"27", b"27.0", b"2.7e1", b"-270E-1", b"26.5", b"0.0"]
    records = [b'{"a":%b}' % text if not document else text for text in texts]
    for times in (1, 40):
        accepted, rejected = read({"a": kind}, *records * times, **document)
        assert accepted == [{"a": 27}, {"a": 27}, {"a": 27}, {"a": -27}, {"a": 0}] * times
        assert len(rejected) == times
        assert rejected[0] == f"4 schema: a: expected {'an integer' if kind == 'integer' else 'a long'}, got 26.5"


def test_integers_as_floats_are_exact_and_within_the_limits() -> None:
    schema = {"a": {"type": "long", "max": 100}, "b": "long?"}
    accepted, rejected = read(schema, b'{"a":100.0}', b'{"a":100.5}', b'{"a":101.0}', b'{"a":1,"b":9007199254740993.0}')
    assert accepted == [{"a": 100, "b": None}]
    assert [one.split(":")[0] for one in rejected] == ["1 schema", "2 schema", "3 schema"]


# --- Markers of missing values


@pytest.mark.guarantee(
    "G840",
    "A marker of a missing value (`missing`) affects only its own value, and so does a value of another type in a "
    "field with `or_null`. All other fields of the record are read, and its neighbours don't matter.",
    promise="a-record-is-read-in-the-same-way-everywhere",
)
def test_markers_of_missing_values_cost_only_their_value() -> None:
    """Columns of a historian: numbers, and words for no number."""
    schema = {"tag": "string", "v": OPTIONAL | {"missing": ["Bad", "I/O Timeout", -9999]}}
    rows = [b'"a",1.5', b'"b",Bad', b'"c",i/o timeout', b'"d",-9999', b'"e",-9999.0', b'"f",', b'"g",Good']
    accepted, rejected = read(schema, *rows, format="csv")
    assert [(row["tag"], row["v"]) for row in accepted] == [("a", 1.5), *[(tag, None) for tag in "bcdef"]]
    assert rejected == ['6 schema: v: expected a double, got "Good"']


def test_markers_of_a_stream_hold_for_each_field() -> None:
    schema = {
        "dev": "string",
        "t": OPTIONAL,
        "n": "long?",
        "on": "boolean?",
        "price": "decimal(5,2)?",
        "at": "timestamp?",
    }
    none = b'{"dev":"x","t":"?","n":"?","on":"?","price":"?","at":"?"}'
    some = b'{"dev":"x","t":1,"n":2,"on":true,"price":"3.5","at":"1970-01-01"}'
    accepted, rejected = read(schema, none, some, b'{"dev":"?","t":1}', missing=["?"])
    assert accepted[0] == {"dev": "x", "t": None, "n": None, "on": None, "price": None, "at": None}
    assert (accepted[1]["t"], accepted[1]["n"], accepted[1]["on"], str(accepted[1]["price"])) == (1.0, 2, True, "3.50")
    assert accepted[1]["at"] == datetime(1970, 1, 1, tzinfo=UTC)
    assert rejected == ['2 schema: dev: expected a string, got "?"']


def test_words_for_no_number_are_read_without_quotes_by_choice() -> None:
    schema = {"dev": "string", "temp": OPTIONAL, "e": "long"}
    records = [
        b'{"dev":"nan","temp":nan,"e":1}', b'{"dev":"b","temp":NaN,"e":2}', b'{"dev":"c","temp":-Infinity,"e":3}',
        b'{"dev":"d","temp":"unavailable","e":4}', b'{"dev":"e","temp":inf,"e":5}',
    ]  # fmt: skip
    _, rejected = read(schema, *records)
    assert len(rejected) == 5
    for temp in (OPTIONAL, OPTIONAL | {"from": "$.temp"}):
        accepted, rejected = read({**schema, "temp": temp | {"missing": ["nan", "-infinity", "unavailable"]}}, *records)
        assert [(row["dev"], row["temp"], row["e"]) for row in accepted] == [
            ("nan", None, 1), ("b", None, 2), ("c", None, 3), ("d", None, 4)
        ]  # fmt: skip
        assert rejected[0].startswith("4 decode: not JSON")


# --- Values of another type


def test_an_optional_field_may_be_null_if_the_value_has_another_type() -> None:
    schema = {
        "id": "string",
        "v": OPTIONAL | {"or_null": True},
        "text": {"type": "string?", "or_null": True, "from": "$.v"},
    }
    accepted, rejected = read(
        schema,
        b'{"id":"a","v":1.5}',
        b'{"id":"b","v":true}',
        b'{"id":"c","v":"A-17"}',
        b'{"id":"d","v":{"x":1}}',
        b'{"id":"e"}',
    )
    assert rejected == []
    assert [(row["v"], row["text"]) for row in accepted] == [
        (1.5, None), (None, None), (None, "A-17"), (None, None), (None, None)
    ]  # fmt: skip


def test_any_takes_a_value_of_each_type_as_it_was_written() -> None:
    accepted, rejected = read(
        {"id": "string", "v": "any?"},
        *[b'{"id":"a","v":%b}' % text for text in (b"12.50", b"true", b'"A\\u002d17"', b'{"a": [1]}', b"null", b"[]")],
        b'{"id":"a"}',
    )
    assert rejected == []
    assert [row["v"] for row in accepted] == ["12.50", "true", "A-17", '{"a": [1]}', None, "[]", None]
    assert read({"v": "any"}, b'{"v":null}')[1] == ["0 schema: v: expected a string, got null"]


def test_any_is_read_within_the_elements_of_an_array() -> None:
    record = b'{"ts":1,"values":[{"id":"F","v":12.5},{"id":"R","v":true},{"id":"N","v":"A"}]}'
    accepted, rejected = read({"ts": "timestamp", "id": "string", "v": "any"}, record, explode="$.values")
    assert rejected == []
    assert [(row["id"], row["v"]) for row in accepted] == [("F", "12.5"), ("R", "true"), ("N", "A")]


# --- Times by a pattern

PARIS = {"type": "timestamp", "pattern": "d/M/yyyy HH:mm:ss", "tz": "Europe/Paris"}


def test_a_time_is_read_by_its_pattern_and_zone() -> None:
    accepted, rejected = read({"at": PARIS}, b'{"at":"5/10/2026 08:00:00"}', b'{"at":"2026-10-05"}', b'{"at":5}')
    assert accepted == [{"at": datetime(2026, 10, 5, 6, tzinfo=UTC)}]
    assert rejected == [
        '1 schema: at: expected a timestamp written as d/M/yyyy HH:mm:ss, got "2026-10-05"',
        "2 schema: at: expected a timestamp written as d/M/yyyy HH:mm:ss, got 5",
    ]
    offset = {"at": {"type": "timestamp", "pattern": "yyyy-MM-dd HH:mm:ss XX", "tz": "Europe/Paris"}}
    assert read(offset, b'{"at":"2026-10-05 08:00:00 +0100"}')[0] == [{"at": datetime(2026, 10, 5, 7, tzinfo=UTC)}]


def test_a_time_is_joined_from_two_columns() -> None:
    at = PARIS | {"from": ["$.Date", "$.Time"]}
    rows = [b"16/12/2026;00:01:00;3.2", b"16/12/2026;;3.3", b"17/12/2026;00:00:00;?"]
    accepted, rejected = read(
        {"at": at, "kw": OPTIONAL | {"missing": ["?"]}},
        *rows,
        format="csv",
        csv={"delimiter": ";", "columns": ["Date", "Time", "kw"]},
    )
    assert accepted == [
        {"at": datetime(2026, 12, 15, 23, 1, tzinfo=UTC), "kw": 3.2},
        {"at": datetime(2026, 12, 16, 23, tzinfo=UTC), "kw": None},
    ]
    assert rejected == ["1 schema: at: required but missing"]
    iso = {"at": {"type": "timestamp", "from": ["$.day", "$.clock"]}}
    assert read(iso, b'{"day":"2026-10-05","clock":"06:00"}')[0] == [{"at": datetime(2026, 10, 5, 6, tzinfo=UTC)}]


def test_columns_of_any_name_are_read_by_their_path() -> None:
    schema = {"at": "timestamp", "flow": {"type": "double", "from": '$["FIC101.PV"]'}}
    accepted, rejected = read(
        schema, *[b"2026-10-05 06:00:00,12.5"] * 3, format="csv", csv={"columns": ["at", "FIC101.PV"]}
    )
    assert (accepted, rejected) == ([{"at": datetime(2026, 10, 5, 6, tzinfo=UTC), "flow": 12.5}] * 3, [])


HOUSE = """
stream: house
partitions: 1
format: csv
csv: {delimiter: ";", columns: [Date, Time, kw]}
missing: ["?"]
schema:
  at: {type: timestamp, pattern: "d/M/yyyy HH:mm:ss", tz: Europe/Paris, from: [$.Date, $.Time]}
  kw: "double?"
---
pipeline: house-hours
input: {stream: house}
event_time: {field: at, delay: 1m}
steps:
  - window: {name: h, tumbling: 1h, aggregate: {n: count(*), known: count(kw)}}
    emit: [{elasticsearch: house-hour}]
"""


def test_event_time_by_a_pattern_is_log_time_at_the_desk(tmp_path: Path) -> None:
    (tmp_path / "house.yaml").write_text(HOUSE)
    (tmp_path / "house.csv").write_bytes(MARK + b"Date;Time;kw\r\n16/12/2026;00:00:00;3.2\r\n16/12/2026;00:30:00;?\r\n")
    (tmp_path / "case.yaml").write_text(
        "test: hours\nfile: house.yaml\nsteps: [{input: house.csv}]\n"
        "expect: {results: [{n: 2, known: 1}], dead_letters: []}\n"
    )
    (case,) = read_cases(tmp_path / "case.yaml")
    report = run_case(case, tmp_path)
    assert report.passed, report


# --- One record at a time, and many


@pytest.mark.guarantee("G840")
def test_neighbours_change_nothing() -> None:
    chance = random.Random(7)
    schema = {
        "a": {"type": "long?", "missing": [-1], "or_null": True},
        "b": OPTIONAL | {"missing": ["x"], "min": 0},
        "c": "any?",
        "d": {"type": "timestamp?", "pattern": "yyyyMMdd", "or_null": True},
        "e": "integer?",
    }
    choices = [b"1", b"-1", b"-1.0", b"2.5", b'"x"', b'"1"', b"null", b"true", b"[1]", b'"20260101"', b"1e2", b"-0.0"]
    records = [
        b"{"
        + b",".join(b'"%b":%b' % (name.encode(), chance.choice(choices)) for name in schema if chance.random() < 0.8)
        + b"}"
        for _ in range(300)
    ]
    together = read(schema, *records)
    alone = [read(schema, record) for record in records]
    assert together[0] == [row for rows, _ in alone for row in rows]
    assert [one.partition(" ")[2] for one in together[1]] == [
        one.partition(" ")[2] for _, some in alone for one in some
    ]


@pytest.mark.parametrize(
    ("schema", "document", "problem"),
    [
        ({"a": {"type": "long", "pattern": "yyyy"}}, {}, "'pattern' is for timestamps, and this is a long"),
        ({"a": {"type": "timestamp", "pattern": "yyyy"}}, {}, "'yyyy' lacks the month"),
        ({"a": {"type": "string", "from": ["$.a", "$.b"]}}, {}, "a list of paths is for a timestamp"),
        ({"a": {"type": "long", "or_null": True}}, {}, "add 'required: false'"),
        ({"a": {"type": "any?", "or_null": True}}, {}, "any accepts a value of every type"),
        ({"a": {"type": "array<long>?", "missing": ["x"]}}, {}, "'missing' is for single values"),
        ({"a": {"type": "long?", "missing": [True]}}, {}, "expected a string or a number, as"),
        ({"a": {"type": "any", "text": True}}, {}, "any accepts strings anyway"),
        ({"a": "long"}, {"format": "csv", "csv": {"columns": ["a", "b.c"]}}, "'b.c' is not a field of the schema"),
    ],
)
def test_a_field_that_can_not_be_is_refused_in_a_sentence(
    schema: dict[str, Any], document: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidDocument) as refused:
        StreamSpec.from_document({"stream": "s", "schema": schema, **document})
    assert problem in str(refused.value.problems)


def test_a_document_is_read_back_as_it_was_written() -> None:
    text = """
stream: s
missing: ["?", nan]
schema:
  at: {type: timestamp, pattern: "d/M/yyyy HH:mm", tz: Europe/Paris, from: [$.d, $.t]}
  v: {type: double, required: false, missing: [-9999], or_null: true}
  any: any
"""
    stream = StreamSpec.parse(read_documents(BytesIO(text.encode()).read().decode(), "s.yaml")[0])
    assert StreamSpec.from_document(stream.as_document()) == stream
    assert stream.types == {"at": "timestamp", "v": "double", "any": "string"}


# --- Bytes that aren't UTF-8


@pytest.mark.parametrize("value", [b'"\xff"', b'{"x":"\xff"}', b'["\xff"]'])
@pytest.mark.parametrize(
    "spec",
    [
        "any?",
        "decimal(10,2)?",
        "array<string>?",
        {"type": "timestamp?", "pattern": "d/M/yyyy"},
        {"type": "string?", "missing": ["x"]},
        {"type": "double?", "missing": ["-"]},
        {"type": "double?", "or_null": True},
        {"type": "timestamp?", "or_null": True},
        {"type": "decimal(10,2)?", "or_null": True},
    ],
    ids=str,
)
def test_bytes_that_are_not_utf8_reject_their_record_only(spec: Any, value: bytes) -> None:
    broken = b'{"device":"a","v":' + value + b"}"
    accepted, rejected = read({"device": "string", "v": spec}, broken, b'{"device":"b","v":null}', broken)
    assert accepted == [{"device": "b", "v": None}]
    assert [one.split(":")[:2] for one in rejected] == [["0 decode", " not UTF-8"], ["2 decode", " not UTF-8"]]
