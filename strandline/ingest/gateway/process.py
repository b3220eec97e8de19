"""The process of every gateway: read its settings, open its resources, follow the streams, and stop gracefully."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import structlog
import uvloop

from strandline.access.authenticator import Authenticator
from strandline.access.exposure import require_closed
from strandline.access.open_authenticator import open_authenticator, open_token_keys
from strandline.core.errors import InvalidSettings, StackError, StrandlineError
from strandline.core.logs import configure_logs
from strandline.core.settings import Settings
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.append.writer import LogWriter
from strandline.ingest.gateway.contract import Gateway
from strandline.ingest.gateway.health_pages import HealthServer, HostNames
from strandline.ingest.gateway.left_spools import open_writer_disks
from strandline.ingest.gateway.metrics import IngestMetrics
from strandline.ingest.gateway.serving.http_server import BACKLOG, HttpServer
from strandline.ingest.gateway.serving.tls_handshakes import server_tls
from strandline.ingest.gateway.stream_appender import StreamAppender
from strandline.ingest.gateway.streams import Streams
from strandline.ledger.roles import GatewayLedger

logger = structlog.get_logger()

READY_TIMEOUT_S = 2.0
HEALTH_CONNECTIONS_MAX = 64
HEALTH_STOP_TIMEOUT_S = 1.0
FILES_BESIDE_CONNECTIONS = 100
S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class GatewayResources:
    """Resources that a gateway uses. All its appended records are confirmed before they close."""

    writer: LogWriter
    streams: Streams
    metrics: IngestMetrics
    host_names: HostNames
    record_bytes_max: int
    stopping: asyncio.Event
    """Set by SIGTERM or SIGINT."""
    directory: Path = Path()
    """Directory for the files of this process. No other process uses it."""
    authenticator: Authenticator | None = None
    """Authenticates requests. None without authentication: then every sender may use the gateway."""
    token_keys: Authenticator | None = None
    """Knows the keys with which senders sign, if the gateway checks signatures. With authentication it is `authenticator`.
    """

    def appender(self, spec: StreamSpec, *, may_spool: bool) -> StreamAppender:
        """Return an appender for the records of one stream."""
        return StreamAppender(
            spec, self.writer, self.metrics, may_spool=may_spool, record_bytes_max=self.record_bytes_max
        )

    async def check_log(self) -> None:
        """Raises LogUnavailable while Kafka doesn't answer."""
        await self.writer.check(READY_TIMEOUT_S)

    async def follow_streams(self, on_read: Callable[[list[StreamSpec]], None] = lambda _: None) -> None:
        """Call `on_read` with all streams now and every few seconds, until the process is asked to stop.

        Raises the errors of `on_read`.
        """
        following = [asyncio.create_task(self.streams.follow(on_read))]
        if (tokens := self.token_keys or self.authenticator) is not None:
            following.append(asyncio.create_task(tokens.follow()))
        stop_requested = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait((*following, stop_requested), return_when=asyncio.FIRST_COMPLETED)
            for one in following:
                if one.done():
                    one.result()
        finally:
            stop_requested.cancel()
            for one in following:
                one.cancel()
            await asyncio.wait(following)


@asynccontextmanager
async def open_resources(
    settings: Settings,
    gateway: Gateway,
    confirm_timeout_s: float | None = None,
    *,
    checks_signatures: bool = False,
) -> AsyncIterator[GatewayResources]:
    """Open the ledger and the writer. Close them when all appended records are confirmed.

    The id of the writer contains the port of the health endpoints, because no other process on this machine has it.
    Spools that writers of this gateway and port left in the data directory are drained into the log. Kafka may start
    later.

    Args: confirm_timeout_s: For gateways whose senders don't wait for an answer like HTTP clients. None for the
    setting.

    Raises InvalidSettings: The port would be open to other machines without authentication. StackError: Another process
    has the writer's id, or the spool can't be opened. Also raises the errors of opening the ledger.
    """
    require_closed(settings, settings.http_host, gateway.health_port.purpose, "STRANDLINE_HTTP_HOST", asks=True)
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    metrics = IngestMetrics(gateway.name)
    async with contextlib.AsyncExitStack() as stack:
        ledger = stack.enter_context(
            contextlib.closing(await asyncio.to_thread(GatewayLedger.open, settings.ledger_url))
        )
        streams = stack.enter_context(contextlib.closing(Streams.of(ledger, every_s=settings.streams_refresh_s)))
        authenticator = open_authenticator(settings, ledger)
        token_keys = (authenticator or open_token_keys(settings, ledger)) if checks_signatures else None
        if (tokens := token_keys or authenticator) is not None:
            stack.callback(tokens.close)
        disks = await asyncio.to_thread(
            open_writer_disks,
            settings.data_dir,
            gateway.name,
            socket.gethostname(),
            port_of_pages(settings, gateway),
            spool_bytes_max=settings.spool_bytes_max,
        )
        metrics.show_spools([disk.spool for disk in disks])
        writers = []
        for disk in disks:
            stack.enter_context(contextlib.closing(disk.identity))
            writer = LogWriter(
                settings.kafka_bootstrap,
                writer_id=disk.identity.writer_id,
                epoch=disk.identity.epoch,
                record_bytes_max=settings.record_bytes_max,
                confirm_timeout_s=confirm_timeout_s or settings.confirm_timeout_s,
                spool=disk.spool,
            )
            writers.append(await stack.enter_async_context(writer))
        yield GatewayResources(
            writers[0],
            streams,
            metrics,
            HostNames((*settings.gateway_names, settings.http_host, socket.gethostname())),
            settings.record_bytes_max,
            stopping,
            authenticator=authenticator,
            token_keys=token_keys,
            directory=disks[0].identity.directory,
        )
    logger.info("the gateway has stopped", action="gateway_stopped", protocol=gateway.name)


@asynccontextmanager
async def serve_health_pages(settings: Settings, gateway: Gateway, resources: GatewayResources) -> AsyncIterator[None]:
    """Serve the health endpoints of a gateway that doesn't receive records by HTTP.

    Raises StackError if the port is in use, and InvalidSettings for certificates that can't be used.
    """
    tls = server_tls(
        settings.health_tls_certificate, settings.health_tls_key, settings.health_tls_client_ca, "STRANDLINE_HEALTH_TLS"
    )
    listener = listen(settings.http_host, port_of_pages(settings, gateway), "serve its health pages")
    pages = HealthServer(
        resources.metrics.registry, resources.check_log, resources.host_names, authenticator=resources.authenticator
    )
    server = HttpServer(pages, connections_max=HEALTH_CONNECTIONS_MAX, tls=tls)
    await server.start(listener)
    try:
        yield
    finally:
        await server.stop(HEALTH_STOP_TIMEOUT_S)


def port_of_pages(settings: Settings, gateway: Gateway) -> int:
    """Return the port of the gateway's health endpoints."""
    port: int = getattr(settings, gateway.health_port.setting)
    return port


def listen(host: str, port: int, purpose: str, setting: str = "another") -> socket.socket:
    """Return a listening TCP socket. Raises StackError with the purpose and the setting to change."""
    try:
        return listening_socket(host, port, BACKLOG)
    except OSError as error:
        raise StackError(
            f"the gateway can't {purpose} on {host}:{port}: {error.strerror}; stop what uses that port, or set {setting}"
        ) from error


def listening_socket(host: str, port: int, backlog: int) -> socket.socket:
    """Return a listening TCP socket, for IPv6 if the host is an IPv6 address. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=backlog)


def connections_max(setting: str, wanted: int) -> int:
    """Return the maximum number of open connections, after raising the limit of open files as far as the system allows.

    Args: setting: For the warning: name of the setting that `wanted` is from.
    """
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    if files_max == resource.RLIM_INFINITY or wanted + FILES_BESIDE_CONNECTIONS <= files_max:
        return wanted
    allowed = max(1, files_max - FILES_BESIDE_CONNECTIONS)
    logger.warning(
        f"the system allows fewer open files than {setting} needs; raise ulimit -n",
        action="connections_limited",
        connections_max=allowed,
    )
    return allowed


def run_gateway(settings_type: type[S], serve: Callable[[S], Awaitable[None]]) -> int:
    """Run a gateway as the main function of its process. Return the exit code."""
    try:
        settings = settings_type.read()
    except InvalidSettings as error:
        print(f"strandline: {error}", file=sys.stderr)
        return 1
    configure_logs(as_json=settings.log_json)

    async def run() -> None:
        await serve(settings)

    # The existing objects are used until the process ends, and records form no reference cycles. Searching all of them
    # for cycles repeatedly would cost a gateway a sixth of its time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    try:
        uvloop.run(run())
    except StrandlineError as error:
        print(f"strandline: {error}", file=sys.stderr)
        return 1
    return 0
