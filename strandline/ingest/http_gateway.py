"""The HTTP gateway: `POST /v1/streams/{stream}/records`, answered when Kafka has confirmed every record of the request.

`python -m strandline.ingest.http_gateway` runs one. A plain ASGI application, because every record passes here.

What a sender may rely on:
- 200 `{"accepted": n}`: all n records are in the log, with the sender's bytes.
- 503 with the code `log_unavailable`, 500, a connection that broke: unknown. Some, none or all of it may be in the log.
- Anything else: nothing of the request is in the log.

Influx line protocol, CloudEvents and CBOR come in through other paths and content types of this application.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import socket
import sys
import time
from collections.abc import Callable

import pydantic
import structlog
import uvicorn
import uvloop
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from strandline.core.errors import (
    InvalidSettings,
    LedgerUnavailable,
    LogUnavailable,
    NotFound,
    StackError,
    StrandlineError,
)
from strandline.core.logs import configure_logs
from strandline.core.settings import Settings
from strandline.ingest.framing import RECORD_CONTENT_TYPE, Form, Record, TooLarge, Unframable, frame
from strandline.ingest.http_exchange import BodyRoom, Disconnected, Exchange, Receive, Refusal, Scope, Send
from strandline.ingest.stream_directory import StreamDirectory, stream_reader
from strandline.ingest.writer import LogBusy, LogWriter
from strandline.ledger.ledger import Ledger

logger = structlog.get_logger()

BODY_BYTES_HELD_MAX = 64 * 1024 * 1024
"""Of all bodies that are arriving or being cut into records; over it a request is refused with 503."""
BODY_BYTES_IN_LOOP_MAX = 256 * 1024
"""A larger body is cut into records in a thread, so that the others don't wait for it."""
READY_TIMEOUT_S = 2.0
KEEP_ALIVE_S = 75
"""How long an idle connection stays open."""
_BACKLOG = 2_048
_PATH_BEFORE, _PATH_AFTER = "/v1/streams/", "/records"
_JSON = b"application/json"


class HttpGateway:
    """The ASGI application, for one event loop. The directory and the writer are the caller's to close."""

    def __init__(
        self,
        directory: StreamDirectory,
        writer: LogWriter,
        *,
        body_bytes_max: int,
        record_bytes_max: int,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._directory = directory
        self._writer = writer
        self._record_bytes_max = record_bytes_max
        self._clock_ms = clock_ms
        self._room = BodyRoom(body_bytes_max=body_bytes_max, bytes_held_max=BODY_BYTES_HELD_MAX)
        self._metrics = _Metrics(writer, self._room)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        path = exchange.path
        stream = path[len(_PATH_BEFORE) : -len(_PATH_AFTER)]
        if path.startswith(_PATH_BEFORE) and path.endswith(_PATH_AFTER) and stream and "/" not in stream:
            await self._answer_records(stream, exchange)
        else:
            await self._answer_page(exchange)

    async def _answer_records(self, stream: str, exchange: Exchange) -> None:
        try:
            accepted = await self._append(stream, exchange)
        except Refusal as refusal:
            self._metrics.requests.labels(str(refusal.status)).inc()
            await exchange.answer_problem(refusal)
        except Disconnected:
            self._metrics.requests.labels("disconnected").inc()
        except Exception as error:  # the edge: one request must not take the others with it
            logger.error("request failed", action="request_failed", stream=stream, error=repr(error), exc_info=error)
            self._metrics.requests.labels("500").inc()
            detail = "an error inside the gateway, whose log has the details; the records may or may not be in the log"
            await exchange.answer_problem(Refusal(500, "internal", detail))
        else:
            self._metrics.requests_accepted.inc()
            await exchange.answer(200, b'{"accepted":%d}' % accepted, _JSON)

    async def _append(self, stream: str, exchange: Exchange) -> int:
        """Append the records of one request, and return how many: all of them, confirmed.

        1. Refuse what can be refused before a byte of the body is read.
        2. Find the stream.
        3. Read the body, within its bounds, and cut it into records, which keep the sender's bytes.
        4. Append them and wait for Kafka's confirmation. A sender that leaves meanwhile changes nothing.

        Raises Refusal, and Disconnected when the sender left before its body was whole.
        """
        form = exchange.check_head(self._room.body_bytes_max)
        try:
            spec = await self._directory.find(stream)
        except NotFound as error:
            raise Refusal(404, error.code, str(error)) from error
        except LedgerUnavailable as error:
            raise Refusal(503, error.code, f"{error}; nothing of this request was persisted") from error
        records = await self._read_records(exchange, form, spec.key)
        await self._append_records(spec.stream, records, exchange.peer)
        return len(records)

    async def _read_records(self, exchange: Exchange, form: Form, key_field: str | None) -> list[Record]:
        """The body lives no longer than this call; what is in flight afterwards is counted by the writer."""
        chunks: list[bytes] = []
        try:
            await exchange.read_body(chunks, self._room)
            body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            if len(body) <= BODY_BYTES_IN_LOOP_MAX:
                return frame(body, form, key_field, self._record_bytes_max)
            return await asyncio.to_thread(frame, body, form, key_field, self._record_bytes_max)
        except Unframable as error:
            raise Refusal(400, error.code, str(error)) from error
        except TooLarge as error:
            raise Refusal(413, error.code, str(error)) from error
        finally:
            self._room.give_back(chunks)

    async def _append_records(self, topic: str, records: list[Record], peer: str) -> None:
        started_s = time.perf_counter()
        try:
            await self._writer.append(
                topic,
                records,
                received_ms=self._clock_ms(),
                source=b"http:" + peer.encode(),
                content_type=RECORD_CONTENT_TYPE,
            )
        except LogUnavailable as error:
            outcome = self._metrics.refused if isinstance(error, LogBusy) else self._metrics.unknown
            outcome.inc(len(records))
            raise Refusal(503, error.code, str(error)) from error
        self._metrics.ack_latency.observe(time.perf_counter() - started_s)
        self._metrics.accepted.inc(len(records))

    async def _answer_page(self, exchange: Exchange) -> None:
        """Health, readiness, metrics."""
        body, content_type = b'{"status":"ok"}', _JSON
        try:
            if exchange.path not in ("/healthz", "/readyz", "/metrics"):
                detail = f"there is no {exchange.path} here; records go to POST {_PATH_BEFORE}NAME{_PATH_AFTER}"
                raise Refusal(404, "not_found", detail)
            if exchange.method not in ("GET", "HEAD"):
                detail = f"{exchange.path} takes GET, not {exchange.method}"
                raise Refusal(405, "method_not_allowed", detail, [(b"allow", b"GET, HEAD")])
            if exchange.path == "/readyz":
                await self._writer.check(READY_TIMEOUT_S)
            elif exchange.path == "/metrics":
                body, content_type = generate_latest(self._metrics.registry), CONTENT_TYPE_LATEST.encode()
        except Refusal as refusal:
            await exchange.answer_problem(refusal)
        except LogUnavailable as error:
            await exchange.answer_problem(Refusal(503, error.code, str(error)))
        else:
            await exchange.answer(200, body, content_type)


class _Metrics:
    """What the gateway counts, for Prometheus."""

    def __init__(self, writer: LogWriter, room: BodyRoom) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "strandline_http_requests",
            "Requests to append records, by the status of the answer, or disconnected: left before the body was read whole",
            ["status"],
            registry=self.registry,
        )
        self.requests_accepted = self.requests.labels("200")
        records = Counter(
            "strandline_ingest_records",
            "Records by outcome: accepted, refused for want of room, or unknown (not confirmed in time)",
            ["protocol", "outcome"],
            registry=self.registry,
        )
        self.accepted = records.labels("http", "accepted")
        self.refused = records.labels("http", "refused")
        self.unknown = records.labels("http", "unknown")
        self.ack_latency = Histogram(
            "strandline_ingest_ack_latency_seconds",
            "From the whole body to Kafka's confirmation of all its records",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self.registry,
        )
        in_flight = Gauge(
            "strandline_ingest_in_flight_bytes",
            "Records that Kafka has not confirmed yet, with their overhead",
            registry=self.registry,
        )
        in_flight.set_function(lambda: writer.bytes_in_flight)
        arriving = Gauge(
            "strandline_http_bodies_held_bytes",
            "Bodies that are arriving or being cut into records",
            registry=self.registry,
        )
        arriving.set_function(lambda: room.bytes_held)


async def serve(settings: Settings) -> None:
    """Run a gateway until SIGTERM or SIGINT: then stop accepting, answer what is under way, flush, return.

    Raises StackError when the port is taken, and whatever opening the ledger raises. Kafka may come later.
    """
    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(_listen(settings.http_host, settings.http_port))
        ledger = stack.enter_context(contextlib.closing(await asyncio.to_thread(Ledger.open, settings.ledger_url)))
        directory = stack.enter_context(contextlib.closing(StreamDirectory(stream_reader(ledger))))
        writer = await stack.enter_async_context(
            LogWriter(
                settings.kafka_bootstrap,
                writer_id=f"http-{socket.gethostname()}-{settings.http_port}",
                record_bytes_max=settings.record_bytes_max,
                confirm_timeout_s=settings.confirm_timeout_s,
            )
        )
        gateway = HttpGateway(
            directory,
            writer,
            body_bytes_max=settings.http_body_bytes_max,
            record_bytes_max=settings.record_bytes_max,
        )
        config = uvicorn.Config(
            gateway,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # the source in a record's headers is the peer, not what the peer says
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=math.ceil(settings.confirm_timeout_s) + 2,
        )
        server = uvicorn.Server(config)
        # uvicorn raises the signal that stopped it once more, after it has put back the handler it found: this one,
        # so that the process ends with 0 and not by the signal.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, server.handle_exit)
        logger.info(
            "the HTTP gateway listens", action="gateway_started", host=settings.http_host, port=settings.http_port
        )
        await server.serve(sockets=[listener])
    logger.info("the HTTP gateway has stopped", action="gateway_stopped")


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise StackError(
            f"the HTTP gateway can't listen on {host}:{port}: {error.strerror}; "
            f"stop what uses that port, or set STRANDLINE_HTTP_PORT"
        ) from error


def main() -> int:
    """The door of the process."""
    try:
        settings = Settings()
    except pydantic.ValidationError as error:
        print(f"strandline: {InvalidSettings(error)}", file=sys.stderr)
        return 1
    configure_logs(as_json=settings.log_json)
    try:
        uvloop.run(serve(settings))
    except StrandlineError as error:
        print(f"strandline: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
