"""A row for each member of an object, over HTTP, with the member's name as a field. Times have a pattern and a zone."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from tests.support.chaos.dump import Record
from tests.support.chaos.shapes.shape import SENSORS, Message, Read, Reading, Shape, messages, refused
from tests.support.chaos.shapes.values import Field, Number, Unreadable, member, parse, rows_of

_PATTERN, _ZONE = "%d.%m.%Y %H:%M:%S", "Europe/Berlin"
_FIELDS = (
    Field("client", "string", required=False),
    Field("id", "string"),
    Field("ts", "timestamp", pattern=_PATTERN, tz=_ZONE),
    Field("sensor", "string"),
    Field("value", "double", required=False, missing=("Bad", "I/O Timeout", -9999, "nan")),
    Field("level", "long", required=False, or_null=True),
)
_DOCUMENT = {
    "explode": {"members": "$.sensors", "name": "sensor"},
    "schema": {
        "client": "string?",
        "id": "string",
        "ts": {"type": "timestamp", "pattern": "dd.MM.yyyy HH:mm:ss", "tz": "Europe/Berlin", "from": "$.at"},
        "sensor": "string",
        "value": {"type": "double", "required": False, "from": "$.t", "missing": ["Bad", "I/O Timeout", -9999, "nan"]},
        "level": {"type": "long", "required": False, "or_null": True},
    },
    "key": "client",
}
_MARKERS: tuple[Any, ...] = ("Bad", "bad", "I/O timeout", -9999, -9999.0, "-9999", "NaN")
_LEVELS: tuple[Any, ...] = (1, 2.0, None, "high", 2.5, True)


def make(message: Message) -> bytes:
    chance, spoil = message.chance, message.spoil
    at = datetime.fromtimestamp(message.times(1)[0] // 1000, UTC).astimezone(ZoneInfo(_ZONE))
    sensors: dict[str, Any] = {}
    for sensor in chance.sample(SENSORS, chance.randint(1, 3)):
        value = chance.choice(_MARKERS) if chance.random() < 0.1 else message.value()
        sensors[sensor] = {"t": value, "level": chance.choice(_LEVELS)}
    record: dict[str, Any] = {
        "id": message.id,
        "client": message.client,
        "at": at.strftime(_PATTERN),
        "sensors": sensors,
    }
    one = next(iter(sensors.values()))
    if spoil == "word":
        one["t"] = "much"
    elif spoil == "pattern":
        record["at"] = at.isoformat()
    elif spoil == "no members":
        del record["sensors"]
    elif spoil == "nan":
        one["t"] = "NAN"
    elif spoil in ("cut", "twice"):
        message.unkeyed()
        record["id"] = message.id
    if spoil == "nan":
        message.unkeyed()
        record["id"] = message.id
    text = json.dumps(record, separators=(",", ":"))
    if spoil == "cut":
        text = text[:-1]
    elif spoil == "twice":
        text = text.replace('"sensors":{', '"sensors":{"roof":{"t":1},"roof":{"t":1},', 1)
    elif spoil == "nan":
        text = text.replace('"NAN"', "nan")
    return text.encode()


def read(record: Record) -> Read:
    noted = {"a nan without quotes"} if b":nan" in record.value else set()
    try:
        parsed = parse(record.value, reads_nan=True)
    except Unreadable:
        return refused("decode")
    if not isinstance(parsed, dict) or not isinstance(parsed.get("sensors"), dict):
        return refused("schema")
    raws = []
    for sensor, one in parsed["sensors"].items():
        raw = {
            "client": member(parsed, "client"),
            "id": member(parsed, "id"),
            "ts": member(parsed, "at"),
            "sensor": sensor,
        }
        raws.append(raw | {"value": member(one, "t"), "level": member(one, "level")})
    rows = []
    for (at, values), raw in zip(rows_of(_FIELDS, raws), raws, strict=True):
        rows.append(Reading(at, "schema") if values is None else Reading(at, None, values))
        if values is not None:
            if values["value"] is None and raw["value"] is not None:
                noted.add("a missing number" if isinstance(raw["value"], Number) else "a missing word")
            if values["level"] is None and raw["level"] is not None:
                noted.add("a value of another type that is null")
    return Read(rows, frozenset(noted))


MEMBERS = Shape(
    "members",
    "http",
    _DOCUMENT,
    _FIELDS,
    messages(make, "word", "pattern", "no members", "nan", "cut", "twice", "future"),
    read,
    notes=("a nan without quotes", "a missing number", "a missing word", "a value of another type that is null"),
)
