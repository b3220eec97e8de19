"""Reads tables back for the audit: so many ids a part, and so many rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa

from strandline.core.errors import Conflict
from strandline.core.field_types import is_nested
from strandline.processing.audit.index_reader import EndRange
from strandline.processing.audit.parts import Account
from strandline.processing.audit.sinks.places import Place
from strandline.processing.audit.sinks.rows import stored_row
from strandline.processing.audit.stores import ROWS_SCHEMA
from strandline.processing.audit_queries.table import Table
from strandline.processing.operators.blobs import batch_of
from strandline.results.names import OWN_PREFIX
from strandline.results.sinks.sql_writer import reading, table_of
from strandline.results.sinks.typed_rows import ID, TIME

TABLE_PART_ROWS = 100_000
_ROWS_A_BATCH = 2_000
_JOB = f"{OWN_PREFIX}job"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class TablePart:
    """The rows of some ids. Travels pickled, without the password."""

    name: str
    url: str
    place: Place
    columns: tuple[str, ...]
    """Those of the place's that the table has."""
    after: str | None
    """Only greater ids, as the database orders them."""
    up_to: str | None
    """Up to this one; None: up to the last."""
    compared: Table

    @property
    def rows(self) -> int:
        return TABLE_PART_ROWS

    def run(self) -> Account:
        nested = [name for name in self.columns if is_nested(self.place.types[name])]
        with self.compared.writer(self.name) as rows, reading(self.url, self.place.name) as connection:
            result = connection.execution_options(yield_per=_ROWS_A_BATCH).execute(self._statement())
            for page in result.mappings().partitions(_ROWS_A_BATCH):
                found = []
                for row in page:
                    values = dict(row) | {name: _decoded(row[name]) for name in nested}
                    found.append(stored_row(self.place.store, self.place.name, values, self.place.fields))
                rows.append(batch_of([row for row in found if self.place.asked.holds(row.end_ms)], ROWS_SCHEMA))
        return Account()

    def _statement(self) -> sa.Select[Any]:
        table, place = table_of(self.place.name, self.place.types), self.place
        identity, time = table.c[ID], table.c[TIME]
        # A row without a job was written by hand.
        wanted = [sa.or_(table.c[_JOB] == place.job, table.c[_JOB].is_(None))]
        wanted += [identity > self.after] if self.after is not None else []
        wanted += [identity <= self.up_to] if self.up_to is not None else []
        bounds = [time >= _moment(known + 1) for known in (place.asked.after_ms, place.after_ms) if known is not None]
        if place.asked.up_to_ms is not None:
            bounds.append(time < _moment(place.asked.up_to_ms + 1))
        if bounds:
            missing = [time.is_(None)] if place.asked == EndRange() else []
            wanted.append(sa.or_(sa.and_(*bounds), *missing))
        return sa.select(*(table.c[name] for name in self.columns)).where(*wanted)


def table_parts(url: str, place: Place, compared: Table) -> list[TablePart] | None:
    """The rows of a table; None where it isn't there. Raises SinkUnavailable, and Conflict where the table lacks the platform's
    own columns or the user may not read it."""
    table = table_of(place.name, place.types)
    with reading(url, place.name) as connection:
        look = sa.inspect(connection)
        if not look.has_table(table.name, table.schema):
            return None
        held = {one["name"] for one in look.get_columns(table.name, table.schema)}
        if lacks := [name for name in place.types if name.startswith(OWN_PREFIX) and name not in held]:
            raise Conflict(f"table {place.name} has no column {', '.join(lacks)}: it is not the one that the job wrote")
        columns = tuple(name for name in place.types if name in held)
        borders = list(_borders(connection, table))
    return [
        TablePart(f"table-{place.name}-{number}", url, place, columns, after, up_to, compared)
        for number, (after, up_to) in enumerate(zip([None, *borders], [*borders, None], strict=True))
    ]


def _borders(connection: sa.Connection, table: sa.Table) -> Iterator[str]:
    """Every so many ids one, in the database's order: the index of the key has them."""
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
    """An array or a struct of the JSON that a table holds; a text that is none stays one."""
    try:
        return msgspec.json.decode(text) if isinstance(text, str) else text
    except msgspec.DecodeError:
        return text
