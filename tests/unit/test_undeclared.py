"""Undeclared members of records, and a document for an existing topic."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from strandline.core.streams.stream import StreamSpec
from strandline.processing.formats.proposals import NoSampleError, infer_from_topic
from strandline.processing.formats.undeclared import NAMES_MAX, undeclared_fields


def found(values: list[bytes], **document: Any) -> list[tuple[str, list[str], int]]:
    stream = StreamSpec.from_document({"stream": "s", **document})
    return [(one.path, one.types, one.records) for one in undeclared_fields(stream, values)]


def test_each_member_that_no_field_takes_is_counted_with_its_types() -> None:
    values = [
        b'{"t": 1, "firmware": "2.1", "rssi": -70, "gps": {"lat": 1.5, "lon": 2}}',
        b'{"t": 2, "firmware": 3, "rssi": -71, "list": [1]}',
        b'{"t": 3, "rssi": null, "gps": {"lat": 1.5}}',
        b"no object",
    ]
    assert found(values, schema={"t": "long", "lon": {"type": "long", "from": "$.gps.lon", "required": False}}) == [
        ("$.rssi", ["long", "null"], 3),
        ("$.firmware", ["string", "long"], 2),
        ("$.gps.lat", ["double"], 2),
        ("$.list", ["array"], 1),
    ]


def test_an_element_of_a_declared_array_is_declared_and_those_of_an_exploded_one_are_looked_into() -> None:
    values = [b'{"site": 1, "a": [{"t": 1, "x": 2}, {"t": 1, "x": 2.5}], "y": true}']
    schema = {"t": "long", "site": "long"}
    assert found(values, schema=schema, explode="$.a") == [("$.a[*].x", ["double"], 1), ("$.y", ["boolean"], 1)]
    assert found(values, schema={"t": {"type": "long", "from": "$.a[0].t"}, "site": "long", "y": "boolean"}) == []


def test_other_formats_and_their_members() -> None:
    assert found([msgspec.msgpack.encode({"t": 1, "u": 2})], schema={"t": "long"}, format="msgpack") == [
        ("$.u", ["long"], 1)
    ]
    assert found([b"w,site=a temp=1 5"], schema={"temp": "double"}, format="influx")[0][0] == "$.measurement"
    assert found([b"1;2"], schema={"t": "long"}, format="value") == []


def test_what_can_not_be_read_is_left_out() -> None:
    deep = [b'{"a":' * depth + b"1" + b"}" * depth for depth in range(101, 1_001)]
    values = [b'{"t": 1, "b": 2}', *deep, b'{"\\ud800": 1}', b'{"a": ' + b"9" * 5_000 + b"}"]
    assert ("$.b", ["long"], 1) in found(values, schema={"t": "long"})


def test_names_without_end_are_bounded() -> None:
    values = [f'{{"t": 1, "device-{number}": 1}}'.encode() for number in range(3 * NAMES_MAX)]
    assert len(found(values, schema={"t": "long"})) == NAMES_MAX


def test_a_document_for_a_topic_has_its_partitions_and_its_retention() -> None:
    records = [b'{\n "ts": 1700000000000,\n "temp": 2.5}', b'{"ts": 1700000001000, "temp": 3.0}', b"\xff"]
    proposal = infer_from_topic("plant", records, 3, "forever")
    assert proposal.document == {
        "stream": "plant",
        "format": "json",
        "partitions": 3,
        "retention": "forever",
        "schema": {"ts": {"type": "timestamp", "unit": "ms"}, "temp": "double"},
    }
    assert (proposal.records, proposal.accepted) == (2, 2)


def test_packed_maps_are_told_from_text() -> None:
    packed = infer_from_topic("plant", [msgspec.msgpack.encode({"n": number}) for number in range(3)], 1, "7d")
    assert packed.document["format"] == "msgpack"
    assert packed.document["schema"] == {"n": "long"}
    assert (packed.records, packed.accepted, packed.rejected) == (3, 3, [])


@pytest.mark.parametrize(
    ("records", "why"), [([], "contains no record"), ([b"\xff\xfe", b"\xc1"], "neither text nor maps")]
)
def test_a_topic_that_tells_nothing_says_so(records: list[bytes], why: str) -> None:
    with pytest.raises(NoSampleError, match=why):
        infer_from_topic("plant", records, 1, "7d")
