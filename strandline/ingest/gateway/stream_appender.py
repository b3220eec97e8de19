"""One stream's way into the log for a gateway: appends records, and counts what became of each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial

from strandline.core.errors import LogUnavailable
from strandline.core.stream import StreamSpec
from strandline.ingest.append.outcome import Accepted, LogAway, LogBusy
from strandline.ingest.append.writer import LogWriter
from strandline.ingest.gateway.framing import RECORD_CONTENT_TYPE
from strandline.ingest.gateway.metrics import IngestMetrics
from strandline.log.record_key import Record, key_finder

BUSY_RETRY_S = 0.1
"""How soon a batch is offered again for which the writer had no room."""

Headers = Sequence[tuple[str, bytes]]


class StreamAppender:
    """What a gateway needs to know of one stream, until its document changes.

    Invariants:
    - Each record given to `append` or `refuse` is counted once as received and ends in exactly one of confirmed, spooled
      and refused.
    - Appends with `in_turn` reach the log in the order of their calls, when each has at most RECORDS_PER_TURN records: what
      waits for its next try holds up those behind it, and fails them when it fails.
    """

    def __init__(
        self,
        spec: StreamSpec,
        writer: LogWriter,
        metrics: IngestMetrics,
        *,
        may_spool: bool,
        record_bytes_max: int,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.spec = spec
        self.record_bytes_max = record_bytes_max
        self.find_key: Callable[[bytes], bytes | None] = key_finder(spec.key) if spec.key else lambda _value: None
        self.metrics = metrics.of(spec.stream)
        self._writer = writer
        self._may_spool = may_spool
        self._clock_ms = clock_ms
        self._turn = asyncio.Lock()
        """Held by the append in turn that is trying to hand its records over."""
        self._failures = 0
        """Of appends in turn."""

    async def append(
        self,
        records: Sequence[Record],
        *,
        source: bytes | None = None,
        message_id: bytes | None = None,
        headers_each: Sequence[Headers] | None = None,
        patience_s: float = 0.0,
        in_turn: bool = False,
    ) -> None:
        """Return when every record is in the log, or in the spool where the stream allows it. Where records have sources
        of their own, each is in its `headers_each`.

        While the writer is busy and nothing was sent, it is tried again for `patience_s`; with `in_turn` also while Kafka is
        away. Raises LogBusy (nothing was sent) and LogUnavailable (unknown: all, some or none may be in the log).
        """
        count, metrics = len(records), self.metrics
        started_s = time.perf_counter()
        metrics.received.inc(count)
        metrics.in_flight.inc(count)
        append = partial(
            self._writer.append,
            self.spec.stream,
            records,
            received_ms=self._clock_ms(),
            source=source,
            content_type=RECORD_CONTENT_TYPE,
            message_id=message_id,
            headers_each=headers_each,
            may_spool=self._may_spool,
        )
        try:
            if in_turn:
                accepted = await self._append_in_turn(append, patience_s)
            else:
                accepted = await self._append_patiently(append, patience_s)
        except LogUnavailable as error:
            metrics.refuse(error.code, count)
            raise
        except asyncio.CancelledError:
            metrics.refuse("stopped", count)
            raise
        else:
            metrics.accept(accepted, count)
            metrics.ack_latency.observe(time.perf_counter() - started_s)
        finally:
            metrics.in_flight.dec(count)

    async def _append_patiently(
        self, append: Callable[[], Coroutine[None, None, Accepted]], patience_s: float
    ) -> Accepted:
        """Raises what `append` raises."""
        started_s = time.perf_counter()
        while True:
            try:
                return await append()
            except LogAway:
                raise
            except LogBusy:
                if time.perf_counter() - started_s >= patience_s:
                    raise
                await asyncio.sleep(BUSY_RETRY_S)

    async def _append_in_turn(
        self, append: Callable[[], Coroutine[None, None, Accepted]], patience_s: float
    ) -> Accepted:
        """Raises what `append` raises, and LogBusy when one before it has failed."""
        failures_before = self._failures
        started_s = time.perf_counter()
        try:
            async with self._turn:
                while True:
                    if self._failures != failures_before:
                        raise LogBusy("records before these were not confirmed; nothing of these was persisted")
                    appending = asyncio.ensure_future(append())
                    await asyncio.sleep(0)  # it has handed its records over now, or was refused
                    is_busy = appending.done() and isinstance(appending.exception(), LogBusy)
                    if not is_busy or time.perf_counter() - started_s >= patience_s:
                        break
                    await asyncio.sleep(BUSY_RETRY_S)
            return await appending
        except LogUnavailable:
            self._failures += 1
            raise

    def refuse(self, reason: str, records: int = 1) -> None:
        """Count records that arrived and are not appended: too large, without content."""
        self.metrics.received.inc(records)
        self.metrics.refuse(reason, records)
