"""Streams known to a gateway: the ledger's documents, read every few seconds, outside of the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import structlog

from strandline.core.documents import NAME, NAME_FORM
from strandline.core.errors import InvalidDocument, LedgerUnavailable, NotFound
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.streams import StreamReader

logger = structlog.get_logger()

UNKNOWN_MAX = 1_000
T = TypeVar("T")


class Streams:
    """All streams, for one event loop: `follow` keeps them up to date, `find` returns one by its name.

    - While the ledger is unavailable or slow, the known streams are used: records don't wait for the ledger.
    - A stream that was registered a moment ago is found immediately: `find` queries the ledger for unknown names.
    - A name that the ledger doesn't know is not queried again before the next read of `follow`. At most UNKNOWN_MAX
      names are remembered: senders of wrong names cost the ledger nothing. So a stream that is created after such a
      query is found after two reads.

    `read_all` and `read_one` block, and are called in threads.
    """

    def __init__(
        self,
        read_all: Callable[[], list[StreamSpec]],
        read_one: Callable[[str], StreamSpec],
        *,
        every_s: float,
    ) -> None:
        self._read_all = read_all
        self._read_one = read_one
        self._every_s = every_s
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="ledger")
        self._known: dict[str, StreamSpec] = {}
        self._looking: dict[str, asyncio.Task[StreamSpec]] = {}
        """The running look-ups by name: senders that look up the same stream share one."""
        self._unknown: set[str] = set()
        """Names that the ledger didn't know, since the last read of `follow`."""
        self._is_reached = True

    @classmethod
    def of(cls, ledger: StreamReader, *, every_s: float) -> Streams:
        """Return the streams of this ledger."""
        return cls(
            _reader_of_all(ledger),
            lambda name: StreamSpec.from_document(ledger.stream(name).document),
            every_s=every_s,
        )

    async def follow(self, on_read: Callable[[list[StreamSpec]], None] = lambda _: None) -> None:
        """Read all streams now and every few seconds, and pass them to `on_read` each time, until cancelled.

        `on_read` must cost little if nothing has changed. It may use each call to retry failed work, for example
        opening a port that is in use. It isn't called while the ledger is unavailable. An exception that it raises ends
        the following.
        """
        while True:
            self._unknown.clear()
            try:
                specs = await self._in_thread(self._read_all)
            except LedgerUnavailable as error:
                if self._is_reached:
                    logger.warning("the ledger can't be read", action="ledger_lost", reason=str(error))
                self._is_reached = False
            else:
                self._is_reached = True
                self._known = {spec.stream: spec for spec in specs}
                on_read(specs)
            await asyncio.sleep(self._every_s)

    async def find(self, name: str) -> StreamSpec:
        """Return the document of this stream. Raises NotFound if no stream has the name, and LedgerUnavailable if the
        stream isn't known yet and the ledger doesn't respond.
        """
        known = self._known.get(name)
        if known is not None:
            return known
        if not NAME.fullmatch(name):
            raise NotFound(f"{name!r} can't be the name of a stream; expected {NAME_FORM}")
        looking = self._looking.get(name)
        if looking is None:
            if name in self._unknown or len(self._unknown) + len(self._looking) >= UNKNOWN_MAX:
                raise NotFound(
                    f"There was no stream {name} a moment ago; register it with `strandline apply FILE`, "
                    f"or send again in {2 * self._every_s:g} s if it is new."
                )
            looking = self._looking[name] = asyncio.create_task(self._look_up(name))
            looking.add_done_callback(lambda _: self._looking.pop(name))
        return await asyncio.shield(looking)  # a sender that disconnects doesn't cancel the look-up of the others

    async def _look_up(self, name: str) -> StreamSpec:
        try:
            spec = self._known[name] = await self._in_thread(partial(self._read_one, name))
        except NotFound:
            self._unknown.add(name)
            raise
        return spec

    async def _in_thread(self, read: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, read)

    def close(self) -> None:
        """Stop querying the ledger."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _reader_of_all(ledger: StreamReader) -> Callable[[], list[StreamSpec]]:
    """Return a function that reads every stream whose document this version understands.

    For an unchanged document it returns the same object again.
    """
    parsed: dict[str, tuple[dict[str, Any], StreamSpec]] = {}

    def read_all() -> list[StreamSpec]:
        nonlocal parsed
        before, parsed = parsed, {}
        for row in ledger.streams():
            known = before.get(row.name)
            if known is not None and known[0] == row.document:
                parsed[row.name] = known
                continue
            # A newer version of Strandline applied a document that this one can't read; this gateway serves the others.
            with contextlib.suppress(InvalidDocument):
                parsed[row.name] = (row.document, StreamSpec.from_document(row.document))
        return [spec for _, spec in parsed.values()]

    return read_all
