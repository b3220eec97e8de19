"""Access to the database: connections, transactions, and conversion of its errors to the platform's.

SQLite runs with a rollback journal, because its write-ahead log can corrupt the file under concurrency in the releases
that distributions ship. The journal is truncated rather than deleted: with `synchronous=FULL`, SQLite then syncs the
end of a transaction too, so that a power failure can't undo a commit.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.dialects import postgresql, sqlite

from strandline.core.errors import Conflict, InvalidSettings, LedgerUnavailable
from strandline.core.sql_connections import LIBPQ_TIMEOUTS

BUSY_TIMEOUT_S = 30
"""Seconds that a statement waits for a lock of another process before the ledger counts as unavailable."""
CONNECT_TIMEOUT_S = 10
_SHARED_WRITERS_MAX, _SHARED_S_MAX = 50, 0.25
"""Maximum number of threads that write in one transaction, and time in seconds after which no other one joins it."""


class Database:
    """Opens transactions. May be used by several threads; each transaction belongs to one."""

    def __init__(self, url: str) -> None:
        """Raises InvalidSettings for an invalid ledger URL. Opens no connection."""
        parsed = _parse(url)
        self.address = without_secrets(url)
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        engine = _sqlite_engine(parsed) if self.is_sqlite else _postgresql_engine(parsed)
        self._readers = engine
        self._writers = engine.execution_options(is_writing=True)
        self._shared = _SharedTransactions(self._begin) if self.is_sqlite else None
        self._is_closed = False

    def close(self) -> None:
        """Close all connections. A connection that another thread is using is closed when its transaction ends."""
        self._is_closed = True
        self._readers.dispose()

    @contextmanager
    def reading(self, action: str) -> Iterator[sa.Connection]:
        """Open a transaction that only reads, for a `with` statement. `action` completes the message "could not ..."."""
        with self._seam(action), self._readers.connect() as connection:
            yield connection

    @contextmanager
    def writing(self, action: str) -> Iterator[sa.Connection]:
        """Open a transaction for a `with` statement: committed at the end of the block, rolled back if an error leaves it."""
        with self._seam(action), self._writers.begin() if self._shared is None else self._shared.write() as connection:
            yield connection

    def _begin(self) -> sa.Connection:
        connection = self._writers.connect()
        try:
            connection.begin()
        except BaseException:
            connection.close()
            raise
        return connection

    def clock_ms(self) -> sa.ColumnElement[int]:
        """Return the database's clock at the moment of the statement, in milliseconds since 1970 UTC: one clock for all
        processes.

        This isn't the time at which the transaction began, because it may have waited for a lock since.
        """
        if self.is_sqlite:
            clock = (sa.func.julianday("now") - 2440587.5) * 86_400_000
        else:
            clock = sa.extract("epoch", sa.func.clock_timestamp()) * 1000
        return sa.cast(clock, sa.BigInteger)

    def hold_lock(self, connection: sa.Connection, key: int) -> None:
        """Lock `key` until the transaction ends. Does nothing in SQLite, which has one writer at a time anyway."""
        if not self.is_sqlite:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))

    def insert_new(self, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
        """Return an insert that leaves an existing row unchanged, after waiting for a transaction that may be inserting
        it."""
        insert = sqlite.insert(table) if self.is_sqlite else postgresql.insert(table)
        return insert.on_conflict_do_nothing()

    @contextmanager
    def _seam(self, action: str) -> Iterator[None]:
        pool = self._readers.pool
        try:
            yield
        except (exc.IntegrityError, exc.DataError, OverflowError) as error:
            raise Conflict(f"The ledger refused to {action}: {_first_line(error)}") from error
        except (exc.DBAPIError, exc.TimeoutError) as error:
            reason = _first_line(error)
            raise LedgerUnavailable(
                f"Could not {action}: the ledger's database at {self.address} reports {reason!r}; {_remedy(reason)}."
            ) from error
        finally:
            # closed in the meantime: the connection was returned to a pool that will not be closed again
            if self._is_closed:
                pool.dispose()


class _Shared:
    """A transaction in which several threads write, one after another."""

    def __init__(self, connection: sa.Connection) -> None:
        self.connection = connection
        self.began_s = time.monotonic()
        self.writers = 0
        self.is_done = False
        """True once it is committed or has failed."""
        self.error: BaseException | None = None

    @property
    def takes_more(self) -> bool:
        return self.writers < _SHARED_WRITERS_MAX and time.monotonic() - self.began_s < _SHARED_S_MAX

    @property
    def is_lost(self) -> bool:
        """True if the database has rolled it back by itself, as SQLite does when the disk is full."""
        return not self.connection.connection.dbapi_connection.in_transaction  # type: ignore[union-attr]


class _SharedTransactions:
    """Lets the threads of a process write one after another. Those that wait share one transaction, and so one sync of the disk.

    SQLite has one writer at a time, and a commit takes longer than most writes. A thread that waits in SQLite sleeps longer and
    longer, so a lot of waiting threads leave the database idle, and hold all connections meanwhile.

    A thread sees its changes as in a transaction of its own: if it fails, only its changes are undone, and it goes on only when
    its changes are committed. If the commit fails, it fails for all of its threads.
    """

    def __init__(self, begin: Callable[[], sa.Connection]) -> None:
        """`begin`: opens a connection and begins a transaction that writes."""
        self._begin = begin
        self._changed = threading.Condition()
        """Guards the following fields."""
        self._waiting = 0
        self._is_writing = False
        """True while a thread writes or commits."""
        self._shared: _Shared | None = None
        """The open transaction. Its writers wait until it is committed."""

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Wait for the turn of this thread, and commit at the end of the block. Raises TimeoutError of SQLAlchemy after
        BUSY_TIMEOUT_S."""
        shared = self._take_turn()
        try:
            with shared.connection.begin_nested():
                yield shared.connection
        except BaseException as error:
            if shared.is_lost:
                shared.error = error
            self._end_turn(shared, has_failed=True)
            raise
        self._end_turn(shared, has_failed=False)

    def _take_turn(self) -> _Shared:
        deadline_s = time.monotonic() + BUSY_TIMEOUT_S
        with self._changed:
            self._waiting += 1
            try:
                while self._is_writing:
                    if not self._changed.wait(deadline_s - time.monotonic()):
                        raise exc.TimeoutError(f"other threads of this process wrote for {BUSY_TIMEOUT_S} s")
                self._is_writing = True
            finally:
                self._waiting -= 1
                self._changed.notify_all()
            if self._shared is not None:
                return self._shared
        try:
            self._shared = _Shared(self._begin())
        except BaseException:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
            raise
        return self._shared

    def _end_turn(self, shared: _Shared, *, has_failed: bool) -> None:
        """Let the next thread write, and wait until the transaction is committed. The last thread commits it."""
        with self._changed:
            shared.writers += 1
            if self._waiting and shared.error is None and shared.takes_more:
                self._is_writing = False
                self._changed.notify_all()
                while not shared.is_done and (self._is_writing or self._waiting):
                    self._changed.wait()
                if shared.is_done:
                    if not has_failed and shared.error is not None:
                        raise exc.TimeoutError(f"the transaction that it shared has failed: {shared.error}")
                    return
                self._is_writing = True  # the threads that waited have given up
            self._shared = None
        error = shared.error
        try:
            if error is None:
                shared.connection.commit()
        except BaseException as found:
            error = found
            if not has_failed:
                raise
        finally:
            with contextlib.suppress(exc.DBAPIError):  # what it reports is known, or doesn't matter after the commit
                if error is not None:
                    shared.connection.invalidate()  # the transaction may still be open
                shared.connection.close()
            with self._changed:
                shared.is_done, shared.error = True, error
                self._is_writing = False
                self._changed.notify_all()


def without_secrets(url: str) -> str:
    """Return the ledger's URL without a password. Raises InvalidSettings for an invalid ledger URL."""
    parsed = _parse(url)
    query = {name: value for name, value in parsed.query.items() if "password" not in name}
    open_part = sa.URL.create(
        parsed.drivername, parsed.username, None, parsed.host, parsed.port, parsed.database, query
    )
    return open_part.render_as_string(hide_password=False)


def sqlite_file(url: str) -> Path | None:
    """Return the file of a ledger in SQLite.

    None for a ledger in PostgreSQL. Raises InvalidSettings for an invalid ledger URL.
    """
    parsed = _parse(url)
    return Path(str(parsed.database)) if parsed.get_backend_name() == "sqlite" else None


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _parse(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
        backend, driver = parsed.get_backend_name(), parsed.get_driver_name()
    except (exc.ArgumentError, ValueError) as error:
        raise InvalidSettings(
            "The ledger's URL can't be read; write sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE."
        ) from error
    if (backend, driver) not in {("sqlite", "pysqlite"), ("postgresql", "psycopg")}:
        raise InvalidSettings(
            f"The ledger can't be kept in {parsed.drivername}; use sqlite:///FILE or postgresql+psycopg://..."
        )
    if backend == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise InvalidSettings("The ledger needs a file that outlives the process; write sqlite:///FILE.")
    return parsed


def _sqlite_engine(url: sa.URL) -> sa.Engine:
    with contextlib.suppress(OSError):  # an existing file stays unchanged; an error is reported by the connection
        os.close(os.open(str(url.database), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, record: Any) -> None:
        # The driver would begin a transaction implicitly, and only at the first write: reading, deciding, and writing
        # would not be atomic. With None, this code begins transactions itself.
        connection.isolation_level = None
        for pragma in ("journal_mode=TRUNCATE", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        is_writing = connection.get_execution_options().get("is_writing", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")

    return engine


def _postgresql_engine(url: sa.URL) -> sa.Engine:
    # Importing the settings takes a third of a second, and a ledger in a file needs none.
    from strandline.core.settings import Settings

    timeouts = (
        f"-c lock_timeout={BUSY_TIMEOUT_S}s -c statement_timeout={2 * BUSY_TIMEOUT_S}s "
        f"-c idle_in_transaction_session_timeout={2 * BUSY_TIMEOUT_S}s"
    )
    engine = sa.create_engine(
        url,
        pool_pre_ping=True,
        pool_timeout=BUSY_TIMEOUT_S,
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "options": timeouts,
            "application_name": "strandline",
            **LIBPQ_TIMEOUTS,
        },
    )

    @event.listens_for(engine, "do_connect")
    def log_in(dialect: Any, record: Any, arguments: Any, options: dict[str, Any]) -> None:
        if "password" not in options and "passfile" not in options:
            password = Settings.read().ledger_password  # current content of its file
            if password is not None:
                options["password"] = password.get_secret_value()

    return engine


def _remedy(reason: str) -> str:
    """Return what to do about an error of the database, by words in its text: libpq has no error code for a refusal."""
    if "no password supplied" in reason or "authentication failed" in reason:
        return "check STRANDLINE_LEDGER_PASSWORD, and the user in STRANDLINE_LEDGER_URL"
    if "certificate" in reason or "SSL" in reason or "no encryption" in reason or "pg_hba.conf" in reason:
        return "check sslmode, sslrootcert, sslcert, and sslkey in STRANDLINE_LEDGER_URL, and the server's pg_hba.conf"
    return "it is unknown whether this was done; check that the database runs and has free space, then repeat it"


def _first_line(error: Exception) -> str:
    original = error.orig if isinstance(error, exc.DBAPIError) else error
    return (str(original).strip() or type(error).__name__).splitlines()[0]
