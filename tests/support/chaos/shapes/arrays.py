"""Messages that are arrays, over MQTT: `explode: $`. Some begin with a byte order mark, some integers have a fraction."""

from __future__ import annotations

import json
from typing import Any

from tests.support.chaos.dump import Record
from tests.support.chaos.shapes.shape import SENSORS, Message, Read, Reading, Shape, messages, refused
from tests.support.chaos.shapes.values import ABSENT, BOM, Field, Number, Unreadable, first_of, member, parse, rows_of

_FIELDS = (
    Field("client", "string"),
    Field("id", "string", required=False),
    Field("sensor", "string"),
    Field("ts", "timestamp"),
    Field("value", "double", required=False, missing=("n/a",)),
    Field("count", "long"),
)
_DOCUMENT = {
    "explode": "$",
    "missing": ["n/a"],
    "schema": {
        "client": "string",
        "id": "string?",
        "sensor": "string",
        "ts": {"type": "timestamp", "unit": "ms"},
        "value": "double?",
        "count": "long",
    },
    "key": "client",
}


def make(message: Message) -> bytes:
    chance, spoil = message.chance, message.spoil
    elements: list[Any] = []
    for at_ms in message.times(chance.choice((1, 2, 3, 5))):
        count = chance.randint(-5, 90)
        value = "n/a" if chance.random() < 0.1 else message.value()
        one: dict[str, Any] = {"id": message.id, "sensor": chance.choice(SENSORS), "ts": at_ms, "value": value}
        one["count"] = chance.choice((count, float(count), count * 10))
        elements.append(one)
    first = elements[0]
    if spoil == "seconds":
        first["ts"] //= 1000
    elif spoil == "fraction":
        first["count"] = 26.5
    elif spoil == "no sensor":
        del first["sensor"]
    elif spoil == "no object":
        elements.append(7)
    text = json.dumps(elements, separators=(",", ":"))
    if chance.random() < 0.3:  # 2.7e1 is an integer
        text = text.replace(".0}", "0e-1}")
    if spoil == "cut":
        text = text[:-1]
    mark = BOM if chance.random() < 0.1 else b""
    return mark + text.encode()


def read(record: Record) -> Read:
    noted = {"a byte order mark"} if record.value.startswith(BOM) else set()
    try:
        parsed = parse(record.value)
    except Unreadable:
        return refused("decode")
    if not isinstance(parsed, list):
        return refused("schema")
    topic = record.headers["strandline-source"].removeprefix("mqtt:")
    raws = [
        {name: _of(element, name, topic) for name in ("client", "id", "sensor", "ts", "value", "count")}
        for element in parsed
    ]
    rows = []
    for (at, values), raw in zip(rows_of(_FIELDS, raws), raws, strict=True):
        count = raw["count"]
        if isinstance(count, Number) and values is not None:
            noted |= {"an integer with a fraction"} if "." in count.text else set()
            noted |= {"an integer with an exponent"} if "e" in count.text else set()
        noted |= {"a missing value"} if raw["value"] == "n/a" else set()
        if values is not None and abs(values["ts"] * 1000 - record.log_time_ms) < 365 * 86_400_000:
            rows.append(Reading(at, "time_unit"))
        else:
            rows.append(Reading(at, "schema") if values is None else Reading(at, None, values))
    return Read(rows, frozenset(noted))


def _of(element: Any, name: str, topic: str) -> Any:
    """Return a field of an element. The client is a level of the topic if the element lacks it."""
    own = member(element, name)
    return (
        first_of(own, topic.split("/")[2])
        if name == "client" and isinstance(element, dict)
        else own
        if own is not ABSENT
        else ABSENT
    )


ARRAYS = Shape(
    "arrays",
    "mqtt-listener",
    _DOCUMENT,
    _FIELDS,
    messages(make, "cut", "seconds", "fraction", "no sensor", "no object", "future"),
    read,
    notes=("a byte order mark", "an integer with a fraction", "an integer with an exponent", "a missing value"),
    reasons=("decode", "schema", "future_event", "late", "time_unit"),
)
