"""What is known of each polled URL's last answer that is in the log: so that a device that knows ETags or times of change sends
only what is new, also after a restart.

Noted only after the answer is confirmed. The file is written at most once a second and at the end; a gateway that is killed in
between has the last answers of that second sent again, and appends them again, with the same message id.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Collection
from pathlib import Path

from strandline.core.streams.entrances import PollSpec
from strandline.ingest.append.worker_thread import WorkerThread

VALUE_BYTES_MAX = 1_000
"""A longer validator is not kept: it goes into a header of each request."""


def name_of(stream: str, poll: PollSpec) -> str:
    """By which a stream's polled URL is known here. Of two streams that ask the same URL each is sent every state, and so is one
    that asks with other headers than before (secrets count by their names).

    Hashed: a URL may hold what is no one's business.
    """
    asked = [stream, poll.model_dump(mode="json", include={"url", "headers"})]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


class Validators:
    """Kept in a file of this process, by `name_of`; for one event loop. `close` it. A file that can't be read is begun anew: it
    only saves requests."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, dict[str, str]] = {}
        self._is_changed = False
        self._disk = WorkerThread("validators")
        self._saving = asyncio.Lock()
        try:
            found = json.loads(path.read_text("utf-8"))
            self._known = {
                str(name): {str(header): str(value) for header, value in headers.items()}
                for name, headers in found.items()
            }
        except (OSError, ValueError, AttributeError):
            self._known = {}

    def request_headers(self, name: str) -> list[tuple[str, str]]:
        """The headers that ask for nothing but what is new."""
        known = self._known.get(name, {})
        return [
            (asking, known[header])
            for asking, header in (("If-None-Match", "etag"), ("If-Modified-Since", "last-modified"))
            if header in known
        ]

    def note(self, name: str, headers: dict[str, str]) -> None:
        """The answer with these headers is in the log."""
        found = {
            str(header): headers[header]
            for header in ("etag", "last-modified")
            if header in headers and _may_be_sent(headers[header])
        }
        if self._known.get(name, {}) != found:
            self._known[name] = found
            self._is_changed = True

    def keep_only(self, names: Collection[str]) -> None:
        """Forget what is asked no longer."""
        if gone := self._known.keys() - set(names):
            self._known = {name: known for name, known in self._known.items() if name not in gone}
            self._is_changed = True

    async def save(self) -> None:
        """Write what has changed, replacing the file whole. Raises OSError when it can't; the next call tries again."""
        async with self._saving:
            if not self._is_changed:
                return
            known, self._is_changed = dict(self._known), False  # a copy: answers are noted while the thread writes
            try:
                await self._disk.run(self._write, known)
            except BaseException:
                self._is_changed = True
                raise

    def close(self) -> None:
        """End the thread. Blocks while it writes."""
        self._disk.close()

    def _write(self, known: dict[str, dict[str, str]]) -> None:
        new = self._path.with_suffix(".new")
        with new.open("w", encoding="utf-8") as file:
            json.dump(known, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)


def _may_be_sent(value: str) -> bool:
    return value.isprintable() and value.isascii() and len(value) <= VALUE_BYTES_MAX
