"""The commit of a slice. Its results and dead letters are confirmed first; then one ledger transaction writes the checkpoint."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import structlog
from pyspark.sql import DataFrame

from strandline.core.errors import StrandlineError
from strandline.core.failpoints import failpoint
from strandline.core.record_headers import REASON_DUPLICATE, dead_letter_topic
from strandline.ledger.states import CheckpointRow, Offsets, SliceRow
from strandline.processing.emission.cost_meter import CostMeter
from strandline.processing.emission.keyed_task import BucketOutcome, outcomes_of
from strandline.processing.emission.open_windows import ClosedWindowsSweep
from strandline.processing.pipelines.job_run import JobRun
from strandline.processing.slices.rewind import RewindPlan
from strandline.processing.slices.sender_faults import faults_after
from strandline.processing.slices.spark_offset import slice_of_offset
from strandline.processing.slices.watermark import (
    accepted_in_after,
    accepted_partitions,
    closes_after,
    emitted_up_to,
    greatest,
)
from strandline.processing.source.recorded_counts import recorded_counts
from strandline.processing.source.slice_rows import SourceFacts, add_facts, reached_in, sessions_after
from strandline.results.writer import CommittedWriter

log = structlog.get_logger()


class SliceCommitter:
    """Spark's `foreachBatch` function of one run. Spark calls it for one batch at a time. `error`: the exception that made a
    batch fail, because Spark passes on only its text."""

    def __init__(
        self,
        run: JobRun,
        plan: RewindPlan,
        stream_execution: Callable[[], Any],
        first_committed: Callable[[], None],
        committed_writers: Mapping[str, CommittedWriter] = MappingProxyType({}),
        sweep: ClosedWindowsSweep | None = None,
        costs: CostMeter | None = None,
    ) -> None:
        """`stream_execution` returns Spark's execution of the query. `first_committed` is called once, after this run's first
        commit. `committed_writers`: by sink key. `sweep` is notified of closed windows.
        `costs`: None if the caller of the committer meters the costs."""
        self._run = run
        self._pipeline = run.pipeline
        self._plan = plan
        self._ledger = run.ledger
        self._stream_execution = stream_execution
        self._streams_seen: set[str] = set()
        self._first_committed = first_committed
        self._committed_writers = committed_writers
        self._sweep, self._costs = sweep, costs
        self._updates_dropped = self._updates_reported = 0
        self._replayed_up_to = plan.slice_first - 1
        self.has_committed = False
        self.error: StrandlineError | None = None

    def __call__(self, outcomes: DataFrame, batch: int) -> None:
        try:
            execution = self._stream_execution()
            number = slice_of_offset(json.loads(execution.availableOffsets().values().head().json()))
            # The only action: another one would run the whole batch again, from the log on. It brings one small row a bucket.
            self.process(number, lambda: outcomes_of(outcomes))
        except StrandlineError as error:
            self.error = error
            raise

    def process(self, number: int, run_tasks: Callable[[], list[BucketOutcome]]) -> None:
        """Run one batch up to slice `number`. A replayed batch only rebuilds state; a new one is committed.

        `run_tasks` runs the tasks of the batch and returns the outcomes of all buckets. Raises StrandlineError.
        """
        started = time.monotonic()
        failpoint("slice.before_action")
        found = run_tasks()
        if self._costs is not None:
            self._costs.add_buckets(self._run.job, self._run.epoch, found)
            self._costs.note_if_due()
        failpoint("slice.written")
        if number <= self._replayed_up_to:
            return  # Spark begins a query with a batch, also where there is nothing to read yet
        if number <= self._plan.slice_committed:
            self.replayed(number, found)
            return
        facts = add_facts(one for outcome in found for one in outcome.facts)
        row = self.commit_slice(self._ledger.slices(self._run.job, number, number)[0], facts, found)
        self.committed(row, found, time.monotonic() - started)

    def replayed(self, number: int, outcomes: list[BucketOutcome]) -> None:
        """Note that the replay has come to this committed slice. Raises ReplayMismatch if it held something else then."""
        facts = add_facts(one for outcome in outcomes for one in outcome.facts)
        self._require_same(self._replayed_up_to + 1, number, facts)
        if self._plan.restores(number):
            self._restored(number, outcomes)
        self._replayed_up_to = number
        log.info("replayed", job=self._run.job, epoch=self._run.epoch, slice=number, records=facts.records)
        failpoint("rewind.replayed")

    def committed(
        self, row: CheckpointRow, outcomes: list[BucketOutcome], seconds: float, waited_s: float = 0.0
    ) -> None:
        """Note that the ledger contains this checkpoint. `seconds`: since the batch began. `waited_s`: time for which the slice
        was due before it was planned, because other jobs had a batch."""
        if self._sweep is not None:
            self._sweep.closed(row.closes_ms)
        if not self.has_committed:
            self.has_committed = True
            self._first_committed()
        log.info(
            "slice committed",
            job=self._run.job,
            epoch=self._run.epoch,
            slice=row.slice,
            records=row.records,
            seconds=round(seconds, 3),
            waited=round(waited_s, 3),
        )
        if self._sweep is not None:
            self._tell_updates(outcomes)

    def _restored(self, number: int, outcomes: list[BucketOutcome]) -> None:
        """Commit the results of a slice that were restored to stores. After the last slice, record that all are restored."""
        (sliced,) = self._ledger.slices(self._run.job, number, number)
        self._commit_parts(sliced, outcomes)
        if number < self._plan.slice_committed:
            return
        first = self._plan.restores_from
        message = f"run {self._run.epoch} has restored the results of slices {first} to {number}"
        self._ledger.end_restore(self._run.job, self._run.epoch)
        facts = {"slice_first": first, "slice_last": number}
        self._ledger.record_event("results_restored", message, job=self._run.job, epoch=self._run.epoch, facts=facts)
        log.info(message, job=self._run.job, epoch=self._run.epoch)

    def _commit_parts(self, sliced: SliceRow, outcomes: list[BucketOutcome]) -> None:
        """Notify the stores whose rows become visible only when the slice is complete (`CommittedWriter.commit`)."""
        parts: dict[str, list[str]] = {}
        for outcome in outcomes:
            for place, received in outcome.parts.items():
                parts.setdefault(place, []).extend(received)
        for place in sorted(parts):
            self._committed_writers[place].commit(sliced.number, self._run.epoch, parts[place], sliced.digest)

    def _tell_updates(self, outcomes: list[BucketOutcome]) -> None:
        """Record an event with the number of dropped documents of open windows, each time that the number has doubled."""
        written, dropped = sum(one.updates for one in outcomes), sum(one.updates_dropped for one in outcomes)
        if written or dropped:
            log.info("open windows shown", job=self._run.job, epoch=self._run.epoch, written=written, dropped=dropped)
        self._updates_dropped += dropped
        if dropped and self._updates_dropped >= 2 * self._updates_reported:
            self._updates_reported = self._updates_dropped
            why = next((one.why_dropped for one in outcomes if one.why_dropped), "")
            message = f"{self._updates_dropped:,} updates of open windows were dropped in this run: {why}"
            facts = {"dropped": self._updates_dropped}
            self._ledger.record_event("updates_dropped", message, job=self._run.job, epoch=self._run.epoch, facts=facts)

    def _require_same(self, first: int, last: int, facts: SourceFacts) -> None:
        """Raise ReplayMismatch unless the replayed slices have as many records and rejections as when they were committed."""
        ledger, job = self._ledger, self._run.job
        versions, streams = ledger.slice_versions(job, first, last), self._run.row.stream_versions
        counts = recorded_counts(ledger, job, range(first, last + 1), versions, self._run.version, streams)
        counts.require_same(facts)

    def commit_slice(self, sliced: SliceRow, facts: SourceFacts, outcomes: list[BucketOutcome]) -> CheckpointRow:
        """Commit one slice whose results and dead letters are already written and confirmed. Idempotent. Only after this may the
        next slice be planned."""
        row = self.checkpoint_of(sliced, facts, outcomes, self._ledger.last_checkpoint(self._run.job))
        self._ledger.commit_checkpoint(row)
        failpoint("checkpoint.committed")
        return row

    def checkpoint_of(
        self, sliced: SliceRow, facts: SourceFacts, outcomes: list[BucketOutcome], before: CheckpointRow | None
    ) -> CheckpointRow:
        """Return the checkpoint that makes a slice final, under this run's epoch. `before`: the last checkpoint.

        1. Add up records, rejections by reason, results, and refused results. Find the latest event time, and the ends of the
           streams to which the job writes.
        2. Notify the stores whose rows become visible only when the slice is complete.
        """
        job = self._run.job
        results = {stage.name: 0 for stage in self._pipeline.all_stages if stage.emits}
        refused = Counter[str]()
        for outcome in outcomes:
            for name, count in outcome.results.items():
                results[name] += count
            refused.update(outcome.refused)
        dead_letter_offsets = before.dead_letter_offsets if before else {}
        if any(outcome.letters for outcome in outcomes):
            # At least the end of its own dead letters: an audit attributes missing ones after that to another writer.
            dead_letter_offsets = self._run.index.settled_ends(dead_letter_topic(job))
        result_offsets = self._result_offsets(before, results)
        reached, accepted = reached_in(sliced, facts), accepted_partitions(sliced, facts.latest_ms)
        closes_ms = closes_after(sliced, reached, accepted)
        self._commit_parts(sliced, outcomes)
        stored = Counter[str]()
        for outcome in outcomes:
            stored.update(outcome.stored)
        rejected = dict(facts.rejected)
        if duplicates := sum(outcome.duplicates for outcome in outcomes):
            rejected[REASON_DUPLICATE] = duplicates
        latest_log_ms = greatest(before.latest_log_ms if before else None, facts.latest_log_ms)
        failpoint("commit.before_checkpoint")
        return CheckpointRow(
            job=job,
            slice=sliced.number,
            epoch=self._run.epoch,
            version=self._run.version,
            emitted=emitted_up_to(
                [(s.name, s.shape) for s in self._pipeline.stages],
                closes_ms,
                before.emitted if before else {},
            ),
            latest_event_ms=greatest(before.latest_event_ms if before else None, *facts.latest_event_ms),
            latest_log_ms=latest_log_ms,
            records=facts.records,
            accepted=facts.records - sum(rejected.values()),
            rejected=dict(sorted(rejected.items())),
            results=results,
            dead_letter_offsets=dead_letter_offsets,
            committed_ms=time.time_ns() // 1_000_000,
            result_offsets=result_offsets,
            closes_ms=closes_ms,
            reached=reached,
            refused=dict(refused),
            sessions=sessions_after(sliced, facts),
            accepted_in=accepted_in_after(before, accepted, sliced.number),
            ahead_ms=facts.ahead_ms,
            stored=dict(sorted(stored.items())),
            sender_faults=faults_after(before, sliced.number, facts.partitions, latest_log_ms),
        )

    def _result_offsets(self, before: CheckpointRow | None, results: dict[str, int]) -> Offsets:
        """Return the current end of each stream of results: stream -> partition -> offset. If the slice emitted nothing to a
        stream, its end is queried only in the run's first slice, because fencing older runs can append transaction markers."""
        offsets = dict(before.result_offsets) if before else {}
        for stage in self._pipeline.all_stages:
            for stream in stage.streams:
                if results[stage.name] or stream not in self._streams_seen:
                    self._streams_seen.add(stream)
                    offsets[stream] = self._run.index.settled_ends(stream)
        return offsets
