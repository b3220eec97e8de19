"""Checks whether a record that the job calls late is late for a reason: the intention of the load decides, not the
job's own watermark.

A record has a reason to be late in these cases:

- The load sent it late on purpose: its id shows this.
- It was in the log before: a sender without an answer, or that forgot, sent it again.
- A newer record of its own partition overtook it by more than the delay: its sender was delayed on the way to the log.
- The watermark passed it while its partition was idle (`check_silences` limits that). In a partition that the job has
  read from its first slice on, also before any usable record had arrived there.

Any other late record is a violation, whatever the ledger contains.
"""

from __future__ import annotations

import re
from bisect import bisect_right

from tests.support.chaos.checking.judging import ClassifiedRecord
from tests.support.chaos.checking.pace import DELAY_MS, IDLE_MS
from tests.support.chaos.checking.verdict import JobVerdict
from tests.support.chaos.checking.watermarks import silences
from tests.support.chaos.dump import Record, Row

ON_PURPOSE = re.compile(rb'"id":"[^"]*-late~*"')
"""How the id of a record ends that the load means to be late; a `~` behind it says that the record has no key."""


def check_lateness(judged: list[ClassifiedRecord], slices: list[Row], stream: str, verdict: JobVerdict) -> None:
    """`judged` by partition and offset."""
    idleness = _Idleness(judged, slices, stream)
    came_to: dict[int, int] = {}
    seen: dict[bytes, Record] = {}
    """Value -> the first record with it."""
    for one in judged:
        record, event_ms = one.record, one.event_ms
        if one.reason == "late" and event_ms is not None:
            is_meant = ON_PURPOSE.search(record.value) is not None or seen.get(record.value, record) is not record
            newest_ms = came_to.get(record.partition)
            is_overtaken = newest_ms is not None and event_ms < newest_ms - DELAY_MS
            if not is_meant and not is_overtaken and not idleness.explains(record.partition, event_ms):
                verdict.late_without_cause.append(
                    f"record {record.partition}/{record.offset} of event time {event_ms} is late in slice {one.slice}; its "
                    f"partition had come to {newest_ms} and was not idle when the watermark passed it"
                )
        elif one.is_used and event_ms is not None:
            came_to[record.partition] = max(event_ms, came_to.get(record.partition, event_ms))
        seen.setdefault(record.value, record)


def check_nothing_is_late(judged: list[ClassifiedRecord], verdict: JobVerdict) -> None:
    """No result of another job is late: whole emissions are read, one after the other."""
    verdict.late_without_cause += [
        f"result {one.record.partition}/{one.record.offset} of event time {one.event_ms} is late in slice {one.slice}"
        for one in judged
        if one.reason == "late"
    ]


class _Idleness:
    """The partitions that held the watermark back, and those that didn't, when it passed an event time."""

    def __init__(self, judged: list[ClassifiedRecord], slices: list[Row], stream: str) -> None:
        self._slices = slices
        self._stream = stream
        self._passed: list[tuple[int, int]] = []
        """Each watermark that is above all before it, and the place of its slice."""
        for at, row in enumerate(slices):
            if row["watermark_ms"] is not None and (not self._passed or row["watermark_ms"] > self._passed[-1][0]):
                self._passed.append((row["watermark_ms"], at))
        self._first_used: dict[int, int] = {}
        """Partition -> its first record that is used."""
        for one in judged:
            if one.is_used:
                self._first_used.setdefault(one.record.partition, one.record.offset)

    def explains(self, partition: int, event_ms: int) -> bool:
        """Return True if the partition was idle, or had never contained a usable record, when the watermark passed the
        event time.

        This is checked in the slice in which it shows, or in the one before, whose close it may be.
        """
        at = bisect_right(self._passed, event_ms, key=lambda passed: passed[0])
        if at == len(self._passed):
            return False
        place = self._passed[at][1]
        before, row = self._slices[max(0, place - 1)], self._slices[place]
        if any(silences(one, self._stream).get(partition, 0) >= IDLE_MS for one in (before, row)):
            return True
        end = before["offsets"][self._stream].get(str(partition), 0)
        is_old = str(partition) in self._slices[0]["offsets"][self._stream]
        return is_old and self._first_used.get(partition, end) >= end
