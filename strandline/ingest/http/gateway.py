"""The HTTP gateway: `POST /v1/streams/{stream}/records`, answered when Kafka has confirmed every record of the request.

`python -m strandline.ingest.http.gateway` runs one.

Contract with senders:

- 200 `{"accepted": n}`: all n records are in the log, with the sender's bytes. `"refused"` lists the records of a batch
  that are too large. They are not in the log, and would be refused again.
- The source and id of a CloudEvent become its record's message id, otherwise the `Idempotency-Key`. In a batch the ids
  are `KEY/0`, `KEY/1`, and so on, by the record's index. The log keeps the id for its readers. A request that is resent
  is appended again.
- 401: it sent no valid token; 403: its token may not write to the stream.
- 503 with the code `log_unavailable`, 500, or a broken connection: unknown. All, some, or none of its records may be in
  the log.
- Any other status: no record of the request is in the log.

To accept another arrangement of records, add its content type (`framing.FORM_OF_CONTENT_TYPE`). To accept another
family of clients, with its own paths and responses, add a dialect (`dialect`).
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog
from prometheus_client import Counter, Gauge

from strandline.access.authenticator import TokensUnavailable
from strandline.access.rights import RequiredRight
from strandline.core.errors import (
    Forbidden,
    FunctionUnusable,
    LedgerUnavailable,
    LogUnavailable,
    NotFound,
    RecordTooLarge,
    StrandlineError,
    Unauthenticated,
)
from strandline.core.record_headers import HEADER_MESSAGE_ID, HEADER_QUERY
from strandline.core.settings import Settings
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.append.outcome import LogAway, LogBusy, SpoolFull
from strandline.ingest.gateway.admission import CHALLENGE, refuse_without_token, require_right
from strandline.ingest.gateway.cloud_events import STRUCTURED_CONTENT_TYPE
from strandline.ingest.gateway.decompression import decompress
from strandline.ingest.gateway.framing import Framed, TooLarge, Unframable, frame
from strandline.ingest.gateway.health_pages import HealthServer
from strandline.ingest.gateway.process import GatewayResources, connections_max, listen, open_resources, run_gateway
from strandline.ingest.gateway.serving.http_request import BodyBudget, Refusal, Request, Response
from strandline.ingest.gateway.serving.http_server import HttpServer
from strandline.ingest.gateway.serving.tls_handshakes import server_tls
from strandline.ingest.gateway.stream_appender import Headers, StreamAppender
from strandline.ingest.http.dialect import Target
from strandline.ingest.http.entry import GATEWAY
from strandline.ingest.http.record_head import RecordHead, read_record_head
from strandline.ingest.http.records_api import PATH_AFTER, PATH_BEFORE
from strandline.ingest.http.request_headers import headers_named_by, with_key_of
from strandline.ingest.http.simple_senders import has_query_as_record, own_answer, plain_form
from strandline.ingest.http.targets import target_of

logger = structlog.get_logger()

BODY_BYTES_HELD_MAX = 64 * 1024 * 1024
"""Maximum size in bytes of all bodies that are arriving or being split into records. Over it, requests are refused with
429."""
BODY_BYTES_IN_LOOP_MAX = 256 * 1024
"""A larger body is decompressed and split into records in a thread, so that other requests don't wait for it."""
BODY_THREADS = 2
"""Number of large bodies that are processed in parallel. The others wait in the order of their arrival."""
STOP_TIMEOUT_BEYOND_CONFIRM_S = 2.0
_STATUS_OF_ERROR: tuple[tuple[type[StrandlineError], int], ...] = (
    (Unframable, 400),
    (Unauthenticated, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (TooLarge, 413),
    (RecordTooLarge, 413),
    (LogAway, 503),
    (SpoolFull, 503),
    (LogBusy, 429),
    (LogUnavailable, 503),
    (LedgerUnavailable, 503),
    (TokensUnavailable, 503),
    (FunctionUnusable, 503),
)
"""The first class that matches is used: LogAway and SpoolFull are kinds of LogBusy, which is a kind of LogUnavailable.
"""
_BEFORE_ALL = (LedgerUnavailable, TokensUnavailable, FunctionUnusable, Unauthenticated, Forbidden)
"""Errors that are raised before any record of a request is persisted."""


class HttpGateway:
    """The application of the HTTP server, for one event loop."""

    def __init__(self, resources: GatewayResources, *, body_bytes_max: int) -> None:
        self._resources = resources
        self._appenders: dict[str, StreamAppender] = {}
        self._body_threads = ThreadPoolExecutor(BODY_THREADS, thread_name_prefix="body")
        self._pages = HealthServer(
            resources.metrics.registry,
            resources.check_log,
            resources.host_names,
            hint=f"; records go to POST {PATH_BEFORE}NAME{PATH_AFTER}",
            authenticator=resources.authenticator,
        )
        self._authenticator = resources.authenticator
        self.budget = BodyBudget(body_bytes_max=body_bytes_max, bytes_held_max=BODY_BYTES_HELD_MAX)
        self._metrics = _Metrics(resources, self.budget)

    def admit(self, request: Request) -> None:
        """Refuse a request that can be refused before its body is read. Raises Refusal."""
        target = target_of(request.url)
        if target is None:
            self._pages.admit(request)
        else:
            self._resources.host_names.check(request)
            if self._authenticator is not None:
                refuse_without_token(self._authenticator, request, target.stream)
            request.head = read_record_head(request, target.dialect, self.budget.body_bytes_max)

    async def answer(self, request: Request) -> Response:
        """Return the answer to a request that is complete, or was refused before that."""
        target = target_of(request.url)
        if target is None:
            return await self._pages.answer(request)
        try:
            framed, spec = await self._append(target, request)
        except Refusal as error:
            refusal = error
        except Exception as error:  # the edge: one request must not affect the others
            refusal = _refusal_of(error)
            if refusal.status == 500:
                logger.error(
                    "request failed", action="request_failed", stream=target.stream, error=repr(error), exc_info=error
                )
        else:
            own = None if framed.refused else own_answer(spec)
            answer = own or target.dialect.accepted(request, framed)
            self._metrics.count(answer.status)
            return answer
        finally:
            request.let_go()
        answer = target.dialect.refused(request, refusal)
        self._metrics.count(answer.status)
        return answer

    def note_disconnected(self, request: Request) -> None:
        """Count a request whose sender disconnected before it was complete. Nothing of it is in the log."""
        if target_of(request.url) is not None:
            self._metrics.requests.labels("disconnected").inc()

    async def _append(self, target: Target, request: Request) -> tuple[Framed, StreamSpec]:
        """Append the records of one request. Return them with their stream. All accepted records of the result are
        confirmed.

        1. Stop if the head or a limit of the body has refused the request already, or if its sender may not write to
           the stream.
        2. Find the stream.
        3. Decompress the body and split it into records, which keep the sender's bytes. Leave out records that are too
           large.
        4. Append them and wait for Kafka's confirmation. A sender that disconnects in the meantime changes nothing.

        Raises Refusal, and the errors in `_STATUS_OF_ERROR`.
        """
        if request.refusal is not None:
            raise request.refusal
        head = request.head
        assert isinstance(head, RecordHead), "admit has read it"
        if self._authenticator is not None and not request.is_admitted:
            await require_right(self._authenticator, request, RequiredRight.WRITE, "append records", target.stream)
        appender = self._appender_of(await self._resources.streams.find(target.stream))
        target.dialect.require_stream(appender.spec)
        is_beside = head.query and not has_query_as_record(head, request.body())
        headers: tuple[tuple[str, bytes], ...] = ((HEADER_QUERY, head.query),) if is_beside else ()
        content_type = None
        if appender.spec.http is not None:
            headers += headers_named_by(appender.spec.http, request)
        if head.event is not None:
            headers, content_type = (*headers, *head.event.attributes), head.event.content_type
        framed = await self._frame(request.body(), head, appender.spec)
        request.let_go()
        if headers:
            framed = with_key_of(appender.spec, headers, framed)
        if framed.refused:
            appender.refuse(TooLarge.code, len(framed.refused))
        message_id, headers_each = _message_ids(head, framed)
        await appender.append(
            framed.records,
            source=request.source,
            message_id=message_id,
            headers=headers,
            headers_each=headers_each,
            content_type=STRUCTURED_CONTENT_TYPE if framed.identities is not None else content_type,
        )
        return framed, appender.spec

    async def _frame(self, body: bytes, head: RecordHead, spec: StreamSpec) -> Framed:
        """Decompress and split small bodies on the event loop, large bodies in a thread.

        Raises Refusal, Unframable, and TooLarge.
        """
        coding, body_bytes_max = head.coding, self.budget.body_bytes_max
        if coding is not None and len(body) <= BODY_BYTES_IN_LOOP_MAX:
            with contextlib.suppress(TooLarge):  # then it is large after decompression
                body, coding = decompress(body, coding, min(body_bytes_max, BODY_BYTES_IN_LOOP_MAX)), None
        is_small = coding is None and len(body) <= BODY_BYTES_IN_LOOP_MAX

        def decompress_and_split() -> Framed:
            plain = body if coding is None else decompress(body, coding, body_bytes_max)
            plain, form = plain_form(head, plain, spec)
            return frame(plain, form, spec.key, self._resources.record_bytes_max, spec.framing)

        if is_small:
            return decompress_and_split()
        return await asyncio.get_running_loop().run_in_executor(self._body_threads, decompress_and_split)

    def _appender_of(self, spec: StreamSpec) -> StreamAppender:
        appender = self._appenders.get(spec.stream)
        if appender is None or appender.spec is not spec:
            appender = self._resources.appender(spec, may_spool=spec.durability == "spool")
            self._appenders[spec.stream] = appender
        return appender


def _message_ids(head: RecordHead, framed: Framed) -> tuple[bytes | None, Sequence[Headers] | None]:
    """Return the message id of all records, or headers with the id of each.

    A CloudEvent's own id takes precedence over the key.
    """
    if head.event is not None and head.event.identity is not None:
        return head.event.identity, None
    if framed.identities is None and (head.message_id is None or not framed.is_batch):
        return head.message_id, None
    ids: Sequence[bytes | None] = [head.message_id] * len(framed.records)
    if framed.is_batch and head.message_id is not None:
        ids = [b"%s/%d" % (head.message_id, index) for index in framed.indexes()]
    if framed.identities is not None:
        ids = [own or given for own, given in zip(framed.identities, ids, strict=True)]
    return None, [() if one is None else ((HEADER_MESSAGE_ID, one),) for one in ids]


def _refusal_of(error: Exception) -> Refusal:
    for kind, status in _STATUS_OF_ERROR:
        if isinstance(error, kind):
            nothing_persisted = "; nothing of this request was persisted" if kind in _BEFORE_ALL else ""
            return Refusal(status, error.code, f"{error}{nothing_persisted}", CHALLENGE if status == 401 else ())
    detail = "an error inside the gateway, whose log has the details; the records may or may not be in the log"
    return Refusal(500, "internal", detail)


class _Metrics:
    """Metrics that only the HTTP gateway has."""

    def __init__(self, resources: GatewayResources, budget: BodyBudget) -> None:
        registry = resources.metrics.registry
        self.requests = Counter(
            "strandline_http_requests",
            "Requests to append records, by the status of the answer, or disconnected: left before the body was read whole",
            ["status"],
            registry=registry,
        )
        self._ok = self.requests.labels("200")
        in_flight = Gauge(
            "strandline_ingest_in_flight_bytes",
            "Records that Kafka has not confirmed yet, with their overhead",
            registry=registry,
        )
        in_flight.set_function(lambda: resources.writer.bytes_in_flight)
        held = Gauge(
            "strandline_http_bodies_held_bytes",
            "Bodies that are arriving or being split into records",
            registry=registry,
        )
        held.set_function(lambda: budget.bytes_held)

    def count(self, status: int) -> None:
        """Count a request by the status of its response."""
        (self._ok if status == 200 else self.requests.labels(str(status))).inc()


def _show_connections(resources: GatewayResources, server: HttpServer) -> None:
    registry = resources.metrics.registry
    connections = Gauge("strandline_http_connections", "Connections that are open", registry=registry)
    connections.set_function(lambda: server.connections)
    evicted = Gauge(
        "strandline_http_connections_evicted",
        "Connections that were closed for a newer one, since the gateway's start",
        registry=registry,
    )
    evicted.set_function(lambda: server.connections_evicted)


async def serve(settings: Settings) -> None:
    """Run a gateway until SIGTERM or SIGINT. Then stop accepting, answer the running requests, and return.

    Raises StackError if the port is in use, and the errors of opening the ledger. Kafka may start later.
    """
    host, port = settings.http_host, settings.http_port
    tls = server_tls(
        settings.http_tls_certificate, settings.http_tls_key, settings.http_tls_client_ca, "STRANDLINE_HTTP_TLS"
    )
    with listen(host, port, "listen", "STRANDLINE_HTTP_PORT") as listener:
        async with open_resources(settings, GATEWAY) as resources:
            server = HttpServer(
                HttpGateway(resources, body_bytes_max=settings.http_body_bytes_max),
                connections_max=connections_max("STRANDLINE_HTTP_CONNECTIONS_MAX", settings.http_connections_max),
                tls=tls,
            )
            _show_connections(resources, server)
            await server.start(listener)
            logger.info("the HTTP gateway listens", action="gateway_started", host=host, port=port, tls=tls is not None)
            try:
                await resources.follow_streams()
            finally:
                await server.stop(settings.confirm_timeout_s + STOP_TIMEOUT_BEYOND_CONFIRM_S)


if __name__ == "__main__":
    sys.exit(run_gateway(Settings, serve))
