"""Traces records through the operators of a pipeline.

Each traced record gets a number, in an internal column. Each stage gets columns that contain the numbers of the records in a
result (`Stage.with_lineage`). So the operators themselves compute which records a result contains: for all kinds of windows, for
joins, and through all stages. The other columns of the results don't change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.processing.operators.blobs import unpack
from strandline.processing.operators.cascade import Chunk, StageResults, StepResult
from strandline.processing.operators.closing import Closing
from strandline.processing.operators.record_rows import unpack_record_rows, without_duplicates
from strandline.processing.operators.segments import MemorySegments
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.stages import NumberColumns, Stage
from strandline.processing.source.decoding import DecodedChunk, RecordReader, decode_pieces, task_config
from strandline.processing.source.slice_rows import RECORD_ROWS, REJECTED, entry_of
from strandline.processing.source.source_config import Piece
from strandline.processing.source.source_task import SourceTask

RECORD = "@record"
"""Internal column with the number of a record. Null if the record isn't traced."""
_BUCKET = 0
_OPEN_MAX = 1_000_000
"""Maximum number of open windows that are searched, approximately."""

Numbers = Callable[[DecodedChunk], pa.Array]
"""Returns the number of each accepted row of a chunk, as int64. Null for rows that aren't traced."""


def traced_stages(stages: Sequence[Stage]) -> tuple[tuple[Stage, ...], tuple[NumberColumns, ...]]:
    """Return the stages with columns for the numbers of records, and the names of these columns for each stage."""
    found: list[Stage] = []
    columns: list[NumberColumns] = []
    for stage in stages:
        given = [((RECORD, "long"),) if one.stage is None else columns[one.stage] for one in stage.inputs]
        traced, made = stage.with_lineage(given)
        found.append(traced)
        columns.append(made)
    return tuple(found), tuple(columns)


def with_numbers(chunk: DecodedChunk, numbers: Numbers) -> DecodedChunk:
    """Return the chunk with the column RECORD."""
    decoded = chunk.decoded
    return replace(chunk, decoded=replace(decoded, arrays={**decoded.arrays, RECORD: numbers(chunk)}))


def records_in(rows: pa.RecordBatch, columns: NumberColumns) -> list[list[int]]:
    """Return the sorted numbers of the traced records in each result."""
    found: list[set[int]] = [set() for _ in range(rows.num_rows)]
    for name, _ in columns:
        for numbers, value in zip(found, rows.column(name).to_pylist(), strict=True):
            numbers.update(value if isinstance(value, list) else [] if value is None else [value])
    return [sorted(one) for one in found]


def counts_in(rows: pa.RecordBatch, columns: NumberColumns) -> list[int]:
    """Return the number of traced records in each result. A list of numbers contains each number once."""
    if len(columns) == 1 and pa.types.is_list((column := rows.column(columns[0][0])).type):
        return pc.list_value_length(column).fill_null(0).to_pylist()  # type: ignore[no-any-return]
    return [len(one) for one in records_in(rows, columns)]


@dataclass(frozen=True)
class TracedResults:
    """Results of one stage that contain a traced record."""

    stage: str
    rows: pa.RecordBatch
    """Rows of the stage, without the columns of tracing; see `WindowOperator.result_schema`."""
    records: list[list[int]]
    """Numbers of the traced records in each row."""
    are_failed: bool = False
    """True for results that a later stage can't use. Each has a dead letter."""
    is_revision: bool = False
    """True for results that were final before and have changed."""


@dataclass
class Traced:
    """Outcome of one step."""

    results: list[TracedResults] = field(default_factory=list)
    records: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)
    """Stage -> emitted records; see `unpack_record_rows`. All records, not only the traced ones."""
    rejected: list[pa.RecordBatch] = field(default_factory=list)
    """Rejected records with REJECTED_SCHEMA. All records, not only the traced ones."""
    duplicates: int = 0
    """Number of duplicates that the step left out."""


class Tracer:
    """One replay of a pipeline that traces records. It has the state of one bucket that contains all keys."""

    def __init__(
        self,
        pipeline: CheckedPipeline,
        kafka_bootstrap: str,
        ledger_url: str = "",
        *,
        numbers: Numbers,
        reader: RecordReader | None = None,
    ) -> None:
        """`ledger_url`: without its password. `reader`: reads the log. None for the reader of this process."""
        stages, self._columns = traced_stages(pipeline.stages)
        traced = replace(pipeline, stages=stages)
        config = replace(
            task_config(traced, kafka_bootstrap, (_BUCKET,), ledger_url=ledger_url),
            crashes=False,
            late_is_dropped=False,
        )
        self._pipeline = pipeline
        self._decoding, self._cascade = config.decoding, config.cascade
        self._task = SourceTask(config)
        self._numbers, self._reader = numbers, reader
        self._state: bytes | None = None
        self._segments: defaultdict[int, MemorySegments] = defaultdict(MemorySegments)

    def rebuild(self, pieces: Iterable[Sequence[Piece]], closed_ms: int | None) -> None:
        """Rebuild the state from recorded slices in one step, as a rewind does. Emit nothing."""
        self._step(self._rows_of(pieces), Closing(None, closed_ms), emits=False)

    def advance(self, pieces: Iterable[Sequence[Piece]], closing: Closing) -> Traced:
        """Process recorded slices in one step. Return the outcomes of all records, and the results with traced records."""
        found = Traced()
        record_rows: list[tuple[int, int, bytes]] = []
        chunks: list[Chunk] = []
        for _, kind, partition, sequence, blob in self._rows_of(pieces):
            if (entry := entry_of(kind)) is not None:
                chunks.append(Chunk(partition, sequence, blob, entry))
            elif kind == RECORD_ROWS:
                record_rows.append((partition, sequence, blob))
            elif kind == REJECTED:
                found.rejected += unpack(blob)
        stepped = self._cascade.step(self._state, chunks, closing, self._segments.__getitem__)
        self._state = stepped.state
        found.duplicates = stepped.duplicates
        found.records = without_duplicates(
            unpack_record_rows(record_rows), self._pipeline.record_stages, stepped.repeated_records
        )
        found.results = list(self._traced(stepped.results))
        return found

    def duplicates(self, pieces: Iterable[Sequence[Piece]]) -> int:
        """Return the number of duplicates among these records. The state doesn't change."""
        before = self._state, deepcopy(self._segments)
        try:
            return self._step(self._rows_of(pieces), Closing(None, None)).duplicates
        finally:
            self._state, self._segments = before

    def open_windows(self, closed_ms: int | None) -> list[TracedResults]:
        """Return the open windows that contain a traced record, with their current content."""
        return [one for at, rows in self._open_rows(closed_ms) for one in self._only_traced(at, rows)]

    def open_counts(self, closed_ms: int | None) -> Iterator[tuple[Stage, pa.RecordBatch, Sequence[int]]]:
        """Yield the open windows of each stage: the stage, the rows, and the number of traced records in each row."""
        for at, rows in self._open_rows(closed_ms):
            columns = self._columns[at]
            plain = rows.drop_columns([name for name, _ in columns])
            yield self._pipeline.stages[at], plain, counts_in(rows, columns)

    def _open_rows(self, closed_ms: int | None) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (index of a stage, its open windows with the columns of tracing)."""
        if self._state is None:
            return
        for at, stage in enumerate(self._pipeline.stages):
            if stage.has_aggregates:
                opened = self._cascade.open_stage(at, self._state, self._segments.__getitem__)
                yield at, self._cascade.open_results(opened, closed_ms, _OPEN_MAX)

    def _rows_of(self, pieces: Iterable[Sequence[Piece]]) -> Iterator[tuple[int, int, int, int, bytes]]:
        for some in pieces:
            chunks = decode_pieces(self._decoding, some, reader=self._reader)
            numbered = (with_numbers(one, self._numbers) for one in chunks)
            yield from self._task.rows(numbered, is_new=True, work=None)

    def _step(
        self, rows: Iterable[tuple[int, int, int, int, bytes]], closing: Closing, *, emits: bool = True
    ) -> StepResult:
        chunks = [
            Chunk(partition, sequence, blob, entry)
            for _, kind, partition, sequence, blob in rows
            if (entry := entry_of(kind)) is not None
        ]
        stepped = self._cascade.step(self._state, chunks, closing, self._segments.__getitem__, emits=emits)
        self._state = stepped.state
        return stepped

    def _traced(self, results: Sequence[StageResults]) -> Iterator[TracedResults]:
        places = {stage.name: at for at, stage in enumerate(self._pipeline.stages)}
        for one in results:
            at = places[one.stage]
            yield from self._only_traced(at, one.rows)
            yield from self._only_traced(at, one.failed, are_failed=True)
            if one.revised is not None:
                yield from self._only_traced(at, one.revised, is_revision=True)

    def _only_traced(
        self, at: int, rows: pa.RecordBatch, *, are_failed: bool = False, is_revision: bool = False
    ) -> Iterator[TracedResults]:
        columns = self._columns[at]
        if not rows.num_rows:
            return
        is_traced = np.zeros(rows.num_rows, np.bool_)
        for name, _ in columns:
            column = rows.column(name)
            lengths = (
                pc.list_value_length(column) if pa.types.is_list(column.type) else column.is_valid().cast(pa.int32())
            )
            is_traced |= lengths.fill_null(0).to_numpy(zero_copy_only=False) > 0
        if is_traced.any():
            some = rows.filter(pa.array(is_traced))
            yield TracedResults(
                self._pipeline.stages[at].name,
                some.drop_columns([name for name, _ in columns]),
                records_in(some, columns),
                are_failed,
                is_revision,
            )
