"""Relay of records to an HTTP gateway, for users of the console. Only the gateway acknowledges records: this module never writes
to Kafka.

The gateway authenticates the user by the credentials of the request, and checks the right to write. The outcome is that of the
gateway: its status, its body, and its `Retry-After`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import httpx

from strandline.core.errors import InvalidSettings, TransientError
from strandline.core.streams.entrances import HEADERS_NOT_FOR_RECORDS
from strandline.core.urls import without_credentials
from strandline.services.trust import ClientTls, certificates_for

RELAY_TIMEOUT_S = 20.0
"""Maximum time in seconds for the response of the gateway. A gateway waits at most five times STRANDLINE_CONFIRM_TIMEOUT_S."""
CONNECT_TIMEOUT_S = 3.0
RELAYS_MAX = 16
"""Maximum number of requests that wait for the gateway at the same time. Further requests are refused with 429."""
ANSWER_BYTES_MAX = 1_000_000
_ABOUT_BODY = frozenset(("content-type", "content-encoding", "idempotency-key"))
"""Headers that describe the body, and aren't stored with records."""
_TEXT_TYPES = ("application/json", "application/problem+json", "text/plain")


class GatewayUnavailable(TransientError):
    """The gateway can't be reached. Nothing was sent to it."""

    code = "gateway_unavailable"


class RelayBusy(TransientError):
    """Too many requests wait for the gateway. Nothing of this request was sent to it."""

    code = "relay_busy"


class RelayOutcomeUnknown(TransientError):
    """The gateway received the request, or a part of it, and gave no valid response: its records may be in the log."""

    code = "outcome_unknown"


class GatewayAnswer(NamedTuple):
    """Response of the gateway."""

    status: int
    body: bytes
    content_type: str
    retry_after: str | None


class RecordRelay:
    """Relays requests with records to one HTTP gateway. Use it from one event loop."""

    def __init__(self, url: str | None, ca_file: Path | None = None) -> None:
        """Args: url: Address of the gateway. None if no gateway is known. ca_file: CA certificates that verify it."""
        self._url = None if url is None else url.rstrip("/")
        self._ca_file = ca_file
        self._waiting = 0

    async def send(
        self, stream: str, query: str, body: bytes, headers: Iterable[tuple[str, str]], authorization: bytes | None
    ) -> GatewayAnswer:
        """Send a request with records to the gateway, and return its response.

        Headers that can be stored with records, and those that describe the body, are sent to the gateway. Cookies aren't.

        Args: query: Query of the URL, without a question mark. authorization: Credentials of the user. None if the service
        doesn't authenticate its clients.

        Raises InvalidSettings if no gateway is known; GatewayUnavailable, RelayBusy; RelayOutcomeUnknown if the records may be
        in the log anyway.
        """
        if self._url is None:
            raise InvalidSettings(
                "this control service knows no HTTP gateway, so nothing was sent; set STRANDLINE_INGEST_URL to the address "
                "of one, for example http://127.0.0.1:8081, or send the records to a gateway yourself"
            )
        if self._waiting >= RELAYS_MAX:
            raise RelayBusy(
                f"{RELAYS_MAX} requests wait for the gateway; nothing was sent: send it again a little later"
            )
        sent = [(name, value) for name, value in headers if _is_for_gateway(name.lower())]
        if authorization is not None:
            sent.append(("authorization", authorization.decode("latin-1")))
        url = f"{self._url}/v1/streams/{quote(stream, safe='')}/records{'?' + query if query else ''}"
        self._waiting += 1
        try:
            async with asyncio.timeout(RELAY_TIMEOUT_S):
                return await self._ask(url, body, sent)
        except TimeoutError as error:
            raise RelayOutcomeUnknown(self._unknown(f"gave no response within {RELAY_TIMEOUT_S:g} s")) from error
        finally:
            self._waiting -= 1

    async def _ask(self, url: str, body: bytes, headers: list[tuple[str, str]]) -> GatewayAnswer:
        trust = None if self._ca_file is None or not url.startswith("https:") else ClientTls(self._ca_file)
        try:
            async with (
                httpx.AsyncClient(
                    verify=certificates_for(url, trust),
                    timeout=httpx.Timeout(RELAY_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
                    trust_env=False,
                    follow_redirects=False,
                ) as client,
                client.stream("POST", url, content=body, headers=headers) as answer,
            ):
                received = b""
                async for part in answer.aiter_bytes():
                    received += part
                    if len(received) > ANSWER_BYTES_MAX:
                        raise RelayOutcomeUnknown(self._unknown("gave a response that no gateway gives"))
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise GatewayUnavailable(
                f"the HTTP gateway at {self._shown} can't be reached ({error or 'timeout'}), so nothing was sent; start it, "
                "or correct STRANDLINE_INGEST_URL of the control service"
            ) from error
        except httpx.HTTPError as error:
            raise RelayOutcomeUnknown(
                self._unknown(f"broke the connection ({error or type(error).__name__})")
            ) from error
        if not (answer.status_code == 200 or answer.status_code >= 400):
            raise RelayOutcomeUnknown(self._unknown(f"answered {answer.status_code}, as no gateway does"))
        given = answer.headers.get("content-type", "")
        content_type = given if given.partition(";")[0].strip().lower() in _TEXT_TYPES else "text/plain"
        return GatewayAnswer(answer.status_code, received, content_type, answer.headers.get("retry-after"))

    @property
    def _shown(self) -> str:
        return without_credentials(self._url or "")

    def _unknown(self, what: str) -> str:
        return (
            f"the HTTP gateway at {self._shown} {what}. All, some, or none of the records may be in the log; compare the number "
            "of records of the stream before you send them again"
        )


def _is_for_gateway(header: str) -> bool:
    return header in _ABOUT_BODY or header not in HEADERS_NOT_FOR_RECORDS
