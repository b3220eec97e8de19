"""Appends the records of one stream of a gateway, and counts their outcomes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial

from strandline.core.streams.stream import StreamSpec
from strandline.ingest.append.outcome import NOT_CONFIRMED, Accepted, LogAway, LogBusy
from strandline.ingest.append.writer import LogWriter
from strandline.ingest.gateway.metrics import IngestMetrics
from strandline.log.record_key import Record, key_finder

BUSY_RETRY_S = 0.1
"""Seconds until a batch is tried again after the writer was busy."""

Headers = Sequence[tuple[str, bytes]]


class StreamAppender:
    """Appends the records of one stream. A changed document needs a new object.

    Invariants:

    - Each record passed to `append` or `refuse` counts once as received, and once as confirmed, spooled, or refused.
    - Appends with `in_turn` reach the log in the order of their calls, if each has at most RECORDS_PER_TURN records. An
      append that is tried again delays later appends; if it fails, they fail.
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
        """Held by the append in turn that is handing its records to the writer."""
        self._failures = 0
        """Number of appends in turn that failed."""

    async def append(
        self,
        records: Sequence[Record],
        *,
        source: bytes | None = None,
        message_id: bytes | None = None,
        headers: Headers = (),
        headers_each: Sequence[Headers] | None = None,
        content_type: bytes | None = None,
        patience_s: float = 0.0,
        in_turn: bool = False,
    ) -> None:
        """Return when every record is in the log, or in the spool if the stream may use it.

        While the writer is busy and has sent nothing, the append is tried again.

        Args:
        - headers: Added to each record.
        - headers_each: Headers of each single record, with its source if the records have different sources.
        - content_type: None for the content type of the stream's format.
        - patience_s: Seconds for which the append is tried again. With `in_turn`, also while Kafka is away.

        Raises LogBusy (nothing was sent), and LogUnavailable or RecordTooLarge (all, some, or none may be in the log).
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
            content_type=content_type or self.spec.form.content_type,
            message_id=message_id,
            headers=headers,
            headers_each=headers_each,
            may_spool=self._may_spool,
        )
        try:
            if in_turn:
                accepted = await self._append_in_turn(append, patience_s)
            else:
                accepted = await self._append_patiently(append, patience_s)
        except NOT_CONFIRMED as error:
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
        """Append, and try again while the writer is busy. Raises the errors of `append`."""
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
        """Append after earlier appends. Raises the errors of `append`, and LogBusy if an earlier append failed."""
        failures_before = self._failures
        started_s = time.perf_counter()
        try:
            async with self._turn:
                while True:
                    if self._failures != failures_before:
                        raise LogBusy(
                            "records before these were not confirmed; nothing of these was persisted: send them again"
                        )
                    appending = asyncio.ensure_future(append())
                    await asyncio.sleep(0)  # now the writer has its records, or has refused them
                    is_busy = appending.done() and isinstance(appending.exception(), LogBusy)
                    if not is_busy or time.perf_counter() - started_s >= patience_s:
                        break
                    await asyncio.sleep(BUSY_RETRY_S)
            return await appending
        except NOT_CONFIRMED:
            self._failures += 1
            raise

    def refuse(self, reason: str, records: int = 1) -> None:
        """Count records that arrived and are not appended: too large, empty, or incomplete when the connection ended."""
        self.metrics.received.inc(records)
        self.metrics.refuse(reason, records)
