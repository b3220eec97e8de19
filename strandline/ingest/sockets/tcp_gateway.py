"""The TCP gateway: one record a line. If the stream asks for it, the gateway answers when records are confirmed.

`python -m strandline.ingest.sockets.tcp_gateway` runs one. The streams' documents say which ports:
`tcp: {port: 8083, ack: true}`.

What a sender may rely on, with `ack: true`. Records are counted from 1 on each connection; blank lines don't count:
- `ok N`: every record up to the Nth is in the log, except those that were refused.
- `refused N CODE sentence`: the Nth record is not in the log and never will be; the records after it go on. It comes before
  the `ok` that counts it.
- `error CODE sentence`, and the connection ends: of what came after the last `ok`, some, none or all may be in the log.

Without `ack` nothing is sent back. If the gateway ends such a connection, the records sent last may be lost. While the
log is busy, the gateway waits and does not read the connection.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from functools import partial
from typing import cast

import structlog
from pydantic import Field

from strandline.core.settings import Settings
from strandline.core.stream import StreamSpec
from strandline.ingest.append.outcome import NOT_CONFIRMED
from strandline.ingest.gateway.line_splitter import LineSplitter
from strandline.ingest.gateway.ports import Ports
from strandline.ingest.gateway.process import (
    GatewayResources,
    listening_socket,
    open_resources,
    run_gateway,
    serve_health_pages,
)
from strandline.ingest.gateway.stream_appender import StreamAppender
from strandline.ingest.gateway.tasks import Tasks
from strandline.log.record_key import Record

logger = structlog.get_logger()

RECORDS_PER_APPEND_MAX = 10_000
BYTES_QUEUED_MAX = 1_000_000
"""Of one connection's records that wait behind the append under way; over it the connection isn't read."""
LINES_HELD_BYTES_MAX = 64 * 1024 * 1024
"""Of the unfinished lines of all connections."""
LINE_TIMEOUT_S = 30.0
"""A line that is unfinished by then ends its connection."""
BUSY_PATIENCE_S = 10.0
"""While the log has no room the connection isn't read; after this time it is ended."""
SWEEP_EVERY_S = 5.0
LINGER_S = 5.0
"""How long a sender may take to close its side after the gateway has closed its own."""
_BACKLOG = 2_048


class TcpSettings(Settings):
    """The settings, and what only the TCP gateway needs to know."""

    port_offset: int = 0
    """Added to every port that a stream document names."""
    tcp_host: str = "127.0.0.1"
    """The address on which the TCP gateway listens."""
    tcp_connections_max: int = Field(default=10_000, ge=1)
    """More connections at a time are refused."""
    tcp_pages_port: int = 8087
    """The port of the TCP gateway's health, readiness and metrics pages."""


class TcpPort:
    """One port, the stream that its records go to, and its connections."""

    def __init__(self, appender: StreamAppender, listener: socket.socket, gateway: TcpGateway) -> None:
        self.appender = appender
        self.gateway = gateway
        self.connections: set[TcpConnection] = set()
        self._server: asyncio.Server | None = None
        self._starting = gateway.tasks.start(self._start(listener))

    @property
    def is_acking(self) -> bool:
        """Whether confirmed records are answered."""
        return self.appender.spec.tcp is not None and self.appender.spec.tcp.ack

    def use(self, appender: StreamAppender) -> None:
        """Append what comes from now on as a changed document says."""
        self.appender = appender

    async def close(self) -> None:
        """Accept no more, confirm what has arrived whole, answer it, and end the connections."""
        await asyncio.wait((self._starting,))
        if self._server is not None:
            self._server.close()
        self.appender.metrics.is_open.set(0)
        settling = [settled for one in list(self.connections) if (settled := one.finish()) is not None]
        if settling:
            await asyncio.wait(settling)

    async def _start(self, listener: socket.socket) -> None:
        make = partial(TcpConnection, self)
        self._server = await asyncio.get_running_loop().create_server(make, sock=listener, backlog=_BACKLOG)

    def sweep(self, now_s: float) -> None:
        """End the connections with a line that never ends."""
        for one in list(self.connections):
            one.end_if_stuck(now_s)


class TcpConnection(asyncio.Protocol):
    """One sender.

    Invariants:
    - Records are appended in the order in which they came, one batch at a time.
    - A record that arrived whole is appended even if its sender has gone.
    """

    def __init__(self, port: TcpPort) -> None:
        self._port = port
        self._gateway = port.gateway
        self._loop = asyncio.get_running_loop()
        self._splitter = LineSplitter(port.appender.record_bytes_max)
        self._line_began_s: float | None = None
        self._queue: list[Record] = []
        self._bytes_queued = 0
        self._counted = 0
        """Records so far, including the refused ones."""
        self._settling: asyncio.Task[None] | None = None
        self._is_open = False
        self._is_ending = False
        """Nothing more is read; the connection ends when the records that have arrived are confirmed or refused."""
        self._has_sender_closed = False
        """The sender has closed its side."""
        self._is_writable = asyncio.Event()
        self._is_writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._source = f"tcp:{peer[0] if peer else 'unknown'}".encode()
        self._is_open = True
        self._port.connections.add(self)
        if self._gateway.connections > self._gateway.connections_max:
            self._fail("too_many", f"{self._gateway.connections_max} connections are open; try again later")
            return
        one = transport.get_extra_info("socket")
        one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # so a sender that lost its power is noticed some day

    def data_received(self, data: bytes) -> None:
        if not self._is_ending:
            self._take(self._splitter, data)

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
        self._drop_rest()
        self._is_ending = True

    def pause_writing(self) -> None:
        self._is_writable.clear()

    def resume_writing(self) -> None:
        self._is_writable.set()

    def finish(self) -> asyncio.Task[None] | None:
        """Read no more, and end when all that arrived whole is confirmed or refused; then the returned task is done."""
        self._drop_rest()
        self._end()
        return self._settling

    def end_if_stuck(self, now_s: float) -> None:
        """End the connection if its line began too long ago."""
        if self._line_began_s is not None and now_s - self._line_began_s > LINE_TIMEOUT_S:
            self._fail("timeout", f"a line did not end within {LINE_TIMEOUT_S:g} s")

    def _take(self, splitter: LineSplitter, data: bytes) -> None:
        held = splitter.bytes_held
        lines = splitter.split(data)
        if lines:
            self._add(lines)
            self._line_began_s = None
        self._hold(held)
        if splitter.bytes_held and self._line_began_s is None:
            self._line_began_s = self._loop.time()
        elif not splitter.bytes_held:
            self._line_began_s = None

    def _hold(self, before: int) -> None:
        """Update the sum over all connections; end this connection if the sum is too large."""
        self._gateway.bytes_held += self._splitter.bytes_held - before
        if self._gateway.bytes_held > LINES_HELD_BYTES_MAX and self._splitter.bytes_held > before:
            self._fail("log_busy", f"{self._gateway.bytes_held} bytes of unfinished lines are held; try again later")

    def _add(self, lines: list[bytes | None]) -> None:
        """Queue the lines as records, and refuse those that are too long."""
        appender, queue = self._port.appender, self._queue
        find_key = appender.find_key
        for line in lines:
            self._counted += 1
            if line is None:
                appender.refuse("too_large")
                self._answer(
                    b"refused %d too_large the record is over %d bytes\n" % (self._counted, appender.record_bytes_max)
                )
            else:
                queue.append((line, find_key(line)))
                self._bytes_queued += len(line)
        if queue and self._settling is None:
            self._settling = self._gateway.tasks.start(self._settle())
        if self._bytes_queued > BYTES_QUEUED_MAX and self._is_open:
            self._transport.pause_reading()

    async def _settle(self) -> None:
        """Append what is queued, batch after batch, and answer each. End the connection afterwards if it is to end.

        If the log can't confirm, end it, too: the last `ok` tells the sender what is in the log.
        """
        try:
            while self._queue:
                queue = self._queue
                batch, self._queue = queue[:RECORDS_PER_APPEND_MAX], queue[RECORDS_PER_APPEND_MAX:]
                self._bytes_queued -= sum(len(value) for value, _ in batch)
                settled = self._counted - len(self._queue)
                if self._is_open and not self._is_ending and self._bytes_queued <= BYTES_QUEUED_MAX:
                    self._transport.resume_reading()
                await self._port.appender.append(batch, source=self._source, patience_s=BUSY_PATIENCE_S)
                self._answer(b"ok %d\n" % settled)
                await self._is_writable.wait()
        except NOT_CONFIRMED as error:
            self._port.appender.refuse(error.code, len(self._queue))
            self._queue = []
            self._fail(error.code, str(error))
        finally:
            self._settling = None
            if self._is_ending:
                self._hang_up()

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
        else:
            self._transport.write_eof()
            self._transport.resume_reading()
            self._loop.call_later(LINGER_S, self._transport.abort)

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
            self._gateway.bytes_held -= self._splitter.bytes_held
            self._port.appender.metrics.drop("cut", 1)
            self._splitter = LineSplitter(self._port.appender.record_bytes_max)
        self._line_began_s = None


class TcpGateway:
    """All ports and connections of the process."""

    def __init__(self, settings: TcpSettings, resources: GatewayResources) -> None:
        self._settings = settings
        self._resources = resources
        self.tasks = Tasks()
        self._ports = Ports("TCP", settings.port_offset, _port_of, self._open, self._appender, self.tasks)
        self.connections_max = settings.tcp_connections_max
        self.bytes_held = 0
        """Of the unfinished lines of all connections."""

    @property
    def connections(self) -> int:
        """How many are open."""
        return sum(len(port.connections) for port in self._ports)

    def update_streams(self, streams: list[StreamSpec]) -> None:
        """Open, change and close ports as the streams' documents say."""
        self._ports.update(streams)

    async def sweep(self) -> None:
        """End, again and again, the connections with a line that never ends. Until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            for port in self._ports:
                port.sweep(asyncio.get_running_loop().time())

    async def close(self) -> None:
        """Close every port, and return when every line that arrived whole is confirmed or refused."""
        self._ports.close()
        for late in await self.tasks.settle(timeout_s=BUSY_PATIENCE_S + 2):
            late.cancel()

    def _open(self, number: int, appender: StreamAppender) -> TcpPort:
        return TcpPort(appender, listening_socket(self._settings.tcp_host, number, _BACKLOG), self)

    def _appender(self, spec: StreamSpec) -> StreamAppender:
        # A sender that gets no answer can't send again, so the spool may take what the log can't.
        is_acking = spec.tcp is not None and spec.tcp.ack
        return self._resources.appender(spec, may_spool=spec.durability == "spool" or not is_acking)


def _port_of(spec: StreamSpec) -> int | None:
    return spec.tcp.port if spec.tcp is not None else None


async def serve(settings: TcpSettings) -> None:
    """Run a gateway until SIGTERM or SIGINT: then accept no more, confirm and answer what has arrived, return.

    Raises StackError when the port of the health pages is taken, and what opening the ledger raises. Kafka may come later.
    """
    port = settings.tcp_pages_port
    async with open_resources(settings, "tcp", port) as resources, serve_health_pages(settings, port, resources):
        gateway = TcpGateway(settings, resources)
        sweeping = asyncio.create_task(gateway.sweep())
        logger.info("the TCP gateway runs", action="gateway_started", host=settings.tcp_host)
        try:
            await resources.follow_streams(gateway.update_streams)
        finally:
            sweeping.cancel()
            await gateway.close()


if __name__ == "__main__":
    sys.exit(run_gateway(TcpSettings, serve))
