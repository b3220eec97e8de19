"""The job that is put through it, and its senders."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import time
from collections.abc import Callable

from strandline.core.settings import Settings
from tests.support.chaos.checking.pace import DELAY_MS, IDLE_MS, LONG, MAX_AHEAD_MS, PACES, SHORT, Pace
from tests.support.chaos.checking.versions import Version
from tests.support.faults.checker import UNKEYED
from tests.support.faults.history import History
from tests.support.faults.http_load import HttpLoad
from tests.support.faults.load import Batch, Load

Reading = dict[str, object]
Spoiler = Callable[[str, Reading, int], tuple[str, bytes]]
"""From a record's id, its reading and the time now (ms) to an id and bytes that can't be used."""

LATE_SHARE = 0.05
LATE = "-late"
"""What the id of a record ends with that is late on purpose; UNKEYED may follow."""
SPOILT_SHARE = 0.04
NULL_SHARE = 0.06
"""Share of the records without a key."""
TIE_SHARE = 0.1
"""Share of the records with a load in eighths: a mean of such loads may be exactly between two hundredths."""
LARGE_SHARE = 1 / 2_000
"""Share of the records with the maximum size of gateways: few, so that the log of a long run stays small."""
SITES, CLIENTS = 3, 8
RATE, PAUSE_S = 65, 0.8
"""Records/s of all clients, unless more are asked for, and each client's pause behind an answer."""
BEGIN_BEFORE_S = 3 * 86_400
"""Event time begins so long before now, that it stays behind the clock for hours."""

_STREAM = """\
stream: {stream}
partitions: 4
schema:
  id: string
  client: string?
  site: string?
  ts: {{type: timestamp, unit: ms}}
  power: {{type: double, min: 0}}
  rated: double
  count: long
  busy: integer
  cost: decimal(10,2)
  note: string?
key: client
retention: 7d
"""
_JOB = """\
pipeline: {job}
input: {{stream: {stream}}}
event_time: {{field: ts, delay: {delay}, idle_timeout: {idle}, max_ahead: {ahead}}}
steps:
  - derive: {{load: power / rated}}
  - where: load < {load_below}
  - window:
      name: {short}
      tumbling: {short_size}
      by: [site, client]
      aggregate:
        n: count(*)
        load: avg(load)
        mean: "round(avg(load), 2)"
        peak: max(power)
        low: min(power)
        total: sum(count * {times})
        busy: sum(busy)
        cost: sum(cost)
    emit: [{{elasticsearch: {job}-{short}}}, {{stream: {job}-{short}}}]
  - derive: {{crowd: n / busy}}
  - where: peak / low < 40
  - window:
      name: {long}
      tumbling: {long_size}
      by: [site]
      aggregate:
        n: sum(n)
        clients: count(*)
        load: avg(load)
        mean: "round(avg(load), 2)"
        peak: max(peak)
        crowd: max(crowd)
        total: sum(total)
        cost: sum(cost)
    emit: [{{elasticsearch: {job}-{long}}}]
"""


def documents(stream: str, job: str, pace: Pace, version: int = 1) -> str:
    """The stream and a version of the job, as YAML. More fields of the job may follow."""
    this = Version(version)
    pipeline = _JOB.format(
        stream=stream,
        job=job,
        short=SHORT,
        long=LONG,
        short_size=f"{pace.short_ms}ms",
        long_size=f"{pace.long_ms}ms",
        delay=f"{DELAY_MS}ms",
        idle=f"{IDLE_MS}ms",
        ahead=f"{MAX_AHEAD_MS}ms",
        load_below=this.load_below,
        times=this.times,
    )
    return f"{stream_document(stream)}---\n{pipeline}"


def stream_document(stream: str) -> str:
    """The stream, as YAML."""
    return _STREAM.format(stream=stream)


def draw_speed(seed: int) -> int:
    """Draw the speed of event time for a run with this seed, if it isn't set."""
    return random.Random(seed).choice(sorted(PACES))


class RestingLoad(Load):
    """Senders that can rest."""

    _is_resting = False
    _awake: int | None = None
    """The client that does not rest."""

    def begin_rest(self, awake: int | None) -> None:
        """Have all clients send nothing, but the one of this number. What that one sends has a key, so that nothing comes to
        other partitions."""
        self._awake, self._is_resting = awake, True

    def end_rest(self) -> None:
        self._is_resting = False

    async def pause(self, client: str) -> None:
        await super().pause(client)
        # Another thread sets it, so an asyncio.Event is no choice.
        while self._is_resting and not self.is_stopping and not client.endswith(f"-{self._awake}"):  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # sleeps: another thread ends the rest


class JobLoad(RestingLoad, HttpLoad):
    """Readings of as many devices as there are clients.

    Most are good. Some are late, duplicates, too far ahead, or broken; some have no key; a few have the maximum size.
    """

    def __init__(
        self,
        history: History,
        port: Callable[[], int],
        stream: str,
        *,
        seed: int,
        speed: int,
        rate: int = RATE,
        clients: int = CLIENTS,
    ) -> None:
        """`speed`: seconds of event time in a second. `rate`: records/s of all clients together, where each answer comes at
        once."""
        batch_records_max = max(1, round(2 * rate * PAUSE_S / clients) - 1)
        how = {"batch_records_max": batch_records_max, "pause_s": PAUSE_S, "resends": True, "answer_timeout_s": 20.0}
        super().__init__(history, port, stream, clients=clients, seed=seed, **how)  # type: ignore[arg-type]
        self._large_share = LARGE_SHARE * min(1.0, RATE / rate)
        self._speed = speed
        self._began_s = time.monotonic()
        self._began_ms = int((time.time() - BEGIN_BEFORE_S) * 1000)
        self._large_bytes = Settings().record_bytes_max
        self._sent: dict[str, tuple[str, bytes]] = {}
        """For each client, a record that it sent before."""

    def event_now_ms(self) -> int:
        return self._began_ms + int((time.monotonic() - self._began_s) * self._speed * 1000)

    def next_batch(self, client: str, number: int) -> Batch:
        chance = self._random
        batch: Batch = []
        for n in range(chance.randint(1, self._batch_records_max)):
            if chance.random() < 0.02 and client in self._sent and not batch:
                batch.append(self._sent[client])  # a sender that forgot that it sent this one
                continue
            sender = None if chance.random() < NULL_SHARE and not self._is_resting else client
            now_ms, large_bytes = int(time.time() * 1000), draw_size(chance, self._large_bytes, self._large_share)
            reading = make_reading(chance, f"{client}-{number}-{n}", sender, self.event_now_ms(), now_ms, large_bytes)
            batch.append(reading[:2])
            if chance.random() < 0.1:
                self._sent[client] = batch[-1]
        return batch


def draw_awake(chance: random.Random, clients: int = CLIENTS) -> int | None:
    """Draw the client that continues while the others rest, or None."""
    return None if chance.random() < 1 / 3 else chance.randrange(clients)


def draw_size(chance: random.Random, bytes_max: int, share: float = LARGE_SHARE) -> int | None:
    """Draw the size in bytes of a large record. None for a usual record."""
    return bytes_max if chance.random() < share else None


def make_reading(
    chance: random.Random,
    record_id: str,
    client: str | None,
    event_now_ms: int,
    now_ms: int,
    large_bytes: int | None = None,
) -> tuple[str, bytes, str | None]:
    """Return a reading at about `event_now_ms`: its id (which may be changed), its bytes, and the reason why it can't
    be used, if there is another reason than lateness.

    `large_bytes`: size of a large reading.
    """
    is_late, is_spoilt = chance.random() < LATE_SHARE, chance.random() < SPOILT_SHARE
    if large_bytes is not None:  # there are few: each kind as often as the others
        is_late, is_spoilt = chance.choice(((False, False), (True, False), (False, True)))
    back_ms = chance.uniform(0, 5_000)
    if is_late:
        back_ms, record_id = chance.uniform(30_000, 150_000), record_id + LATE
    if client is None:
        record_id += UNKEYED
    site = chance.randrange(SITES) if client is None else int(client.rsplit("-", 1)[1]) % SITES
    reading: Reading = {
        "id": record_id,
        "client": client,
        "site": None if chance.random() < NULL_SHARE else f"site-{site}",
        "ts": event_now_ms - int(back_ms),
        **_power(chance),
        "count": chance.randint(-5, 1_000_000),
        "busy": chance.choice((0, 0, 0, 1, 2, 3)),
        "cost": f"{chance.randint(0, 99_999)}.{chance.randint(0, 99):02d}",
    }
    reading = {
        name: value for name, value in reading.items() if value is not None or chance.random() < 0.5
    }  # a key that is null may be missing as well
    reason, spoil = chance.choice(SPOILERS) if is_spoilt else (None, _with())
    if large_bytes is not None:
        reading |= _filling(chance, len(spoil(record_id, reading, now_ms)[1]), large_bytes)
    return *spoil(record_id, reading, now_ms), reason


def _power(chance: random.Random) -> Reading:
    if chance.random() < TIE_SHARE:
        return {"power": 2.5 * chance.randint(0, 40), "rated": 20}
    power = 0.0 if chance.random() < 0.02 else round(chance.uniform(0, 100), 3)
    return {"power": power, "rated": chance.choice((2.5, 20, 33.3, 50))}


def _filling(chance: random.Random, bytes_now: int, bytes_wanted: int) -> Reading:
    """A field that makes the record so large: one that the job doesn't use, or one that the schema doesn't know. Nothing of it
    can be compressed away."""
    name = chance.choice(("note", "remark"))
    bytes_missing = bytes_wanted - bytes_now - len(f',"{name}":""')
    return {name: base64.b64encode(chance.randbytes(bytes_missing)).decode()[:bytes_missing]}


def _json(reading: Reading) -> bytes:
    return json.dumps(reading, separators=(",", ":")).encode()


def _with(**changes: object) -> Spoiler:
    return lambda record_id, reading, _: (record_id, _json(reading | changes))


def _without(name: str) -> Spoiler:
    return lambda record_id, reading, _: (record_id, _json({key: reading[key] for key in reading if key != name}))


def _ahead(ahead_ms: int) -> Spoiler:
    return lambda record_id, reading, now_ms: (record_id, _json(reading | {"ts": now_ms + ahead_ms}))


def _raw(change: Callable[[bytes], bytes]) -> Spoiler:
    """Return a spoiler that breaks the JSON itself; the id is still in the bytes."""

    def spoil(record_id: str, reading: Reading, _: int) -> tuple[str, bytes]:
        return record_id + UNKEYED, change(_json(reading | {"id": record_id + UNKEYED}))

    return spoil


SPOILERS: tuple[tuple[str, Spoiler], ...] = (
    ("future_event", _ahead(28_800_000)),
    ("future_event", _ahead(86_400_000)),
    ("expression", _with(rated=0)),
    ("expression", _with(rated=0.0)),
    ("schema", _with(power=-1.5)),
    ("schema", _with(power="much")),
    ("schema", _with(count=1.5)),
    ("schema", _with(ts=None)),
    ("schema", _with(site=7)),
    ("schema", _without("rated")),
    ("schema", _without("power")),
    ("schema", _raw(lambda value: b"[" + value + b"]")),
    ("decode", _raw(lambda value: value[:-1])),
    ("decode", _raw(lambda value: b"not json " + value)),
    ("decode", _raw(lambda value: value.replace(b'"power":', b'"power":NaN,"was":'))),
)
"""Each makes one kind of record that can't be used, with its reason. A record of the future is one even by a clock of
Kafka that a fault has set ahead."""
