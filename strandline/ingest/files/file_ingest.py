"""Puts files into one stream: each of their records once, also when it is killed anywhere and started again.

The way of a file:

1. What it holds says which file it is, and up to which of its lines it is in the log already (journal.py).
2. The rows behind them go into the log in transactions. Before each one is made it is noted, with the offsets behind which it
   would stand; after it is committed, and its last record read back, it is noted as done.
3. At a start an attempt that was noted and not ended is in doubt. The new producer fences the old one, so that nothing of it can
   arrive any more; then the log itself says whether it has.

The message id of a record is `FILE:ROW`, of the hash that the file is known by and the number of its rows that were taken before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from strandline.core.errors import Conflict, LogUnavailable
from strandline.core.files.text_rows import PlacedRow, Row, TooLong, UnreadableFile
from strandline.core.record_headers import (
    HEADER_CONTENT_TYPE,
    HEADER_EPOCH,
    HEADER_MESSAGE_ID,
    HEADER_RECEIVED,
    HEADER_SEQUENCE,
    HEADER_SOURCE,
    HEADER_WRITER,
)
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.append.attempts import AttemptFinder, Decision, Outcome
from strandline.ingest.append.kafka_clients import KafkaClients
from strandline.ingest.append.spool import Attempt, SpooledRecord
from strandline.ingest.append.transactional_writer import (
    TRANSACTION_BYTES_MAX,
    TRANSACTION_RECORDS_MAX,
    TransactionalWriter,
)
from strandline.ingest.append.worker_thread import WorkerThread
from strandline.ingest.append.writer_identity import WriterIdentity
from strandline.ingest.files.journal import FileAttempt, Journal, KnownFile
from strandline.ingest.files.rows import rows_of
from strandline.log.record_key import key_finder

SOURCE_BYTES_MAX = 500
Progress = Callable[[int, int], None]
"""Called with the bytes that are read of a file, and the records of it that are in the log."""


@dataclass(frozen=True)
class Taken:
    """What became of one file."""

    records: int
    """Records that were written now."""
    before: int
    """Rows that were done before."""
    refused: int
    """Rows that are larger than a record may be."""


@dataclass(frozen=True)
class _Chunk:
    """Rows for one transaction."""

    row_first: int
    """How many rows of the file were taken before."""
    rows: list[Row]
    line_next: int
    """How many lines of the file are taken with it."""

    @property
    def row_next(self) -> int:
        return self.row_first + len(self.rows)


class FileIngest:
    """One stream's files, one after the other, in an event loop. Used in `async with`; no other process uses the identity."""

    def __init__(
        self,
        kafka_bootstrap: str,
        spec: StreamSpec,
        identity: WriterIdentity,
        journal: Journal,
        *,
        record_bytes_max: int,
        confirm_timeout_s: float,
        in_doubt: Decision | None = None,
    ) -> None:
        """`in_doubt`: what to do if the log no longer shows whether the last transaction of an earlier process has arrived."""
        self._in_doubt = in_doubt
        self._spec = spec
        self._identity = identity
        self._journal = journal
        self._record_bytes_max = record_bytes_max
        self._find_key = key_finder(spec.key) if spec.key else lambda _value: None
        clients = KafkaClients(
            kafka_bootstrap,
            writer_id=identity.writer_id,
            record_bytes_max=record_bytes_max,
            confirm_timeout_s=confirm_timeout_s,
            make_producer=Producer,
            make_consumer=Consumer,
            make_admin=AdminClient,
        )
        self._bootstrap = kafka_bootstrap
        self._thread = WorkerThread("kafka-transaction")
        self._finder = AttemptFinder(clients, self._thread)
        self._writer = TransactionalWriter(
            clients, self._thread, confirm_timeout_s=confirm_timeout_s, on_error=self._ignore
        )
        self._sequence = 0

    async def __aenter__(self) -> Self:
        """Fence every earlier writer of this identity, and resolve what it left in doubt. Raises LogUnavailable, and Conflict if
        the log no longer shows whether its last transaction has arrived, and `in_doubt` doesn't decide."""
        try:
            await self._writer.open()
        except KafkaException as error:
            self._thread.close()
            raise LogUnavailable(
                f"Kafka at {self._bootstrap} takes no transactions ({error.args[0].str()}); is it up?"
            ) from error
        attempt = self._journal.attempt()
        if attempt is not None:
            numbers = range(attempt.sequence_first, attempt.sequence_last + 1)
            records = [SpooledRecord(self._spec.stream, attempt.epoch, number, b"", None, []) for number in numbers]
            noted = Attempt(self._spec.stream, 0, attempt.scan_from)
            try:
                outcome = await self._finder.outcome_of(noted, records)
            except BaseException:
                await self.__aexit__(None, None, None)
                raise
            if outcome is Outcome.UNKNOWN and self._in_doubt is None:
                await self.__aexit__(None, None, None)
                raise Conflict(
                    f"the log no longer shows whether the last {len(records)} records of an earlier strandline ingest "
                    f"{self._spec.stream} have arrived, because records from that time were deleted. Nothing was sent; run it "
                    "again with --in-doubt resend, which may repeat them, or --in-doubt drop, which may lose them"
                )
            is_in_log = outcome is Outcome.ARRIVED or (outcome is Outcome.UNKNOWN and self._in_doubt is Decision.DROP)
            self._journal.end(attempt, is_in_log=is_in_log)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.drop()
        self._thread.close()

    async def take(self, path: Path, on_progress: Progress, *, again: str | None = None) -> Taken:
        """Write what is not in the log of a file. What was written before an error stays, and is known the next time. `again`:
        take it once more, under an identity of its own that ends so.

        Raises UnreadableFile, OSError; LogUnavailable and RecordTooLarge, after which it takes nothing more.
        """
        file = await asyncio.to_thread(self._journal.file, path, again=again)
        written = refused = read_bytes = 0

        def note_read(count: int) -> None:
            nonlocal read_bytes
            read_bytes = count

        source = f"file:{path.name}".encode(errors="replace")[:SOURCE_BYTES_MAX]
        rows = rows_of(path, self._spec, file.bytes, self._record_bytes_max, note_read, file.line_next)
        for chunk in _chunks(rows, file.rows):
            records = self._records(file, chunk, source)
            refused += len(chunk.rows) - len(records)
            if records:
                await self._write(file, chunk, records)
                written += len(records)
            else:
                self._journal.pass_over(file.id, chunk.row_next, chunk.line_next)
            on_progress(read_bytes, written)
            await asyncio.sleep(0)
        return Taken(written, file.rows, refused)

    async def _write(self, file: KnownFile, chunk: _Chunk, records: list[SpooledRecord]) -> None:
        """One transaction: noted, made, read back, noted as done."""
        attempt = FileAttempt(
            file.id,
            chunk.row_next,
            self._identity.epoch,
            records[0].sequence,
            records[-1].sequence,
            await self._finder.ends_of(self._spec.stream),
            chunk.line_next,
        )
        self._journal.begin(attempt)
        await self._writer.commit(records)
        self._journal.end(attempt, is_in_log=True)

    def _records(self, file: KnownFile, chunk: _Chunk, source: bytes) -> list[SpooledRecord]:
        common = [
            (HEADER_WRITER, self._identity.writer_id.encode()),
            (HEADER_EPOCH, b"%d" % self._identity.epoch),
            (HEADER_RECEIVED, b"%d" % (time.time_ns() // 1_000_000)),
            (HEADER_CONTENT_TYPE, self._spec.form.content_type),
            (HEADER_SOURCE, source),
        ]
        records = []
        for place, row in enumerate(chunk.rows, chunk.row_first):
            if isinstance(row, TooLong):
                continue
            self._sequence += 1
            own = [
                (HEADER_MESSAGE_ID, f"{file.identity}:{place}".encode()),
                (HEADER_SEQUENCE, b"%d" % self._sequence),
            ]
            records.append(
                SpooledRecord(
                    self._spec.stream, self._identity.epoch, self._sequence, row, self._find_key(row), common + own
                )
            )
        return records

    def _ignore(self, error: KafkaError) -> None:
        """What matters comes as the failure of a transaction."""


def _chunks(placed: Iterator[PlacedRow], row_first: int) -> Iterator[_Chunk]:
    """The rows in pieces for one transaction each. Where the file can't be read on, what came before it is a piece, too, and then
    comes the error."""
    rows: list[Row] = []
    size = line_next = 0
    try:
        for row, line_next in placed:
            rows.append(row)
            size += 0 if isinstance(row, TooLong) else len(row)
            if len(rows) == TRANSACTION_RECORDS_MAX or size >= TRANSACTION_BYTES_MAX:
                yield _Chunk(row_first, rows, line_next)
                row_first, rows, size = row_first + len(rows), [], 0
    except (UnreadableFile, OSError):
        if rows:
            yield _Chunk(row_first, rows, line_next)
        raise
    if rows:
        yield _Chunk(row_first, rows, line_next)
