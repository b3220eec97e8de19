"""JSON as base64 within a string, over MQTT. Its elements contain arrays, each element of which is a row."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from tests.support.chaos.dump import Record
from tests.support.chaos.shapes.shape import SENSORS, Message, Read, Reading, Shape, messages, refused
from tests.support.chaos.shapes.values import Field, Unreadable, first_of, member, parse, rows_of

_FIELDS = (
    Field("client", "string"),
    Field("id", "string"),
    Field("sensor", "string"),
    Field("ts", "timestamp"),
    Field("value", "double", required=False),
)
_DOCUMENT = {
    "embedded": [{"at": "$.payload", "encoding": "base64"}],
    "explode": {"elements": "$.payload.items", "inner": "$.payload.items.samples"},
    "schema": {
        "client": "string",
        "id": "string",
        "sensor": {"type": "string", "from": "$.payload.items.tag"},
        "ts": {"type": "timestamp", "unit": "ms", "from": "$.payload.items.samples.t"},
        "value": {"type": "double", "required": False, "from": "$.payload.items.samples.v"},
    },
    "key": "client",
}


def make(message: Message) -> bytes:
    chance, spoil = message.chance, message.spoil
    if spoil == "cut":
        message.unkeyed()
    items: list[dict[str, Any]] = []
    for sensor in chance.sample(SENSORS, chance.randint(1, 3)):
        samples = [{"t": at_ms, "v": message.value()} for at_ms in message.times(chance.randint(1, 3))]
        items.append({"tag": sensor, "samples": samples})
    if spoil == "no inner":
        del items[-1]["samples"]
    elif spoil == "word":
        items[-1]["samples"][0]["v"] = "warm"
    if chance.random() < 0.1:
        items.append({"tag": "empty", "samples": []})
    text = json.dumps({"items": items}, separators=(",", ":"))
    if spoil == "payload":
        text = text[:-1]
    payload = base64.b64encode(text.encode()).decode()
    record = {"id": message.id, "payload": "?" if spoil == "base64" else payload}
    whole = json.dumps(record, separators=(",", ":"))
    return (whole[:-1] if spoil == "cut" else whole).encode()


def read(record: Record) -> Read:
    try:
        parsed = parse(record.value)
    except Unreadable:
        return refused("decode")
    payload = member(parsed, "payload")
    if isinstance(payload, str):
        try:
            payload = parse(base64.b64decode(payload, validate=True))
        except (binascii.Error, Unreadable):
            return refused("schema")
    items = member(payload, "items")
    if not isinstance(items, list):
        return refused("schema")
    noted = set()
    raws = []
    topic = record.headers["strandline-source"].removeprefix("mqtt:")
    for item in items:
        shared = {"client": first_of(member(parsed, "client"), topic.split("/")[2]), "id": member(parsed, "id")}
        shared |= {"sensor": member(item, "tag")}
        samples = member(item, "samples")
        if not isinstance(samples, list):
            raws.append(shared)
            noted.add("an element without its array")
            continue
        noted |= set() if samples else {"an empty array"}
        raws += [shared | {"ts": member(one, "t"), "value": member(one, "v")} for one in samples]
    rows = [
        Reading(at, "schema") if values is None else Reading(at, None, values) for at, values in rows_of(_FIELDS, raws)
    ]
    return Read(rows, frozenset(noted))


BRIDGED = Shape(
    "bridged",
    "mqtt-listener",
    _DOCUMENT,
    _FIELDS,
    messages(make, "cut", "no inner", "word", "payload", "base64", "future"),
    read,
    notes=("an element without its array", "an empty array"),
)
