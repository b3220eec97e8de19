"""Names in one array and rows in another, over HTTP. A field of any type is cast later."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from tests.support.chaos.dump import Record
from tests.support.chaos.shapes.shape import SENSORS, Message, Read, Reading, Shape, messages, refused
from tests.support.chaos.shapes.values import ABSENT, Field, Unreadable, first_of, member, parse, rows_of, try_double

_COLUMNS = {"sensor": "sensor name", "ts": "time", "raw": "v"}
_FIELDS = (
    Field("client", "string", required=False),
    Field("id", "string"),
    Field("sensor", "string"),
    Field("ts", "timestamp", tz="America/New_York"),
    Field("raw", "any", required=False),
)
_DOCUMENT = {
    "explode": {"columns": "$.columns", "rows": "$.values"},
    "schema": {
        "client": "string?",
        "id": "string",
        "sensor": {"type": "string", "from": '$["sensor name"]'},
        "ts": {"type": "timestamp", "tz": "America/New_York", "from": "$.time"},
        "raw": {"type": "any", "required": False, "from": "$.v"},
    },
    "key": "client",
}
_OTHERS: tuple[Any, ...] = (True, "closed", None, {"x": 1}, [1, 2.5], "")
_ZONE = timezone(timedelta(hours=5, minutes=30))


def make(message: Message) -> bytes:
    chance, spoil = message.chance, message.spoil
    if spoil == "cut":
        message.unkeyed()
    columns = ["sensor name", "time", "v", "unused"]
    chance.shuffle(columns)
    rows: list[list[Any]] = []
    for at_ms in message.times(chance.randint(1, 5)):
        value: Any = message.value()
        value = chance.choice((value, str(value), chance.choice(_OTHERS)))
        row = {
            "sensor name": chance.choice(SENSORS),
            "time": _time(chance.randrange(3), at_ms),
            "v": value,
            "unused": 0,
        }
        rows.append([row[name] for name in columns])
    if spoil == "longer":
        rows[-1].append(1)
    elif spoil == "time":
        rows[-1][columns.index("time")] = "yesterday"
    elif spoil == "no rows":
        rows = "none"  # type: ignore[assignment]
    record = {"id": message.id, "client": message.client, "columns": columns, "values": rows}
    text = json.dumps(record, separators=(",", ":"))
    return (text[:-1] if spoil == "cut" else text).encode()


def _time(form: int, at_ms: int) -> Any:
    """Return a time with a zone, in another zone, or as a number."""
    moment = datetime.fromtimestamp(at_ms // 1000, UTC) + timedelta(milliseconds=at_ms % 1000)
    if form == 0:
        return at_ms
    return moment.astimezone(_ZONE).isoformat(timespec="milliseconds") if form == 1 else moment.isoformat()[:19] + "Z"


def read(record: Record) -> Read:
    try:
        parsed = parse(record.value)
    except Unreadable:
        return refused("decode")
    columns, lists = member(parsed, "columns"), member(parsed, "values")
    if not isinstance(columns, list) or not isinstance(lists, list):
        return refused("schema")
    if not all(isinstance(one, list) and len(one) == len(columns) for one in lists):
        return refused("schema")
    raws = []
    for one in lists:
        row = dict(zip(columns, one, strict=True))
        raw = {name: first_of(row.get(of, ABSENT), member(parsed, of)) for name, of in _COLUMNS.items()}
        raws.append(raw | {name: first_of(row.get(name, ABSENT), member(parsed, name)) for name in ("client", "id")})
    noted = set()
    rows = []
    for (at, values), raw in zip(rows_of(_FIELDS, raws), raws, strict=True):
        rows.append(Reading(at, "schema") if values is None else Reading(at, None, values))
        if values is not None and raw["raw"] is not None:
            is_number = try_double(values["raw"]) is not None
            noted.add("a number of a field of any type" if is_number else "another value of a field of any type")
        if isinstance(raw["ts"], str) and raw["ts"].endswith("+05:30"):
            noted.add("a time in another zone")
    return Read(rows, frozenset(noted))


TABLE = Shape(
    "table",
    "http",
    _DOCUMENT,
    _FIELDS,
    messages(make, "longer", "time", "no rows", "cut", "future"),
    read,
    notes=(
        "a number of a field of any type",
        "another value of a field of any type",
        "a time in another zone",
    ),
    derive="  - derive: {value: try_cast(raw as double)}\n",
    derived=lambda values: {"value": try_double(values["raw"])},
)
