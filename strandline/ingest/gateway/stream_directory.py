"""What a gateway knows of the streams: looked up in the ledger, off the event loop, and kept for a few seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from strandline.core.documents import NAME, NAME_FORM
from strandline.core.errors import LedgerUnavailable, NotFound
from strandline.core.stream import StreamSpec
from strandline.ledger.ledger import Ledger

KEEP_S = 5.0
"""For this long a changed key or a changed limit may still be the old one."""
PATIENCE_S = 0.5
"""How long a request waits for news of a stream that is known already."""
STREAMS_KEPT_MAX = 10_000


class StreamDirectory:
    """Finds a stream's spec by its name, for one event loop.

    `read` blocks; it is called in a thread, once at a time for each name. A stream that is not there is not remembered:
    it can be sent to as soon as it is registered.
    """

    def __init__(self, read: Callable[[str], StreamSpec], *, keep_s: float = KEEP_S) -> None:
        self._read = read
        self._keep_s = keep_s
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="ledger")
        self._known: dict[str, tuple[StreamSpec, float]] = {}
        """Name -> spec, and the loop's time until which it is taken as it is."""
        self._looking: dict[str, asyncio.Future[StreamSpec]] = {}

    async def find(self, name: str) -> StreamSpec:
        """Raises NotFound, and LedgerUnavailable when the ledger does not answer and the stream was never seen.

        While the ledger is away or slow, a stream that was seen stays as it was: records don't wait for the ledger.
        """
        known = self._known.get(name)
        if known is not None and asyncio.get_running_loop().time() < known[1]:
            return known[0]
        if not NAME.fullmatch(name):
            raise NotFound(f"{name!r} can't be the name of a stream; expected {NAME_FORM}")
        looking = self._looking.get(name)
        if looking is None:
            looking = self._looking[name] = asyncio.create_task(self._look_up(name))
            looking.add_done_callback(partial(self._forget, name))
        await asyncio.wait((looking,), timeout=None if known is None else PATIENCE_S)
        if known is not None and (not looking.done() or isinstance(looking.exception(), LedgerUnavailable)):
            return known[0]
        return looking.result()

    async def _look_up(self, name: str) -> StreamSpec:
        loop = asyncio.get_running_loop()
        try:
            spec = await loop.run_in_executor(self._threads, self._read, name)
        except NotFound:
            self._known.pop(name, None)
            raise
        if len(self._known) >= STREAMS_KEPT_MAX:
            self._known.clear()
        self._known[name] = (spec, loop.time() + self._keep_s)
        return spec

    def _forget(self, name: str, looking: asyncio.Task[StreamSpec]) -> None:
        del self._looking[name]
        if not looking.cancelled():
            looking.exception()  # asyncio complains of an exception that nobody stayed to see

    def close(self) -> None:
        """Ends the threads, after what they are reading."""
        self._threads.shutdown()


def stream_reader(ledger: Ledger) -> Callable[[str], StreamSpec]:
    """Return the `read` of a directory over the ledger."""
    return lambda name: StreamSpec.from_document(ledger.stream(name).document)
