"""Requests with metrics, of OpenTelemetry and Prometheus: from the bytes of a request to rows."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.documents import read_documents
from strandline.core.errors import NotFound
from strandline.core.record_headers import REASON_DECODE, REASON_SCHEMA
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.append.outcome import LogAway, LogBusy
from strandline.ingest.gateway.serving.http_request import BodyBudget, BudgetExceeded, Refusal, Request
from strandline.ingest.http.targets import target_of
from strandline.processing.formats import json_rows
from strandline.processing.formats.decoder import Decoder
from strandline.processing.formats.otlp import reader as otlp_metrics
from strandline.processing.formats.otlp.reader import OtlpMetrics
from strandline.processing.formats.prometheus import reader as remote_writes
from strandline.processing.formats.prometheus.reader import RemoteWrites, unpack_snappy
from strandline.processing.formats.record_fields import Rejection
from strandline.processing.formats.record_rows import RowReader, record_format
from strandline.processing.formats.telemetry import points as telemetry_points
from strandline.processing.pipelines.event_time import EventTimeSource
from tests.unit.test_http_answers import ToldStreams, ToldWriter, answer

EXAMPLES = Path(__file__).parents[2] / "examples" / "formats"
TIME_NS = 1_544_712_660_300_000_000


def attribute(key: str, text: str = "some value") -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": text}}


OTLP = {
    "resourceMetrics": [
        {
            "resource": {"attributes": [attribute("service.name", "my.service")]},
            "scopeMetrics": [
                {
                    "scope": {
                        "name": "my.library",
                        "version": "1.0.0",
                        "attributes": [attribute("my.scope.attribute")],
                    },
                    "metrics": [
                        {
                            "name": "my.counter",
                            "unit": "1",
                            "description": "I am a Counter",
                            "sum": {
                                "aggregationTemporality": 1,
                                "isMonotonic": True,
                                "dataPoints": [
                                    {
                                        "asDouble": 5,
                                        "startTimeUnixNano": str(TIME_NS),
                                        "timeUnixNano": str(TIME_NS),
                                        "attributes": [attribute("room", "attic")],
                                    }
                                ],
                            },
                        },
                        {
                            "name": "my.gauge",
                            "unit": "1",
                            "gauge": {"dataPoints": [{"asInt": "10", "timeUnixNano": TIME_NS}]},
                        },
                        {
                            "name": "my.histogram",
                            "unit": "1",
                            "histogram": {
                                "aggregationTemporality": 1,
                                "dataPoints": [
                                    {
                                        "timeUnixNano": TIME_NS,
                                        "count": 3,
                                        "sum": 3,
                                        "bucketCounts": [1, 1, 1],
                                        "explicitBounds": [1],
                                        "min": 1,
                                        "max": 1,
                                    }
                                ],
                            },
                        },
                        {
                            "name": "my.summary",
                            "summary": {
                                "dataPoints": [
                                    {
                                        "timeUnixNano": TIME_NS,
                                        "count": 2,
                                        "sum": 3,
                                        "quantileValues": [{"quantile": 0.5, "value": 1}],
                                    }
                                ]
                            },
                        },
                        {
                            "name": "my.exponential",
                            "exponentialHistogram": {
                                "dataPoints": [{"timeUnixNano": TIME_NS, "count": 7, "zeroCount": 1}]
                            },
                        },
                    ],
                }
            ],
        }
    ]
}
"""Like the example of OTLP's repository, and each other kind of metric."""
COMMON = {"resource": {"service.name": "my.service"}, "scope": "my.library", "time": TIME_NS, "attributes": {}}
POINTS = [
    {
        **COMMON, "metric": "my.counter", "unit": "1", "type": "sum", "value": 5.0, "start_time": TIME_NS,
        "attributes": {"room": "attic"},
    },
    {**COMMON, "metric": "my.gauge", "unit": "1", "type": "gauge", "value": 10},
    {
        **COMMON, "metric": "my.histogram", "unit": "1", "type": "histogram", "count": 3, "sum": 3.0, "min": 1.0, "max": 1.0,
        "bucket_counts": [1, 1, 1], "explicit_bounds": [1.0],
    },
    {**COMMON, "metric": "my.summary", "unit": "", "type": "summary", "count": 2, "sum": 3.0, "quantiles": {"0.5": 1.0}},
    {**COMMON, "metric": "my.exponential", "unit": "", "type": "exponential_histogram", "count": 7},
]  # fmt: skip


def protobuf(document: dict[str, Any]) -> bytes:
    message = json_format.ParseDict(document, otlp_metrics._request_class()(), ignore_unknown_fields=True)
    return message.SerializeToString()


def snappy(plain: bytes) -> bytes:
    return bytes(pa.Codec("snappy").compress(plain, asbytes=True))


def write_request(*series: tuple[dict[str, str], list[tuple[float, int]]]) -> bytes:
    message = remote_writes._request_class()()
    for labels, samples in series:
        one = message.timeseries.add()
        for name, value in labels.items():
            one.labels.add(name=name, value=value)
        for number, time_ms in samples:
            one.samples.add(value=number, timestamp=time_ms)
    return snappy(message.SerializeToString())


def points(reader: Any, value: bytes) -> Any:
    (found,) = reader.objects([value], [None])
    return found if isinstance(found, Rejection) else json.loads(found)["points"]


@pytest.mark.parametrize(
    "body", [json.dumps(OTLP).encode(), protobuf(OTLP), b" \n" + json.dumps(OTLP, indent=1).encode()]
)
def test_points_of_opentelemetry(body: bytes) -> None:
    assert points(OtlpMetrics(), body) == POINTS


def test_bytes_that_were_written_by_hand_are_read() -> None:
    """Not by the descriptor that reads them: a gauge `m` with one point, which has a time, a double and an attribute."""
    point = (
        b"\x19"
        + (5).to_bytes(8, "little")
        + b"\x21"
        + b"\x00\x00\x00\x00\x00\x00\xf8\x3f"
        + b"\x3a\x0a\x0a\x01k\x12\x05\x0a\x03abc"
    )
    body = point
    for tag in (b"\x0a", b"\x2a"):
        body = tag + bytes([len(body)]) + body
    body = b"\x0a\x01m" + body
    for tag in (b"\x12", b"\x12", b"\x0a"):
        body = tag + bytes([len(body)]) + body
    assert points(OtlpMetrics(), body) == [
        {
            "metric": "m",
            "unit": "",
            "type": "gauge",
            "resource": {},
            "time": 5,
            "attributes": {"k": "abc"},
            "value": 1.5,
        }
    ]


def test_requests_of_any_length_are_read() -> None:
    """A first part of 123 bytes looks like the brace of JSON."""
    lengths = set()
    for length in range(1, 301):
        of_resource = json.loads(json.dumps(OTLP["resourceMetrics"][0]))
        of_resource["resource"]["attributes"] = [attribute("k", "x" * length)]
        of_resource["scopeMetrics"][0]["metrics"] = [{"name": "m", "gauge": {"dataPoints": [{"asInt": 1}]}}]
        of_resource["scopeMetrics"][0]["scope"] = {"name": ""}
        body = protobuf({"resourceMetrics": [of_resource]})
        lengths.add(body[1])
        (point,) = points(OtlpMetrics(), body)
        assert point["resource"] == {"k": "x" * length}
    assert 123 in lengths
    found = points(OtlpMetrics(), b"\n{'a':1}")
    assert isinstance(found, Rejection)
    assert "JSON" in found.message or "property name" in found.message


def test_attributes_of_all_kinds() -> None:
    values = {
        "i": {"intValue": "5"},
        "d": {"doubleValue": 0.5},
        "b": {"boolValue": False},
        "x": {"bytesValue": "/w=="},
        "a": {"arrayValue": {"values": [{"intValue": 1}, {}]}},
        "m": {"kvlistValue": {"values": [attribute("k", "v")]}},
        "none": {},
    }
    request = {
        "resourceMetrics": [
            {
                "resource": {"attributes": [{"key": key, "value": value} for key, value in values.items()]},
                "scopeMetrics": [{"metrics": [{"name": "m", "gauge": {"dataPoints": [{"asDouble": "NaN"}]}}]}],
            }
        ]
    }
    (point,) = points(OtlpMetrics(), json.dumps(request).encode())
    assert point["resource"] == {
        "i": 5,
        "d": 0.5,
        "b": False,
        "x": "/w==",
        "a": [1, None],
        "m": {"k": "v"},
        "none": None,
    }
    assert point["value"] is None


def test_a_point_that_does_not_know_its_time_has_none() -> None:
    """The point is not of 1970: it becomes a dead letter, or gets the time of arrival (`else: log`)."""
    for time in ({}, {"timeUnixNano": 0}):
        gauge = {"name": "x", "gauge": {"dataPoints": [{"asDouble": 1.5, **time}]}}
        request = {"resourceMetrics": [{"scopeMetrics": [{"metrics": [gauge]}]}]}
        for body in (json.dumps(request).encode(), protobuf(request)):
            (point,) = points(OtlpMetrics(), body)
            assert "time" not in point and point["value"] == 1.5


@pytest.mark.parametrize(
    ("kind", "field", "flags", "others"),
    [
        ("gauge", 5, 8, b"\x31" + bytes(8)),
        ("sum", 7, 8, b"\x21" + bytes(8)),
        ("histogram", 9, 10, b""),
        ("exponential_histogram", 10, 10, b""),
        ("summary", 11, 8, b""),
    ],
)
def test_a_point_without_a_recorded_value_has_none(kind: str, field: int, flags: int, others: bytes) -> None:
    """By the numbers of the fields in OTLP's own files: its zeros are no measurement. Other flags say nothing about the value."""
    for flag in (1, 2):
        point = others + bytes([flags << 3, flag])
        metric = _field(1, b"m") + _field(field, _field(1, point))
        (found,) = points(OtlpMetrics(), _field(1, _field(2, _field(2, metric))))
        about = {"metric": "m", "unit": "", "type": kind, "resource": {}, "attributes": {}}
        assert (found == about) == (flag == 1)


def test_a_summary_has_its_sum_also_where_it_is_0() -> None:
    summary = {"name": "m", "summary": {"dataPoints": [{"timeUnixNano": 5}]}}
    body = protobuf({"resourceMetrics": [{"scopeMetrics": [{"metrics": [summary]}]}]})
    (found,) = points(OtlpMetrics(), body)
    assert (found["count"], found["sum"], found["quantiles"]) == (0, 0.0, {})


def test_samples_of_prometheus() -> None:
    body = write_request(
        ({"__name__": "up", "job": "node", "instance": "a:9100"}, [(1.0, 1_000), (0.0, 2_000)]),
        ({"__name__": "temp", "instance": "b"}, [(float("nan"), 3_000)]),
    )
    labels = {"job": "node", "instance": "a:9100"}
    assert points(RemoteWrites(), body) == [
        {"metric": "up", "labels": labels, "time": 1_000, "value": 1.0},
        {"metric": "up", "labels": labels, "time": 2_000, "value": 0.0},
        {"metric": "temp", "labels": {"instance": "b"}, "time": 3_000, "value": None},
    ]
    message = remote_writes._request_class()()
    one = message.timeseries.add()
    one.histograms.add(count_int=4, sum=2.5, timestamp=9)
    one.histograms.add(count_float=0.5, sum=1, timestamp=10)
    assert points(RemoteWrites(), snappy(message.SerializeToString())) == [
        {"metric": "", "labels": {}, "time": 9, "count": 4, "sum": 2.5},
        {"metric": "", "labels": {}, "time": 10, "count": 0.5, "sum": 1.0},
    ]


@pytest.mark.parametrize(
    ("value", "part"),
    [
        (b"", "Snappy"),
        (b"\xff\xff\xff\xff\xff\xff", "length of a Snappy block"),
        (b"\xff\xff\xff\xff\x0f" + b"\x00" * 10, "bytes unpacked"),
        (b"\x05\x00", "not a Snappy block"),
        (snappy(b"\x0a\x05"), "not a request of Prometheus"),
    ],
)
def test_what_is_no_remote_write_is_rejected(value: bytes, part: str) -> None:
    found = points(RemoteWrites(), value)
    assert (found.reason, part in found.message) == (REASON_DECODE, True), found


@pytest.mark.parametrize("value", [b"\x0a\x05", b"{", b"{}x", b'{"resourceMetrics":5}', b"{" * 5_000, b"\xff" * 20])
def test_what_is_no_otlp_is_rejected(value: bytes) -> None:
    found = points(OtlpMetrics(), value)
    assert isinstance(found, Rejection)
    assert found.reason == REASON_DECODE


@pytest.mark.guarantee("G306")
@given(st.binary(max_size=400), st.integers(0, 400), st.integers(0, 255))
def test_no_bytes_break_the_readers(value: bytes, at: int, byte: int) -> None:
    changed = bytearray(protobuf(OTLP))
    changed[at % len(changed)] = byte
    for one in (value, b"{" + value, bytes(changed), json.dumps(OTLP).encode()[:at]):
        (found,) = OtlpMetrics().objects([one], [None])
        assert isinstance(found, (bytes, Rejection))
    packed = bytearray(write_request(({"__name__": "up", "a": "b"}, [(1.0, 2)])))
    packed[at % len(packed)] = byte
    for one in (value, snappy(value), bytes(packed)):
        (found,) = RemoteWrites().objects([one], [None])
        assert isinstance(found, (bytes, Rejection))


def test_snappy_is_unpacked_within_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unpack_snappy(snappy(b"x" * 100_000)) == b"x" * 100_000
    monkeypatch.setattr(remote_writes, "PLAIN_BYTES_MAX", 99_999)
    with pytest.raises(ValueError, match="100000 bytes unpacked"):
        unpack_snappy(snappy(b"x" * 100_000))


@pytest.mark.parametrize(("label_bytes", "points_count"), [(20_000, 100), (0, 40_000)])
def test_points_are_written_out_within_their_bound(
    label_bytes: int, points_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A label is in each of its series' rows, so a few bytes could require any amount.

    A point can take two bytes.
    """
    monkeypatch.setattr(telemetry_points, "EXPLODED_BYTES_MAX", 1 << 20)
    name, text = _field(1, b"a"), b"x" * label_bytes
    series = _field(1, name + _field(2, text)) + _field(2, b"") * points_count
    resource = _field(1, _field(1, name + _field(2, _field(1, text))))
    gauge = _field(5, _field(1, b"") * points_count)
    otlp = _field(1, resource + _field(2, _field(2, gauge)))
    for reader, message in ((RemoteWrites(), snappy(_field(1, series))), (OtlpMetrics(), otlp)):
        assert points(reader, message) == Rejection(REASON_SCHEMA, "its points have more than 1048576 bytes together")


@pytest.mark.parametrize(
    "plain",
    [b"\x0a\x00" * 1_000_000, b"\x0a\x04\x0a\x00\x12\x00" * 166_667],
    ids=["series without a point", "series, labels and samples"],
)
def test_a_request_of_a_few_bytes_is_not_millions_of_parts(plain: bytes) -> None:
    """Snappy packs twenty bytes into one: a record of a usual size asked for minutes of work, for no point at all."""
    body = snappy(plain)
    assert len(body) < 100_000
    why = "it has more than 500000 series, labels, samples and histograms"
    assert points(RemoteWrites(), body) == Rejection(REASON_SCHEMA, why)


def test_what_has_no_points_gives_none_and_hides_no_others() -> None:
    series = write_request(({"__name__": "empty"}, []), ({"__name__": "up"}, [(1.0, 2)]))
    assert points(RemoteWrites(), series) == [{"metric": "up", "labels": {}, "time": 2, "value": 1.0}]
    nothing = {"resource": {"attributes": [attribute("k", "v")]}, "scopeMetrics": [{"metrics": [{"name": "m"}]}, {}]}
    request = {"resourceMetrics": [{}, nothing, *OTLP["resourceMetrics"]]}
    assert points(OtlpMetrics(), protobuf(request)) == POINTS


def test_attributes_of_a_resource_without_points_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    monkeypatch.setattr(otlp_metrics, "_attributes", read.append)
    resource = _field(1, _field(1, b"") * 1_000)
    assert points(OtlpMetrics(), _field(1, resource) + _field(1, resource + _field(2, b""))) == []
    assert read == []


def test_requests_are_written_out_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may be as large as a record may be: all of a batch at once would be thousands of times that."""
    monkeypatch.setattr(json_rows, "EXPLODED_BYTES_MAX", 1_000)
    body = write_request(({"__name__": "up", "instance": "a"}, [(1.0, time_ms) for time_ms in range(50)]))
    read = 0

    def counted(value: bytes) -> Any:
        nonlocal read
        read += 1
        return unpack_snappy(value)

    monkeypatch.setattr(remote_writes, "unpack_snappy", counted)
    parts = RowReader(record_format(example("prometheus"))).parts([body] * 100, [])
    assert (len(next(parts).texts), read) == (50, 1)


def _field(number: int, content: bytes) -> bytes:
    """A field of Protobuf that has a length."""
    size = b""
    length = len(content)
    while length > 0x7F:
        size += bytes([length & 0x7F | 0x80])
        length >>= 7
    return bytes([number << 3 | 2]) + size + bytes([length]) + content


def example(name: str) -> StreamSpec:
    documents = read_documents((EXAMPLES / f"{name}.yaml").read_text(), name)
    return StreamSpec.parse(next(one for one in documents if one.kind == "stream"))


@pytest.mark.guarantee("G306")
def test_a_dead_letter_of_a_point_holds_it_alone_and_is_read_again() -> None:
    """The second of three samples has no valid time."""
    spec = example("prometheus")
    body = write_request(({"__name__": "up", "instance": "a"}, [(1.0, 1_000), (2.0, 2**62), (3.0, 3_000)]))
    reader = RowReader(record_format(spec))
    decoder = Decoder(record_format(spec).fields, EventTimeSource("time"), ["metric", "instance", "value"])
    (rows,) = reader.parts([body], [None])
    decoded = decoder.decode(rows.texts, [5] * 3, None)
    assert decoded.arrays["value"].to_pylist() == [1.0, 3.0]
    assert decoded.arrays["instance"].to_pylist() == ["a", "a"]
    (reject,) = decoded.rejects
    letter = reader.dead_letter_value([body], rows, reject.index)
    assert letter is not None
    (again,) = reader.parts([letter], [None])
    assert [json.loads(text)["value"] for text in again.texts] == [2.0]
    (broken,) = reader.parts([b"\xff"], [None])
    assert reader.dead_letter_value([b"\xff"], broken, 0) == b"\xff"


def test_a_request_is_unpacked_once_for_all_of_its_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    body = write_request(({"__name__": "up", "instance": "a"}, [(float(at), at) for at in range(100)]))
    reader = RowReader(record_format(example("prometheus")))
    (rows,) = reader.parts([body], [])
    unpacked: list[bytes] = []
    monkeypatch.setattr(remote_writes, "unpack_snappy", lambda value: unpacked.append(value) or unpack_snappy(value))
    letters = [reader.dead_letter_value([body], rows, at) or b"" for at in range(100)]
    assert [json.loads(letter)["points"][0]["time"] for letter in letters] == list(range(100))
    assert len(unpacked) == 1


def test_the_example_of_otlp_reads_its_request() -> None:
    (rows,) = RowReader(record_format(example("otlp"))).parts([protobuf(OTLP)], [None])
    assert json.loads(rows.texts[0]) == {
        "metric": "my.counter",
        "service": "my.service",
        "room": "attic",
        "time": TIME_NS,
        "value": 5.0,
    }
    assert len(rows.texts) == 5


SPECS = {
    name: StreamSpec.from_document({"stream": "m", "format": name, "schema": {"metric": "string"}})
    for name in ("otlp", "prometheus")
}
URLS = {"otlp": b"/v1/streams/m/otlp/v1/metrics", "prometheus": b"/v1/streams/m/prometheus/write"}
OF_OTLP = {"content_type": "application/x-protobuf"}
PACKED = {**OF_OTLP, "content_encoding": "gzip"}
OF_PROMETHEUS_2 = {
    "content_type": "application/x-protobuf;proto=io.prometheus.write.v2.Request",
    "content_encoding": "snappy",
}
OF_PROMETHEUS = {"content_type": "application/x-protobuf", "content_encoding": "snappy"}


@pytest.mark.guarantee(
    "G306",
    "A request with OpenTelemetry or Prometheus metrics is stored as it was sent before it is answered with success. "
    "No bytes break its reading, and a bad point affects no other point.",
    promise="records-are-stored-once-and-unchanged",
)
@pytest.mark.parametrize(
    ("name", "body", "headers", "found", "record"),
    [
        ("otlp", b"\x0a\x00", OF_OTLP, (200, b"", b"application/x-protobuf"), b"\x0a\x00"),
        (
            "otlp",
            gzip.compress(b"\x0a\x00", mtime=0),
            {**OF_OTLP, "content_encoding": "gzip"},
            (200, b"", b"application/x-protobuf"),
            b"\x0a\x00",
        ),
        ("otlp", b'{"a":[]}', {"content_type": "application/json"}, (200, b"{}", b"application/json"), b'{"a":[]}'),
        ("otlp", b"[1,2]", {"content_type": "application/json"}, (200, b"{}", b"application/json"), b"[1,2]"),
        ("prometheus", b"\x02\x04\x0a\x00", OF_PROMETHEUS, (204, b"", b"application/json"), b"\x02\x04\x0a\x00"),
    ],
)
def test_a_request_is_a_record_with_its_bytes(name: str, body: bytes, headers: Any, found: Any, record: bytes) -> None:
    writer = ToldWriter()
    told, metrics = answer(writer, ToldStreams(SPECS[name]), body, url=URLS[name], **headers)
    assert (told.status, told.body, told.content_type) == found
    assert [one for one, _ in writer.appended] == [(record, None)]
    assert metrics.of("m").confirmed.value == 1
    target = target_of(URLS[name])
    assert target is not None
    assert target.stream == "m"


@pytest.mark.parametrize(
    ("name", "streams", "headers", "status"),
    [
        ("otlp", SPECS["prometheus"], OF_OTLP, 400),
        ("otlp", NotFound("no such stream"), OF_OTLP, 404),
        ("otlp", SPECS["otlp"], {"content_type": "text/plain"}, 415),
        ("prometheus", SPECS["otlp"], OF_PROMETHEUS, 400),
        ("prometheus", SPECS["prometheus"], OF_OTLP, 415),
        (
            "prometheus",
            SPECS["prometheus"],
            {**OF_PROMETHEUS, "content_type": "application/x-protobuf;proto=io.prometheus.write.v2.Request"},
            415,
        ),
    ],
)
def test_what_is_refused_does_not_reach_the_writer(name: str, streams: Any, headers: Any, status: int) -> None:
    writer = ToldWriter()
    told, _ = answer(writer, ToldStreams(streams), b"\x0a\x00", url=URLS[name], **headers)
    assert (told.status, writer.appended) == (status, [])
    if name == "otlp":
        assert told.content_type == b"application/x-protobuf"
        assert told.body[:1] == b"\x08"
    elif status == 415:  # Prometheus logs it, and drops the samples
        assert "leave protobuf_message at prometheus.WriteRequest" in json.loads(told.body)["detail"]


@pytest.mark.parametrize(("name", "headers", "status"), [("prometheus", OF_PROMETHEUS, 503), ("otlp", OF_OTLP, 429)])
@pytest.mark.parametrize("is_room_full", [False, True])
def test_who_drops_what_is_answered_with_429_is_answered_with_503(
    monkeypatch: pytest.MonkeyPatch, name: str, headers: Any, status: int, is_room_full: bool
) -> None:
    """Prometheus sends again after 5xx only; exporters know 429, too."""

    def is_full(_room: BodyBudget, _request: Request, _count: int) -> None:
        raise BudgetExceeded("other requests are arriving")

    if is_room_full:
        monkeypatch.setattr(BodyBudget, "take", is_full)
    told, metrics = answer(
        ToldWriter(LogBusy("busy")), ToldStreams(SPECS[name]), b"\x0a\x00", url=URLS[name], **headers
    )
    assert told.status == status
    assert metrics.registry.get_sample_value("strandline_http_requests_total", {"status": str(status)}) == 1
    assert b"retry-after" in dict(told.headers)
    if name == "prometheus":
        document = json.loads(told.body)
        assert (document["status"], document["code"]) == (503, "too_busy" if is_room_full else "log_busy")


@pytest.mark.parametrize(("name", "headers"), [("prometheus", OF_PROMETHEUS), ("otlp", OF_OTLP)])
def test_who_drops_what_is_answered_with_408_is_answered_with_503(
    monkeypatch: pytest.MonkeyPatch, name: str, headers: Any
) -> None:
    def is_slow(_room: BodyBudget, _request: Request, _count: int) -> None:
        raise Refusal(408, "timeout", "the body did not arrive within 30 s")

    monkeypatch.setattr(BodyBudget, "take", is_slow)
    told, _ = answer(ToldWriter(), ToldStreams(SPECS[name]), b"\x0a\x00", url=URLS[name], **headers)
    assert told.status == 503
    assert b"retry-after" in dict(told.headers)


def test_an_exporter_is_told_to_come_again_while_kafka_is_away() -> None:
    headers = {"content_type": "application/json"}
    told, _ = answer(ToldWriter(LogAway("away")), ToldStreams(SPECS["otlp"]), b"{}", url=URLS["otlp"], **headers)
    assert (told.status, json.loads(told.body)) == (503, {"code": 14, "message": "away"})
    assert b"retry-after" in dict(told.headers)
