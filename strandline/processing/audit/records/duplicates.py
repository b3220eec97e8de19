"""Duplicate records, found by one DuckDB query over all records of a span. It recomputes `dedupe` without its code, hash, or
state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.processing.audit_queries.stage_query import POSITION
from strandline.processing.audit_queries.stored_columns import restored, stored_type
from strandline.processing.audit_queries.table import Database, Table, TableWriter
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.operators.row_steps import RowSteps
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.row_step import DuplicateFilter, RowStep
from strandline.processing.source.decoding import DecodedChunk

_COUNTED = "is_counted"
_TIME = "event_us"
_ELEMENTS_MAX = 2**31


@dataclass(frozen=True)
class DuplicatesQuery:
    """The `dedupe` of a span's pipeline. Pickled."""

    dedupe: DuplicateFilter
    stream: str
    """Stream whose duplicates it leaves out."""
    steps: tuple[RowStep, ...]
    """Steps before it, from the stream."""
    types: Mapping[str, str]
    """Fields of the stream."""
    records: Table
    """Records that reach the `dedupe`."""
    found: Table
    """Duplicates. Filled by `compute`."""
    events_from_ms: int
    """Time before which records have no effect."""

    @staticmethod
    def of(pipeline: CheckedPipeline, directory: Path, events_from_ms: int) -> DuplicatesQuery | None:
        """Return the query of a pipeline, and create its tables. None if the pipeline has no `dedupe`."""
        dedupe = pipeline.dedupe
        if dedupe is None:
            return None
        path = next(path for path in pipeline.record_paths if dedupe in path.steps)
        read = pipeline.inputs[path.stream]
        steps, types = path.steps[: path.steps.index(dedupe)], read.stream.types
        known = RowSteps(steps, types).types
        keys = [(f"key_{at}", stored_type(arrow_type(known[name]))) for at, name in enumerate(dedupe.by)]
        place = [(POSITION[0], pa.int32()), (POSITION[1], pa.int64()), (POSITION[2], pa.int32())]
        records = Table(directory / "(came)", pa.schema([*place, (_TIME, pa.int64()), (_COUNTED, pa.bool_()), *keys]))
        found = Table(directory / "(duplicates)", pa.schema([*place, (_COUNTED, pa.bool_())]))
        records.create()
        found.create()
        return DuplicatesQuery(dedupe, read.name, steps, types, records, found, events_from_ms)

    @contextmanager
    def writer(self, name: str) -> Iterator[RecordsWriter]:
        """Add the records that are appended in the body, in a file with this name."""
        with self.records.writer(name) as writer:
            yield RecordsWriter(self, RowSteps(self.steps, self.types), writer)

    @property
    def sql(self) -> str:
        """Query of the duplicates. A record is one if it isn't the first in the log among those with its values that are close
        in time."""
        keys = [f"key_{at}" for at in range(len(self.dedupe.by))]
        apart_us = self.dedupe.within_ms * 1000 - 1
        close = f"RANGE BETWEEN {apart_us} PRECEDING AND {apart_us} FOLLOWING"
        window = f"PARTITION BY {', '.join([POSITION[0], *keys])} ORDER BY {_TIME} {close}"
        in_log = f"CAST({POSITION[1]} AS HUGEINT) * {_ELEMENTS_MAX} + {POSITION[2]}"
        placed = f"SELECT *, {in_log} AS in_log FROM {self.records.sql}"
        judged = f"SELECT *, min(in_log) OVER ({window}) AS first FROM ({placed})"
        return f"SELECT {', '.join([*POSITION, _COUNTED])} FROM ({judged}) WHERE first < in_log"

    def compute(self, database: Database) -> int:
        """Find the duplicates. Return the number of the span's own records that are left out."""
        count = 0
        with self.found.writer("found") as writer:
            for batch in database.query(self.sql):
                writer.append(pa.RecordBatch.from_arrays(batch.columns, schema=self.found.schema))
                count += pc.sum(batch.column(_COUNTED)).as_py() or 0
        return count

    def without_duplicates(self, table: Table, same_position: Callable[[str, str], str]) -> str:
        """Return the query of the rows of a table that aren't duplicates. `same_position`: see `StageQuery`."""
        is_duplicate = same_position("given", "duplicates")
        return f"SELECT * FROM {table.sql} AS given ANTI JOIN {self.found.sql} AS duplicates ON {is_duplicate}"


@dataclass(frozen=True)
class RecordsWriter:
    """Writes the records that reach a `dedupe`."""

    query: DuplicatesQuery
    steps: RowSteps
    writer: TableWriter

    def append(self, chunk: DecodedChunk, accepted: np.ndarray, rejected: Mapping[int, str], *, own: bool) -> None:
        """Add the rows of a chunk.

        Args:
            accepted: Indices of the accepted rows in the chunk.
            rejected: Index -> reason of rows that are dead letters.
            own: True if the chunk counts in the span's totals.
        """
        stepped = self.steps.apply(chunk.decoded.arrays, len(accepted), chunk.tables)
        event_us = chunk.decoded.event_time.cast(pa.int64()).to_numpy(zero_copy_only=False)[stepped.rows]
        columns = [stepped.columns[name] for name in self.query.dedupe.by]
        is_wanted = event_us >= self.query.events_from_ms * 1000
        for column in columns:
            is_wanted &= column.is_valid().to_numpy(zero_copy_only=False)
        wanted = np.flatnonzero(is_wanted)
        places = accepted[stepped.rows[wanted]]
        counted = [own and place not in rejected for place in places.tolist()]
        keys = [column.take(pa.array(wanted)) for column in columns]
        batch = [
            *places_of(chunk, places),
            pa.array(event_us[wanted], pa.int64()),
            pa.array(counted, pa.bool_()),
            *(restored(key, stored_type(key.type)) for key in keys),
        ]
        self.writer.append(pa.RecordBatch.from_arrays(batch, schema=self.writer.schema))


def places_of(chunk: DecodedChunk, rows: np.ndarray, whole: int | None = 0) -> list[pa.Array]:
    """Return the log positions of these rows of a chunk; see `POSITION_TYPES`. `whole`: element of a row that is a complete
    record."""
    elements: list[int | None] = [whole] * len(rows)
    if chunk.elements is not None:
        elements = [whole if (one := chunk.elements[at]) is None else one for at in rows]
    partitions = np.full(len(rows), chunk.label, np.int32)
    offsets = np.asarray(chunk.offsets, np.int64)[rows]
    return [pa.array(partitions), pa.array(offsets), pa.array(elements, pa.int32())]
