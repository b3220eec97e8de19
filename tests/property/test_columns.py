"""Records that are read together, as columns, become what each becomes when it is read alone.

The values are equal to the last bit, and the rejects are equal, for any records between them.
"""

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

from strandline.core.streams.stream import StreamSpec
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.formats import record_rows
from strandline.processing.formats.columns import json_columns, source_columns
from strandline.processing.formats.columns.read_columns import DecodedColumns
from strandline.processing.formats.decoder import Decoder
from strandline.processing.formats.json_rows import Rows
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


def change_event(one: dict[str, Any]) -> bytes:
    row, number = {name: value for name, value in one.items() if name != "spare"}, one["at"] % 16
    event = {"before": None, "after": row, "source": {"table": "t"}, "op": "cur"[number % 3], "ts_ms": one["at"]}
    if number == 15:
        event |= {"before": row, "after": None, "op": "d"} if one["on"] else {"op": "x"}
    return msgspec.json.encode(event)


def change_with_schema(one: dict[str, Any]) -> bytes:
    """Return the row as the converter that adds the schema writes it. The row before can be missing."""
    fields = [{"type": "string", "optional": True, "field": f"column_{at}"} for at in range(7)]
    row = {name: value for name, value in one.items() if name != "spare"}
    source = {"table": "t", "snapshot": one["on"], "sequence": one["name"], "lsn": one["n"], "ts_ns": one["at"] * 10**6}
    event = {"before": None, "after": row, "source": source, "transaction": None, "op": "c", "ts_ms": one["at"]}
    if one["at"] % 2:
        event |= {"before": row, "op": "u"} if one["at"] % 7 else {"before": row, "after": None, "op": "d"}
    return msgspec.json.encode({"schema": {"type": "struct", "fields": fields}, "payload": event})


def deep_object(one: dict[str, Any]) -> bytes:
    return msgspec.json.encode(
        {
            "meta": {"id": one["name"], "is": [{"on": one["on"]}]},
            "at": one["at"],
            "": one["name"],
            "v": {**one, "at": True},
        }
    )


def array_of(one: dict[str, Any]) -> bytes:
    first = {"name": one["name"], "x": one["x"]}
    others = [{**first, "x": at + 0.5} for at in range(one["at"] % 4)]
    rows = [] if one["at"] % 29 == 0 else [*others, first]
    return msgspec.json.encode({"at": one["at"], "rows": rows, "small": one["small"], "n": one["n"], "on": one["on"]})


CHANGES: dict[str, Any] = {
    "format": "debezium",
    "schema": {
        **SCHEMA,
        "op": {"type": "string", "from": "$.op"},
        "table": {"type": "string?", "from": "$.source.table"},
    },
}
OPTIONAL_CHANGES: dict[str, Any] = {
    "format": "debezium",
    "schema": {"name": "string?", "x": "double?", "at": SCHEMA["at"] | {"from": "$.ts_ms"}},
}
"""With no field of the row that it must have."""
DEEP: dict[str, Any] = {
    "name": {"type": "string", "from": "$.meta.id"},
    "at": SCHEMA["at"],
    "n": SCHEMA["n"] | {"from": "$.v.n"},
    "small": {"type": "integer?", "from": "$.v.small"},
    "x": SCHEMA["x"] | {"from": "$.v.x"},
    "on": {"type": "boolean?", "from": "$.meta.is[0].on"},
}
TEXTS: dict[str, Any] = {
    **SCHEMA,
    "at": SCHEMA["at"] | {"text": True},
    "n": SCHEMA["n"] | {"text": True},
    "x": {"type": "double", "text": True},
}
ARRAY: dict[str, Any] = {
    "explode": "$.rows",
    "schema": {**SCHEMA, "x": SCHEMA["x"] | {"from": "$.rows.x"}},
}
INFLUX: dict[str, Any] = {
    "format": "influx",
    "schema": {
        "measurement": "string",
        "name": "string",
        "x": SCHEMA["x"],
        "n": "long?",
        "time": {"type": "timestamp", "unit": "ns"},
    },
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
    "json": (msgspec.json.encode, {}),
    "json, paths": (deep_object, {"schema": DEEP}),
    "json, texts": (
        lambda one: msgspec.json.encode({**one, "x": repr(one["x"]), "at": str(one["at"])}),
        {"schema": TEXTS},
    ),
    "json, exploded": (array_of, ARRAY),
    "debezium": (change_event, CHANGES),
    "debezium, optional": (change_event, OPTIONAL_CHANGES),
    "debezium, with its schema": (change_with_schema, CHANGES),
    "debezium, optional, with its schema": (change_with_schema, OPTIONAL_CHANGES),
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
        self._types = {field.name: arrow_type(field.type) for field in config.fields}
        self._decoder = Decoder(
            config.fields, EventTimeSource("time" if "time" in names else "at", or_log=name in ("raw", "value")), names
        )

    def require_alike(self, values: list[bytes | None], sources: Sequence[bytes | None] = ()) -> int:
        """Returns how many of the records columns stood for."""
        log_ms = [NOW_MS + at for at in range(len(values))]
        marks = np.array([NOW_MS - 5 if at % 3 else NOW_MS - 10**9 for at in range(len(values))])
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(record_rows, "ROWS_MIN", 1)
            patched.setattr(record_rows, "_BYTES_EXPLODED", 20_000)
            patched.setattr(source_columns, "_MANY", 1)
            patched.setattr(json_columns, "_REST_MIN", 1)
            found = list(self._reader.parts(values, sources))
            patched.setattr(record_rows, "ROWS_MIN", len(values) + 1)
            patched.setattr(self._reader, "_quick_exploded", None)
            exact = list(self._reader.parts(values, sources))
        assert not any(isinstance(rows.texts, DecodedColumns) for rows in exact)
        count = sum(int(rows.texts.fits.sum()) for rows in found if isinstance(rows.texts, DecodedColumns))
        if count:
            assert self._decoded(found, log_ms, marks) == self._decoded(exact, log_ms, marks)
            assert [text for rows in found for text in rows.texts] == [text for rows in exact for text in rows.texts]
        return count

    def _decoded(self, parts: list[Rows], log_ms: list[int], marks: Any) -> list[Any]:
        """Return the outcome of all rows and their origins."""
        read: dict[str, list[Any]] = {}
        for rows in parts:
            decoded = self._decoder.decode(rows.texts, rows.of_each(log_ms), np.array(rows.of_each(marks)), 300_000)
            before = len(read.setdefault("places", []))
            places = range(len(rows.texts)) if rows.places is None else rows.places
            read["places"] += places
            read.setdefault("elements", []).extend(rows.elements or [None] * len(places))
            rejects = [(before + one.index, one.reason, one.message) for one in decoded.rejects]
            read.setdefault("rejects", []).extend(rejects)
            for name, array in [("event time", decoded.event_time), *decoded.arrays.items()]:
                assert array.type == self._types.get(name, arrow_type("timestamp"))
                read.setdefault(name, []).extend(map(repr, array.to_pylist()))
            latest_ms = read.setdefault("latest", [None])
            latest_ms[0] = max(filter(None, [latest_ms[0], decoded.latest_event_ms]), default=None)
        return sorted(read.items())


ALL = {name: Way(name) for name in WAYS}


@pytest.mark.guarantee("G560")
@pytest.mark.guarantee("G580")
@pytest.mark.parametrize("name", WAYS)
def test_plain_records_are_read_as_columns_and_become_what_their_texts_do(name: str) -> None:
    chance = random.Random(1)
    values: list[bytes | None] = [ALL[name].write(a_record(chance, is_plain=True)) for _ in range(300)]
    # Lines of InfluxDB with another set of fields than the first one are read by themselves.
    least = 300 * (0.8 if name == "influx" else 0.9)
    assert ALL[name].require_alike(values) > least or name == "json"  # which the decoder reads by itself
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


ODD = [
    "null", "true", "{}", "[]", '"x"', "-0", "-0.0", "1e3", "1E400", "00", "1.", ".5", "NaN", "+1", "-", "", "9007199254740993",
    "9" * 20, "1764000000000.5", "0", " 1", "1 ", '"7"', '""', '" 7 "', '"7\\u0030"', '"\t"', '"c"', '"d"', '{"a":1}',
    '"__debezium_unavailable_value"',
]  # fmt: skip


def odd_json(value: bytes, chance: random.Random) -> bytes:
    """With another value somewhere, or a name that is there already."""
    places = list(re.finditer(rb'(?<=[:\[])(?:"[^"]*"|[^",{}\[\]]+)', value))
    names = re.findall(rb'"\w+":', value)
    if not places or chance.random() < 0.2:
        return value.replace(chance.choice(names), chance.choice(names)) if names else value
    place = chance.choice(places)
    return value[: place.start()] + chance.choice(ODD).encode() + value[place.end() :]


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
        elif kind < 0.15 and value[:2] == b'{"':
            value = odd_json(value, chance)
        values.append(None if kind > 0.98 else mutated(value, chance) if kind > 0.8 else value)
    return values


@pytest.mark.guarantee(
    "G560",
    "Records of Avro, Protobuf, MessagePack, CBOR, CSV, InfluxDB lines, bare values, and raw strings are the same, to "
    "the last bit, decoded as columns or one at a time. This includes fields from the topic or the query.",
    promise="a-record-is-read-in-the-same-way-everywhere",
)
@pytest.mark.guarantee(
    "G580",
    "JSON records and Debezium events that are decoded as columns equal the records decoded one at a time: the same "
    "rows in the same order, and the same dead letters. This includes paths, numbers in strings, fields from topic or "
    "query, and exploded arrays.",
    promise="a-record-is-read-in-the-same-way-everywhere",
)
@pytest.mark.parametrize("name", WAYS)
@given(seed=st.integers(0, 2**32))
@examples(25)
def test_any_records_become_by_columns_what_their_texts_do(name: str, seed: int) -> None:
    chance = random.Random(seed)
    values = some_records(ALL[name], chance, chance.choice([1, 3, 40]))
    ALL[name].require_alike(values)
    ALL[name].require_alike(values, [chance.choice(SOURCES[:2] if seed % 2 else SOURCES) for _ in values])


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("influx", [b"m,name=a x=1.5,time=5i 7", b"m,name=a x=1.5,time=5i 7x"]),
        ("influx", [b"\tm,name=a x=1.5 1764000000000000000"]),
        ("influx", [b"m,name=" + b"a" * size + b" x=1.5 1764000000000000000" for size in (1, 65_600, 32_767)]),
        (
            "debezium, optional",
            [b'{"before":null,"after":{"name":"__debezium_unavailable_value"},"op":"c","ts_ms":1764000000000}'],
        ),
        ("debezium, optional", [b'{"before":null,"after":["a"],"op":"c","ts_ms":1764000000000}']),
        ("debezium, optional", [b'{"before":["a"],"after":null,"op":"d","ts_ms":1764000000000}']),
        ("debezium, optional", [b'{"payload":["a"],"after":{"name":"a","x":1.5},"op":"c","ts_ms":1764000000000}']),
        ("debezium, optional", [b'{"before":null,"after":{"name":"a"},"op":"t","ts_ms":1764000000000}'] * 4),
    ],
)
def test_what_columns_must_leave_to_texts(name: str, values: list[bytes | None]) -> None:
    ALL[name].require_alike(values)


def an_event(number: int) -> bytes:
    """With values that no field takes and that differ from event to event, and others that do not."""
    before = f'{{"name":"w{number}","n":{number},"x":-{number}.5}}'
    source = f'{{"db":"plant","lsn":{NOW_MS + number},"seq":"{"s" * 40}{number}"}}'
    after = f'{{"name":"v{number}","x":{number}.25}}'
    event = f'{{"before":{before},"after":{after},"source":{source},"op":"u","ts_ms":{NOW_MS + number}}}'
    return f'{{"schema":{{"fields":["{"column " * 40}"]}},"payload":{event}}}'.encode()


def changed_events() -> list[bytes]:
    """An event with another value in each place, or a byte too few or too many."""
    event = an_event(7)
    places = [place.span() for place in re.finditer(rb'(?<=[:\[])(?:"[^"]*"|[^",{}\[\]]+)', event)]
    odd = [
        *(one.encode() for one in ODD),
        b"01",
        b"-01",
        b"1.5.5",
        b"-1.25",
        b'"\\z"',
        b'"\xff"',
        b'"\x01"',
        b'"' + b"a" * 70 + b'"',
    ]
    odd += ['"é"'.encode(), *(b'"' + b"a" * 40 + end for end in (b'\\"', b'\n"', b'\xff"'))]
    changed = [event[:begin] + one + event[end:] for begin, end in places for one in odd]
    changed += [event[:at] + event[at + 1 :] for at in range(len(event)) if not 40 < at < 280]
    return [
        *changed,
        *(event[: -1 - at] + b"}" + event[len(event) - at :] for at in range(4)),
        event + b" ",
        event + b"x",
    ]


@pytest.mark.long
@pytest.mark.guarantee("G580")
def test_one_odd_event_among_plain_ones_is_what_its_text_says() -> None:
    events = [an_event(number) for number in range(15)]
    for odd in changed_events():
        assert ALL["debezium, optional"].require_alike([*events[:7], odd, *events[7:]]) >= len(events)


@pytest.mark.parametrize("name", [b'"name":"v', b'"seq":"'], ids=["of a field", "of none"])
def test_long_texts_are_read_as_columns(name: bytes) -> None:
    events: list[bytes | None] = [an_event(at).replace(name, name + b"long" * 100 * at) for at in range(20)]
    assert ALL["debezium, optional"].require_alike(events) == 20
    events[7] = an_event(7).replace(name, name + b"long" * 100 + b"\\q")
    assert ALL["debezium, optional"].require_alike(events) == 19


@pytest.mark.skipif("STRANDLINE_FUZZ_S" not in os.environ, reason="for a longer run: STRANDLINE_FUZZ_S=600")
@pytest.mark.parametrize("name", WAYS)
def test_columns_by_the_clock(name: str) -> None:
    chance = random.Random(os.environ.get("STRANDLINE_FUZZ_SEED"))
    until_s = time.monotonic() + float(os.environ["STRANDLINE_FUZZ_S"])
    while time.monotonic() < until_s:  # sleeps: the length of the run is asked for
        ALL[name].require_alike(some_records(ALL[name], chance, 200))
