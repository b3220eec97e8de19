"""Reads exact ranges of committed records from the log, as columns: the fastest way for a source task.

The event loop of the connections runs only inside calls of a reader. While a caller processes its records, the broker
processes the next request, which was sent before, and the kernel receives the response.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from array import array
from collections.abc import Awaitable, Iterator, Mapping, MutableSequence, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    CorruptRecordException,
    IllegalSaslStateError,
    IncompatibleBrokerVersion,
    KafkaError,
    NoError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
)

from strandline.core.errors import LogChanged, LogTruncated, LogUnavailable
from strandline.core.record_headers import (
    HEADER_SOURCE,
    RECORD_KEY,
    RECORD_TIMESTAMP,
    pack_header_values,
    with_record_metadata,
)
from strandline.log.brokers import Brokers, PartitionKey, PartitionRequest, PartitionResponse
from strandline.log.kafka_connection import remedy_of
from strandline.log.reader import OffsetRange
from strandline.log.record_batches import CommittedBatches, Hole, RecordBatch, committed_batches

RECORDS_A_CHUNK = 10_000
"""Approximate number of records in a chunk: a chunk ends with the batch that reaches this number."""
_FETCH_BYTES_MAX = 1_048_576
_FETCH_BYTES_MIN = 16_384
_FETCH_BYTES_EXPECTED_MIN = 1_024
"""Minimum size of a range in the estimate of the size of a response. Smaller than _FETCH_BYTES_MIN, so that a request has room
for hundreds of small ranges. If a range gets no room in the response, it is requested again."""
_RECORD_BYTES_GUESS = 1_024
_REQUEST_TIMEOUT_MAX_S = 10.0
_REQUESTS_A_TIMEOUT = 3
"""Minimum number of requests before the reader stops waiting for a broker that never answers."""
_ASK_AGAIN_S = 0.2
_FINAL = (
    ClusterAuthorizationFailedError,
    IllegalSaslStateError,
    IncompatibleBrokerVersion,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
)
"""Errors that a repeated request can't correct."""


@dataclass
class FetchedRecords:
    """Some committed records of one range, in order, column by column. Not every offset has a record."""

    offset_range: OffsetRange
    """The requested range."""
    # numpy uses arrays of 64-bit numbers without a copy. For a list, it would check the type of each number.
    offsets: MutableSequence[int] = field(default_factory=lambda: array("q"))
    log_times_ms: MutableSequence[int] = field(default_factory=lambda: array("q"))
    values: list[bytes | None] = field(default_factory=list)
    header_values: list[bytes | None] = field(default_factory=list)
    """Value of the first requested header that a record has, or None if it has none of them. Empty if no record has
    any."""
    batches: list[RecordBatch] = field(default_factory=list)
    """The batches that contain the records."""
    stored_bytes: int = 0
    """Size of the records as stored in Kafka, about."""

    def key_and_source(self, offset: int) -> tuple[bytes | None, bytes | None]:
        """Return the Kafka key of a record, and the source that the gateway recorded (HEADER_SOURCE).

        Reads the batch of the record again: call it for single records only.
        """
        for batch in self.batches:
            if batch.offset_first <= offset < batch.offset_next:
                found = next((record for record in batch.records() if record.offset == offset), None)
                batch.forget_plain()
                return (None, None) if found is None else (found.key, dict(found.headers).get(HEADER_SOURCE))
        return None, None


class RangeReader:
    """Reads ranges of committed records. Not thread-safe. Must not be called inside an event loop.

    A process keeps one reader, because a new one must connect first.
    """

    def __init__(self, bootstrap: str, timeout_s: float = 30.0, security: Mapping[str, Any] | None = None) -> None:
        """`security`: options of aiokafka's connections, such as `security_protocol`, `ssl_context`, and
        `sasl_mechanism`. None for the settings of this process."""
        self._bootstrap = bootstrap
        self._timeout_s = timeout_s
        self._loop = asyncio.new_event_loop()
        self._brokers = Brokers(bootstrap, min(timeout_s / _REQUESTS_A_TIMEOUT, _REQUEST_TIMEOUT_MAX_S), security)
        self._record_bytes: dict[str, float] = {}
        self.close = weakref.finalize(self, _close, self._loop, self._brokers)
        """Closes the connections. At the end of the process they are closed automatically."""

    def read(
        self,
        ranges: Sequence[OffsetRange],
        headers: Sequence[str] = (),
        headers_beside: Sequence[str] = (),
        *,
        allow_holes: bool = False,
    ) -> Iterator[FetchedRecords]:
        """Yield the records of the ranges, one range after the other, in chunks of about RECORDS_A_CHUNK. No chunk is
        empty.

        See `batches` for when a range is complete, and for the errors.

        Args:
        - headers: Names of headers. A record's value is that of the first one that it has.
        - headers_beside: Names of headers that are all requested. If a record has any of them, its value is packed with
          these (`core.record_headers`).
        """
        for arrived in self.batches(ranges, allow_holes=allow_holes):
            yield from arrived.columns(headers, headers_beside)

    def batches(self, ranges: Sequence[OffsetRange], *, allow_holes: bool = False) -> Iterator[FetchedBatches]:
        """Yield the batches of the ranges, one range after the other.

        A range is complete only when the batch that contains its last offset has arrived. Transaction markers and
        aborted batches count. An empty response proves nothing: a broker sends one, too, if its tiered storage is slow.
        An incomplete range is fetched again until the timeout.

        The offsets of a log that was never compacted have no holes, so a hole means lost records. `allow_holes`: only
        for topics that may be compacted, and never for results.

        Raises:
        - LogTruncated if the log starts after the position, or still has a hole there after the timeout.
        - LogUnavailable if the range makes no progress for the timeout.
        - LogChanged if a batch has another checksum than was recorded. Then the caller must not use the batches of the
          range.
        """
        left = [_Rest.of(one) for one in ranges if one.offset_first < one.offset_next]
        request: asyncio.Task[list[PartitionResponse]] | None = None
        arrived_s = asked_s = time.monotonic()
        is_stuck = False
        reason: Exception | None = None
        try:
            while left:
                if request is None:
                    asked_s = time.monotonic()
                    request = self._ask(left[:1] if is_stuck else left)
                arrived: list[FetchedBatches] = []
                try:
                    arrived = self._take(left, self._loop.run_until_complete(request), allow_holes)
                    reason = None
                except (KafkaError, OSError, TimeoutError) as error:
                    if isinstance(error, _FINAL):
                        raise LogUnavailable(f"reading {left[0]} failed: {_text(error)}") from error
                    reason = error
                    self._run(self._brokers.close())
                    time.sleep(_ASK_AGAIN_S)
                request = None
                # No records of the first range: only this range is requested next, so that the broker waits before it
                # answers.
                is_stuck = not arrived
                if arrived:
                    arrived_s = time.monotonic()
                    left = [rest for rest in left if not rest.is_complete]
                    if left:
                        asked_s = arrived_s
                        request = self._ask(left)
                elif time.monotonic() - arrived_s > self._timeout_s:
                    raise self._gave_up(left[0], reason) from reason
                elif time.monotonic() - asked_s < _ASK_AGAIN_S:
                    time.sleep(_ASK_AGAIN_S)  # a broker with other batches than the needed ones answers immediately
                yield from arrived
                if arrived:
                    # the time that the caller used for its work isn't time spent waiting for Kafka
                    arrived_s = time.monotonic()
        finally:
            if request is not None and not self._loop.is_closed():
                request.cancel()
                self._run(asyncio.gather(request, return_exceptions=True))

    def _gave_up(self, rest: _Rest, reason: Exception | None) -> LogTruncated | LogUnavailable:
        if reason is None and rest.hole is not None:
            return LogTruncated(_hole_text(rest, rest.hole))
        nothing = f"Kafka at {self._bootstrap} sent no records of {rest} for {self._timeout_s:g} s"
        return LogUnavailable(
            f"{nothing} ({_text(reason)}); check that the broker is running" if reason else f"{nothing}: {rest.seen}"
        )

    def _ask(self, left: Sequence[_Rest]) -> asyncio.Task[list[PartitionResponse]]:
        """Send a request for as many of the ranges as one response can contain, each from another partition."""
        requests: dict[PartitionKey, PartitionRequest] = {}
        room = _FETCH_BYTES_MAX
        for rest in left:
            if room <= 0 or rest.partition_key in requests:
                break
            wanted = (rest.offset_range.offset_next - rest.position) * self._record_bytes.get(
                rest.partition_key[0], _RECORD_BYTES_GUESS
            )
            allowed = min(max(int(wanted), _FETCH_BYTES_MIN), _FETCH_BYTES_MAX)
            requests[rest.partition_key] = PartitionRequest(rest.partition_key, rest.position, allowed)
            room -= min(max(int(wanted), _FETCH_BYTES_EXPECTED_MIN), _FETCH_BYTES_MAX)
        request = self._loop.create_task(self._brokers.fetch(list(requests.values()), _FETCH_BYTES_MAX))
        self._run(asyncio.sleep(0))  # lets it begin: on an open connection the request is sent now
        return request

    def _take(
        self, left: Sequence[_Rest], answers: Sequence[PartitionResponse], allow_holes: bool = False
    ) -> list[FetchedBatches]:
        """Return the new batches of the first range, and of each later range while all earlier ones are complete."""
        arrived: list[FetchedBatches] = []
        for rest, answer in zip(left, answers, strict=False):
            if answer.error is OffsetOutOfRangeError:
                if arrived:
                    break  # the error is raised when the range is the first
                raise LogTruncated(
                    f"{rest.name}: offset {rest.position}, which the job needs, no longer exists. If retention removed it, "
                    "raise the retention; if the log was truncated, the next start of the job reports it"
                )
            try:
                found = _batches_of(rest, answer, allow_holes)
            except KafkaError:
                if arrived:
                    break  # it is requested again, as the first range; the batches of earlier ranges are kept
                raise
            for (offset, recorded), checksum in zip(rest.recorded, found.checksums, strict=False):
                if checksum != recorded and arrived:
                    return arrived  # the error is raised when the range is the first
                if checksum != recorded:
                    raise LogChanged(
                        f"{rest.name}: the record at offset {offset} has changed since the slice that ends there was planned, "
                        "because the log was truncated below it. The next start of the job reports a remedy"
                    )
            rest.recorded = rest.recorded[len(found.checksums) :]
            rest.hole, rest.stable_offset = found.hole, answer.stable_offset
            if found.offset_next == rest.position:
                break  # not there yet, no space was left for it in the response, or there is a hole
            # A little more than last time, so that a range seldom lacks a few records.
            self._record_bytes[rest.partition_key[0]] = 1.25 * len(answer.records) / (found.offset_next - rest.position)
            rest.position = found.offset_next
            arrived.append(FetchedBatches(rest.offset_range, found.batches, is_last=rest.is_complete))
            if not rest.is_complete:
                break
        return arrived

    def _run(self, work: Awaitable[object]) -> None:
        self._loop.run_until_complete(work)


@dataclass
class _Rest:
    """The part of a range that must still be read."""

    offset_range: OffsetRange
    position: int
    recorded: tuple[tuple[int, int], ...] = ()
    """Offsets at or after `position`, ascending, each with the recorded checksum of its batch."""
    hole: Hole | None = None
    """Hole at `position`, if the last response showed one."""
    stable_offset: int = -1
    """Last stable offset in the last response; -1 if unknown."""

    @classmethod
    def of(cls, wanted: OffsetRange) -> _Rest:
        return cls(wanted, wanted.offset_first, wanted.recorded_checksums)

    @property
    def partition_key(self) -> PartitionKey:
        return self.offset_range.stream, self.offset_range.partition

    @property
    def is_complete(self) -> bool:
        return self.position >= self.offset_range.offset_next

    @property
    def name(self) -> str:
        return f"stream {self.offset_range.stream}, partition {self.offset_range.partition}"

    @property
    def seen(self) -> str:
        """Reason why no records arrived although the broker answered."""
        if self.stable_offset > self.position:
            return (
                f"the responses are empty, but the log is settled up to offset {self.stable_offset}; if the topic has tiered "
                "storage, check the remote storage and the broker's remote.fetch.max.wait.ms"
            )
        if self.stable_offset >= 0:
            return f"the log is settled only up to offset {self.stable_offset}: a transaction is open, or the broker lags behind"
        return "the responses are empty, and show no end of the log; check the broker's log"

    def __str__(self) -> str:
        return f"{self.name} from offset {self.position}"


def _hole_text(rest: _Rest, hole: Hole) -> str:
    after = (
        datetime.fromtimestamp(hole.log_time_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )
    return (
        f"{rest.name} lacks records of offsets {hole.offset_first} to {hole.offset_next - 1}: the log was compacted or damaged "
        "there, and results without them would be wrong. Restore the partition, for example from a replica that has the records, "
        "and start the job again. If they are lost permanently, run strandline job reset JOB --to TIME, with a time later than "
        f"{after}. If the job can't be reset, delete the records before offset {hole.offset_next} (kafka-delete-records), and "
        "submit the pipeline under another name"
    )


def _batches_of(rest: _Rest, answer: PartitionResponse, allow_holes: bool) -> CommittedBatches:
    """Return `committed_batches` of a response.

    Raises the error of the response, and CorruptRecordException for invalid bytes.
    """
    if answer.error is not NoError:
        raise answer.error(rest.name)
    checked = [offset for offset, _ in rest.recorded]
    end = rest.offset_range.offset_next
    return committed_batches(answer.records, answer.aborted, rest.position, end, checked, allow_holes=allow_holes)


@dataclass
class FetchedBatches:
    """Committed batches of a range, in memory as the broker sent them."""

    offset_range: OffsetRange
    batches: list[RecordBatch]
    is_last: bool = False
    """True if the range is complete with these batches."""

    def records(self) -> Iterator[Any]:
        """Yield the records inside the range.

        See `RecordBatch.records`. Raises LogUnavailable if a record can't be read.
        """
        wanted = self.offset_range
        for batch in self.batches:
            with _named(wanted, batch):
                for record in batch.records():
                    if wanted.offset_first <= record.offset < wanted.offset_next:
                        yield record
            batch.forget_plain()

    def columns(self, headers: Sequence[str], headers_beside: Sequence[str]) -> Iterator[FetchedRecords]:
        """Yield the records inside the range, in chunks."""
        wanted = self.offset_range
        chunk = FetchedRecords(wanted)
        for batch in self.batches:
            with _named(wanted, batch):
                _append(chunk, batch, headers, headers_beside)
            if len(chunk.values) >= RECORDS_A_CHUNK:
                yield chunk
                chunk = FetchedRecords(wanted)
        if chunk.values:
            yield chunk


@contextmanager
def _named(wanted: OffsetRange, batch: RecordBatch) -> Iterator[None]:
    try:
        yield
    except CorruptRecordException as error:
        raise LogUnavailable(
            f"reading stream {wanted.stream}, partition {wanted.partition} failed at offset {batch.offset_first}: {_text(error)}"
        ) from error


def _append(chunk: FetchedRecords, batch: RecordBatch, headers: Sequence[str], headers_beside: Sequence[str]) -> None:
    chunk.batches.append(batch)
    first_of = [header for header in headers if batch.may_have(header)]
    of_record = {RECORD_KEY, RECORD_TIMESTAMP}.intersection(headers_beside)
    beside = [header for header in headers_beside if header in of_record or batch.may_have(header)]
    wanted = first_of or beside
    if wanted and not chunk.header_values:
        chunk.header_values.extend([None] * len(chunk.values))
    has_header_values = bool(wanted or chunk.header_values)
    first, end = chunk.offset_range.offset_first, chunk.offset_range.offset_next
    chunk.stored_bytes += batch.bytes_in(first, end)
    is_inside = first <= batch.offset_first and batch.offset_next <= end
    if is_inside and batch.log_time_ms is not None and not wanted and not batch.has_holes:
        # Nearly every batch: everything except the values is known from its head.
        chunk.values.extend([record.value for record in batch.records()])
        chunk.offsets.extend(array("q", np.arange(batch.offset_first, batch.offset_next, dtype=np.int64).tobytes()))
        chunk.log_times_ms.extend(array("q", [batch.log_time_ms]) * (batch.offset_next - batch.offset_first))
        if has_header_values:
            chunk.header_values.extend([None] * (batch.offset_next - batch.offset_first))
        batch.forget_plain()
        return
    for record in batch.records():
        if first <= record.offset < end:
            chunk.values.append(record.value)
            chunk.offsets.append(record.offset)
            chunk.log_times_ms.append(-1 if record.timestamp is None else record.timestamp)
            if has_header_values:
                found = dict(record.headers)
                if of_record:
                    found = with_record_metadata(found, record.key, record.timestamp)
                value = next((found[header] for header in first_of if header in found), None)
                named = {header: found[header] or b"" for header in beside if header in found} if beside else {}
                chunk.header_values.append(pack_header_values(value, named))
    batch.forget_plain()


def _close(loop: asyncio.AbstractEventLoop, brokers: Brokers) -> None:
    loop.run_until_complete(brokers.close())
    loop.close()


def _text(error: Exception) -> str:
    return f"{str(error) or type(error).__name__}{remedy_of(error)}"
