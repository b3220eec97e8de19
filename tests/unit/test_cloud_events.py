"""CloudEvents by HTTP: the examples of the specification, in all three modes, from the bytes of a request to what is appended and
to the fields that a job sees."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.errors import InvalidDocument
from strandline.core.record_headers import pack_header_values, unpack_header_values
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.gateway.cloud_events import identity_of_event, plain_value
from strandline.ingest.gateway.health_pages import HostNames
from strandline.ingest.gateway.metrics import IngestMetrics
from strandline.ingest.gateway.process import GatewayResources
from strandline.ingest.gateway.serving.http_server import HttpServer
from strandline.ingest.http.gateway import HttpGateway
from strandline.processing.formats.record_rows import RowReader, record_format
from tests.support.http_peers import Peer
from tests.unit.test_http_answers import ToldStreams, ToldWriter

BINARY = {
    "ce-specversion": "1.0",
    "ce-type": "com.example.someevent",
    "ce-time": "2018-04-05T03:56:24Z",
    "ce-id": "1234-1234-1234",
    "ce-source": "/mycontext/subcontext",
    "Content-Type": "application/json; charset=utf-8",
}
"""The example of the HTTP protocol binding, 3.1.4."""
EVENT = {
    "specversion": "1.0",
    "type": "com.example.someevent",
    "source": "/mycontext",
    "subject": None,
    "id": "C234-1234-1234",
    "time": "2018-04-05T17:31:00Z",
    "comexampleextension1": "value",
    "comexampleothervalue": 5,
    "datacontenttype": "application/json",
    "data": {"appinfoA": "abc", "appinfoB": 123, "appinfoC": True},
}
"""An example of the JSON event format, with JSON data."""
OTHER = EVENT | {"id": "A234-1234-1234", "datacontenttype": "text/xml", "data": '<much wow="xml"/>'}
STREAM = {
    "stream": "events",
    "schema": {
        "kind": "string?",
        "source": "string?",
        "device": "string?",
        "at": {"type": "timestamp?"},
        "app": {"type": "long?", "from": "$.data.appinfoB"},
    },
    "http": {"headers": {"kind": "CE-type", "at": "ce-time", "device": "X-Device"}},
}


def send(body: bytes, headers: dict[str, str], document: dict[str, Any] = STREAM) -> tuple[int, Any, ToldWriter]:
    """The answer to the bytes of a request, and what was appended."""
    writer = ToldWriter()

    async def run() -> bytes:
        resources = GatewayResources(
            writer,  # type: ignore[arg-type]
            ToldStreams(StreamSpec.from_document(document)),  # type: ignore[arg-type]
            IngestMetrics("http"),
            HostNames(()),
            10_000,
            asyncio.Event(),
        )
        gateway = HttpGateway(resources, body_bytes_max=100_000)
        server = HttpServer(gateway, connections_max=10)
        server.loop = asyncio.get_running_loop()
        server.sweep(0.0)
        peer = Peer(server)
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        await peer.send(
            b"POST /v1/streams/events/records HTTP/1.1\r\nContent-Length: %d\r\n%s\r\n%s"
            % (len(body), head.encode("latin-1"), body)
        )
        for _ in range(100):
            if peer.transport.written:
                break
            await asyncio.sleep(0)
        assert gateway.budget.bytes_held == 0
        return peer.transport.written

    head, _, told = asyncio.run(run()).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(told), writer


def test_an_event_in_binary_mode_is_its_data_with_the_attributes_in_headers() -> None:
    body = b'{ "n": [1,\n2] }'
    status, told, writer = send(body, BINARY | {"X-Device": "a7", "Cookie": "secret=1", "Authorization": "Bearer b"})
    assert (status, told) == (200, {"accepted": 1})
    ((record, about),) = writer.appended
    assert record == (body, None)
    assert dict(about["headers"]) == {
        "http-x-device": b"a7",
        "ce_specversion": b"1.0",
        "ce_type": b"com.example.someevent",
        "ce_time": b"2018-04-05T03:56:24Z",
        "ce_id": b"1234-1234-1234",
        "ce_source": b"/mycontext/subcontext",
    }
    assert about["message_id"] == b"/mycontext/subcontext 1234-1234-1234"
    assert about["content_type"] == b"application/json; charset=utf-8"


@pytest.mark.parametrize("body", [b"[1,2]", b"<much/>", b"a,b\nc,d\n", b"\x00\xff"])
@pytest.mark.parametrize("content_type", ["application/x-ndjson", "text/xml", "image/png", ""])
def test_the_data_of_an_event_in_binary_mode_are_one_record_whatever_they_are(body: bytes, content_type: str) -> None:
    status, _, writer = send(body, BINARY | {"Content-Type": content_type})
    assert (status, [record for record, _ in writer.appended]) == (200, [(body, None)])


def test_a_structured_event_is_a_record_with_its_bytes() -> None:
    body = json.dumps(EVENT, indent=2).encode()
    status, _, writer = send(body, {"content-type": "application/cloudevents+json; charset=UTF-8", "ce-id": "other"})
    ((record, about),) = writer.appended
    assert (status, record, about["headers"]) == (200, (body, None), ())
    assert list(about["headers_each"]) == [(("message-id", b"/mycontext C234-1234-1234"),)]
    assert about["content_type"] == b"application/cloudevents+json"


@pytest.mark.guarantee(
    "G301",
    "A CloudEvent is stored with the sender's bytes in all three HTTP modes. Attributes in headers become headers of "
    "the record, and source and id become its message id.",
    promise="records-are-stored-once-and-unchanged",
)
def test_a_batch_is_a_record_for_each_event_with_its_own_identity() -> None:
    body = json.dumps([EVENT, OTHER, {"data": 1}]).encode()
    headers = {"content-type": "application/cloudevents-batch+json", "idempotency-key": "k"}
    status, told, writer = send(body, headers)
    assert (status, told) == (200, {"accepted": 3})
    assert [json.loads(record[0]) for record, _ in writer.appended] == [EVENT, OTHER, {"data": 1}]
    assert list(writer.appended[0][1]["headers_each"]) == [
        (("message-id", b"/mycontext C234-1234-1234"),),
        (("message-id", b"/mycontext A234-1234-1234"),),
        (("message-id", b"k/2"),),
    ]
    assert send(b"[]", headers)[:2] == (200, {"accepted": 0})


@pytest.mark.parametrize(
    ("body", "headers", "part"),
    [
        (b"{}", {"content-type": "application/cloudevents-batch+json"}, "a batch of CloudEvents is a JSON array"),
        (b"[{}", {"content-type": "application/cloudevents-batch+json"}, "never ends"),
        (b"", {"content-type": "application/cloudevents+json"}, "empty"),
        (b"", BINARY, "empty"),
        (b"{}", BINARY | {"CE-ID": "twice"}, "ce-id twice"),
        (b"{}", BINARY | {"ce-x": "x" * 2_000}, "at most 64 with 2000"),
        (b"{}", BINARY | {f"ce-x{n}": "" for n in range(60)}, "at most 64 with 2000"),
        (b"{}", BINARY | {"ce-subject": "%C0%A0"}, "not UTF-8"),
        (b"{}", {"content-type": "application/json", "x-device": "a", "X-Device": "b"}, "x-device twice"),
    ],
)
def test_what_is_no_event_that_can_be_framed_is_refused(body: bytes, headers: dict[str, str], part: str) -> None:
    status, told, writer = send(body, headers)
    assert (status, writer.appended) == (400, [])
    assert part in told["detail"]


def test_other_event_formats_are_refused() -> None:
    assert send(b"x", {"content-type": "application/cloudevents+avro"})[0] == 415


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (b"Euro%20%E2%82%AC%20%F0%9F%98%80", "Euro \u20ac \U0001f600"),  # the example of 3.1.3.2
        (b"%e2%82%ac", "\u20ac"),
        (b"%41%", "A%"),
        (b' "a \\"b\\" %25" ', 'a "b" %'),
        (b'"', '"'),
        (b"", ""),
    ],
)
def test_values_of_attributes_are_read_as_the_specification_has_it(value: bytes, plain: str) -> None:
    assert plain_value(value) == plain.encode()


@pytest.mark.parametrize(
    "event",
    [b"", b"[]", b"{", b'{"source":1,"id":"a"}', b'{"source":"","id":"a"}', b'{"id":"a"}', b"\xff", b"[" * 9_999],
)
def test_what_says_no_identity_has_none(event: bytes) -> None:
    assert identity_of_event(event) is None


def test_a_long_identity_is_its_hash() -> None:
    one, other = (identity_of_event(json.dumps({"source": "/s", "id": "x" * 2_000 + end}).encode()) for end in "ab")
    assert one is not None
    assert one.startswith(b"sha256:")
    assert one != other


@given(st.binary(), st.binary(max_size=200))
def test_no_bytes_break_the_reading_of_events(event: bytes, value: bytes) -> None:
    identity_of_event(event)
    assert len(plain_value(value)) <= len(value)


@given(st.none() | st.binary() | st.binary().map(b"\0".__add__), st.dictionaries(st.text(), st.binary()))
def test_packed_header_values_come_out_as_they_went_in(first: bytes | None, named: dict[str, bytes]) -> None:
    assert unpack_header_values(pack_header_values(first, named)) == (first, named)


def rows(values: list[bytes], sources: list[bytes | None], document: dict[str, Any] = STREAM) -> list[Any]:
    reader = RowReader(record_format(StreamSpec.from_document(document)))
    return [json.loads(text) for part in reader.parts(values, sources) for text in part.texts]


@pytest.mark.guarantee(
    "G302",
    "A value that fills a missing field, from the query or a header that the document names, is stored in the log, so "
    "results are a function of it. No header that contains a secret can be named.",
    promise="records-are-stored-once-and-unchanged",
)
def test_headers_fill_the_fields_that_a_record_lacks() -> None:
    named = {"ce_type": b"t", "ce_time": b"2018-04-05T03:56:24Z", "http-x-device": b"7", "ce_source": b"undeclared"}
    packed = pack_header_values(b"?device=q&source=s", named)
    assert rows(
        [b'{"kind":"own"}', b"{}", b'{"data":{"appinfoB":5}}'], [packed, pack_header_values(None, named), None]
    ) == [
        {"kind": "own", "at": "2018-04-05T03:56:24Z", "device": "q", "source": "s"},
        {"kind": "t", "at": "2018-04-05T03:56:24Z", "device": "7"},
        {"app": 5},
    ]
    config = record_format(StreamSpec.from_document(STREAM))
    assert RowReader(config).headers_beside == ("ce_time", "ce_type", "http-x-device")


@pytest.mark.parametrize("carrier", ["?event_time=1700000000000", "?event_time=1&ts=1700000000000"])
def test_the_parameter_event_time_fills_the_only_timestamp(carrier: str) -> None:
    document = {"stream": "s", "schema": {"n": "long", "ts": "timestamp"}}
    assert rows([b'{"n":1}', b'{"n":1,"ts":2}'], [carrier.encode()] * 2, document) == [
        {"n": 1, "ts": 1700000000000},
        {"n": 1, "ts": 2},
    ]


def test_of_two_timestamps_the_document_says_which_event_time_fills() -> None:
    schema = {"n": "long", "begin": "timestamp?", "end": "timestamp?"}
    assert rows([b'{"n":1}'], [b"?event_time=5"], {"stream": "s", "schema": schema}) == [{"n": 1}]
    declared = {"stream": "s", "schema": schema, "http": {"event_time": "end"}}
    assert rows([b'{"n":1}'], [b"?event_time=5"], declared) == [{"n": 1, "end": 5}]
    own = {"stream": "s", "schema": {"n": "long", "event_time": "string?", "ts": "timestamp?"}}
    assert rows([b'{"n":1}'], [b"?event_time=5"], own) == [{"n": 1, "event_time": "5"}]


def test_the_precision_of_lines_counts_beside_headers() -> None:
    document = {
        "stream": "s",
        "format": "influx",
        "schema": {"n": "long", "time": {"type": "timestamp", "unit": "ns"}, "site": "string"},
        "http": {"headers": {"site": "x-site"}},
    }
    packed = pack_header_values(b"?precision=s", {"http-x-site": b"lundy"})
    assert rows([b"m n=1i 5"], [packed], document) == [
        {"measurement": "m", "n": 1, "time": 5_000_000_000, "site": "lundy"}
    ]


@pytest.mark.guarantee("G302")
@pytest.mark.parametrize(
    ("http", "part"),
    [
        ({"headers": {"device": "authorization"}}, "is a secret"),
        ({"headers": {"device": "Cookie"}}, "is a secret"),
        ({"headers": {"device": "a b"}}, "not the name of an HTTP header"),
        ({"headers": {"devise": "x-a"}}, "did you mean 'device'"),
        ({"event_time": "device"}, "is not a timestamp of the schema"),
    ],
)
def test_documents_that_cannot_be_are_refused(http: dict[str, Any], part: str) -> None:
    with pytest.raises(InvalidDocument, match=part):
        StreamSpec.from_document(STREAM | {"http": http})


def test_the_key_of_records_that_lack_it_is_that_of_the_header() -> None:
    keyed = STREAM | {"key": "device"}
    headers = {"content-type": "application/x-ndjson", "x-device": "a7"}
    _, _, writer = send(b'{"device":"own"}\n{"n":1}\n', headers, keyed)
    assert [record[1] for record, _ in writer.appended] == [b"own", b"a7"]
    assert StreamSpec.from_document(keyed).decoding_changes(StreamSpec.from_document(STREAM | {"http": {}})) == [
        f"http.headers.{name}" for name in ("kind", "at", "device")
    ]
