"""Meters with a counter and a state, over HTTP. They are away, keep their readings, and send them later; loggers upload old ones.

Counters are reset. Integers are written with a fraction or in a string.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from tests.support.chaos.dump import Record
from tests.support.chaos.shapes.shape import FUTURE_MS, LATE, Read, Reading, Shape, refused
from tests.support.chaos.shapes.values import Field, Unreadable, member, parse, rows_of
from tests.support.faults.checker import UNKEYED
from tests.support.faults.load import Batch

KEPT, UPLOAD = "-kept", "-upload"
"""What the id of a record contains that was kept on its way, or is part of an upload."""
STEP_MS = 125
"""All times are multiples of it, so that sums of seconds are exact in any order."""
_PACE_MS = 4_000
"""Time between two readings of a meter that is away."""
_KEPT_MAX = 60
_AWAY_SHARE, _UPLOAD_SHARE, _SPOILT_SHARE, _TIE_SHARE, _RESET_SHARE = 0.06, 0.02, 0.06, 0.05, 0.12
_AWAY_MS = (20_000, 300_000)
_LATE_MS = 8_000
_SPOILERS = ("fraction", "word", "no meter", "cut", "future")
_FIELDS = (
    Field("id", "string"),
    Field("meter", "string"),
    Field("ts", "timestamp"),
    Field("wh", "long", required=False, text=True),
    Field("state", "string"),
)
_DOCUMENT = {
    "schema": {
        "id": "string",
        "meter": "string",
        "ts": {"type": "timestamp", "unit": "ms"},
        "wh": {"type": "long", "required": False, "text": True},
        "state": "string",
    },
    "key": "meter",
}


@dataclass
class _Meter:
    last_ms: int
    """Time of its last reading."""
    wh: int = 0
    state: str = "on"
    away_until_ms: int | None = None


class Meters:
    """The meters of some clients."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._meters: dict[str, _Meter] = {}

    def is_away(self, client: str, event_ms: int) -> bool:
        """Return True if the client sends nothing now."""
        meter = self._meters.get(client)
        return meter is not None and meter.away_until_ms is not None and event_ms < meter.away_until_ms

    def batch(self, client: str, number: int, event_ms: int, now_ms: int) -> Batch:
        """Return the next records of a client: those that it kept, an upload, and live ones, which it sends together."""
        chance, batch = self._chance, Batch()
        meter = self._meters.setdefault(client, _Meter(event_ms - _PACE_MS))
        if meter.away_until_ms is not None:
            times = list(range(meter.last_ms + _PACE_MS, event_ms - _PACE_MS, _PACE_MS))[-_KEPT_MAX:]
            kept = [
                self._record(meter, client, f"{number}-k{at}{KEPT}", at_ms, event_ms) for at, at_ms in enumerate(times)
            ]
            batch += kept if chance.random() < 0.5 else kept[::-1]
            meter.away_until_ms = None
        if chance.random() < _UPLOAD_SHARE:
            first_ms, logger = event_ms - chance.randint(1, 3) * 3_600_000, _Meter(0, chance.randint(0, 500))
            for at in range(20):
                name = f"{number}-u{at}{UPLOAD}"
                batch.append(self._record(logger, client, name, first_ms + at * 30_000, event_ms))
        for at in range(chance.randint(1, 2)):
            at_ms = max(meter.last_ms + STEP_MS, event_ms - chance.randint(0, 3_000))
            if chance.random() < _TIE_SHARE and at:
                at_ms = meter.last_ms
            batch.append(self._drawn(meter, client, f"{number}-{at}", at_ms, event_ms, now_ms))
        if chance.random() < _AWAY_SHARE:
            meter.away_until_ms = event_ms + chance.randint(*_AWAY_MS)
        return batch

    def _drawn(
        self, meter: _Meter, client: str, name: str, at_ms: int, event_ms: int, now_ms: int
    ) -> tuple[str, bytes]:
        record_id, value = self._record(meter, client, name, at_ms, event_ms)
        if self._chance.random() >= _SPOILT_SHARE:
            return record_id, value
        spoil = self._chance.choice(_SPOILERS)
        if spoil in ("no meter", "cut"):
            record_id += UNKEYED
        changes = {"fraction": {"wh": 2.5}, "word": {"wh": "many"}, "future": {"ts": now_ms + FUTURE_MS}}.get(spoil, {})
        values = json.loads(value) | changes | {"id": record_id}
        if spoil == "no meter":
            del values["meter"]
        text = json.dumps(values, separators=(",", ":"))
        return record_id, (text[:-1] if spoil == "cut" else text).encode()

    def _record(self, meter: _Meter, client: str, name: str, at_ms: int, event_ms: int) -> tuple[str, bytes]:
        chance = self._chance
        meter.last_ms = at_ms // STEP_MS * STEP_MS
        meter.wh += chance.randint(0, 50)
        if chance.random() < _RESET_SHARE:
            meter.wh = chance.choice((0, chance.randint(0, 20)))
        if chance.random() < 0.2:
            meter.state = chance.choice(("on", "off"))
        record_id = f"{client}-{name}{LATE if event_ms - meter.last_ms > _LATE_MS else ''}"
        wh: Any = chance.choice((meter.wh, float(meter.wh), str(meter.wh)))
        if chance.random() < 0.04:
            wh = None
        values = {"id": record_id, "meter": client, "ts": meter.last_ms, "wh": wh, "state": meter.state}
        return record_id, json.dumps(values, separators=(",", ":")).encode()


def read(record: Record) -> Read:
    try:
        parsed = parse(record.value)
    except Unreadable:
        return refused("decode")
    ((_, values),) = rows_of(_FIELDS, [{field.name: member(parsed, field.name) for field in _FIELDS}])
    if values is None:
        return refused("schema")
    noted = {
        name
        for mark, name in ((KEPT, "a record that was kept"), (UPLOAD, "a record of an upload"))
        if mark in values["id"]
    }
    return Read([Reading(None, None, values)], frozenset(noted))


METERS = Shape(
    "meters",
    "http",
    _DOCUMENT,
    _FIELDS,
    Meters,
    read,
    notes=("a record that was kept", "a record of an upload"),
)
