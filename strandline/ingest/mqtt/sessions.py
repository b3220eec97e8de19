"""The sessions of the MQTT server. The session of a client that only publishes holds nothing: it exists, or it doesn't.

That still matters. An MQTT 5 client that is told "no session" when it connects again must discard the messages that wait
for PUBACK [MQTT-3.2.2-5], though it should send them again. So sessions outlive the process: each one is on disk before
CONNACK promises it. One write stores the sessions of many clients.

The file holds one JSON array a line, `[client identifier, expiry in seconds, when the connection ended or null]`. The last
line of a client counts. A line that a crash cut short is ignored.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from strandline.core.errors import StackError
from strandline.ingest.mqtt.decoder import Connect

SESSIONS_MAX = 100_000
"""Over it the session that was used longest ago is dropped."""
EXPIRY_S_MAX = 7 * 86_400
"""A client that asks for a longer session gets this, and is told so."""
LINES_SPARE_MAX = 100_000
"""After so many outdated lines the file is rewritten."""


class Sessions:
    """Which clients have a session. For one event loop. `close` it; a crash instead of that loses no session."""

    def __init__(self, path: Path, clock_s: Callable[[], float] = time.time) -> None:
        """Raises StackError when the file can't be read or written."""
        self._path = path
        self._clock_s = clock_s
        self._expiry_s: dict[str, int] = {}
        """Client identifier -> expiry of its session, in the order of use."""
        self._ended_s: dict[str, float] = {}
        """Client identifier -> when its connection ended; absent while it is connected."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mqtt-sessions")
        self._unwritten: list[str] = []
        self._writing: asyncio.Task[None] | None = None
        self._lines = 0
        """In the file."""
        try:
            self._read()
            self._rewrite(self._all_lines())
        except OSError as error:
            raise StackError(
                f"the MQTT sessions can't be kept in {path}: {error.strerror}; give it another place"
            ) from error

    async def begin(self, client_id: str, connect: Connect) -> tuple[bool, int]:
        """Return whether the client has a session to resume, and for how many seconds it outlives the connection.

        When this returns, a session that outlives the connection is on disk. Raises OSError when it can't be written.
        """
        is_present = not connect.clean_start and self._exists(client_id)
        had_any = client_id in self._expiry_s
        expiry_s = min(connect.session_expiry_s, EXPIRY_S_MAX)
        self._note(client_id, expiry_s, None)
        if expiry_s or had_any:
            await self._write()
        return is_present, expiry_s

    def end(self, client_id: str, expiry_s: int) -> None:
        """Note that the connection is closed, and how long the session goes on. The next `begin` writes it."""
        self._note(client_id, min(expiry_s, EXPIRY_S_MAX), self._clock_s())

    def close(self) -> None:
        """Write what is not written yet."""
        self._thread.submit(partial(_append, self._path, self._unwritten)).result()
        self._thread.shutdown()

    def _exists(self, client_id: str) -> bool:
        if client_id not in self._expiry_s:
            return False
        return self._clock_s() < self._ended_s.get(client_id, self._clock_s()) + self._expiry_s[client_id]

    def _note(self, client_id: str, expiry_s: int, ended_s: float | None) -> None:
        had_any = self._expiry_s.pop(client_id, None) is not None
        self._ended_s.pop(client_id, None)
        if expiry_s:
            if len(self._expiry_s) >= SESSIONS_MAX:
                oldest = next(iter(self._expiry_s))
                del self._expiry_s[oldest]
                self._ended_s.pop(oldest, None)
            self._expiry_s[client_id] = expiry_s
            if ended_s is not None:
                self._ended_s[client_id] = ended_s
        if expiry_s or had_any:
            self._unwritten.append(_line(client_id, expiry_s, ended_s))

    async def _write(self) -> None:
        """Return when all that was noted before the call is on disk. Calls that come meanwhile share the next write."""
        while self._writing is not None and self._unwritten:
            await asyncio.wait((self._writing,))
        if self._writing is None and self._unwritten:
            self._writing = asyncio.create_task(self._write_once())
        if self._writing is not None:
            await asyncio.shield(self._writing)

    async def _write_once(self) -> None:
        lines, self._unwritten = self._unwritten, []
        self._lines += len(lines)
        if self._lines > len(self._expiry_s) + LINES_SPARE_MAX:
            task = partial(self._rewrite, self._all_lines())
            self._lines = len(self._expiry_s)
        else:
            task = partial(_append, self._path, lines)
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, task)
        finally:
            self._writing = None

    def _read(self) -> None:
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return
        now_s = self._clock_s()
        for line in text.split(b"\n"):
            try:
                client_id, expiry_s, ended_s = json.loads(line)
            except ValueError:
                continue
            self._expiry_s.pop(client_id, None)
            self._ended_s.pop(client_id, None)
            if expiry_s:
                self._expiry_s[client_id] = expiry_s
                self._ended_s[client_id] = (
                    now_s if ended_s is None else ended_s
                )  # the process ended, and the connection with it
        for client_id in [name for name in self._expiry_s if not self._exists(name)]:
            del self._expiry_s[client_id], self._ended_s[client_id]

    def _all_lines(self) -> list[str]:
        self._lines = len(self._expiry_s)
        return [_line(name, expiry_s, self._ended_s.get(name)) for name, expiry_s in self._expiry_s.items()]

    def _rewrite(self, lines: list[str]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_name(self._path.name + ".new")
        new.unlink(missing_ok=True)
        _append(new, lines)
        new.replace(self._path)


def _line(client_id: str, expiry_s: int, ended_s: float | None) -> str:
    return json.dumps([client_id, expiry_s, ended_s]) + "\n"


def _append(path: Path, lines: list[str]) -> None:
    # A new line first: what a crash cut short must not spoil the next line.
    with path.open("ab") as file:
        file.write(("\n" * (file.tell() > 0) + "".join(lines)).encode())
        file.flush()
        os.fsync(file.fileno())
