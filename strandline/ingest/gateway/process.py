"""What every gateway process does: read its settings, open its resources, follow the streams, and stop in order."""

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

from strandline.access.doorkeeper import Doorkeeper
from strandline.access.doors import open_doorkeeper, open_token_keys
from strandline.access.exposure import require_closed
from strandline.core.errors import InvalidSettings, StackError, StrandlineError
from strandline.core.logs import configure_logs
from strandline.core.settings import Settings
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.append.writer import LogWriter
from strandline.ingest.gateway.contract import Gateway
from strandline.ingest.gateway.health_pages import HealthPages, HostNames
from strandline.ingest.gateway.left_spools import open_writer_disks
from strandline.ingest.gateway.metrics import IngestMetrics
from strandline.ingest.gateway.serving.http_server import BACKLOG, HttpServer
from strandline.ingest.gateway.serving.tls_door import server_tls
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
    """What a gateway works with. They outlive it: what it appended is confirmed before they close."""

    writer: LogWriter
    streams: Streams
    metrics: IngestMetrics
    host_names: HostNames
    record_bytes_max: int
    stopping: asyncio.Event
    """Set by SIGTERM or SIGINT."""
    directory: Path = Path()
    """Where this process may keep files of its own; no other process uses it."""
    doorkeeper: Doorkeeper | None = None
    """Tells who sends a request; None without authentication: then every sender may use the gateway."""
    token_keys: Doorkeeper | None = None
    """Knows the keys by which senders sign, where the gateway checks signatures; with authentication it is the doorkeeper."""

    def appender(self, spec: StreamSpec, *, may_spool: bool) -> StreamAppender:
        """A way into the log for the records of one stream."""
        return StreamAppender(
            spec, self.writer, self.metrics, may_spool=may_spool, record_bytes_max=self.record_bytes_max
        )

    async def check_log(self) -> None:
        """Raises LogUnavailable while Kafka does not answer."""
        await self.writer.check(READY_TIMEOUT_S)

    async def follow_streams(self, on_read: Callable[[list[StreamSpec]], None] = lambda _: None) -> None:
        """Give `on_read` all streams now and every few seconds, until the process is asked to stop. Raises what it raises."""
        following = [asyncio.create_task(self.streams.follow(on_read))]
        if (tokens := self.token_keys or self.doorkeeper) is not None:
            following.append(asyncio.create_task(tokens.follow()))
        asked = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait((*following, asked), return_when=asyncio.FIRST_COMPLETED)
            for one in following:
                if one.done():
                    one.result()
        finally:
            asked.cancel()
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
    """Open the ledger and the writer; close them when all that was appended is confirmed.

    The port of the health pages is in the id of the writer, because no other process on this machine has it. Spools that writers
    of this gateway and port left in the data directory are emptied into the log.
    `confirm_timeout_s` is for gateways whose senders don't wait for an answer as those of HTTP do.

    Raises InvalidSettings when the port would be open to strangers, what opening the ledger raises, and StackError when another
    process has the writer's id or the spool can't be opened. Kafka may come later.
    """
    require_closed(settings, settings.http_host, gateway.pages_port.purpose, "STRANDLINE_HTTP_HOST", asks=True)
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    metrics = IngestMetrics(gateway.name)
    async with contextlib.AsyncExitStack() as stack:
        ledger = stack.enter_context(
            contextlib.closing(await asyncio.to_thread(GatewayLedger.open, settings.ledger_url))
        )
        streams = stack.enter_context(contextlib.closing(Streams.of(ledger, every_s=settings.streams_look_s)))
        doorkeeper = open_doorkeeper(settings, ledger)
        token_keys = (doorkeeper or open_token_keys(settings, ledger)) if checks_signatures else None
        if (tokens := token_keys or doorkeeper) is not None:
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
            doorkeeper=doorkeeper,
            token_keys=token_keys,
            directory=disks[0].identity.directory,
        )
    logger.info("the gateway has stopped", action="gateway_stopped", protocol=gateway.name)


@asynccontextmanager
async def serve_health_pages(settings: Settings, gateway: Gateway, resources: GatewayResources) -> AsyncIterator[None]:
    """Serve the health pages of a gateway that takes no records by HTTP. Raises StackError when the port is taken, and
    InvalidSettings for certificates that can't be used."""
    tls = server_tls(
        settings.pages_tls_certificate, settings.pages_tls_key, settings.pages_tls_client_ca, "STRANDLINE_PAGES_TLS"
    )
    listener = listen(settings.http_host, port_of_pages(settings, gateway), "serve its health pages")
    pages = HealthPages(
        resources.metrics.registry, resources.check_log, resources.host_names, doorkeeper=resources.doorkeeper
    )
    server = HttpServer(pages, connections_max=HEALTH_CONNECTIONS_MAX, tls=tls)
    await server.start(listener)
    try:
        yield
    finally:
        await server.stop(HEALTH_STOP_TIMEOUT_S)


def port_of_pages(settings: Settings, gateway: Gateway) -> int:
    """Return the port on which the gateway serves its health pages."""
    port: int = getattr(settings, gateway.pages_port.setting)
    return port


def listen(host: str, port: int, purpose: str, setting: str = "another") -> socket.socket:
    """A TCP socket that listens there. Raises StackError, which says what can't be done and names the setting."""
    try:
        return listening_socket(host, port, BACKLOG)
    except OSError as error:
        raise StackError(
            f"the gateway can't {purpose} on {host}:{port}: {error.strerror}; stop what uses that port, or set {setting}"
        ) from error


def listening_socket(host: str, port: int, backlog: int) -> socket.socket:
    """A TCP socket that listens there, on IPv6 if the host is an IPv6 address. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=backlog)


def connections_max(setting: str, wanted: int) -> int:
    """How many connections the process may have open, after asking the system for as many files as it allows. `setting`
    is the name of the setting that `wanted` is from."""
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    if files_max == resource.RLIM_INFINITY or wanted + FILES_BESIDE_CONNECTIONS <= files_max:
        return wanted
    allowed = max(1, files_max - FILES_BESIDE_CONNECTIONS)
    logger.warning(
        f"fewer open files are allowed than {setting} asks for; raise ulimit -n",
        action="connections_limited",
        connections_max=allowed,
    )
    return allowed


def run_gateway(settings_type: type[S], serve: Callable[[S], Awaitable[None]]) -> int:
    """The main function of a gateway's process: returns its exit code."""
    try:
        settings = settings_type.read()
    except InvalidSettings as error:
        print(f"strandline: {error}", file=sys.stderr)
        return 1
    configure_logs(as_json=settings.log_json)

    async def run() -> None:
        await serve(settings)

    # What exists now lives as long as the process, and records form no reference cycles. Searching all of it for cycles
    # again and again would cost a gateway a sixth of its time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    try:
        uvloop.run(run())
    except StrandlineError as error:
        print(f"strandline: {error}", file=sys.stderr)
        return 1
    return 0
