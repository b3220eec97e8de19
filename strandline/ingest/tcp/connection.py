"""A connection of the TCP gateway: its lines become records, appended in order, and answered if the stream requires it."""

from __future__ import annotations

import asyncio
import re
import socket
from typing import Protocol, cast

import structlog

from strandline.ingest.append.limits import RECORD_OVERHEAD_BYTES
from strandline.ingest.append.outcome import NOT_CONFIRMED
from strandline.ingest.gateway.line_splitter import LineSplitter
from strandline.ingest.gateway.stream_appender import StreamAppender
from strandline.ingest.gateway.tasks import Tasks
from strandline.log.record_key import Record

logger = structlog.get_logger()

RECORDS_PER_APPEND_MAX = 10_000
READ_BYTES = 16 * 1024
"""Maximum number of bytes per read: 8,192 records if the lines are as short as possible."""
QUEUE_BYTES_MAX = 8 * 1024 * 1024
"""Maximum size of the records of one connection, including those of the running append. Over it the connection isn't
read."""
QUEUED_BYTES_MAX = 128 * 1024 * 1024
"""Maximum size in bytes of the records of all connections."""
LINES_HELD_BYTES_MAX = 64 * 1024 * 1024
"""Maximum size in bytes of the unfinished lines of all connections."""
LINE_TIMEOUT_S = 30.0
"""Seconds after which an unfinished line ends its connection."""
WRITE_TIMEOUT_S = 30.0
"""Seconds that a sender may leave its answers unread once the socket's buffer is full."""
BUSY_PATIENCE_S = 10.0
"""Seconds after which a connection is ended while the log is busy. Until then it isn't read."""
LINGER_S = 5.0
"""Seconds that a sender has to close its side after the gateway has closed its own."""
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)
"""A sender that lost its power is detected after two minutes."""
_REQUEST_LINE = re.compile(rb"[A-Z]+ \S+ HTTP/\d(\.\d)?")
_METHOD = re.compile(rb"[A-Z]{3,7} ")
_METHOD_BYTES_MAX = 8


class Port(Protocol):
    """Interface of the port that a connection uses."""

    appender: StreamAppender
    connections: set[TcpConnection]

    @property
    def is_acking(self) -> bool:
        """True if confirmed records are answered."""


class ConnectionBudget:
    """State that all connections of a gateway share: their number, and the bytes that they buffer.

    A connection is read as long as its queue is smaller than the free bytes, so a few greedy connections leave space
    for the others. If many connections use up all bytes, none is read until half of them are free.
    """

    def __init__(self, *, connections_max: int, idle_s: float) -> None:
        self.connections_max = connections_max
        self.idle_s = idle_s
        self.connections: set[TcpConnection] = set()
        self.tasks = Tasks()
        self.line_bytes = 0
        """Size in bytes of the unfinished lines."""
        self.queued_bytes = 0
        """Size in bytes of the queued records, with their overhead."""
        self.is_full = False
        self.buffer = memoryview(bytearray(READ_BYTES))
        """Buffer into which every connection reads: each read is processed before the next."""

    @property
    def queue_bytes_max(self) -> int:
        """Maximum size in bytes of the queue of a connection that is read."""
        return 0 if self.is_full else min(QUEUE_BYTES_MAX, QUEUED_BYTES_MAX - self.queued_bytes)

    def queue(self, bytes_more: int) -> None:
        """Count queued bytes. Negative if they are no longer queued."""
        self.queued_bytes += bytes_more
        if self.is_full != (self.queued_bytes >= QUEUED_BYTES_MAX // (2 if self.is_full else 1)):
            self.is_full = not self.is_full
            for one in list(self.connections):
                one.read_or_pause()


class TcpConnection(asyncio.BufferedProtocol):
    """One sender.

    Invariants:

    - Records are appended in the order in which they arrived, one batch at a time.
    - A record that arrived completely is appended even if its sender has disconnected.
    """

    def __init__(self, port: Port, budget: ConnectionBudget) -> None:
        self._port = port
        self._budget = budget
        self._loop = asyncio.get_running_loop()
        self._splitter = LineSplitter(port.appender.record_bytes_max)
        self._line_began_s: float | None = None
        self._queue: list[tuple[int, Record]] = []
        """Each record with its number among all received records, including the refused ones."""
        self._queued_bytes = 0
        """With the overhead of each record, as the budget counts it."""
        self._start = b""
        """The first bytes of the connection."""
        self._heard_s = self._loop.time()
        self._counted = 0
        """Number of records so far, including the refused ones."""
        self._settling: asyncio.Task[None] | None = None
        self._is_open = False
        self._is_ending = False
        """True if the connection is no longer read. It ends when its records are confirmed or refused."""
        self._has_sender_closed = False
        """True if the sender has closed its side."""
        self._unread_since_s: float | None = None
        """Time since which the sender has not read its answers, and the socket's buffer is full. Otherwise None."""
        self._is_writable = asyncio.Event()
        self._is_writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._source = f"tcp:{peer[0] if peer else 'unknown'}".encode()
        self._is_open = True
        self._port.connections.add(self)
        self._budget.connections.add(self)
        if len(self._budget.connections) > self._budget.connections_max:
            self._is_ending = True
            self._answer(
                f"error too_many {self._budget.connections_max} connections are open; try again later\n".encode()
            )
            self._transport.close()  # without lingering: its file descriptor is needed
            return
        one = transport.get_extra_info("socket")
        for level, option, value in _KEEP_ALIVE:
            one.setsockopt(level, option, value)
        self._loop.call_soon(self.read_or_pause)  # uvloop begins to read after this call

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._budget.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._heard_s = self._loop.time()
        if not self._is_ending:
            self._take(self._splitter, bytes(self._budget.buffer[:nbytes]))

    def eof_received(self) -> bool:
        """Treat the last line as a record even without a line end: the sender has closed its side gracefully."""
        self._has_sender_closed = True
        if self._is_ending and self._settling is None:
            return False
        if not self._is_ending:
            held = self._splitter.bytes_held
            self._add(self._splitter.end())
            self._hold(held)
            self._end()
        return True  # the answers are still sent

    def connection_lost(self, error: Exception | None) -> None:
        self._is_open = False
        self._is_writable.set()
        self._port.connections.discard(self)
        self._budget.connections.discard(self)
        self._drop_rest()
        self._is_ending = True

    def pause_writing(self) -> None:
        self._is_writable.clear()
        self._unread_since_s = self._loop.time()
        self.read_or_pause()

    def resume_writing(self) -> None:
        self._is_writable.set()
        self._unread_since_s = None
        self.read_or_pause()

    def read_or_pause(self) -> None:
        """Read the sender, or pause while its queue is long, the budget is used up, or it does not read its answers."""
        if not self._is_open or self._transport.is_closing():
            return
        is_full = self._queued_bytes >= self._budget.queue_bytes_max or not self._is_writable.is_set()
        if is_full and not self._is_ending:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def finish(self) -> asyncio.Task[None] | None:
        """Stop reading, and end when all complete records are confirmed or refused. Then the returned task is done."""
        self._drop_rest()
        self._end()
        return self._settling

    def end_if_stuck(self, now_s: float) -> None:
        """End the connection if its line began, its last bytes arrived, or its answers were read too long ago."""
        if self._unread_since_s is not None and now_s - self._unread_since_s > WRITE_TIMEOUT_S:
            self._transport.abort()
        elif self._is_ending:
            return
        elif self._settling is None and now_s - self._heard_s > self._budget.idle_s:
            self._fail("idle", f"no data for {self._budget.idle_s:g} s")
        elif self._line_began_s is not None and now_s - self._line_began_s > LINE_TIMEOUT_S:
            self._fail("timeout", f"a line did not end within {LINE_TIMEOUT_S:g} s")

    def _take(self, splitter: LineSplitter, data: bytes) -> None:
        held = splitter.bytes_held
        if not self._counted and len(self._start) < _METHOD_BYTES_MAX:
            self._start += data[:_METHOD_BYTES_MAX]
        lines = splitter.split(data)
        if lines and not self._counted and self._is_http(lines[0]):
            self._splitter = LineSplitter(self._port.appender.record_bytes_max)
            self._hold(held)
            self._fail("http", "this port accepts one record per line, not HTTP; nothing of the request was persisted")
            return
        if lines:
            self._add(lines)
            self._line_began_s = None
        self._hold(held)
        if splitter.bytes_held and self._line_began_s is None:
            self._line_began_s = self._loop.time()
        elif not splitter.bytes_held:
            self._line_began_s = None

    def _is_http(self, first_line: bytes | None) -> bool:
        """Return True for an HTTP request: a web page can post to any port, and each line of the request would be a
        record."""
        if first_line is None:  # too long for a record, but not for a request
            return _METHOD.match(self._start) is not None
        return _REQUEST_LINE.fullmatch(first_line) is not None

    def _hold(self, before: int) -> None:
        """Update the sum over all connections. End this connection if the sum is too large."""
        self._budget.line_bytes += self._splitter.bytes_held - before
        if self._budget.line_bytes > LINES_HELD_BYTES_MAX and self._splitter.bytes_held > before:
            self._fail("log_busy", f"{self._budget.line_bytes} bytes of unfinished lines are buffered; try again later")

    def _add(self, lines: list[bytes | None]) -> None:
        """Queue the lines as records, and start to append them. A None is a line that was too long: count it as
        refused, and answer `refused` if the stream requires answers.
        """
        appender, queue = self._port.appender, self._queue
        find_key = appender.find_key
        bytes_new = 0
        for line in lines:
            self._counted += 1
            if line is None:
                appender.refuse("too_large")
                self._answer(
                    b"refused %d too_large the record is over %d bytes\n" % (self._counted, appender.record_bytes_max)
                )
            else:
                queue.append((self._counted, (line, find_key(line))))
                bytes_new += len(line) + RECORD_OVERHEAD_BYTES
        self._queued_bytes += bytes_new
        self._budget.queue(bytes_new)
        if queue and self._settling is None:
            self._settling = self._budget.tasks.start(self._settle())
        if self._queued_bytes >= self._budget.queue_bytes_max:
            self.read_or_pause()

    async def _settle(self) -> None:
        """Append the queued records, batch after batch, and answer each. End the connection afterwards if it must end.

        If the log can't confirm, end it, too: the last `ok` shows the sender which records are in the log.
        """
        try:
            while self._queue:
                queue = self._queue
                batch = [record for _, record in queue[:RECORDS_PER_APPEND_MAX]]
                self._queue = queue[RECORDS_PER_APPEND_MAX:]
                settled = self._queue[0][0] - 1 if self._queue else self._counted
                await self._port.appender.append(batch, source=self._source, patience_s=BUSY_PATIENCE_S)
                self._release(batch)
                self._answer(b"ok %d\n" % settled)
                await self._is_writable.wait()
        except NOT_CONFIRMED as error:
            self._port.appender.refuse(error.code, len(self._queue))
            self._fail(error.code, str(error))
        finally:
            self._queue = []
            self._budget.queue(-self._queued_bytes)
            self._queued_bytes = 0
            self._settling = None
            if self._is_ending:
                self._hang_up()

    def _release(self, batch: list[Record]) -> None:
        """Remove the appended records from the counts."""
        bytes_done = sum(len(value) for value, _ in batch) + RECORD_OVERHEAD_BYTES * len(batch)
        self._queued_bytes -= bytes_done
        self._budget.queue(-bytes_done)
        self.read_or_pause()

    def _answer(self, line: bytes) -> None:
        if self._port.is_acking and self._is_open:
            self._transport.write(line)

    def _end(self) -> None:
        self._is_ending = True
        if self._settling is None:
            self._hang_up()

    def _hang_up(self) -> None:
        """Close this side, and read and drop the bytes that the sender still sends.

        Otherwise it would see a connection reset instead of the last answer.
        """
        if not self._is_open:
            return
        if self._has_sender_closed:
            self._transport.close()
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
            self._transport.resume_reading()
        else:  # TLS can't close one side only: this sends the written bytes, then drops received ones
            self._transport.close()
        self._loop.call_later(LINGER_S, self._transport.abort)

    def abort(self) -> None:
        """Cut the connection in any state."""
        self._transport.abort()

    def _fail(self, code: str, reason: str) -> None:
        """Answer with an error, and end the connection when the running append has its outcome."""
        self._answer(f"error {code} {reason}\n".encode())
        logger.warning(
            "a TCP connection was ended", action="connection_ended", stream=self._port.appender.spec.stream,
            source=self._source.decode(), code=code, reason=reason,
        )  # fmt: skip
        self._drop_rest()
        self._end()

    def _drop_rest(self) -> None:
        """Drop the unfinished line, and count it."""
        if self._splitter.bytes_held:
            self._budget.line_bytes -= self._splitter.bytes_held
            self._port.appender.metrics.drop("cut", 1)
            self._splitter = LineSplitter(self._port.appender.record_bytes_max)
        self._line_began_s = None
