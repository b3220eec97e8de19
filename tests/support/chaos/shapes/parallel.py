"""Arrays in parallel, over UDP. A shorter array has no value in the last rows."""

from __future__ import annotations

import json
from typing import Any

from tests.support.chaos.dump import Record
from tests.support.chaos.shapes.shape import SENSORS, Message, Read, Reading, Shape, messages, refused
from tests.support.chaos.shapes.values import ABSENT, Field, Unreadable, member, parse, rows_of

_ARRAYS = {"ts": "time", "value": "celsius", "level": "level"}
_FIELDS = (
    Field("client", "string", required=False),
    Field("id", "string"),
    Field("sensor", "string"),
    Field("ts", "timestamp"),
    Field("value", "double", required=False),
    Field("level", "long", required=False, or_null=True),
)
_DOCUMENT = {
    "explode": {"arrays": "$.hourly", "shorter": "null"},
    "schema": {
        "client": "string?",
        "id": "string",
        "sensor": "string",
        "ts": {"type": "timestamp", "unit": "ms", "from": "$.hourly.time"},
        "value": {"type": "double", "required": False, "from": "$.hourly.celsius"},
        "level": {"type": "long", "required": False, "or_null": True, "from": "$.hourly.level"},
    },
    "key": "client",
}


def make(message: Message) -> bytes:
    chance, spoil = message.chance, message.spoil
    if spoil == "cut":
        message.unkeyed()
    times: list[Any] = message.times(chance.randint(1, 5))
    values: list[Any] = [None if chance.random() < 0.1 else message.value() for _ in times]
    levels = [chance.choice((1, 2, "high", 7.0)) for _ in times]
    if chance.random() < 0.1:
        values.pop()
    if spoil == "word":
        values[:1] = ["warm"]
    elif spoil == "no time":
        times[0] = None
    hourly: dict[str, Any] = {"time": times, "celsius": values, "level": levels}
    if spoil == "no array":
        hourly["time"] = "now"
    record = {"id": message.id, "client": message.client, "sensor": chance.choice(SENSORS), "hourly": hourly}
    text = json.dumps(record, separators=(",", ":"))
    return (text[:-1] if spoil == "cut" else text).encode()


def read(record: Record) -> Read:
    try:
        parsed = parse(record.value)
    except Unreadable:
        return refused("decode")
    arrays = {name: member(parsed, "hourly", of) for name, of in _ARRAYS.items()}
    if not all(isinstance(one, list) for one in arrays.values()):
        return refused("schema")
    noted = {"a shorter array"} if len({*map(len, arrays.values())}) > 1 else set()
    raws = []
    for at in range(max(map(len, arrays.values()))):
        shared = {name: member(parsed, name) for name in ("client", "id", "sensor")}
        raws.append(shared | {name: one[at] if at < len(one) else ABSENT for name, one in arrays.items()})
    rows = []
    for (at, values), raw in zip(rows_of(_FIELDS, raws), raws, strict=True):
        rows.append(Reading(at, "schema") if values is None else Reading(at, None, values))
        if values is not None and values["level"] is None and raw["level"] is not ABSENT:
            noted.add("a value of another type that is null")
    return Read(rows, frozenset(noted))


PARALLEL = Shape(
    "parallel",
    "udp",
    _DOCUMENT,
    _FIELDS,
    messages(make, "word", "no time", "no array", "cut", "future"),
    read,
    notes=("a shorter array", "a value of another type that is null"),
)
