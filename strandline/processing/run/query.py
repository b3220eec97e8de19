"""The Spark query of a run: how it is put together, started, and ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from strandline.core.failpoints import failpoint
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.database import without_secrets
from strandline.processing.emission.commit import SliceCommitter
from strandline.processing.emission.document_shapes import EmissionsOfRun
from strandline.processing.emission.keyed_task import KeyedTask, RecordLetters
from strandline.processing.emission.made_indices import WriterFactory
from strandline.processing.emission.member_configs import MemberConfig
from strandline.processing.emission.open_windows import ClosedWindowsSweep, dropped_indices
from strandline.processing.emission.pool_task import PoolDirectory, PoolTask
from strandline.processing.pipelines.job_run import JobRun
from strandline.processing.pipelines.result_streams import emitters_of_inputs
from strandline.processing.run.ending import Ending, RunningQuery, watch_query
from strandline.processing.run.slice_loop import SliceLoop
from strandline.processing.run.watchdog import Watchdog
from strandline.processing.slices.rewind import RewindPlan
from strandline.processing.source.data_source import SliceStreamReader, SourceConfig, source_of_run
from strandline.processing.source.source_config import TaskConfig
from strandline.processing.source.spark_source import LogSource
from strandline.processing.spark.cluster import ExecutorWatch
from strandline.processing.spark.errors import typed_error
from strandline.processing.spark.keyed_query import keyed_query
from strandline.processing.spark.planning_workers import end_planning_workers
from strandline.processing.spark.pool_batches import PoolBatches
from strandline.processing.spark.session import keys_of_buckets


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
    stop_now: threading.Event
    is_alone: bool
    """True if no other thread plans queries in the session."""

    def run_to_end(self, plan: RewindPlan, checkpoint: Path | None) -> Ending:
        """Start the query and watch it to its end. Spark's checkpoint is `checkpoint`, or the temporary one.

        Raises StrandlineError: the committer's typed error where there is one, since Spark passes on only its text.
        """
        run, spark = self.run, self.spark
        committer: SliceCommitter | None = None
        sweep: ClosedWindowsSweep | None = None
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
            committer = self._committer(plan, task, sweep)
            for stage, emission in zip(run.pipeline.stages, task.emissions, strict=True):
                emission.prepare(stage.shape)
            for records in task.record_emissions:
                records.prepare_for_records()
            query: RunningQuery
            failpoint("run.before_query")
            if self._has_one_task:
                query = self._slice_loop(plan, config, task, committer).start()
            else:
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
            if sweep is not None:
                sweep.close()

    @property
    def _has_one_task(self) -> bool:
        """True if one task computes each slice, without Spark's state store. False for jobs with `recovery: snapshot`, because a
        snapshot is a checkpoint of that store."""
        return self.run.settings.slice_tasks == "one" and self.run.pipeline.spec.recovery != "snapshot"

    def _slice_loop(
        self, plan: RewindPlan, source: SourceConfig, task: KeyedTask, committer: SliceCommitter
    ) -> SliceLoop:
        run, directory = self.run, PoolDirectory(self.temporary_checkpoint)
        member = replace(task, checkpoint=directory.of_member(run.job, run.epoch))
        config = directory.configs.add(MemberConfig(source.task, member))
        batches = PoolBatches(self.spark, PoolTask(directory, run.settings.kafka_bootstrap))
        return SliceLoop(run.job, run.epoch, config, plan, SliceStreamReader(source), batches, committer)

    def _keyed_task(self, plan: RewindPlan, source: TaskConfig, checkpoint: Path) -> KeyedTask:
        run, settings = self.run, self.run.settings
        emissions = EmissionsOfRun(run, self._stream_keys(), self.writer_of)
        last = next(iter(run.ledger.checkpoints(run.job, limit=1, before=plan.slice_replayed + 1)), None)
        return KeyedTask(
            stages=source.stages,
            bucket_keys=source.bucket_keys,
            emissions=emissions.of_windows(plan.emitted),
            record_stages=source.record_stages,
            record_emissions=emissions.of_records(last.closes_ms if last is not None else None),
            letters=RecordLetters(
                settings.kafka_bootstrap,
                without_secrets(settings.ledger_url),
                run.job,
                run.epoch,
                settings.record_bytes_max,
            ),
            checkpoint=checkpoint,
        )

    def _committer(self, plan: RewindPlan, task: KeyedTask, sweep: ClosedWindowsSweep | None) -> SliceCommitter:
        streams = self.spark._jsparkSession.streams()  # the way to what Spark's listeners only hear afterwards
        return SliceCommitter(
            self.run,
            plan,
            lambda: streams.active()[0].streamingQuery(),
            self._has_committed,
            task.committed_writers,
            sweep,
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
