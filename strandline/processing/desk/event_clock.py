"""Event time at the desk: which record is late, and up to where windows are closed. Pure: no clock is asked.

A running job judges by slice: the watermark in force for a slice is recorded before the slice is read. At the desk each record is
judged as if it were a slice of its own, so what is late doesn't depend on how the records are cut. That is the strictest that a
job can be: what a job finds late is late at the desk, and what is in time at the desk is in time for a job, unless silence (which
a job counts by its own clock) closed a window.

Silence is counted in log time: how far the log has come since a partition's last record.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from strandline.ledger.states import EventTimeRule
from strandline.processing.formats.decoder import NEVER_LATE
from strandline.processing.slices.watermark import greatest, watermark_by
from strandline.results.records.partition_labels import stream_place_of

Times = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]


class EventClock:
    """How far event time has come, record by record."""

    def __init__(self, rule: EventTimeRule, streams: Sequence[str] = ("",)) -> None:
        """`streams`: those that are read, in their order."""
        self._rule = rule
        self._streams = streams
        self._reached: dict[int, int] = {}
        """Label of a partition (`partition_labels`) -> the latest event time."""
        self._came_ms: dict[int, int] = {}
        """Label -> how far the log had come with its last record."""
        self._now_ms: int | None = None
        """How far the log has come. A log time behind it doesn't set it back."""
        self.watermark_ms: int | None = None
        """Windows that end at or before it are closed; a record below it is late."""

    @property
    def latest_event_ms(self) -> int | None:
        """Of all records that were in time."""
        return greatest(*self._reached.values())

    def watermarks(
        self, partitions: Sequence[int], events_ms: Times, is_usable: Marks, log_times_ms: Times | None = None
    ) -> Times:
        """The watermark in force for each row, in the order of the log, and move on behind them. `partitions`: their labels.

        `is_usable`: rows that can't be read move nothing, but their partition is not silent. `log_times_ms`: None: event time is
        log time.
        """
        if not len(partitions):  # all records of a piece had no row
            return np.zeros(0, np.int64)
        if log_times_ms is None and len(set(partitions) | self._reached.keys()) == 1:
            return self._of_one_partition(partitions[0], events_ms, is_usable)
        found = np.full(len(partitions), NEVER_LATE)
        log_times_ms = events_ms if log_times_ms is None else log_times_ms
        rows = zip(partitions, events_ms.tolist(), log_times_ms.tolist(), is_usable.tolist(), strict=True)
        for at, (partition, event_ms, log_ms, usable) in enumerate(rows):
            if not usable:
                if self._now_ms is not None:
                    self._came_ms[partition] = self._now_ms
                continue
            in_force = self._before(partition, log_ms)
            if in_force is not None:
                found[at] = in_force
            if in_force is None or event_ms >= in_force - self._rule.revise_ms:
                self._reached[partition] = max(event_ms, self._reached.get(partition, event_ms))
            self.watermark_ms = greatest(in_force, self._by_rule())
        return found

    def wait(self, ms: int) -> None:
        """So much log time passes, and no record comes."""
        if self._now_ms is not None:
            self._now_ms += ms
            self.watermark_ms = greatest(self.watermark_ms, self._by_rule())

    def close(self, up_to_ms: int | None) -> None:
        """Close windows up to there, as a drain does."""
        self.watermark_ms = greatest(self.watermark_ms, up_to_ms)

    def _before(self, partition: int, log_ms: int) -> int | None:
        """The watermark in force for a record that comes to the partition now."""
        self._now_ms = log_ms if self._now_ms is None else max(self._now_ms, log_ms)
        is_first = partition not in self._reached
        in_force = greatest(self.watermark_ms, self._by_rule([self._stream_of(partition)] if is_first else ()))
        self._came_ms[partition] = self._now_ms
        return in_force

    def _by_rule(self, first_records: Collection[str] = ()) -> int | None:
        now_ms = self._now_ms or 0
        reached: dict[str, dict[int, int]] = {}
        silence_ms: dict[str, dict[int, int]] = {}
        for label, event_ms in self._reached.items():
            stream = self._stream_of(label)
            reached.setdefault(stream, {})[label] = event_ms
            silence_ms.setdefault(stream, {})[label] = now_ms - self._came_ms.get(label, now_ms)
        return watermark_by(self._rule, reached, silence_ms, first_records=first_records)

    def _stream_of(self, label: int) -> str:
        return self._streams[stream_place_of(label) if len(self._streams) > 1 else 0]

    def _of_one_partition(self, partition: int, events_ms: Times, is_usable: Marks) -> Times:
        """As `watermarks`, of all rows at once: with one partition whose log time is event time, no silence moves the watermark
        further than the record behind it."""
        found = np.full(len(events_ms), NEVER_LATE)
        before = self._reached.get(partition)
        known = np.where(is_usable, events_ms, NEVER_LATE)
        reached = np.maximum.accumulate(np.concatenate([[NEVER_LATE if before is None else before], known]))
        is_known = reached != NEVER_LATE
        after = np.where(is_known, reached - self._rule.of(self._stream_of(partition)).delay_ms, NEVER_LATE)
        if self.watermark_ms is not None:
            after = np.maximum(after, self.watermark_ms)
        found[:] = after[:-1]
        if is_known[-1]:
            last_ms = int(reached[-1])
            self._reached[partition] = last_ms
            self._now_ms = last_ms if self._now_ms is None else max(self._now_ms, last_ms)
            self._came_ms[partition] = self._now_ms
        if after[-1] != NEVER_LATE:
            self.watermark_ms = int(after[-1])
        return found
