"""Binary records with a declared layout: values, the fast path, documents that are refused, files, and replays."""

from __future__ import annotations

import random
import struct
from decimal import Decimal
from io import BytesIO
from typing import Any

import numpy as np
import pytest

from strandline.core.errors import InvalidDocument
from strandline.core.streams.stream import StreamSpec
from strandline.processing.formats.columns.read_columns import DecodedColumns
from strandline.processing.formats.format import format_of
from strandline.processing.formats.record_rows import RowReader, record_format
from tests.unit.test_record_rows import read


def one_of(kind: str, **parts: Any) -> dict[str, Any]:
    return {"format": "struct", "struct": {"members": [{"name": "v", "type": kind, **parts}]}}


@pytest.mark.parametrize(
    ("kind", "field", "parts", "data", "value"),
    [
        ("uint8", "long", {}, b"\xff", 255),
        ("int8", "long", {}, b"\xff", -1),
        ("uint16", "long", {}, b"\x01\x02", 258),
        ("uint16", "long", {"byte_order": "little"}, b"\x01\x02", 513),
        ("int24", "integer", {}, b"\xff\xff\xfe", -2),
        ("uint24", "integer", {"byte_order": "little"}, b"\x01\x00\x01", 65_537),
        ("int32", "integer", {}, b"\x80\x00\x00\x00", -(2**31)),
        ("uint48", "long", {}, b"\xff" * 6, 2**48 - 1),
        ("int48", "long", {}, b"\xff" * 6, -1),
        ("int64", "long", {}, b"\x80" + bytes(7), -(2**63)),
        ("uint64", "decimal(20,0)", {}, b"\xff" * 8, Decimal(2**64 - 1)),
        ("float16", "double", {}, struct.pack(">e", 1.5), 1.5),
        ("float32", "double", {"byte_order": "little"}, struct.pack("<f", -2.25), -2.25),
        ("float64", "double", {}, struct.pack(">d", 1e300), 1e300),
        ("int16", "double", {"scale": 0.01}, struct.pack(">h", 57), 0.57),
        ("int16", "double", {"scale": 0.1, "offset": -40}, struct.pack(">h", 1), -39.9),
        ("bytes", "string", {"length": 3}, b"\x00\xab\x0c", "00ab0c"),
        ("string", "string", {"length": 6}, b"ab\0cd\0", "ab"),
        ("string", "string", {"length": 3}, "\u00fcb".encode(), "\u00fcb"),
    ],
)
def test_each_type_has_its_value_alone_and_among_many(
    kind: str, field: str, parts: dict[str, Any], data: bytes, value: Any
) -> None:
    for count in (1, 200):
        accepted, rejected = read({"v": field}, *[data] * count, **one_of(kind, **parts))
        assert (accepted, rejected) == ([{"v": value}] * count, [])


@pytest.mark.guarantee(
    "G944",
    "A scaled value of a binary record is the double next to the decimal result, and the fast path returns what a single record "
    "returns.",
    promise="a-record-is-read-in-the-same-way-everywhere",
)
def test_a_scaled_number_is_the_double_next_to_the_decimal_result() -> None:
    document = one_of("int16", scale=0.01, offset=-273.15)
    for raw in random.Random(3).sample(range(-(2**15), 2**15), 100):
        (row,), _ = read({"v": "double"}, struct.pack(">h", raw), **document)
        assert row["v"] == float(Decimal(raw) * Decimal("0.01") + Decimal("-273.15"))


def test_a_missing_value_and_no_number_are_null() -> None:
    optional = {"v": "double?"}
    assert read(optional, b"\x7f\xff", **one_of("int16", missing=32_767)) == ([{"v": None}], [])
    for number in (float("nan"), float("inf")):
        assert read(optional, *[struct.pack(">d", number)] * 100, **one_of("float64"))[0] == [{"v": None}] * 100


def test_a_record_of_another_length_is_a_dead_letter() -> None:
    accepted, rejected = read({"v": "long"}, b"\0\1", b"\0", b"\0\1\2", **one_of("uint16"))
    assert accepted == [{"v": 1}]
    assert [one.partition(": ")[2] for one in rejected] == ["expected 2 bytes, got 1", "expected 2 bytes, got 3"]
    longer = one_of("uint16")
    longer["struct"]["longer"] = "ignore"
    accepted, rejected = read({"v": "long"}, b"\0\1\2", b"\0", **longer)
    assert accepted == [{"v": 1}]
    assert rejected[0].endswith("expected at least 2 bytes, got 1")
    accepted, rejected = read({"v": "string"}, b"\xff", **one_of("string", length=1))
    assert (accepted, "decode" in rejected[0]) == ([], True)


def test_bits_and_positions() -> None:
    members = [
        {"name": "b", "type": "uint8", "at": 1, "bits": {"low": 7, "mode": [4, 3]}},
        {"type": "skip", "length": 1},
    ]
    schema = {"raw": {"type": "long", "from": "$.b"}, "low": "boolean", "mode": "integer"}
    accepted, _ = read(schema, *[b"\0\xd5\0"] * 99, format="struct", struct={"members": members})
    assert accepted == [{"raw": 0xD5, "low": True, "mode": 5}] * 99


def test_records_of_a_layout_are_read_as_columns() -> None:
    spec = StreamSpec.from_document({"stream": "s", "schema": {"v": "double"}, **one_of("int16", scale=0.1)})
    (rows,) = RowReader(record_format(spec)).parts([struct.pack(">h", at) for at in range(1_000)], [])
    assert isinstance(rows.texts, DecodedColumns)
    assert rows.texts.fits.all()
    assert np.array_equal(rows.texts.columns["v"].values, np.arange(1_000) / 10)


@pytest.mark.parametrize(
    ("members", "schema", "problem"),
    [
        ([{"name": "v", "type": "uint8"}], {"w": "long"}, "schema.w: 'w' is not a member of struct"),
        ([{"name": "v", "type": "bytes"}], {"v": "string"}, "'bytes' has no length of its own; add 'length'"),
        ([{"name": "v", "type": "uint8", "length": 2}], {"v": "long"}, "'uint8' has a fixed length; remove it"),
        ([{"type": "uint8"}], {"v": "long"}, "has no name, so its value is lost"),
        ([{"name": "v", "type": "string", "length": 2, "scale": 2}], {"v": "string"}, "'scale' is for numbers"),
        (
            [{"name": "v", "type": "uint8", "bits": {"x": 8}}],
            {"v": "long"},
            "'uint8' has 8 bits, and bit 8 is not one of them",
        ),
        ([{"name": "v", "type": "uint8", "bits": {"x": [1]}}], {"v": "long"}, r"expected a bit, as 7, or \[first bit"),
        ([{"name": "v", "type": "uint8"}, {"name": "v", "type": "uint8"}], {"v": "long"}, "the name 'v' occurs twice"),
    ],
)
def test_a_layout_that_can_not_be_is_refused_in_a_sentence(
    members: list[Any], schema: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidDocument, match=problem):
        StreamSpec.from_document({"stream": "s", "format": "struct", "struct": {"members": members}, "schema": schema})


def test_a_layout_stays_while_jobs_read_the_stream_and_a_file_is_split_by_it() -> None:
    old, new = (
        StreamSpec.from_document({"stream": "s", "schema": {"v": "long"}, **one_of(kind)})
        for kind in ("uint16", "int16")
    )
    (why,) = old.form.refused_changes(old, new)
    assert why.startswith("members of struct: a value is known by its position")
    form = format_of("struct")
    found = list(form.file_records(BytesIO(b"\0\1\0\2\0"), form.read_options(old), "x.bin"))
    assert found == [b"\0\1", b"\0\2", b"\0"]
