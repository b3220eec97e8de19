"""InfluxDB's write requests: `POST /api/v2/write?bucket=STREAM` and, of InfluxDB 1, `POST /write?db=STREAM`.

Telegraf's outputs.influxdb_v2 and other clients of InfluxDB work with it unchanged. A line is a record, and keeps its bytes; the
query, which may say the `precision` of its timestamps, goes to the log with it. 204 means what 200 means elsewhere: all is in the
log. The forms of the answers are those of InfluxDB's API, version 2, with `error` for clients of version 1.
"""

from __future__ import annotations

import json
from functools import lru_cache
from urllib.parse import parse_qs, unquote_to_bytes

from strandline.core.streams.stream import StreamSpec
from strandline.ingest.gateway.framing import Framed
from strandline.ingest.gateway.serving.http_request import Answer, Refusal, headers_of, path_of

_STREAM_PARAMETERS = {"/api/v2/write": "bucket", "/write": "db"}
_LOGIN_PARAMETERS = (b"u", b"p")
_CODES = {
    400: "invalid",
    401: "unauthorized",
    403: "forbidden",
    404: "not found",
    405: "method not allowed",
    413: "request too large",
    429: "too many requests",
}
_REFUSED_SHOWN_MAX = 5


@lru_cache(maxsize=1_000)
def is_influx(url: bytes) -> bool:
    """Whether a request's target is a write request of InfluxDB's."""
    return path_of(url) in _STREAM_PARAMETERS


def stream_of_write(url: bytes) -> str:
    """The stream that a write request names as its bucket; empty if it names none."""
    query = parse_qs(url.partition(b"?")[2].decode("latin-1"))
    return query.get(_STREAM_PARAMETERS[path_of(url)], [""])[0]


def without_login(query: bytes) -> bytes:
    """The query without user and password, which clients of InfluxDB 1 may put there: they have no place in the log."""
    parts = query.split(b"&")
    return b"&".join(one for one in parts if unquote_to_bytes(one.partition(b"=")[0]) not in _LOGIN_PARAMETERS)


def require_influx(spec: StreamSpec) -> None:
    """Raises Refusal when the records of the stream are no lines of InfluxDB's protocol."""
    if spec.format != "influx":
        detail = f"stream {spec.stream} has the format {spec.format}, not influx; nothing was persisted"
        raise Refusal(400, "bad_request", f"{detail}: write to a bucket that is a stream with format: influx")


def written(framed: Framed) -> Answer:
    """The answer when the lines of a request are in the log, but for those that are too large."""
    if not framed.refused:
        return Answer(204, b"")
    named = [f"line {one.index + 1}: {one.detail}" for one in framed.refused[:_REFUSED_SHOWN_MAX]]
    if len(framed.refused) > _REFUSED_SHOWN_MAX:
        named.append("...")
    count = len(framed.records)
    return _error(
        400, f"partial write: {len(framed.refused)} lines were refused, {count} are persisted: {'; '.join(named)}"
    )


def not_written(refusal: Refusal) -> Answer:
    """The answer to a write request that was refused. A slow body is told 503: after a 408 Telegraf drops what it sent."""
    if refusal.status == 408:
        refusal = Refusal(503, refusal.code, refusal.detail, refusal.headers)
    return _error(refusal.status, refusal.detail)._replace(headers=headers_of(refusal))


def _error(status: int, message: str) -> Answer:
    code = _CODES.get(status, "unavailable" if status == 503 else "internal error")
    return Answer(status, json.dumps({"code": code, "message": message, "error": message}).encode())
