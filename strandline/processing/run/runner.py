"""A job's runner: the Spark driver of one job. `python -m strandline.processing.run.runner --job NAME`, or `--standby` for one
that gets its job later, as a line of JSON on stdin: `{"job": ..., "lease": ..., "log": ...}`.

Its exit codes are in `exit_codes.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Literal

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from strandline.core.errors import (
    Fenced,
    LedgerUnavailable,
    PermanentError,
    StrandlineError,
    TransientError,
)
from strandline.core.failpoints import failpoint
from strandline.core.logs import configure_logs
from strandline.core.settings import Settings
from strandline.core.stream import StreamSpec
from strandline.ledger.database import without_secrets
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import Desired, JobState, RunRow, SliceStatus
from strandline.log.index import LogIndex
from strandline.processing.emission.commit import SliceCommitter
from strandline.processing.emission.fencing import fence_older_runs
from strandline.processing.emission.rejected_records import RefusedWriter
from strandline.processing.emission.tap import EmissionTap
from strandline.processing.operators.stages import build_stages
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.event_time import EventTimeRule
from strandline.processing.pipelines.result_streams import emitter_of
from strandline.processing.pipelines.stored import load_pipeline
from strandline.processing.run.exit_codes import EXIT_AWAY, EXIT_DONE, EXIT_FAILED, EXIT_TRY_AGAIN
from strandline.processing.run.snapshot_choice import SnapshotChoice, SnapshotFailed, lies_elsewhere
from strandline.processing.run.snapshots import Snapshot
from strandline.processing.run.watchdog import Guard, end_process_group
from strandline.processing.slices.planner import PlannerSettings, is_drained
from strandline.processing.slices.rewind import (
    RUN_BEGINS,
    RewindPlan,
    plan_of_job,
    require_log_holds,
    require_same_topic,
    rewind_cost,
    whole_plan_of_job,
)
from strandline.processing.slices.watermark import open_until
from strandline.processing.source.data_source import LogSource, SourceConfig, log_source
from strandline.processing.source.decoding import decoding_of
from strandline.processing.spark.class_archive_maker import provide_archive
from strandline.processing.spark.errors import failure_of
from strandline.processing.spark.session import slots_of, start_spark
from strandline.processing.spark.warm_up import warm_up

log = structlog.get_logger()

_ON_THE_WAY = {JobState.STOPPED: JobState.STOPPING, JobState.DRAINED: JobState.DRAINING}
_LOOK_S = 0.1
FINISH_TRIES = 3
"""So many runs of a replaced version may fail over its last slice before the present one takes it."""


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
    ) -> None:
        """With `spark`, the runs use that session and leave it running; else they start and stop one of their own.

        `lease` is the epoch of the leader's lease: under an older one than the present no run begins, and a later one ends
        this run. None leads by itself, for a run by hand. `alive_fd`: where to show that this process lives.
        """
        self._settings = settings
        self._job = job
        self._spark = spark
        self._is_own_spark = spark is None
        self._lease = lease
        self._alive_fd = alive_fd
        self._ledger = Ledger.open(settings.ledger_url)
        self._stop_now = threading.Event()
        self._scratch = (settings.scratch_dir or settings.data_dir / "scratch") / job

    def stop_now(self, *_: int | FrameType | None) -> None:
        """End the run at once; the slice at work is done again by the next one. The job's desired state stays."""
        self._stop_now.set()

    def run(self) -> int:
        """Run the job until it is stopped, drained or fails; return the exit code.

        A version that was replaced finishes the slice that it has begun, because results of it may be out; if it can't, the
        present version does it.
        """
        # Nothing is ever read from what older runs left here.
        shutil.rmtree(self._scratch, ignore_errors=True)
        present_version = False
        try:
            while True:
                try:
                    run = self._ledger.begin_run(
                        self._job, os.getpid(), present_version=present_version, lease=self._lease
                    )
                except StrandlineError as error:
                    log.error("the run cannot begin", job=self._job, code=error.code, message=str(error))
                    return EXIT_AWAY if isinstance(error, TransientError) else EXIT_FAILED
                log.info("run begins", job=self._job, epoch=run.epoch, version=run.version)
                failpoint("run.begun")
                try:
                    with self._guard(run) as guard:
                        outcome = self._run_version(run, guard)
                    if outcome is not None:
                        return EXIT_DONE
                    present_version = False
                except StrandlineError as error:
                    if not self._hand_on(run, error):
                        return self._failed(run.epoch, error)
                    present_version = True
        finally:
            if self._spark is not None and self._is_own_spark:
                with contextlib.suppress(Py4JError, OSError):  # its JVM may be what has died
                    self._spark.stop()
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._ledger.close()

    @contextmanager
    def _guard(self, run: RunRow) -> Iterator[Guard]:
        guard = Guard(
            self._ledger, self._job, run.epoch, self._lease, self._settings.lease_s, self._alive_fd, end_process_group
        )
        guard.start()
        try:
            yield guard
        finally:
            guard.close()

    def _run_version(self, run: RunRow, guard: Guard) -> str | None:
        """Run one version of the job; return the run's outcome, None when a new version is to follow at once.

        1. With `recovery: snapshot`, begin from a snapshot where one fits.
        2. Otherwise, or when that fails before its first commit, plan the rewind.
        3. Either way: make sure that the log still holds what is needed, shut out what older runs may still write to Kafka, and
           start the Spark query there.
        4. Watch it until it shall stop, and say in the ledger how it ended.

        Raises StrandlineError.
        """
        self._ledger.move_job(self._job, JobState.STARTING, epoch=run.epoch)
        pipeline = load_pipeline(self._ledger, self._job, run.version)
        failpoint("rewind.before_plan")
        snapshots = SnapshotChoice(self._ledger, self._settings, run, pipeline)
        if (snapshot := snapshots.choose()) is not None:
            try:
                return self._resume(snapshots, snapshot, run, pipeline, guard)
            except SnapshotFailed as error:
                snapshots.give_up(f"the snapshot of run {snapshot.epoch} failed: {error}")
        plan = plan_of_job(self._ledger, pipeline)
        self._prepare(run, pipeline, plan, None)
        return self._run_query(run, pipeline, plan, snapshots.begin(), snapshots, guard)

    def _resume(
        self, snapshots: SnapshotChoice, snapshot: Snapshot, run: RunRow, pipeline: CheckedPipeline, guard: Guard
    ) -> str | None:
        """Run from a snapshot. Raises SnapshotFailed when that may be the snapshot's fault, and nothing was committed."""
        # What is left out as emitted is the same; only what is read again begins later.
        plan = replace(
            whole_plan_of_job(self._ledger, pipeline), slice_first=snapshot.slice + 1, reaches_back_to_ms=None
        )
        epoch = self._last_committer()
        self._prepare(run, pipeline, plan, snapshot)  # a rewind would need the same of the log, and more
        try:
            return self._run_query(run, pipeline, plan, snapshots.begin_from(snapshot), snapshots, guard)
        except (StrandlineError, OSError) as error:
            if lies_elsewhere(error) or self._last_committer() != epoch or not self._is_java_alive():
                raise
            raise SnapshotFailed(str(error)) from error

    def _run_query(
        self,
        run: RunRow,
        pipeline: CheckedPipeline,
        plan: RewindPlan,
        checkpoint: Path | None,
        snapshots: SnapshotChoice,
        guard: Guard,
    ) -> str | None:
        """Start the query and watch it to its end; Spark's checkpoint is `checkpoint`, or none that outlives the run."""
        scratch = self._scratch / str(run.epoch)
        scratch.mkdir(parents=True, exist_ok=True)
        spark = self._session(scratch)
        committer: SliceCommitter | None = None
        try:
            fence_older_runs(self._ledger, self._settings.kafka_bootstrap, run)
            slots = slots_of(spark)
            self._ledger.set_run_slots(self._job, run.epoch, slots)
            emitter = emitter_of(self._ledger, pipeline.spec.input.stream)
            config = source_config(self._settings, pipeline, plan, run.version, run.epoch, spark, emitter)
            spark.dataSource.register(log_source(config))
            tap = EmissionTap(
                pipeline, run.version, run.epoch, plan.emitted, self._settings, self._stream_keys(pipeline)
            )
            refused = RefusedWriter(spark, pipeline, self._settings, run.epoch, slots)
            streams = spark._jsparkSession.streams()  # the way to what Spark's listeners only hear afterwards
            committer = SliceCommitter(
                pipeline,
                run.version,
                run.epoch,
                plan,
                self._ledger,
                refused,
                lambda: streams.active()[0].streamingQuery(),
                LogIndex(self._settings.kafka_bootstrap),
                snapshots.keep_newest,
            )
            frame = build_stages(spark.readStream.format(LogSource.name()).load(), pipeline, tap)
            failpoint("run.before_query")
            query = (
                frame.writeStream.foreachBatch(committer)
                .option("checkpointLocation", str(checkpoint or scratch / "checkpoint"))
                .queryName(self._job)
                .start()
            )
            return self._end(run, self._watch(query, run, pipeline.event_time_rule, guard))
        except (PySparkException, Py4JError) as error:
            cause = committer.failure if committer else None
            raise cause or failure_of(error) from error
        finally:
            guard.rest()
            shutil.rmtree(scratch / "checkpoint", ignore_errors=True)

    def _stream_keys(self, pipeline: CheckedPipeline) -> dict[str, str | None]:
        names = [name for stage in pipeline.stages for name in stage.streams]
        return {name: StreamSpec.from_document(self._ledger.stream(name).document).key for name in names}

    def _session(self, scratch: Path) -> SparkSession:
        if self._spark is None:
            self._spark = start_spark(self._settings, self._job, scratch)
        return self._spark

    def _is_java_alive(self) -> bool:
        try:
            return self._spark is None or bool(self._spark.version)
        except (Py4JError, OSError):
            return False

    def _last_committer(self) -> int:
        checkpoint = self._ledger.last_checkpoint(self._job)
        return checkpoint.epoch if checkpoint else 0

    def _end(self, run: RunRow, ended: JobState | Literal["interrupted", "replaced"]) -> str | None:
        """Say in the ledger how a run ended that did not fail."""
        if not isinstance(ended, JobState):
            self._ledger.end_run(self._job, run.epoch, ended, "")
            return None if ended == "replaced" else ended
        self._ledger.end_run(self._job, run.epoch, ended.value, "")
        self._ledger.move_job(self._job, _ON_THE_WAY[ended], epoch=run.epoch)
        self._ledger.move_job(self._job, ended, epoch=run.epoch)
        return ended.value

    def _hand_on(self, run: RunRow, error: StrandlineError) -> bool:
        """Whether a replaced version that failed over its last slice leaves it to the present one: when a new try can't
        help, or has not helped."""
        if isinstance(error, Fenced | TransientError) or run.version == self._ledger.job(self._job).version:
            return False
        last = self._ledger.last_slice(self._job)
        tries = [
            one
            for one in self._ledger.runs(self._job)
            if last is not None and one.epoch >= last.epoch and one.version == run.version
        ]
        if not isinstance(error, PermanentError) and len(tries) < FINISH_TRIES:
            return False
        self._ledger.end_run(self._job, run.epoch, "failed", str(error))
        message = f"version {run.version} could not finish its slice ({error}); the present version does it"
        log.warning(message, job=self._job, epoch=run.epoch)
        self._ledger.record_event("slice_handed_on", message, job=self._job, epoch=run.epoch)
        return True

    def _prepare(self, run: RunRow, pipeline: CheckedPipeline, plan: RewindPlan, snapshot: Snapshot | None) -> None:
        """Make sure that the log holds what the plan needs, and say in the ledger how the run begins. Raises LogTruncated,
        Conflict."""
        stream = pipeline.spec.input.stream
        index = LogIndex(self._settings.kafka_bootstrap)
        what_now = "Submit the pipeline under another name."
        require_same_topic(self._job, self._ledger.stream(stream), index.topic_id(stream), what_now)
        cost = rewind_cost(self._ledger, plan, self._job)
        require_log_holds(self._job, cost.needed, {stream: index.starts(stream)})
        way = "rewind" if snapshot is None else "snapshot"
        facts = {
            "epoch": run.epoch,
            "way": way,
            "slice_first": plan.slice_first,
            "slice_committed": plan.slice_committed,
            "records": cost.records,
        }
        log.info("rewind planned", job=self._job, reaches_back_to_ms=plan.reaches_back_to_ms, **facts)
        source = "the log" if snapshot is None else f"the snapshot of run {snapshot.epoch} and the log"
        message = (
            f"run {run.epoch} begins from {source}, at slice {plan.slice_first}; {cost.records} records are read again"
        )
        self._ledger.record_event(RUN_BEGINS, message, self._job, run.epoch, facts)
        failpoint("rewind.planned")

    def _watch(
        self, query: StreamingQuery, run: RunRow, rule: EventTimeRule, guard: Guard
    ) -> JobState | Literal["interrupted", "replaced"]:
        """Wait until the run shall end; return the state to move the job to, or why it stays as it is.

        While the ledger is away it waits too: the guard says when that is too long.
        """
        self._ledger.move_job(self._job, JobState.RUNNING, epoch=run.epoch)
        while True:
            if not query.isActive:
                failure = query.exception()
                raise (
                    failure
                    if failure is not None
                    else StrandlineError(f"the Spark query of job {self._job} ended by itself")
                )
            guard.stir()
            try:
                end: JobState | Literal["interrupted", "replaced"] | None = None
                if not self._stop_now.is_set():
                    end = self._wanted_end(run, rule)
            except LedgerUnavailable as error:
                log.warning("could not look what the job should do", job=self._job, error=str(error))
            if guard.fenced is not None or end is not None or self._stop_now.is_set():
                guard.rest()
                query.stop()
                if guard.fenced is not None:
                    raise guard.fenced
                return end or "interrupted"
            time.sleep(_LOOK_S)

    def _wanted_end(self, run: RunRow, rule: EventTimeRule) -> JobState | Literal["replaced"] | None:
        """How to end the run now, between two slices; None while it shall go on."""
        job = self._ledger.job(self._job)
        last = self._ledger.last_slice(self._job)
        if last is not None and last.status is not SliceStatus.COMMITTED:
            return None
        if job.desired is Desired.STOPPED:
            return JobState.STOPPED
        if job.version != run.version:
            return "replaced"
        still_open_ms = open_until(rule, self._ledger.last_checkpoint(self._job))
        if job.desired is Desired.DRAINED and is_drained(last, still_open_ms):
            return JobState.DRAINED
        return None

    def _failed(self, epoch: int, error: StrandlineError) -> int:
        message = str(error)
        log.error("run failed", job=self._job, epoch=epoch, code=error.code, message=message)
        if isinstance(error, Fenced):
            return EXIT_DONE  # the newer run owns the ledger's rows
        try:
            self._ledger.end_run(self._job, epoch, "failed", message)
            self._ledger.record_event("run_failed", message, job=self._job, epoch=epoch, facts={"code": error.code})
            if isinstance(error, PermanentError):
                self._ledger.move_job(self._job, JobState.FAILED, message, epoch=epoch)
                return EXIT_FAILED
        except (Fenced, LedgerUnavailable) as unsaid:
            log.error("could not say in the ledger how the run ended", job=self._job, epoch=epoch, error=str(unsaid))
        return EXIT_AWAY if isinstance(error, TransientError) else EXIT_TRY_AGAIN


def source_config(
    settings: Settings,
    pipeline: CheckedPipeline,
    plan: RewindPlan,
    version: int,
    epoch: int,
    spark: SparkSession,
    emitter: str | None = None,
) -> SourceConfig:
    """What the planner process and the readers need to know about this run. `emitter`: the job that emits to the stream."""
    checkpoint = pipeline.spec.checkpoint
    return SourceConfig(
        decoding=decoding_of(pipeline, settings.kafka_bootstrap),
        planner=PlannerSettings(
            job=pipeline.job,
            version=version,
            epoch=epoch,
            stream=pipeline.spec.input.stream,
            start=pipeline.spec.input.start,
            rows_max=checkpoint.records or settings.slice_rows_max,
            rule=pipeline.event_time_rule,
            emitter=emitter,
        ),
        slice_first=plan.slice_first,
        slice_committed=plan.slice_committed,
        replay_rows_max=sys.maxsize if plan.is_whole else 4 * settings.slice_rows_max,
        slice_interval_ms=settings.slice_interval_ms if checkpoint.every is None else checkpoint.every,
        parallelism=spark.sparkContext.defaultParallelism,
        ledger_url=without_secrets(settings.ledger_url),
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="strandline-runner", description="Runs one job until it is stopped.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--job", help="the job's name")
    what.add_argument("--standby", action="store_true", help="warm up Spark, then wait on stdin for a job")
    parser.add_argument("--lease", type=int, help="the epoch of the leader's lease; none: run without a leader")
    parser.add_argument("--alive-fd", type=int, help="a file descriptor to show signs of life in")
    options = parser.parse_args(arguments)
    settings = Settings()
    configure_logs(as_json=settings.log_json)
    if options.standby:
        return _stand_by(settings, options.alive_fd)
    return _run_job(settings, options.job, options.lease, options.alive_fd)


def _run_job(
    settings: Settings, job: str, lease: int | None, alive_fd: int | None, spark: SparkSession | None = None
) -> int:
    try:
        runner = Runner(settings, job, spark, lease=lease, alive_fd=alive_fd)
    except StrandlineError as error:
        log.error("the runner cannot start", job=job, code=error.code, message=str(error))
        return EXIT_AWAY if isinstance(error, TransientError) else EXIT_TRY_AGAIN
    signal.signal(signal.SIGTERM, runner.stop_now)
    signal.signal(signal.SIGINT, runner.stop_now)
    return runner.run()


def _stand_by(settings: Settings, alive_fd: int | None) -> int:
    """Warm up, wait for a job, run it.

    1. Have the class archive made if there is none, start Spark, run a small query, step by step, until a job comes.
    2. Take the job from stdin: one line of JSON. Its end without one is the end of the control service, and of this.
    3. Run the job on the session that is there.
    """
    root = settings.scratch_dir or settings.data_dir / "scratch"
    scratch = root / f"standby-{os.getpid()}"
    shutil.rmtree(scratch, ignore_errors=True)  # of another process that had this number
    scratch.mkdir(parents=True)
    try:
        provide_archive(settings, _is_job_waiting)
        spark = start_spark(settings, "standby", scratch)
        warm_up(spark, settings.kafka_bootstrap, scratch, _is_job_waiting)
        log.info("standing by")
        line = sys.stdin.readline()
        if not line:
            return EXIT_DONE
        order = json.loads(line)
        with open(order["log"], "ab") as output:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
                os.dup2(output.fileno(), stream.fileno())
        return _run_job(settings, order["job"], order["lease"], alive_fd, spark)
    except StrandlineError as error:
        log.error("the standby cannot start", code=error.code, message=str(error))
        return EXIT_TRY_AGAIN
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _is_job_waiting() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


if __name__ == "__main__":
    sys.exit(main())
