"""How records come into a stream: MQTT, HTTP, UDP, TCP and URLs that are polled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import Duration, Retention
from strandline.core.documents import COLUMNS_MAX, Path
from strandline.core.host_names import is_loopback
from strandline.core.record_headers import HEADER_CLOUD_EVENT_PREFIX, HEADER_HTTP_PREFIX
from strandline.core.times.durations import FOREVER_MS, format_duration, format_retention

HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
HEADERS_NOT_FOR_RECORDS = frozenset((
    "accept", "accept-encoding", "accept-language", "authorization", "cache-control", "connection", "content-encoding",
    "content-length", "content-type", "cookie", "expect", "host", "idempotency-key", "keep-alive", "origin", "pragma",
    "proxy-authorization", "referer", "te", "trailer", "transfer-encoding", "upgrade", "user-agent",
))  # fmt: skip
"""Of HTTP; lower case."""
SECRET_HEADERS = frozenset(("authorization", "cookie", "proxy-authorization", "x-api-key", "api-key", "x-auth-token"))
POLL_HEADERS_OWN = frozenset((
    "accept-encoding", "connection", "content-length", "expect", "host", "if-modified-since", "if-none-match", "range", "te",
    "transfer-encoding", "upgrade",
))  # fmt: skip
MQTT_FILTER_BYTES_MAX = 65_535
"""Of a text in MQTT, in UTF-8 (5.0, section 1.5.4)."""


class MqttSpec(DocumentModel):
    """Which MQTT topics flow into the stream."""

    topics: list[str] = Field(min_length=1, max_length=COLUMNS_MAX)
    """Topic filters, as `farm/+/turbine/+`."""
    fields: dict[str, int] = Field(default_factory=dict)
    """Fields taken from the topic: name -> level, counted from 0."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        for number, topic in enumerate(self.topics):
            levels = topic.split("/")
            wild = any(("+" in level or "#" in level) and len(level) > 1 for level in levels)
            if not topic or "\0" in topic or wild or "#" in levels[:-1]:
                yield (
                    ("topics", number),
                    f"{topic!r} is not an MQTT topic filter; '+' stands for one whole level, '#' for all the last ones",
                )
                continue
            if len(topic.encode(errors="surrogatepass")) > MQTT_FILTER_BYTES_MAX:
                yield (
                    ("topics", number),
                    f"is longer than {MQTT_FILTER_BYTES_MAX:,} bytes, which MQTT can't say; shorten it",
                )
                continue
            for name, level in self.fields.items():
                if level < 0 or (level >= len(levels) and levels[-1] != "#"):
                    yield (
                        ("fields", name),
                        f"level {level} is not in {topic!r}, which has levels 0 to {len(levels) - 1}",
                    )


class HttpSpec(DocumentModel):
    """What the head of an HTTP request adds to its records."""

    headers: dict[str, str] = Field(default_factory=dict, max_length=50)
    """Fields taken from a header where a record lacks them: name -> header, as `ce-source` or `x-device`."""
    accept: list[Literal["form", "query", "untyped"]] = Field(default_factory=list, max_length=3)
    """Requests that are accepted in addition: a `form` (application/x-www-form-urlencoded), a GET or an empty POST with a
    `query`, and a body without a content type (`untyped`)."""
    answer: str | None = Field(default=None, max_length=1_000)
    """Body of the response after all records of a request were confirmed, as `success`; by default their number in JSON."""
    event_time: str | None = None
    """The timestamp that the query's parameter `event_time` fills; by default the schema's only one."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        for name, header in self.headers.items():
            if not HEADER_NAME.fullmatch(header):
                yield ("headers", name), f"{header!r} is not the name of an HTTP header, as 'ce-source' or 'x-device'"
            elif header.lower() in HEADERS_NOT_FOR_RECORDS:
                yield (
                    ("headers", name),
                    f"'{header}' is never kept with records: it belongs to the connection, or is a secret",
                )

    @property
    def record_headers(self) -> dict[str, str]:
        """The fields that a header fills -> that header as the record has it."""
        return {field: record_header(header) for field, header in self.headers.items()}


def record_header(header: str) -> str:
    """The header of a record that holds this header of HTTP."""
    name = header.lower()
    return HEADER_CLOUD_EVENT_PREFIX + name[3:] if name.startswith("ce-") else HEADER_HTTP_PREFIX + name


class HmacSpec(DocumentModel):
    """Which signed datagrams are taken."""

    max_age: Retention = Field(default=300_000, json_schema_extra={"default": "5m"})
    """How far a datagram's counter may be from the gateway's clock, or `forever`: then counters need not be times."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.max_age != FOREVER_MS and self.max_age < 1_000:
            yield ("max_age",), f"is {format_retention(self.max_age)}; expected 1s at least"


class UdpSpec(DocumentModel):
    """A UDP port that flows into the stream."""

    port: int = Field(ge=1, le=65_535)
    """Moves with the stack's port offset."""
    framing: Literal["datagram", "lines"] = "datagram"
    """Whether a datagram is one record, or one record a line."""
    hmac: HmacSpec | None = None
    """Take signed datagrams only, from who may write to the stream; `{}` for the default."""


class TcpSpec(DocumentModel):
    """A TCP port that flows into the stream, one record a line."""

    port: int = Field(ge=1, le=65_535)
    """Moves with the stack's port offset."""
    ack: bool = False
    """Whether the gateway answers with a line when records are confirmed."""


class SecretSpec(DocumentModel):
    """A value that stands in the gateway's settings and in no document."""

    secret: str = Field(pattern=r"^[A-Za-z0-9_-]{1,100}$")
    """Its name there."""


class PollSpec(DocumentModel):
    """A URL that is asked again and again; each answer flows into the stream."""

    NOT_SUPPORTED: ClassVar[dict[str, str]] = {"explode": "stands in the stream, beside 'poll': explode: $.items"}
    url: str
    """Of http or https. The gateway's setting STRANDLINE_POLL_HOSTS says which hosts may be asked."""
    every: Duration = Field(default=60_000, json_schema_extra={"default": "60s"})
    """How often, from 100ms to 1 day."""
    timeout: Duration = Field(default=10_000, json_schema_extra={"default": "10s"})
    """How long the whole answer may take, up to 5 minutes."""
    framing: Literal["body", "json", "lines"] = "body"
    """Whether an answer is one record, a JSON object or an array of records, or one record a line."""
    headers: dict[str, str | SecretSpec] = Field(default_factory=dict, max_length=20)
    """Headers of the request: name -> value, or `{secret: NAME}`."""
    fields: dict[str, str] = Field(default_factory=dict, max_length=50)
    """What the records lack: field -> text."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if problem := problem_of_url(self.url):
            yield ("url",), problem
        if not 100 <= self.every <= 86_400_000:
            yield ("every",), f"is {format_duration(self.every)}; expected 100ms to 1d"
        if not 1 <= self.timeout <= 300_000:
            yield ("timeout",), f"is {format_duration(self.timeout)}; expected up to 5m"
        for name, value in self.headers.items():
            if not HEADER_NAME.fullmatch(name):
                yield ("headers", name), f"{name!r} is not the name of an HTTP header"
            elif name.lower() in POLL_HEADERS_OWN:
                yield ("headers", name), f"'{name}' is what the gateway itself sends; remove it"
            elif isinstance(value, SecretSpec):
                if not takes_secrets(self.url):
                    yield (
                        ("headers", name),
                        "is a secret, and the URL is of http: secrets are sent by https only, or to this machine; use https",
                    )
            elif name.lower() in SECRET_HEADERS:
                yield (
                    ("headers", name),
                    "is a secret, and documents are shown to many; write {secret: NAME}",
                )
            elif not value.isascii() or not value.isprintable() or len(value) > 2_000:
                yield (
                    ("headers", name),
                    "has a value that no header can have; expected at most 2,000 printable characters",
                )


def takes_secrets(url: str) -> bool:
    """Return True if a request to this URL may contain a secret: nobody else can read it on its way."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return True  # `problem_of_url` reports it
    return parts.scheme != "http" or is_loopback(parts.hostname or "")


def problem_of_url(url: str) -> str | None:
    """Why the URL can't be asked."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        return f"is not a URL: {error}"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "is not a URL of http or https, as http://10.0.0.5/status"
    if parts.username is not None or parts.password is not None:
        return "holds a user or a password, and documents are shown to many; send them in headers, as {secret: NAME}"
    if (
        parts.fragment
        or not url.isascii()
        or any(not " " < character < "\x7f" for character in url)
        or len(url) > 2_000
    ):
        return (
            "holds a fragment, spaces or other characters that must be percent-encoded, or more than 2,000 characters"
        )
    return None
