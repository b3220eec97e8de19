"""The log as a Spark data source. Its offsets are slice numbers; a batch is one slice, or several merged on replay.

Spark calls `StreamReader.latestOffset` and `partitions` in one planner process next to the driver, and `read` in the Python
workers of the executors. Each task yields the accepted records of its offset ranges as Arrow batches, and then one
*facts row*: how many records it read, how many it rejected, and the tick that carries event time into Spark's watermark.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from strandline.core.record_headers import REASON_LATE
from strandline.ledger.states import SliceRow, SliceStatus
from strandline.log.index import LogIndex
from strandline.log.reader import OffsetRange
from strandline.processing.slices.planner import PlannerSettings, SlicePlanner
from strandline.processing.slices.spark_offset import offset_of_slice, slice_of_offset
from strandline.processing.slices.watermark import greatest, tick_of_batch
from strandline.processing.source.decoding import (
    EVENT_TIME,
    DecodingConfig,
    Piece,
    decode_pieces,
    decoder_of,
    decoding_of,
)

if TYPE_CHECKING:  # the workers load this module too, and need neither SQL nor pydantic
    from strandline.ledger.ledger import Ledger
    from strandline.processing.pipelines.job_run import JobRun
    from strandline.processing.slices.rewind import RewindPlan

FACTS = "_strandline_facts"
"""A column that only facts rows fill: a list, which costs every other row 4 bytes."""
FACT_NAMES = ("records", "rejected", "late", "latest_event_ms", "latest_log_ms")
"""The items of the list, in order."""

SOURCE_COLUMNS = ("_strandline_stream", "_strandline_partition", "_strandline_offset")
BYTES = "_strandline_bytes"
REASON = "_strandline_reason"
MESSAGE = "_strandline_message"

_POLL_S = 0.02
"""How often the planner looks for new records while there are none."""


@dataclass(frozen=True)
class SourceConfig:
    """All that planner and readers of one run need; travels pickled inside Spark, so it holds no secret."""

    decoding: DecodingConfig
    planner: PlannerSettings
    slice_first: int
    """Where the run starts: the first slice of the rewind."""
    slice_committed: int
    """The last committed slice; up to here slices are merged."""
    replay_rows_max: int
    slice_interval_ms: int
    parallelism: int
    """Tasks that read at once, at most."""
    ledger_url: str
    """Without its password."""


def source_of_run(run: JobRun, plan: RewindPlan, emitter: str | None, parallelism: int) -> SourceConfig:
    """The source of a run that follows this plan. `emitter`: the job that emits to the stream, if one does."""
    from strandline.ledger.database import without_secrets

    settings, pipeline = run.settings, run.pipeline
    checkpoint = pipeline.spec.checkpoint
    return SourceConfig(
        decoding=decoding_of(pipeline, settings.kafka_bootstrap),
        planner=PlannerSettings(
            job=run.job,
            version=run.version,
            epoch=run.epoch,
            stream=run.stream,
            start=pipeline.spec.input.start,
            rows_max=checkpoint.records or settings.slice_rows_max,
            rule=pipeline.event_time_rule,
            emitter=emitter,
        ),
        slice_first=plan.slice_first,
        slice_committed=plan.slice_committed,
        replay_rows_max=sys.maxsize if plan.replay_is_one_batch else 4 * settings.slice_rows_max,
        slice_interval_ms=settings.slice_interval_ms if checkpoint.every is None else checkpoint.every,
        parallelism=parallelism,
        ledger_url=without_secrets(settings.ledger_url),
    )


def accepted_schema(decoding: DecodingConfig) -> pa.Schema:
    """The rows of the stream of slices: accepted records, and facts rows."""
    return pa.schema([*decoding.arrow_fields, pa.field(FACTS, pa.list_(pa.int64()))])


def recorded_schema(decoding: DecodingConfig) -> pa.Schema:
    """The rows of the batch reader: records with their bytes and coordinates, and why they were rejected."""
    return pa.schema(
        [
            *decoding.arrow_fields,
            pa.field(SOURCE_COLUMNS[0], pa.string()),
            pa.field(SOURCE_COLUMNS[1], pa.int32()),
            pa.field(SOURCE_COLUMNS[2], pa.int64()),
            pa.field(BYTES, pa.binary()),
            pa.field(REASON, pa.string()),
            pa.field(MESSAGE, pa.string()),
        ]
    )


@dataclass
class LogPartition(InputPartition):
    """What one task reads. `tick_ms` is set on one task of a batch at most."""

    pieces: list[Piece] = field(default_factory=list)
    tick_ms: int | None = None

    def __init__(self, pieces: list[Piece], tick_ms: int | None) -> None:
        super().__init__(None)
        self.pieces = pieces
        self.tick_ms = tick_ms


def log_source(config: SourceConfig) -> type[DataSource]:
    """A data source class bound to one run's config, for `spark.dataSource.register`."""

    class BoundLogSource(LogSource):
        bound = config

    return BoundLogSource


class LogSource(DataSource):
    """Reads slices. As a stream: new slices, planned one after the other. As a batch, with options `first` and `last`: the
    records of these slices with their bytes and coordinates, and the reason where they were rejected."""

    bound: SourceConfig

    @classmethod
    def name(cls) -> str:
        return "strandline_log"

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        schema_of = recorded_schema if "first" in self.options else accepted_schema
        return from_arrow_schema(schema_of(self.bound.decoding))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return SliceStreamReader(self.bound)

    def reader(self, schema: StructType) -> DataSourceReader:
        return RejectedRecordReader(
            self.bound, int(self.options["first"]), int(self.options["last"]), self.options["only_rejected"] == "true"
        )


class SliceStreamReader(DataSourceStreamReader):
    """The stream of slices. In the planner process it keeps the ledger and the log's index open."""

    def __init__(self, config: SourceConfig) -> None:
        self._config = config
        self._ledger: Ledger | None = None
        self._planner: SlicePlanner | None = None
        self._planned_at_s = 0.0

    def initialOffset(self) -> dict[str, int]:
        return offset_of_slice(self._config.slice_first - 1)

    def latestOffset(self, start: dict[str, int], limit: object = None) -> dict[str, int]:
        """Return the last slice of the next batch, or `start` when there is nothing to do.

        Waits a little for records, so that Spark's loop doesn't spin.
        """
        number = slice_of_offset(start)
        if number < self._config.slice_committed:
            return offset_of_slice(self._merge_from(number + 1))
        config = self._config
        planner = self._planner or SlicePlanner(
            config.planner, self._open_ledger(), LogIndex(config.decoding.kafka_bootstrap)
        )
        self._planner = planner
        pause_s = self._planned_at_s + config.slice_interval_ms / 1000 - time.monotonic()
        if pause_s > 0:
            time.sleep(pause_s)  # so that a steady trickle makes fewer and larger slices
        deadline = time.monotonic() + 0.2
        while (planned := planner.next_slice()) is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if planned is None or planned.number <= number:
            return start
        self._planned_at_s = time.monotonic()
        return offset_of_slice(planned.number)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        if start == end:
            return []
        slices = self._open_ledger().slices(self._config.planner.job, slice_of_offset(start) + 1, slice_of_offset(end))
        return partition_slices(slices, self._config.parallelism, self._tick(slices[-1]))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogPartition)
        return read_accepted(self._config.decoding, partition)

    def stop(self) -> None:
        if self._ledger is not None:
            self._ledger.close()

    def _open_ledger(self) -> Ledger:
        if self._ledger is None:
            self._ledger = open_ledger(self._config.ledger_url)
        return self._ledger

    def _merge_from(self, slice_first: int) -> int:
        """The last slice of a replay batch: as many committed slices as fit into `replay_rows_max` records."""
        config = self._config
        rows = 0
        last = slice_first
        for row in self._open_ledger().slices(config.planner.job, slice_first, config.slice_committed):
            rows += _rows(row)
            if rows > config.replay_rows_max and row.number > slice_first:
                break
            last = row.number
        return last

    def _tick(self, last: SliceRow) -> int | None:
        is_committed = last.status is SliceStatus.COMMITTED
        return tick_of_batch(last, self._open_ledger().checkpoint(last.job, last.number) if is_committed else None)


def open_ledger(url: str) -> Ledger:
    """Open the ledger that `url` names without its password.

    A password never goes through Spark: it comes from STRANDLINE_LEDGER_URL in this process's environment, where that names the
    same ledger. The imports are here because a worker that only reads the log starts sooner without SQL.
    """
    from strandline.core.settings import Settings
    from strandline.ledger.database import without_secrets
    from strandline.ledger.ledger import Ledger

    own_url = Settings().ledger_url
    return Ledger.open(own_url if without_secrets(own_url) == url else url)


def _rows(row: SliceRow) -> int:
    return sum(
        offset_next - row.offsets_first[stream].get(partition, 0)
        for stream, partitions in row.offsets.items()
        for partition, offset_next in partitions.items()
    )


def partition_slices(slices: Sequence[SliceRow], parallelism: int, tick_ms: int | None) -> list[LogPartition]:
    """Spread the slices' partitions over at most `parallelism` tasks, the largest first. There is always one task at least."""
    pieces: dict[tuple[str, int], list[Piece]] = {}
    for row in slices:
        for stream, ends in row.offsets.items():
            for partition, offset_next in sorted(ends.items()):
                offset_first = row.offsets_first[stream].get(partition, 0)
                if offset_first < offset_next:
                    offsets = OffsetRange(stream, partition, offset_first, offset_next)
                    pieces.setdefault((stream, partition), []).append(Piece(offsets, row.watermark_ms))
    tasks: list[list[Piece]] = [[] for _ in range(max(1, min(parallelism, len(pieces))))]
    loads = [0] * len(tasks)
    sizes = {
        place: sum(p.offsets.offset_next - p.offsets.offset_first for p in parts) for place, parts in pieces.items()
    }
    for place in sorted(pieces, key=lambda place: (-sizes[place], place)):
        lightest = loads.index(min(loads))
        tasks[lightest] += pieces[place]
        loads[lightest] += sizes[place]
    return [LogPartition(parts, tick_ms if number == 0 else None) for number, parts in enumerate(tasks)]


def read_accepted(config: DecodingConfig, partition: LogPartition) -> Iterator[pa.RecordBatch]:
    """The accepted records of a task's pieces, then its facts row."""
    schema = accepted_schema(config)
    decoder = decoder_of(config)
    records = rejected = late = 0
    latest_event_ms: int | None = None
    latest_log_ms: int | None = None
    for _, values, log_times_ms, _, decoded in decode_pieces(config, decoder, partition.pieces):
        records += len(values)
        late_here = sum(1 for reject in decoded.rejects if reject.reason == REASON_LATE)
        late += late_here
        rejected += len(decoded.rejects) - late_here
        latest_event_ms = greatest(latest_event_ms, decoded.latest_event_ms)
        latest_log_ms = greatest(latest_log_ms, max(log_times_ms))
        rows = len(decoded.event_time)
        if rows:
            columns = [decoded.arrays[name] for name in config.columns]
            nothing = pa.nulls(rows, pa.list_(pa.int64()))
            yield pa.RecordBatch.from_arrays([*columns, decoded.event_time, nothing], schema=schema)
    yield _facts_row(schema, partition.tick_ms, records, rejected, late, latest_event_ms, latest_log_ms)


def _facts_row(schema: pa.Schema, tick_ms: int | None, *facts: int | None) -> pa.RecordBatch:
    """Its event time is the tick. Without a tick it is 1970, which never moves Spark's watermark."""
    columns = [
        pa.array([list(facts) if item.name == FACTS else None], item.type) for item in schema if item.name != EVENT_TIME
    ]
    event_time = pa.array([(tick_ms or 0) * 1000], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    columns.insert(schema.get_field_index(EVENT_TIME), event_time)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class RejectedRecordReader(DataSourceReader):
    """Reads committed or planned slices again, with bytes and coordinates, for the dead letters of their records."""

    def __init__(self, config: SourceConfig, first: int, last: int, only_rejected: bool) -> None:
        self._config = config
        self._first = first
        self._last = last
        self._only_rejected = only_rejected

    def partitions(self) -> Sequence[InputPartition]:
        ledger = open_ledger(self._config.ledger_url)
        try:
            slices = ledger.slices(self._config.planner.job, self._first, self._last)
        finally:
            ledger.close()
        return partition_slices(slices, self._config.parallelism, None)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogPartition)
        config = self._config.decoding
        schema = recorded_schema(config)
        yielded = False
        for piece, values, _, offsets, decoded in decode_pieces(config, decoder_of(config), partition.pieces):
            rejected = {reject.index: reject for reject in decoded.rejects}
            if not self._only_rejected and len(decoded.event_time):
                kept = [index for index in range(len(values)) if index not in rejected]
                columns = [decoded.arrays[name] for name in config.columns]
                none = pa.nulls(len(kept), pa.string())
                coordinates = _coordinates(piece, [offsets[i] for i in kept], [values[i] for i in kept])
                yielded = True
                yield pa.RecordBatch.from_arrays(
                    [*columns, decoded.event_time, *coordinates, none, none], schema=schema
                )
            if rejected:
                indexes = sorted(rejected)
                columns = [pa.nulls(len(indexes), config.column_types[name]) for name in config.columns]
                columns.append(pa.nulls(len(indexes), pa.timestamp("us", tz="UTC")))
                coordinates = _coordinates(piece, [offsets[i] for i in indexes], [values[i] for i in indexes])
                reasons = pa.array([rejected[i].reason for i in indexes], pa.string())
                messages = pa.array([rejected[i].message for i in indexes], pa.string())
                yielded = True
                yield pa.RecordBatch.from_arrays([*columns, *coordinates, reasons, messages], schema=schema)
        if not yielded:
            yield pa.RecordBatch.from_arrays([pa.nulls(0, item.type) for item in schema], schema=schema)


def _coordinates(piece: Piece, offsets: list[int], values: list[bytes | None]) -> list[pa.Array]:
    count = len(offsets)
    return [
        pa.array([piece.offsets.stream] * count, pa.string()),
        pa.array([piece.offsets.partition] * count, pa.int32()),
        pa.array(offsets, pa.int64()),
        pa.array(values, pa.binary()),
    ]
