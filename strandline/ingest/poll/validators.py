"""Validators (ETag, time of change) of each polled URL's last answer in the log.

With them a device that supports them sends only new states, also after a restart. A validator is stored only after the
answer is confirmed. The file is written at most once a second and at the end. If a gateway is killed in between, the
answers of that second are sent and appended again, with the same message ids.
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
"""Maximum length of a stored validator in bytes: it is added to a header of each request."""


def name_of(stream: str, poll: PollSpec) -> str:
    """Return the name under which the validators of a stream's polled URL are stored.

    Two streams with the same URL, or a URL with changed headers, have different names, so each receives every state.
    Secrets count by their names. The name is a hash, because a URL may contain private data.
    """
    request = [stream, poll.model_dump(mode="json", include={"url", "headers"})]
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


class Validators:
    """Validators by `name_of`, stored in a file of this process, for one event loop. `close` it.

    A file that can't be read is replaced: the validators only save requests.
    """

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
        """Return the headers that request only new states."""
        known = self._known.get(name, {})
        return [
            (asking, known[header])
            for asking, header in (("If-None-Match", "etag"), ("If-Modified-Since", "last-modified"))
            if header in known
        ]

    def note(self, name: str, headers: dict[str, str]) -> None:
        """Store the validators of an answer that is in the log."""
        found = {
            str(header): headers[header]
            for header in ("etag", "last-modified")
            if header in headers and _may_be_sent(headers[header])
        }
        if self._known.get(name, {}) != found:
            self._known[name] = found
            self._is_changed = True

    def keep_only(self, names: Collection[str]) -> None:
        """Delete the validators of URLs that are no longer polled."""
        if gone := self._known.keys() - set(names):
            self._known = {name: known for name, known in self._known.items() if name not in gone}
            self._is_changed = True

    async def save(self) -> None:
        """Replace the file if validators have changed. Raises OSError if that fails; the next call tries again."""
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
