"""The commit of a slice. Its results and dead letters are confirmed first; then one ledger transaction writes the checkpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import structlog
from pyspark.sql import DataFrame

from strandline.core.errors import StrandlineError
from strandline.core.failpoints import failpoint
from strandline.ledger.states import CheckpointRow, Offsets, SliceRow
from strandline.processing.emission.rejected_records import RejectedRecords
from strandline.processing.emission.slice_context import SliceContext, publish
from strandline.processing.emission.tap import results_metric
from strandline.processing.pipelines.job_run import JobRun
from strandline.processing.slices.rewind import RewindPlan
from strandline.processing.slices.spark_offset import slice_of_offset
from strandline.processing.slices.watermark import emitted_up_to, greatest

log = structlog.get_logger()


class WatermarkMismatch(StrandlineError):
    """Spark's watermark differs from the ledger's. This is a defect: the run stops before it commits anything."""

    code = "watermark_mismatch"


class SliceCommitter:
    """Spark's `foreachBatch` function of one run. Never called twice at once. `error` keeps the typed error that made a
    batch fail, since Spark passes on only its text."""

    def __init__(
        self,
        run: JobRun,
        plan: RewindPlan,
        rejected_records: RejectedRecords,
        stream_execution: Callable[[], Any],
        first_committed: Callable[[], None],
    ) -> None:
        """`stream_execution` returns Spark's execution of the query. `first_committed` is called once, after this run's first
        commit."""
        self._run = run
        self._pipeline = run.pipeline
        self._plan = plan
        self._ledger = run.ledger
        self._rejected_records = rejected_records
        self._stream_execution = stream_execution
        self._streams_seen: set[str] = set()
        self._first_committed = first_committed
        self.has_committed = False
        self.error: StrandlineError | None = None

    def __call__(self, results: DataFrame, batch: int) -> None:
        try:
            self._process(results, batch)
        except StrandlineError as error:
            self.error = error
            raise

    def _process(self, results: DataFrame, batch: int) -> None:
        """Run one batch. A replayed batch only rebuilds state; a new one is committed."""
        started = time.monotonic()
        execution = self._stream_execution()
        number = slice_of_offset(json.loads(execution.availableOffsets().values().head().json()))
        before = self._ledger.last_checkpoint(self._run.job)
        publish(results.sparkSession.sparkContext, SliceContext.after(before, number))
        if self._pipeline.spec.on_error == "crash" and number > self._plan.slice_committed:
            # Before anything of the slice is emitted: a fixed version must find it untouched. This costs a second reading.
            bad = self._rejected_records.first(number)
            if bad is not None:
                raise bad
        failpoint("slice.before_action")
        # The only action: another one would run the whole batch again, from the log on.
        results.write.format("noop").mode("append").save()
        failpoint("slice.written")
        facts = _observed(execution)
        if number <= self._plan.slice_committed:
            log.info(
                "replayed", job=self._run.job, epoch=self._run.epoch, slice=number, records=facts["facts"]["records"]
            )
            failpoint("rewind.replayed")
            return
        sliced = self._ledger.slices(self._run.job, number, number)[0]
        self._require_same_watermark(execution, sliced, first=batch == 0)
        self.commit_slice(sliced, before, facts)
        if not self.has_committed:
            self.has_committed = True
            self._first_committed()
        log.info(
            "slice committed",
            job=self._run.job,
            epoch=self._run.epoch,
            slice=number,
            records=facts["facts"]["records"],
            seconds=round(time.monotonic() - started, 3),
        )

    def commit_slice(self, sliced: SliceRow, before: CheckpointRow | None, facts: dict[str, dict[str, Any]]) -> None:
        """Make one slice final, so that doing it again changes nothing. Its results are already written and confirmed.

        1. Write its dead letters, if the plan counted rejected records. Identities come from the log, so a repeat adds none.
        2. Add up records, rejections by reason, the latest event time, and where the streams of results end.
        3. Commit the checkpoint under this run's epoch. Only after this may the next slice be planned.
        """
        job = self._run.job
        counted = facts["facts"]
        late = counted["late"]
        dead = counted["rejected"] + facts.get("steps", {}).get("problems", 0)
        written = self._pipeline.spec.late == "dead_letter"
        rejected: dict[str, int] = {}
        dead_letter_offsets = before.dead_letter_offsets if before else {}
        failpoint("commit.before_dead_letters")
        if dead or (late and written):
            rejected, dead_letter_offsets = self._rejected_records.write(sliced.number, dead_letter_offsets)
        if late and not written:
            rejected["late"] = late
        results = {s.name: facts[results_metric(s.name)]["results"] for s in self._pipeline.stages if s.emits}
        result_offsets = self._result_offsets(before, results)
        failpoint("commit.before_checkpoint")
        self._ledger.commit_checkpoint(
            CheckpointRow(
                job=job,
                slice=sliced.number,
                epoch=self._run.epoch,
                version=self._run.version,
                emitted=emitted_up_to(
                    [(s.name, s.size_ms) for s in self._pipeline.stages],
                    sliced.closes_ms,
                    before.emitted if before else {},
                ),
                latest_event_ms=greatest(before.latest_event_ms if before else None, counted["latest_event_ms"]),
                latest_log_ms=greatest(before.latest_log_ms if before else None, counted["latest_log_ms"]),
                records=counted["records"],
                accepted=counted["records"] - sum(rejected.values()),
                rejected=rejected,
                results=results,
                dead_letter_offsets=dead_letter_offsets,
                committed_ms=time.time_ns() // 1_000_000,
                result_offsets=result_offsets,
            )
        )
        failpoint("checkpoint.committed")

    def _result_offsets(self, before: CheckpointRow | None, results: dict[str, int]) -> Offsets:
        """Where each stream of results ends now. Streams to which the slice emitted nothing are only looked up in the run's first
        slice, because fencing older runs may have appended transaction markers."""
        offsets = dict(before.result_offsets) if before else {}
        for stage in self._pipeline.stages:
            for stream in stage.streams:
                if results[stage.name] or stream not in self._streams_seen:
                    self._streams_seen.add(stream)
                    offsets[stream] = self._run.index.settled_ends(stream)
        return offsets

    def _require_same_watermark(self, execution: Any, sliced: SliceRow, *, first: bool) -> None:
        in_spark_ms = int(execution.lastExecution().offsetSeqMetadata().batchWatermarkMs())
        in_ledger_ms = max(0, sliced.closes_ms or 0)
        # A fresh query starts at 0 where nothing was replayed, because no window was open.
        if in_spark_ms != in_ledger_ms and not (first and in_spark_ms == 0):
            raise WatermarkMismatch(
                f"slice {sliced.number} of job {sliced.job}: Spark's watermark is {in_spark_ms} ms, the ledger says "
                f"{in_ledger_ms} ms. Nothing of it was committed. Restart the job; if it happens again, report it."
            )


def _observed(execution: Any) -> dict[str, dict[str, Any]]:
    """The plan's observed metrics after its action: name -> field -> value. A sum over no rows is 0."""
    metrics = execution.lastExecution().observedMetrics()
    observed: dict[str, dict[str, Any]] = {}
    names = metrics.keys().iterator()
    while names.hasNext():
        name = names.next()
        row = metrics.apply(name)
        fields = row.schema().fieldNames()
        observed[str(name)] = {str(field): row.get(i) for i, field in enumerate(fields)}
    for field in ("records", "rejected", "late"):
        observed["facts"][field] = observed["facts"][field] or 0
    return observed
