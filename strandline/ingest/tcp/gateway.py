"""The TCP gateway: one record per line. If the stream requires it, the gateway answers when records are confirmed.

`python -m strandline.ingest.tcp.gateway` runs one. The streams' documents contain the ports: `tcp: {port: 8083, ack:
true}`.

Contract with senders, with `ack: true`. Records are counted from 1 on each connection; blank lines don't count:

- `ok N`: every record up to the Nth is in the log, except refused records.
- `refused N CODE MESSAGE`: the Nth record is not in the log and never will be; later records are still accepted. It is
  sent before the `ok` that counts it.
- `error CODE MESSAGE`, and the connection ends. All, some, or none of the records after the last `ok` may be in the
  log.

Without `ack`, no answer is sent. If the gateway ends such a connection, the last records may be lost. While the log is
busy, the gateway waits and does not read the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from functools import partial

import structlog

from strandline.access.exposure import require_closed
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.gateway.ports import Ports
from strandline.ingest.gateway.process import (
    GatewayResources,
    connections_max,
    listening_socket,
    open_resources,
    run_gateway,
    serve_health_pages,
)
from strandline.ingest.gateway.serving.tls_handshakes import ServerTls, server_tls, with_tls
from strandline.ingest.gateway.stream_appender import StreamAppender
from strandline.ingest.tcp.connection import BUSY_PATIENCE_S, ConnectionBudget, TcpConnection
from strandline.ingest.tcp.entry import GATEWAY
from strandline.ingest.tcp.settings import TcpSettings

logger = structlog.get_logger()

SWEEP_EVERY_S = 5.0
_BACKLOG = 2_048


class TcpPort:
    """One port, the stream that receives its records, and its connections."""

    def __init__(
        self, appender: StreamAppender, listener: socket.socket, budget: ConnectionBudget, tls: ServerTls | None
    ) -> None:
        self.appender = appender
        self._budget = budget
        self._tls = tls
        self.connections: set[TcpConnection] = set()
        self._server: asyncio.Server | None = None
        self._starting = budget.tasks.start(self._start(listener))

    @property
    def is_acking(self) -> bool:
        """True if confirmed records are answered."""
        return self.appender.spec.tcp is not None and self.appender.spec.tcp.ack

    def use(self, appender: StreamAppender) -> None:
        """Append the records that arrive from now on with this appender, made for a changed document."""
        self.appender = appender

    async def close(self) -> None:
        """Accept no more connections, confirm and answer all complete records, and end the connections."""
        await asyncio.wait((self._starting,))
        if self._server is not None:
            self._server.close()
        self.appender.metrics.is_open.set(0)
        settling = [settled for one in list(self.connections) if (settled := one.finish()) is not None]
        if settling:
            await asyncio.wait(settling)

    async def _start(self, listener: socket.socket) -> None:
        make = with_tls(self._tls, partial(TcpConnection, self, self._budget))
        self._server = await asyncio.get_running_loop().create_server(make, sock=listener, backlog=_BACKLOG)


class TcpGateway:
    """All ports and connections of the process."""

    def __init__(self, settings: TcpSettings, resources: GatewayResources) -> None:
        self._settings = settings
        self._resources = resources
        self._tls = server_tls(
            settings.tcp_tls_certificate, settings.tcp_tls_key, settings.tcp_tls_client_ca, "STRANDLINE_TCP_TLS"
        )
        allowed = connections_max("STRANDLINE_TCP_CONNECTIONS_MAX", settings.tcp_connections_max)
        self.budget = ConnectionBudget(connections_max=allowed, idle_s=settings.tcp_idle_s)
        self._ports = Ports("TCP", settings.port_offset, _port_of, self._open, self._appender, self.budget.tasks)

    def update_streams(self, streams: list[StreamSpec]) -> None:
        """Open, change, and close ports as the streams' documents require."""
        self._ports.update(streams)

    async def sweep(self) -> None:
        """End stuck connections periodically, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            for one in list(self.budget.connections):
                try:
                    one.end_if_stuck(asyncio.get_running_loop().time())
                except Exception:  # the edge: one connection must not end the check of the others
                    logger.exception("a stuck TCP connection could not be ended", action="sweep_failed")
                    one.abort()

    async def close(self) -> None:
        """Close every port, and return when every complete line is confirmed or refused."""
        self._ports.close()
        for late in await self.budget.tasks.settle(timeout_s=BUSY_PATIENCE_S + 2):
            late.cancel()

    def _open(self, number: int, appender: StreamAppender) -> TcpPort:
        return TcpPort(appender, listening_socket(self._settings.tcp_host, number, _BACKLOG), self.budget, self._tls)

    def _appender(self, spec: StreamSpec) -> StreamAppender:
        # A sender that gets no answer can't resend, so records that the log can't accept may go to the spool.
        is_acking = spec.tcp is not None and spec.tcp.ack
        return self._resources.appender(spec, may_spool=spec.durability == "spool" or not is_acking)


def _port_of(spec: StreamSpec) -> int | None:
    return spec.tcp.port if spec.tcp is not None else None


async def serve(settings: TcpSettings) -> None:
    """Run a gateway until SIGTERM or SIGINT. Then accept no more, confirm and answer the received records, and return.

    Raises InvalidSettings if the ports would accept unauthenticated senders from other machines, StackError if the port
    of the health endpoints is in use, and the errors of opening the ledger. Kafka may start later.
    """
    if settings.tcp_tls_client_ca is None:
        way = "request client certificates (STRANDLINE_TCP_TLS_CERTIFICATE and STRANDLINE_TCP_TLS_CLIENT_CA)"
        require_closed(
            settings, settings.tcp_host, "the TCP gateway", "STRANDLINE_TCP_HOST", asks=False, way_to_ask=way
        )
    async with open_resources(settings, GATEWAY) as resources, serve_health_pages(settings, GATEWAY, resources):
        gateway = TcpGateway(settings, resources)
        sweeping = asyncio.create_task(gateway.sweep())
        sweeping.add_done_callback(lambda _: resources.stopping.set())
        logger.info("the TCP gateway runs", action="gateway_started", host=settings.tcp_host)
        try:
            await resources.follow_streams(gateway.update_streams)
        finally:
            sweeping.cancel()
            await gateway.close()
            with contextlib.suppress(asyncio.CancelledError):
                await sweeping  # raises the error that ended it, if it wasn't cancelled


if __name__ == "__main__":
    sys.exit(run_gateway(TcpSettings, serve))
