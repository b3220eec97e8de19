"""Requests of devices that can't be configured: forms, queries, and bodies without a content type."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from strandline.core.errors import InvalidDocument
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.append.outcome import LogAway
from strandline.ingest.gateway.health_pages import HostNames
from strandline.ingest.gateway.metrics import IngestMetrics
from strandline.ingest.gateway.process import GatewayResources
from strandline.ingest.gateway.serving.http_request import Refusal, Request, Response
from strandline.ingest.http.gateway import HttpGateway
from tests.unit.test_http_answers import ToldStreams, ToldWriter
from tests.unit.test_record_rows import read

# Payloads as Ecowitt's, Weather Underground's and OsmAnd's documentation have them.
ECOWITT = b"PASSKEY=00&stationtype=WS1&dateutc=2026-11-28+06%3A10%3A11&tempf=47.8&humidity=91"
WUNDERGROUND = b"ID=KX1&PASSWORD=p&dateutc=2026-01-01+10%3A32%3A35&winddir=230&tempf=70&action=updateraw"
OSMAND = b"id=123456&lat=50.1&lon=10.1&timestamp=1793534400&hdop=3&altitude=350&speed=0"


def send(
    body: bytes = b"",
    *,
    method: bytes = b"POST",
    query: bytes = b"",
    content_type: bytes | None = None,
    writer: ToldWriter | None = None,
    **http: Any,
) -> tuple[Response, list[bytes], dict[str, Any]]:
    """The response, the records that were appended, and what was appended with them."""
    writer = writer or ToldWriter()
    spec = StreamSpec.from_document({"stream": "readings", "schema": {"n": "long"}, **({"http": http} if http else {})})

    async def run() -> Response:
        resources = GatewayResources(
            writer, ToldStreams(spec), IngestMetrics("http"), HostNames(()), 10_000, asyncio.Event()  # type: ignore[arg-type]
        )  # fmt: skip
        gateway = HttpGateway(resources, body_bytes_max=10_000)
        request = Request(b"http:192.0.2.1", gateway.budget)
        request.method = method
        request.url = b"/v1/streams/readings/records" + (b"?" + query if query else b"")
        if content_type is not None:
            request.headers[b"content-type"] = content_type
        try:
            gateway.admit(request)
            request.add(body)
        except Refusal as refusal:
            request.refusal = refusal
        return await gateway.answer(request)

    found = asyncio.run(run())
    about = writer.appended[-1][1] if writer.appended else {}
    return found, [value for (value, _), _ in writer.appended], about


FORM = b"application/x-www-form-urlencoded"


@pytest.mark.parametrize("text", [ECOWITT, WUNDERGROUND, OSMAND])
@pytest.mark.parametrize(
    ("accept", "request_of"),
    [
        ("form", lambda text: {"body": text, "content_type": FORM + b"; charset=UTF-8"}),
        ("query", lambda text: {"query": text, "method": b"GET"}),
        ("query", lambda text: {"query": text}),
        ("query", lambda text: {"query": text, "content_type": FORM}),
    ],
)
def test_a_form_and_a_query_are_a_record_with_their_parameters(text: bytes, accept: str, request_of: Any) -> None:
    found, records, about = send(**request_of(text), accept=[accept])
    assert (found.status, json.loads(found.body)) == (200, {"accepted": 1})
    (record,) = records
    assert json.loads(record) == dict(
        part.replace("+", " ").replace("%3A", ":").split("=") for part in text.decode().split("&")
    )
    assert about["headers"] == (), "the query is the record"


def test_a_row_is_read_from_a_form_as_from_json_with_texts() -> None:
    _, (record,), _ = send(ECOWITT, content_type=FORM, accept=["form"])
    schema = {"station": {"type": "string", "from": "$.PASSKEY"}, "tempf": {"type": "double", "text": True}}
    assert read(schema, record) == ([{"station": "00", "tempf": 47.8}], [])


@pytest.mark.guarantee(
    "G844",
    "A form, a query, or a body without a content type is accepted only by a stream that names it. It becomes a "
    "record with all its parameters, and the answer is 200 only when the record is confirmed.",
    promise="records-are-stored-once-and-unchanged",
)
def test_parameters_lose_nothing() -> None:
    _, (record,), _ = send(b"a=1&b=&a=2&c=%C3%A4&d=%22&e", content_type=FORM, accept=["form"])
    assert json.loads(record) == {"a": ["1", "2"], "b": "", "c": "ä", "d": '"', "e": ""}


@pytest.mark.parametrize(
    ("body", "content_type", "accept", "records"),
    [
        (b'{"n":1}', FORM, "form", [b'{"n":1}']),
        (b' [{"n":1},{"n":2}]', FORM, "form", [b'{"n":1}', b'{"n":2}']),
        (b'{"n":1}', None, "untyped", [b'{"n":1}']),
        (b'[{"n":1},{"n":2}]', b"", "untyped", [b'{"n":1}', b'{"n":2}']),
    ],
)
def test_json_may_come_as_a_form_or_without_a_content_type(
    body: bytes, content_type: bytes | None, accept: str, records: list[bytes]
) -> None:
    """curl -d and small HTTP libraries send it so."""
    found, appended, _ = send(body, content_type=content_type, accept=[accept])
    assert (found.status, appended) == (200, records)


@pytest.mark.guarantee("G844")
def test_a_device_gets_the_answer_that_it_expects_only_when_the_record_is_in_the_log() -> None:
    found, _, _ = send(WUNDERGROUND, content_type=FORM, accept=["form"], answer="success")
    assert (found.status, found.body, found.content_type) == (200, b"success", b"text/plain; charset=utf-8")
    found, _, _ = send(b'{"n":1}', content_type=b"application/json", answer="[]")
    assert (found.body, found.content_type) == (b"[]", b"application/json"), "as OwnTracks expects it"
    found, _, _ = send(
        ECOWITT, content_type=FORM, writer=ToldWriter(LogAway("away")), accept=["form"], answer="success"
    )
    assert found.status == 503


@pytest.mark.parametrize(
    ("request_", "status", "setting"),
    [
        ({"body": ECOWITT, "content_type": FORM}, 415, "http: {accept: [form]}"),
        ({"query": ECOWITT, "method": b"GET"}, 405, "http: {accept: [query]}"),
        ({"body": b'{"n":1}'}, 415, "http: {accept: [untyped]}"),
        ({"query": ECOWITT}, 415, "http: {accept: [untyped]}"),
        ({"body": ECOWITT, "content_type": FORM, "accept": ["query", "untyped"]}, 415, "http: {accept: [form]}"),
        ({"method": b"GET", "accept": ["query"]}, 400, "no parameters"),
        ({"content_type": FORM, "accept": ["form"]}, 400, "no parameters"),
        ({"body": b"&".join([b"a=1"] * 1_001), "content_type": FORM, "accept": ["form"]}, 400, "1000 parameters"),
    ],
)
def test_what_a_stream_does_not_accept_is_refused_with_the_setting(
    request_: dict[str, Any], status: int, setting: str
) -> None:
    found, records, _ = send(**request_)
    assert (found.status, records) == (status, [])
    assert setting in json.loads(found.body)["detail"]


def test_forms_are_of_streams_of_json() -> None:
    document = {"stream": "s", "schema": {"n": "long"}, "format": "csv", "http": {"accept": ["form"]}}
    with pytest.raises(InvalidDocument) as refused:
        StreamSpec.from_document(document)
    assert "a form becomes a JSON object" in str(refused.value.problems)
