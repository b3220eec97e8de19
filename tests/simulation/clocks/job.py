"""A job that reads a history. The planner, the meter and the arithmetic of watermarks are real. It counts problems.

- `late`: a record is late, and the cause is neither its own event time nor an idle partition. The record arrived in
  Kafka within the delay after its event time. It is in order in its partition, and the watermark didn't pass it while
  the partition was idle. Idle means: no accepted record for `idle_timeout` between two times at which Kafka or the
  partition couldn't accept records. Before its first accepted record, a partition holds no window open.
- `stuck`: a window stays open for more than two timeouts without an obstacle. The time is counted from the end of the
  window and the delay, from the last record in it, or from the end of the last obstacle. Obstacles are outages, a job
  that doesn't run, a backlog, and a partition that is behind and not idle. An obstacle can end before event time
  reaches the end of the window. The window can then stay open for the remaining event time too, because silence is
  counted again from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from strandline.core.errors import LogUnavailable
from strandline.ledger.progress import JobProgress
from strandline.ledger.states import CheckpointRow, Desired, EventTimeRule, Offsets, SliceKind, SliceRow, SliceStatus
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.slices.continuity import SealPositions
from strandline.processing.slices.planner import InputStream, PlannerSettings, SlicePlanner
from strandline.processing.slices.silence import GAP_MAX_MS
from strandline.processing.slices.watermark import (
    accepted_in_after,
    accepted_partitions,
    bounded_ms,
    greatest,
    reached_after,
)
from tests.simulation.clocks.history import (
    DELAY_MS,
    IDLE_MS,
    MAX_AHEAD_MS,
    SIZE_MS,
    History,
    Record,
)
from tests.simulation.clocks.rules import Variant

JOB = "j"
LOOK_MS = 1_500
STUCK_MS = 2 * IDLE_MS + 6 * LOOK_MS
"""After two timeouts even partitions far behind hold nothing; the rest is for looks that come too late."""
SHAPE = WindowShape(SIZE_MS, SIZE_MS)
PlaceName = tuple[str, int]


@dataclass
class Outcome:
    findings: list[str] = field(default_factory=list)
    """Findings: kind, a colon, a sentence."""
    records: int = 0
    late: int = 0
    by_stated_limit: int = 0
    """Late for a reason that the documentation states as a limit: producers write the log times, and the job had a backlog."""
    waits_ms: list[int] = field(default_factory=list)
    """For each window, the time from its end and the delay, or from its last record if that is later, to its close."""
    slices: int = 0


class MemoryLedger:
    """The rows that the planner reads and writes."""

    def __init__(self) -> None:
        self.slice: SliceRow | None = None
        self.checkpoint: CheckpointRow | None = None
        self._job: Any = SimpleNamespace(desired=Desired.RUNNING, version=1, ends=None)

    def progress_of(self, names: list[str]) -> dict[str, JobProgress]:
        return {name: JobProgress(self._job, self.slice, self.checkpoint) for name in names}

    def last_slice(self, job: str) -> SliceRow | None:
        return self.slice

    def last_checkpoint(self, job: str) -> CheckpointRow | None:
        return self.checkpoint

    def job(self, job: str) -> Any:
        return self._job

    def plan_slices(self, rows: list[SliceRow]) -> dict[str, Any]:
        (self.slice,) = rows
        return {}


class NothingIsLost:
    """The log is always the one that the job has read."""

    def reaches(self, ends: object, read: object) -> bool:
        return True

    def seal_positions(self, row: object, done: object) -> SealPositions:
        return SealPositions([], [])

    def sealed(self, row: SliceRow, *_: object) -> SliceRow:
        return row

    def mark_suspect(self, missing: object) -> None: ...

    def clear_suspect(self) -> None: ...

    def require_same_topics(self, topic_ids: object) -> None: ...


class SimulatedJob:
    def __init__(self, history: History, variant: Variant) -> None:
        self.history, self.variant = history, variant
        self.ledger, self.outcome = MemoryLedger(), Outcome()
        streams = list(history.places)
        one = EventTimeRule(DELAY_MS, IDLE_MS, MAX_AHEAD_MS, history.watermark)  # type: ignore[arg-type]
        rule = (
            one
            if len(streams) == 1
            else EventTimeRule(
                DELAY_MS,
                IDLE_MS,
                MAX_AHEAD_MS,
                history.watermark,
                tuple((name, one) for name in streams),  # type: ignore[arg-type]
            )
        )
        self._settings = PlannerSettings(
            JOB, 1, 1, tuple(InputStream(name, has_senders_times=history.has_senders_times) for name in streams),
            history.rows_max, rule, (SHAPE,),
        )  # fmt: skip
        self._meter: Any = None
        self._accepted: dict[PlaceName, Record] = {}
        """Last accepted record of each partition."""
        self._accepted_before: dict[PlaceName, Record] = {}
        """Last accepted records before the slice that is committed now. Its watermark depends on these."""
        self._passed_ms: dict[PlaceName, int] = {}
        """Up to where windows were closed while the partition was idle, or before its first accepted record."""
        self._in_order_ms: dict[PlaceName, int] = {}
        self._open: dict[int, int] = {}
        """End of each window that is open -> when its last record came."""
        self._clear_from_ms = history.now_ms
        """Since this time, only the windows themselves hold the job back."""
        self._had_backlog = False
        self._planner = self._new_run()

    def run(self) -> Outcome:
        history = self.history
        while history.now_ms < history.end_ms and not self.outcome.findings and not self._is_over():
            down = next((span for span in history.down if span.holds(history.now_ms)), None)
            if down is not None:
                self._wait_until(down.end_ms)
                self._planner = self._new_run()
                continue
            looked_ms = history.now_ms
            try:
                row = self._planner.next_slice()
            except LogUnavailable:
                self._wait_until(looked_ms + LOOK_MS)
                continue
            if row is not None:
                slow = next((span for span in history.slow if span.holds(looked_ms)), None)
                history.now_ms = looked_ms + 100 if slow is None else slow.end_ms
                if any(looked_ms <= span.begin_ms < history.now_ms for span in history.down):
                    # The run ends before the commit. The next run has the same slice, and counts silence from its start.
                    self._wait_until(history.now_ms)
                    self._planner = self._new_run()
                    continue
                self._commit(row)
                if slow is not None or row.kind is SliceKind.CATCH_UP:
                    self._clear_from_ms = history.now_ms
            self._look_for_stuck_windows()
            if row is None or row.kind is not SliceKind.CATCH_UP:
                history.now_ms = max(history.now_ms, looked_ms + LOOK_MS // 2 + history.chance.randrange(LOOK_MS))
        return self.outcome

    def _is_over(self) -> bool:
        """True if all records are read and every window is closed."""
        return not self._open and self.history.now_ms > self.history.last_ms + 2 * LOOK_MS and self._is_all_read()

    def _is_all_read(self) -> bool:
        ends = self.ledger.slice.offsets if self.ledger.slice is not None else {}
        return all(
            ends.get(stream, {}).get(at, 0) == len(place.records)
            for stream, places in self.history.places.items()
            for at, place in enumerate(places)
        )

    def _wait_until(self, at_ms: int) -> None:
        self.history.now_ms = self._clear_from_ms = at_ms

    def _new_run(self) -> SlicePlanner:
        history, ledger = self.history, self.ledger
        if self._meter is None or not self.variant.keeps_meter:
            self._meter = self.variant.meter(lambda: history.now_ms)
        planner = SlicePlanner(
            self._settings,
            ledger,
            history,
            lambda: history.now_ms + history.wall_off_ms,
            self._meter,  # type: ignore[arg-type]
        )
        planner._continuity = NothingIsLost()  # type: ignore[assignment]
        if hasattr(self._meter, "read"):
            self._meter.read = lambda: planner._log.labelled(ledger.slice.offsets) if ledger.slice else {}
        return planner

    def _commit(self, row: SliceRow) -> None:
        before, history = self.ledger.checkpoint, self.history
        self.outcome.slices += 1
        self._accepted_before = dict(self._accepted)
        self._had_backlog |= row.kind is SliceKind.CATCH_UP
        latest: Offsets = {}
        reached: Offsets = {}
        log_ms = [] if before is None or before.latest_log_ms is None else [before.latest_log_ms]
        accepted_events = []
        for stream, ends in row.offsets.items():
            rule = row.rule.of(stream)
            for partition, end in ends.items():
                held = history.places[stream][partition].records[row.offsets_first[stream].get(partition, 0) : end]
                if not held:
                    continue
                log_ms.append(max(one.log_ms for one in held))
                accepted = [one for one in held if self._is_accepted(row, stream, partition, one)]
                if not accepted:
                    continue
                events = [one.event_ms for one in accepted]
                accepted_events += events
                latest.setdefault(stream, {})[partition] = latest_ms = max(events)
                logged_ms = max(min(one.event_ms, one.log_ms) for one in accepted)
                reached_ms = bounded_ms(rule, row, latest_ms, logged_ms) if self.variant.is_bounded else latest_ms
                reached.setdefault(stream, {})[partition] = reached_ms
        came, after = accepted_partitions(row, latest), reached_after(row.reached, reached)
        closes_ms = self.variant.closes_after(row, after, came)
        self.ledger.slice = replace(row, status=SliceStatus.COMMITTED)
        self.ledger.checkpoint = CheckpointRow(
            job=JOB, slice=row.number, epoch=1, version=1, emitted={},
            latest_event_ms=greatest(before.latest_event_ms if before else None, *accepted_events),
            latest_log_ms=max(log_ms, default=None), records=0, accepted=0, rejected={}, results={}, dead_letter_offsets={},
            committed_ms=history.now_ms, closes_ms=closes_ms, reached=after,
            accepted_in=accepted_in_after(before, came, row.number),
        )  # fmt: skip
        if closes_ms is not None:
            for place, last in self._accepted_before.items():
                if self._accepted[place] is last and self._idle_ms(place, last.came_ms, history.now_ms) >= IDLE_MS:
                    self._passed_ms[place] = closes_ms
            for end_ms in [one for one in self._open if one <= closes_ms]:
                due_ms = max(end_ms + DELAY_MS, self._open.pop(end_ms))
                self.outcome.waits_ms.append(max(0, history.now_ms - due_ms))

    def _is_accepted(self, row: SliceRow, stream: str, partition: int, record: Record) -> bool:
        self.outcome.records += 1
        if not record.is_readable or record.event_ms > record.log_ms + MAX_AHEAD_MS:
            return False
        place = stream, partition
        if row.watermark_ms is not None and record.event_ms < row.watermark_ms:
            self.outcome.late += 1
            self._explain(row, place, record)
            return False
        bound_ms = row.planned_ms if self.history.has_senders_times else record.came_ms
        if place not in self._accepted and row.watermark_ms is not None:
            self._passed_ms[place] = row.watermark_ms
        self._accepted[place] = record
        self._in_order_ms[place] = max(min(record.event_ms, bound_ms), self._in_order_ms.get(place, 0))
        end_ms = SHAPE.first_end(record.event_ms)
        self._open[end_ms] = max(record.came_ms, self._open.get(end_ms, 0))
        return True

    def _explain(self, row: SliceRow, place: PlaceName, record: Record) -> None:
        """Note a record that is late without cause."""
        is_punctual = record.came_ms - record.event_ms <= DELAY_MS
        last, in_order_ms = self._accepted_before.get(place), self._in_order_ms.get(place, 0)
        is_in_order = last is not None and record.event_ms >= in_order_ms - DELAY_MS
        is_held_for = (
            is_in_order
            and last is not None
            and row.rule.watermark == "partitions"
            and record.event_ms >= self._passed_ms.get(place, 0)
            and self._idle_ms(place, last.came_ms, record.came_ms) < IDLE_MS
        )
        if not is_punctual and not is_held_for:
            return
        if self.history.has_senders_times and self._had_backlog:
            self.outcome.by_stated_limit += 1
            return
        why = "in time" if is_punctual else "in order"
        self.outcome.findings.append(f"late: {record} of {place} is {why}, and late in slice {row.number}")

    def _idle_ms(self, place: PlaceName, from_ms: int, to_ms: int) -> int:
        """Return how long the partition was idle between two records, as far as the job can know.

        It is the longest time without an outage, because a count starts again after each outage.
        """
        history = self.history
        away = [*history.kafka_away, *history.places[place[0]][place[1]].not_writable]
        # A part of the time in which the job doesn't look counts, because it isn't known to be an outage.
        unseen_ms = GAP_MAX_MS * len(history.slow) + LOOK_MS * 2 * len(away)
        longest_ms = begin_ms = 0
        for span in sorted(away):
            longest_ms = max(longest_ms, min(span.begin_ms, to_ms) - max(begin_ms, from_ms))
            begin_ms = max(begin_ms, span.end_ms)
        return max(longest_ms, to_ms - max(begin_ms, from_ms)) + unseen_ms

    def _look_for_stuck_windows(self) -> None:
        if not self._open:
            return
        checkpoint, now_ms = self.ledger.checkpoint, self.history.now_ms
        assert checkpoint is not None, "a window was opened"
        end_ms = min(self._open)
        needed_ms = end_ms + DELAY_MS
        if any(
            now_ms - self._accepted[stream, partition].came_ms < IDLE_MS + 2 * LOOK_MS and reached_ms < needed_ms
            for stream, partitions in checkpoint.reached.items()
            for partition, reached_ms in partitions.items()
        ):
            self._clear_from_ms = max(self._clear_from_ms, now_ms)
        if any(self.history.not_writable(stream) for stream in self.history.places):
            self._clear_from_ms = now_ms
        # From there on, silence has to bring event time to the end of the window.
        latest_ms = max(reached_ms for partitions in checkpoint.reached.values() for reached_ms in partitions.values())
        silent_from_ms = max(self._open[end_ms], self._clear_from_ms)
        waited_ms = now_ms - max(needed_ms, silent_from_ms + max(0, needed_ms - latest_ms))
        if waited_ms > STUCK_MS:
            self.outcome.findings.append(f"stuck: the window that ends at {end_ms} waits for {waited_ms} ms")


def simulate_clocks(history: History, variant: Variant) -> Outcome:
    """Run the job over the history. Its `variant` must be patched in."""
    return SimulatedJob(history, variant).run()
