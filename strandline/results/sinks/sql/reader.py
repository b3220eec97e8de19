"""Reads tables for an audit: a bounded number of ids in a part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa

from strandline.core.errors import Conflict
from strandline.core.field_types import is_nested
from strandline.results.names import OWN_PREFIX
from strandline.results.sinks.sink import ResultsRequest, StoredFile, StoredRows
from strandline.results.sinks.sql.writer import reading, table_of
from strandline.results.sinks.typed_rows import ID, TIME

TABLE_PART_ROWS = 100_000
_ROWS_A_BATCH = 2_000
_JOB = f"{OWN_PREFIX}job"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class TablePart:
    """The rows of some ids. Contains no password."""

    url: str
    request: ResultsRequest
    columns: tuple[str, ...]
    """Requested columns that the table has."""
    after: str | None
    """Exclusive lower bound of the ids, in the order of the database."""
    up_to: str | None
    """Inclusive upper bound. None if there is no bound."""

    @property
    def rows(self) -> int:
        return TABLE_PART_ROWS

    def read(self) -> Iterator[StoredRows | StoredFile]:
        nested = [name for name in self.columns if is_nested(self.request.types[name])]
        with reading(self.url, self.request.name) as connection:
            result = connection.execution_options(yield_per=_ROWS_A_BATCH).execute(self._statement())
            for page in result.mappings().partitions(_ROWS_A_BATCH):
                rows = [dict(row) | {name: _decoded(row[name]) for name in nested} for row in page]
                yield StoredRows(self.request.name, rows)

    def _statement(self) -> sa.Select[Any]:
        request = self.request
        table = table_of(request.name, request.types)
        identity, time = table.c[ID], table.c[TIME]
        # A row without a job was written by hand.
        wanted = [sa.or_(table.c[_JOB] == request.job, table.c[_JOB].is_(None))]
        wanted += [identity > self.after] if self.after is not None else []
        wanted += [identity <= self.up_to] if self.up_to is not None else []
        bounds = [time >= _moment(request.after_ms + 1)] if request.after_ms is not None else []
        if request.up_to_ms is not None:
            bounds.append(time < _moment(request.up_to_ms + 1))
        if bounds:
            missing = [time.is_(None)] if request.is_unbounded else []
            wanted.append(sa.or_(sa.and_(*bounds), *missing))
        return sa.select(*(table.c[name] for name in self.columns)).where(*wanted)


def table_parts(url: str, request: ResultsRequest) -> list[TablePart] | None:
    """Return the parts of a table. None if it doesn't exist.

    Raises SinkUnavailable, and Conflict if the table lacks Strandline's own columns or the user may not read it.
    """
    table = table_of(request.name, request.types)
    with reading(url, request.name) as connection:
        look = sa.inspect(connection)
        if not look.has_table(table.name, table.schema):
            return None
        held = {one["name"] for one in look.get_columns(table.name, table.schema)}
        if lacks := [name for name in request.types if name.startswith(OWN_PREFIX) and name not in held]:
            raise Conflict(
                f"table {request.name} has no column {', '.join(lacks)}: the job did not write this table; emit to another table"
            )
        columns = tuple(name for name in request.types if name in held)
        borders = list(_borders(connection, table))
    return [
        TablePart(url, request, columns, after, up_to)
        for after, up_to in zip([None, *borders], [*borders, None], strict=True)
    ]


def _borders(connection: sa.Connection, table: sa.Table) -> Iterator[str]:
    """Yield an id after each TABLE_PART_ROWS rows, in the database's order. The index of the key contains them."""
    identity, last = table.c[ID], None
    while True:
        behind = sa.true() if last is None else identity > last
        one = sa.select(identity).where(behind).order_by(identity).offset(TABLE_PART_ROWS - 1).limit(1)
        last = connection.execute(one).scalar()
        if last is None:
            return
        yield last


def _moment(time_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=time_ms)


def _decoded(text: object) -> object:
    """Decode an array or a struct from its JSON in the table. Another string is returned unchanged."""
    try:
        return msgspec.json.decode(text) if isinstance(text, str) else text
    except msgspec.DecodeError:
        return text
