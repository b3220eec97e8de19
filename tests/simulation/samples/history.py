"""The records of meters in one history, as Kafka holds them at the end.

Each meter has a counter that is reset. Meters and gateways have outages, keep their records, and send them later. Loggers upload
old days. Senders repeat records, clocks are a bit wrong, and some records can't be used.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from strandline.log.range_reader import FetchedRecords
from strandline.log.reader import OffsetRange
from tests.simulation.chance import Chance
from tests.support.one_by_one import OneByOne

STREAM = "meters"
MINUTE_MS = 60_000
HOUR_MS, DAY_MS = 60 * MINUTE_MS, 24 * 60 * MINUTE_MS
START_MS = 1_700_006_400_000
"""A midnight in UTC."""
SENDING_MS = 2 * HOUR_MS
MAX_AHEAD_MS = 5 * MINUTE_MS
LEVELS = (0.1, 0.2, 0.7, 3.5, 1e16, -1e16)
"""Some of them give another sum in another order."""
PARTS = (0.1, 0.3, 1.0, 2.5)
"""By how much a counter rises at once."""

FAULTS = (
    "a counter is reset to 0",
    "a counter is reset to another value",
    "a meter is switched on in the middle",
    "a value is missing",
    "a meter is away",
    "a gateway is away",
    "Kafka is away",
    "records are kept and sent in order",
    "records are kept and sent newest first",
    "a bulk upload of an old day",
    "a record is sent twice",
    "a clock is ahead",
    "a clock is behind",
    "a clock jumps",
    "a record is unreadable",
    "a record is far ahead of its time",
)


class Span(NamedTuple):
    begin_ms: int
    end_ms: int

    def holds(self, at_ms: int) -> bool:
        return self.begin_ms <= at_ms < self.end_ms


class Reading(NamedTuple):
    """A reading on its way."""

    came_ms: int
    """When Kafka takes it."""
    order: int
    """Index among the readings that arrive in the same millisecond."""
    event_ms: int
    meter: str
    wh: float | None
    level: float
    way: str
    """`live`, `kept` if it was stored on its way, or `upload`."""
    is_readable: bool = True


class Record(NamedTuple):
    """A reading in the log. Its log time is the time at which Kafka took it."""

    partition: int
    offset: int
    reading: Reading
    line: bytes


@dataclass
class Log(OneByOne):
    """The partitions of the stream. Answers as `LogIndex` does, as of `now_ms`, and reads as `RangeReader` does."""

    partitions_: Sequence[Sequence[Record]]
    now_ms: int = START_MS
    chunk_records: int | None = None
    """Maximum number of records that are fetched together. None for all of a range."""
    came_ms: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.came_ms = [[one.reading.came_ms for one in records] for records in self.partitions_]

    @property
    def records(self) -> Iterator[Record]:
        return (record for records in self.partitions_ for record in records)

    def starts(self, stream: str) -> dict[int, int]:
        return dict.fromkeys(range(len(self.came_ms)), 0)

    def ends(self, stream: str) -> dict[int, int]:
        return {at: bisect_right(came_ms, self.now_ms) for at, came_ms in enumerate(self.came_ms)}

    ends_with_open = ends

    def partitions(self, stream: str) -> list[int]:
        return list(range(len(self.came_ms)))

    def not_writable(self, stream: str) -> set[int]:
        return set()

    def newest_log_time(self, stream: str) -> int:
        return max((self.came_ms[at][end - 1] for at, end in self.ends(stream).items() if end), default=0)

    def offsets_at(self, stream: str, log_time_ms: int, ends: Mapping[int, int]) -> dict[int, int]:
        return {at: min(bisect_left(self.came_ms[at], log_time_ms), end) for at, end in ends.items()}

    def topic_id(self, stream: str) -> str:
        return stream

    def checksums(self, stream: str, offsets: Mapping[int, int]) -> dict[int, int]:
        return dict.fromkeys(offsets, 0)

    def read(
        self, ranges: Sequence[OffsetRange], headers: Sequence[str] = (), headers_beside: Sequence[str] = ()
    ) -> Iterator[FetchedRecords]:
        for one in ranges:
            step = self.chunk_records or one.offset_count
            for first in range(one.offset_first, one.offset_next, step):
                found = self.partitions_[one.partition][first : min(first + step, one.offset_next)]
                yield FetchedRecords(
                    one,
                    [record.offset for record in found],
                    [record.reading.came_ms for record in found],
                    [record.line for record in found],
                    [],
                )


@dataclass(frozen=True)
class History:
    """All that senders did, and what Kafka stored of it."""

    seed: int
    log: Log
    faults: Counter[str]
    kafka_away: Span | None


def draw_history(seed: int) -> History:
    chance = Chance(seed)
    faults: Counter[str] = Counter()
    kafka_away = _some_span(chance, faults, "Kafka is away", 0.15)
    readings: list[Reading] = []
    count = chance.choice([1, 1, 1, 2, 3])
    partition_of: dict[str, int] = {}
    for gateway in range(chance.choice([1, 2])):
        away = _some_span(chance, faults, "a gateway is away", 0.5)
        for number in range(chance.choice([1, 2, 2])):
            meter = f"g{gateway}m{number}"
            partition_of[meter] = chance.randrange(count)
            sent = _of_meter(chance, faults, meter)
            readings += _kept(sent, away, 10) if away else sent
    if kafka_away:
        readings = _kept(sorted(readings), kafka_away, 1)
    if faults["a gateway is away"] or kafka_away:
        faults["records are kept and sent in order"] += 1
    readings += [
        one._replace(came_ms=one.came_ms + chance.choice([50, 40_000, 30 * MINUTE_MS]))
        for one in readings
        if chance.random() < 0.04
    ]
    faults["a record is sent twice"] += len(readings) > len(set(one[2:] for one in readings))
    partitions: list[list[Record]] = [[] for _ in range(count)]
    for one in sorted(readings):
        records = partitions[partition_of[one.meter]]
        records.append(_record(chance, faults, partition_of[one.meter], len(records), one))
    return History(seed, Log(partitions), faults, kafka_away)


def _some_span(chance: Chance, faults: Counter[str], name: str, share: float) -> Span | None:
    if chance.random() >= share:
        return None
    faults[name] += 1
    begin_ms = START_MS + chance.randrange(SENDING_MS)
    return Span(begin_ms, begin_ms + chance.randint(10 * MINUTE_MS, 100 * MINUTE_MS))


def _of_meter(chance: Chance, faults: Counter[str], meter: str) -> list[Reading]:
    """Return the readings of one meter, as they leave it."""
    pace_ms = chance.choice([5, 8, 12, 20]) * MINUTE_MS
    clock = _some_clock(chance, faults)
    at_ms = START_MS + chance.randrange(pace_ms)
    if chance.random() < 0.25:
        faults["a meter is switched on in the middle"] += 1
        at_ms += chance.randrange(SENDING_MS // 2)
    counter, resets = _Counter(chance, faults), chance.choice([0.0, 0.05, 0.2])
    sent: list[Reading] = []
    while at_ms < START_MS + SENDING_MS:
        came_ms = at_ms + chance.randrange(2_000)
        sent.append(Reading(came_ms, 0, clock(at_ms), meter, counter.read(resets), chance.choice(LEVELS), "live"))
        at_ms += pace_ms // 2 + chance.randrange(pace_ms)
    away = _some_span(chance, faults, "a meter is away", 0.5)
    if away:
        newest_first = chance.random() < 0.4
        name = "newest first" if newest_first else "in order"
        faults[f"records are kept and sent {name}"] += 1
        sent = _kept(sent, away, -10 if newest_first else 10)
    if chance.random() < 0.3:
        faults["a bulk upload of an old day"] += 1
        sent += _upload(chance, _Counter(chance, faults), meter)
    return sent


def _some_clock(chance: Chance, faults: Counter[str]) -> Callable[[int], int]:
    off_ms = later_ms = 0
    match chance.choice(["right"] * 5 + ["ahead", "behind", "jumps"]):
        case "ahead":
            faults["a clock is ahead"] += 1
            off_ms = later_ms = chance.randint(1_000, 4 * MINUTE_MS)
        case "behind":
            faults["a clock is behind"] += 1
            off_ms = later_ms = -chance.randint(1_000, 10 * MINUTE_MS)
        case "jumps":
            faults["a clock jumps"] += 1
            off_ms, later_ms = -chance.randint(0, 40 * MINUTE_MS), chance.randint(0, 4 * MINUTE_MS)
    turns_ms = START_MS + chance.randrange(SENDING_MS)
    return lambda at_ms: at_ms + (off_ms if at_ms < turns_ms else later_ms)


class _Counter:
    """A counter that rises, until it is reset."""

    def __init__(self, chance: Chance, faults: Counter[str]) -> None:
        self._chance, self._faults = chance, faults
        self._value = chance.choice([0.0, 41.7, 123_456.7])

    def read(self, resets: float) -> float | None:
        chance = self._chance
        if chance.random() < resets:
            is_to_zero = chance.random() < 0.6
            self._faults["a counter is reset to 0" if is_to_zero else "a counter is reset to another value"] += 1
            self._value = 0.0 if is_to_zero else self._value / 3
        else:
            self._value += chance.choice(PARTS)
        if chance.random() < 0.02:
            self._faults["a value is missing"] += 1
            return None
        return self._value


def _upload(chance: Chance, counter: _Counter, meter: str) -> list[Reading]:
    """Return a day of readings that a logger sends at once."""
    came_ms = START_MS + chance.randrange(SENDING_MS)
    first_ms = START_MS - chance.choice([1, 1, 2]) * DAY_MS + chance.randrange(HOUR_MS)
    pace_ms = chance.choice([HOUR_MS, 2 * HOUR_MS, 20 * MINUTE_MS])
    count = min(24, DAY_MS // pace_ms)
    return [
        Reading(
            came_ms + 10 * at, 0, first_ms + at * pace_ms, meter, counter.read(0.05), chance.choice(LEVELS), "upload"
        )
        for at in range(count)
    ]


def _kept(readings: list[Reading], away: Span, step_ms: int) -> list[Reading]:
    """Return the readings. Those that were sent in the outage arrive after it, `step_ms` apart; the newest first if negative."""
    held = [one for one in readings if away.holds(one.came_ms)]
    others = [one for one in readings if not away.holds(one.came_ms)]
    in_order = held if step_ms > 0 else held[::-1]
    return others + [
        one._replace(came_ms=away.end_ms + at * abs(step_ms), order=at, way="kept" if one.way == "live" else one.way)
        for at, one in enumerate(in_order)
    ]


def _record(chance: Chance, faults: Counter[str], partition: int, offset: int, one: Reading) -> Record:
    values: dict[str, object] = {"meter": one.meter, "ts": one.event_ms, "wh": one.wh, "level": one.level}
    is_far = chance.random() < 0.01
    if is_far:
        faults["a record is far ahead of its time"] += 1
        one = one._replace(event_ms=one.came_ms + DAY_MS)
        values["ts"] = one.event_ms
    line = json.dumps(values).encode()
    if chance.random() < 0.02:
        faults["a record is unreadable"] += 1
        one = one._replace(is_readable=False)
        line = chance.choice(
            [line[:-3], json.dumps({**values, "wh": "?"}).encode(), json.dumps({"ts": one.event_ms}).encode()]
        )
    return Record(partition, offset, one, line)
