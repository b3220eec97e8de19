"""The process: one record a line. `ok N` says that every line up to the Nth of the connection is in the log.

If the log can't confirm, `error CODE sentence` ends the connection: some of the lines after the last `ok` may be in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys

from acme_gateway.entry import GATEWAY
from acme_gateway.settings import AcmeSettings
from strandline.access.exposure import require_closed
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.append.outcome import NOT_CONFIRMED
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

_READ_BYTES = 65_536
_PATIENCE_S = 2.0


class AcmePort:
    """One port, and the stream that its lines go to."""

    def __init__(self, appender: StreamAppender, listener: socket.socket, tasks: Tasks) -> None:
        self.appender = appender
        self._readers: dict[asyncio.StreamReader, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None
        self._starting = tasks.start(self._start(listener))

    def use(self, appender: StreamAppender) -> None:
        """Append the next lines as a changed document says."""
        self.appender = appender

    async def close(self) -> None:
        """Accept no connections, confirm the lines that have arrived, and end the connections."""
        await asyncio.wait((self._starting,))
        if self._server is not None:
            self._server.close()
        self.appender.metrics.is_open.set(0)
        serving = list(self._readers.values())
        for reader in self._readers:
            reader.feed_eof()
        if serving:
            await asyncio.wait(serving)

    async def _start(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._serve, sock=listener)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._readers[reader] = task
        source = f"acme:{writer.get_extra_info('peername')[0]}".encode()
        try:
            await self._append_lines(reader, writer, source)
        except NOT_CONFIRMED as error:
            writer.write(f"error {error.code} {error}\n".encode())
        except OSError:
            pass  # the sender has left
        finally:
            del self._readers[reader]
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _append_lines(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: bytes) -> None:
        count, rest = 0, b""
        while data := await reader.read(_READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            appender = self.appender
            count += len(lines)
            if any(len(line) > appender.record_bytes_max for line in (*lines, rest)):
                appender.refuse("too_large", len(lines) + 1)
                writer.write(b"error too_large a line is longer than a record may be\n")
                return
            if records := [(line, appender.find_key(line)) for line in lines if line]:
                await appender.append(records, source=source, patience_s=_PATIENCE_S)
            if lines:
                writer.write(b"ok %d\n" % count)
                await writer.drain()


async def serve(settings: AcmeSettings) -> None:
    """Run the gateway until SIGTERM or SIGINT."""
    require_closed(settings, settings.acme_host, GATEWAY.title, "STRANDLINE_ACME_HOST", asks=False)
    tasks = Tasks()
    async with (
        open_resources(settings, GATEWAY) as resources,
        serve_health_pages(settings, GATEWAY, resources),
    ):
        ports = Ports(
            GATEWAY.name,
            settings.port_offset,
            _port_of,
            lambda number, appender: AcmePort(appender, listening_socket(settings.acme_host, number, 100), tasks),
            lambda spec: _appender(resources, spec),
            tasks,
        )
        try:
            await resources.follow_streams(ports.update)
        finally:
            ports.close()
            await tasks.settle()


def _port_of(spec: StreamSpec) -> int | None:
    section = GATEWAY.section(spec)
    return None if section is None else section.port


def _appender(resources: GatewayResources, spec: StreamSpec) -> StreamAppender:
    return resources.appender(spec, may_spool=spec.durability == "spool")


if __name__ == "__main__":
    sys.exit(run_gateway(AcmeSettings, serve))
