"""No bytes are more than a dead letter, whatever the format: never an error, never another record's outcome.

For a longer run: STRANDLINE_FUZZ_S=600 pytest tests/property/test_formats.py -k by_the_clock
"""

from __future__ import annotations

import base64
import json
import os
import random
import time
from decimal import Decimal
from typing import Any

import cbor2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.record_headers import pack_header_values
from strandline.core.streams.stream import StreamSpec
from strandline.processing.formats.csv.reader import DelimitedLines
from strandline.processing.formats.decoder import Decoder
from strandline.processing.formats.record_fields import Rejection
from strandline.processing.formats.record_rows import RowReader, record_format
from strandline.processing.formats.source_fields import SourceFields
from strandline.processing.formats.sparkplug.messages import MessageReader, letter_of_row, letters_of_metrics
from strandline.processing.formats.sparkplug.sessions import Birth, Sessions, unpack
from strandline.processing.formats.value.reader import BareValues
from strandline.processing.formats.with_schema.registered_schemas import RegisteredSchema
from strandline.processing.pipelines.event_time import EventTimeSource
from tests.support.examples import examples
from tests.support.messages import (
    SchemasInMemory,
    avro_record,
    descriptor_text,
    message_class,
    numbered,
    proto_file,
)
from tests.support.sparkplug import metric, payload, topic

SCHEMA: dict[str, Any] = {
    "name": "string",
    "n": {"type": "long?", "text": True},
    "x": {"type": "double?", "min": -1e6},
    "price": "decimal(8,2)?",
    "on": "boolean?",
    "time": {"type": "timestamp?", "unit": "ns"},
}
FIELDS = {"name": "a", "n": 7, "x": 1.5, "price": "12.50", "on": True, "time": 1_764_000_000 * 10**9}
PATHS = {
    name: {**(spec if isinstance(spec, dict) else {"type": spec}), "from": f"$.in.{name}"}
    for name, spec in SCHEMA.items()
}
AVRO: dict[str, Any] = {
    "type": "record", "name": "R", "fields": [
        {"name": "name", "type": "string"},
        {"name": "n", "type": ["null", "long"]},
        {"name": "x", "type": ["null", "double", "string"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
        {"name": "on", "type": "boolean"},
        {"name": "time", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "more", "type": {"type": "map", "values": {"type": "enum", "name": "E", "symbols": ["A", "B"]}}},
        {"name": "days", "type": {"type": "array", "items": {"type": "int", "logicalType": "date"}}},
    ],
}  # fmt: skip
AVRO_OF_ALL = {"type": "record", "name": "W", "fields": [{"name": "all", "type": {"type": "array", "items": AVRO}}]}
AVRO_FIELDS = {**FIELDS, "price": Decimal("12.50"), "time": 1_764_000_000 * 10**6, "more": {"a": "B"}, "days": [1, 2]}
PROTO = proto_file(
    "p",
    R={
        "name": "string", "n": "int64", "x": "optional double", "price": "string", "on": "bool",
        "time": ".google.protobuf.Timestamp", "more": "R", "all": "repeated R",
    },
)  # fmt: skip
PROTO_SET = descriptor_text(PROTO)
MESSAGE = message_class(PROTO_SET, "p.R")
PROTO_GOOD = MESSAGE(name="a", n=7, x=1.5, price="12.50", on=True)
PROTO_GOOD.time.seconds = 1_764_000_000
PROTO_GOOD.more.more.name = "inner"
SCHEMAS = SchemasInMemory(
    avro_7=RegisteredSchema(json.dumps(AVRO)),
    protobuf_7=RegisteredSchema(base64.b64encode(PROTO.SerializeToString()).decode()),
)
EVENT = {"op": "u", "before": {}, "after": FIELDS, "source": {"ts_ms": 1}}
GOOD: dict[str, tuple[dict[str, Any], bytes]] = {
    "json": ({"schema": SCHEMA}, json.dumps(FIELDS).encode()),
    "paths": ({"schema": PATHS}, json.dumps({"in": FIELDS, "out": [{}, "\u00e4"]}).encode()),
    "explode": ({"schema": SCHEMA, "explode": "$.all"}, json.dumps({"all": [FIELDS, {"n": 1}], "name": "b"}).encode()),
    "value": ({"schema": {"x": "double"}, "format": "value"}, b" 23.5\n"),
    "csv": ({"schema": SCHEMA, "format": "csv"}, b'a,7,"1.5",12.50,true,1764000000000000000'),
    "influx": ({"schema": SCHEMA, "format": "influx"}, b'w,name=a\\ b n=7i,x=1.5,on=t,price="12.50" 1764000000000000000'),
    "msgpack": ({"schema": SCHEMA, "format": "msgpack"}, msgspec.msgpack.encode(FIELDS)),
    "cbor": ({"schema": SCHEMA, "format": "cbor"}, cbor2.dumps({**FIELDS, "time": cbor2.CBORTag(1, 1_764_000_000)})),
    "raw": ({"schema": {"x": "string"}, "format": "raw"}, " \u00e4 \n".encode()),
    "raw, base64": ({"schema": {"x": "string"}, "format": "raw", "raw": {"encoding": "base64"}}, b"\0\xff"),
    "avro": ({"schema": SCHEMA, "format": "avro", "avro": {"schema": AVRO}}, avro_record(AVRO, AVRO_FIELDS)),
    "avro, exploded": (
        {"schema": SCHEMA, "format": "avro", "avro": {"schema": AVRO_OF_ALL}, "explode": "$.all"},
        avro_record(AVRO_OF_ALL, {"all": [AVRO_FIELDS, AVRO_FIELDS]}),
    ),
    "avro, registry": (
        {"schema": SCHEMA, "format": "avro", "avro": {"registry": True}}, numbered(7, avro_record(AVRO, AVRO_FIELDS)),
    ),
    "protobuf": (
        {"schema": SCHEMA, "format": "protobuf", "protobuf": {"descriptor": PROTO_SET, "message": "p.R"}},
        PROTO_GOOD.SerializeToString(),
    ),
    "protobuf, exploded": (
        {
            "schema": SCHEMA, "explode": "$.all", "format": "protobuf",
            "protobuf": {"descriptor": PROTO_SET, "message": "p.R"},
        },
        MESSAGE(all=[PROTO_GOOD, PROTO_GOOD]).SerializeToString(),
    ),
    "protobuf, registry": (
        {"schema": SCHEMA, "format": "protobuf", "protobuf": {"registry": True}},
        numbered(7, PROTO_GOOD.SerializeToString(), b"\2\0"),
    ),
    "debezium": ({"schema": SCHEMA, "format": "debezium"}, json.dumps({"schema": {}, "payload": EVENT}).encode()),
}  # fmt: skip


class Format:
    """One format, and the expected outcomes of its records."""

    def __init__(self, name: str) -> None:
        document, self.good = GOOD[name]
        self._reader = RowReader(
            config := record_format(StreamSpec.from_document({"stream": "s", **document})), SCHEMAS
        )
        self._names = [field.name for field in config.fields]
        self._decoder = Decoder(config.fields, EventTimeSource(None), self._names)
        self.outcome_of_good = self.outcomes([self.good])

    def outcomes(self, values: list[bytes]) -> list[str]:
        """Each row and each reject as text, in order."""
        found = []
        for rows in self._reader.parts(values, []):
            decoded = self._decoder.decode(rows.texts, [0] * len(rows.texts), None)
            rejects = {one.index: f"{one.reason}: {one.message}" for one in decoded.rejects}
            columns = iter(zip(*(decoded.arrays[name].to_pylist() for name in self._names), strict=True))
            found += [rejects[at] if at in rejects else repr(next(columns)) for at in range(len(rows.texts))]
            for at in rejects:
                self._reader.dead_letter_value(values, rows, at)
        return found

    def check(self, value: bytes) -> None:
        alone = self.outcomes([value])
        assert self.outcomes([self.good, value, self.good]) == [*self.outcome_of_good, *alone, *self.outcome_of_good], (
            value
        )


FORMATS = {name: Format(name) for name in GOOD}


def mutated(value: bytes, chance: random.Random) -> bytes:
    """The value with a few things done to it."""
    data = bytearray(value)
    for _ in range(chance.choice([1, 1, 2, 4, 8])):
        at, end = sorted(chance.randrange(len(data) + 1) for _ in range(2))
        piece = bytes(data[at:end])
        shape = chance.choice([b"{", b"[", b'"', b"\\u0000", b"-", b"e9"])
        new = chance.choice([b"", piece, piece * 3, chance.randbytes(1), chance.randbytes(4), shape])
        data[at : chance.choice([at, at + 1, end])] = new
    return bytes(data)


@pytest.mark.parametrize("name", FORMATS)
def test_a_good_record_is_accepted(name: str) -> None:
    assert FORMATS[name].outcome_of_good[0].startswith("(")


@pytest.mark.guarantee("G206")
@pytest.mark.guarantee("G282")
@pytest.mark.parametrize("name", FORMATS)
@examples(150)
@given(value=st.binary(max_size=60), seed=st.integers(0, 2**32))
def test_any_bytes(name: str, value: bytes, seed: int) -> None:
    FORMATS[name].check(value)
    FORMATS[name].check(mutated(FORMATS[name].good, random.Random(seed)))


CELLS = st.sampled_from(
    [
        "a",
        "7",
        "1.5",
        "true",
        "",
        "-0",
        "01",
        "1e5",
        "a\\",
        "a%sb",
        "\u00e4",
        "\x01",
        " 7",
        "2026-01-01",
        "2026-13",
        '"a"',
        "\n",
    ]
)


@examples(300)
@given(rows=st.lists(st.lists(CELLS, min_size=2, max_size=4), min_size=1, max_size=4))
def test_lines_that_are_read_together_are_what_each_is_by_itself(rows: list[list[str]]) -> None:
    fields = {"a": "string", "b": "double?", "c": "timestamp?", "d": "boolean?"}
    document = {"stream": "s", "format": "csv", "schema": fields}
    config = record_format(StreamSpec.from_document(document))
    for width in (2, 3, 4):
        reader = DelimitedLines(config.fields, config.value_rows.columns[:width], ",")
        lines: list[bytes | None] = [",".join(row).encode() for row in rows]
        exact = [reader._object(line) for line in lines]
        assert reader.objects(lines, []) == exact


SOURCES = st.sampled_from([None, b"?device=a", b"?device=b&x=7", b"?x=%22", b"mqtt:home/a"])
BARE = st.sampled_from([b"1", b" 2.5\n", b"-0", b"01", b"1\n2", b"a", b'"3"', b"", b"\xff", b"true", None])
OBJECTS = st.sampled_from(
    [
        b'{"x":1}',
        b'{"device":"c"}',
        b' {"y":2}',
        b"{}",
        b'{"n":{"device":1}}',
        b'{"\\u0078":1}',
        b"[1]",
        b'{"x',
        b"\xff",
        None,
    ]
)


@examples(300)
@given(bare=st.lists(st.tuples(BARE, SOURCES), max_size=3), objects=st.lists(st.tuples(OBJECTS, SOURCES), max_size=3))
def test_records_with_sources_that_are_read_together_are_what_each_is_by_itself(
    bare: list[tuple[bytes | None, bytes | None]], objects: list[tuple[bytes | None, bytes | None]]
) -> None:
    document = {"stream": "s", "format": "value", "schema": {"device": "string?", "x": "double", "site": "string?"}}
    fields = record_format(StreamSpec.from_document(document)).fields
    sources = SourceFields({"site": 1}, {field.name: field.type for field in fields})
    reader = BareValues(fields, sources)
    exact = [reader._object(value, source) for value, source in bare]
    assert reader.objects([value for value, _ in bare], [source for _, source in bare]) == exact
    filled = sources.fill_in([value for value, _ in objects], [source for _, source in objects])
    assert filled == [sources._fill_in_one(value, source) for value, source in objects]


@pytest.mark.parametrize("name", FORMATS)
def test_by_the_clock(name: str) -> None:
    chance = random.Random(os.environ.get("STRANDLINE_FUZZ_SEED", "1"))
    ends_s = time.monotonic() + float(os.environ.get("STRANDLINE_FUZZ_S", "0"))
    while True:
        FORMATS[name].check(mutated(FORMATS[name].good, chance))
        if time.monotonic() >= ends_s:  # sleeps: the length of the run is asked for
            break


def test_messages_of_sparkplug_by_the_clock() -> None:
    """The outcome of a message depends on those before it, but an invalid payload changes nothing.

    All that was declared can be kept.
    """
    chance = random.Random(os.environ.get("STRANDLINE_FUZZ_SEED", "1"))
    ends_s = time.monotonic() + float(os.environ.get("STRANDLINE_FUZZ_S", "0"))
    reader, births = MessageReader(Sessions()), dict[str, Birth]()
    metrics = [metric(f"m{at}", at, "Int32", alias=at) for at in range(3)]
    seq = number = 0
    while number < 2_000 or time.monotonic() < ends_s:  # sleeps: the length of the run is asked for
        kind = chance.choice(["NBIRTH", "DBIRTH", "NDATA", "NDATA", "DDATA", "DDEATH", "NDEATH", "DCMD"])
        seq = 0 if kind == "NBIRTH" else (seq + 1) % 256
        good = payload(*chance.sample(metrics, 2), metric("bdSeq", 0, "UInt64"), seq=seq, time=1)
        value = mutated(good, chance) if chance.random() < 0.5 else good
        source = topic(kind, chance.choice("ab"), "d" if kind.startswith("D") else "")
        before = reader.sessions.packed()
        source = source if chance.random() < 0.95 else mutated(source, chance)
        found = reader.rows(value, pack_header_values(source, {}))
        if isinstance(found, Rejection) and found.reason == "decode":
            assert reader.sessions.packed() == before
        for at, row in enumerate([] if isinstance(found, Rejection) else found):
            letter = letter_of_row(row) if isinstance(row, bytes) else letters_of_metrics(value)(at)
            again = reader.rows(letter, pack_header_values(source, {}))
            assert not isinstance(row, bytes) or again == [row]
        if number % 100 == 0:
            texts = reader.sessions.contents()
            kept = unpack(
                reader.sessions.packed(), lambda hashes, texts=texts: {one: texts[one] for one in hashes}, births
            )  # type: ignore[misc]
            assert kept.packed() == reader.sessions.packed()
        number += 1
