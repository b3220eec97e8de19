"""Rows of a lookup from a query of a database. Each reading returns all rows. The database's user needs only the right to
read."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from strandline.core.errors import Conflict, InvalidSettings, SourceUnavailable
from strandline.core.lookups.lookup import LookupSpec
from strandline.core.lookups.packed_rows import ROWS_MAX
from strandline.core.sql_connections import LIBPQ_TIMEOUTS, cut_after
from strandline.processing.formats.lookups.rows import KeyedRows, encode_rows, keyed_rows, read_rows

CONNECT_S_MAX = 10
QUERY_S_MAX = 30
ANSWER_S_MAX = QUERY_S_MAX + 5
"""Seconds from the connection to the last row. The database ends the query first, unless it is paused or gone."""
_STEPS_A_LOOK = 100_000
"""Number of steps of its virtual machine after which SQLite checks the deadline."""
_REFUSALS = (sa.exc.ProgrammingError, sa.exc.DataError, sa.exc.NotSupportedError, sa.exc.InternalError)
"""The last is also what PostgreSQL says to a query that would write."""
_BACKENDS = {"postgresql": "psycopg", "sqlite": "pysqlite"}


def query_rows(spec: LookupSpec, url: str) -> KeyedRows:
    """Return the rows that the query of the lookup's source returns now. `url`: of SQLAlchemy; may contain a password, which no
    error shows.

    The query is part of a statement with a parameter, in a read-only transaction. So the database accepts no second statement,
    and changes nothing.

    Raises SourceUnavailable if the database doesn't respond in time, or refuses the connection. Raises Conflict if it refuses the
    query, or the result can't be the lookup's rows. Raises InvalidSettings if the URL can't be used.
    """
    assert spec.source is not None
    assert spec.source.sql is not None
    name = spec.source.sql.database
    query = spec.source.sql.query.strip().removesuffix(";").replace(":", "\\:")
    statement = sa.text(f"SELECT * FROM (\n{query}\n) AS strandline_rows LIMIT :strandline_limit")  # noqa: S608
    with reading(name, url) as connection:
        result = connection.execute(statement, {"strandline_limit": ROWS_MAX + 1})
        _refuse_other_columns(spec, list(result.keys()))
        found = [dict(row) for row in result.mappings()]
    if len(found) > ROWS_MAX:
        raise Conflict(f"the query of database {name} gives more than the {ROWS_MAX:,} rows that a lookup may have")
    lines = encode_rows([_plain_row(spec, row) for row in found])
    rows = read_rows(spec, lines)
    if isinstance(rows, pa.RecordBatch):
        return keyed_rows(spec, rows)
    first = rows[0]
    shown = ", ".join(f"{one} {found[first.row].get(one)!r}" for one in spec.key)
    message = first.message_at(lambda row: "another row")
    raise Conflict(f"the query of database {name} gives a row ({shown}) that can't be the lookup's: {message}")


@contextmanager
def reading(name: str, url: str) -> Iterator[sa.Connection]:
    """Yield a connection to the database of this name, in a read-only transaction. Raises as `query_rows`."""
    parsed = _parsed(name, url)
    with _seam(name, parsed), _connected(parsed) as connection:
        yield connection


def _parsed(name: str, url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
        backend, driver = parsed.get_backend_name(), parsed.get_driver_name()
    except (sa.exc.SQLAlchemyError, ImportError):
        raise InvalidSettings(
            f"STRANDLINE_SQL_SOURCES has no URL of SQLAlchemy for '{name}', as postgresql+psycopg://reader@host/db"
        ) from None
    if _BACKENDS.get(backend) != driver:
        raise InvalidSettings(
            f"STRANDLINE_SQL_SOURCES names {parsed.drivername} for '{name}'; write postgresql+psycopg://... or sqlite:///FILE"
        )
    if backend == "sqlite" and not Path(str(parsed.database)).is_file():
        raise SourceUnavailable(f"database {name}: there is no file {parsed.database}")
    return parsed


@contextmanager
def _connected(url: sa.URL) -> Iterator[sa.Connection]:
    """Yield a connection with a read-only transaction and time limits, which apply also if the database stops responding."""
    is_sqlite = url.get_backend_name() == "sqlite"
    arguments: dict[str, Any] = (
        {"timeout": CONNECT_S_MAX}
        if is_sqlite
        else {"connect_timeout": CONNECT_S_MAX, "application_name": "strandline-lookups", **LIBPQ_TIMEOUTS}
    )
    engine = sa.create_engine(url, poolclass=NullPool, connect_args=arguments)
    with engine.connect() as connection:
        driver: Any = connection.connection.dbapi_connection
        if is_sqlite:
            deadline_s = time.monotonic() + QUERY_S_MAX
            driver.set_progress_handler(lambda: int(time.monotonic() > deadline_s), _STEPS_A_LOOK)
            connection.exec_driver_sql("PRAGMA query_only=ON")
            yield connection
            return
        with cut_after(driver, ANSWER_S_MAX):
            # In the transaction, because a pooler in between may take no options.
            connection.exec_driver_sql("SET TRANSACTION READ ONLY")
            connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{QUERY_S_MAX}s'")
            yield connection


@contextmanager
def _seam(name: str, url: sa.URL) -> Iterator[None]:
    """Raise errors of SQLAlchemy as Conflict or SourceUnavailable, with a message of one line that shows no password."""
    try:
        yield
    except _REFUSALS as error:
        raise Conflict(f"database {name} refuses the query: {_first_line(error, url)}") from None
    except sa.exc.OperationalError as error:
        is_late = any(word in str(error.orig) for word in ("locked", "interrupted"))
        if url.get_backend_name() == "sqlite" and not is_late:
            raise Conflict(f"database {name} refuses the query: {_first_line(error, url)}") from None
        raise SourceUnavailable(f"database {name} did not answer: {_first_line(error, url)}") from None
    except sa.exc.SQLAlchemyError as error:
        raise SourceUnavailable(f"database {name} did not answer: {_first_line(error, url)}") from None


def _first_line(error: sa.exc.SQLAlchemyError, url: sa.URL) -> str:
    original = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    line = (str(original).strip() or type(original).__name__).splitlines()[0]
    secrets = [str(url.password or ""), *(str(value) for key, value in url.query.items() if "password" in key)]
    for secret in filter(None, secrets):
        line = line.replace(secret, "***").replace(quote(secret, safe=""), "***")
    return line


def _refuse_other_columns(spec: LookupSpec, columns: Sequence[str]) -> None:
    missing = [name for name in spec.fields if name not in columns]
    extra = [name for name in columns if name not in spec.fields]
    if missing or extra:
        problems = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has also {', '.join(extra)}"] * bool(extra)
        raise Conflict(
            f"the query's columns must be the lookup's fields, and it {' and '.join(problems)}; select them by these names, "
            "as 'select device_id as device'"
        )


def _plain_row(spec: LookupSpec, row: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain(name, row[name], field.type) for name, field in spec.fields.items()}


def _plain(name: str, value: Any, kind: str) -> Any:
    """Return a value of the query as a JSON value of this kind. Raises Conflict if a lookup can't contain it."""
    if isinstance(value, datetime):
        return (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).astimezone(UTC)
    if isinstance(value, date | uuid.UUID):
        return str(value)
    if isinstance(value, Decimal) and value.is_finite():
        whole = kind in ("long", "integer") and value == value.to_integral_value()
        return int(value) if whole else float(value) if kind == "double" else value
    if kind == "boolean" and value in (0, 1):
        return bool(value)  # as SQLite has it
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    shown = f"{value}" if isinstance(value, float | Decimal) else f"a {type(value).__name__}"
    raise Conflict(f"the query gives {shown} for {name}, which is no value of a lookup; cast it in the query")
