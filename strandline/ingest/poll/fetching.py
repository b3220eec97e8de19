"""One HTTP request with limits of time and size. It returns the answer, or raises one of these errors:

* FetchFailed          the device did not answer correctly; a later request may succeed
  - TooLarge (framing) the answer exceeds a limit
* NotAllowed           the gateway may not request this host
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

from strandline.core.errors import TransientError
from strandline.ingest.gateway.framing import TooLarge
from strandline.ingest.poll.addresses import AllowedHosts, Unresolved, resolve

HEAD_BYTES_MAX = 32 * 1024
"""Maximum number of bytes of a head, of trailers, and of the extensions of a chunk, counted after each read."""
HEADERS_MAX = 200
_READ_BYTES = 64 * 1024
_SWITCHING_PROTOCOLS = 101
_DEFAULT_PORTS = {"http": 80, "https": 443}


class FetchFailed(TransientError):
    """The device didn't answer, or its answer isn't valid HTTP."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class HttpResponse:
    """The answer of a device."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    """By lower-case name. If a name is repeated, the first value."""
    body: bytes = b""


class ByteBudget:
    """Budget of bytes for all answers that are arriving."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.held = 0

    def take(self, count: int) -> None:
        """Raises FetchFailed if the budget is used up."""
        if self.held + count > self._bytes_max:
            raise FetchFailed(
                "too_busy", f"answers with {self.held} bytes are arriving already; the request is repeated later"
            )
        self.held += count

    def give_back(self, count: int) -> None:
        self.held -= count


class _Reading:
    """Called by the parser with the parts of an answer."""

    def __init__(self, budget: ByteBudget, body_bytes_max: int) -> None:
        self.reply = HttpResponse()
        self.body = bytearray()
        """One object, whatever the sizes of the chunks: its size is the one that the budget counts."""
        self.is_whole = False
        self.is_in_head = True
        self.parser: httptools.HttpResponseParser | None = None
        """Set while the answer is read."""
        self._budget = budget
        self._body_bytes_max = body_bytes_max
        self.failure: Exception | None = None
        self.framing_bytes = 0
        """Number of bytes read since the last piece of the body: the parser keeps them."""

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.is_in_head:
            return  # trailers are ignored
        if len(self.reply.headers) >= HEADERS_MAX:
            self.failure = FetchFailed("not_http", f"the answer has more than {HEADERS_MAX} headers")
            return
        self.reply.headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1").strip())

    def on_headers_complete(self) -> None:
        self.is_in_head = False

    def on_body(self, chunk: bytes) -> None:
        self.framing_bytes = 0
        if self.failure is not None:
            return
        try:
            if len(self.body) + len(chunk) > self._body_bytes_max:
                raise TooLarge(f"the answer has more than {self._body_bytes_max} bytes")
            self._budget.take(len(chunk))
        except (FetchFailed, TooLarge) as error:
            self.failure = error  # the parser would hide it in its own error
            return
        self.body += chunk

    def on_message_complete(self) -> None:
        assert self.parser is not None
        if 100 <= self.parser.get_status_code() < 200 and self.parser.get_status_code() != _SWITCHING_PROTOCOLS:
            self.reply.headers.clear()  # an interim answer: the final one follows
            self.is_in_head = True
        else:
            self.is_whole = True


@dataclass
class HttpFetcher:
    """Requests any URL that is allowed. Follows no redirect, keeps no connection and no cookie, and uses no proxy."""

    allowed: AllowedHosts
    budget: ByteBudget
    body_bytes_max: int
    tls: ssl.SSLContext

    async def ask(
        self, url: str, headers: Sequence[tuple[str, str]], timeout_s: float, body: bytes | None = None
    ) -> HttpResponse:
        """Return the complete answer, whatever its status.

        1. Resolve the name, and check the address.
        2. Connect to that address. TLS checks the name.
        3. Send the request, and read the answer until it is complete, within all limits.

        Args: body: Sent with POST. None for a GET request. Raises FetchFailed, NotAllowed, and TooLarge.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._ask(url, headers, body)
        except TimeoutError as error:
            raise FetchFailed("timeout", f"no complete answer within {timeout_s:g} s") from error
        except Unresolved as error:
            raise FetchFailed(error.code, str(error)) from error
        except ssl.SSLError as error:
            raise FetchFailed("tls", f"the TLS connection failed: {error.reason or error}") from error
        except OSError as error:
            raise FetchFailed("unreachable", f"the connection failed: {error.strerror or error}") from error

    async def _ask(self, url: str, headers: Sequence[tuple[str, str]], body: bytes | None) -> HttpResponse:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _DEFAULT_PORTS[parts.scheme]
        address = self.allowed.address_for(host, await resolve(host, port))
        is_tls = parts.scheme == "https"
        reader, writer = await asyncio.open_connection(
            address, port, ssl=self.tls if is_tls else None, server_hostname=host if is_tls else None, limit=_READ_BYTES
        )
        reading = _Reading(self.budget, self.body_bytes_max)
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            name = f"[{host}]" if ":" in host else host
            named = name if port == _DEFAULT_PORTS[parts.scheme] else f"{name}:{port}"
            method = "GET" if body is None else "POST"
            lines = [f"{method} {target} HTTP/1.1", f"Host: {named}", "Connection: close"]
            lines += [] if body is None else [f"Content-Length: {len(body)}"]
            lines += [f"{header}: {value}" for header, value in headers]
            writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))
            return await self._read(reader, reading)
        finally:
            self.budget.give_back(len(reading.body))
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader, reading: _Reading) -> HttpResponse:
        reading.parser = parser = httptools.HttpResponseParser(reading)
        try:
            while not reading.is_whole:
                data = await reader.read(_READ_BYTES)
                if not data:
                    break
                reading.framing_bytes += len(data)
                parser.feed_data(data)
                if reading.failure is not None:
                    raise reading.failure
                if reading.framing_bytes > HEAD_BYTES_MAX and not reading.is_whole:
                    raise FetchFailed(
                        "not_http", f"the head or the trailers of the answer have more than {HEAD_BYTES_MAX} bytes"
                    )
                if not reading.is_in_head and parser.get_status_code() in (204, 304):
                    reading.is_whole = True
        except httptools.HttpParserError as error:
            raise FetchFailed("not_http", f"the answer is not HTTP: {error}") from error
        finally:
            reading.parser = None  # each references the other, and with it the body
        reply = reading.reply
        if not reading.is_whole:
            has_length = "content-length" in reply.headers or "transfer-encoding" in reply.headers
            if reading.is_in_head or has_length:
                raise FetchFailed("cut_short", "the connection ended before the answer was complete")
        reply.status = parser.get_status_code()
        reply.body = bytes(reading.body)
        return reply
