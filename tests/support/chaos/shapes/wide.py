"""Wide rows to long rows by a pattern of names, over TCP. Times are strings with seconds."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.support.chaos.dump import Record
from tests.support.chaos.shapes.shape import SENSORS, Message, Read, Reading, Shape, messages, refused
from tests.support.chaos.shapes.values import Field, Unreadable, member, parse, rows_of

_NAME = re.compile(r"temp_(?P<sensor>.+)")
_FIELDS = (
    Field("client", "string", required=False),
    Field("id", "string"),
    Field("ts", "timestamp", unit_ms=1000, text=True),
    Field("sensor", "string"),
    Field("value", "double", required=False, missing=("n/a",), text=True),
)
_DOCUMENT = {
    "explode": {"members": "$", "match": "temp_(?P<sensor>.+)"},
    "schema": {
        "client": "string?",
        "id": "string",
        "ts": {"type": "timestamp", "unit": "s", "text": True},
        "sensor": "string",
        "value": {"type": "double", "required": False, "from": "$", "missing": ["n/a"], "text": True},
    },
    "key": "client",
}


def make(message: Message) -> bytes:
    chance, spoil = message.chance, message.spoil
    at_s = message.times(1)[0] // 1000
    if spoil == "cut":
        message.unkeyed()
    record: dict[str, Any] = {"id": message.id, "client": message.client, "ts": chance.choice((at_s, str(at_s)))}
    for sensor in chance.sample(SENSORS, chance.randint(1, 3)):
        value = message.value()
        record[f"temp_{sensor}"] = "N/A" if chance.random() < 0.1 else chance.choice((value, str(value)))
        record[f"firmware_{sensor}"] = "1.2"
    if spoil == "word":
        record["temp_roof"] = "warm"
    elif spoil == "no time":
        del record["ts"]
    text = json.dumps(record, separators=(",", ":"))
    return (text[:-1] if spoil == "cut" else text).encode()


def read(record: Record) -> Read:
    try:
        parsed = parse(record.value)
    except Unreadable:
        return refused("decode")
    if not isinstance(parsed, dict):
        return refused("schema")
    raws = []
    for name, value in parsed.items():
        if found := _NAME.fullmatch(name):
            shared = {one: member(parsed, one) for one in ("client", "id", "ts")}
            raws.append(shared | {"sensor": found["sensor"], "value": value})
    noted = set()
    rows = []
    for (at, values), raw in zip(rows_of(_FIELDS, raws), raws, strict=True):
        rows.append(Reading(at, "schema") if values is None else Reading(at, None, values))
        if values is not None and isinstance(raw["value"], str):
            noted.add("a missing word" if values["value"] is None else "a number in a string")
        if values is not None and isinstance(raw["ts"], str):
            noted.add("a time in a string")
    return Read(rows, frozenset(noted))


WIDE = Shape(
    "wide",
    "tcp",
    _DOCUMENT,
    _FIELDS,
    messages(make, "word", "no time", "cut", "future"),
    read,
    notes=("a missing word", "a number in a string", "a time in a string"),
)
