"""Writes files into one stream: each of their records once, even if the process is killed at any point and restarted.

The path of a file:

1. The journal recognizes the file by its content, and knows up to which line it is in the log (journal.py).
2. The rows after that line are written in transactions. Before each transaction, an attempt is stored with the end
   offsets of the partitions. After the commit, when its last record is read back, the attempt is stored as done.
3. At a start, a stored attempt that has not ended is in doubt. The new producer fences the previous one, so that its
   records can't arrive any more. Then the log itself shows whether they have arrived.

The message id of a record is `FILE:ROW`: the hash that identifies the file, and the number of rows before the record.
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
"""Called with the number of bytes that are read of a file, and of its records that are in the log."""


@dataclass(frozen=True)
class Taken:
    """Outcome of one file."""

    records: int
    """Number of records that were written now."""
    before: int
    """Number of rows that were done before."""
    refused: int
    """Number of rows that exceed the maximum size of a record."""


@dataclass(frozen=True)
class _Chunk:
    """Rows for one transaction."""

    row_first: int
    """Number of rows of the file before this chunk."""
    rows: list[Row]
    line_next: int
    """Number of lines of the file up to the end of this chunk."""

    @property
    def row_next(self) -> int:
        return self.row_first + len(self.rows)


class FileIngest:
    """Writes the files of one stream one after the other, in an event loop. Use it with `async with`.

    No other process may use the identity.
    """

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
        """`in_doubt`: decision if the log no longer shows whether the last transaction of an earlier process has
        arrived."""
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
        """Fence every earlier writer of this identity, and resolve its attempt in doubt.

        Raises LogUnavailable. Raises Conflict if the log no longer shows whether its last transaction has arrived, and
        `in_doubt` is None.
        """
        try:
            await self._writer.open()
        except KafkaException as error:
            self._thread.close()
            raise LogUnavailable(
                f"Kafka at {self._bootstrap} accepts no transactions ({error.args[0].str()}); check that it is running"
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
        """Write the rows of a file that are not in the log. Rows that were written before an error stay, and are
        skipped next time.

        Args: again: Write the complete file again, under an identity that ends with this string.

        Raises UnreadableFile, OSError, LogUnavailable, and RecordTooLarge. After the last two, this object must not be
        used again.
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
        """Write one transaction: store the attempt, commit, read back, and store the attempt as done."""
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
        """Do nothing: errors that matter make a transaction fail."""


def _chunks(placed: Iterator[PlacedRow], row_first: int) -> Iterator[_Chunk]:
    """Yield the rows in chunks for one transaction each.

    If the file can't be read, first yield the rows before the error.
    """
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
