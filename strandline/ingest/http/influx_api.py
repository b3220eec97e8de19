"""InfluxDB's write requests: `POST /api/v2/write?bucket=STREAM`, and `POST /write?db=STREAM` of InfluxDB 1.

Telegraf's outputs.influxdb_v2 and other clients of InfluxDB work unchanged. A line is a record, and keeps its bytes.
The query, which may contain the `precision` of the timestamps, is stored in the log with it. The status 204 has the
meaning of 200 elsewhere: all records are in the log. The answers have the form of InfluxDB's API, version 2, with
`error` for clients of version 1.
"""

from __future__ import annotations

import json
from urllib.parse import parse_qs, unquote_to_bytes

from strandline.core.streams.stream import StreamSpec
from strandline.ingest.gateway.framing import Form, Framed
from strandline.ingest.gateway.serving.http_request import Refusal, Request, Response, headers_of, path_of
from strandline.ingest.http.dialect import BodyForm, Dialect, Target

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


class InfluxDialect(Dialect):
    """Write requests of InfluxDB 1 and 2."""

    dropped_after = (408,)
    """After a 408, Telegraf drops the lines that it sent."""

    def body_form(self, request: Request) -> BodyForm:
        return _LINES  # clients of InfluxDB send lines under any content type

    def logged_query(self, query: bytes) -> bytes:
        """Return the query without user and password, which clients of InfluxDB 1 can send: the log must not contain them."""
        parts = query.split(b"&")
        return b"&".join(one for one in parts if unquote_to_bytes(one.partition(b"=")[0]) not in _LOGIN_PARAMETERS)

    def require_stream(self, spec: StreamSpec) -> None:
        if spec.format != "influx":
            detail = f"stream {spec.stream} has the format {spec.format}, not influx; nothing was persisted"
            raise Refusal(400, "bad_request", f"{detail}: write to a bucket that is a stream with format: influx")

    def accepted(self, request: Request, framed: Framed) -> Response:
        if not framed.refused:
            return Response(204, b"")
        named = [f"line {one.index + 1}: {one.detail}" for one in framed.refused[:_REFUSED_SHOWN_MAX]]
        if len(framed.refused) > _REFUSED_SHOWN_MAX:
            named.append("...")
        count = len(framed.records)
        return _error(
            400, f"partial write: {len(framed.refused)} lines were refused, {count} are persisted: {'; '.join(named)}"
        )

    def refusal_answer(self, request: Request, refusal: Refusal) -> Response:
        return _error(refusal.status, refusal.detail)._replace(headers=headers_of(refusal))


_LINES = BodyForm(Form.LINES)
_DIALECT = InfluxDialect()


def target_of(url: bytes) -> Target | None:
    """Return the target of a write request, with an empty stream if the request names no bucket. None for other requests."""
    parameter = _STREAM_PARAMETERS.get(path_of(url))
    if parameter is None:
        return None
    query = parse_qs(url.partition(b"?")[2].decode("latin-1"))
    return Target(query.get(parameter, [""])[0], _DIALECT)


def _error(status: int, message: str) -> Response:
    code = _CODES.get(status, "unavailable" if status == 503 else "internal error")
    return Response(status, json.dumps({"code": code, "message": message, "error": message}).encode())
