"""The job that is put through it, and its senders. Event time runs faster than the clock, so that windows close often."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable

from tests.support.faults.checker import UNKEYED
from tests.support.faults.history import History
from tests.support.faults.http_load import HttpLoad
from tests.support.faults.load import Batch

Reading = dict[str, object]
Spoiler = Callable[[str, Reading, int], tuple[str, bytes]]
"""From a record's id, its reading and the time now (ms) to an id and bytes that can't be used."""

LATE_SHARE = 0.05
SPOILT_SHARE = 0.04
SPEED = 20.0
"""Seconds of event time in a second."""
BEGIN_BEFORE_S = 3 * 86_400
"""Event time begins so long before now, that it stays behind the clock for hours."""

DOCUMENTS = """\
stream: {stream}
partitions: 4
schema:
  id: string
  client: string
  site: string
  ts: {{type: timestamp, unit: ms}}
  power: {{type: double, min: 0}}
  rated: double
  count: long
  cost: decimal(10,2)
key: client
retention: 7d
---
pipeline: {job}
input: {{stream: {stream}}}
event_time: {{field: ts, delay: 10s, idle_timeout: 10s, max_ahead: 5m}}
steps:
  - derive: {{load: power / rated}}
  - where: load < 10
  - window:
      name: ten_seconds
      tumbling: 10s
      by: [site, client]
      aggregate:
        n: count(*)
        load: avg(load)
        peak: max(power)
        low: min(power)
        total: sum(count)
        cost: sum(cost)
    emit: [{{elasticsearch: {job}-ten}}, {{stream: {job}-ten}}]
  - window:
      name: per_minute
      tumbling: 1m
      by: [site]
      aggregate:
        n: sum(n)
        clients: count(*)
        load: avg(load)
        peak: max(peak)
        total: sum(total)
        cost: sum(cost)
    emit: [{{elasticsearch: {job}-minute}}]
"""


class JobLoad(HttpLoad):
    """Readings of as many devices as there are clients: most of them good; some late, twice, too far ahead or broken."""

    def __init__(self, history: History, port: Callable[[], int], stream: str, *, seed: int, clients: int = 8) -> None:
        how = {"batch_records_max": 12, "pause_s": 0.8, "resends": True, "answer_timeout_s": 20.0}
        super().__init__(history, port, stream, clients=clients, seed=seed, **how)  # type: ignore[arg-type]
        self._began_s = time.monotonic()
        self._began_ms = int((time.time() - BEGIN_BEFORE_S) * 1000)
        self._sent: dict[str, tuple[str, bytes]] = {}
        """Of each client, a record that it sent before."""

    def event_now_ms(self) -> int:
        return self._began_ms + int((time.monotonic() - self._began_s) * SPEED * 1000)

    def next_batch(self, client: str, number: int) -> Batch:
        chance = self._random
        batch: Batch = []
        for n in range(chance.randint(1, self._batch_records_max)):
            if chance.random() < 0.02 and client in self._sent and not batch:
                batch.append(self._sent[client])  # a sender that forgot that it sent this one
                continue
            record_id = f"{client}-{number}-{n}"
            batch.append(make_reading(chance, record_id, client, self.event_now_ms(), int(time.time() * 1000))[:2])
            if chance.random() < 0.1:
                self._sent[client] = batch[-1]
        return batch


def make_reading(
    chance: random.Random, record_id: str, client: str, event_now_ms: int, now_ms: int
) -> tuple[str, bytes, str | None]:
    """A reading at about `event_now_ms`: its id (which may be changed), its bytes, and the reason why nobody can use it,
    where there is one beside being late."""
    back_ms = chance.uniform(30_000, 150_000) if chance.random() < LATE_SHARE else chance.uniform(0, 5_000)
    reading: Reading = {
        "id": record_id,
        "client": client,
        "site": f"site-{int(client.rsplit('-', 1)[1]) % 3}",
        "ts": event_now_ms - int(back_ms),
        "power": round(chance.uniform(0, 100), 3),
        "rated": chance.choice((2.5, 20, 33.3, 50)),
        "count": chance.randint(-5, 1_000_000),
        "cost": f"{chance.randint(0, 99_999)}.{chance.randint(0, 99):02d}",
    }
    if chance.random() >= SPOILT_SHARE:
        return record_id, _json(reading), None
    reason, spoil = chance.choice(SPOILERS)
    return *spoil(record_id, reading, now_ms), reason


def _json(reading: Reading) -> bytes:
    return json.dumps(reading, separators=(",", ":")).encode()


def _with(**changes: object) -> Spoiler:
    return lambda record_id, reading, _: (record_id, _json(reading | changes))


def _without(name: str) -> Spoiler:
    return lambda record_id, reading, _: (record_id, _json({key: reading[key] for key in reading if key != name}))


def _ahead(ahead_ms: int) -> Spoiler:
    return lambda record_id, reading, now_ms: (record_id, _json(reading | {"ts": now_ms + ahead_ms}))


def _raw(change: Callable[[bytes], bytes]) -> Spoiler:
    """Breaks the JSON itself; the id still stands in the bytes."""

    def spoil(record_id: str, reading: Reading, _: int) -> tuple[str, bytes]:
        return record_id + UNKEYED, change(_json(reading | {"id": record_id + UNKEYED}))

    return spoil


SPOILERS: tuple[tuple[str, Spoiler], ...] = (
    ("future_event", _ahead(3_600_000)),
    ("future_event", _ahead(86_400_000)),
    ("expression", _with(rated=0)),
    ("expression", _with(rated=0.0)),
    ("schema", _with(power=-1.5)),
    ("schema", _with(power="much")),
    ("schema", _with(count=1.5)),
    ("schema", _with(ts=None)),
    ("schema", _without("site")),
    ("schema", _without("power")),
    ("schema", _raw(lambda value: b"[" + value + b"]")),
    ("decode", _raw(lambda value: value[:-1])),
    ("decode", _raw(lambda value: b"not json " + value)),
    ("decode", _raw(lambda value: value.replace(b'"power":', b'"power":NaN,"was":'))),
)
"""Each makes one kind of record that can't be used, for the reason beside it."""
