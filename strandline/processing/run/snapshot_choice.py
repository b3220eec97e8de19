"""Choice whether a run begins from a snapshot or with a rewind, and its record in the ledger."""

from __future__ import annotations

from pathlib import Path

import pyspark
import structlog

from strandline.core.errors import (
    BadRecord,
    Fenced,
    IndexMisconfigured,
    InvalidSettings,
    LogChanged,
    LogTruncated,
    NotFound,
    RecordTooLarge,
    SchemaChanged,
    StrandlineError,
    TransientError,
)
from strandline.processing.pipelines.job_run import JobRun
from strandline.processing.run.snapshots import Snapshot, SnapshotBounds, SnapshotManifest, Snapshots
from strandline.processing.slices.rewind import (
    plan_of_job,
    require_ledger_holds,
    require_log_holds,
    rewind_cost,
    whole_plan_of_job,
)
from strandline.processing.spark.cluster import snapshot_directory
from strandline.processing.spark.session import shuffle_partitions

log = structlog.get_logger()

_ELSEWHERE = (
    TransientError, Fenced, BadRecord, LogChanged, NotFound, LogTruncated, IndexMisconfigured, InvalidSettings, RecordTooLarge,
    SchemaChanged,
)  # fmt: skip
TRIES = 2
"""Number of runs in a row without a commit, after which the next run does not begin from a snapshot."""


class SnapshotFailed(StrandlineError):
    """A run that began from a snapshot failed before its first commit, perhaps because of the snapshot. The job rewinds."""

    code = "snapshot_failed"


class SnapshotChoice:
    """Chooses the snapshot from which a run begins, and removes old snapshots. With `recovery: rewind` it removes all."""

    def __init__(self, run: JobRun) -> None:
        self._ledger = run.ledger
        self._index = run.index
        self._run = run.row
        self._pipeline = run.pipeline
        manifest = SnapshotManifest(
            job=run.job,
            digest=run.pipeline.digest,
            spark=pyspark.__version__,
            shuffle_partitions=shuffle_partitions(run.settings),
        )
        self._snapshots = Snapshots(snapshot_directory(run.settings), manifest, run.row)
        self._is_wanted = run.pipeline.spec.recovery == "snapshot"

    def choose(self) -> Snapshot | None:
        """Return the snapshot from which the run begins. None if the job rewinds; an event records the reason."""
        if not self._is_wanted:
            self._snapshots.remove_all()
            return None
        job = self._run.job
        checkpoint, last = self._ledger.last_checkpoint(job), self._ledger.last_slice(job)
        if checkpoint is None or last is None:
            return None  # nothing to recover
        plan, runs = whole_plan_of_job(self._ledger, self._pipeline), self._ledger.runs(job)
        snapshot, refused = self._snapshots.choose(
            SnapshotBounds(plan.slice_first, plan.slice_committed, last.number), runs
        )
        in_vain = [one for one in runs if checkpoint.epoch < one.epoch < self._run.epoch]
        if snapshot is None:
            self._say_unusable("; ".join(refused) or "there is none")
        elif plan.held_open_from_ms is not None:
            self._say_unusable("only a rewind emits windows that another version has left over")
        elif len(in_vain) >= TRIES and self.can_rewind():
            self._say_unusable(f"{len(in_vain)} runs have committed nothing since the last checkpoint")
        else:
            return snapshot
        return None

    def begin_from(self, snapshot: Snapshot) -> Path:
        """Create this run's checkpoint directory from the snapshot, and return it. Raises SnapshotUnusable, OSError."""
        return self._snapshots.begin(snapshot)

    def begin(self) -> Path | None:
        """Create and return this run's checkpoint directory, empty. None if the job has `recovery: rewind`, or no snapshot can be
        written."""
        if not self._is_wanted:
            return None
        try:
            return self._snapshots.begin(None)
        except OSError as error:
            self._say_unusable(f"no snapshot can be written: {error}")
            return None

    def keep_newest(self) -> None:
        """Remove the snapshots of other runs. Call it after this run's first commit."""
        self._snapshots.remove_others()

    def give_up(self, why: str) -> None:
        """Remove all snapshots, and record the reason in an event."""
        self._say_unusable(why)
        self._snapshots.remove_all()

    def can_rewind(self) -> bool:
        """Return True if ledger and log still contain all slices and records that a rewind needs."""
        plan = plan_of_job(self._ledger, self._pipeline)
        cost = rewind_cost(self._ledger, plan, self._run.job)
        try:
            require_ledger_holds(self._ledger, self._run.job, plan)
            require_log_holds(
                self._run.job, cost.needed, {one: self._index.starts(one) for one in self._pipeline.streams}
            )
        except (LogTruncated, NotFound):
            # A broker that has just started may not know the topic yet. If it is gone, preparing the run says so.
            return False
        return True

    def _say_unusable(self, why: str) -> None:
        message = f"job {self._run.job} does not begin from a snapshot, so it rewinds: {why}"
        log.warning(message, job=self._run.job, epoch=self._run.epoch)
        self._ledger.record_event("snapshot_unusable", message, self._run.job, self._run.epoch, {"reason": why})


def lies_elsewhere(error: Exception) -> bool:
    """Return True if the snapshot that the run began from can't be the cause of a failure.

    Other causes are a server that is away, a newer run, a bad or large record, a wrong setting, or a changed log, schema, or
    store. A rewind would fail in the same way, and the snapshot may be needed after the remedy.
    """
    return isinstance(error, _ELSEWHERE)
