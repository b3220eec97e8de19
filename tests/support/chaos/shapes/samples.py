"""Samples without times of their own, over HTTP: a first time and a step."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from tests.support.chaos.dump import Record
from tests.support.chaos.shapes.shape import SENSORS, Message, Read, Reading, Shape, messages, refused
from tests.support.chaos.shapes.values import Field, Number, Unfit, Unreadable, member, parse, rows_of

_STEP_MS = 100
_TIME = Field("ts", "timestamp")
_FIELDS = (
    Field("client", "string", required=False),
    Field("id", "string"),
    Field("sensor", "string"),
    _TIME,
    Field("number", "long"),
    Field("value", "double", required=False, missing=(-9999,)),
)
_DOCUMENT = {
    "explode": {"elements": "$.values", "time": "ts", "step": "100ms", "index": "number"},
    "schema": {
        "client": "string?",
        "id": "string",
        "sensor": "string",
        "ts": {"type": "timestamp", "unit": "ms"},
        "number": "long",
        "value": {"type": "double", "required": False, "from": "$.values", "missing": [-9999]},
    },
    "key": "client",
}


def make(message: Message) -> bytes:
    chance, spoil = message.chance, message.spoil
    if spoil == "cut":
        message.unkeyed()
    at_ms = message.times(1)[0]
    moment = datetime.fromtimestamp(at_ms // 1000, UTC).isoformat()[:19]
    first: Any = at_ms if chance.random() < 0.7 else f"{moment}.{at_ms % 1000:03d}Z"
    values: list[Any] = [-9999 if chance.random() < 0.1 else message.value() for _ in range(chance.randint(1, 12))]
    if chance.random() < 0.05:
        values = []
    if spoil == "word":
        values.append("warm")
    elif spoil == "time":
        first = "soon"
    record: dict[str, Any] = {"id": message.id, "client": message.client, "sensor": chance.choice(SENSORS)}
    record |= {"ts": first, "values": 7 if spoil == "no array" else values}
    text = json.dumps(record, separators=(",", ":"))
    return (text[:-1] if spoil == "cut" else text).encode()


def read(record: Record) -> Read:
    try:
        parsed = parse(record.value)
    except Unreadable:
        return refused("decode")
    values, first = member(parsed, "values"), member(parsed, "ts")
    if not isinstance(values, list):
        return refused("schema")
    try:
        first_ms = _TIME.read(first)
    except Unfit:
        first_ms = None
    noted = {"a first time in a string"} if isinstance(first, str) and first_ms is not None else set[str]()
    raws = []
    for at, value in enumerate(values):
        shared = {name: member(parsed, name) for name in ("client", "id", "sensor")}
        time = Number(str(first_ms + at * _STEP_MS)) if first_ms is not None else first if at == 0 else None
        raws.append(shared | {"ts": time, "number": Number(str(at)), "value": value})
    rows = []
    for (at, row), raw in zip(rows_of(_FIELDS, raws), raws, strict=True):
        rows.append(Reading(at, "schema") if row is None else Reading(at, None, row))
        noted |= (
            {"a missing number"} if row is not None and row["value"] is None and raw["value"] is not None else set()
        )
    return Read(rows, frozenset(noted))


SAMPLES = Shape(
    "samples",
    "http",
    _DOCUMENT,
    _FIELDS,
    messages(make, "word", "time", "no array", "cut", "future"),
    read,
    notes=("a record without a row", "a first time in a string", "a missing number"),
    renumbered="number",
)
