"""Avro, Protobuf, change events and raw records: what each value becomes, and what becomes of what can't be read."""

from __future__ import annotations

import base64
import json
import math
import struct
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import InvalidDocument
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.processing.formats.decoder import Decoder
from strandline.processing.formats.record_rows import RowReader, record_format
from strandline.processing.formats.with_schema.registered_schemas import RegisteredSchema, RegisteredSchemas
from strandline.processing.formats.with_schema.schema_registry import SchemaRegistry
from strandline.processing.pipelines.event_time import EventTimeSource
from strandline.processing.source.kept_schemas import SchemaCache, SchemasNow
from tests.support.messages import (
    RegistryServer,
    SchemasInMemory,
    avro_record,
    descriptor_text,
    message_class,
    numbered,
    proto_file,
)

AT = datetime(2025, 11, 24, 16, 0, 0, 123456, UTC)
AT_US = 1_764_000_000_123_456


def read(
    stream: dict[str, Any], *records: bytes | None, schemas: RegisteredSchemas | None = None
) -> tuple[list[dict[str, Any]], list[str], list[bytes | None]]:
    """The accepted rows; the rejected ones as `record reason: message`; and what their dead letters hold."""
    spec = StreamSpec.from_document({"stream": "s", **stream})
    reader = RowReader(config := record_format(spec), schemas)
    decoder = Decoder(config.fields, EventTimeSource(None), list(spec.fields))
    accepted: list[dict[str, Any]] = []
    rejected: list[str] = []
    letters: list[bytes | None] = []
    for rows in reader.parts(records, []):
        places = rows.of_each(range(len(records)))
        decoded = decoder.decode(rows.texts, [0] * len(rows.texts), None)
        columns = {name: array.to_pylist() for name, array in decoded.arrays.items()}
        accepted += [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        for one in decoded.rejects:
            rejected.append(f"{places[one.index]} {one.reason}: {one.message}")
            letters.append(reader.dead_letter_value(records, rows, one.index))
    return accepted, rejected, letters


def avro_of(fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def logical(kind: str, logical_type: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical_type, **more}


# --- Avro


@pytest.mark.parametrize(
    ("kind", "value", "field", "expected"),
    [
        ("string", "ä", "string", "ä"),
        ("int", -7, "integer", -7),
        ("long", 2**62, "long", 2**62),
        ("float", 0.5, "double", 0.5),
        ("double", 1e300, "double", 1e300),
        ("boolean", True, "boolean", True),
        ("bytes", b"\0\xff", "string", "AP8="),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", "string", "YWI="),
        ({"type": "enum", "name": "E", "symbols": ["ON", "OFF"]}, "OFF", "string", "OFF"),
        (["null", "double"], None, "double?", None),
        (["null", "double"], 1.5, "double?", 1.5),
        (["string", "long"], 5, "long", 5),
        (logical("long", "timestamp-millis"), AT, "timestamp", AT.replace(microsecond=123000)),
        (logical("long", "timestamp-micros"), AT, "timestamp", AT),
        (["null", logical("long", "timestamp-micros")], AT, "timestamp?", AT),
        (logical("long", "timestamp-micros"), AT, {"type": "timestamp", "unit": "s"}, AT),
        (logical("long", "timestamp-micros"), AT, {"type": "timestamp", "unit": "ns"}, AT),
        (logical("long", "local-timestamp-micros"), AT.replace(tzinfo=None), "timestamp", AT),
        (logical("long", "timestamp-nanos"), AT_US * 1000 + 789, "timestamp", AT),
        (logical("long", "timestamp-micros"), AT, "string", "2025-11-24T16:00:00.123456Z"),
        (logical("long", "timestamp-millis"), AT, "long", AT_US // 1000),
        (logical("int", "date"), AT.date(), "timestamp", datetime(2025, 11, 24, tzinfo=UTC)),
        (logical("int", "date"), AT.date(), "string", "2025-11-24"),
        (logical("int", "date"), AT.date(), "long", 20416),
        (logical("bytes", "decimal", precision=9, scale=2), Decimal("-12.50"), "decimal(9,2)", Decimal("-12.50")),
        (logical("bytes", "decimal", precision=9, scale=2), Decimal("12.5"), "double", 12.5),
        (logical("bytes", "decimal", precision=9, scale=2), Decimal("12.50"), "string", "12.50"),
        (logical("fixed", "decimal", name="D", size=4, precision=6, scale=3), Decimal("0.001"), "decimal(6,3)", Decimal("0.001")),
        (logical("string", "uuid"), "5a6e6d1c-0000-4000-8000-000000000001", "string", "5a6e6d1c-0000-4000-8000-000000000001"),
    ],
)  # fmt: skip
def test_a_value_of_avro_is_what_its_type_says(kind: Any, value: Any, field: Any, expected: Any) -> None:
    schema = avro_of({"x": kind})
    document = {"format": "avro", "avro": {"schema": schema}, "schema": {"x": field}}
    assert read(document, avro_record(schema, {"x": value}))[:2] == ([{"x": expected}], [])


NESTED = avro_of(
    {
        "device": {"type": "record", "name": "D", "fields": [{"name": "id", "type": "string"}]},
        "tags": {"type": "map", "values": "string"},
        "readings": {
            "type": "array",
            "items": avro_of({"t": logical("long", "timestamp-micros"), "v": ["null", "double"]}) | {"name": "V"},
        },
    }
)


def nested(*readings: tuple[datetime, float | None]) -> bytes:
    found = [{"t": at, "v": value} for at, value in readings]
    return avro_record(NESTED, {"device": {"id": "a"}, "tags": {"site x": "lundy"}, "readings": found})


def test_paths_lead_into_records_maps_and_arrays() -> None:
    schema = {
        "id": {"type": "string", "from": "$.device.id"},
        "site": {"type": "string?", "from": '$.tags["site x"]'},
        "second": {"type": "timestamp?", "from": "$.readings[1].t"},
    }
    document = {"format": "avro", "avro": {"schema": json.dumps(NESTED)}, "schema": schema}
    accepted, rejected, _ = read(document, nested((AT, 1), (AT, 2)), nested())
    assert accepted == [
        {"id": "a", "site": "lundy", "second": AT},
        {"id": "a", "site": "lundy", "second": None},
    ]
    assert rejected == []


@pytest.mark.guarantee("G282")
def test_a_bad_element_of_avro_is_a_record_with_this_element_alone() -> None:
    schema = {"t": "timestamp", "v": "double", "id": {"type": "string", "from": "$.device.id"}}
    document = {"format": "avro", "avro": {"schema": NESTED}, "explode": "$.readings", "schema": schema}
    record = nested((AT, 1), (AT + timedelta(seconds=1), None), (AT, 3))
    accepted, rejected, letters = read(document, record, nested())
    assert accepted == [{"t": AT, "v": 1.0, "id": "a"}, {"t": AT, "v": 3.0, "id": "a"}]
    assert rejected == ["0 schema: v: expected a double, got null"]
    assert letters == [nested((AT + timedelta(seconds=1), None))]
    _, rejected, letters = read(document, nested((AT, 1), (AT, math.nan), (AT, 3)))
    assert (rejected, letters) == (["0 schema: v: expected a double, got null"], [nested((AT, math.nan))])


def test_a_bad_element_of_avro_keeps_its_bytes_and_those_around_the_array() -> None:
    readings = {"type": "array", "items": avro_of({"x": ["float", "double"]}) | {"name": "V"}}
    groups = {"type": "array", "items": {"type": "map", "values": ["null", readings]}}
    schema = avro_of({"spare": ["null", "int"], "groups": groups, "behind": "string"})
    document = {"format": "avro", "avro": {"schema": schema}, "explode": "$.groups[1].k", "schema": {"x": "double"}}
    ones, bad = [b"\0" + struct.pack("<f", 1.0), b"\2" + struct.pack("<d", 3.0)], b"\0" + struct.pack("<f", math.nan)
    too_large = b"\2" + bytes([0x80] * 5 + [1])  # for an int, which the reader takes
    before, behind = too_large + b"\4" + b"\2\2a\0\0" + b"\4\2a\0\2k\2", b"\0" + b"\0" + b"\2z"
    blocks = b"\1\n" + ones[0] + b"\4" + bad + ones[1] + b"\0"
    accepted, rejected, letters = read(document, before + blocks + behind)
    assert accepted == [{"x": 1.0}, {"x": 3.0}]
    assert rejected == ["0 schema: x: expected a double, got null"]
    assert letters == [before + b"\2" + bad + b"\0" + behind]


def test_a_number_that_is_none_does_not_keep_a_bad_element_of_avro_with_the_others() -> None:
    element = avro_of({"v": "double"}) | {"name": "E"}
    schema = avro_of({"x": "double", "all": {"type": "array", "items": element}})
    document = {"format": "avro", "avro": {"schema": schema}, "explode": "$.all", "schema": {"v": "double"}}
    _, _, letters = read(document, avro_record(schema, {"x": math.nan, "all": [{"v": 1}, {"v": math.inf}]}))
    assert letters == [avro_record(schema, {"x": math.nan, "all": [{"v": math.inf}]})]


def test_bytes_that_are_no_record_of_the_schema_cost_only_themselves() -> None:
    schema = avro_of({"x": "string", "e": {"type": "enum", "name": "E", "symbols": ["A"]}, "d": "double"})
    good = avro_record(schema, {"x": "a", "e": "A", "d": 1})
    document = {"format": "avro", "avro": {"schema": schema}, "schema": {"x": "string", "d": "double"}}
    infinite = good[:-8] + struct.pack("<d", math.inf)
    accepted, rejected, _ = read(
        document, good, good[:-1], good + b"\0", b"\2\xff" + good[2:], b"\2a\4" + good[3:], b"", infinite, None, good
    )
    assert len(accepted) == 2
    assert rejected == [
        "1 decode: not a record of the schema: it ends too soon",
        "2 decode: the record ends at byte 11, but more follows",
        "3 decode: not a record of the schema: a string isn't UTF-8: invalid start byte at byte 0 of the string",
        "4 decode: not a record of the schema: it ends too soon, or a number in it leads nowhere",
        "5 decode: not a record of the schema: it ends too soon",
        "6 schema: d: expected a double, got null",
        "7 decode: no value (a tombstone)",
    ]


@pytest.mark.guarantee(
    "G282",
    "No bytes and no schema make a reader of Avro or Protobuf use more resources than their size allows, or end its "
    "process. Schemas that would do so are refused at registration. The dead letter of a bad element is a record of "
    "the same schema with this element alone.",
    promise="no-client-can-exhaust-a-service",
)
@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("{", "is not an Avro schema: Expecting"),
        ('"int"', "is not the schema of a record"),
        (avro_of({"x": "what"}), "uses the type what, which it does not define"),
        (avro_of({"next": ["null", "R"]}), "type R refers to itself"),
        (avro_of({"x": {"type": "array", "items": "null"}}), "elements have no bytes"),
        (avro_of({"x": {"type": "array", "items": avro_of({"y": "null"}) | {"name": "Y"}}}), "elements have no bytes"),
    ],
)
def test_a_schema_that_can_not_be_used_is_refused_when_it_is_registered(schema: Any, why: str) -> None:
    with pytest.raises(InvalidDocument, match=why):
        StreamSpec.from_document(
            {"stream": "s", "format": "avro", "avro": {"schema": schema}, "schema": {"x": "string"}}
        )


PRICES = [
    "null",
    avro_of({"price": logical("bytes", "decimal", precision=12, scale=2), "at": logical("long", "timestamp-millis")})
    | {"name": "A"},
    avro_of({"price": logical("bytes", "decimal", precision=12, scale=4), "at": logical("long", "timestamp-micros")})
    | {"name": "B"},
]


@pytest.mark.parametrize("explode", [None, "$.items"])
@pytest.mark.parametrize(
    ("member", "field", "why"),
    [
        (
            "price",
            "decimal(12,4)",
            "can be a decimal of scale 2 or a decimal of scale 4, depending on the branch of a union",
        ),
        ("at", "timestamp", "can be the stored value or a time in us"),
        ("at", {"type": "timestamp", "unit": "us"}, "can be a time in ms or the stored value"),
        ("at", "string", "can be a time in ms or a time in us"),
    ],
)
def test_a_field_is_refused_whose_meaning_is_lost_with_the_branch_of_a_union(
    member: str, field: Any, why: str, explode: str | None
) -> None:
    schema = avro_of({"body": PRICES} if explode is None else {"items": {"type": "array", "items": PRICES}})
    if explode is None:
        field = (field if isinstance(field, dict) else {"type": field}) | {"from": f"$.body.{member}"}
    document = {"format": "avro", "schema": {member: field}} | ({"explode": explode} if explode else {})
    with pytest.raises(InvalidDocument, match=why):
        StreamSpec.from_document({"stream": "s", **document, "avro": {"schema": schema}})
    schemas = SchemasInMemory(avro_1=RegisteredSchema(json.dumps(schema)))
    record = numbered(1, avro_record(schema, {"body": None} if explode is None else {"items": []}))
    accepted, (rejected,), letters = read({**document, "avro": {"registry": True}}, record, schemas=schemas)
    assert (accepted, letters) == ([], [record])
    assert rejected.startswith("0 decode: schema 1 of the registry can't be used: field ") and why in rejected


@pytest.mark.parametrize(
    ("kind", "value", "field", "expected"),
    [
        (PRICES, {"price": Decimal("12.5"), "at": AT}, {"type": "long?", "from": "$.x.at"}, AT_US // 1000),
        ([logical("int", "date"), "string"], AT.date(), "timestamp", datetime(2025, 11, 24, tzinfo=UTC)),
        ([logical("long", "timestamp-micros"), "boolean"], True, "string", None),
        (
            [logical("long", "timestamp-micros"), logical("bytes", "decimal", precision=9, scale=2)],
            Decimal("12.50"),
            "string",
            "12.50",
        ),
    ],
)
def test_a_union_whose_branches_are_told_apart_is_read_by_the_branch(
    kind: Any, value: Any, field: Any, expected: Any
) -> None:
    schema = avro_of({"x": kind})
    document = {"format": "avro", "avro": {"schema": schema}, "schema": {"x": field}}
    accepted, rejected, _ = read(document, avro_record(schema, {"x": value}))
    assert accepted == ([] if expected is None else [{"x": expected}])
    assert rejected == (["0 schema: x: expected a string, got true"] if expected is None else [])


def test_each_record_of_avro_names_its_schema() -> None:
    first = avro_of({"x": "long"})
    schemas = SchemasInMemory(
        avro_1=RegisteredSchema(json.dumps(first)),
        avro_2=RegisteredSchema(
            json.dumps(avro_of({"y": "string", "at": "P"})),
            (("p", json.dumps({**avro_of({"x": "long"}), "name": "P"})),),
        ),
        avro_3=RegisteredSchema(json.dumps(avro_of({"next": ["null", "R"]}))),
    )
    document = {
        "format": "avro",
        "avro": {"registry": True},
        "schema": {"x": "long?", "at": {"type": "long?", "from": "$.at.x"}},
    }
    inner = {**avro_of({"x": "long"}), "name": "P"}
    accepted, rejected, _ = read(
        document,
        numbered(1, avro_record(first, {"x": 5})),
        numbered(2, avro_record(avro_of({"y": "string", "at": inner}), {"y": "a", "at": {"x": 6}})),
        numbered(3, b"\0"),
        numbered(4, b"\0"),
        b"\1\0\0\0\1\0",
        b"\0\0\0",
        schemas=schemas,
    )
    assert accepted == [{"x": 5, "at": None}, {"x": None, "at": 6}]
    assert rejected == [
        "2 decode: schema 3 of the registry can't be used: the schema's type R refers to itself, which is not supported",
        "3 decode: no schema 4",
        "4 decode: expected a zero byte and the id of a schema in four bytes, got 0x01",
        "5 decode: expected a zero byte and the id of a schema in four bytes, got 3 bytes in all",
    ]


@pytest.mark.parametrize(
    "document",
    [{"format": "avro", "avro": {"registry": True}}, {"format": "protobuf", "protobuf": {"registry": True}}],
    ids=lambda document: document["format"],
)
def test_a_number_that_no_registry_gives_is_a_dead_letter(document: dict[str, Any], tmp_path: Path) -> None:
    server = RegistryServer()
    try:
        registry = SchemaRegistry(server.url)
        schemas = SchemasNow(SchemaCache(lambda: Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite"), lambda: registry))
        records = [numbered(0x7FFFFFFF, b"\0"), numbered(0x80000000, b"\0"), numbered(0xFFFFFFFF, b"\0")]
        _, rejected, letters = read({**document, "schema": {"x": "long"}}, *records, schemas=schemas)
    finally:
        server.close()
    assert rejected == [
        f"0 decode: the schema registry has no {document['format']} schema 2147483647",
        "1 decode: expected an id of a schema up to 2147483647, got 2147483648",
        "2 decode: expected an id of a schema up to 2147483647, got 4294967295",
    ]
    assert letters == records


# --- Protobuf

PROTO = proto_file(
    "p",
    R={
        "id": "string",
        "n": "int64",
        "maybe": "optional double",
        "raw": "bytes",
        "at": ".google.protobuf.Timestamp",
        "took": ".google.protobuf.Duration",
        "wrapped": ".google.protobuf.DoubleValue",
        "inner": "I",
        "all": "repeated I",
        "values": "repeated double",
    },
    I={"x": "int32", "name": "string"},
)
SET = descriptor_text(PROTO)
MESSAGE = message_class(SET, "p.R")
INNER = type(MESSAGE().inner)
OF_SET = {"format": "protobuf", "protobuf": {"descriptor": SET, "message": "p.R"}}


def message(**values: Any) -> bytes:
    found = MESSAGE(**{name: value for name, value in values.items() if name not in ("at", "took", "wrapped")})
    if "at" in values:
        found.at.seconds, found.at.nanos = values["at"]
    if "took" in values:
        found.took.seconds, found.took.nanos = values["took"]
    if "wrapped" in values:
        found.wrapped.value = values["wrapped"]
    return bytes(found.SerializeToString())


@pytest.mark.parametrize(
    ("values", "field", "expected"),
    [
        ({"id": "ä"}, {"type": "string", "from": "$.id"}, "ä"),
        ({}, {"type": "string", "from": "$.id"}, ""),
        ({"n": -(2**63)}, {"type": "long", "from": "$.n"}, -(2**63)),
        ({"maybe": 0}, {"type": "double?", "from": "$.maybe"}, 0.0),
        ({}, {"type": "double?", "from": "$.maybe"}, None),
        ({"raw": b"\0\xff"}, {"type": "string", "from": "$.raw"}, "AP8="),
        ({"at": (1_764_000_000, 123_456_789)}, {"type": "timestamp", "from": "$.at"}, AT),
        ({"at": (1_764_000_000, 123_456_789)}, {"type": "timestamp", "from": "$.at", "unit": "ns"}, AT),
        ({"at": (1_764_000_000, 0)}, {"type": "timestamp", "from": "$.at", "unit": "s"}, AT.replace(microsecond=0)),
        ({"at": (1_764_000_000, 0)}, {"type": "string", "from": "$.at"}, "2025-11-24T16:00:00.000000Z"),
        ({"at": (1_764_000_000, 5)}, {"type": "long", "from": "$.at.nanos"}, 5),
        ({}, {"type": "timestamp?", "from": "$.at"}, None),
        ({"took": (3, 500_000_000)}, {"type": "double", "from": "$.took"}, 3.5),
        ({"wrapped": 1.5}, {"type": "double?", "from": "$.wrapped"}, 1.5),
        ({}, {"type": "double?", "from": "$.wrapped"}, None),
        ({"inner": INNER(x=7)}, {"type": "integer", "from": "$.inner.x"}, 7),
        ({}, {"type": "integer?", "from": "$.inner.x"}, None),
        ({"all": [INNER(x=7), INNER(x=8)]}, {"type": "integer", "from": "$.all[1].x"}, 8),
        ({"values": [1.5, 2.5]}, {"type": "double", "from": "$.values[1]"}, 2.5),
        ({}, {"type": "double?", "from": "$.nothing.of.it"}, None),
    ],
)
def test_a_value_of_protobuf_is_what_its_type_says(values: dict[str, Any], field: Any, expected: Any) -> None:
    field = dict(field)
    assert read({**OF_SET, "schema": {"x": field}}, message(**values))[:2] == ([{"x": expected}], [])


def test_an_enum_is_its_name_and_for_a_number_its_number() -> None:
    file = proto_file("q", R={"mode": "int32", "modes": "repeated int32"})
    kind = file.enum_type.add(name="Mode")
    kind.value.add(name="OFF", number=0)
    kind.value.add(name="ON", number=1)
    for field in file.message_type[0].field:
        field.type, field.type_name = 14, ".q.Mode"
    descriptors = descriptor_text(file)
    document = {
        "format": "protobuf",
        "protobuf": {"descriptor": descriptors, "message": "q.R"},
        "schema": {"mode": "string", "last": {"type": "integer?", "from": "$.modes[0]"}},
    }
    kind_of = message_class(descriptors, "q.R")
    accepted, rejected, _ = read(
        document, kind_of(mode=1, modes=[1]).SerializeToString(), b"", kind_of(mode=9).SerializeToString()
    )
    assert accepted == [{"mode": "ON", "last": 1}, {"mode": "OFF", "last": None}]
    assert rejected == ["2 schema: mode: expected a string, got 9"]


def test_a_map_of_protobuf_has_its_keys_as_names() -> None:
    file = proto_file("m", R={"tags": "repeated R.TagsEntry"})
    entry = file.message_type[0].nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=1, label=1)
    descriptors = descriptor_text(file)
    document = {
        "format": "protobuf",
        "protobuf": {"descriptor": descriptors, "message": "m.R"},
        "schema": {"load": {"type": "double?", "from": "$.tags.load"}},
    }
    kind = message_class(descriptors, "m.R")
    accepted, rejected, _ = read(document, kind(tags={"load": 2.5, "x": 1}).SerializeToString(), b"")
    assert (accepted, rejected) == ([{"load": 2.5}, {"load": None}], [])


@pytest.mark.guarantee("G282")
def test_a_bad_element_of_protobuf_is_a_message_with_this_element_alone() -> None:
    schema = {"id": "string", "x": {"type": "integer", "min": 0}, "name": "string"}
    record = message(id="a", all=[INNER(x=1), INNER(x=-1, name="b"), INNER(x=2)], values=[5.0])
    accepted, rejected, letters = read({**OF_SET, "explode": "$.all", "schema": schema}, record, message())
    assert accepted == [{"id": "a", "x": 1, "name": ""}, {"id": "a", "x": 2, "name": ""}]
    assert rejected == ["0 schema: x: expected an integer >= 0, got -1"]
    assert letters == [message(id="a", all=[INNER(x=-1, name="b")], values=[5.0])]
    bare = {"id": "string", "v": {"type": "double", "from": "$.values", "max": 2}}
    accepted, _, letters = read({**OF_SET, "explode": "$.values", "schema": bare}, message(id="b", values=[1, 3]))
    assert accepted == [{"id": "b", "v": 1.0}]
    assert letters == [message(id="b", values=[3])]


def test_what_no_field_takes_is_no_more_in_dead_letters_of_protobuf_than_in_rows() -> None:
    for count in (600, 700):
        record = message(id="x" * 100_000, all=[INNER(x=-1)] * count)
        document = {**OF_SET, "explode": "$.all", "schema": {"x": {"type": "integer", "min": 0}}}
        _, rejected, letters = read(document, record)
        assert len(letters) == (600 if count == 600 else 1)
        assert rejected[0].startswith(
            "0 schema: x: " if count == 600 else "0 schema: $.all: its elements, each with the"
        )
        assert letters[-1] == (message(id="x" * 100_000, all=[INNER(x=-1)]) if count == 600 else record)


def test_bytes_that_are_no_message_cost_only_themselves() -> None:
    good = message(id="a")
    accepted, rejected, _ = read({**OF_SET, "schema": {"id": "string"}}, good, b"\x0a", b"\x0a\x01\xff", None, good)
    assert len(accepted) == 2
    assert [one.split(":")[0] for one in rejected] == ["1 decode", "2 decode", "3 decode"]


@pytest.mark.parametrize(
    ("protobuf", "why"),
    [
        ({"descriptor": SET}, "message: is missing; expected: the full name of the message type"),
        ({"descriptor": "%", "message": "p.R"}, "is not base64"),
        ({"descriptor": "CgH/", "message": "p.R"}, "is not a set of file descriptors"),
        ({"descriptor": SET, "message": "p.X"}, "contains no message type p.X; it contains p.I, p.R"),
        (
            {"descriptor": descriptor_text(proto_file("a", R={"x": ".b.C"})), "message": "a.R"},
            "all imports are included",
        ),
        ({"descriptor": SET, "message": "p.R", "registry": True}, "expected either 'descriptor'"),
        ({}, "expected either 'descriptor'"),
    ],
)
def test_a_message_type_that_can_not_be_used_is_refused_when_it_is_registered(protobuf: Any, why: str) -> None:
    with pytest.raises(InvalidDocument, match=why):
        StreamSpec.from_document({"stream": "s", "format": "protobuf", "protobuf": protobuf, "schema": {"x": "string"}})


def test_each_message_names_its_schema_and_its_type_in_it() -> None:
    text = base64.b64encode(PROTO.SerializeToString()).decode()
    shared = proto_file("shared", D={"id": "string"})
    uses = proto_file("uses", R={"d": ".shared.D"})
    uses.dependency.append("common/shared.proto")
    schemas = SchemasInMemory(
        protobuf_1=RegisteredSchema(text),
        protobuf_2=RegisteredSchema(
            base64.b64encode(uses.SerializeToString()).decode(),
            (("common/shared.proto", base64.b64encode(shared.SerializeToString()).decode()),),
        ),
    )
    together = message_class(descriptor_text(_named(shared, "common/shared.proto"), uses), "uses.R")
    inner = together()
    inner.d.id = "d"
    records = [
        numbered(1, message(id="a"), b"\0"),
        numbered(1, INNER(name="b").SerializeToString(), b"\2\2"),
        numbered(2, inner.SerializeToString(), b"\2\0"),
        numbered(1, b"", b"\2\x20"),
        numbered(1, b"", b"\x80"),
        numbered(1, b"", b"\3"),
        numbered(9, b"", b"\0"),
    ]
    schema = {"id": "string?", "name": "string?", "d": {"type": "string?", "from": "$.d.id"}}
    document = {"format": "protobuf", "protobuf": {"registry": True}, "schema": schema}
    accepted, rejected, _ = read(document, *records, schemas=schemas)
    assert accepted == [
        {"id": "a", "name": None, "d": None},
        {"id": None, "name": "b", "d": None},
        {"id": None, "name": None, "d": "d"},
    ]
    assert rejected == [
        "3 decode: schema 1 of the registry can't be used: the schema has no message type at [16]",
        "4 decode: the record ends, or is broken, in the indices of the message's type in its schema",
        "5 decode: expected the indices of the message's type in its schema, got -2 of them",
        "6 decode: no schema 9",
    ]
    only = {**document, "protobuf": {"registry": True, "message": "p.I"}}
    _, rejected, _ = read(only, *records[:2], schemas=schemas)
    assert rejected == [
        "0 decode: schema 1 of the registry can't be used: the message is a p.R, but the stream expects p.I"
    ]


def _named(file: Any, name: str) -> Any:
    copied = type(file)()
    copied.CopyFrom(file)
    copied.name = name
    return copied


# --- Change events

CHANGES = {
    "format": "debezium",
    "schema": {
        "id": "long",
        "temp": "double?",
        "op": {"type": "string", "from": "$.op"},
        "at": {"type": "timestamp?", "from": "$.source.ts_ms"},
        "seen": {"type": "timestamp?", "from": "$.ts_ms"},
        "table": {"type": "string?", "from": "$.source.table"},
    },
}


def event(op: str, before: Any, after: Any, **more: Any) -> dict[str, Any]:
    source = {"ts_ms": AT_US // 1000, "table": "sensors"}
    return {"op": op, "before": before, "after": after, "source": source, "ts_ms": AT_US // 1000 + 5, **more}


def test_a_change_event_is_a_row_with_what_happened_to_it() -> None:
    old, new = {"id": 1, "temp": 4.5}, {"id": 1, "temp": None, "op": "a column"}
    events = [event("c", None, old), event("u", old, new), event("r", None, old), event("d", new, None)]
    wrapped = [{"schema": {"fields": [{"name": "op"}]}, "payload": one} for one in events]
    expected = [
        {"id": 1, "temp": temp, "op": op, "at": AT.replace(microsecond=123000), "seen": AT.replace(microsecond=128000),
         "table": "sensors"}
        for temp, op in [(4.5, "c"), (None, "u"), (4.5, "r"), (None, "d")]
    ]  # fmt: skip
    for texts in (events, wrapped):
        for write in (json.dumps, lambda one: json.dumps(one, separators=(",", ":"))):
            assert read(CHANGES, *(write(one).encode() for one in texts))[:2] == (expected, [])


@pytest.mark.parametrize("count", [1, 100])
def test_a_value_that_an_event_of_change_does_not_have_is_missing(count: int) -> None:
    schema = {
        "id": "long",
        "note": "string?",
        "must": "string",
        "n": {"type": "long?", "text": True},
        "was": {"type": "string?", "from": "$.before.note"},
    }
    kept, gone = "__debezium_unavailable_value", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="
    rows = [
        {"id": 1, "note": "b", "must": "c", "n": "5"},
        {"id": 2, "note": kept, "must": "a", "n": kept},
        {"id": 3, "note": gone, "must": kept + "!", "n": "6"},
        {"id": 4, "note": "b", "must": kept, "n": "7"},
    ]
    events = [json.dumps(event("u", rows[1], row)).encode() for row in rows]
    accepted, rejected, letters = read({"format": "debezium", "schema": schema}, *events * count)
    assert accepted[:3] == [
        {"id": 1, "note": "b", "must": "c", "n": 5, "was": None},
        {"id": 2, "note": None, "must": "a", "n": None, "was": None},
        {"id": 3, "note": None, "must": kept + "!", "n": 6, "was": None},
    ]
    assert (len(accepted), len(rejected)) == (3 * count, count)
    assert rejected[0] == "3 schema: must: required but missing"
    assert letters[0] == events[3]


def test_a_tombstone_after_a_deletion_is_no_row_and_no_dead_letter() -> None:
    good = json.dumps(event("c", None, {"id": 1})).encode()
    accepted, rejected, _ = read(CHANGES, None, good, None, b"{}", good, None)
    assert len(accepted) == 2
    assert rejected == ["3 schema: expected a change event with 'op', got {}"]
    assert read(CHANGES, None, None) == ([], [], [])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"op":"t","source":{}}', 'schema: an event of operation \\"t\\" has no row'),
        (b'{"op":"c","after":null}', "schema: after: expected the row as an object, got null"),
        (b'{"op":"d","after":{"id":1}}', "schema: before: expected the row as an object, it is missing"),
        (b'{"op":"c","after":{"id":1},"after":{"id":2}}', 'decode: duplicate key "after"'),
        (b'{"op":"c","op":"d","after":{"id":1}}', 'decode: duplicate key "op"'),
        (b'{"payload":{"op":"c","after":{"id":1}},"payload":{}}', 'decode: duplicate key "payload"'),
        (b'{"op":"c","after":{"id":1,"id":2}}', 'decode: duplicate key "id"'),
        (b'{"op":"c","after":{"x":1,"x":"__debezium_unavailable_value"}}', 'decode: duplicate key "x"'),
        (b'{"op":"c","\\u0061fter":{"id":1},"after":{"id":2}}', 'decode: duplicate key "after"'),
        (b'{"payload":null}', "schema: expected a change event, got null"),
        (b"null", "schema: expected a change event, got null"),
        (b'{"op":"c","after":{"id":1}', "decode: not JSON"),
        (b'{"op":"c","after":{"id":"\xff"}}', "decode: not UTF-8"),
        (b'{"op":"c","after":{"id":"a"}}', 'schema: id: expected a long, got "a"'),
        (b'{"op":"c","after":{"id":1,"x":' + b"[" * 120 + b"]" * 120 + b"}}", "decode: nested deeper than 100 levels"),
    ],
)
def test_what_is_no_change_of_a_row_is_a_dead_letter(text: bytes, why: str) -> None:
    good = json.dumps(event("c", None, {"id": 1})).encode()
    accepted, rejected, _ = read(CHANGES, good, text, good)
    assert len(accepted) == 2
    assert rejected[0].removeprefix("1 ").startswith(why.replace('\\"', '"'))


def test_a_name_that_stands_twice_behind_very_many_is_found_soon() -> None:
    """Comparing each name with all of them took minutes, in which the job stood still."""
    text = b'{"op":"c",' + b"".join(b'"%d":1,' % at for at in range(100_000)) + b'"last":1,"last":2}'
    begun_s = time.process_time()
    assert read(CHANGES, text)[1] == ['0 decode: duplicate key "last"']
    assert time.process_time() - begun_s < 20


# --- Raw records


def test_a_raw_record_is_text_or_base64_in_its_field() -> None:
    document = {"format": "raw", "schema": {"line": "string", "site": "long?"}}
    texts = [b' "quoted"\n', b"", "ä\0".encode()]
    accepted, rejected, _ = read(document, *texts, b"\xff", None)
    assert [row["line"] for row in accepted] == [text.decode() for text in texts]
    assert rejected == ["3 decode: not UTF-8: invalid start byte (byte 0)", "4 decode: no value (a tombstone)"]
    accepted, rejected, _ = read({**document, "raw": {"encoding": "base64"}}, *texts, b"\xff")
    assert [row["line"] for row in accepted] == [base64.b64encode(one).decode() for one in (*texts, b"\xff")]
    assert rejected == []


def test_a_raw_record_needs_a_field_of_text() -> None:
    with pytest.raises(InvalidDocument, match="a raw record needs a field of type string, but there is none"):
        StreamSpec.from_document({"stream": "s", "format": "raw", "schema": {"x": "double"}})
    with pytest.raises(InvalidDocument, match="raw: is for 'format: raw', but this is json"):
        StreamSpec.from_document({"stream": "s", "raw": {"encoding": "utf8"}, "schema": {"x": "double"}})
