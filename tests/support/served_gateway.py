"""The real HTTP gateway on a free port of this process, with a writer that keeps its records in memory."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from strandline.access.authenticator import Authenticator
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.append.outcome import Accepted
from strandline.ingest.gateway.health_pages import HostNames
from strandline.ingest.gateway.metrics import IngestMetrics
from strandline.ingest.gateway.process import GatewayResources
from strandline.ingest.gateway.serving.http_server import HttpServer
from strandline.ingest.http.gateway import HttpGateway
from strandline.ledger.ledger import Ledger
from strandline.log.record_key import Record
from tests.support.waiting import stretched


class KeptRecords:
    """A writer whose records are in `values`. If `end` is set, each append raises it."""

    bytes_in_flight = 0

    def __init__(self) -> None:
        self.values: list[tuple[str, bytes]] = []
        """Stream and payload of each record."""
        self.end: Exception | None = None

    async def append(self, topic: str, records: Sequence[Record], **about: Any) -> Accepted:
        if self.end is not None:
            raise self.end
        self.values += [(topic, value) for value, _ in records]
        return Accepted.LOG


class LedgerStreams:
    """The registered streams of a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def find(self, name: str) -> StreamSpec:
        return StreamSpec.from_document(self._ledger.stream(name).document)


@contextmanager
def served_gateway(ledger: Ledger, *, tokens: bool = False) -> Iterator[tuple[str, KeptRecords]]:
    """Yield the address of a gateway for the streams of this ledger, and its records. `tokens`: it requires them."""
    kept, ending, started = KeptRecords(), threading.Event(), threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    async def run() -> None:
        authenticator = Authenticator(ledger, look_s=1, kept_s=60) if tokens else None
        resources = GatewayResources(
            kept,  # type: ignore[arg-type]
            LedgerStreams(ledger),  # type: ignore[arg-type]
            IngestMetrics("http"),
            HostNames(),
            1_000_000,
            asyncio.Event(),
            authenticator=authenticator,
        )
        server = HttpServer(HttpGateway(resources, body_bytes_max=2_000_000), connections_max=10)
        await server.start(listener)
        started.set()
        await asyncio.to_thread(ending.wait)
        await server.stop(1.0)
        if authenticator is not None:
            authenticator.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert started.wait(stretched(10)), "the gateway listens"
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", kept
    finally:
        ending.set()
        thread.join()
