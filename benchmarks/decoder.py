"""CPU-seconds to decode a million records, single-threaded: `python -m benchmarks.decoder`.

The records are those of work W1, and variations of them that the fastest path of the decoder can't process. Others have ten
fields, or are those of W1 in each format (`--formats`: only these). All figures of formats are per row: a record of ten rows is
compared with ten flat records, and its total cost is also printed.
"""

from __future__ import annotations

import base64
import random
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from io import BytesIO
from typing import Any

import cbor2
import fastavro
import msgspec
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass

from strandline.core.schemas.message_types import read_descriptor_set
from strandline.core.streams.stream import StreamSpec
from strandline.processing.formats.decoder import Decoder, RecordField
from strandline.processing.formats.record_rows import RowReader, record_format
from strandline.processing.formats.sparkplug.payload import payload_class
from strandline.processing.pipelines.event_time import EventTimeSource

RECORDS = 10_000
ROUNDS = 50
START_MS = 1_700_000_000_000

Lines = list[bytes | None]


def w1(number: int, rest: str = "") -> bytes:
    time_ms = START_MS + number * 5
    return f'{{"device":"device-{number % 1000:04d}","ts":{time_ms},"temp":{20 + number % 977 / 100}{rest}}}'.encode()


def with_text_time(number: int) -> bytes:
    moment = datetime.fromtimestamp((START_MS + number * 5) / 1000, UTC).isoformat(timespec="milliseconds")
    return f'{{"device":"device-{number % 1000:04d}","ts":"{moment}","temp":{20 + number % 977 / 100}}}'.encode()


def with_price(number: int) -> bytes:
    return w1(number)[:-1] + f',"price":{number % 9000 / 100:.2f}}}'.encode()


def wide(number: int) -> bytes:
    moment = datetime.fromtimestamp((START_MS + number * 5) / 1000, UTC).isoformat(timespec="milliseconds")
    note = '"checked"' if number % 3 else "null"
    seen = f',"seen":{START_MS + number}' if number % 2 else ""
    return (
        f'{{"device":"device-{number % 1000:04d}","site":"site {number % 50}","ts":"{moment}","temp":{20 + number % 977 / 100},'
        f'"humidity":{number % 100 / 100},"pressure":{950 + number % 800 / 8},"count":{number},'
        f'"price":{number % 9000 / 100:.2f},"note":{note}{seen}}}'
    ).encode()


def one_bad(number: int) -> bytes:
    return b'{"device":"a","ts":1,"temp":1,"ts":2}' if number == RECORDS // 2 else w1(number)


def broken(number: int, good: bytes, chance: random.Random) -> bytes:
    bad = [good[:-9], b'{"device":"a","ts":"soon","temp":1}', b'{"device":"a","ts":1,"temp":1,"ts":2}']
    return chance.choice(bad) if chance.random() < 0.01 else good


W1_FIELDS = [RecordField("device", "string"), RecordField("ts", "timestamp"), RecordField("temp", "double", min=-90)]
PRICE = RecordField("price", "decimal(10,2)")
WIDE_FIELDS = [
    *W1_FIELDS,
    RecordField("site", "string"),
    RecordField("humidity", "double", min=0, max=1),
    RecordField("pressure", "double"),
    RecordField("count", "long"),
    PRICE,
    RecordField("note", "string", required=False),
    RecordField("seen", "timestamp", required=False),
]


def cpu_s_per_million(lines: Lines, fields: list[RecordField]) -> float:
    """Return the best of several rounds, which is the result without other load on the machine."""
    decoder = Decoder(fields, EventTimeSource("ts"), [field.name for field in fields if field.name != "ts"])
    log_times_ms = [START_MS + number * 5 for number in range(len(lines))]
    best_s = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        decoder.decode(lines, log_times_ms, START_MS - 10_000, 300_000)
        best_s = min(best_s, time.process_time() - began)
    return best_s / len(lines) * 1_000_000


def works() -> dict[str, tuple[Lines, list[RecordField]]]:
    chance = random.Random(1)
    numbers = range(RECORDS)
    return {
        "W1: device, ts, temp": ([w1(number) for number in numbers], W1_FIELDS),
        "W1, one bad record": ([one_bad(number) for number in numbers], W1_FIELDS),
        "W1, 1 % bad records": ([broken(number, w1(number), chance) for number in numbers], W1_FIELDS),
        "ts as ISO 8601 text": ([with_text_time(number) for number in numbers], W1_FIELDS),
        "an undeclared field": ([w1(number, ',"site":7') for number in numbers], W1_FIELDS),
        "a decimal(10,2)": ([with_price(number) for number in numbers], [*W1_FIELDS, PRICE]),
        "ten fields": ([wide(number) for number in numbers], WIDE_FIELDS),
        "ten fields, 1 % bad": ([broken(number, wide(number), chance) for number in numbers], WIDE_FIELDS),
    }


def reading(number: int) -> dict[str, Any]:
    return {"device": f"device-{number % 1000:04d}", "ts": START_MS + number * 5, "temp": 20 + number % 977 / 100}


def packed(pack: Callable[[dict[str, Any]], bytes]) -> Lines:
    return [pack(reading(number)) for number in range(RECORDS)]


def format_works() -> dict[str, tuple[dict[str, Any], Lines, list[bytes | None]]]:
    """Return stream documents, records, and their sources."""
    text = msgspec.json.encode
    w1 = {"device": "string", "ts": "timestamp", "temp": {"type": "double", "min": -90}}
    deep = {**w1, "device": {"type": "string", "from": "$.meta.id"}, "temp": {"type": "double", "from": "$.data.temp"}}
    inner = packed(lambda one: text({"meta": {"id": one["device"]}, "ts": one["ts"], "data": {"temp": one["temp"]}}))
    numbers = {**w1, "temp": {"type": "double", "text": True}}
    queries: list[bytes | None] = [b"?device=" + reading(number)["device"].encode() for number in range(RECORDS)]
    tens = [
        text({"device": "device-0001", "readings": [reading(at) for at in range(first, first + 10)]})
        for first in range(0, RECORDS, 10)
    ]
    value = {"schema": {"device": "string", "temp": "double", "ts": "timestamp?"}, "format": "value"}
    return {
        "json": ({"schema": w1}, packed(text), []),
        "json, paths": ({"schema": deep}, inner, []),
        "json, a number as text": (
            {"schema": numbers},
            packed(lambda one: text({**one, "temp": str(one["temp"])})),
            [],
        ),
        "json, ten rows a record": ({"schema": w1, "explode": "$.readings"}, [*tens], []),
        "json, a field of a query": (
            {"schema": w1},
            packed(lambda one: text({"ts": one["ts"], "temp": one["temp"]})),
            queries,
        ),
        "value, a field of a query": (value, packed(lambda one: str(one["temp"]).encode()), queries),
        "csv": ({"schema": w1, "format": "csv"}, packed(lambda one: ",".join(map(str, one.values())).encode()), []),
        "influx": (
            {"schema": {**w1, "time": {"type": "timestamp", "unit": "ns"}, "ts": "timestamp?"}, "format": "influx"},
            packed(lambda one: f"w,device={one['device']} temp={one['temp']} {one['ts']}000000".encode()),
            [],
        ),
        "msgpack": ({"schema": w1, "format": "msgpack"}, packed(msgspec.msgpack.encode), []),
        "cbor": ({"schema": w1, "format": "cbor"}, packed(cbor2.dumps), []),
        "raw": (
            {"schema": {"device": "string", "ts": "timestamp?", "temp": "double?"}, "format": "raw"},
            packed(lambda one: one["device"].encode()),
            [],
        ),
        "avro": ({"schema": w1, "format": "avro", "avro": {"schema": AVRO}}, packed(avro_record), []),
        "protobuf": (
            {"schema": w1, "format": "protobuf", "protobuf": {"descriptor": descriptors(), "message": "p.W1"}},
            packed(protobuf_message()),
            [],
        ),
        "debezium": ({"schema": w1, "format": "debezium"}, packed(change_event), []),
        "sparkplug, ten metrics": sparkplug_work(),
        **shape_works(w1),
    }


def shape_works(w1: dict[str, Any]) -> dict[str, tuple[dict[str, Any], Lines, list[bytes | None]]]:
    """Return records of ten rows in each shape, and fields whose values have a special form."""
    text = msgspec.json.encode
    tens = [[reading(at) for at in range(first, first + 10)] for first in range(0, RECORDS, 10)]
    value = {"ts": w1["ts"], "temp": w1["temp"]}
    columns = {
        name: {"type": kind, "from": f"$.h.{name}"} for name, kind in (("device", "string"), ("ts", "timestamp"))
    }
    columns["temp"] = {"type": "double", "from": "$.h.temp"}
    wide = {**w1, "temp": {"type": "double", "from": "$"}}
    return {
        "a record is an array": ({"schema": w1, "explode": "$"}, [text(ten) for ten in tens], []),
        "members with names": (
            {"schema": w1, "explode": {"members": "$.s", "name": "device"}},
            [
                text({"s": {f"d-{at}": {"ts": one["ts"], "temp": one["temp"]} for at, one in enumerate(ten)}})
                for ten in tens
            ],
            [],
        ),
        "wide to long": (
            {"schema": wide, "explode": {"members": "$", "match": "t_(?P<device>.+)"}},
            [text({"ts": ten[0]["ts"], **{f"t_{at}": one["temp"] for at, one in enumerate(ten)}}) for ten in tens],
            [],
        ),
        "parallel arrays": (
            {"schema": columns, "explode": {"arrays": "$.h"}},
            [text({"h": {name: [one[name] for one in ten] for name in ten[0]}}) for ten in tens],
            [],
        ),
        "rows with named columns": (
            {"schema": w1, "explode": {"columns": "$.c", "rows": "$.r"}},
            [text({"c": list(ten[0]), "r": [list(one.values()) for one in ten]}) for ten in tens],
            [],
        ),
        "by position": (
            {
                "schema": {name: {"type": w1[name], "from": f"$[{at}]"} for at, name in enumerate(("device", "ts"))}
                | {"temp": {"type": "double", "from": "$[2]"}}
            },
            packed(lambda one: text(list(one.values()))),
            [],
        ),
        "missing: [-9999]": (
            {"schema": {**w1, "temp": {"type": "double", "required": False, "missing": [-9999]}}},
            packed(text),
            [],
        ),
        "a value of any type": ({"schema": {**w1, "temp": "any"}}, packed(text), []),
        "a time by a pattern": (
            {
                "schema": {
                    "device": "string",
                    "temp": value["temp"],
                    "ts": {"type": "timestamp", "pattern": "d/M/yyyy HH:mm:ss"},
                }
            },
            packed(lambda one: text({**one, "ts": f"{1 + one['ts'] % 14}/11/2023 10:00:{one['ts'] % 60:02}"})),
            [],
        ),
    }


def sparkplug_work() -> tuple[dict[str, Any], Lines, list[bytes | None]]:
    """Return a birth message, and data messages with aliases."""
    schema = {
        "device": {"type": "string", "from": "$.metric"},
        "ts": {"type": "timestamp", "from": "$.time"},
        "temp": {"type": "double", "from": "$.value_double"},
    }
    messages, sources = [], [b"mqtt:spBv1.0/g/NBIRTH/n", *[b"mqtt:spBv1.0/g/NDATA/n"] * (RECORDS // 10)]
    for number in range(len(sources)):
        message = payload_class()(timestamp=START_MS + number * 50, seq=number % 256)
        for at in range(10):
            declared = {} if number else {"name": f"device-{at:04d}", "datatype": 10}
            message.metrics.add(alias=at, double_value=reading(number + at)["temp"], **declared)
        messages.append(message.SerializeToString())
    return {"schema": schema, "format": "sparkplug", "partitions": 1}, [*messages], [*sources]


AVRO = {
    "type": "record",
    "name": "W1",
    "fields": [
        {"name": "device", "type": "string"},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "temp", "type": "double"},
    ],
}


def avro_record(one: dict[str, Any]) -> bytes:
    written = BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(AVRO), one)
    return written.getvalue()


def descriptors() -> str:
    file = FileDescriptorProto(name="w1.proto", package="p", syntax="proto3")
    message = file.message_type.add(name="W1")
    for number, (name, kind) in enumerate({"device": 9, "ts": 3, "temp": 1}.items(), 1):  # string, int64, double
        message.field.add(name=name, number=number, type=kind, label=1)  # type: ignore[arg-type]
    return base64.b64encode(FileDescriptorSet(file=[file]).SerializeToString()).decode()


def protobuf_message() -> Callable[[dict[str, Any]], bytes]:
    message = GetMessageClass(read_descriptor_set(descriptors(), "p.W1"))
    return lambda one: message(**one).SerializeToString()


def change_event(one: dict[str, Any]) -> bytes:
    source = {
        "version": "3.2",
        "connector": "postgresql",
        "name": "plant",
        "ts_ms": one["ts"],
        "db": "plant",
        "table": "w1",
    }
    return msgspec.json.encode({"before": None, "after": one, "source": source, "op": "c", "ts_ms": one["ts"] + 5})


class FormatWork:
    """Records of one format, ready to be decoded repeatedly."""

    def __init__(self, document: dict[str, Any], lines: Lines, sources: list[bytes | None]) -> None:
        self._reader = RowReader(config := record_format(StreamSpec.from_document({"stream": "s", **document})))
        self._decoder = Decoder(config.fields, EventTimeSource("ts", or_log=True), ["device", "temp"])
        self._lines, self._sources = lines, sources
        self._log_times_ms = [START_MS + number * 5 for number in range(len(lines))]
        self.best_s = float("inf")
        """Best CPU-seconds per row."""
        self.rows_a_record = 0.0

    def play(self) -> None:
        began, rows = time.process_time(), 0
        for part in self._reader.parts(self._lines, self._sources):
            decoded = self._decoder.decode(part.texts, part.of_each(self._log_times_ms), None, 300_000)
            rows += len(decoded.event_time)
        self.best_s = min(self.best_s, (time.process_time() - began) / rows)
        self.rows_a_record = rows / len(self._lines)


def print_formats() -> None:
    """Measure all formats alternately, so that other load on the machine affects all of them."""
    formats = {name: FormatWork(*work) for name, work in format_works().items()}
    for _ in range(ROUNDS):
        for work in formats.values():
            work.play()
    flat_s = formats["json"].best_s
    for name, work in formats.items():
        times, rows = work.best_s / flat_s, work.rows_a_record
        record = f", {times * rows:5.2f} times for a record of {rows:.0f} rows" if rows > 1 else ""
        print(f"{name:25} {work.best_s * 1e6:6.3f} CPU-seconds per million rows, {times:5.2f} times json{record}")


def main() -> None:
    if "--formats" not in sys.argv:
        for name, (lines, fields) in works().items():
            print(f"{name:25} {cpu_s_per_million(lines, fields):6.3f} CPU-seconds per million records")
    print_formats()


if __name__ == "__main__":
    main()
