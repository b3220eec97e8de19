"""Event time in a local run: which records are late, and which windows are closed. Pure: it reads no clock.

A job classifies records by slice: the effective watermark of a slice is recorded before the slice is read. A local run classifies
each record as if it were its own slice, so the late records don't depend on how the records are divided. This is the strictest
possible rule. A record that is late in a job is late in a local run. A record that is in time in a local run is in time in a
job, unless silence closed a window, which a job measures by its own clock.

Silence is measured in log time: the progress of the log since the last accepted record of a partition. As in a job, a record
advances the event time of its partition at most to its log time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strandline.ledger.states import EventTimeRule
from strandline.processing.formats.decoder import NEVER_LATE
from strandline.processing.slices.watermark import greatest, watermark_by
from strandline.results.records.partition_labels import stream_index_of

Times = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]
_EVER = np.iinfo(np.int64).max >> 1
_BLOCK_TIMES = 1 << 20
"""Maximum number of times that are kept together: one for each partition and row."""
_FEW_ROWS = 8
"""Up to this number of rows, evaluation one by one is cheaper."""
_PASSES_MAX = 4
"""Maximum number of times that rows are evaluated together before the remaining ones are evaluated one by one."""
BEFORE, AFTER = 0, 1


@dataclass(frozen=True)
class _Rows:
    """Rows in log order."""

    partitions: Times
    """Labels."""
    events_ms: Times
    log_times_ms: Times
    is_usable: Marks

    def __len__(self) -> int:
        return len(self.partitions)

    def __getitem__(self, places: slice) -> _Rows:
        return _Rows(*(column[places] for column in vars(self).values()))

    def as_tuples(self) -> Iterator[tuple[int, int, int, bool]]:
        return zip(*(column.tolist() for column in vars(self).values()), strict=True)


@dataclass(frozen=True)
class _PartitionTimes:
    """Times of one partition, before the first row and after each row: the event time reached, and the log time up to which the
    partition wasn't silent."""

    reached_ms: Times
    came_ms: Times


def _running(values: Times, first: int) -> Times:
    """Return the running maximum, before the first value and after each value."""
    return np.maximum.accumulate(np.concatenate([[first], values]))


class EventClock:
    """The progress of event time, record by record."""

    def __init__(self, rule: EventTimeRule, streams: Sequence[str] = ("",)) -> None:
        """`streams`: the streams that are read, in their order."""
        self._rule = rule
        self._streams = streams
        self._reached: dict[int, int] = {}
        """Label of a partition (`partition_labels`) -> event time reached."""
        self._latest_ms: int | None = None
        self._came_ms: dict[int, int] = {}
        """Label -> log time at the last accepted record of the partition that wasn't below the watermark."""
        self._now_ms: int | None = None
        """Log time so far. An earlier log time doesn't decrease it."""
        self.watermark_ms: int | None = None
        """Windows that end at or before it are closed. A record below it is late."""

    @property
    def latest_event_ms(self) -> int | None:
        """Latest event time of all records that were in time."""
        return self._latest_ms

    def watermarks(
        self, partitions: Sequence[int], events_ms: Times, is_usable: Marks, log_times_ms: Times | None = None
    ) -> Times:
        """Return the effective watermark for each row, in log order, and advance to after the rows. `partitions`: their labels.

        `is_usable`: False for rows that can't be read; they change nothing. `log_times_ms`: None if event time is log time.
        """
        if not len(partitions):  # no record of the part had a row
            return np.zeros(0, np.int64)
        is_alone = len(set(partitions) | self._reached.keys()) == 1 and not self._awaited()
        if log_times_ms is None and is_alone and self._now_ms == self._came_ms.get(partitions[0]):
            return self._of_one_partition(partitions[0], events_ms, is_usable)
        labels = np.asarray(partitions, np.int64)
        rows = _Rows(labels, events_ms, events_ms if log_times_ms is None else log_times_ms, is_usable)
        found = np.full(len(rows), NEVER_LATE)
        at, alone = 0, 1
        while at < len(rows):
            some = rows[at : at + max(1, _BLOCK_TIMES // max(1, len(self._reached)))]
            done = self._together(some, found[at:]) if self._reached and len(some) > _FEW_ROWS else 0
            at += done
            alone = 1 if done >= alone else 2 * alone
            if done < len(some):
                self._one_by_one(rows[at : at + alone], found[at:])
                at += alone
        return found

    def _one_by_one(self, rows: _Rows, found: Times) -> None:
        """Write the effective watermark of each row to `found`, by the rule."""
        for at, (partition, event_ms, log_ms, usable) in enumerate(rows.as_tuples()):
            if not usable:
                continue
            self._now_ms = log_ms if self._now_ms is None else max(self._now_ms, log_ms)
            in_force = self._before(partition)
            if in_force is not None:
                found[at] = in_force
            if in_force is None or event_ms >= in_force - self._rule.revise_ms:
                reached_ms = min(event_ms, log_ms)
                self._reached[partition] = max(reached_ms, self._reached.get(partition, reached_ms))
                self._latest_ms = greatest(self._latest_ms, event_ms)
                if in_force is None or event_ms >= in_force or partition not in self._came_ms:
                    self._came_ms[partition] = self._now_ms
            self.watermark_ms = greatest(in_force, self._by_rule())

    def _together(self, rows: _Rows, found: Times) -> int:
        """Compute `_one_by_one` in one step, up to the first row that isn't plain. Return the number of computed rows.

        Which rows are in time depends on the watermarks, and these depend on the rows in time. So all rows are evaluated by the
        watermark before the first row, then again by the watermarks that result, until nothing changes. Each pass is right for
        more rows. A row isn't plain if it is the first of its partition, or if the last pass still changed it.
        """
        assert self._now_ms is not None and self.watermark_ms is not None, "a record was in time before"
        now_ms = np.maximum.accumulate(np.where(rows.is_usable, rows.log_times_ms, NEVER_LATE))
        now_ms = np.maximum(now_ms, self._now_ms)
        last_ms = rows.events_ms + self._rule.revise_ms  # maximum watermark for which the row isn't too late
        is_known = np.isin(rows.partitions, list(self._reached))
        limits_ms = np.full(len(rows), self.watermark_ms)
        for _ in range(_PASSES_MAX):
            is_counted, is_in_time = last_ms >= limits_ms, rows.events_ms >= limits_ms
            times = self._times(rows, now_ms, rows.is_usable & is_counted, rows.is_usable & is_in_time)
            marks = np.empty((len(rows), 2), np.int64)
            for stage in (BEFORE, AFTER):
                marks[:, stage] = np.where(rows.is_usable, self._marks(rows, times, now_ms, stage), NEVER_LATE)
            watermarks = np.maximum(np.maximum.accumulate(marks.ravel()).reshape(marks.shape), self.watermark_ms)
            limits_ms = watermarks[:, BEFORE]
            is_same = (is_counted == (last_ms >= limits_ms)) & (is_in_time == (rows.events_ms >= limits_ms))
            is_plain = ~rows.is_usable | (is_known & is_same)
            end = len(rows) if is_plain.all() else int(np.argmin(is_plain))
            if end == len(rows) or not is_known[end]:
                break
        if not end:
            return 0
        found[:end] = np.where(rows.is_usable, limits_ms, NEVER_LATE)[:end]
        for label, one in times.items():
            self._reached[label], self._came_ms[label] = int(one.reached_ms[end]), int(one.came_ms[end])
        in_time = rows.events_ms[:end][(rows.is_usable & is_counted)[:end]]
        if len(in_time):
            self._latest_ms = greatest(self._latest_ms, int(in_time.max()))
        self._now_ms, self.watermark_ms = int(now_ms[end - 1]), int(watermarks[end - 1, AFTER])
        return end

    def _times(self, rows: _Rows, now_ms: Times, is_counted: Marks, is_in_time: Marks) -> dict[int, _PartitionTimes]:
        """Return label -> times of the partition, if rows in `is_counted` are accepted, and rows in `is_in_time` aren't late.

        An accepted row advances the event time reached. A row that isn't late ends a silence."""
        bounded_ms = np.minimum(rows.events_ms, rows.log_times_ms)
        times = {}
        for label, reached_ms in self._reached.items():
            is_here = rows.partitions == label
            reached = _running(np.where(is_here & is_counted, bounded_ms, NEVER_LATE), reached_ms)
            came = _running(np.where(is_here & is_in_time, now_ms, NEVER_LATE), self._came_ms[label])
            times[label] = _PartitionTimes(reached, came)
        return times

    def _marks(self, rows: _Rows, times: Mapping[int, _PartitionTimes], now_ms: Times, stage: int) -> Times:
        """Return the result of `watermark_by` for each row. `stage`: BEFORE the row, when its partition isn't idle, or after
        it."""
        if self._awaited():
            return np.full(len(now_ms), NEVER_LATE)

        def all_rows(value: int) -> Times:
            return np.full(len(now_ms), value)

        awake_ms, run_on_ms, latest_ms = all_rows(_EVER), all_rows(_EVER), all_rows(NEVER_LATE)
        idle_ms, released_ms = all_rows(_EVER), all_rows(_EVER)
        by_stream: dict[str, list[int]] = {}
        for label in times:
            by_stream.setdefault(self._stream_of(label), []).append(label)
        for stream, labels in by_stream.items():
            rule = self._rule.of(stream)
            newest, least, shortest, awake = all_rows(NEVER_LATE), all_rows(_EVER), all_rows(_EVER), all_rows(_EVER)
            for label in labels:
                one = times[label]
                reached, came = (column[stage : len(column) - 1 + stage] for column in (one.reached_ms, one.came_ms))
                silence = now_ms - came
                if stage == BEFORE:
                    silence = np.where(rows.partitions == label, 0, silence)
                newest, least, shortest = (
                    np.maximum(newest, reached),
                    np.minimum(least, reached),
                    np.minimum(shortest, silence),
                )
                is_awake = True if rule.idle_timeout_ms is None else silence < rule.idle_timeout_ms
                awake = np.minimum(awake, np.where(is_awake, reached, _EVER))
            is_awake, latest = awake < _EVER, newest - rule.delay_ms
            by_partitions = rule.watermark == "partitions"
            own = awake - rule.delay_ms if by_partitions else latest
            awake_ms = np.where(is_awake, np.minimum(awake_ms, own), awake_ms)
            run_on_ms = np.minimum(run_on_ms, least - rule.delay_ms if by_partitions else latest)
            latest_ms = np.maximum(latest_ms, latest)
            timeout_ms = rule.idle_timeout_ms or 0
            idle_ms = np.minimum(idle_ms, shortest - timeout_ms)
            released_ms = np.minimum(released_ms, shortest - 2 * timeout_ms)
        run_on_ms = run_on_ms + idle_ms
        run_on_ms = np.where(released_ms < 0, run_on_ms, np.maximum(run_on_ms, latest_ms + released_ms))
        return np.where(awake_ms < _EVER, awake_ms, run_on_ms)

    def _awaited(self) -> bool:
        """Return True if a stream of results has no result yet, so that nothing closes. In a local run, only its results show the
        progress of the emitting job."""
        known = {self._stream_of(label) for label in self._reached}
        return any(one.watermark == "emissions" and name not in known for name, one in self._rule.by_stream)

    def wait(self, ms: int) -> None:
        """Let log time pass without a record."""
        if self._now_ms is not None:
            self._now_ms += ms
            self.watermark_ms = greatest(self.watermark_ms, self._by_rule())

    def close(self, up_to_ms: int | None) -> None:
        """Close windows up to this time, as a drain does."""
        self.watermark_ms = greatest(self.watermark_ms, up_to_ms)

    def _before(self, partition: int) -> int | None:
        """Return the effective watermark for a record that arrives in the partition now."""
        is_first = partition not in self._reached
        return greatest(self.watermark_ms, self._by_rule([self._stream_of(partition)] if is_first else (), partition))

    def _by_rule(self, first_records: Collection[str] = (), awake: int | None = None) -> int | None:
        """Return the watermark by the rule now. `first_records`: see `watermark_by`. `awake`: a partition that isn't idle. None
        if only silence decides."""
        now_ms = self._now_ms or 0
        reached: dict[str, dict[int, int]] = {}
        silence_ms: dict[str, dict[int, int]] = {}
        for label, event_ms in self._reached.items():
            stream = self._stream_of(label)
            reached.setdefault(stream, {})[label] = event_ms
            silence_ms.setdefault(stream, {})[label] = 0 if label == awake else now_ms - self._came_ms[label]
        return watermark_by(self._rule, reached, silence_ms, first_records=first_records)

    def _stream_of(self, label: int) -> str:
        return self._streams[stream_index_of(label) if len(self._streams) > 1 else 0]

    def _of_one_partition(self, partition: int, events_ms: Times, is_usable: Marks) -> Times:
        """Compute `watermarks` of all rows in one step, for one partition whose log time is event time: silence never moves the
        watermark past the next record."""
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
            self._latest_ms = greatest(self._latest_ms, last_ms)
            self._now_ms = last_ms if self._now_ms is None else max(self._now_ms, last_ms)
            self._came_ms[partition] = self._now_ms
        if after[-1] != NEVER_LATE:
            self.watermark_ms = int(after[-1])
        return found
