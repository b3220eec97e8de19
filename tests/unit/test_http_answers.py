"""The answer of the HTTP gateway to each outcome of a request, over a scripted writer and scripted streams."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from backports import zstd

from strandline.core.errors import LedgerUnavailable, LogUnavailable, NotFound, RecordTooLarge, StrandlineError
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.append.outcome import Accepted, LogAway, LogBusy, SpoolFull
from strandline.ingest.gateway.health_pages import HostNames
from strandline.ingest.gateway.metrics import IngestMetrics
from strandline.ingest.gateway.process import GatewayResources
from strandline.ingest.gateway.serving.http_request import Refusal, Request, Response, path_of, problem
from strandline.ingest.http.gateway import HttpGateway
from strandline.ingest.http.targets import target_of
from strandline.log.record_key import Record

SPEC = StreamSpec.from_document({"stream": "readings", "schema": {"n": "long"}})
BODY = b'{"n":1}'
RECORD_BYTES_MAX = 10


class ToldWriter:
    """A writer that ends every append as scripted."""

    bytes_in_flight = 0

    def __init__(self, end: Exception | Accepted = Accepted.LOG) -> None:
        self._end = end
        self.appended: list[tuple[Record, dict[str, Any]]] = []

    async def append(self, topic: str, records: Sequence[Record], **about: Any) -> Accepted:
        self.appended += [(record, about) for record in records]
        if isinstance(self._end, Exception):
            raise self._end
        return self._end


class ToldStreams:
    def __init__(self, end: Exception | StreamSpec = SPEC) -> None:
        self._end = end

    async def find(self, name: str) -> StreamSpec:
        if isinstance(self._end, Exception):
            raise self._end
        return self._end


def stream_of(url: bytes) -> str | None:
    target = target_of(url)
    return None if target is None else target.stream


def answer(
    writer: ToldWriter,
    streams: ToldStreams,
    body: bytes = BODY,
    host_names: tuple[str, ...] = (),
    url: bytes = b"/v1/streams/readings/records",
    **headers: str,
) -> tuple[Response, IngestMetrics]:
    """Return the outcome of a POST of `body`, and what was counted."""

    async def run() -> tuple[Response, IngestMetrics]:
        metrics = IngestMetrics("http")
        resources = GatewayResources(
            writer,  # type: ignore[arg-type]
            streams,  # type: ignore[arg-type]
            metrics,
            HostNames(host_names),
            RECORD_BYTES_MAX,
            asyncio.Event(),
        )
        gateway = HttpGateway(resources, body_bytes_max=1_000)
        request = Request(b"http:192.0.2.1", gateway.budget)
        request.method, request.url = b"POST", url
        request.headers[b"content-type"] = b"application/json"
        request.headers.update({name.replace("_", "-").encode(): value.encode() for name, value in headers.items()})
        try:
            gateway.admit(request)
            request.add(body)
        except Refusal as refusal:
            request.refusal = refusal
        found = await gateway.answer(request)
        assert gateway.budget.bytes_held == 0
        return found, metrics

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("end", "status", "is_to_be_repeated"),
    [
        (LogBusy("too much"), 429, True),
        (LogAway("away"), 503, True),
        (SpoolFull("full"), 503, True),
        (LogUnavailable("not in time"), 503, True),
        (RecordTooLarge("the topic takes less"), 413, False),
        (ValueError("a mistake of ours"), 500, False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_what_the_writer_did_not_take_is_never_200(end: Exception, status: int, is_to_be_repeated: bool) -> None:
    found, metrics = answer(ToldWriter(end), ToldStreams())
    assert found.status == status
    assert json.loads(found.body)["code"] == (end.code if isinstance(end, StrandlineError) else "internal")
    assert (b"retry-after" in dict(found.headers)) is is_to_be_repeated
    counts = metrics.of("readings")
    assert (counts.received.value, counts.confirmed.value) == (1, 0)
    if is_to_be_repeated:
        assert sum(count.value for count in counts.refused.values()) == 1
        assert counts.in_flight.value == 0


def test_senders_that_are_refused_together_are_not_all_called_back_at_once() -> None:
    answers = [problem(Refusal(503, "log_away", "away"), "/") for _ in range(200)]
    assert {dict(one.headers)[b"retry-after"] for one in answers} == {b"1", b"2", b"3"}


@pytest.mark.parametrize("accepted", Accepted)
def test_what_the_writer_took_is_200(accepted: Accepted) -> None:
    writer = ToldWriter(accepted)
    found, metrics = answer(writer, ToldStreams(), idempotency_key="k-1")
    assert found == Response(200, b'{"accepted":1}')
    counts = metrics.of("readings")
    assert counts.confirmed.value == (accepted is Accepted.LOG)
    assert counts.spooled.value == (accepted is Accepted.SPOOL)
    ((record, about),) = writer.appended
    assert record == (BODY, None)
    assert (about["source"], about["message_id"], about["headers_each"]) == (b"http:192.0.2.1", b"k-1", None)


INFLUX = StreamSpec.from_document({"stream": "readings", "schema": {"n": "long"}, "format": "influx"})


@pytest.mark.parametrize("url", [b"/api/v2/write?org=o&bucket=readings&precision=s", b"/write?db=readings&precision=s"])
def test_lines_of_influx_are_written_as_its_clients_expect(url: bytes) -> None:
    writer = ToldWriter()
    found, metrics = answer(writer, ToldStreams(INFLUX), b"w n=1i 1\nw n=2i 2\n", url=url, content_type="text/plain")
    assert found == Response(204, b"")
    assert [record for record, _ in writer.appended] == [(b"w n=1i 1", None), (b"w n=2i 2", None)]
    assert dict(writer.appended[0][1]["headers"]) == {"strandline-query": b"?" + url.partition(b"?")[2]}
    assert metrics.of("readings").confirmed.value == 2
    assert stream_of(url) == "readings"


@pytest.mark.guarantee("G653")
@pytest.mark.parametrize(
    "url", [b"/api/v2/write?bucket=readings", b"/write?db=readings", b"/v1/streams/readings/records"]
)
def test_a_break_in_a_text_of_influx_ends_no_line(url: bytes) -> None:
    writer = ToldWriter()
    body = b'# two\nw n="a\nb"\nw n=1i\n'
    found, _ = answer(writer, ToldStreams(INFLUX), body, url=url, content_type="text/plain")
    assert found.status in (200, 204)
    assert [record for record, _ in writer.appended] == [(b'w n="a\nb"', None), (b"w n=1i", None)]


@pytest.mark.guarantee("G422")
@pytest.mark.parametrize("login", [b"u=me&p=planted", b"u=me&%70=planted", b"p=planted"])
def test_a_login_in_a_query_of_influxdb_1_does_not_go_to_the_log(login: bytes) -> None:
    writer = ToldWriter()
    url = b"/write?db=readings&" + login + b"&precision=s"
    assert answer(writer, ToldStreams(INFLUX), b"w n=1i", url=url)[0].status == 204
    (_, about), *_ = writer.appended
    assert about["headers"] == (("strandline-query", b"?db=readings&precision=s"),)


@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("zstd", zstd.compress)])
@pytest.mark.parametrize("url", [b"/api/v2/write?bucket=readings", b"/write?db=readings"])
def test_packed_lines_of_influx_are_unpacked(url: bytes, coding: str, pack: Callable[[bytes], bytes]) -> None:
    writer = ToldWriter()
    found, _ = answer(writer, ToldStreams(INFLUX), pack(b"w n=1i 1\n"), url=url, content_encoding=coding)
    assert (found.status, [record for record, _ in writer.appended]) == (204, [(b"w n=1i 1", None)])


@pytest.mark.parametrize(
    ("end", "streams", "body", "status", "code", "part"),
    [
        (
            Accepted.LOG,
            INFLUX,
            b"w n=1i\nwww,tag=tag n=2i",
            400,
            "invalid",
            "1 lines were refused, 1 are persisted: line 2: ",
        ),
        (Accepted.LOG, SPEC, b"w n=1i", 400, "invalid", "stream readings has the format json, not influx"),
        (Accepted.LOG, INFLUX, b"", 400, "invalid", "no record"),
        (Accepted.LOG, NotFound("no such stream"), b"w n=1i", 404, "not found", "no such stream"),
        (Accepted.LOG, Refusal(408, "timeout", "not in time"), b"w n=1i", 503, "unavailable", "not in time"),
        (LogAway("away"), INFLUX, b"w n=1i", 503, "unavailable", "away"),
        (LogBusy("too much"), INFLUX, b"w n=1i", 429, "too many requests", "too much"),
    ],
)
def test_what_influx_clients_are_told(end: Any, streams: Any, body: bytes, status: int, code: str, part: str) -> None:
    found, _ = answer(ToldWriter(end), ToldStreams(streams), body, url=b"/api/v2/write?bucket=readings")
    told = json.loads(found.body)
    assert (found.status, told["code"]) == (status, code)
    assert part in told["message"]
    assert told["error"] == told["message"]
    assert (b"retry-after" in dict(found.headers)) is (status in (429, 503))


def test_the_records_of_a_batch_have_its_key_and_their_place() -> None:
    writer = ToldWriter()
    found, metrics = answer(writer, ToldStreams(), b'[1,"12345678901",2]', idempotency_key='"k"')
    assert json.loads(found.body) == {
        "accepted": 2,
        "refused": [{"index": 1, "reason": "too_large", "detail": "it has 13 bytes, the limit is 10"}],
    }
    assert [record for record, _ in writer.appended] == [(b"1", None), (b"2", None)]
    assert writer.appended[0][1]["headers_each"] == [(("message-id", b"k/0"),), (("message-id", b"k/2"),)]
    assert writer.appended[0][1]["message_id"] is None
    counts = metrics.of("readings")
    assert (counts.received.value, counts.confirmed.value, counts.refused["too_large"].value) == (3, 2, 1)


@pytest.mark.parametrize(
    ("streams", "body", "headers", "status"),
    [
        (NotFound("no such stream"), BODY, {}, 404),
        (LedgerUnavailable("away"), BODY, {}, 503),
        (SPEC, b"[", {}, 400),
        (SPEC, b"12345678901", {"content_type": "application/x-ndjson"}, 413),
        (SPEC, b"x" * 1_001, {}, 413),
        (SPEC, BODY, {"content_length": "1001"}, 413),
        (SPEC, BODY, {"content_type": "text/html"}, 415),
        (SPEC, BODY, {"content_encoding": "br"}, 415),
        (SPEC, BODY, {"content_encoding": "gzip"}, 400),
        (SPEC, BODY, {"idempotency_key": "k" * 256}, 400),
    ],
)
def test_what_is_refused_does_not_reach_the_writer(
    streams: Exception | StreamSpec, body: bytes, headers: dict[str, str], status: int
) -> None:
    writer = ToldWriter()
    found, metrics = answer(writer, ToldStreams(streams), body, **headers)
    assert found.status == status
    assert found.content_type == b"application/problem+json"
    assert (b"retry-after" in dict(found.headers)) is (status == 503)
    assert writer.appended == []
    assert metrics.of("readings").confirmed.value == 0


@pytest.mark.parametrize(
    ("url", "stream"),
    [
        (b"/v1/streams/a/records", "a"),
        (b"/v1/streams/a/records?x=/y", "a"),
        (b"http://gateway:8081/v1/streams/a/records", "a"),
        (b"/v1/streams/%61/records", "a"),
        (b"/v1/streams/a%2Fb/records", None),
        (b"/v1/streams//records", None),
        (b"/v1/streams/records", None),
        (b"/v1/streams/a/records/", None),
        (b"/", None),
        (b"*", None),
        (b"\xff", None),
    ],
)
def test_the_target_names_the_stream(url: bytes, stream: str | None) -> None:
    assert stream_of(url) == stream
    assert path_of(url).startswith("/")


@pytest.mark.guarantee(
    "G163",
    "No web page can send records. The HTTP gateway accepts requests only for an IP address or its own name, and from "
    "no page of another service. The TCP gateway closes the connection of an HTTP request. `/healthz` and `/readyz` "
    "answer under any name.",
    promise="each-operation-requires-its-right",
)
@pytest.mark.parametrize(
    ("names", "host", "status"),
    [
        ((), "anything.example", 421),
        ((), "192.0.2.7:8081", 200),
        ((), "[2001:db8::7]:8081", 200),
        ((), "", 200),
        (("*",), "anything.example", 200),
        (("gateway.example",), "x" * 30_000, 421),
        (("gateway.example",), "gateway.example:8081", 200),
        (("gateway.example",), "127.0.0.1:8081", 200),
        (("gateway.example",), "rebound.example", 421),
    ],
)
def test_records_are_taken_under_the_names_of_the_gateway(names: tuple[str, ...], host: str, status: int) -> None:
    writer = ToldWriter()
    found, _ = answer(writer, ToldStreams(), host_names=names, host=host)
    assert found.status == status
    assert len(writer.appended) == (status == 200)


@pytest.mark.guarantee("G163")
@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost:8081", "http://localhost:8081", 200),
        ("localhost:8081", "http://LOCALHOST:8081", 200),
        ("localhost:8081", "http://evil.example", 403),
        ("192.0.2.7:8081", "http://192.0.2.7", 403),
        ("192.0.2.7:8081", "null", 403),
        ("192.0.2.7:8081", "http://[", 403),
        ("evil.example:8081", "http://evil.example:8081", 421),
    ],
)
def test_a_web_page_of_another_name_posts_no_records(host: str, origin: str, status: int) -> None:
    writer = ToldWriter()
    found, _ = answer(writer, ToldStreams(), host=host, origin=origin)
    assert found.status == status
    assert len(writer.appended) == (status == 200)
