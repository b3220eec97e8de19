"""The sessions of the MQTT server. The session of a client that only publishes is empty: it exists or not.

That still matters. If the answer to an MQTT 5 client that reconnects is "no session", the client must discard the
messages that wait for PUBACK [MQTT-3.2.2-5], though it should resend them. So sessions outlive the process: each one is
on disk before CONNACK promises it. One write stores the sessions of many clients.

Each line of the file is a JSON array: `[client identifier, expiry in seconds, when the connection ended or null, owner
or null]`. The owner is a list, see `Owner`. The last line of an owner's client counts. A line that was truncated by a
crash is ignored.

An identifier with a session belongs to the owner of the session: the caller lets no other owner begin a session with
it.

A will that waits for its delay lasts no longer than its session. It is in memory only: when the server stops, it is
published.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from strandline.core.errors import StackError
from strandline.ingest.append.limits import RECORD_OVERHEAD_BYTES
from strandline.ingest.mqtt.decoder import Connect, Publish
from strandline.ingest.mqtt.headers import bytes_beside_payload
from strandline.ingest.mqtt.logins import Login, Owner

SESSIONS_MAX = 100_000
NAMES_BYTES_MAX = 16 * 1024 * 1024
"""Maximum size in bytes of the identifiers and owners of all sessions.
Over either limit, the owner with the most sessions loses the least recently used one.
"""
EXPIRY_S_MAX = 7 * 86_400
"""Maximum expiry in seconds. A client that requests a longer session gets this value in CONNACK."""
WILLS_BYTES_MAX = 32 * 1024 * 1024
"""Maximum size in bytes of all wills that wait for their delay. Over it the oldest waiting will is published."""
LINES_SPARE_MAX = 100_000
"""Number of outdated lines after which the file is rewritten."""


Key = tuple[Owner | None, str]
"""Owner and client identifier. A session without an owner (the listener required no login) is resumed by the first
client with its identifier."""


class Sessions:
    """The sessions of the clients. For one event loop. Call `close` at the end; a crash loses no session."""

    def __init__(self, path: Path, clock_s: Callable[[], float] = time.time) -> None:
        """Raises StackError if the file can't be read or written."""
        self._path = path
        self._clock_s = clock_s
        self._expiry_s: dict[Key, int] = {}
        """Expiry of each session."""
        self._ended_s: dict[Key, float] = {}
        """Time at which the connection of a session ended. Absent while it is connected."""
        self._of_owner: dict[Owner | None, dict[Key, None]] = {}
        """Each owner's sessions, in the order of use."""
        self._owners: dict[str, Owner] = {}
        """Client identifier -> owner of its session. Sessions without an owner are not included."""
        self._names_bytes = 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mqtt-sessions")
        self._unwritten: list[str] = []
        self._writing = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None
        """The task that will write the sessions that are changed now."""
        self._lines = 0
        """Number of lines in the file, or that were tried to be written."""
        try:
            self._read()
            whole = self._all_lines()
            self._rewrite(whole)
            self._lines = len(whole)
        except OSError as error:
            raise StackError(
                f"the MQTT sessions can't be kept in {path}: {error.strerror}; set STRANDLINE_DATA_DIR"
            ) from error

    def owner(self, client_id: str) -> Owner | None:
        """Return the owner of the session with this identifier. None if no owner has one."""
        owner = self._owners.get(client_id)
        return owner if owner is not None and self._exists((owner, client_id)) else None

    async def begin(self, client_id: str, connect: Connect, owner: Owner | None = None) -> tuple[bool, int]:
        """Begin or resume the session of a client.

        A session of another owner ends: the caller has checked that the identifier no longer belongs to that owner.
        When this returns, a session that outlives the connection is on disk.

        Returns: True if there was a session to resume, and the seconds that the session outlives the connection. Raises
        OSError if it can't be written; then the previous state is kept.
        """
        key, others = (owner, client_id), []
        if owner is not None:
            others = [(other, client_id) for other in (None, self._owners.get(client_id, owner)) if other != owner]
        is_present = not connect.clean_start and (self._exists(key) or self._exists((None, client_id)))
        had_any = any(one in self._expiry_s for one in (key, *others))
        expiry_s = min(connect.session_expiry_s, EXPIRY_S_MAX)
        before = [(one, self._expiry_s.get(one, 0), self._ended_s.get(one)) for one in (key, *others)]
        for other in others:
            self._note(other, 0, None)
        self._note(key, expiry_s, None)
        try:
            if expiry_s or had_any:
                await self._write()
        except OSError:
            for one, expiry_before_s, ended_s in before:
                self._note(one, expiry_before_s, self._clock_s() if ended_s is None else ended_s)
            raise
        return is_present, expiry_s

    def end(self, client_id: str, expiry_s: int | None, owner: Owner | None = None) -> int:
        """Note that the connection is closed. Return the seconds for which the session continues.

        The next successful `begin` writes it. `expiry_s`: None for the expiry that was passed to `begin`.
        """
        key = (owner, client_id)
        expiry_s = min(self._expiry_s.get(key, 0) if expiry_s is None else expiry_s, EXPIRY_S_MAX)
        self._note(key, expiry_s, self._clock_s())
        return expiry_s

    def close(self) -> None:
        """Write the remaining changes. Raises OSError."""
        self._thread.submit(self._put_on_disk, *self._take()).result()
        self._thread.shutdown()

    def _exists(self, key: Key) -> bool:
        if key not in self._expiry_s:
            return False
        return self._clock_s() < self._ended_s.get(key, self._clock_s()) + self._expiry_s[key]

    def _note(self, key: Key, expiry_s: int, ended_s: float | None) -> None:
        had_any = self._drop(key)
        if expiry_s:
            self._put(key, expiry_s, ended_s)
        if expiry_s or had_any:
            self._unwritten.append(_line(key, expiry_s, ended_s))

    def _put(self, key: Key, expiry_s: int, ended_s: float | None) -> None:
        while len(self._expiry_s) >= SESSIONS_MAX or self._names_bytes + _size(key) > NAMES_BYTES_MAX:
            most = max(self._of_owner.values(), key=len)
            self._drop(next(iter(most)))
        self._expiry_s[key] = expiry_s
        owner, client_id = key
        self._of_owner.setdefault(owner, {})[key] = None
        if owner is not None:
            self._owners[client_id] = owner
        self._names_bytes += _size(key)
        if ended_s is not None:
            self._ended_s[key] = ended_s

    def _drop(self, key: Key) -> bool:
        """Remove the session. Return True if it existed."""
        if self._expiry_s.pop(key, None) is None:
            return False
        self._ended_s.pop(key, None)
        self._names_bytes -= _size(key)
        owner, client_id = key
        del self._of_owner[owner][key]
        if not self._of_owner[owner]:
            del self._of_owner[owner]
        if owner is not None and self._owners.get(client_id) == owner:
            del self._owners[client_id]
        return True

    async def _write(self) -> None:
        """Return when all changes before the call are on disk.

        Calls during a write share the next write. Raises OSError to each of the calls that share a failed write.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._write_next())
        await asyncio.shield(self._next)

    async def _write_next(self) -> None:
        async with self._writing:
            self._next = None
            lines, whole = self._take()
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, self._put_on_disk, lines, whole)
            except OSError:
                if whole is None:
                    self._unwritten = lines + self._unwritten
                raise
            if whole is not None:
                self._lines = len(whole)

    def _take(self) -> tuple[list[str], list[str] | None]:
        """Return the lines to append to the file, and the lines of all sessions if the file must be replaced, because
        it has too many outdated lines.

        Lines of a failed write are returned again, and count each time. So repeated failures end in a replacement of
        the file, and memory for unwritten lines is bounded.
        """
        lines, self._unwritten = self._unwritten, []
        self._lines += len(lines)
        is_long = self._lines > len(self._expiry_s) + LINES_SPARE_MAX
        return lines, self._all_lines() if is_long else None

    def _put_on_disk(self, lines: list[str], whole: list[str] | None) -> None:
        if whole is None:
            _append(self._path, lines)
        else:
            self._rewrite(whole)

    def _read(self) -> None:
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return
        now_s = self._clock_s()
        for line in text.split(b"\n"):
            try:
                client_id, expiry_s, ended_s, owner = json.loads(line)
            except (ValueError, TypeError):
                continue
            key = (None if owner is None else tuple(owner), client_id)
            self._drop(key)
            if expiry_s:  # no end: the process ended, and the connection with it
                self._put(key, expiry_s, now_s if ended_s is None else ended_s)
        for key in [name for name in self._expiry_s if not self._exists(name)]:
            self._drop(key)

    def _all_lines(self) -> list[str]:
        return [_line(key, expiry_s, self._ended_s.get(key)) for key, expiry_s in self._expiry_s.items()]

    def _rewrite(self, lines: list[str]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_name(self._path.name + ".new")
        new.unlink(missing_ok=True)
        _append(new, lines)
        new.replace(self._path)


@dataclass(frozen=True)
class DisconnectedClient:
    """A client whose connection is closed."""

    client_id: str
    owner: Owner | None
    login: Login | None
    peer: str


class WaitingWills:
    """Wills whose delay has not ended, for one event loop.

    Each is published once, or dropped because its client resumed its session.
    """

    def __init__(self, publish: Callable[[DisconnectedClient, Publish], None]) -> None:
        self._publish = publish
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Key, tuple[DisconnectedClient, Publish, asyncio.TimerHandle]] = {}
        """In the order of arrival."""
        self._bytes = 0

    def add(self, departed: DisconnectedClient, will: Publish, delay_s: int) -> None:
        """Publish the will after its delay."""
        key = (departed.owner, departed.client_id)
        self.publish(key)
        self._waiting[key] = departed, will, self._loop.call_later(delay_s, self.publish, key)
        self._bytes += _will_bytes(will)
        while self._bytes > WILLS_BYTES_MAX:
            self.publish(next(iter(self._waiting)))

    def publish(self, key: Key) -> None:
        """Publish the client's waiting will now, if it has one."""
        found = self._take(key)
        if found is not None:
            self._publish(*found)

    def drop(self, key: Key) -> None:
        """Drop the client's waiting will, because the client has resumed its session."""
        self._take(key)

    def publish_all(self) -> None:
        for key in list(self._waiting):
            self.publish(key)

    def _take(self, key: Key) -> tuple[DisconnectedClient, Publish] | None:
        if key not in self._waiting:
            return None
        departed, will, timer = self._waiting.pop(key)
        timer.cancel()
        self._bytes -= _will_bytes(will)
        return departed, will


def _will_bytes(will: Publish) -> int:
    return len(will.payload) + bytes_beside_payload(will) + RECORD_OVERHEAD_BYTES


def _line(key: Key, expiry_s: int, ended_s: float | None) -> str:
    owner, client_id = key
    return json.dumps([client_id, expiry_s, ended_s, owner]) + "\n"


def _size(key: Key) -> int:
    return sum(len(name.encode()) for name in (key[1], *(key[0] or ())))


def _append(path: Path, lines: list[str]) -> None:
    # A new line first: a line that was truncated by a crash must not corrupt the next line.
    with path.open("ab") as file:
        file.write(("\n" * (file.tell() > 0) + "".join(lines)).encode())
        file.flush()
        os.fsync(file.fileno())
