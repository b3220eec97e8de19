"""Databases for the tests of the ledger: SQLite files, and Debian's PostgreSQL as a child process on a free port."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from strandline.ledger.ledger import Ledger
from tests.support.ports import free_port
from tests.support.waiting import stretched, wait_until

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 20
PORT_ATTEMPTS_MAX = 5


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    """The SQLAlchemy URL of a running server's first database; the tests' own come from `new_database`."""
    if find_programs() is None:
        pytest.skip(
            "POSTGRESQL IS NOT INSTALLED, so what the ledger promises on PostgreSQL was NOT tested: "
            "no /usr/lib/postgresql/*/bin/postgres; `apt-get install postgresql` brings it"
        )
    with running_postgresql() as url:
        yield url


@contextmanager
def running_postgresql() -> Iterator[str]:
    """Start a server and hand out the SQLAlchemy URL of its first database. Raises RuntimeError where none is installed."""
    programs = find_programs()
    if programs is None:
        raise RuntimeError("PostgreSQL is not installed; `apt-get install postgresql` brings it")
    # Below /tmp itself: a server that may not run as root must be able to reach it.
    home = Path(tempfile.mkdtemp(prefix="strandline-postgresql-", dir="/tmp"))
    identity = unprivileged(home)
    try:
        run_initdb(programs, home, identity)
        server, port = _start(programs, home, identity)
        try:
            yield f"postgresql+psycopg://strandline@127.0.0.1:{port}/postgres"
        finally:
            stop_server(server)
    finally:
        shutil.rmtree(home)


@pytest.fixture(scope="session")
def contract_database(postgresql_url: str) -> Iterator[str]:
    """The URL of a database with the ledger's present schema. The contract tests of a run share it: each leaves it empty."""
    with new_database(postgresql_url) as url:
        Ledger.migrate(url)
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a ledger with nothing in it: the test runs once on each database.

    On PostgreSQL the contract tests share a database, since to make one costs more than most of them; for the others there is no
    ledger yet. Files are copied by `ledgers_are_copied`.
    """
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    elif request.path.parent.name == "contract":
        url = request.getfixturevalue("contract_database")
        yield url
        empty(url)
    else:
        with new_database(request.getfixturevalue("postgresql_url")) as url:
            yield url


def empty(url: str) -> None:
    """Disconnect all clients of a ledger's database, and remove its content except the version of its schema."""
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")  # rows may go before those that refer to them
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        of_the_ledger = "schemaname = 'public' AND tablename <> 'alembic_version'"
        for (table,) in connection.execute(
            f"SELECT tablename FROM pg_tables WHERE {of_the_ledger}".encode()
        ).fetchall():
            connection.execute(f"DELETE FROM {table}".encode())
        for (sequence,) in connection.execute("SELECT sequencename FROM pg_sequences").fetchall():
            connection.execute(f"ALTER SEQUENCE {sequence} RESTART".encode())


@contextmanager
def new_database(server_url: str) -> Iterator[str]:
    """Make an empty database on the server and hand out its URL; at the end it is dropped, also while clients are connected."""
    name = f"ledger_{uuid.uuid4().hex}"
    with psycopg.connect(server_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        try:
            yield server_url.rsplit("/", 1)[0] + f"/{name}"
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def find_programs() -> Path | None:
    """Return the directory of the newest PostgreSQL's programs. None if it isn't installed."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    return max(found, key=lambda path: float(path.parent.name), default=None)


def unprivileged(home: Path) -> dict[str, Any]:
    """Return options to start a program that refuses root, and give it the directory. Empty for an ordinary user."""
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name for entry in pwd.getpwall()}
    user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    os.chown(home, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def run_initdb(programs: Path, home: Path, identity: dict[str, Any]) -> None:
    """Make an empty database cluster in `home`/data."""
    command: list[str | Path] = [
        programs / "initdb",
        "-D",
        home / "data",
        "-U",
        "strandline",
        "-A",
        "trust",
        "-E",
        "UTF8",
    ]
    command += ["--locale=C", "--no-sync"]
    done = subprocess.run(
        command, cwd=home, capture_output=True, text=True, check=False, timeout=stretched(120), **identity
    )
    if done.returncode != 0:
        raise RuntimeError(f"initdb failed with {done.returncode}:\n{done.stdout}{done.stderr}")


def _start(programs: Path, home: Path, identity: dict[str, Any]) -> tuple[subprocess.Popen[bytes], int]:
    for _ in range(PORT_ATTEMPTS_MAX):
        port = free_port()
        server = start_server(programs, home, identity, port)
        if is_up(server, port):
            return server, port
        stop_server(server)
        # Another process may have taken the port in between; anything else shows again and is reported below.
    raise RuntimeError(f"PostgreSQL did not start:\n{(home / 'server.log').read_text(errors='replace')[-4000:]}")


def start_server(programs: Path, home: Path, identity: dict[str, Any], port: int) -> subprocess.Popen[bytes]:
    """Start a server on the directory that `run_initdb` has filled, without waiting until it is up."""
    options = {
        "port": port,
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "fsync": "off",
        "shared_buffers": "32MB",
        "max_connections": "60",
    }
    # A run that is killed, as by a test's timeout, stops nothing itself: the kernel then tells the server to end.
    command: list[str | Path] = ["setpriv", "--pdeathsig", "INT", programs / "postgres", "-D", home / "data"]
    for name, value in options.items():
        command += ["-c", f"{name}={value}"]
    with (home / "server.log").open("ab") as log:
        # Its own session: an impatient Ctrl-C must not end it before the tests that still use it.
        return subprocess.Popen(
            command, cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **identity
        )


def is_up(server: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the server answers; False when it ends instead."""

    def answers() -> bool:
        try:
            psycopg.connect(f"postgresql://strandline@127.0.0.1:{port}/postgres", connect_timeout=10).close()
        except psycopg.OperationalError:
            return server.poll() is not None
        return True

    wait_until(answers, what="up: PostgreSQL", timeout_s=START_TIMEOUT_S)
    # Someone else's server could answer there, while ours is about to find its port taken.
    return server.poll() is None


def stop_server(server: subprocess.Popen[bytes]) -> None:
    """End the server by its pid; it ends its own children."""
    if server.poll() is None:
        server.send_signal(signal.SIGINT)
    try:
        server.wait(stretched(STOP_TIMEOUT_S))
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
