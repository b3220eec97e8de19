"""The Spark query of a run: how it is put together, started, and ended."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from strandline.core.failpoints import failpoint
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.database import without_secrets
from strandline.ledger.roles import RunLedger
from strandline.log.index import LogIndex
from strandline.processing.emission.commit import SliceCommitter
from strandline.processing.emission.cost_meter import CostMeter
from strandline.processing.emission.document_shapes import EmissionsOfRun
from strandline.processing.emission.keyed_task import DeadLetterTarget, KeyedTask
from strandline.processing.emission.made_indices import WriterFactory
from strandline.processing.emission.member_configs import MemberConfig
from strandline.processing.emission.open_windows import ClosedWindowsSweep, dropped_indices
from strandline.processing.emission.pool_task import PoolDirectory, PoolTask
from strandline.processing.pipelines.job_run import JobRun
from strandline.processing.pipelines.result_streams import emitters_of_inputs
from strandline.processing.run.ending import Ending, StopRequest, effective_schema, ending_by, watch_query
from strandline.processing.run.membership import PoolMember
from strandline.processing.run.pool import SLICE_ROWS_MAX, TRIES, Pool
from strandline.processing.run.shared_starts import SharedStarts
from strandline.processing.run.slice_schedule import INTERVAL_S, QUIET_S, closings_of
from strandline.processing.run.start_turn import StartTurns
from strandline.processing.run.watchdog import Watchdog
from strandline.processing.slices.planner import SlicePlanner
from strandline.processing.slices.rewind import RewindPlan, rewind_cost
from strandline.processing.source.data_source import SliceStreamReader, source_of_run
from strandline.processing.source.run_slices import RunSlices, SourceConfig
from strandline.processing.source.source_config import TaskConfig
from strandline.processing.source.spark_source import LogSource
from strandline.processing.spark.cluster import ExecutorWatch
from strandline.processing.spark.errors import typed_error
from strandline.processing.spark.keyed_query import keyed_query
from strandline.processing.spark.planning_workers import end_planning_workers
from strandline.processing.spark.pool_batches import PoolBatches
from strandline.processing.spark.session import keys_of_buckets

_SHARED_DEADLINE_S = 2.0
"""Maximum time in seconds for which a writer of a member tries again. The other members of the pool wait meanwhile."""
_SHARED_LOOK_S = 5.0
"""How often the thread of a member looks whether the cluster has executors. The end of the member wakes it."""
ALONE_POLL_S = 0.02
"""How often a run that is alone looks for new records while there are none."""


@dataclass(frozen=True)
class SharedPool:
    """A pool, and what its members share."""

    pool: Pool
    directory: PoolDirectory
    index: LogIndex
    """Used only by the thread of the pool."""
    ledger: RunLedger
    start_turns: StartTurns | None = None
    """A run has a turn until it has joined the pool. None for the pool of a run that is alone in its process."""
    starts: SharedStarts | None = None
    """What the starts of the runs share. None for the pool of a run that is alone in its process."""
    is_alone_at_first: bool = False
    """True if a member that joins is alone in a batch until it has committed a slice."""


@dataclass(frozen=True)
class RunQuery:
    """The query of one run. Call `run_to_end` once."""

    run: JobRun
    spark: SparkSession
    temporary_checkpoint: Path
    writer_of: WriterFactory
    first_committed: Callable[[], None]
    """Called once, after the run's first commit."""
    watchdog: Watchdog
    stop_now: StopRequest
    is_alone: bool
    """True if no other thread plans queries in the session."""
    pool: SharedPool | None = None
    """The pool that the run joins. None: it gets one of its own."""
    joined: Callable[[], None] = lambda: None
    """Called when the run has joined its pool."""
    is_started: Callable[[], None] = lambda: None
    """Called when the run is prepared, before it plans a slice."""

    def run_to_end(self, plan: RewindPlan, checkpoint: Path | None) -> Ending:
        """Start the query and watch it to its end. Spark's checkpoint is `checkpoint`, or the temporary one.

        Raises StrandlineError: the committer's typed error where there is one, since Spark passes on only its text.
        """
        run, spark = self.run, self.spark
        committer: SliceCommitter | None = None
        sweep: ClosedWindowsSweep | None = None
        costs: CostMeter | None = None
        try:
            keys = (0,) if self._has_one_task else keys_of_buckets(spark)
            run.ledger.set_run_slots(run.job, run.epoch, len(keys))
            emitters = emitters_of_inputs(run.ledger, run.pipeline)
            parallelism = 1 if self._has_one_task else spark.sparkContext.defaultParallelism
            config = source_of_run(run, plan, emitters, parallelism, keys)
            checkpoint = checkpoint or self.temporary_checkpoint
            task = self._keyed_task(plan, config.task, checkpoint)
            opened = [emission for _, emission in task.open_emissions]
            made = run.ledger.result_indices(run.job)
            sweep = ClosedWindowsSweep(run.job, opened, dropped_indices(made, run.settings.elasticsearch_url, opened))
            costs = None if self._has_one_task else CostMeter(run.ledger)  # a pool meters the costs of its members
            committer = self._committer(plan, task, sweep, costs)
            for stage, emission in zip(run.pipeline.stages, task.emissions, strict=True):
                emission.prepare(stage.shape)
            for records in task.record_emissions:
                records.prepare_for_records()
            failpoint("run.before_query")
            if self._has_one_task:
                return self._run_in_pool(plan, config, task, committer)
            self.is_started()
            spark.dataSource.register(LogSource.of(SliceStreamReader(config)))
            outcomes = keyed_query(spark.readStream.format(LogSource.name()).load(), task)
            query = (
                outcomes.writeStream.foreachBatch(committer)
                .option("checkpointLocation", str(checkpoint))
                .queryName(run.job)
                .start()
            )
            return watch_query(query, run, self.watchdog, ExecutorWatch(spark, run.settings), self.stop_now)
        except (PySparkException, Py4JError) as error:
            cause = committer.error if committer else None
            raise cause or typed_error(error) from error
        finally:
            self.watchdog.disarm()
            if costs is not None:
                costs.note()
            if sweep is not None:
                sweep.close()

    @property
    def _has_one_task(self) -> bool:
        """True if one task computes each slice, without Spark's state store. False for jobs with `recovery: snapshot`, because a
        snapshot is a checkpoint of that store."""
        if self.pool is not None:
            return True
        return self.run.settings.slice_tasks == "one" and self.run.pipeline.spec.recovery != "snapshot"

    def _run_in_pool(
        self, plan: RewindPlan, source: SourceConfig, task: KeyedTask, committer: SliceCommitter
    ) -> Ending:
        """Join the pool, or a pool of this run alone, and wait for the end of the run."""
        run = self.run
        if self.pool is not None:
            return self._wait_in(self.pool, plan, source, task, committer)
        directory = PoolDirectory(self.temporary_checkpoint)
        batches = PoolBatches(self.spark, PoolTask(directory, run.settings.kafka_bootstrap))
        pool = Pool(batches, run.ledger, run.index, 1, poll_s=ALONE_POLL_S, tries=TRIES).start()
        try:
            return self._wait_in(SharedPool(pool, directory, run.index, run.ledger), plan, source, task, committer)
        finally:
            pool.stop()

    def _wait_in(
        self, shared: SharedPool, plan: RewindPlan, source: SourceConfig, task: KeyedTask, committer: SliceCommitter
    ) -> Ending:
        run, pool, directory = self.run, shared.pool, shared.directory
        has_own_pool = self.pool is None
        own = directory.of_member(run.job, run.epoch)
        config = directory.configs.add(MemberConfig(source.task, replace(task, checkpoint=own)))
        schema = effective_schema(run)
        interval_s, closings, planner = source.slice_interval_ms / 1_000, None, source.planner
        if not has_own_pool:  # other members wait for the slice
            planner = replace(planner, rows_max=min(planner.rows_max, SLICE_ROWS_MAX))
            if run.pipeline.spec.checkpoint.every is None:
                closings = closings_of(run.pipeline, run.pipeline.event_time_rule.delay_ms)
                interval_s = max(interval_s, INTERVAL_S if closings is None else QUIET_S)
        member = PoolMember(
            job=run.job,
            epoch=run.epoch,
            config=config,
            plan=plan,
            planner=SlicePlanner(planner, run.ledger, shared.index),
            slices=RunSlices(source, run.ledger),
            committer=committer,
            interval_s=interval_s,
            closings=closings,
            wanted_end=lambda progress, streams: ending_by(
                progress, run.version, run.pipeline.windows, lambda: schema.needs_another_run(streams)
            ),
            checkpoint=run.ledger.last_checkpoint(run.job),
            records_left=0 if has_own_pool else rewind_cost(run.ledger, plan, run.job).records,
            lease=self.watchdog.lease,
            is_alone=shared.is_alone_at_first,
            is_placed=run.pipeline.spec.placement == "pool",
            leave=(lambda _: pool.stop()) if has_own_pool else pool.leave,
        )
        if not has_own_pool:
            self.stop_now.on_set = member.wake
        self.is_started()
        pool.join(member)
        self.joined()
        try:
            executors = ExecutorWatch(self.spark, run.settings)
            # The threads of a pool with many members would use more CPU time than the slices if they looked often.
            wait = member.wait if has_own_pool else lambda _: member.wait_or_wake(_SHARED_LOOK_S)
            return watch_query(member, run, self.watchdog, executors, self.stop_now, lambda: member.ending, wait)
        finally:
            member.stop()
            directory.configs.remove(config)
            shutil.rmtree(own, ignore_errors=True)

    def _keyed_task(self, plan: RewindPlan, source: TaskConfig, checkpoint: Path) -> KeyedTask:
        run, settings = self.run, self.run.settings
        deadline_s = None if self.pool is None else _SHARED_DEADLINE_S
        emissions = EmissionsOfRun(run, self._stream_keys(), self.writer_of, deadline_s)
        last = next(iter(run.ledger.checkpoints(run.job, limit=1, before=plan.slice_replayed + 1)), None)
        return KeyedTask(
            stages=source.stages,
            bucket_keys=source.bucket_keys,
            emissions=emissions.of_windows(plan.emitted),
            record_stages=source.record_stages,
            record_emissions=emissions.of_records(last.closes_ms if last is not None else None),
            letters=DeadLetterTarget(
                settings.kafka_bootstrap,
                without_secrets(settings.ledger_url),
                run.job,
                run.epoch,
                settings.record_bytes_max,
            ),
            checkpoint=checkpoint,
        )

    def _committer(
        self, plan: RewindPlan, task: KeyedTask, sweep: ClosedWindowsSweep | None, costs: CostMeter | None
    ) -> SliceCommitter:
        streams = self.spark._jsparkSession.streams()  # the way to what Spark's listeners only hear afterwards
        return SliceCommitter(
            # Commits are in the thread of the pool. What the run reads the log with belongs to another run by then.
            self.run if self.pool is None else replace(self.run, index=self.pool.index),
            plan,
            lambda: streams.active()[0].streamingQuery(),
            self._has_committed,
            task.committed_writers,
            sweep,
            costs,
        )

    def _has_committed(self) -> None:
        """Call `first_committed` after the first commit. If no other thread plans queries in the session, end the Python workers
        that planned this query, to free their memory."""
        self.first_committed()
        if self.is_alone:
            end_planning_workers(self.spark)

    def _stream_keys(self) -> dict[str, str | None]:
        """Return stream that is emitted to -> its key field. None if the stream has no key."""
        names = [name for stage in self.run.pipeline.all_stages for name in stage.streams]
        return {name: StreamSpec.from_document(self.run.ledger.stream(name).document).key for name in names}
