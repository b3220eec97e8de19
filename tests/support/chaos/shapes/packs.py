"""Packs of SenML (RFC 8428), over TCP."""

from __future__ import annotations

import json
from typing import Any

from tests.support.chaos.dump import Record
from tests.support.chaos.shapes.shape import SENSORS, Message, Read, Reading, Shape, messages, refused
from tests.support.chaos.shapes.values import ABSENT, Field, Number, Unreadable, parse, rows_of

_FIELDS = (
    Field("sensor", "string"),
    Field("ts", "timestamp"),
    Field("unit", "string", required=False),
    Field("value", "double", required=False),
    Field("words", "string", required=False),
)
_DOCUMENT = {
    "format": "senml",
    "schema": {
        "sensor": {"type": "string", "from": "$.name"},
        "ts": {"type": "timestamp", "unit": "ms", "from": "$.time"},
        "unit": "string?",
        "value": "double?",
        "words": {"type": "string", "required": False, "from": "$.string"},
    },
}
_VALUES = ("v", "vs", "vb", "vd")
_ABSOLUTE_S = 2**28


def make(message: Message) -> bytes:
    chance, spoil = message.chance, message.spoil
    message.unkeyed()
    times = message.times(chance.randint(1, 4))
    base_s = (times[0] - 1_000) / 1000
    pack: list[dict[str, Any]] = []
    for at_ms in times:
        one: dict[str, Any] = {"n": chance.choice(SENSORS), "t": round(at_ms / 1000 - base_s, 3)}
        if chance.random() < 0.1:
            one["vs"] = "open"
        else:
            one["v"] = message.value()
        if chance.random() < 0.3:
            one["u"] = "%RH"
        pack.append(one)
    base: dict[str, Any] = {"id": message.id, "bn": "urn:dev:", "bt": base_s, "bu": "Cel"}
    if chance.random() < 0.2:
        base["bv"] = 100.5
    if chance.random() < 0.3:
        pack.insert(0, base)
    else:
        pack[0] = base | pack[0]
    last = pack[-1]
    if spoil == "two values":
        last |= {"v": 1, "vs": "one"}
    elif spoil == "must":
        last["spin_"] = 1
    elif spoil == "version":
        last["bver"] = 11
    elif spoil == "no time":
        for one in pack:
            one.pop("bt", None)
    elif spoil == "data" and "v" not in last:
        last["v"] = last.pop("vs", 1)
    text = json.dumps(pack, separators=(",", ":"))
    return (text[:-1] if spoil == "cut" else text).encode()


def read(record: Record) -> Read:
    try:
        parsed = parse(record.value)
    except Unreadable:
        return refused("decode")
    if isinstance(parsed, dict):
        parsed = [parsed]
    noted, raws = set(), []
    base: dict[str, Any] = {}
    for one in parsed:
        if any(name.endswith("_") for name in one) or _double(one.get("bver")) > 10:
            return refused("schema")
        base |= {name: value for name, value in one.items() if name in ("bn", "bt", "bu", "bv")}
        values = [name for name in _VALUES if name in one]
        if len(values) > 1:
            return refused("schema")
        if not values:
            noted.add("a record with only base values")
            continue
        raw = {"sensor": base.get("bn", "") + one.get("n", ""), "unit": one.get("u", base.get("bu", ABSENT))}
        at_s = _double(base.get("bt")) + _double(one.get("t"))
        if at_s >= _ABSOLUTE_S:
            raw["ts"] = Number(str(round(at_s * 1000)))
        if "v" in one:
            raw["value"] = Number(str(_double(one["v"]) + _double(base.get("bv"))))
            noted |= {"a base value"} if "bv" in base else set()
        elif "vs" in one:
            raw["words"] = one["vs"]
            noted.add("a string")
        raws.append(raw)
    rows = [
        Reading(at, "schema") if values is None else Reading(at, None, values) for at, values in rows_of(_FIELDS, raws)
    ]
    return Read(rows, frozenset(noted))


def _double(value: Number | None) -> float:
    return 0.0 if value is None else float(value.text)


PACKS = Shape(
    "packs",
    "tcp",
    _DOCUMENT,
    _FIELDS,
    messages(make, "two values", "must", "version", "no time", "cut", "future"),
    read,
    notes=("a record with only base values", "a base value", "a string"),
)
