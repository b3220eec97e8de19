"""The contract of a shape: a stream of records that devices of some kind send, and what each record means.

To add a shape, write a module with a `Shape`, and add it to `job_set.SHAPES`. `sender` writes records as devices do. `read` is
the checker's knowledge of them: plain loops by the text of the docs, without anything of Strandline.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.support.chaos.checking.pace import Pace
from tests.support.chaos.checking.pipelines import Pipeline
from tests.support.chaos.dump import Record
from tests.support.chaos.shapes.values import Field
from tests.support.faults.checker import UNKEYED
from tests.support.faults.load import Batch

LATE = "-late"
LATE_SHARE, SPOILT_SHARE = 0.05, 0.08
LATE_MS = (30_000, 150_000)
SENSORS = ("boiler", "pump", "roof")
FUTURE_MS = 28_800_000
"""By how much a record of the future is ahead of the clock: more than any fault sets a clock of Kafka ahead of the runner's."""


@dataclass
class Message:
    """A record that is to be written."""

    chance: random.Random
    id: str
    client: str
    event_ms: int
    """Latest time of its readings."""
    now_ms: int
    """The wall clock."""
    spoil: str = ""
    """The mistake of the shape's that it makes. Empty if it makes none."""

    def value(self) -> float:
        """Return a value whose sums are exact in any order."""
        return self.chance.randint(-8_000, 8_000) / 8

    def times(self, count: int) -> list[int]:
        """Return times of readings, the latest last. One of the future, if that is the mistake."""
        found = sorted(self.event_ms - self.chance.randint(0, 3_000) for _ in range(count))
        if self.spoil == "future" and found:
            found[-1] = self.now_ms + FUTURE_MS
        return found

    def unkeyed(self) -> None:
        """Mark a message whose gateway can't find its key, so that it may come to any partition."""
        self.id += UNKEYED


@dataclass
class MessageSender:
    """Sends messages that have nothing to do with each other. Some are late, and some have a mistake."""

    chance: random.Random
    make: Callable[[Message], bytes]
    """Writes a message. May change its id."""
    spoilers: tuple[str, ...]
    batch_messages_max: int = 2

    def is_away(self, client: str, event_ms: int) -> bool:
        return False

    def batch(self, client: str, number: int, event_ms: int, now_ms: int) -> Batch:
        count = self.chance.randint(1, self.batch_messages_max)
        return [self._record(f"{client}-{number}-{at}", client, event_ms, now_ms) for at in range(count)]

    def _record(self, record_id: str, client: str, event_ms: int, now_ms: int) -> tuple[str, bytes]:
        chance = self.chance
        is_late, is_spoilt = chance.random() < LATE_SHARE, chance.random() < SPOILT_SHARE
        back_ms = chance.uniform(*LATE_MS) if is_late else chance.uniform(0, 3_000)
        spoil = chance.choice(self.spoilers) if is_spoilt and not is_late else ""
        name = record_id + LATE if is_late else record_id
        message = Message(chance, name, client, event_ms - int(back_ms), now_ms, spoil)
        value = self.make(message)
        return message.id, value


@dataclass(frozen=True)
class Reading:
    """A row as the checker reads it."""

    element: int | None
    """Index of the row in its record. None if the record is refused completely, or is the row."""
    reason: str | None
    """Reason of a dead letter that doesn't depend on the slice. None if there is none."""
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Read:
    """A record as the checker reads it."""

    rows: list[Reading]
    noted: frozenset[str] = frozenset()
    """What is special in it, in the words of `Shape.notes`."""


def messages(make: Callable[[Message], bytes], *spoilers: str) -> Callable[[random.Random], Sender]:
    """Return a sender of such messages. `spoilers`: the mistakes that they can make."""
    return lambda chance: MessageSender(chance, make, spoilers)


def refused(reason: str) -> Read:
    """A record that is refused completely."""
    return Read([Reading(None, reason)])


@dataclass(frozen=True)
class Shape:
    name: str
    gateway: str
    """`http`, `mqtt-listener`, `tcp`, or `udp`."""
    document: Mapping[str, Any]
    """Fields of the stream's document, without its name, its partitions, and those of the gateway."""
    fields: tuple[Field, ...]
    sender: Callable[[random.Random], Sender]
    """Makes the records that are sent."""
    read: Callable[[Record], Read]
    notes: tuple[str, ...] = ()
    """What has to occur among the records of a run."""
    reasons: tuple[str, ...] = ("decode", "schema", "future_event", "late")
    """Reasons of dead letters that have to occur."""
    derive: str = ""
    """Steps before rows are emitted, as YAML."""
    derived: Callable[[dict[str, Any]], dict[str, Any]] = dict
    """From the values of a row, what these steps add."""
    renumbered: str | None = None
    """Field that another number fills in the dead letter of a row."""
    jobs: tuple[ShapeJob, ...] = ()
    """Jobs that read the stream. Empty for one job, which emits rows and windows of them (`pipeline.py`)."""

    @property
    def stream(self) -> str:
        return f"chaos-{self.name}-in"

    @property
    def must_reach(self) -> tuple[str, ...]:
        """Reasons and special values that have to occur in a run of a job that reads the stream."""
        return (*self.reasons, *self.notes)


@dataclass(frozen=True)
class ShapeJob:
    """A job over the stream of a shape."""

    name: str
    document: str
    """The pipeline, as YAML, to be filled in by `job_set.pipeline_document`."""
    stages: tuple[str, ...]
    """Stages with windows."""
    pipeline: Callable[[Pace], Pipeline]
    """The checker's knowledge of it."""
    records: str | None = None
    """The stage that emits records without a window, if there is one."""


class Sender(Protocol):
    """Writes the records of the clients of a stream."""

    def is_away(self, client: str, event_ms: int) -> bool:
        """Return True if the client sends nothing now."""

    def batch(self, client: str, number: int, event_ms: int, now_ms: int) -> Batch:
        """Return the next records of a client. `number`: counts its batches. `event_ms`: the time of its clock."""
