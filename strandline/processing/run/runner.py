"""A job's runner: the Spark driver of one job. It executes runs until the job is stopped or drained, or fails."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType

import structlog
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from strandline.core.errors import (
    BadRecord,
    Conflict,
    Fenced,
    InvalidSettings,
    LedgerUnavailable,
    PermanentError,
    StrandlineError,
    TransientError,
)
from strandline.core.failpoints import failpoint
from strandline.core.settings import Settings
from strandline.ledger.progress import RunRequest
from strandline.ledger.roles import RunLedger
from strandline.ledger.states import JobState, RunRow
from strandline.log.index import LogIndex
from strandline.processing.emission.made_indices import WriterFactory, elasticsearch_writers
from strandline.processing.pipelines.job_run import JobRun
from strandline.processing.pipelines.stored import load_pipeline, spec_of_version, streams_of_run
from strandline.processing.run.ending import Ending, StopRequest
from strandline.processing.run.exit_codes import EXIT_DONE, EXIT_FAILED, EXIT_OTHER_RUNNER, exit_code_of
from strandline.processing.run.missing_results import plan_restore
from strandline.processing.run.pool_features import MOVED_OUT, MovedOut, leaves_own_runner, require_pool_runs
from strandline.processing.run.preparation import prepare_run
from strandline.processing.run.query import RunQuery, SharedPool
from strandline.processing.run.shared_starts import SharedStarts
from strandline.processing.run.snapshot_choice import SnapshotChoice
from strandline.processing.run.start import RunStart
from strandline.processing.run.start_turn import StartTurn
from strandline.processing.run.watchdog import Watchdog, end_process_group
from strandline.processing.slices.rewind import RewindPlan
from strandline.processing.spark.scratch import scratch_checkpoint, scratch_directory
from strandline.processing.spark.session import start_spark

log = structlog.get_logger()

_ON_THE_WAY = {JobState.STOPPED: JobState.STOPPING, JobState.DRAINED: JobState.DRAINING}
FINISH_TRIES = 3
"""Number of runs of a replaced version that may fail on its last slice before the current version takes it over."""


class Runner:
    """The runs of one job in one process, each under its own epoch: a new one follows when the job has a new version."""

    def __init__(
        self,
        settings: Settings,
        job: str,
        spark: SparkSession | None = None,
        *,
        lease: int | None = None,
        alive_fd: int | None = None,
        writer_of: WriterFactory | None = None,
        is_alone: bool = False,
        pool: SharedPool | None = None,
    ) -> None:
        """`spark`: session that the runs use and leave running. None if they start and stop their own session.

        `lease`: epoch of the leader's lease. No run begins under an older lease than the current one, and a newer lease ends this
        run. None if the run was started by hand. `alive_fd`: file descriptor to which a byte is written regularly while this
        process lives. `writer_of`: factory of the writers of results; the default writes to Elasticsearch. `is_alone`: True if
        no other thread plans queries in the session, so the planner workers may end when the query runs. `pool`: the pool that
        the runs join. None if they run alone.
        """
        self._settings = settings
        self._job = job
        self._spark = spark
        self._is_own_spark = spark is None
        self._is_alone = is_alone
        self._lease = lease
        self._alive_fd = alive_fd
        self._index_url = settings.elasticsearch_url if writer_of is None else None
        self._writer_of = writer_of or elasticsearch_writers(settings, job)
        self._pool = pool
        self._ledger = RunLedger.open(settings.ledger_url) if pool is None else pool.ledger
        self._starts = SharedStarts(self._ledger) if pool is None or pool.starts is None else pool.starts
        self._stop_now = StopRequest()
        self._turn: StartTurn | None = None
        if pool is not None and pool.start_turns is not None:
            self._turn = pool.start_turns.turn(self._stop_now.is_set)
            self._stop_now.on_set = pool.start_turns.wake_up
        self._closing = ExitStack()
        self._scratch: Path | None = None
        self._met_bad_record = False
        """True if the run before this one stopped at a bad record, which it looks for before it emits anything."""

    def stop_now(self, *_: int | FrameType | None) -> None:
        """End the run without finishing its slice, which the next run repeats. The job's desired state stays."""
        self._stop_now.set()

    def run(self) -> int:
        """Run the job until it is stopped, is drained, or fails. Return the exit code of the process.

        A replaced version finishes the slice that it began, because stores may have results of this slice. If it can't, the
        current version takes the slice over, unless a store contains results that the current version wouldn't compute.
        """
        present_version = False
        try:
            while True:
                if self._turn is not None:
                    self._turn.take()
                if self._stop_now.is_set():
                    return EXIT_DONE
                try:
                    self._require_pool_runs_it()
                    row = self._starts.begin(RunRequest(self._job, os.getpid(), present_version, self._lease))
                except StrandlineError as error:
                    log.error("the run cannot begin", job=self._job, code=error.code, message=str(error))
                    return exit_code_of(error, EXIT_FAILED)
                log.info("run begins", job=self._job, epoch=row.epoch, version=row.version)
                failpoint("run.begun")
                try:
                    with self._watchdog(row) as watchdog, self._log_index() as index:
                        ending = self._run_version(row, index, watchdog)
                        self._end(row, ending)
                    if ending != "replaced":
                        return EXIT_DONE
                    if self._leaves_own_runner(row):
                        return EXIT_OTHER_RUNNER
                    present_version = False
                except StrandlineError as error:
                    if not self._hand_on(row, error):
                        return self._failed(row.epoch, error)
                    present_version = True
                except Exception as error:
                    # A defect: the job's status must name it. What Python says of it goes to the log.
                    self._failed(row.epoch, StrandlineError(f"{type(error).__name__}: {error}"))
                    raise
        finally:
            self._give_back_turn()
            if self._spark is not None and self._is_own_spark:
                with contextlib.suppress(Py4JError, OSError):  # its JVM may be what has died
                    self._spark.stop()
            self._closing.close()
            if self._pool is None:
                self._ledger.close()

    def _require_pool_runs_it(self) -> None:
        """Raise NotForPool if the run would join a pool, and the pipeline has a feature that the pool doesn't run."""
        if self._pool is not None:
            require_pool_runs(spec_of_version(self._ledger, self._job, self._ledger.job(self._job).version))

    def _leaves_own_runner(self, row: RunRow) -> bool:
        """Return True if the control service must place the job again, because its new version has another `placement`."""
        if self._pool is not None or self._lease is None:
            return False
        before, after = row.version, self._ledger.job(self._job).version
        specs = [spec_of_version(self._ledger, self._job, version) for version in (before, after)]
        return leaves_own_runner(*specs)

    def _give_back_turn(self) -> None:
        if self._turn is not None:
            self._turn.give_back()

    @contextmanager
    def _log_index(self) -> Iterator[LogIndex]:
        """Read the log with this. In a pool, only until the run has joined it."""
        if self._turn is not None:
            yield self._turn.take()
            return
        with LogIndex(self._settings.kafka_bootstrap) as index:
            yield index

    @contextmanager
    def _watchdog(self, row: RunRow) -> Iterator[Watchdog]:
        watchdog = Watchdog(
            self._ledger, self._job, row.epoch, self._lease, self._settings.lease_s, self._alive_fd, end_process_group
        )
        if self._pool is not None:  # it looks for all its members whether they are fenced
            yield watchdog
            return
        watchdog.start()
        try:
            yield watchdog
        finally:
            watchdog.close()

    def _run_version(self, row: RunRow, index: LogIndex, watchdog: Watchdog) -> Ending:
        """Run one version of the job to its end, from a snapshot or by a rewind. Raises StrandlineError."""
        settings = self._settings
        if not self._has_moved(row, JobState.STARTING):
            return JobState.STOPPED
        ledger = self._starts.ledger_of(row)
        streams = streams_of_run(ledger, row)
        pipeline = load_pipeline(ledger, self._job, row.version, streams)
        ledger.set_run_streams(self._job, row.epoch, streams)
        row = replace(row, stream_versions=streams)
        failpoint("rewind.before_plan")
        run = JobRun(settings, ledger, index, row, pipeline)
        snapshots = SnapshotChoice(run)

        def run_query(plan: RewindPlan, checkpoint: Path | None) -> Ending:
            name = f"runner-{self._job}"
            self._scratch = self._scratch or self._closing.enter_context(scratch_directory(settings, name))
            spark = self._session(self._scratch)
            with scratch_checkpoint(settings, self._scratch / str(row.epoch), f"{name}-{row.epoch}") as temporary:
                query = RunQuery(
                    run,
                    spark,
                    temporary,
                    self._writer_of,
                    snapshots.keep_newest,
                    watchdog,
                    self._stop_now,
                    self._is_alone,
                    self._pool,
                    self._give_back_turn,
                    ledger.forget,
                )
                return query.run_to_end(plan, checkpoint)

        return RunStart(
            ledger,
            pipeline,
            snapshots,
            partial(prepare_run, run, self._index_url, is_before_emission=self._met_bad_record),
            run_query,
            self._is_java_alive,
            partial(plan_restore, run, self._index_url),
        ).run()

    def _session(self, scratch: Path) -> SparkSession:
        if self._spark is None:
            self._spark = start_spark(self._settings, self._job, scratch)
        return self._spark

    def _is_java_alive(self) -> bool:
        try:
            return self._spark is None or bool(self._spark.version)
        except (Py4JError, OSError):
            return False

    def _end(self, row: RunRow, ending: Ending) -> None:
        """Record in the ledger how a run ended that didn't fail, and move the job to that state."""
        if not isinstance(ending, JobState):
            self._ledger.end_run(self._job, row.epoch, ending, "")
            return
        self._ledger.end_run(self._job, row.epoch, ending.value, "")
        if not (self._has_moved(row, _ON_THE_WAY[ending]) and self._has_moved(row, ending)):
            self._ledger.move_job(self._job, JobState.STOPPED, epoch=row.epoch)

    def _has_moved(self, row: RunRow, to: JobState) -> bool:
        """Move the job to the state `to`, and return True. Return False if a stop was requested in the meantime, between two runs
        or while this one ended: then the job may only become stopped."""
        try:
            self._ledger.move_job(self._job, to, epoch=row.epoch)
        except Conflict:
            if self._ledger.job(self._job).state is not JobState.STOPPING:
                raise
            return False
        return True

    def _hand_on(self, row: RunRow, error: StrandlineError) -> bool:
        """Return True if the current version takes over the slice on which a replaced version has failed. Record the failure.

        It does if another attempt would fail in the same way, or after FINISH_TRIES runs.
        """
        if isinstance(error, Fenced | TransientError) or row.version == self._ledger.job(self._job).version:
            return False
        last = self._ledger.last_slice(self._job)
        tries = [
            one
            for one in self._ledger.runs(self._job)
            if last is not None and one.epoch >= last.epoch and one.version == row.version
        ]
        if not self._is_final(error) and len(tries) < FINISH_TRIES:
            return False
        self._ledger.end_run(self._job, row.epoch, "failed", str(error))
        self._met_bad_record = isinstance(error, BadRecord)
        message = (
            f"version {row.version} could not finish its slice ({error}); the current version tries to take it over"
        )
        log.warning(message, job=self._job, epoch=row.epoch)
        self._ledger.record_event("slice_handed_on", message, job=self._job, epoch=row.epoch)
        return True

    def _is_final(self, error: StrandlineError) -> bool:
        """Return True if another run would fail in the same way.

        InvalidSettings isn't final if the job has committed a slice and this run is running: then the settings were right, and a
        secret or certificate may be in replacement. If not, the supervisor stops the job after some failures."""
        if isinstance(error, InvalidSettings) and self._ledger.last_checkpoint(self._job) is not None:
            return self._ledger.job(self._job).state is JobState.STARTING
        return isinstance(error, PermanentError)

    def _failed(self, epoch: int, error: StrandlineError) -> int:
        """Record in the ledger how the run failed. Return the exit code of the process."""
        message = str(error)
        log.error("run failed", job=self._job, epoch=epoch, code=error.code, message=message)
        if isinstance(error, Fenced):
            return EXIT_DONE  # the newer run owns the ledger's rows
        try:
            self._ledger.end_run(self._job, epoch, "failed", message)
            if isinstance(error, MovedOut):
                facts = {"restarts": self._ledger.job(self._job).restarts}
                self._ledger.record_event(MOVED_OUT, message, job=self._job, epoch=epoch, facts=facts)
                return exit_code_of(error)
            self._ledger.record_event("run_failed", message, job=self._job, epoch=epoch, facts={"code": error.code})
            if self._is_final(error):
                self._ledger.move_job(self._job, JobState.FAILED, message, epoch=epoch)
                return EXIT_FAILED
        except (Fenced, LedgerUnavailable, InvalidSettings) as unsaid:  # a secret of the ledger may be being replaced
            log.error("could not say in the ledger how the run ended", job=self._job, epoch=epoch, error=str(unsaid))
        return exit_code_of(error)
