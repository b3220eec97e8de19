"""Silence of each partition: the time without an accepted record, on a run's monotonic clock while Kafka accepts records.

A partition becomes idle by its silence. Then event time advances without it, and its later records may be late. So time is
counted only if the sender alone can be the reason. These times are not counted:

* the time of a look itself;
* more than `GAP_MAX_MS` between two looks: the run was busy or paused, and it isn't known whether Kafka responded;
* while a transaction is open in the partition, until its records can be read.

The count of a partition begins again

* when a slice with an accepted record of the partition was committed;
* when a transaction hangs: it is open at two looks, and nothing became readable between them;
* when the partition can't be written: senders can't append to it, and send again only later;
* when the partition lost records.

All counts begin again after an outage: a look that failed or took longer than `LOOK_MAX_MS`. Senders and gateways couldn't reach
Kafka either, and send again only now. They begin again in a new run, too: earlier silences aren't known.

New records don't end the count by themselves, because they may all be rejected. So the count holds on a condition: no record
between the last accepted one and the ends of this look is accepted. The planner uses it only for a partition that its slice reads
to the end, and only after the records of the slice are known (`watermark.closes_after`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

GAP_MAX_MS = 2_000
LOOK_MAX_MS = 2_000

Vector = dict[int, int]


class SeenEnds(NamedTuple):
    """Answers of one look at the log."""

    ends: Vector
    """End of each partition, without the records of open transactions."""
    written: Vector
    """End of each partition, with the records of open transactions."""
    began_ms: int
    """Monotonic time at which the look began."""
    answered_ms: int
    """Monotonic time of the last answer of the look."""


@dataclass
class _Partition:
    end: int
    """Without the records of open transactions."""
    written: int
    """With the records of open transactions."""
    accepted_in: int | None
    """The last slice with an accepted record."""
    counted_ms: int
    held_ms: int = 0
    """Time since the last look without an open transaction. It counts once all records of that time can be read."""
    is_cut_off: bool = False
    """True if senders couldn't append to the partition, or its transaction hangs. The time to the next look isn't counted."""
    is_pending: bool = False
    """True if the transaction is the first that came after a time without records: its records may be accepted."""

    @property
    def shown_ms(self) -> int:
        return 0 if self.is_pending else self.counted_ms


class SilenceMeter:
    """Counts the silence of each partition, for one run. The planner calls `look` each time that it looks at the log."""

    def __init__(self, monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000) -> None:
        self.monotonic_ms = monotonic_ms
        self._partitions: dict[int, _Partition] = {}
        self._answered_ms: int | None = None
        """Time of the last response; None if the last look had none."""

    def look(
        self,
        ask: Callable[[], SeenEnds],
        accepted_in: Mapping[int, int],
        closed: Callable[[], Collection[int]] = tuple,
    ) -> tuple[Vector, Vector]:
        """Count the time since the last look. Return the end of each partition, and its silence in ms.

        `ask` returns the ends that the look found. `closed` returns the partitions that can't be written now, or for which this
        isn't known. If one of them raises an error, the look failed, and all counts begin again. `accepted_in`: partition -> the
        last committed slice with an accepted record.
        """
        answered_ms, self._answered_ms = self._answered_ms, None
        ends, written, began_ms, now_ms = ask()
        without = closed()
        self._answered_ms = now_ms
        if answered_ms is None or now_ms - began_ms > LOOK_MAX_MS:
            self._partitions.clear()
        gap_ms = min(began_ms - answered_ms, GAP_MAX_MS) if answered_ms is not None else 0
        for partition, end in ends.items():
            now = _Partition(end, written.get(partition, end), accepted_in.get(partition), 0)
            before = self._partitions.get(partition)
            # If a transaction is open when a count begins, it isn't known since when.
            now.is_cut_off = partition in without or now.end < now.written
            if before is not None and partition not in without:
                _count(before, now, gap_ms)
            self._partitions[partition] = now
        return ends, {partition: self._partitions[partition].shown_ms for partition in ends}


def _count(before: _Partition, now: _Partition, gap_ms: int) -> None:
    """Set the silence of `now`: that of `before`, and `gap_ms`, the time between both looks. 0 if the count begins again."""
    if now.accepted_in != before.accepted_in or now.end < before.end:
        return
    if now.end >= now.written:
        if not before.is_cut_off:
            now.counted_ms = before.counted_ms + before.held_ms + gap_ms
    elif now.end >= before.written:  # the records of the last look can be read by now
        now.counted_ms, now.held_ms = before.counted_ms + before.held_ms, gap_ms
        now.is_pending = now.end == before.end
        now.is_cut_off = False
