"""Checks of a request before it reaches a route: its host and origin, and the size of its body.

A web page in a browser on this machine also reaches loopback, where the API may trust every client. Two checks keep such a page
out:
* the `Host` header must contain a name of this service (an attacker's name that resolves to 127.0.0.1 is refused);
* a request with an `Origin` header must come from a page of this service.

`/healthz` and `/readyz` are not checked, because a kubelet requests them with the pod's address.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strandline.core.host_names import HEALTH_PATHS, LOOPBACK_NAMES, host_name, is_own_page
from strandline.services.rest.problems import problem_response

BODY_BYTES_MAX = 1_000_000
"""Maximum size of a request body. A larger body is refused with 413 before it is completely read."""
_REPAIR = re.compile(r"/v1/jobs/[^/]+/dead-letters/repair")
"""Path whose body is the payload of a record, and can be as large as a record."""

_RECORDS = re.compile(r"/v1/streams/[^/]+/records")
"""Path whose body is relayed to a gateway."""


class HostGuard:
    """ASGI middleware: responds with 421, 403, or 413 itself, and passes all other requests."""

    def __init__(self, app: ASGIApp, names: Collection[str], record_bytes_max: int = BODY_BYTES_MAX) -> None:
        """Args: record_bytes_max: Maximum size of a record that gateways accept."""
        self._app = app
        self._payload_bytes_max = max(record_bytes_max, BODY_BYTES_MAX)
        self._names = LOOPBACK_NAMES | {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        path = scope["path"]
        host = headers.get(b"host", b"").decode("latin-1")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if path not in HEALTH_PATHS:
            if host_name(host) not in self._names:
                detail = (
                    f"this service does not have the name {host!r}; use localhost, or add the name to "
                    "STRANDLINE_CONTROL_NAMES"
                )
                await problem_response(path, 421, "misdirected_request", detail)(scope, receive, send)
                return
            if not is_own_page(origin, host):
                detail = f"pages of {origin!r} can't use this service"
                await problem_response(path, 403, "forbidden", detail)(scope, receive, send)
                return
        bytes_max, remedy = BODY_BYTES_MAX, "send the documents in several requests"
        if _RECORDS.fullmatch(path):
            remedy = "send the records in several requests, or to an HTTP gateway"
        elif _REPAIR.fullmatch(path):
            bytes_max, remedy = (
                self._payload_bytes_max,
                "the record is too large: shorten it, or raise STRANDLINE_RECORD_BYTES_MAX",
            )
        too_large = f"the body is larger than {bytes_max} bytes; {remedy}"
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > bytes_max:
            await _refuse_too_large(scope, receive, send, too_large)
            return
        body = await _read_body(receive, bytes_max)
        if body is None:
            return
        if len(body) > bytes_max:
            await _refuse_too_large(scope, receive, send, too_large)
            return
        await self._app(scope, _replay(body, receive), send)


async def _read_body(receive: Receive, bytes_max: int) -> bytes | None:
    """Return the body, or its beginning if it exceeds the limit (chunked bodies have no declared length). None if its sender
    disconnected before the end: a partial document can look complete, and must not be applied."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        part = message.get("body", b"")
        size += len(part)
        parts.append(part)
        if size > bytes_max or not message.get("more_body", False):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    is_read = False

    async def replay() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _refuse_too_large(scope: Scope, receive: Receive, send: Send, detail: str) -> None:
    headers = {"Connection": "close"}
    await problem_response(scope["path"], 413, "too_large", detail, headers=headers)(scope, receive, send)
