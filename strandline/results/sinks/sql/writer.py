"""Writes each result once into a table of a SQL database: inserted under an id that is derived from the data, never
overwritten."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
import stamina
from sqlalchemy.dialects import postgresql, sqlite

from strandline.core.errors import Conflict, Divergence, InvalidSettings, SinkUnavailable
from strandline.core.field_types import digits_of, is_nested, kind_of
from strandline.core.settings import Settings
from strandline.core.sql_connections import LIBPQ_TIMEOUTS, cut_after
from strandline.ledger.database import without_secrets
from strandline.results.document import DocumentShape
from strandline.results.names import OWN_PREFIX
from strandline.results.sinks.typed_rows import ATTEMPT_COLUMNS, ID, TypedRows, own_columns, typed_rows
from strandline.results.text_columns import read_column
from strandline.results.writer import Refused, WriteReport

_TYPES: dict[str, sa.types.TypeEngine[Any]] = {
    "string": sa.Text(),
    "long": sa.BigInteger(),
    "integer": sa.Integer(),
    "double": sa.Double(),
    "boolean": sa.Boolean(),
    "timestamp": sa.DateTime(timezone=True),
}
AWAY = (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.InternalError)
"""InternalError is raised by PostgreSQL during a failover, when it accepts no writes, and after it ended an idle
transaction."""
_TOO_LARGE = "54"
"""SQLSTATE class for values that exceed a limit of PostgreSQL, such as a string that is too long for an index."""
_RAISED_BY_TRIGGER = "P0001"
_JOB, _EMISSION, _SLICE_DIGEST = (f"{OWN_PREFIX}{name}" for name in ("job", "emission", "slice_digest"))
_DIFFERENCES_SHOWN_MAX = 3
_CONNECT_S_MAX = 10
_STATEMENT_S_MAX = 60
"""Seconds after which PostgreSQL ends a statement, which may wait for a lock of another client."""
_TRANSACTION_S_MAX = 2 * _STATEMENT_S_MAX + 5
"""Seconds for one transaction, also if the database no longer responds."""
_engines: dict[str, sa.Engine] = {}
"""This process's engine for each URL."""


@dataclass(frozen=True)
class SqlWriter:
    """A StoreWriter over one table of PostgreSQL (or SQLite, for tests).

    Pickles without the password, which comes from STRANDLINE_SQL_SINK_URL in the environment of each process.
    """

    url: str
    """URL without its password."""
    table_name: str
    """Name of the table, optionally with the schema and a dot."""
    shape: DocumentShape
    rows_max: int = 1_000
    """Maximum number of rows in one transaction."""
    deadline_s: float = 120.0
    """Seconds for which the rows of one transaction are tried before the write raises SinkUnavailable."""

    def prepare(self, next_end_ms: int | None) -> None:
        """Create the table, or its missing columns.

        Raises Conflict if a column has another type, or if the table belongs to another program; InvalidSettings,
        SinkUnavailable.
        """
        try:
            self._retried(self._ensure_table)
        except sa.exc.DBAPIError as error:
            raise self._conflict(error) from error

    def write_batches(
        self, batches: Iterable[pa.RecordBatch], epoch: int, emission: int, slice_digest: str = ""
    ) -> WriteReport:
        """Write the rows. See `ResultWriter.write_batches`. Raises SinkUnavailable, Conflict, Divergence."""
        report = WriteReport()
        for batch in batches:
            for first in range(0, batch.num_rows, self.rows_max):
                rows = typed_rows(self.shape, batch.slice(first, self.rows_max), epoch, emission, slice_digest)
                report.refused += rows.refused
                self._write(self._without_nul(rows, report), report)
        return report

    def _write(self, rows: TypedRows, report: WriteReport) -> None:
        """Insert the rows. If the database refuses some, insert halves, down to the refused rows."""
        values = self._values(rows)
        if not values:
            return
        try:
            created = self._retried(lambda: self._insert(values))
        except sa.exc.DBAPIError as error:
            if not _is_of_a_row(error):
                raise self._conflict(error) from error
            if len(values) == 1:
                report.refused += self._refusals(rows, [0], str(error.orig))
                return
            middle = len(values) // 2
            for half in (range(middle), range(middle, len(values))):
                places = list(half)
                part = TypedRows(rows.table.take(pa.array(places)), rows.documents.taken(places), [])
                self._write(part, report)
            return
        report.created += created
        report.already += len(values) - created
        report.add_stored(f"table {self.table_name}", len(values))

    def _values(self, rows: TypedRows) -> list[dict[str, Any]]:
        """Return the rows as the table stores them: an array or a struct as its JSON in a document."""
        values: list[dict[str, Any]] = rows.table.to_pylist()
        for name, kind in self.shape.fields:
            if is_nested(kind):
                texts = read_column(name, rows.table.column(name), kind).texts.to_pylist()
                for row, text in zip(values, texts, strict=True):
                    row[name] = None if row[name] is None else text[:-1].decode()
        return values

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """A transaction with a time limit. It fails with an error in AWAY if the database doesn't respond."""
        engine = self._engine()
        with engine.begin() as connection:
            if engine.dialect.name != "postgresql":
                yield connection
                return
            with cut_after(connection.connection.dbapi_connection, _TRANSACTION_S_MAX):
                connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{_STATEMENT_S_MAX}s'")
                yield connection

    def _insert(self, values: Sequence[Mapping[str, Any]]) -> int:
        """Insert the missing rows in one transaction, and return their number. Existing rows must be equal."""
        table, engine = self._table(), self._engine()
        insert = (postgresql if engine.dialect.name == "postgresql" else sqlite).insert(table)
        statement = insert.on_conflict_do_nothing(index_elements=[ID]).returning(table.c[ID])
        with self._transaction() as connection:
            created = set(connection.execute(statement, list(values)).scalars())
            there = {row[ID]: row for row in values if row[ID] not in created}
            if there:
                held = connection.execute(sa.select(table).where(table.c[ID].in_(list(there)))).mappings()
                self._require_equal(there, [dict(row) for row in held])
        return len(created)

    def _require_equal(self, computed: Mapping[str, Mapping[str, Any]], held: Sequence[Mapping[str, Any]]) -> None:
        different = [
            f"{row[ID]}: {name} is {row.get(name)!r} in the table, this run computed {value!r}"
            for row in held
            for name, value in computed[row[ID]].items()
            if name not in ATTEMPT_COLUMNS and _plain(row.get(name)) != _plain(value)
        ]
        if different:
            raise Divergence(
                f"{len(different)} values differ from those in table {self.table_name}; nothing was overwritten. "
                f"{'; '.join(different[:_DIFFERENCES_SHOWN_MAX])}. Recompute them from the log to see which are right"
            )

    def _without_nul(self, rows: TypedRows, report: WriteReport) -> TypedRows:
        """Refuse strings with the character NUL, which PostgreSQL can't store."""
        texts = [column for column in rows.table.columns if pa.types.is_string(column.type)]
        masks = [pc.match_substring(column, "\0").fill_null(False) for column in texts]
        bad = {row for mask in masks for row in pc.indices_nonzero(mask).to_pylist()}
        if not bad:
            return rows
        report.refused += self._refusals(
            rows, sorted(bad), "a string contains the character NUL, which the database can't store"
        )
        good = [row for row in range(rows.table.num_rows) if row not in bad]
        return TypedRows(rows.table.take(pa.array(good, pa.int64())), rows.documents.taken(good), [])

    def _refusals(self, rows: TypedRows, places: list[int], reason: str) -> list[Refused]:
        documents = rows.documents.taken(places).rows()
        return [Refused(one.id, self.table_name, None, "data_error", reason.strip(), one.source) for one in documents]

    def _ensure_table(self) -> None:
        table, engine = self._table(), self._engine()
        table.create(engine, checkfirst=True)
        with self._transaction() as connection:
            held = {one["name"]: one["type"] for one in sa.inspect(connection).get_columns(table.name, table.schema)}
            if ID not in held:
                raise Conflict(
                    f"table {self.table_name} has no column {ID}, so another program created it; emit to another table"
                )
            for column in table.columns:
                wanted = column.type.compile(engine.dialect)
                if column.name not in held:
                    name = engine.dialect.identifier_preparer.quote(column.name)
                    shown = engine.dialect.identifier_preparer.format_table(table)
                    connection.execute(sa.text(f"ALTER TABLE {shown} ADD COLUMN {name} {wanted}"))
                elif (there := held[column.name].compile(engine.dialect)) != wanted:
                    raise Conflict(
                        f"column {column.name} of table {self.table_name} is {there}, and the results need {wanted}; emit to "
                        "another table, or change the column"
                    )

    def _table(self) -> sa.Table:
        return table_of(self.table_name, {**own_columns(self.shape), **dict(self.shape.fields)})

    def _engine(self) -> sa.Engine:
        return engine_of(self.url)

    def _retried(self, step: Any) -> Any:
        """Run the step, and repeat it while the database is unavailable. Return its result.

        Raises SinkUnavailable if the database was unavailable until the deadline, else the error of the database.
        """
        try:
            for attempt in stamina.retry_context(
                on=_is_away,
                attempts=None,
                timeout=self.deadline_s,
                wait_max=5.0,
            ):
                with attempt:
                    return step()
        except AWAY as error:
            if not _is_away(error):
                raise
            raise SinkUnavailable(
                f"the database of table {self.table_name} accepts no results now: {error.orig}; check the database, and "
                "STRANDLINE_SQL_SINK_URL"
            ) from error
        raise AssertionError("a retry ends with a result or an error")

    def _conflict(self, error: sa.exc.DBAPIError) -> Conflict:
        return Conflict(
            f"table {self.table_name} accepts no results: {str(error.orig).strip()}; check the table and the user's rights"
        )


def _is_away(error: Exception) -> bool:
    """Return True if the database may accept the same statement later."""
    return isinstance(error, AWAY) and not _is_of_a_row(error)


def _is_of_a_row(error: sa.exc.DBAPIError) -> bool:
    """Return True if the database refuses a row for its values: it may accept other rows.

    The driver's error classes alone don't show this.
    """
    state = str(getattr(error.orig, "sqlstate", ""))
    is_of_value = isinstance(error, sa.exc.DataError | sa.exc.IntegrityError)
    return is_of_value or state.startswith(_TOO_LARGE) or state == _RAISED_BY_TRIGGER


def sql_url(settings: Settings) -> str:
    """Return the database's URL without its password.

    Raises InvalidSettings if it isn't set, or if the database isn't supported.
    """
    if settings.sql_sink_url is None:
        raise InvalidSettings(
            "STRANDLINE_SQL_SINK_URL is not set; set it to the database with the tables of `sql` emissions"
        )
    url = _parsed(settings.sql_sink_url)
    if url.get_backend_name() not in ("postgresql", "sqlite"):
        raise InvalidSettings(
            f"STRANDLINE_SQL_SINK_URL names {url.get_backend_name()}; expected postgresql+psycopg://... "
        )
    return without_secrets(settings.sql_sink_url)


def engine_of(url: str) -> sa.Engine:
    """Return this process's engine for a database. `url`: without its password."""
    if url not in _engines:
        full = sa.make_url(_with_password(url))
        timeouts: dict[str, Any] = {}
        if full.get_backend_name() == "postgresql":
            timeouts = {"connect_timeout": _CONNECT_S_MAX, **LIBPQ_TIMEOUTS}
            # values in the user's URL take precedence
            timeouts = {name: value for name, value in timeouts.items() if name not in full.query}
        _engines[url] = sa.create_engine(full, pool_size=2, pool_pre_ping=True, connect_args=timeouts)
    return _engines[url]


def table_of(table_name: str, types: Mapping[str, str]) -> sa.Table:
    """Return the table with the id and columns of these types."""
    schema, _, name = table_name.rpartition(".")
    columns = [sa.Column(ID, sa.Text(), primary_key=True)]
    columns += [sa.Column(column, _sql_type(kind)) for column, kind in types.items() if column != ID]
    return sa.Table(name, sa.MetaData(), *columns, schema=schema or None)


def emissions_from(url: str, table_name: str, job: str, first: int) -> list[tuple[int, str]]:
    """Return (emission, digest of its slice) of the job's rows, from emission `first` on, in order.

    The digest is empty if the rows don't contain it. Empty if Strandline's table doesn't exist. Raises the errors of
    `reading`.
    """
    table = table_of(table_name, {_JOB: "string", _EMISSION: "long", _SLICE_DIGEST: "string"})
    with reading(url, table_name) as connection:
        look = sa.inspect(connection)
        if not look.has_table(table.name, table.schema):
            return []
        columns = {one["name"] for one in look.get_columns(table.name, table.schema)}
        if not {_JOB, _EMISSION} <= columns:
            return []  # the writer refuses the table, or adds them
        digest = table.c[_SLICE_DIGEST] if _SLICE_DIGEST in columns else sa.literal("")
        found = (
            sa.select(table.c[_EMISSION], digest).where(table.c[_JOB] == job, table.c[_EMISSION] >= first).distinct()
        )
        return sorted((emission, digest or "") for emission, digest in connection.execute(found))


def count_emissions(url: str, table_name: str, job: str, first: int) -> dict[int, int]:
    """Return emission -> number of the job's rows, from emission `first` on. Empty if the table doesn't exist.

    Raises the errors of `reading`.
    """
    table = table_of(table_name, {_JOB: "string", _EMISSION: "long"})
    with reading(url, table_name) as connection:
        if not sa.inspect(connection).has_table(table.name, table.schema):
            return {}
        wanted = sa.select(table.c[_EMISSION], sa.func.count()).where(table.c[_JOB] == job, table.c[_EMISSION] >= first)
        return {emission: count for emission, count in connection.execute(wanted.group_by(table.c[_EMISSION]))}


@contextmanager
def reading(url: str, table_name: str) -> Iterator[sa.Connection]:
    """Open a connection that reads the table, for a `with` statement. Raises SinkUnavailable if the database doesn't
    respond, and Conflict if the table can't be read, for example without the right.

    `url`: without its password, which comes from STRANDLINE_SQL_SINK_URL.
    """
    try:
        with engine_of(url).connect() as connection:
            yield connection
    except AWAY as error:
        raise SinkUnavailable(
            f"the database of table {table_name} did not answer: {error.orig}; check it, and STRANDLINE_SQL_SINK_URL"
        ) from error
    except sa.exc.ProgrammingError as error:
        raise Conflict(
            f"table {table_name} can't be read: {str(error.orig).strip()}; check the table and the user's rights"
        ) from error


def responds(url: str, timeout_s: float) -> bool:
    """Return True if the database accepts a connection in this time."""
    wait = {"timeout" if url.startswith("sqlite") else "connect_timeout": int(timeout_s)}
    try:
        with sa.create_engine(url, poolclass=sa.NullPool, connect_args=wait).connect():
            return True
    except (sa.exc.SQLAlchemyError, ImportError):
        return False


def _with_password(shown: str) -> str:
    own = Settings().sql_sink_url
    if own is None or without_secrets(own) != shown:
        return shown
    return own


def _parsed(url: str) -> sa.URL:
    try:
        return sa.make_url(url)
    except sa.exc.ArgumentError as error:
        raise InvalidSettings(
            "STRANDLINE_SQL_SINK_URL is not a URL of SQLAlchemy; write it like postgresql+psycopg://user@host/db"
        ) from error


def _sql_type(kind: str) -> sa.types.TypeEngine[Any]:
    if kind_of(kind) == "decimal":
        precision, scale = digits_of(kind) or (38, 0)
        # SQLite has no exact numbers.
        return sa.Numeric(precision, scale).with_variant(_TextDecimal(), "sqlite")
    return sa.Text() if is_nested(kind) else _TYPES[kind]


class _TextDecimal(sa.types.TypeDecorator[Decimal]):
    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Decimal | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else format(value, "f")

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> Decimal | None:
        return None if value is None else Decimal(value)


def _plain(value: Any) -> Any:
    """Return a time in UTC: SQLite returns times without their zone."""
    if isinstance(value, datetime):
        return (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).astimezone(UTC)
    return value
