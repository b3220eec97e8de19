"""The pages of a gateway that speaks no HTTP itself: `/healthz`, `/readyz`, `/metrics`, on a port of their own.

Only GET and HEAD without a body, one request a connection: probes and Prometheus ask for no more.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from strandline.core.errors import StackError, TransientError

HEAD_TIMEOUT_S = 5.0
HEAD_BYTES_MAX = 8 * 1024
CONNECTIONS_MAX = 64
_JSON = "application/json"


class Pages:
    """Answers the three pages.

    `check` raises TransientError while the gateway can't take records to the log; `refresh` brings up to date what is
    only counted when somebody asks.
    """

    def __init__(
        self, registry: CollectorRegistry, check: Callable[[], Awaitable[None]], refresh: Callable[[], None]
    ) -> None:
        self._registry = registry
        self._check = check
        self._refresh = refresh
        self._open = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection and close it."""
        self._open += 1
        try:
            if self._open <= CONNECTIONS_MAX:
                async with asyncio.timeout(HEAD_TIMEOUT_S):
                    request = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n", 1)[0].decode("latin-1")
                    writer.write(await self._page(request))
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked has gone, or did not speak HTTP; nobody waits for an answer
        finally:
            self._open -= 1
            writer.close()

    async def _page(self, request: str) -> bytes:
        method, _, rest = request.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        status, content_type, body = await self._content(method, path)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {content_type}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if method == "HEAD" else body)

    async def _content(self, method: str, path: str) -> tuple[HTTPStatus, str, bytes]:
        if path not in ("/healthz", "/readyz", "/metrics"):
            return _problem(HTTPStatus.NOT_FOUND, "not_found", f"there is no {path} here")
        if method not in ("GET", "HEAD"):
            return _problem(HTTPStatus.METHOD_NOT_ALLOWED, "method_not_allowed", f"{path} takes GET, not {method}")
        if path == "/metrics":
            self._refresh()
            return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self._registry)
        if path == "/readyz":
            try:
                await self._check()
            except TransientError as error:
                return _problem(HTTPStatus.SERVICE_UNAVAILABLE, error.code, str(error))
        return HTTPStatus.OK, _JSON, b'{"status":"ok"}'


def _problem(status: HTTPStatus, code: str, detail: str) -> tuple[HTTPStatus, str, bytes]:
    """As `application/problem+json` (RFC 9457)."""
    problem = {"type": f"urn:strandline:problem:{code}", "title": status.phrase, "status": status.value}
    return status, "application/problem+json", json.dumps({**problem, "detail": detail, "code": code}).encode()


@asynccontextmanager
async def serve_pages(
    host: str,
    port: int,
    registry: CollectorRegistry,
    check: Callable[[], Awaitable[None]],
    refresh: Callable[[], None],
) -> AsyncIterator[None]:
    """Serve the pages inside `async with`. Raises StackError when the port is taken."""
    pages = Pages(registry, check, refresh)
    try:
        server = await asyncio.start_server(pages.answer, host, port, limit=HEAD_BYTES_MAX)
    except OSError as error:
        raise StackError(
            f"the gateway can't show its metrics on {host}:{port}: {error.strerror}; "
            f"stop what uses that port, or set another"
        ) from error
    try:
        yield
    finally:
        server.close()
