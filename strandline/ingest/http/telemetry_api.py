"""Requests with metrics, as OpenTelemetry's exporters and Prometheus send them: each is one record, whole.

`POST /v1/streams/STREAM/otlp/v1/metrics` for a stream with `format: otlp` (an exporter's endpoint is what stands before
`/v1/metrics` at the end), and `POST /v1/streams/STREAM/prometheus/write` for one with `format: prometheus`. A job makes a row of
each data point. The answers are what these senders expect.
"""

from __future__ import annotations

import json
from functools import lru_cache

from strandline.core.streams.stream import StreamSpec
from strandline.ingest.gateway.serving.http_request import Answer, Refusal, Request, headers_of, path_of, problem

_PATH_BEFORE = "/v1/streams/"
_FORMATS = {"/otlp/v1/metrics": "otlp", "/prometheus/write": "prometheus"}
_PROTOBUF, _JSON = b"application/x-protobuf", b"application/json"
_REMOTE_WRITE_2 = b"io.prometheus.write.v2"
_STATUS_CODES = {400: 3, 404: 5, 413: 8, 415: 3, 429: 8, 503: 14}
"""HTTP's status -> gRPC's, for the body of an answer to an exporter; others are 2, unknown."""
_DROPPED_AFTER = {"prometheus": (408, 429), "otlp": (408,)}
"""Passing states after which these senders drop what they sent: Prometheus sends again after 5xx only (and 429 with
`retry_on_http_429`), exporters after 429, 502, 503 and 504 (OTLP 1.9, Retryable Response Codes). They are told 503."""


@lru_cache(maxsize=1_000)
def telemetry_of(url: bytes) -> tuple[str, str] | None:
    """The stream and the format of a request with metrics; None for any other."""
    path = path_of(url)
    for ending, record_format in _FORMATS.items():
        stream = path[len(_PATH_BEFORE) : -len(ending)]
        if path.startswith(_PATH_BEFORE) and path.endswith(ending) and stream and "/" not in stream:
            return stream, record_format
    return None


def require_telemetry(request: Request, record_format: str) -> bool:
    """Whether the body's coding is a part of the record. Raises Refusal for what no stream of the format takes."""
    content_type = request.headers.get(b"content-type", b"").lower()
    media_type = content_type.partition(b";")[0].strip()
    coding = request.headers.get(b"content-encoding", b"").strip().lower()
    if record_format == "otlp":
        if media_type not in (_PROTOBUF, _JSON):
            raise Refusal(415, "unsupported_media_type", "send OTLP as application/x-protobuf or application/json")
        return False
    if media_type != _PROTOBUF or _REMOTE_WRITE_2 in content_type or coding != b"snappy":
        detail = (
            "send remote write 1.0 (application/x-protobuf, content-encoding snappy): in Prometheus' remote_write leave "
            "protobuf_message at prometheus.WriteRequest"
        )
        raise Refusal(415, "unsupported_media_type", detail)
    return True


def require_format(spec: StreamSpec, record_format: str) -> None:
    """Raises Refusal when the stream's records are no such requests."""
    if spec.format != record_format:
        detail = f"stream {spec.stream} has the format {spec.format}, not {record_format}; nothing was persisted"
        raise Refusal(400, "bad_request", f"{detail}: send to a stream with format: {record_format}")


def taken(request: Request, record_format: str) -> Answer:
    """The answer when the request is in the log."""
    if record_format == "prometheus":
        return Answer(204, b"")
    return Answer(200, b"{}", _JSON) if _is_json(request) else Answer(200, b"", _PROTOBUF)


def not_taken(refusal: Refusal, request: Request, record_format: str) -> Answer:
    """The answer to a request that was refused."""
    if refusal.status in _DROPPED_AFTER[record_format]:
        refusal = Refusal(503, refusal.code, refusal.detail, refusal.headers)
    if record_format == "prometheus":
        return problem(refusal, request.path)
    code, message = _STATUS_CODES.get(refusal.status, 2), refusal.detail
    if _is_json(request):
        body, content_type = json.dumps({"code": code, "message": message}).encode(), _JSON
    else:
        text = message.encode()
        body, content_type = b"\x08" + bytes([code]) + b"\x12" + _varint(len(text)) + text, _PROTOBUF
    return Answer(refusal.status, body, content_type, headers_of(refusal))


def _is_json(request: Request) -> bool:
    return request.headers.get(b"content-type", b"").lower().startswith(_JSON)


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])
