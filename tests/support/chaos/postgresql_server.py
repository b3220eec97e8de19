"""A PostgreSQL for the ledger that can be killed and started again in its place."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.chaos.machine import copy_files
from tests.support.ports import free_port
from tests.support.postgresql import find_programs, is_up, run_initdb, start_server, stop_server, unprivileged
from tests.support.waiting import wait_until


class PostgresqlServer:
    """One server with a directory of its own. Raises RuntimeError when PostgreSQL isn't installed or doesn't start."""

    def __init__(self) -> None:
        programs = find_programs()
        if programs is None:
            raise RuntimeError("there is no /usr/lib/postgresql/*/bin/postgres; `apt-get install postgresql` brings it")
        self._programs = programs
        # Below /tmp itself: a server that may not run as root must be able to reach it.
        self._home = Path(tempfile.mkdtemp(prefix="strandline-postgresql-", dir="/tmp"))
        self._identity = unprivileged(self._home)
        run_initdb(programs, self._home, self._identity)
        self.port = free_port()
        self._server: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return self.url_at(self.port)

    @staticmethod
    def url_at(port: int) -> str:
        """The URL by way of another port."""
        return f"postgresql+psycopg://strandline@127.0.0.1:{port}/postgres"

    def pids(self) -> list[int]:
        """Return the process of the server, whose backends end with it. Empty if it isn't running."""
        return [self._server.pid] if self._server is not None and self._server.poll() is None else []

    def start(self) -> None:
        """Start it, again after a kill; return when it answers."""

        def try_it() -> bool:
            # The backends of the killed server see its death in a moment; until then a new one refuses to start.
            self._server = start_server(self._programs, self._home, self._identity, self.port)
            return is_up(self._server, self.port)

        wait_until(try_it, bool, f"up; see {self._home / 'server.log'}", 60.0, 0.2)

    def copy(self, into: Path) -> None:
        """Copy the data as it is on disk now. The server is away for as long as that takes."""
        self._stop()
        copy_files(self._data, into)
        self.start()

    def swap(self, present: Path, kept: Path | None) -> None:
        """Make a copy the present data. `kept`: where the data of now is copied first."""
        self._stop()
        if kept is not None:
            copy_files(self._data, kept)
        copy_files(present, self._data)
        self.start()

    def _stop(self) -> None:
        if self._server is not None:
            stop_server(self._server)

    @property
    def _data(self) -> Path:
        return self._home / "data"

    def close(self) -> None:
        if self._server is not None:
            stop_server(self._server)
        shutil.rmtree(self._home)
