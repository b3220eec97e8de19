"""Tokens for Kafka's OAUTHBEARER, from an OAuth 2 token endpoint with the client's id and secret (RFC 6749, section
4.4).

librdkafka does the same itself; this module is for aiokafka, with which jobs read the log. All connections of the
process use a token for RENEWED_AT of its lifetime. Then a new one is requested, because a broker may end a connection
whose token has expired.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError, SaslAuthenticationFailed

from strandline.core.network.http_limits import ResponseTooLarge, bounded_stream, read_body

RENEWED_AT = 0.8
LASTS_S = 300.0
"""Lifetime in seconds of a token whose endpoint doesn't return one."""
ANSWER_BYTES_MAX = 100_000
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class OauthClient:
    """A client and its token endpoint."""

    token_url: str
    client_id: str
    secret: str = field(repr=False)
    scope: str | None = None
    ca_file: Path | None = None
    """CA certificates that verify the endpoint. None for those of the machine."""


class OauthTokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """The current token of one client. May be used by several threads and event loops."""

    def __init__(self, client: OauthClient, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._text = ""
        self._until_s = -float("inf")

    async def token(self) -> str:
        """Return the token.

        Raises KafkaConnectionError while the endpoint doesn't answer, and SaslAuthenticationFailed if it refuses.
        """
        return await asyncio.to_thread(self._present)

    def _present(self) -> str:
        with self._lock:
            now_s = self._clock_s()
            if now_s >= self._until_s:
                self._text, lasts_s = ask_for_token(self._client)
                self._until_s = now_s + RENEWED_AT * lasts_s
            return self._text


def ask_for_token(client: OauthClient) -> tuple[str, float]:
    """Request a token. Return it with its lifetime in seconds. Blocks.

    Raises the errors of `OauthTokens.token`. No message contains the request or the response.
    """
    form = {"grant_type": "client_credentials"} | ({"scope": client.scope} if client.scope else {})
    where = f"the token endpoint {client.token_url}"
    try:
        context = ssl.create_default_context(cafile=client.ca_file)
        with (
            httpx.Client(verify=context, timeout=_TIMEOUT_S, follow_redirects=False) as asking,
            bounded_stream(
                asking, "POST", client.token_url, _TIMEOUT_S, data=form, auth=(client.client_id, client.secret)
            ) as answer,
        ):
            body = read_body(answer, ANSWER_BYTES_MAX)
    except ResponseTooLarge as error:
        raise SaslAuthenticationFailed(f"{where}: {error}") from None
    except (httpx.HTTPError, OSError) as error:
        raise KafkaConnectionError(f"{where} does not answer: {error}") from None
    if answer.status_code >= 500:
        raise KafkaConnectionError(f"{where} answers {answer.status_code}")
    if answer.status_code != 200:
        raise SaslAuthenticationFailed(f"{where} answers {answer.status_code} to client {client.client_id}")
    try:
        return _token_in(body)
    except (ValueError, TypeError, KeyError):
        raise SaslAuthenticationFailed(
            f"{where} answers without a token for client {client.client_id}; is it the token endpoint?"
        ) from None


def _token_in(body: bytes) -> tuple[str, float]:
    found: dict[str, Any] = json.loads(body)
    text, lasts_s = found["access_token"], float(found.get("expires_in") or LASTS_S)
    if not isinstance(text, str) or not text.isascii() or not text.isprintable():
        raise ValueError("this can't be a token")
    return text, lasts_s
