"""Limits of time and memory for responses that `httpx` reads.

The timeouts of httpx apply to each read of a socket. So a server that sends a byte every few seconds can block its client
forever. `Deadline` limits the whole exchange, including headers and trailers.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx


class ResponseTooLarge(ValueError):
    """The body of a response is larger than its limit."""


class Deadline:
    """Time limit of one or several requests of one thread. Pass `extensions` to each request.

    with Deadline(10.0) as deadline, httpx.stream("GET", url, extensions=deadline.extensions) as response: ...
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.is_over = False
        self.extensions = {"trace": self._trace}
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(timeout_s, self._end)
        self._timer.daemon = True

    def __enter__(self) -> Deadline:
        self._timer.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Raise httpx.ReadTimeout instead of the error that results from the closed connection."""
        self._timer.cancel()
        self._sockets.clear()
        if self.is_over and isinstance(error, httpx.HTTPError):
            raise httpx.ReadTimeout(f"no complete response within {self.timeout_s:g} s") from error

    def _trace(self, event: str, info: dict[str, Any]) -> None:
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._sockets.append(info["return_value"].get_extra_info("socket"))
            if self.is_over:
                self._end()

    def _end(self) -> None:
        self.is_over = True
        for connection in list(self._sockets):
            with suppress(OSError):  # it is closed already, or TLS owns it
                connection.shutdown(socket.SHUT_RDWR)


def read_body(response: httpx.Response, bytes_max: int) -> bytes:
    """Return the body of a streamed response, decompressed. Raises ResponseTooLarge, httpx.HTTPError. Send the request with
    `IDENTITY`: a compressed body can become a thousand times larger in one step."""
    body = bytearray()
    for part in response.iter_bytes():
        body += part
        if len(body) > bytes_max:
            raise ResponseTooLarge(f"the response has more than {bytes_max:,} bytes")
    return bytes(body)


IDENTITY = {"Accept-Encoding": "identity"}
"""Header of a request for an uncompressed body."""


@contextmanager
def bounded_stream(
    client: httpx.Client, method: str, url: str, timeout_s: float, **request: Any
) -> Iterator[httpx.Response]:
    """Send one request, as `client.stream` does, and end it after `timeout_s`. Raises httpx.HTTPError."""
    with Deadline(timeout_s) as deadline:
        headers = {**IDENTITY, **request.pop("headers", {})}
        with client.stream(method, url, headers=headers, extensions=deadline.extensions, **request) as response:
            yield response
