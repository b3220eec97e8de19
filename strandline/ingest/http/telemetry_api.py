"""Requests with metrics of OpenTelemetry exporters and Prometheus: each request is one record.

`POST /v1/streams/STREAM/otlp/v1/metrics` is for streams with `format: otlp`; the endpoint of an exporter is this URL
without `/v1/metrics`. `POST /v1/streams/STREAM/prometheus/write` is for streams with `format: prometheus`. A job makes
a row of each data point. The answers are those that these senders expect.
"""

from __future__ import annotations

import json

from strandline.core.streams.stream import StreamSpec
from strandline.ingest.gateway.framing import Form, Framed
from strandline.ingest.gateway.serving.http_request import Refusal, Request, Response, headers_of, path_of
from strandline.ingest.http.dialect import BodyForm, Dialect, Target
from strandline.ingest.http.records_api import stream_between

_PROTOBUF, _JSON = b"application/x-protobuf", b"application/json"
_REMOTE_WRITE_2 = b"io.prometheus.write.v2"
_STATUS_CODES = {400: 3, 404: 5, 413: 8, 415: 3, 429: 8, 503: 14}
"""HTTP status -> gRPC status, for the body of an answer to an exporter. Other statuses become 2, unknown."""


class _TelemetryDialect(Dialect):
    """A sender of metrics; each request is one record of a stream with the format of the same name."""

    format: str

    def require_stream(self, spec: StreamSpec) -> None:
        if spec.format != self.format:
            detail = f"stream {spec.stream} has the format {spec.format}, not {self.format}; nothing was persisted"
            raise Refusal(400, "bad_request", f"{detail}: send to a stream with format: {self.format}")


class OtlpDialect(_TelemetryDialect):
    """Exporters of OpenTelemetry. They resend after 429, 502, 503 and 504 (OTLP 1.9, Retryable Response Codes)."""

    format = "otlp"
    dropped_after = (408,)

    def body_form(self, request: Request) -> BodyForm:
        if _media_type_of(request) not in (_PROTOBUF, _JSON):
            raise Refusal(415, "unsupported_media_type", "send OTLP as application/x-protobuf or application/json")
        return _WHOLE

    def accepted(self, request: Request, framed: Framed) -> Response:
        return Response(200, b"{}", _JSON) if _is_json(request) else Response(200, b"", _PROTOBUF)

    def refusal_answer(self, request: Request, refusal: Refusal) -> Response:
        code, message = _STATUS_CODES.get(refusal.status, 2), refusal.detail
        if _is_json(request):
            body, content_type = json.dumps({"code": code, "message": message}).encode(), _JSON
        else:
            text = message.encode()
            body, content_type = b"\x08" + bytes([code]) + b"\x12" + _varint(len(text)) + text, _PROTOBUF
        return Response(refusal.status, body, content_type, headers_of(refusal))


class PrometheusDialect(_TelemetryDialect):
    """Senders of Prometheus' remote write 1.0. They resend only after 5xx (after 429 only with `retry_on_http_429`)."""

    format = "prometheus"
    dropped_after = (408, 429)

    def body_form(self, request: Request) -> BodyForm:
        content_type = request.headers.get(b"content-type", b"").lower()
        coding = request.headers.get(b"content-encoding", b"").strip().lower()
        if _media_type_of(request) != _PROTOBUF or _REMOTE_WRITE_2 in content_type or coding != b"snappy":
            detail = (
                "send remote write 1.0 (application/x-protobuf, content-encoding snappy): in Prometheus' remote_write leave "
                "protobuf_message at prometheus.WriteRequest"
            )
            raise Refusal(415, "unsupported_media_type", detail)
        return _PACKED

    def accepted(self, request: Request, framed: Framed) -> Response:
        return Response(204, b"")


_WHOLE, _PACKED = BodyForm(Form.WHOLE), BodyForm(Form.WHOLE, is_coded=False)
_DIALECTS = {"/otlp/v1/metrics": OtlpDialect(), "/prometheus/write": PrometheusDialect()}


def target_of(url: bytes) -> Target | None:
    """Return the target of a request with metrics. None for other requests."""
    path = path_of(url)
    for ending, dialect in _DIALECTS.items():
        if (stream := stream_between(path, ending)) is not None:
            return Target(stream, dialect)
    return None


def _media_type_of(request: Request) -> bytes:
    return request.headers.get(b"content-type", b"").lower().partition(b";")[0].strip()


def _is_json(request: Request) -> bool:
    return request.headers.get(b"content-type", b"").lower().startswith(_JSON)


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])
