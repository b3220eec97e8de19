"""The reader of the log for Spark, used through `spark_source`. Its offsets are slice numbers. A batch is one slice, or several
slices of a replay, merged.

Spark calls `SliceStreamReader.latestOffset` and `partitions` in one planner process next to the driver, and `read` in the Python
workers of the executors. There a task decodes its part of the log, validates each record, runs the steps before the first
window, and yields blobs for the buckets. See `slice_rows`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from strandline.ledger.states import SliceKind
from strandline.log.index import LogIndex
from strandline.processing.slices.effective_lookups import used_lookups
from strandline.processing.slices.emissions import Emitter
from strandline.processing.slices.planner import InputStream, PlannerSettings, SlicePlanner
from strandline.processing.slices.rewind import RewindPlan
from strandline.processing.slices.spark_offset import offset_of_slice, slice_of_offset
from strandline.processing.source.opened_ledger import open_ledger
from strandline.processing.source.run_slices import RunSlices, SourceConfig
from strandline.processing.source.source_config import Piece

if TYPE_CHECKING:  # the workers load this module too, and need neither SQL nor pydantic
    from strandline.ledger.roles import PlannerLedger
    from strandline.processing.pipelines.job_run import JobRun

_POLL_S = 0.02
"""How often the planner looks for new records while there are none."""
_LOOK_EVERY_S = 1.0
"""How often it looks at the log while the next slice is not due: often enough to count all silence."""


def source_of_run(
    run: JobRun, plan: RewindPlan, emitters: Mapping[str, str], parallelism: int, bucket_keys: tuple[int, ...]
) -> SourceConfig:
    """The source of a run that follows this plan. `emitters`: of each stream of results the job that emits
    to it."""
    from strandline.ledger.database import without_secrets
    from strandline.processing.source.decoding import task_config

    settings, pipeline = run.settings, run.pipeline
    checkpoint = pipeline.spec.checkpoint
    return SourceConfig(
        task=task_config(
            pipeline, settings.kafka_bootstrap, bucket_keys, ledger_url=without_secrets(settings.ledger_url)
        ),
        planner=planner_settings(run, emitters),
        plan=plan,
        replay_rows_max=4 * settings.slice_rows_max,
        slice_interval_ms=settings.slice_interval_ms if checkpoint.every is None else checkpoint.every,
        parallelism=parallelism,
        ledger_url=without_secrets(settings.ledger_url),
    )


def planner_settings(run: JobRun, emitters: Mapping[str, str]) -> PlannerSettings:
    """Return the settings with which this run plans its slices. `emitters`: stream of results -> the job that emits to it.

    If no job emits to a stream any more, slices end at the emissions of the former job until the run has read all of them.
    """
    from strandline.log.topics import has_senders_times
    from strandline.processing.pipelines.result_streams import former_emitter_of

    pipeline = run.pipeline
    former = {
        stream: job
        for stream in pipeline.streams
        if stream not in emitters and (job := former_emitter_of(run.ledger, stream)) is not None
    }
    checkpoint = pipeline.spec.checkpoint
    inputs = tuple(
        InputStream(
            read.stream,
            read.start,
            run.ledger.stream(read.stream).topic_id,
            has_senders_times(run.index.settings(read.stream)),
            run.row.stream_versions.get(read.stream),
            read.end,
        )
        for read in pipeline.spec.reads
    )
    return PlannerSettings(
        job=run.job,
        version=run.version,
        epoch=run.epoch,
        inputs=inputs,
        rows_max=checkpoint.records or run.settings.slice_rows_max,
        rule=pipeline.event_time_rule,
        windows=pipeline.windows,
        emitters=tuple(
            Emitter(read.stream, job, read.event_time.field, is_former=read.stream in former)
            for read in pipeline.spec.reads
            if (job := emitters.get(read.stream) or former.get(read.stream)) is not None
        ),
        lookups=used_lookups(
            (step.lookup_read, step.lookup_fields)
            for stage in pipeline.all_stages
            for step in stage.steps_before
            if step.lookup_read is not None
        ),
    )


class SourceInputPartition(InputPartition):
    """Spark's input partition: what one source task reads, which may be pieces of several partitions of the log."""

    def __init__(self, pieces: list[Piece], is_new: bool, work: bytes | None = None, *, restores: bool = False) -> None:
        """`is_new`: True if the slice is new; a replayed slice sends no rejected records. `work`: encoded `SliceWork` for the
        keyed tasks. None except for one task of the batch. `restores`: True if results of committed slices are emitted
        again."""
        super().__init__(None)
        self.restores = restores
        self.pieces = pieces
        self.is_new = is_new
        self.work = work


class SliceStreamReader(DataSourceStreamReader):
    """Plans the slices of a run as Spark's batches, and reads them in the tasks.

    In the planner process it keeps the ledger and the log's index open until `stop`."""

    def __init__(self, config: SourceConfig) -> None:
        self._config = config
        self._ledger: PlannerLedger | None = None
        self._index: LogIndex | None = None
        self._planner: SlicePlanner | None = None
        self._slices: RunSlices | None = None
        self._planned_at_s = 0.0
        self._is_behind = False
        """Whether more records waited than the last slice could take."""

    def initialOffset(self) -> dict[str, int]:
        return offset_of_slice(self._config.plan.slice_first - 1)

    def latestOffset(self, start: dict[str, int], limit: object = None) -> dict[str, int]:
        """Return the last slice of the next batch, or `start` when there is nothing to do.

        Waits a little for records, so that Spark's loop doesn't spin. Raises LedgerBehind if the ledger no longer contains the
        slices that this run has committed.
        """
        number = slice_of_offset(start)
        config = self._config
        if number < config.plan.slice_committed:
            return offset_of_slice(self._slices_of_run().replayed_from(number + 1)[-1].number)
        if self._planner is None:
            self._index = LogIndex(config.task.decoding.kafka_bootstrap)
            self._planner = SlicePlanner(config.planner, self._open_ledger(), self._index)
        planner = self._planner
        self._pause(planner)
        deadline = time.monotonic() + 0.2
        while (planned := planner.next_slice(number)) is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if planned is None:
            return start
        assert planned.number > number, "the planner returns no slice that is committed"
        self._planned_at_s = time.monotonic()
        self._is_behind = planned.kind is SliceKind.CATCH_UP
        return offset_of_slice(planned.number)

    def _pause(self, planner: SlicePlanner) -> None:
        """Wait until the next slice is due, so that a slow stream makes fewer and larger slices. Count silence during a long
        wait. Return immediately if the job is behind, drains, or is a batch."""
        due_s = self._planned_at_s + self._config.slice_interval_ms / 1000
        while not self._is_behind and (left_s := due_s - time.monotonic()) > 0:
            if left_s > _LOOK_EVERY_S and planner.is_to_end():
                return
            time.sleep(min(left_s, _LOOK_EVERY_S))
            if left_s > _LOOK_EVERY_S:
                planner.count_silence()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        if start == end:
            return []
        first, last = slice_of_offset(start) + 1, slice_of_offset(end)
        is_new = last > self._config.plan.slice_committed
        slices = [] if is_new else self._slices_of_run().replayed_from(first)
        if (
            not slices or slices[-1].number != last
        ):  # a batch that a snapshot's log of offsets asks for is cut as it says
            slices = self._open_ledger().slices(self._config.planner.job, first, last)
        spread, work = self._slices_of_run().batch(first, slices, self._config.parallelism)
        restores = self._config.plan.restores(last)
        tasks = [SourceInputPartition(pieces, is_new, restores=restores) for pieces in spread]
        tasks[0].work = work
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from strandline.processing.source.source_task import SourceTask  # the planner starts sooner without it

        assert isinstance(partition, SourceInputPartition)
        return SourceTask(self._config.task).read(
            partition.pieces, is_new=partition.is_new, work=partition.work, restores=partition.restores
        )

    def stop(self) -> None:
        if self._index is not None:
            self._index.close()
        if self._ledger is not None:
            self._ledger.close()

    def _open_ledger(self) -> PlannerLedger:
        if self._ledger is None:
            self._ledger = open_ledger(self._config.ledger_url)
        return self._ledger

    def _slices_of_run(self) -> RunSlices:
        if self._slices is None:
            self._slices = RunSlices(self._config, self._open_ledger())
        return self._slices
