"""The computation of one chunk of a backfill: it runs the operators of a job over recorded slices, from empty state, and writes
to the indices of its generation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from strandline.core.portable_errors import typed_for_driver
from strandline.core.settings import Settings
from strandline.ledger.database import without_secrets
from strandline.ledger.states import BackfillRow
from strandline.processing.backfill.plan import Chunk
from strandline.processing.emission.keyed_task import DeadLetterTarget, KeyedTask, frame_of, outcome_row, rows_of
from strandline.processing.emission.made_indices import elasticsearch_writers
from strandline.processing.emission.result_shapes import document_shape, letter_shape
from strandline.processing.emission.stage_emission import BackfillEmission
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.stages import Stage
from strandline.processing.source.data_source import SourceInputPartition
from strandline.processing.source.opened_ledger import open_ledger
from strandline.processing.source.recorded_counts import RecordedCounts
from strandline.processing.source.recorded_slices import recorded_tasks
from strandline.processing.source.slice_rows import FACTS, WORK, SliceWork, add_facts, decode_facts, encode
from strandline.processing.source.source_config import TaskConfig
from strandline.processing.source.source_task import SourceTask
from strandline.processing.source.spark_source import RowSource
from strandline.results.document import DocumentShape
from strandline.results.index_settings import IndexSettings
from strandline.results.sinks.registry import sink_of

if TYPE_CHECKING:
    import pandas as pd


def shapes_of(row: BackfillRow, pipeline: CheckedPipeline, stage: Stage) -> list[tuple[DocumentShape, IndexSettings]]:
    """Return (shape of the documents, settings of the indices) for each alias that the stage emits to. The shape (fields, ids,
    and constant values) has the version and the generation of the backfill `row`."""
    return [
        (document_shape(pipeline, stage, emit, row.version, row.generation, is_backfill=True), emit.index)
        for emit in stage.emits
        if sink_of(emit).has_generations
    ]


@dataclass(frozen=True)
class ChunkTask:
    """Computes and emits the buckets of one chunk. Spark pickles it for the executors."""

    keyed: KeyedTask
    work: SliceWork
    recorded: RecordedCounts

    def __call__(self, key: tuple[int], frame: pd.DataFrame) -> pd.DataFrame:
        """Compute and emit one bucket, and return a row with its outcome. Spark calls it with all rows of the bucket.

        1. Compare the numbers of read and rejected records of all source tasks with those that the checkpoints of the slices
           record. Raises ReplayMismatch if they differ. Each bucket does this before it emits.
        2. Compute and emit. Raises StrandlineError if that fails.
        """
        rows = [(WORK, 0, 0, encode(self.work)), *rows_of([frame])]
        with typed_for_driver():
            self.recorded.require_same(add_facts(decode_facts(blob) for kind, _, _, blob in rows if kind == FACTS))
            done = self.keyed.process(self.keyed.bucket_keys.index(key[0]), rows, None)
        return frame_of([outcome_row(key[0], done.outcome)])


def chunk_task(
    row: BackfillRow,
    pipeline: CheckedPipeline,
    chunk: Chunk,
    dead_letter_offsets: dict[int, int],
    recorded: RecordedCounts,
    source: TaskConfig,
    settings: Settings,
    slice_digest: str,
) -> ChunkTask:
    """Return the task of a chunk. The number of its emission is its last slice. `slice_digest`: digest of that slice.

    `dead_letter_offsets`: end of the dead-letter stream when the backfill was requested. `recorded`: recorded counts of the
    slices."""
    ledger_url, writer_of = without_secrets(settings.ledger_url), elasticsearch_writers(settings, row.job)
    emissions = []
    for stage in pipeline.stages:
        window = chunk.windows.get(stage.name)
        shapes = shapes_of(row, pipeline, stage) if window is not None else []
        emissions.append(
            BackfillEmission(
                writers=tuple(writer_of(shape, index) for shape, index in shapes),
                streams=(),
                shape=letter_shape(pipeline, stage, row.version, row.generation, is_backfill=True),
                job=row.job,
                stage=stage.name,
                epoch=row.epoch,
                emitted_ms=window.after_ms if window is not None else 0,
                kafka_bootstrap=settings.kafka_bootstrap,
                ledger_url=ledger_url,
                record_bytes_max=settings.record_bytes_max,
                up_to_ms=window.up_to_ms if window is not None else 0,
                generation=row.generation,
            )
        )
    letters = DeadLetterTarget(settings.kafka_bootstrap, ledger_url, row.job, row.epoch, settings.record_bytes_max)
    keyed = KeyedTask(source.stages, source.bucket_keys, tuple(emissions), letters, record_stages=source.record_stages)
    work = SliceWork(chunk.slice_last, True, None, chunk.up_to_ms, dead_letter_offsets, {}, digest=slice_digest)
    return ChunkTask(keyed, work, recorded)


class ChunkSource(RowSource):
    """The recorded slices of one chunk, as rows for the keyed tasks. A `ChunkReader` reads them."""

    @classmethod
    def name(cls) -> str:
        return "strandline_chunk"

    def reader(self, schema: StructType) -> DataSourceReader:
        return cloudpickle.loads(self.packed)  # type: ignore[no-any-return]


class ChunkReader(DataSourceReader):
    """Reads one chunk in tasks of bounded size."""

    def __init__(self, job: str, ledger_url: str, chunk: Chunk, task: TaskConfig) -> None:
        self._job = job
        self._ledger_url = ledger_url
        self._chunk = chunk
        self._task = task

    def partitions(self) -> Sequence[InputPartition]:
        chunk = self._chunk
        with typed_for_driver(), closing(open_ledger(self._ledger_url)) as ledger:
            decoding, first = self._task.decoding, chunk.slice_first
            tasks = recorded_tasks(
                ledger, self._job, first, first, chunk.slice_last, decoding.formats, decoding.lookups
            )
        # Even without records, one task reports the counts to every bucket.
        return [SourceInputPartition(pieces, is_new=False) for pieces in [task.pieces for task in tasks] or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SourceInputPartition)
        with typed_for_driver():
            yield from SourceTask(self._task).read(partition.pieces, is_new=False, work=None)
