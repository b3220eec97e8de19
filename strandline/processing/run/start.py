"""Start of a run: from a snapshot if one fits, otherwise with a rewind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from strandline.core.errors import StrandlineError
from strandline.ledger.roles import LedgerReader
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.run.ending import Ending
from strandline.processing.run.snapshot_choice import SnapshotChoice, SnapshotFailed, lies_elsewhere
from strandline.processing.run.snapshots import Snapshot
from strandline.processing.slices.rewind import RewindPlan, plan_of_job, whole_plan_of_job


@dataclass(frozen=True)
class RunStart:
    """Decides where a run begins, and runs it from there."""

    ledger: LedgerReader
    pipeline: CheckedPipeline
    snapshots: SnapshotChoice
    prepare: Callable[[RewindPlan, Snapshot | None], None]
    """Prepares a run by this plan, or raises an error if it can't follow the plan. See `prepare_run`."""
    run_query: Callable[[RewindPlan, Path | None], Ending]
    """Runs Spark's query to its end, with this checkpoint directory. None for a temporary one."""
    is_java_alive: Callable[[], bool]
    restore: Callable[[], RewindPlan | None] = lambda: None
    """Returns the plan of a run that restores missing results. None if it wasn't requested, or no result is missing."""

    def run(self) -> Ending:
        """Run the query to its end.

        1. If results are restored, rewind to before the first missing one.
        2. With `recovery: snapshot`, begin from a snapshot where one fits.
        3. Otherwise, or when that fails before its first commit, rewind.

        Raises StrandlineError.
        """
        if (restored := self.restore()) is not None:
            self.prepare(restored, None)
            return self.run_query(restored, self.snapshots.begin())
        if (snapshot := self.snapshots.choose()) is not None:
            try:
                return self._resume(snapshot)
            except SnapshotFailed as error:
                self.snapshots.give_up(f"the snapshot of run {snapshot.epoch} failed: {error}")
        plan = plan_of_job(self.ledger, self.pipeline)
        self.prepare(plan, None)
        return self.run_query(plan, self.snapshots.begin())

    def _resume(self, snapshot: Snapshot) -> Ending:
        """Run from a snapshot, and return how the run ended. Raises SnapshotFailed if the snapshot may have caused a failure, and
        the run has committed nothing."""
        # The results that are left out as emitted are the same; only the records that are read again begin later.
        plan = replace(
            whole_plan_of_job(self.ledger, self.pipeline), slice_first=snapshot.slice + 1, reaches_back_to_ms=None
        )
        epoch = self._last_committer()
        self.prepare(plan, snapshot)  # a rewind would need the same of the log, and more
        try:
            return self.run_query(plan, self.snapshots.begin_from(snapshot))
        except (StrandlineError, OSError) as error:
            if lies_elsewhere(error) or self._last_committer() != epoch or not self.is_java_alive():
                raise
            if not self.snapshots.can_rewind():  # nothing else is left to begin from, once the cause is fixed
                raise
            raise SnapshotFailed(str(error)) from error

    def _last_committer(self) -> int:
        """Return the epoch of the run that committed last. 0 if there is none."""
        checkpoint = self.ledger.last_checkpoint(self.pipeline.job)
        return checkpoint.epoch if checkpoint else 0
