"""Records that are read at once, as columns, become what each becomes by its text: the same values to the last bit, the same
rejects, whatever stands between them."""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import cbor2
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.stream import StreamSpec
from strandline.processing.formats import record_rows
from strandline.processing.formats.columns import source_columns
from strandline.processing.formats.columns.read_columns import ReadColumns
from strandline.processing.formats.decoder import Decoder
from strandline.processing.formats.record_rows import RowReader, record_format
from strandline.processing.formats.with_schema.registered_schemas import RegisteredSchema
from strandline.processing.pipelines.event_time import EventTimeSource
from tests.property.test_formats import mutated
from tests.support.examples import examples
from tests.support.messages import SchemasInMemory, avro_record, descriptor_text, message_class, numbered, proto_file

SCHEMA: dict[str, Any] = {
    "name": "string",
    "at": {"type": "timestamp", "unit": "ms"},
    "n": {"type": "long?", "min": -(2**60), "max": 2**59},
    "small": "integer?",
    "x": {"type": "double", "min": -1e300},
    "on": "boolean?",
}
AVRO = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "n", "type": ["null", "long"]},
        {"name": "spare", "type": ["string", "null"]},
        {"name": "small", "type": ["int", "null"]},
        {"name": "x", "type": "double"},
        {"name": "on", "type": ["null", "boolean"]},
    ],
}
MESSAGES = {
    "name": "string", "at": "int64", "n": "optional sint64", "spare": "string", "small": "optional int32", "x": "double",
    "on": "optional bool",
}  # fmt: skip
PROTO = descriptor_text(proto_file("p", M=MESSAGES))
MESSAGE = message_class(PROTO, "p.M")
NOW_MS = 1_764_000_000_000
NAMES = ["", "a", "device-0001", "Łódź", "x" * 40, "long" * 600, 'in "quotes"', "back\\slash", "a,b", " ", "\n", "\0"]
NUMBERS = [
    0,
    1,
    -1,
    23,
    24,
    127,
    128,
    255,
    256,
    -32,
    -33,
    -128,
    -129,
    2**31 - 1,
    2**31,
    -(2**31),
    2**53 + 1,
    2**60,
    -(2**60) - 1,
]
DOUBLES = [0.0, -0.0, 1.5, 0.1, -1e-300, 1e22, 5e-324, float("inf"), float("nan"), -1e301, 20.23]


def a_record(chance: random.Random, *, is_plain: bool) -> dict[str, Any]:
    """One of the schema. A plain one has nothing that any format writes in another way than most."""
    one = {
        "name": chance.choice(NAMES[1:4] if is_plain else NAMES),
        "at": NOW_MS + chance.randrange(-1000, 1000),
        "n": chance.choice([None, *NUMBERS]),
        "small": chance.choice([None, 7, -7]),
        "x": chance.choice([1.5, chance.random(), chance.uniform(-1e6, 1e6)]),
        "on": chance.choice([None, True, False]),
    }
    if not is_plain:
        one["at"] = chance.choice([one["at"], 0, -1, NOW_MS // 1000, NOW_MS * 10**6, 2**62])
        one["small"] = chance.choice([one["small"], *(number for number in NUMBERS if -(2**31) <= number < 2**31)])
        one["x"] = chance.choice([one["x"], *DOUBLES])
    return one


def csv_line(one: dict[str, Any]) -> bytes:
    texts = {"on": {True: "true", False: "false"}.get(one["on"]), "x": repr(one["x"])}
    return ",".join("" if cell is None else str(cell) for cell in (one | texts).values()).encode()


def influx_line(one: dict[str, Any]) -> bytes:
    whole = "" if one["n"] is None else f",n={one['n']}i"
    return f"m,name={one['name'] or 'none'},spare=a x={one['x']!r},y=1{whole} {one['at']}000000".encode()


def proto_message(one: dict[str, Any]) -> bytes:
    return bytes(MESSAGE(**{name: value for name, value in one.items() if value is not None}).SerializeToString())


def avro_bytes(one: dict[str, Any]) -> bytes:
    return avro_record(AVRO, {**one, "spare": "s" if one["on"] else None})


def mixed_map(pack: Callable[[Any], bytes]) -> Callable[[dict[str, Any]], bytes]:
    def packed(one: dict[str, Any]) -> bytes:
        x = int(one["x"]) if one["x"] == 1.5 else one["x"]
        return pack({**one, "x": x, "spare": one["n"] if one["on"] else one["name"]})

    return packed


INFLUX: dict[str, Any] = {
    "format": "influx",
    "schema": {"name": "string", "x": SCHEMA["x"], "n": "long?", "time": {"type": "timestamp", "unit": "ns"}},
}
WAYS: dict[str, tuple[Callable[[dict[str, Any]], bytes], dict[str, Any]]] = {
    "avro": (avro_bytes, {"format": "avro", "avro": {"schema": AVRO}}),
    "avro, registry": (lambda one: numbered(7, avro_bytes(one)), {"format": "avro", "avro": {"registry": True}}),
    "protobuf": (proto_message, {"format": "protobuf", "protobuf": {"descriptor": PROTO, "message": "p.M"}}),
    "msgpack": (mixed_map(msgspec.msgpack.encode), {"format": "msgpack"}),
    "cbor": (mixed_map(cbor2.dumps), {"format": "cbor"}),
    "csv": (csv_line, {"format": "csv"}),
    "influx": (influx_line, INFLUX),
    "value": (
        lambda one: repr(one["x"]).encode(),
        {"format": "value", "schema": {"x": SCHEMA["x"], "name": "string?", "at": "timestamp?"}},
    ),
    "raw": (lambda one: one["name"].encode(), {"format": "raw", "schema": {"name": "string", "at": "timestamp?"}}),
}
SCHEMAS = SchemasInMemory(avro_7=RegisteredSchema(json.dumps(AVRO)))


class Way:
    """One format, read both ways."""

    def __init__(self, name: str) -> None:
        self.write, document = WAYS[name]
        document = {"stream": "s", "schema": SCHEMA, **document}
        document["schema"] = document["schema"] | {"note": "string?", "more": "double?"}
        if name == "csv":
            document["csv"] = {"columns": list(SCHEMA)}
        config = record_format(StreamSpec.from_document(document))
        self._reader = RowReader(config, SCHEMAS)
        names = [field.name for field in config.fields]
        self._decoder = Decoder(
            config.fields, EventTimeSource("time" if "time" in names else "at", or_log=name in ("raw", "value")), names
        )

    def require_alike(self, values: list[bytes | None], sources: Sequence[bytes | None] = ()) -> int:
        """Returns how many of the records columns stood for."""
        log_ms = [NOW_MS + at for at in range(len(values))]
        marks = np.array([NOW_MS - 5 if at % 3 else NOW_MS - 10**9 for at in range(len(values))])
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(record_rows, "ROWS_MIN", 1)
            patched.setattr(source_columns, "_MANY", 1)
            (rows,) = self._reader.parts(values, sources)
            if not isinstance(rows.texts, ReadColumns):
                return 0
            found = rows.texts
            patched.setattr(record_rows, "ROWS_MIN", len(values) + 1)
            (rows,) = self._reader.parts(values, sources)
        assert not isinstance(rows.texts, ReadColumns)
        assert list(found) == list(rows.texts)
        read = self._decoder.decode(found, log_ms, marks, 300_000)
        texts = self._decoder.decode(rows.texts, log_ms, marks, 300_000)
        assert read.rejects == texts.rejects
        assert read.event_time.equals(texts.event_time)
        assert read.latest_event_ms == texts.latest_event_ms
        for name, array in texts.arrays.items():
            assert read.arrays[name].type == array.type
            assert list(map(repr, read.arrays[name].to_pylist())) == list(map(repr, array.to_pylist()))
        return int(found.fits.sum())


ALL = {name: Way(name) for name in WAYS}


@pytest.mark.parametrize("name", WAYS)
def test_plain_records_are_read_as_columns_and_become_what_their_texts_do(name: str) -> None:
    chance = random.Random(1)
    values: list[bytes | None] = [ALL[name].write(a_record(chance, is_plain=True)) for _ in range(300)]
    # Lines of InfluxDB with another set of fields than the first one are read by themselves.
    least = 300 * (0.8 if name == "influx" else 0.9)
    assert ALL[name].require_alike(values) > least
    assert ALL[name].require_alike(values, [SOURCES[at % 2] for at in range(300)]) > least


SOURCES = [
    b"?note=a",
    None,
    b"?note=%C5%81&on=true&more=7",
    b"?more=x",
    b"?small=1&more=2.5",
    b"?at=1764000000000",
    b"?precision=ms",
]


def some_records(way: Way, chance: random.Random, count: int) -> list[bytes | None]:
    """Good ones, odd ones, broken ones, and tombstones."""
    values: list[bytes | None] = []
    for _ in range(count):
        value = way.write(a_record(chance, is_plain=chance.random() < 0.7))
        kind = chance.random()
        if kind < 0.01:
            value = value.replace(b"1.5", b"-0")
        if kind < 0.05:  # numbers with a zero before them
            value = re.sub(rb"(?<![\d.])(\d)", rb"0\1", value, count=chance.choice([1, 2, 3]))
        values.append(None if kind > 0.98 else mutated(value, chance) if kind > 0.8 else value)
    return values


@pytest.mark.parametrize("name", WAYS)
@given(seed=st.integers(0, 2**32))
@examples(25)
def test_any_records_become_by_columns_what_their_texts_do(name: str, seed: int) -> None:
    chance = random.Random(seed)
    values = some_records(ALL[name], chance, chance.choice([1, 3, 40]))
    ALL[name].require_alike(values)
    ALL[name].require_alike(values, [chance.choice(SOURCES[:2] if seed % 2 else SOURCES) for _ in values])


@pytest.mark.skipif("STRANDLINE_FUZZ_S" not in os.environ, reason="for a longer run: STRANDLINE_FUZZ_S=600")
@pytest.mark.parametrize("name", WAYS)
def test_columns_by_the_clock(name: str) -> None:
    chance = random.Random(os.environ.get("STRANDLINE_FUZZ_SEED"))
    until_s = time.monotonic() + float(os.environ["STRANDLINE_FUZZ_S"])
    while time.monotonic() < until_s:
        ALL[name].require_alike(some_records(ALL[name], chance, 200))
