"""The log of the simulated job: records by partition, as `LogIndex` shows them."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from strandline.core.errors import LogUnavailable
from strandline.processing.slices.silence import GAP_MAX_MS
from tests.support.one_by_one import OneByOne


class Record(NamedTuple):
    number: int
    """No two records have the same one."""
    log_ms: int
    event_ms: int
    device: str
    power: int
    is_broken: bool
    behind_ms: int = 0
    """How far the load meant it to be behind event time when it was sent."""
    is_held_up: bool = False
    """Sent in an outage, or into a transaction that hung: it could be read only later."""


class Log(OneByOne):
    """Records by partition; answers as `LogIndex` does. Behind an open transaction nothing can be read."""

    def __init__(self, partitions: int) -> None:
        self.records: list[list[Record]] = [[] for _ in range(partitions)]
        self.partitions_first = partitions
        """How many there were at first."""
        self.open_from: dict[int, int] = {}
        """Partition -> where the open transaction begins."""
        self.away_ms: int | None = None
        """For how long the brokers have been away; None: they answer."""
        self.clock_off_ms = 0
        """What the brokers' clock is off by; log times are its."""
        self.has_jumped = False
        """True if that has ever changed."""
        self.countable_ms = [0] * partitions
        """Time that has passed for each partition while no transaction was open there and the brokers were up.

        The first moments of an outage count, because an outage between two looks is not seen.
        """
        self._since_ms = [0] * partitions
        """The `countable_ms` at which the last accepted record came, or a transaction ended: silence is counted from there."""
        self._came_ms: dict[int, int] = {}
        """Number of a record -> `countable_ms` of its partition when it came."""
        self._latest_ms: list[list[int]] = [[] for _ in range(partitions)]
        """For each record, the latest log time up to and including it.

        The brokers' clock can be set back, but this never falls.
        """

        self.removed: dict[int, int] = {}
        """Partition -> the first record that retention has left, where it has removed any."""
        self.seen_to: dict[int, int] = {}
        """Partition -> where a broker that is behind says that it ends."""
        self._life = 1
        self.count = 0
        """Number of all records that ever arrived."""

    def topic_id(self, stream: str) -> str:
        return stream if self._life == 1 else f"{stream} in life {self._life}"

    def starts(self, stream: str) -> dict[int, int]:
        return {partition: self.removed.get(partition, 0) for partition in range(len(self.records))}

    def partitions(self, stream: str) -> list[int]:
        return list(range(len(self.records)))

    def ends(self, stream: str) -> dict[int, int]:
        ends = self.ends_with_open(stream)
        return {partition: min(self.open_from.get(partition, end), end) for partition, end in ends.items()}

    def ends_with_open(self, stream: str) -> dict[int, int]:
        if self.away_ms is not None:
            raise LogUnavailable("the brokers are away")
        return {partition: len(records) for partition, records in enumerate(self.records)} | self.seen_to

    def checksums(self, stream: str, offsets: dict[int, int]) -> dict[int, int]:
        """Return the checksum of the record at each offset that exists. No two records have the same number."""
        return {
            partition: self.records[partition][offset].number
            for partition, offset in offsets.items()
            if self.removed.get(partition, 0) <= offset < self.seen_to.get(partition, len(self.records[partition]))
        }

    def not_writable(self, stream: str) -> set[int]:
        return set()

    def newest_log_time(self, stream: str) -> int:
        return max((latest[-1] for latest in self._latest_ms if latest), default=0)

    def offsets_at(self, stream: str, log_time_ms: int, ends: dict[int, int]) -> dict[int, int]:
        firsts = {partition: bisect_left(self._latest_ms[partition], log_time_ms) for partition in ends}
        return {
            partition: min(firsts[partition], end) if firsts[partition] < len(self.records[partition]) else end
            for partition, end in ends.items()
        }

    def append(self, partition: int, record: Record) -> None:
        self.count += 1
        self.records[partition].append(record)
        self._came_ms[record.number] = self.countable_ms[partition]
        latest = self._latest_ms[partition]
        latest.append(max(latest[-1], record.log_ms) if latest else record.log_ms)

    def note_accepted(self, accepted: dict[int, list[Record]]) -> None:
        """A slice with these accepted records was committed."""
        for partition, records in accepted.items():
            came_ms = max(self._came_ms[one.number] for one in records)
            self._since_ms[partition] = max(came_ms, self._since_ms[partition])

    def idle_ms(self, partition: int) -> int:
        """For how long at most the partition has been without an accepted record."""
        return self.countable_ms[partition] - self._since_ms[partition]

    def add_partition(self) -> None:
        self.records.append([])
        self._latest_ms.append([])
        self.countable_ms.append(0)
        self._since_ms.append(0)

    def cut(self, partition: int, end: int) -> None:
        """The partition loses its last records, as after an election of a leader that lacked them."""
        del self.records[partition][end:]
        del self._latest_ms[partition][end:]
        if self.open_from.get(partition, 0) >= end:
            self.open_from.pop(partition, None)
        if self.seen_to.get(partition, 0) > end:
            del self.seen_to[partition]

    def make_anew(self, *, with_records: bool) -> None:
        """The topic is deleted and made again under its name; its senders may have sent the same once more."""
        self._life += 1
        self.open_from, self.removed, self.seen_to = {}, {}, {}
        for partition in range(len(self.records)):
            if self.records[partition] and not with_records:
                self.cut(partition, 0)

    def close_transaction(self, partition: int) -> None:
        if self.open_from.pop(partition, len(self.records[partition])) < len(self.records[partition]):
            self._since_ms[partition] = self.countable_ms[partition]

    def pass_time(self, ms: int) -> None:
        if self.away_ms is not None:
            self.away_ms, ms = self.away_ms + ms, max(0, min(ms, GAP_MAX_MS - self.away_ms))
        for partition, records in enumerate(self.records):
            end = len(records)
            if self.open_from.get(partition, end) == end:
                self.countable_ms[partition] += ms
