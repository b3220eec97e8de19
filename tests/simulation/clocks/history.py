"""The records of senders and of Kafka in one history.

It contains wrong clocks, outages, gateways that buffer, and uploads of old data.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from strandline.core.errors import LogUnavailable
from tests.support.one_by_one import OneByOne

START_MS = 1_700_000_000_000
SENDING_MS = 60_000
DELAY_MS = 2_000
IDLE_MS = 8_000
SIZE_MS = 5_000
MAX_AHEAD_MS = 120_000
RESUME_MS = 5_000
"""After an outage, a gateway sends again within this time."""


class Span(NamedTuple):
    begin_ms: int
    end_ms: int

    def holds(self, at_ms: int) -> bool:
        return self.begin_ms <= at_ms < self.end_ms


class Record(NamedTuple):
    came_ms: int
    """When the broker took it, by a clock that is right."""
    log_ms: int
    event_ms: int
    is_readable: bool


@dataclass
class Place:
    """One partition: its records in the order of offsets, and the times at which it isn't writable."""

    records: list[Record] = field(default_factory=list)
    came_ms: list[int] = field(default_factory=list)
    newest_log_ms: list[int] = field(default_factory=list)
    """For each record, the maximum log time up to it: where producers write log times, these may fall."""
    not_writable: list[Span] = field(default_factory=list)


@dataclass
class History(OneByOne):
    """Everything that is drawn before the job begins to run. Answers as `LogIndex` does, as of `now_ms`."""

    chance: random.Random
    places: dict[str, list[Place]]
    has_senders_times: bool
    watermark: str
    kafka_away: list[Span]
    down: list[Span]
    """When no run of the job is at work. The next run begins at the end."""
    slow: list[Span]
    """Slices that begin here end at the end of the span."""
    rows_max: int
    wall_off_ms: int
    """How far the planner's wall clock is off."""
    faults: set[str]
    now_ms: int = START_MS
    last_ms: int = 0
    """When the last record came."""

    def __post_init__(self) -> None:
        self.last_ms = max(
            (place.came_ms[-1] for one in self.places.values() for place in one if place.came_ms), default=0
        )

    @property
    def end_ms(self) -> int:
        """Silence of three timeouts follows the last record, and some time for the longest wait."""
        return START_MS + SENDING_MS + 9 * IDLE_MS

    def starts(self, stream: str) -> dict[int, int]:
        return dict.fromkeys(range(len(self.places[stream])), 0)

    def partitions(self, stream: str) -> list[int]:
        return list(range(len(self.places[stream])))

    def ends(self, stream: str) -> dict[int, int]:
        if any(span.holds(self.now_ms) for span in self.kafka_away):
            raise LogUnavailable("the brokers are away")
        return {at: bisect_right(place.came_ms, self.now_ms) for at, place in enumerate(self.places[stream])}

    ends_with_open = ends

    def not_writable(self, stream: str) -> set[int]:
        return {
            at
            for at, place in enumerate(self.places[stream])
            if any(span.holds(self.now_ms) for span in place.not_writable)
        }

    def newest_log_time(self, stream: str) -> int:
        ends = self.ends(stream)
        return max((self.places[stream][at].newest_log_ms[end - 1] for at, end in ends.items() if end), default=0)

    def offsets_at(self, stream: str, log_time_ms: int, ends: dict[int, int]) -> dict[int, int]:
        places = self.places[stream]
        return {at: min(bisect_left(places[at].newest_log_ms, log_time_ms), end) for at, end in ends.items()}

    def topic_id(self, stream: str) -> str:
        return stream

    def checksums(self, stream: str, offsets: dict[int, int]) -> dict[int, int]:
        return dict.fromkeys(offsets, 0)


def draw_history(seed: int) -> History:
    chance = random.Random(seed)
    faults: set[str] = set()
    has_senders_times = chance.random() < 0.25
    streams = ["a"] if chance.random() < 0.85 else ["a", "b"]
    kafka_away = _some(chance, faults, "Kafka is away", 0.2, 4_000, 25_000)
    places: dict[str, list[Place]] = {}
    for stream in streams:
        places[stream] = [
            _draw_place(chance, faults, kafka_away, has_senders_times) for _ in range(chance.choice([1, 2, 2, 3]))
        ]
    if has_senders_times:
        faults.add("producers write log times")
    down = _some(chance, faults, "the job restarts", 0.3, 1, 30_000)
    slow = _some(chance, faults, "a slice is slow", 0.3, 3_000, 15_000)
    if kafka_away:
        begin_ms, end_ms = kafka_away[0]
        match chance.choice(["seen", "seen", "run ends", "not seen"]):
            case "run ends":  # because Kafka is away; the next one begins when it is back
                faults.add("the job restarts")
                down = [Span(begin_ms + 1_000, end_ms)]
            case "not seen":
                faults.add("a slice is slow")
                slow = [Span(begin_ms - 1_500, end_ms + 100)]
    return History(
        chance,
        places,
        has_senders_times,
        chance.choice(["partitions"] * 6 + ["newest"]),
        kafka_away,
        down,
        slow,
        chance.choice([20, 1_000, 1_000]),
        0 if has_senders_times else chance.choice([0, 0, -86_400_000, 86_400_000]),
        faults,
    )


def _some(chance: random.Random, faults: set[str], name: str, share: float, least_ms: int, most_ms: int) -> list[Span]:
    if chance.random() >= share:
        return []
    faults.add(name)
    begin_ms = START_MS + chance.randrange(SENDING_MS)
    return [Span(begin_ms, begin_ms + chance.randint(least_ms, most_ms))]


def _draw_place(chance: random.Random, faults: set[str], kafka_away: list[Span], has_senders_times: bool) -> Place:
    place = Place()
    place.not_writable = _some(chance, faults, "a partition is read-only", 0.15, 4_000, 30_000)
    buffers = _some(chance, faults, "a gateway buffers", 0.2, 3_000, 40_000)
    sent: list[tuple[int, int, int, bool]] = []
    """For each record: when it leaves the gateway, the sender's time, its event time, and whether it can be read."""
    rejected = chance.random() < 0.15
    if rejected:
        faults.add("all records of a partition are rejected")
    rejected_from_ms = START_MS + chance.choice([0, 10_000, 25_000]) if rejected else None
    for _ in range(1 if rejected else chance.choice([1, 1, 2, 3])):
        sent += _draw_device(chance, faults, buffers, rejected_from_ms)
    if chance.random() < 0.1:
        faults.add("a bulk upload of old data")
        at_ms = START_MS + chance.randrange(SENDING_MS)
        first_ms = at_ms - chance.choice([20_000, 100_000, 10_000_000])
        sent += [(at_ms + count * 10, at_ms, first_ms + count * 300, True) for count in range(chance.randint(5, 40))]
    closed = [*kafka_away, *place.not_writable]
    back_ms = chance.randrange(RESUME_MS)
    arrived = []
    for order, (left_ms, sender_ms, event_ms, is_readable) in enumerate(sent):
        came_ms = left_ms
        for _ in closed:
            for span in closed:
                if span.holds(came_ms):
                    came_ms = span.end_ms + back_ms
        arrived.append((came_ms, left_ms, order, sender_ms, event_ms, is_readable))
    arrived.sort()
    for came_ms, _, _, sender_ms, event_ms, is_readable in arrived:
        log_ms = sender_ms if has_senders_times else came_ms
        place.records.append(Record(came_ms, log_ms, event_ms, is_readable))
    place.came_ms = [record.came_ms for record in place.records]
    place.newest_log_ms = list(accumulate((record.log_ms for record in place.records), max))
    return place


def _draw_device(
    chance: random.Random, faults: set[str], buffers: list[Span], rejected_from_ms: int | None
) -> list[tuple[int, int, int, bool]]:
    off_ms, turns_ms, off_later_ms = 0, START_MS + SENDING_MS, 0
    match chance.choice(["right"] * 5 + ["ahead", "behind", "jumps"]):
        case "ahead":
            off_ms = off_later_ms = chance.randint(1_000, 100_000)
            faults.add("a clock is ahead")
        case "behind":
            off_ms = off_later_ms = -chance.randint(1_000, 60_000)
            faults.add("a clock is behind")
        case "jumps":
            off_ms, off_later_ms = chance.randint(-30_000, 60_000), chance.choice([0, chance.randint(-30_000, 60_000)])
            turns_ms = START_MS + chance.randrange(SENDING_MS)
            faults.add("a clock jumps")
    pace_ms = chance.choice([500, 1_000, 2_000, 5_000, 7_000])
    at_ms = START_MS + chance.randrange(3_000)
    until_ms = START_MS + chance.choice([SENDING_MS, SENDING_MS, SENDING_MS, chance.randrange(SENDING_MS)])
    takes_ms = chance.choice([50, 500, 1_500])
    sent = []
    while at_ms < until_ms:
        sender_ms = at_ms + (off_ms if at_ms < turns_ms else off_later_ms)
        left_ms = at_ms + chance.randrange(takes_ms)
        for span in buffers:
            if span.holds(left_ms):
                left_ms = span.end_ms
        is_readable = rejected_from_ms is None or at_ms < rejected_from_ms
        sent.append((left_ms, sender_ms, sender_ms, is_readable))
        at_ms += pace_ms // 2 + chance.randrange(pace_ms)
    return sent
