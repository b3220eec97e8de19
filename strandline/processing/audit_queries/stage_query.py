"""The contract of the query with which the audit recomputes one stage.

The query shares no code with the operator of the stage, except the expressions, and the hash for approximate counts. Each kind of
stage has its query in its folder (`audit`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from strandline.processing.audit_queries.table import Database, Table
from strandline.processing.columns.codes import Codes
from strandline.processing.pipelines.kind_registry import part_of
from strandline.processing.pipelines.stages import Stage

POSITION_TYPES = (pa.int32(), pa.int64(), pa.int32())
"""Types of the log position of a record: partition, offset, element of an exploded record."""
POSITION = ("place_0", "place_1", "place_2")
"""Columns of a log position in tables of positions."""


class StageQuery(ABC):
    """Recomputes one stage: `rows` returns the columns of its input rows to store in a table, `results` queries the table."""

    stage: Stage
    row_schema: pa.Schema
    """Columns of the table of rows."""
    needs_positions: bool
    """True if `rows` needs the log positions of the rows."""
    whole_element: int | None = 0
    """Element in the log position of a row that is a complete record."""

    @abstractmethod
    def rows(self, event_us: pa.Array, columns: dict[str, pa.Array], places: Sequence[pa.Array] = ()) -> pa.RecordBatch:
        """Return records as rows of the table. `event_us`: event time of each. `places`: see POSITION_TYPES; empty unless
        `needs_positions` is true."""

    @abstractmethod
    def rows_of_results(
        self, before: Stage, event_us: pa.Array, columns: dict[str, pa.Array], labels: Callable[[], Codes]
    ) -> pa.RecordBatch:
        """Return results of the stage `before` as rows of the table. `event_us`, `columns`: event time and fields of each result.
        `labels`: returns the partition of each result (its virtual bucket, or 0), which orders results with equal times."""

    @abstractmethod
    def results(self, database: Database, table: Table, rows: str | None = None) -> Iterator[pa.RecordBatch]:
        """Yield all results over the rows of the table, in any order, with the columns of the operator's results. `rows`: a query
        of the rows that count. None if all count."""

    def same_position(self, row: str, place: str) -> str:
        """Return the SQL condition that a row of the table is the record at a log position. See `same_position`."""
        return same_position(row, place)


def same_position(row: str, place: str) -> str:
    """Return the SQL condition that two log positions are equal. `row`, `place`: names in the query, with POSITION columns."""
    return " AND ".join(f"{place}.{name} = {row}.{name}" for name in POSITION)


def query_of(
    stage: Stage, side: int, types: Mapping[str, str], position_types: Sequence[pa.DataType] = POSITION_TYPES
) -> StageQuery:
    """Return the query of a stage.

    Args:
            side: Input whose rows the query accepts.
            types: Columns that expressions can read.
            position_types: Types of the columns that order rows with the same event time.
    """
    query: StageQuery = part_of(stage.kind, "audit", stage.kind_package).query_of(stage, side, types, position_types)
    return query
