"""The HTTP gateway: `POST /v1/streams/{stream}/records`, answered when Kafka has confirmed every record of the request.

`python -m strandline.ingest.http.gateway` runs one.

What a sender may rely on:
- 200 `{"accepted": n}`: all n records are in the log, with the sender's bytes. Records of a batch that could not be taken
  by themselves are named in `"refused"`; they are not in the log, and sending them again can't help.
- An `Idempotency-Key` is the message id of the record; of a batch, `KEY/0`, `KEY/1` and so on by the record's place in it.
  It is kept with the record for those who read the log. Sent again, a request is appended again.
- 503 with the code `log_unavailable`, 500, a connection that broke: unknown. Some, none or all of it may be in the log.
- Anything else: nothing of the request is in the log.

Other formats come in through other content types (`framing.FORM_OF_CONTENT_TYPE`) and paths (`stream_of`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import lru_cache
from urllib.parse import unquote

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, Counter, Gauge, generate_latest

from strandline.core.errors import LedgerUnavailable, LogUnavailable, NotFound, StackError
from strandline.core.record import HEADER_MESSAGE_ID
from strandline.core.settings import Settings
from strandline.core.stream import StreamSpec
from strandline.ingest.append.errors import LogAway, LogBusy, SpoolFull
from strandline.ingest.append.writer import LogWriter
from strandline.ingest.gateway.decompression import decompress
from strandline.ingest.gateway.framing import Framed, TooLarge, Unframable, frame
from strandline.ingest.gateway.metrics import IngestMetrics
from strandline.ingest.gateway.process import READY_TIMEOUT_S, connections_max, open_writer, run_gateway
from strandline.ingest.gateway.stream_appender import StreamAppender
from strandline.ingest.gateway.stream_directory import StreamDirectory, stream_reader
from strandline.ingest.http.connection import BACKLOG, HttpServer
from strandline.ingest.http.request import Answer, BodyRoom, Refusal, Request, problem
from strandline.ledger.ledger import Ledger

logger = structlog.get_logger()

BODY_BYTES_HELD_MAX = 64 * 1024 * 1024
"""Of all bodies that are arriving or being cut into records; over it a request is refused with 429."""
BODY_BYTES_IN_LOOP_MAX = 256 * 1024
"""A larger body is unpacked and cut into records in a thread, so that the others don't wait for it."""
BODY_THREADS = 2
"""So many large bodies at a time; the others wait as they came."""
_PATH_BEFORE, _PATH_AFTER = "/v1/streams/", "/records"
_OK = Answer(200, b'{"status":"ok"}')


class HttpGateway:
    """What requests are handed to, for one event loop. The directory and the writer are the caller's to close."""

    def __init__(
        self,
        directory: StreamDirectory,
        writer: LogWriter,
        metrics: IngestMetrics,
        *,
        body_bytes_max: int,
        record_bytes_max: int,
    ) -> None:
        self._directory = directory
        self._writer = writer
        self._ingest_metrics = metrics
        self._record_bytes_max = record_bytes_max
        self._appenders: dict[str, StreamAppender] = {}
        self._body_threads = ThreadPoolExecutor(BODY_THREADS, thread_name_prefix="body")
        self.room = BodyRoom(body_bytes_max=body_bytes_max, bytes_held_max=BODY_BYTES_HELD_MAX)
        self._metrics = _Metrics(metrics, writer, self.room)

    def admit(self, request: Request) -> None:
        """Refuse what can be refused before a byte of the body is read. Raises Refusal."""
        if stream_of(request.url) is not None:
            request.read_head(self.room.body_bytes_max)

    async def answer(self, request: Request) -> Answer:
        """The answer to a request that is whole, or was refused before that."""
        stream = stream_of(request.url)
        if stream is None:
            return await self._answer_page(request)
        try:
            framed = await self._append(stream, request)
        except Refusal as refusal:
            self._metrics.requests.labels(str(refusal.status)).inc()
            return problem(refusal, path_of(request.url))
        except Exception as error:  # the edge: one request must not take the others with it
            logger.error("request failed", action="request_failed", stream=stream, error=repr(error), exc_info=error)
            self._metrics.requests.labels("500").inc()
            detail = "an error inside the gateway, whose log has the details; the records may or may not be in the log"
            return problem(Refusal(500, "internal", detail), path_of(request.url))
        finally:
            request.let_go()
        self._metrics.requests_accepted.inc()
        if framed.refused:
            refused = [asdict(record) for record in framed.refused]
            return Answer(200, json.dumps({"accepted": len(framed.records), "refused": refused}).encode())
        return Answer(200, b'{"accepted":%d}' % len(framed.records))

    def note_disconnected(self, request: Request) -> None:
        """The sender left before its request was whole: nothing of it is in the log."""
        if stream_of(request.url) is not None:
            self._metrics.requests.labels("disconnected").inc()

    async def _append(self, stream: str, request: Request) -> Framed:
        """Append the records of one request, and return what became of them: those accepted are all confirmed.

        1. Refuse what the head, or the bounds on the body, have already refused.
        2. Find the stream.
        3. Unpack the body and cut it into records, which keep the sender's bytes; those too large stay out.
        4. Append them and wait for Kafka's confirmation. A sender that leaves meanwhile changes nothing.

        Raises Refusal.
        """
        if request.refusal is not None:
            raise request.refusal
        try:
            spec = await self._directory.find(stream)
        except NotFound as error:
            raise Refusal(404, error.code, str(error)) from error
        except LedgerUnavailable as error:
            raise Refusal(503, error.code, f"{error}; nothing of this request was persisted") from error
        appender = self._appender_of(spec)
        try:
            if request.coding is None and request.body_bytes <= BODY_BYTES_IN_LOOP_MAX:
                framed = frame(request.body(), request.form, spec.key, self._record_bytes_max)
            else:
                framed = await self._decompress_and_frame(request, spec.key)
        except Unframable as error:
            raise Refusal(400, error.code, str(error)) from error
        except TooLarge as error:
            raise Refusal(413, error.code, str(error)) from error
        request.let_go()
        if framed.refused:
            appender.refuse(TooLarge.code, len(framed.refused))
        message_id, headers_each = request.message_id, None
        if message_id is not None and framed.is_batch:
            headers_each = [((HEADER_MESSAGE_ID, b"%s/%d" % (message_id, index)),) for index in framed.indexes()]
            message_id = None
        try:
            await appender.append(
                framed.records, source=request.source, message_id=message_id, headers_each=headers_each
            )
        except LogUnavailable as error:
            is_our_own_bound = isinstance(error, LogBusy) and not isinstance(error, LogAway | SpoolFull)
            raise Refusal(429 if is_our_own_bound else 503, error.code, str(error)) from error
        return framed

    async def _decompress_and_frame(self, request: Request, key_field: str | None) -> Framed:
        """In the loop what is small packed and unpacked, else in a thread. Raises Unframable, TooLarge."""
        body, coding, form = request.body(), request.coding, request.form
        body_bytes_max, record_bytes_max = self.room.body_bytes_max, self._record_bytes_max
        if coding is not None and len(body) <= BODY_BYTES_IN_LOOP_MAX:
            with contextlib.suppress(TooLarge):
                small = decompress(body, coding, min(body_bytes_max, BODY_BYTES_IN_LOOP_MAX))
                return frame(small, form, key_field, record_bytes_max)

        def in_thread() -> Framed:
            plain = body if coding is None else decompress(body, coding, body_bytes_max)
            return frame(plain, form, key_field, record_bytes_max)

        return await asyncio.get_running_loop().run_in_executor(self._body_threads, in_thread)

    def _appender_of(self, spec: StreamSpec) -> StreamAppender:
        appender = self._appenders.get(spec.stream)
        if appender is None or appender.spec is not spec:
            may_spool = spec.durability == "spool"
            appender = self._appenders[spec.stream] = StreamAppender(
                spec,
                self._writer,
                self._ingest_metrics,
                may_spool=may_spool,
                record_bytes_max=self._record_bytes_max,
            )
        return appender

    async def _answer_page(self, request: Request) -> Answer:
        """Health, readiness, metrics."""
        path = path_of(request.url)
        try:
            if request.refusal is not None:
                raise request.refusal
            if path not in ("/healthz", "/readyz", "/metrics"):
                detail = f"there is no {path} here; records go to POST {_PATH_BEFORE}NAME{_PATH_AFTER}"
                raise Refusal(404, "not_found", detail)
            if request.method not in (b"GET", b"HEAD"):
                detail = f"{path} takes GET, not {request.method.decode('latin-1')}"
                raise Refusal(405, "method_not_allowed", detail, ((b"allow", b"GET, HEAD"),))
            if path == "/readyz":
                await self._writer.check(READY_TIMEOUT_S)
        except Refusal as refusal:
            return problem(refusal, path)
        except LogUnavailable as error:
            return problem(Refusal(503, error.code, str(error)), path)
        finally:
            request.let_go()
        if path == "/metrics":
            return Answer(200, generate_latest(self._ingest_metrics.registry), CONTENT_TYPE_LATEST.encode())
        return _OK


def path_of(url: bytes) -> str:
    """The path of a request's target, decoded; a proxy may send a whole URL."""
    target = url.decode("latin-1")
    if not target.startswith("/"):
        target = "/" + target.partition("://")[2].partition("/")[2]
    return unquote(target.partition("?")[0], errors="replace")


@lru_cache(maxsize=1_000)
def stream_of(url: bytes) -> str | None:
    """The stream that a request's target names, or None when records don't go there."""
    path = path_of(url)
    stream = path[len(_PATH_BEFORE) : -len(_PATH_AFTER)]
    is_stream = path.startswith(_PATH_BEFORE) and path.endswith(_PATH_AFTER) and stream and "/" not in stream
    return stream if is_stream else None


class _Metrics:
    """What only the HTTP gateway counts."""

    def __init__(self, metrics: IngestMetrics, writer: LogWriter, room: BodyRoom) -> None:
        self.requests = Counter(
            "strandline_http_requests",
            "Requests to append records, by the status of the answer, or disconnected: left before the body was read whole",
            ["status"],
            registry=metrics.registry,
        )
        self.requests_accepted = self.requests.labels("200")
        in_flight = Gauge(
            "strandline_ingest_in_flight_bytes",
            "Records that Kafka has not confirmed yet, with their overhead",
            registry=metrics.registry,
        )
        in_flight.set_function(lambda: writer.bytes_in_flight)
        arriving = Gauge(
            "strandline_http_bodies_held_bytes",
            "Bodies that are arriving or being cut into records",
            registry=metrics.registry,
        )
        arriving.set_function(lambda: room.bytes_held)


def _count_connections(metrics: IngestMetrics, server: HttpServer) -> None:
    connections = Gauge("strandline_http_connections", "Connections that are open", registry=metrics.registry)
    connections.set_function(lambda: server.connections)
    evicted = Gauge(
        "strandline_http_connections_evicted",
        "Connections that were closed for a newer one, since the gateway's start",
        registry=metrics.registry,
    )
    evicted.set_function(lambda: server.connections_evicted)


async def serve(settings: Settings) -> None:
    """Run a gateway until SIGTERM or SIGINT: then stop accepting, answer what is under way, flush, return.

    Raises StackError when the port is taken, and whatever opening the ledger raises. Kafka may come later.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    metrics = IngestMetrics("http")
    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(_listen(settings.http_host, settings.http_port))
        ledger = stack.enter_context(contextlib.closing(await asyncio.to_thread(Ledger.open, settings.ledger_url)))
        directory = stack.enter_context(contextlib.closing(StreamDirectory(stream_reader(ledger))))
        writer = await stack.enter_async_context(
            open_writer(settings, f"http-{socket.gethostname()}-{settings.http_port}", metrics)
        )
        gateway = HttpGateway(
            directory,
            writer,
            metrics,
            body_bytes_max=settings.http_body_bytes_max,
            record_bytes_max=settings.record_bytes_max,
        )
        server = HttpServer(
            gateway, connections_max=connections_max("STRANDLINE_HTTP_CONNECTIONS_MAX", settings.http_connections_max)
        )
        _count_connections(metrics, server)
        await server.start(listener)
        logger.info(
            "the HTTP gateway listens", action="gateway_started", host=settings.http_host, port=settings.http_port
        )
        await stopping.wait()
        await server.stop(settings.confirm_timeout_s + 2)
    logger.info("the HTTP gateway has stopped", action="gateway_stopped")


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise StackError(
            f"the HTTP gateway can't listen on {host}:{port}: {error.strerror}; "
            f"stop what uses that port, or set STRANDLINE_HTTP_PORT"
        ) from error


def main() -> int:
    """The door of the process."""
    return run_gateway(Settings, serve)


if __name__ == "__main__":
    sys.exit(main())
