"""Recorded slices as a bounded Spark frame: every record decoded anew, with the decoder and the watermarks of the job.

Audits and backfills read the log this way, in pieces of a bounded size, each by a task of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from strandline.ledger.states import SliceRow
from strandline.log.reader import OffsetRange
from strandline.processing.source.data_source import open_ledger
from strandline.processing.source.decoding import DecodingConfig, Piece, decode_pieces, decoder_of

TASK_ROWS = 250_000
"""Records that one task reads at most."""
_SLICES_A_LOOK = 1_000
PARTITION, OFFSET = "_strandline_partition", "_strandline_offset"
REASON = "_strandline_reason"
OWN = "_strandline_own"
"""Whether the record counts in this span's totals, or is only read for its windows."""


@dataclass(frozen=True)
class SpanSource:
    """A span of recorded slices as its readers need it; travels pickled."""

    job: str
    ledger_url: str
    """Without its password."""
    decoding: DecodingConfig
    slice_first: int
    slice_own: int
    slice_last: int

    def arrow_schema(self) -> pa.Schema:
        """The pipeline's columns, the event time, where the record stands, and why it was rejected (null: it was not)."""
        columns = [
            *self.decoding.arrow_fields,
            pa.field(PARTITION, pa.int32()),
            pa.field(OFFSET, pa.int64()),
            pa.field(OWN, pa.bool_()),
            pa.field(REASON, pa.string()),
        ]
        return pa.schema(columns)


class LogTask(InputPartition):
    """What one task reads of the log."""

    def __init__(self, pieces: list[Piece], own: bool) -> None:
        super().__init__(None)
        self.pieces = pieces
        self.own = own


def span_frame(spark: SparkSession, source: SpanSource) -> DataFrame:
    """Every record of the span's slices."""

    class BoundSpan(RecordedSlices):
        bound = source

    spark.dataSource.register(BoundSpan)
    return spark.read.format(RecordedSlices.name()).load()


class RecordedSlices(DataSource):
    """Reads committed slices as a batch."""

    bound: SpanSource

    @classmethod
    def name(cls) -> str:
        return "strandline_recorded_slices"

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(self.bound.arrow_schema())

    def reader(self, schema: StructType) -> DataSourceReader:
        return SpanReader(self.bound)


class SpanReader(DataSourceReader):
    """Cuts the slices into tasks, and decodes their records with the decoder and the watermarks of the job."""

    def __init__(self, source: SpanSource) -> None:
        self._source = source

    def partitions(self) -> Sequence[InputPartition]:
        source = self._source
        return recorded_tasks(source.job, source.ledger_url, source.slice_first, source.slice_own, source.slice_last)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogTask)
        config, schema = self._source.decoding, self._source.arrow_schema()
        yield pa.RecordBatch.from_arrays([pa.nulls(0, item.type) for item in schema], schema=schema)
        for chunk in decode_pieces(config, decoder_of(config), partition.pieces):
            offsets, decoded = chunk.offsets, chunk.decoded
            rejected = {reject.index: reject.reason for reject in decoded.rejects}
            kept = [offset for at, offset in enumerate(offsets) if at not in rejected] if rejected else offsets
            if kept:
                columns = [decoded.arrays[name] for name in config.columns]
                yield _batch(
                    schema,
                    columns,
                    decoded.event_time,
                    chunk.partition,
                    kept,
                    partition.own,
                    pa.nulls(len(kept), pa.string()),
                )
            if rejected and partition.own:
                count = len(rejected)
                columns = [pa.nulls(count, config.column_types[name]) for name in config.columns]
                times = pa.array([0] * count, pa.timestamp("us", tz="UTC"))  # a window needs an event time
                places = [offsets[at] for at in rejected]
                yield _batch(
                    schema, columns, times, chunk.partition, places, True, pa.array(rejected.values(), pa.string())
                )


def _batch(
    schema: pa.Schema,
    columns: list[pa.Array],
    event_time: pa.Array,
    partition: int,
    offsets: list[int],
    own: bool,
    reasons: pa.Array,
) -> pa.RecordBatch:
    count = len(offsets)
    partitions = pa.array([partition] * count, pa.int32())
    owns = pa.array([own] * count, pa.bool_())
    return pa.RecordBatch.from_arrays(
        [*columns, event_time, partitions, pa.array(offsets, pa.int64()), owns, reasons], schema=schema
    )


def recorded_tasks(job: str, ledger_url: str, slice_first: int, slice_own: int, slice_last: int) -> list[LogTask]:
    """The tasks that read these slices; there is one at least. `ledger_url` is without its password."""
    ledger = open_ledger(ledger_url)
    try:
        slices = (
            row
            for first in range(slice_first, slice_last + 1, _SLICES_A_LOOK)
            for row in ledger.slices(job, first, min(first + _SLICES_A_LOOK - 1, slice_last))
        )
        return cut_tasks(slices, slice_own, TASK_ROWS) or [LogTask([], own=True)]
    finally:
        ledger.close()


def cut_tasks(slices: Iterable[SliceRow], slice_own: int, rows_max: int) -> list[LogTask]:
    """Cut slices, in order, into tasks of one partition and at most `rows_max` offsets each; slices before `slice_own` get tasks
    of their own. Each offset belongs to exactly one task, and keeps the watermark of its slice."""
    tasks: list[LogTask] = []
    open_tasks: dict[tuple[str, int, bool], tuple[LogTask, int]] = {}
    for row in slices:
        own = row.number >= slice_own
        for stream, ends in row.offsets.items():
            for partition, offset_next in sorted(ends.items()):
                first = row.offsets_first.get(stream, {}).get(partition, 0)
                while first < offset_next:
                    task, room = open_tasks.get((stream, partition, own), (None, 0))
                    if task is None or room == 0:
                        task, room = LogTask([], own), rows_max
                        tasks.append(task)
                    upto = min(offset_next, first + room)
                    task.pieces.append(Piece(OffsetRange(stream, partition, first, upto), row.watermark_ms))
                    open_tasks[stream, partition, own] = (task, room - (upto - first))
                    first = upto
    return tasks
