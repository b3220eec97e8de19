"""The UDP gateway: one datagram is one record, or one record a line. It persists records at once and counts every loss.

`python -m strandline.ingest.sockets.udp_gateway` runs one. The streams' documents say which ports: `udp: {port: 8082}`.

UDP has no acknowledgement, so nothing is promised to the sender. The counts are exact:
- `strandline_ingest_received_total`: records that were read from a socket. Each is confirmed, spooled or refused.
- `strandline_ingest_dropped_total{reason="kernel"}`: datagrams that found no room in the socket's buffer.
- `strandline_udp_receive_buffer_errors_total`: the same for the whole machine, as the kernel counts it.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from functools import partial
from pathlib import Path

import structlog
from prometheus_client import Gauge
from pydantic import Field

from strandline.access.exposure import require_closed
from strandline.core.settings import Settings
from strandline.core.stream import StreamSpec
from strandline.ingest.append.outcome import NOT_CONFIRMED
from strandline.ingest.gateway.ports import Ports
from strandline.ingest.gateway.process import GatewayResources, open_resources, run_gateway, serve_health_pages
from strandline.ingest.gateway.stream_appender import StreamAppender
from strandline.ingest.gateway.tasks import Tasks
from strandline.ingest.sockets.datagram_reader import DATAGRAMS_MAX, DatagramReader
from strandline.log.record_key import Record

logger = structlog.get_logger()

READS_PER_TURN = 4
"""From one socket, before other work gets its turn."""
RECORDS_WAITING_MAX = 100_000
"""Of one port. While so many wait for confirmation, further datagrams stay in the socket's buffer."""
_SO_RCVBUFFORCE = 33
"""Linux: as SO_RCVBUF, but may exceed `net.core.rmem_max`; needs CAP_NET_ADMIN. Python has no name for it."""
_SO_MEMINFO = 55
"""Linux 4.12: nine numbers about a socket's memory; the last one counts the datagrams that found no room."""
_MEMINFO = struct.Struct("9I")


class UdpSettings(Settings):
    """The settings, and what only the UDP gateway needs to know."""

    port_offset: int = 0
    """Added to every port that a stream document names."""
    udp_host: str = "127.0.0.1"
    """The address on which the UDP gateway listens."""
    udp_receive_buffer_bytes: int = Field(default=32 * 1024 * 1024, ge=1)
    """Of each socket. Without CAP_NET_ADMIN the kernel gives no more than `net.core.rmem_max`."""
    udp_sockets: int = Field(default=1, ge=1, le=64)
    """Sockets for each port (SO_REUSEPORT); the kernel spreads the senders over them."""
    udp_share_port: bool = False
    """Let other gateway processes listen on the same ports (SO_REUSEPORT); the kernel spreads the senders over them."""
    udp_confirm_timeout_s: float = Field(default=5.0, gt=0)
    """How long the UDP gateway waits for Kafka before it spools. No sender waits for it, and a short wait costs less than
    the spool."""
    udp_pages_port: int = 8085
    """The port of the UDP gateway's health, readiness and metrics pages."""


class UdpPort:
    """One port and the stream that its records go to. `close` it once.

    Invariant: each record that was read goes to exactly one `append` or `refuse` of the appender.
    """

    def __init__(self, appender: StreamAppender, sockets: list[socket.socket], reader: DatagramReader) -> None:
        self.appender = appender
        self._sockets = sockets
        self._drops = dict.fromkeys(sockets, 0)
        """Socket -> how many of the kernel's drops the metrics have."""
        self._loop = asyncio.get_running_loop()
        self._reader = reader
        self._appending = Tasks()
        self._waiting = 0
        """Records in the appends under way."""
        self._is_confirming = True
        self._is_reading = False
        self._resume()

    def count_drops(self) -> None:
        """Add what the kernel dropped to the metrics."""
        for one in self._sockets:
            drops = kernel_drops(one)
            # The kernel's counter has 32 bits and starts again at 0.
            self.appender.metrics.drop("kernel", (drops - self._drops[one]) % 2**32)
            self._drops[one] = drops

    def use(self, appender: StreamAppender) -> None:
        """Append what comes from now on as a changed document says."""
        self.count_drops()
        self.appender = appender

    async def close(self) -> None:
        """Read what has arrived, close the sockets, and wait until all is confirmed or refused."""
        self._pause()
        for one in self._sockets:
            while self._drain(one):
                pass
        self.count_drops()
        self.appender.metrics.is_open.set(0)
        for one in self._sockets:
            one.close()
        await self._appending.settle()

    def _resume(self) -> None:
        self._is_reading = True
        for one in self._sockets:
            self._loop.add_reader(one, partial(self._drain, one))

    def _pause(self) -> None:
        self._is_reading = False
        for one in self._sockets:
            self._loop.remove_reader(one)

    def _drain(self, one: socket.socket) -> bool:
        """Read what has arrived, at most READS_PER_TURN times, and append it. Return whether anything had arrived.

        1. Read the datagrams by sender, which is the source in the records' headers.
        2. Split them into records.
        3. Append each sender's records; only the metrics learn the outcome.
        4. Stop reading while too many records wait.
        """
        has_read = False
        for _ in range(READS_PER_TURN):
            arrived = self._reader.read(one)
            has_read = has_read or bool(arrived)
            for host, datagrams in arrived.items():
                if records := self._records(datagrams):
                    self._waiting += len(records)
                    self._appending.start(self._append(host, records))
            if sum(map(len, arrived.values())) < DATAGRAMS_MAX:
                break
        if self._is_reading and self._waiting >= RECORDS_WAITING_MAX:
            self._pause()
        return has_read

    def _records(self, datagrams: list[bytes]) -> list[Record]:
        """Return the records of some datagrams. Refuse and count those that are empty or too large."""
        appender = self.appender
        values = datagrams
        if appender.spec.udp is not None and appender.spec.udp.framing == "lines":
            values = [
                line.removesuffix(b"\r") for datagram in datagrams for line in datagram.split(b"\n") if line.strip()
            ]
        if any(not 0 < len(value) <= appender.record_bytes_max for value in values):
            appender.refuse("empty", sum(not value for value in values))
            appender.refuse("too_large", sum(len(value) > appender.record_bytes_max for value in values))
            values = [value for value in values if 0 < len(value) <= appender.record_bytes_max]
        find_key = appender.find_key
        return (
            [(value, find_key(value)) for value in values] if appender.spec.key else [(value, None) for value in values]
        )

    async def _append(self, host: str, records: list[Record]) -> None:
        try:
            await self.appender.append(records, source=f"udp:{host}".encode())
            self._is_confirming = True
        except NOT_CONFIRMED as error:  # the appender has counted it; the sender can't be told
            if self._is_confirming:
                logger.error(
                    "records are lost", action="records_lost", stream=self.appender.spec.stream, reason=str(error)
                )
            self._is_confirming = False
        finally:
            self._waiting -= len(records)
            if not self._is_reading and self._waiting <= RECORDS_WAITING_MAX // 2 and self._sockets[0].fileno() >= 0:
                self._resume()


class UdpGateway:
    """All ports of the process."""

    def __init__(self, settings: UdpSettings, resources: GatewayResources) -> None:
        self._settings = settings
        self._tasks = Tasks()
        make_appender = partial(resources.appender, may_spool=True)
        self._ports = Ports("UDP", settings.port_offset, _port_of, self._open, make_appender, self._tasks)
        self._reader = DatagramReader()

    def update_streams(self, streams: list[StreamSpec]) -> None:
        """Open, change and close ports as the streams' documents say."""
        self._ports.update(streams)

    def count_drops(self) -> None:
        """Add what the kernel dropped to the metrics."""
        for port in self._ports:
            port.count_drops()

    async def close(self) -> None:
        """Close every port, and return when all that arrived is confirmed or refused."""
        self._ports.close()
        await self._tasks.settle()

    def _open(self, number: int, appender: StreamAppender) -> UdpPort:
        wanted = self._settings.udp_receive_buffer_bytes
        sockets = open_sockets(self._settings, number)
        given = (
            sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
        )  # the kernel doubles what it was asked for
        if given < wanted:
            logger.warning(
                "the kernel gave a smaller receive buffer; raise net.core.rmem_max",
                action="buffer_limited", port=number, receive_buffer_bytes=given, wanted_bytes=wanted,
            )  # fmt: skip
        return UdpPort(appender, sockets, self._reader)


def _port_of(spec: StreamSpec) -> int | None:
    return spec.udp.port if spec.udp is not None else None


def open_sockets(settings: UdpSettings, port: int) -> list[socket.socket]:
    """The sockets of one port, bound and not blocking. Raises OSError."""
    family = socket.AF_INET6 if ":" in settings.udp_host else socket.AF_INET
    sockets: list[socket.socket] = []
    try:
        for _ in range(settings.udp_sockets):
            one = socket.socket(family, socket.SOCK_DGRAM)
            sockets.append(one)
            one.setblocking(False)
            if settings.udp_share_port or settings.udp_sockets > 1:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            size = settings.udp_receive_buffer_bytes
            try:
                one.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, size)
            except PermissionError:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
            one.bind((settings.udp_host, port))
    except OSError:
        for one in sockets:
            one.close()
        raise
    return sockets


def kernel_drops(one: socket.socket) -> int:
    """How many datagrams found no room in this socket's buffer, modulo 2**32."""
    drops: int = _MEMINFO.unpack(one.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size))[8]
    return drops


def receive_buffer_errors(snmp: str) -> int:
    """`Udp: RcvbufErrors` in the text of /proc/net/snmp: datagrams that found no room in any socket of the machine."""
    names, values = (line.split() for line in snmp.splitlines() if line.startswith("Udp: "))
    return int(values[names.index("RcvbufErrors")])


async def serve(settings: UdpSettings) -> None:
    """Run a gateway until SIGTERM or SIGINT: then close the ports, confirm what has arrived, return.

    Raises InvalidSettings when the ports would be open to strangers, StackError when the port of the health pages is taken, and
    what opening the ledger raises. Kafka may come later.
    """
    require_closed(settings, settings.udp_host, "the UDP gateway", "STRANDLINE_UDP_HOST", asks=False)
    port = settings.udp_pages_port
    opening = open_resources(settings, "udp", port, settings.udp_confirm_timeout_s)
    async with opening as resources, serve_health_pages(settings, port, resources):
        errors = Gauge(
            "strandline_udp_receive_buffer_errors_total",
            "Datagrams that no socket of this machine had room for, as the kernel counts them (RcvbufErrors)",
            registry=resources.metrics.registry,
        )
        errors.set_function(lambda: receive_buffer_errors(Path("/proc/net/snmp").read_text(encoding="ascii")))
        gateway = UdpGateway(settings, resources)
        resources.metrics.refresh_by(gateway.count_drops)
        logger.info("the UDP gateway runs", action="gateway_started", host=settings.udp_host)
        try:
            await resources.follow_streams(gateway.update_streams)
        finally:
            await gateway.close()


if __name__ == "__main__":
    sys.exit(run_gateway(UdpSettings, serve))
