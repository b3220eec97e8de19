"""The UDP gateway: a datagram is one record, or has one record per line. It persists records immediately and counts
every loss.

`python -m strandline.ingest.udp.gateway` runs one. The streams' documents contain the ports: `udp: {port: 8082}`.

UDP has no acknowledgement, so nothing is promised to the sender. The counts are exact:

- `strandline_ingest_received_total`: records that were read from a socket. Each is confirmed, spooled, or refused.
- `strandline_ingest_dropped_total{reason="kernel"}`: datagrams that did not fit into the socket's buffer.
- `strandline_udp_receive_buffer_errors_total`: the same for the whole machine, as the kernel counts it.

A stream with `udp: {hmac: {}}` accepts only signed datagrams (signed_senders.py), each once, even if the process is
killed: its counter is on disk before its records are appended to the log.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog
from prometheus_client import Gauge

from strandline.access.authenticator import Authenticator
from strandline.access.exposure import require_closed
from strandline.core.record_headers import HEADER_PRINCIPAL
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.append.limits import bytes_of
from strandline.ingest.append.outcome import NOT_CONFIRMED
from strandline.ingest.gateway.ports import Ports
from strandline.ingest.gateway.process import GatewayResources, open_resources, run_gateway, serve_health_pages
from strandline.ingest.gateway.stream_appender import Headers, StreamAppender
from strandline.ingest.gateway.tasks import Tasks
from strandline.ingest.udp.counters import Counters
from strandline.ingest.udp.datagram_reader import DATAGRAMS_MAX, DatagramReader
from strandline.ingest.udp.entry import GATEWAY
from strandline.ingest.udp.records_waiting import RecordsWaiting
from strandline.ingest.udp.settings import UdpSettings
from strandline.ingest.udp.signed_senders import SignedSenders
from strandline.log.record_key import Record

logger = structlog.get_logger()

READS_PER_TURN = 4
"""Number of reads from one socket before other work has its turn."""
_SO_RCVBUFFORCE = 33
"""Linux: as SO_RCVBUF, but may exceed `net.core.rmem_max`; needs CAP_NET_ADMIN. Python has no name for it."""
_SO_MEMINFO = 55
"""Linux 4.12: nine numbers about a socket's memory. The last one counts the datagrams that did not fit."""
_MEMINFO = struct.Struct("9I")


class UdpPort:
    """One port and the stream that receives its records. `close` it once.

    Invariant: each record that was read is passed to exactly one `append` or `refuse` of the appender.
    """

    def __init__(
        self,
        appender: StreamAppender,
        sockets: list[socket.socket],
        reader: DatagramReader,
        senders_of: Callable[[StreamSpec], SignedSenders | None],
        waiting: RecordsWaiting,
    ) -> None:
        """`waiting` is shared by all ports."""
        self.appender = appender
        self._senders_of = senders_of
        self._senders = senders_of(appender.spec)
        """None for a stream that accepts unsigned datagrams."""
        self._sockets = sockets
        self._drops = dict.fromkeys(sockets, 0)
        """Socket -> number of the kernel's drops that the metrics already contain."""
        self._loop = asyncio.get_running_loop()
        self._reader = reader
        self._appending = Tasks()
        self._waiting = waiting
        self._is_confirming = True
        self._is_reading = False
        self._resume()

    def count_drops(self) -> None:
        """Add the kernel's drops to the metrics."""
        for one in self._sockets:
            drops = kernel_drops(one)
            # The kernel's counter has 32 bits and starts again at 0.
            self.appender.metrics.drop("kernel", (drops - self._drops[one]) % 2**32)
            self._drops[one] = drops

    def use(self, appender: StreamAppender) -> None:
        """Append the records that arrive from now on with this appender, made for a changed document."""
        self.count_drops()
        self.appender = appender
        self._senders = self._senders_of(appender.spec)

    async def close(self) -> None:
        """Read the received datagrams, close the sockets, and wait until all are confirmed or refused."""
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
        if self._sockets[0].fileno() < 0:
            return  # the port was closed in the meantime
        self._is_reading = True
        for one in self._sockets:
            self._loop.add_reader(one, partial(self._drain, one))

    def _pause(self) -> None:
        self._is_reading = False
        for one in self._sockets:
            self._loop.remove_reader(one)

    def _drain(self, one: socket.socket) -> bool:
        """Read the received datagrams, at most READS_PER_TURN times, and append them. Return True if there were any.

        1. Stop reading while too many bytes wait for the log: new datagrams stay in the socket's buffer. A port that
           closes continues to read.
        2. Read the datagrams by sender, which is the source in the records' headers.
        3. If they are signed, select the payloads of the valid ones, by principal.
        4. Split them into records.
        5. Append each sender's records. Only the metrics show the outcome.
        """
        has_read = False
        for _ in range(READS_PER_TURN):
            if self._is_reading and self._waiting.is_full:
                self._pause()
                self._waiting.when_there_is_room(self._resume)
                break
            arrived = self._reader.read(one)
            has_read = has_read or bool(arrived)
            for host, datagrams in arrived.items():
                if self._senders is not None:
                    self._take_signed(host, datagrams, self._senders)
                elif records := self._records(datagrams):
                    self._start(host, records)
            if sum(map(len, arrived.values())) < DATAGRAMS_MAX:
                break
        return has_read

    def _take_signed(self, host: str, datagrams: list[bytes], senders: SignedSenders) -> None:
        taken, refused = senders.open(datagrams, host)
        for reason, count in refused.items():
            self.appender.refuse(reason, count)
        for name, payloads in taken.items():
            if records := self._records(payloads):
                self._start(host, records, [(HEADER_PRINCIPAL, name.encode())], senders.counters)

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

    def _start(self, host: str, records: list[Record], headers: Headers = (), counters: Counters | None = None) -> None:
        size = bytes_of(records, headers)
        self._waiting.add(size)
        self._appending.start(self._append(host, records, size, headers, counters))

    async def _append(
        self, host: str, records: list[Record], size: int, headers: Headers, counters: Counters | None
    ) -> None:
        appender = self.appender
        try:
            if counters is not None:
                await counters.saved()
            async with self._waiting.in_writer(size):
                await appender.append(records, source=f"udp:{host}".encode(), headers=headers)
            self._is_confirming = True
        except NOT_CONFIRMED as error:  # the appender has counted it; the sender can't be informed
            if self._is_confirming:
                logger.error("records are lost", action="records_lost", stream=appender.spec.stream, reason=str(error))
            self._is_confirming = False
        finally:
            self._waiting.take_away(size)


class UdpGateway:
    """All ports of the process."""

    def __init__(
        self,
        settings: UdpSettings,
        resources: GatewayResources,
        senders_of: Callable[[StreamSpec], SignedSenders | None],
    ) -> None:
        """`senders_of` returns the allowed senders of a stream with signed datagrams. None for any other stream."""
        self._settings = settings
        self._senders_of = senders_of
        self._tasks = Tasks()
        make_appender = partial(resources.appender, may_spool=True)
        self._ports = Ports("UDP", settings.port_offset, _port_of, self._open, make_appender, self._tasks)
        self._reader = DatagramReader()
        self._waiting = RecordsWaiting()
        self._left_out: set[str] = set()
        """Streams without a port because their datagrams are not signed."""

    def update_streams(self, streams: list[StreamSpec]) -> None:
        """Open, change, and close ports as the streams' documents require."""
        if self._settings.udp_signed_only:
            unsigned = {spec.stream for spec in streams if spec.udp is not None and spec.udp.hmac is None}
            for stream in sorted(unsigned - self._left_out):
                logger.warning(
                    "a stream gets no UDP port: this gateway accepts only signed datagrams (STRANDLINE_UDP_SIGNED_ONLY), and the "
                    "stream's document has no `hmac`",
                    action="port_refused", stream=stream,
                )  # fmt: skip
            self._left_out = unsigned
            streams = [spec for spec in streams if spec.stream not in unsigned]
        self._ports.update(streams)

    def count_drops(self) -> None:
        """Add the kernel's drops to the metrics."""
        for port in self._ports:
            port.count_drops()

    async def close(self) -> None:
        """Close every port, and return when all received datagrams are confirmed or refused."""
        self._ports.close()
        await self._tasks.settle()

    def _open(self, number: int, appender: StreamAppender) -> UdpPort:
        wanted = self._settings.udp_receive_buffer_bytes
        sockets = open_sockets(self._settings, number)
        given = sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2  # the kernel doubles the requested size
        if given < wanted:
            logger.warning(
                "the kernel granted a smaller receive buffer; raise net.core.rmem_max",
                action="buffer_limited", port=number, receive_buffer_bytes=given, wanted_bytes=wanted,
            )  # fmt: skip
        return UdpPort(appender, sockets, self._reader, self._senders_of, self._waiting)


def _port_of(spec: StreamSpec) -> int | None:
    return spec.udp.port if spec.udp is not None else None


def open_sockets(settings: UdpSettings, port: int) -> list[socket.socket]:
    """Return the sockets of one port, bound and not blocking.

    Raises OSError, and OverflowError if there is no such port.
    """
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
    except (OSError, OverflowError):
        for one in sockets:
            one.close()
        raise
    return sockets


def kernel_drops(one: socket.socket) -> int:
    """Return the number of datagrams that did not fit into this socket's buffer, modulo 2**32."""
    drops: int = _MEMINFO.unpack(one.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size))[8]
    return drops


def receive_buffer_errors(snmp: str) -> int:
    """Return `Udp: RcvbufErrors` of /proc/net/snmp: datagrams that did not fit into any socket of the machine."""
    names, values = (line.split() for line in snmp.splitlines() if line.startswith("Udp: "))
    return int(values[names.index("RcvbufErrors")])


async def serve(settings: UdpSettings) -> None:
    """Run a gateway until SIGTERM or SIGINT. Then close the ports, confirm the received records, and return.

    Raises InvalidSettings if the ports would accept unsigned datagrams from other machines, StackError if the port of
    the health endpoints is in use, and the errors of opening the ledger. Kafka may start later.
    """
    if not settings.udp_signed_only:
        way = "accept only signed datagrams (STRANDLINE_UDP_SIGNED_ONLY=true)"
        require_closed(
            settings, settings.udp_host, "the UDP gateway", "STRANDLINE_UDP_HOST", asks=False, way_to_ask=way
        )
    opening = open_resources(settings, GATEWAY, settings.udp_confirm_timeout_s, checks_signatures=True)
    async with opening as resources, serve_health_pages(settings, GATEWAY, resources):
        errors = Gauge(
            "strandline_udp_receive_buffer_errors_total",
            "Datagrams that did not fit into a socket of this machine, as the kernel counts them (RcvbufErrors)",
            registry=resources.metrics.registry,
        )
        errors.set_function(lambda: receive_buffer_errors(Path("/proc/net/snmp").read_text(encoding="ascii")))
        tokens = resources.token_keys
        assert tokens is not None, "checks_signatures was set"
        counters = Counters(resources.directory)
        gateway = UdpGateway(settings, resources, partial(senders_of, tokens=tokens, counters=counters))
        resources.metrics.refresh_by(gateway.count_drops)
        logger.info("the UDP gateway runs", action="gateway_started", host=settings.udp_host)
        await tokens.look()  # before the first port is open, so that first datagrams of known senders aren't refused
        try:
            await resources.follow_streams(gateway.update_streams)
        finally:
            await gateway.close()
            await counters.close()


def senders_of(spec: StreamSpec, tokens: Authenticator, counters: Counters) -> SignedSenders | None:
    """Return the allowed senders of the stream. None if it accepts unsigned datagrams."""
    is_signed = spec.udp is not None and spec.udp.hmac is not None
    return SignedSenders(spec, tokens, counters) if is_signed else None


if __name__ == "__main__":
    sys.exit(run_gateway(UdpSettings, serve))
