"""What the processes of all gateways without HTTP have in common: the door, the resources, the order of starting and ending."""

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
from typing import TypeVar

import pydantic
import structlog
import uvloop

from strandline.core.errors import InvalidSettings, StrandlineError
from strandline.core.logs import configure_logs
from strandline.core.settings import Settings
from strandline.core.stream import StreamSpec
from strandline.ingest.append.spool import Spool
from strandline.ingest.append.writer import LogWriter
from strandline.ingest.append.writer_identity import WriterIdentity
from strandline.ingest.gateway.health_server import serve_pages
from strandline.ingest.gateway.metrics import IngestMetrics
from strandline.ingest.gateway.stream_follower import StreamFollower, streams_reader
from strandline.ledger.ledger import Ledger

logger = structlog.get_logger()

READY_TIMEOUT_S = 2.0
FILES_BESIDE_CONNECTIONS = 100
S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class GatewayResources:
    """What a gateway works with. They outlive it: what it appended is confirmed before they end."""

    writer: LogWriter
    metrics: IngestMetrics
    stopping: asyncio.Event
    """Set by SIGTERM or SIGINT."""


@asynccontextmanager
async def open_writer(
    settings: Settings, writer_id: str, metrics: IngestMetrics, confirm_timeout_s: float | None = None
) -> AsyncIterator[LogWriter]:
    """A writer of that id, until all that it appended is confirmed. Raises StackError when another process has the id,
    or its spool can't be opened."""
    identity = await asyncio.to_thread(WriterIdentity.take, settings.data_dir, writer_id)
    with contextlib.closing(identity):
        spool = await asyncio.to_thread(Spool, identity.directory, bytes_max=settings.spool_bytes_max)
        metrics.show_spool(spool)
        async with LogWriter(
            settings.kafka_bootstrap,
            writer_id=identity.writer_id,
            epoch=identity.epoch,
            record_bytes_max=settings.record_bytes_max,
            confirm_timeout_s=confirm_timeout_s or settings.confirm_timeout_s,
            spool=spool,
        ) as writer:
            yield writer


@asynccontextmanager
async def open_resources(
    settings: Settings,
    protocol: str,
    pages_port: int,
    confirm_timeout_s: float | None = None,
    refresh: Callable[[], None] | None = None,
) -> AsyncIterator[GatewayResources]:
    """Open the writer and the pages. Raises StackError when a port is taken. Kafka may come later.

    `confirm_timeout_s` is for a gateway whose senders don't wait for an answer as those of HTTP do; `refresh` is called
    before the metrics are shown.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    metrics = IngestMetrics(protocol)
    async with contextlib.AsyncExitStack() as stack:
        # The port of the pages names the process: no other on this machine has it.
        opening = open_writer(settings, f"{protocol}-{socket.gethostname()}-{pages_port}", metrics, confirm_timeout_s)
        writer = await stack.enter_async_context(opening)

        async def check() -> None:
            await writer.check(READY_TIMEOUT_S)

        await stack.enter_async_context(
            serve_pages(settings.http_host, pages_port, metrics.registry, check, refresh or (lambda: None))
        )
        yield GatewayResources(writer, metrics, stopping)
    logger.info("the gateway has stopped", action="gateway_stopped", protocol=protocol)


async def follow_until_stopped(
    settings: Settings, stopping: asyncio.Event, update_streams: Callable[[list[StreamSpec]], None]
) -> None:
    """Give `update_streams` all streams now and every few seconds, until the process is asked to stop.

    Raises what opening the ledger raises, and what `update_streams` raises.
    """
    ledger = await asyncio.to_thread(Ledger.open, settings.ledger_url)
    with contextlib.closing(ledger):
        following = asyncio.create_task(StreamFollower(streams_reader(ledger), update_streams).follow())
        asked = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait((following, asked), return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
        finally:
            asked.cancel()
            following.cancel()
            await asyncio.wait((following,))


def connections_max(setting: str, wanted: int) -> int:
    """How many connections the process may have open, after asking the system for as many files as it allows. `setting`
    names where `wanted` is from."""
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
    """The door of a gateway's process: returns its exit code."""
    try:
        settings = settings_type()
    except pydantic.ValidationError as error:
        print(f"strandline: {InvalidSettings(error)}", file=sys.stderr)
        return 1
    configure_logs(as_json=settings.log_json)

    async def run() -> None:
        await serve(settings)

    # What is there now stays, and records leave no cycles: looking for some among all of it again and again would cost a
    # gateway a sixth of its time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    try:
        uvloop.run(run())
    except StrandlineError as error:
        print(f"strandline: {error}", file=sys.stderr)
        return 1
    return 0
