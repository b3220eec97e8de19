"""Channel `webhook`: an HTTP POST request with JSON, signed if the document names a key.

The signature is that of the specification Standard Webhooks: `webhook-signature: v1,BASE64` of HMAC-SHA256 over
`webhook-id.webhook-timestamp.body`. The host must be allowed, and redirects aren't followed, as for polling.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.documents import Path, did_you_mean
from strandline.core.errors import InvalidSettings, StrandlineError
from strandline.core.streams.entrances import (
    HEADER_NAME,
    POLL_HEADERS_OWN,
    SECRET_HEADERS,
    SecretSpec,
    problem_of_url,
    takes_secrets,
)
from strandline.ingest.poll.fetching import ByteBudget, HttpFetcher
from strandline.notices.channels.tools import ChannelTools, NotConfirmed, Outgoing
from strandline.notices.options import TextOrSecret
from strandline.notices.rendering import PLACEHOLDERS, placeholders

_PLACEHOLDER = re.compile(r"\{([A-Za-z_]+)\}")
_ANSWER_BYTES_MAX = 65_536
_DEPTH_MAX = 10


class WebhookSpec(DocumentModel):
    """Address of a webhook, and the content of its requests."""

    url: TextOrSecret
    """URL of http or https, or `{secret: NAME}` for a URL that is a secret itself. STRANDLINE_NOTICE_HOSTS must contain the
    host."""
    sign: SecretSpec | None = None
    """Secret whose value signs each request."""
    headers: dict[str, TextOrSecret] = Field(default_factory=dict, max_length=20)
    """Additional headers of the request: name -> value, or `{secret: NAME}`."""
    template: dict[str, Any] | None = None
    """JSON object to send. In strings, `{title}`, `{text}`, and other placeholders are replaced. `{secret: NAME}` is replaced
    by a secret. Default: the whole message."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if isinstance(self.url, str):
            if problem := problem_of_url(self.url):
                yield ("url",), problem
            elif not takes_secrets(self.url) and any(self._secrets()):
                yield ("url",), "is of http, but the request contains a secret; use https"
        for name, value in self.headers.items():
            if not HEADER_NAME.fullmatch(name):
                yield ("headers", name), f"{name!r} is not the name of an HTTP header"
            elif name.lower() in POLL_HEADERS_OWN or name.lower().startswith("webhook-"):
                yield ("headers", name), f"'{name}' is set by Strandline itself; remove it"
            elif isinstance(value, str) and name.lower() in SECRET_HEADERS:
                yield ("headers", name), "is a secret, but documents are visible to many users; write {secret: NAME}"
            elif isinstance(value, str) and (not value.isascii() or not value.isprintable() or len(value) > 2_000):
                yield (
                    ("headers", name),
                    "has a value that no header can have; expected at most 2,000 printable characters",
                )
        for path, text in _texts(self.template or {}):
            for name in _PLACEHOLDER.findall(text):
                if name not in PLACEHOLDERS:
                    yield (
                        ("template", *path),
                        f"there is no placeholder {{{name}}}{did_you_mean(name, PLACEHOLDERS)}",
                    )

    def _secrets(self) -> Iterator[str]:
        yield from (value.secret for value in self.headers.values() if isinstance(value, SecretSpec))
        yield from _secrets_in(self.template)


class Fields(DocumentModel):
    webhook: WebhookSpec | None = None
    """An HTTP POST request with JSON."""


def send(options: WebhookSpec, message: Outgoing, tools: ChannelTools) -> None:
    """Send a message. Raises StrandlineError unless the receiver responds with a status from 200 to 299."""
    secrets = tools.secrets
    url = options.url if isinstance(options.url, str) else _secret_url(options.url.secret, tools)
    body = json.dumps(_body(options, message, lambda name: secrets.value_for(name, url))).encode()
    headers = [
        ("Content-Type", "application/json"),
        ("User-Agent", "strandline"),
        *_signature(options, message, body, url, tools),
    ]
    for name, value in options.headers.items():
        headers.append((name, secrets.value_for(value.secret, url) if isinstance(value, SecretSpec) else value))
    fetcher = HttpFetcher(tools.allowed, ByteBudget(_ANSWER_BYTES_MAX), _ANSWER_BYTES_MAX, tools.tls)
    try:
        reply = asyncio.run(fetcher.ask(url, headers, tools.timeout_s, body))
    except InvalidSettings:
        raise
    except StrandlineError as error:
        raise NotConfirmed(f"webhook at {urlsplit(url).hostname}: {error}") from None
    if not 200 <= reply.status < 300:
        hint = "; redirects are not followed; use the URL of the redirect" if 300 <= reply.status < 400 else ""
        raise NotConfirmed(f"webhook at {urlsplit(url).hostname}: it responded with status {reply.status}{hint}")


def _secret_url(name: str, tools: ChannelTools) -> str:
    """Return a URL that is a secret. Raises InvalidSettings, which doesn't contain it."""
    url = tools.secrets.value(name)
    if problem_of_url(url):
        raise InvalidSettings(f"secret {name} is not a URL of http or https; correct it")
    return tools.secrets.value_for(name, url)


def _body(options: WebhookSpec, message: Outgoing, secret: Callable[[str], str]) -> Any:
    if options.template is None:
        return {"id": message.id, "notice": message.id.partition("@")[0], "made_ms": message.made_ms, **message.content}
    values = placeholders(message.content, message.id)
    return _filled(options.template, values, secret)


def _filled(part: Any, values: dict[str, str], secret: Callable[[str], str]) -> Any:
    if isinstance(part, dict):
        if part.keys() == {"secret"} and isinstance(part["secret"], str):
            return secret(part["secret"])
        return {name: _filled(value, values, secret) for name, value in part.items()}
    if isinstance(part, list):
        return [_filled(value, values, secret) for value in part]
    if isinstance(part, str):
        return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), part)
    return part


def _texts(part: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    if isinstance(part, str):
        yield path, part
    elif isinstance(part, dict):
        for name, value in part.items():
            yield from _texts(value, (*path, name))
    elif isinstance(part, list):
        for number, value in enumerate(part):
            yield from _texts(value, (*path, number))


def _secrets_in(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if part.keys() == {"secret"}:
            yield str(part["secret"])
        for value in part.values():
            yield from _secrets_in(value)
    elif isinstance(part, list):
        for value in part:
            yield from _secrets_in(value)


def _signature(
    options: WebhookSpec, message: Outgoing, body: bytes, url: str, tools: ChannelTools
) -> list[tuple[str, str]]:
    at = str(int(time.time()))
    headers = [("webhook-id", message.id), ("webhook-timestamp", at)]
    if options.sign is not None:
        # The key itself isn't sent, so it can sign a request to any allowed URL.
        key = key_of(tools.secrets.value(options.sign.secret))
        signed = hmac.digest(key, f"{message.id}.{at}.".encode() + body, "sha256")
        headers.append(("webhook-signature", f"v1,{base64.b64encode(signed).decode()}"))
    return headers


def key_of(secret: str) -> bytes:
    """Return the key of a secret. A secret that begins with `whsec_` is base64, as Standard Webhooks defines it."""
    if not secret.startswith("whsec_"):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        raise InvalidSettings(
            "the secret of a webhook begins with whsec_ but isn't base64 after it; correct it"
        ) from None
