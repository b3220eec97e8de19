"""uvicorn's HTTP/1.1 protocol with additional limits: the time of a request, the size of its head, and the number of
connections.

A connection *waits* from its beginning, or from its last response, until its next request is complete. While it waits, it can
be cut.
"""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

REQUEST_TIMEOUT_S = 15.0
"""Seconds after which an incomplete request, or a connection without a request, is cut."""
HEAD_BYTES_MAX = 32 * 1024
"""Maximum size of a head, of trailers, and of the bytes between two chunks. Bytes that arrive with a body count only after it."""
CONNECTIONS_MAX = 500
"""Maximum number of connections. If there are more, the connection that has waited longest is cut."""


class BoundedHttp(HttpToolsProtocol):
    """Protocol class, passed to uvicorn as `http`."""

    _deadline: asyncio.TimerHandle | None = None
    """None while a request is processed."""
    _is_in_head = False
    _framing_bytes = 0
    """Number of bytes since the end of a head, of a part of a body, or of a request."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self._wait()
        if len(self.connections) > CONNECTIONS_MAX:
            waiting = [one for one in cast(set[BoundedHttp], self.connections) if one._deadline is not None]
            min(waiting, key=BoundedHttp._deadline_s).cut()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._framing_bytes += len(data)
        super().data_received(data)
        if self._framing_bytes > HEAD_BYTES_MAX:
            self.cut()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        if self._deadline is None:  # it follows a request that is being processed
            self._wait()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_head:  # trailers are ignored
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._framing_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._framing_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._framing_bytes = 0
        self._stop_waiting()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        is_answering_next = bool(self.pipeline)
        super().on_response_complete()
        if not self.transport.is_closing() and not is_answering_next and self._deadline is None:
            self._wait()

    def cut(self) -> None:
        """End the connection. A complete request is still executed."""
        self._stop_waiting()
        self.transport.abort()

    def _wait(self) -> None:
        self._deadline = self.loop.call_later(REQUEST_TIMEOUT_S, self.cut)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _deadline_s(self) -> float:
        assert self._deadline is not None
        return self._deadline.when()
