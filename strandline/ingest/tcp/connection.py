"""A connection of the TCP gateway: its lines become records, appended in order, and are answered if the stream asks for it."""

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
"""Read at once. Of the shortest lines these are 8,192 records."""
QUEUE_BYTES_MAX = 8 * 1024 * 1024
"""What the records of one connection may take, those of the append under way included; over it the connection isn't read."""
QUEUED_BYTES_MAX = 128 * 1024 * 1024
"""What the records of all connections may take."""
LINES_HELD_BYTES_MAX = 64 * 1024 * 1024
"""Of the unfinished lines of all connections."""
LINE_TIMEOUT_S = 30.0
"""A line that is unfinished by then ends its connection."""
WRITE_TIMEOUT_S = 30.0
"""How long a sender may leave its answers unread once the socket's buffer is full."""
BUSY_PATIENCE_S = 10.0
"""While the log has no room the connection isn't read; after this time it is ended."""
LINGER_S = 5.0
"""How long a sender may take to close its side after the gateway has closed its own."""
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)
"""A sender that lost its power is noticed after two minutes."""
_REQUEST_LINE = re.compile(rb"[A-Z]+ \S+ HTTP/\d(\.\d)?")
_METHOD = re.compile(rb"[A-Z]{3,7} ")
_METHOD_BYTES_MAX = 8


class Port(Protocol):
    """What a connection knows of its port."""

    appender: StreamAppender
    connections: set[TcpConnection]

    @property
    def is_acking(self) -> bool:
        """Whether confirmed records are answered."""


class TcpRoom:
    """What all connections of a gateway share: how many there are, and what they hold.

    A connection is read as long as its queue is smaller than what is free; so some greedy ones leave room for the others.
    Should many together fill the room, nobody is read until half of it is free.
    """

    def __init__(self, *, connections_max: int, idle_s: float) -> None:
        self.connections_max = connections_max
        self.idle_s = idle_s
        self.connections: set[TcpConnection] = set()
        self.tasks = Tasks()
        self.line_bytes = 0
        """Of the unfinished lines."""
        self.queued_bytes = 0
        """What the queued records take, with their overhead."""
        self.is_full = False
        self.buffer = memoryview(bytearray(READ_BYTES))
        """Into which every connection reads: each read is taken before the next."""

    @property
    def queue_bytes_max(self) -> int:
        """How much one connection may have queued and still be read."""
        return 0 if self.is_full else min(QUEUE_BYTES_MAX, QUEUED_BYTES_MAX - self.queued_bytes)

    def queue(self, bytes_more: int) -> None:
        """Count what is queued, or, below 0, is no longer."""
        self.queued_bytes += bytes_more
        if self.is_full != (self.queued_bytes >= QUEUED_BYTES_MAX // (2 if self.is_full else 1)):
            self.is_full = not self.is_full
            for one in list(self.connections):
                one.read_or_pause()


class TcpConnection(asyncio.BufferedProtocol):
    """One sender.

    Invariants:
    - Records are appended in the order in which they came, one batch at a time.
    - A record that arrived whole is appended even if its sender has gone.
    """

    def __init__(self, port: Port, room: TcpRoom) -> None:
        self._port = port
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._splitter = LineSplitter(port.appender.record_bytes_max)
        self._line_began_s: float | None = None
        self._queue: list[tuple[int, Record]] = []
        """Each record with its number among all that came, the refused ones included."""
        self._queued_bytes = 0
        """With the overhead of each record; the room counts it."""
        self._start = b""
        """The first bytes of all."""
        self._heard_s = self._loop.time()
        self._counted = 0
        """Records so far, including the refused ones."""
        self._settling: asyncio.Task[None] | None = None
        self._is_open = False
        self._is_ending = False
        """Nothing more is read; the connection ends when the records that have arrived are confirmed or refused."""
        self._has_sender_closed = False
        """The sender has closed its side."""
        self._unread_since_s: float | None = None
        """Since when the sender has not read its answers, and the socket's buffer is full."""
        self._is_writable = asyncio.Event()
        self._is_writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._source = f"tcp:{peer[0] if peer else 'unknown'}".encode()
        self._is_open = True
        self._port.connections.add(self)
        self._room.connections.add(self)
        if len(self._room.connections) > self._room.connections_max:
            self._is_ending = True
            self._answer(
                f"error too_many {self._room.connections_max} connections are open; try again later\n".encode()
            )
            self._transport.close()  # without lingering: its file is needed
            return
        one = transport.get_extra_info("socket")
        for level, option, value in _KEEP_ALIVE:
            one.setsockopt(level, option, value)
        self._loop.call_soon(self.read_or_pause)  # uvloop begins to read after this call

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._heard_s = self._loop.time()
        if not self._is_ending:
            self._take(self._splitter, bytes(self._room.buffer[:nbytes]))

    def eof_received(self) -> bool:
        """The sender has closed its side in order, so its last line is a record even without a line end."""
        self._has_sender_closed = True
        if self._is_ending and self._settling is None:
            return False
        if not self._is_ending:
            held = self._splitter.bytes_held
            self._add(self._splitter.end())
            self._hold(held)
            self._end()
        return True  # the answers still go out

    def connection_lost(self, error: Exception | None) -> None:
        self._is_open = False
        self._is_writable.set()
        self._port.connections.discard(self)
        self._room.connections.discard(self)
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
        """Read the sender, or don't: while its queue is long, there is no room, or it does not read its answers."""
        if not self._is_open or self._transport.is_closing():
            return
        is_full = self._queued_bytes >= self._room.queue_bytes_max or not self._is_writable.is_set()
        if is_full and not self._is_ending:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def finish(self) -> asyncio.Task[None] | None:
        """Read no more, and end when all that arrived whole is confirmed or refused; then the returned task is done."""
        self._drop_rest()
        self._end()
        return self._settling

    def end_if_stuck(self, now_s: float) -> None:
        """End the connection if its line began, it sent anything, or it read its answers too long ago."""
        if self._unread_since_s is not None and now_s - self._unread_since_s > WRITE_TIMEOUT_S:
            self._transport.abort()
        elif self._is_ending:
            return
        elif self._settling is None and now_s - self._heard_s > self._room.idle_s:
            self._fail("idle", f"nothing came for {self._room.idle_s:g} s")
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
            self._fail("http", "here is one record a line, and no HTTP; nothing of the request was persisted")
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
        """Whether this is a browser: a web page can have it post to any port, and each line of that would be a record."""
        if first_line is None:  # too long for a record, but not for a request
            return _METHOD.match(self._start) is not None
        return _REQUEST_LINE.fullmatch(first_line) is not None

    def _hold(self, before: int) -> None:
        """Update the sum over all connections; end this connection if the sum is too large."""
        self._room.line_bytes += self._splitter.bytes_held - before
        if self._room.line_bytes > LINES_HELD_BYTES_MAX and self._splitter.bytes_held > before:
            self._fail("log_busy", f"{self._room.line_bytes} bytes of unfinished lines are held; try again later")

    def _add(self, lines: list[bytes | None]) -> None:
        """Queue the lines as records, and refuse those that are too long."""
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
        self._room.queue(bytes_new)
        if queue and self._settling is None:
            self._settling = self._room.tasks.start(self._settle())
        if self._queued_bytes >= self._room.queue_bytes_max:
            self.read_or_pause()

    async def _settle(self) -> None:
        """Append what is queued, batch after batch, and answer each. End the connection afterwards if it is to end.

        If the log can't confirm, end it, too: the last `ok` tells the sender what is in the log.
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
            self._room.queue(-self._queued_bytes)
            self._queued_bytes = 0
            self._settling = None
            if self._is_ending:
                self._hang_up()

    def _release(self, batch: list[Record]) -> None:
        """The records are appended."""
        bytes_done = sum(len(value) for value, _ in batch) + RECORD_OVERHEAD_BYTES * len(batch)
        self._queued_bytes -= bytes_done
        self._room.queue(-bytes_done)
        self.read_or_pause()

    def _answer(self, line: bytes) -> None:
        if self._port.is_acking and self._is_open:
            self._transport.write(line)

    def _end(self) -> None:
        self._is_ending = True
        if self._settling is None:
            self._hang_up()

    def _hang_up(self) -> None:
        """Close our side, and read and drop what the sender still sends: otherwise it would see a connection reset
        instead of the last answer."""
        if not self._is_open:
            return
        if self._has_sender_closed:
            self._transport.close()
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
            self._transport.resume_reading()
        else:  # TLS can't close one side only: this sends what is written, then drops what comes
            self._transport.close()
        self._loop.call_later(LINGER_S, self._transport.abort)

    def abort(self) -> None:
        """Cut the connection, whatever state it is in."""
        self._transport.abort()

    def _fail(self, code: str, reason: str) -> None:
        """Answer with an error, and end the connection when the append under way has its outcome."""
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
            self._room.line_bytes -= self._splitter.bytes_held
            self._port.appender.metrics.drop("cut", 1)
            self._splitter = LineSplitter(self._port.appender.record_bytes_max)
        self._line_began_s = None
