"""The HTTP/1.1 server of the gateways: it limits the number, time, and memory of its connections (http_connection.py).

The server reads the clock once a second. So a limit may be exceeded by a second, and a request needs no timer.
"""

from __future__ import annotations

import asyncio
import socket
from email.utils import formatdate

import structlog

from strandline.ingest.gateway.serving.http_connection import Application, HttpConnection
from strandline.ingest.gateway.serving.http_request import SMALL_REQUEST_BYTES
from strandline.ingest.gateway.serving.tls_handshakes import ServerTls, with_tls

logger = structlog.get_logger()

BACKLOG = 2_048
_SWEEP_S = 1.0
_BUDGET_PARTS = 16
"""When the budget is used up, at least this fraction (one part of _BUDGET_PARTS) is released, because finding the slowest
requests takes time."""


class HttpServer:
    """Accepts connections and enforces their limits. For one event loop."""

    def __init__(self, application: Application, *, connections_max: int, tls: ServerTls | None = None) -> None:
        self.application = application
        self._connections_max = connections_max
        self._tls = tls
        self.waiting: dict[HttpConnection, None] = {}
        self.under_way: set[HttpConnection] = set()
        self.is_stopping = False
        self.connections_evicted = 0
        application.budget.reclaim_bytes = self.reclaim_bytes

    async def start(self, listener: socket.socket) -> None:
        self.loop = asyncio.get_running_loop()
        self._is_empty = asyncio.Event()
        self._sweep_each_second()
        self._server = await self.loop.create_server(
            with_tls(self._tls, lambda: HttpConnection(self)), sock=listener, backlog=BACKLOG
        )

    async def stop(self, timeout_s: float) -> None:
        """Accept no more connections, and return when the running requests are answered or the time is up."""
        self.is_stopping = True
        self._server.close()
        for connection in list(self.waiting):
            connection.close_if_idle()
        if self.waiting or self.under_way:
            try:
                await asyncio.wait_for(self._is_empty.wait(), timeout_s)
            except TimeoutError:
                logger.warning("connections were cut", action="connections_cut", connections=self.connections)
        for connection in [*self.waiting, *self.under_way]:
            connection.cut()
        self._sweeping.cancel()

    @property
    def connections(self) -> int:
        return len(self.waiting) + len(self.under_way)

    def enter(self, connection: HttpConnection) -> None:
        """Add a new connection. Over the limit, abort the connection that has waited longest."""
        self.waiting[connection] = None
        if self.connections > self._connections_max:
            self.connections_evicted += 1
            longest = next(iter(self.waiting))
            self.leave(longest)
            longest.cut()

    def leave(self, connection: HttpConnection) -> None:
        self.waiting.pop(connection, None)
        self.under_way.discard(connection)
        if self.is_stopping and not self.waiting and not self.under_way:
            self._is_empty.set()

    def _sweep_each_second(self) -> None:
        self.sweep(self.loop.time())
        self._sweeping = self.loop.call_later(_SWEEP_S, self._sweep_each_second)

    def sweep(self, now_s: float) -> None:
        """Set the time for all connections, and end those that have taken too long."""
        self.now_s = now_s
        self.date_header = b"date: " + formatdate(usegmt=True).encode() + b"\r\n"
        for connection in (*self.waiting, *self.under_way):
            if connection.arriving is not None:
                connection.arriving.note_pace()
            if connection.deadline_s < now_s:
                connection.end_wait()

    def reclaim_bytes(self) -> None:
        """Refuse the slowest requests of the source that buffers the most bytes, large requests first.

        Complete requests stay.
        """
        arriving: dict[bytes, list[HttpConnection]] = {}
        for connection in (*self.waiting, *self.under_way):
            if connection.bytes_arriving:
                arriving.setdefault(connection.source, []).append(connection)
        if not arriving:
            return
        greatest = max(arriving.values(), key=lambda those: sum(one.bytes_arriving for one in those))
        missing = self.application.budget.bytes_held_max // _BUDGET_PARTS
        for connection in sorted(greatest, key=_slowest_first):
            if missing <= 0:
                return
            missing -= connection.bytes_arriving
            connection.refuse_slow()


def _slowest_first(connection: HttpConnection) -> tuple[bool, int]:
    request = connection.arriving
    assert request is not None
    return request.bytes_held <= SMALL_REQUEST_BYTES, request.pace
