"""Endpoints of a stream: MQTT topics, HTTP, UDP and TCP ports, and polled URLs."""

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
"""HTTP headers in lower case that are never stored with records."""
SECRET_HEADERS = frozenset(("authorization", "cookie", "proxy-authorization", "x-api-key", "api-key", "x-auth-token"))
POLL_HEADERS_OWN = frozenset((
    "accept-encoding", "connection", "content-length", "expect", "host", "if-modified-since", "if-none-match", "range", "te",
    "transfer-encoding", "upgrade",
))  # fmt: skip
MQTT_FILTER_BYTES_MAX = 65_535
"""Maximum length of a string in MQTT, in bytes of UTF-8 (5.0, section 1.5.4)."""


class MqttSpec(DocumentModel):
    """MQTT topics whose messages become records of the stream."""

    topics: list[str] = Field(min_length=1, max_length=COLUMNS_MAX)
    """Topic filters, as `farm/+/turbine/+`."""
    fields: dict[str, int] = Field(default_factory=dict)
    """Fields filled from the topic: name -> level, counted from 0."""

    retained: Literal["accept", "skip"] = "accept"
    """`skip` leaves out messages that a broker had retained before the bridge subscribed: values of unknown age."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        for number, topic in enumerate(self.topics):
            levels = topic.split("/")
            wild = any(("+" in level or "#" in level) and len(level) > 1 for level in levels)
            if not topic or "\0" in topic or wild or "#" in levels[:-1]:
                yield (
                    ("topics", number),
                    f"{topic!r} is not an MQTT topic filter; '+' matches one whole level, '#' matches all "
                    "remaining levels",
                )
                continue
            if len(topic.encode(errors="surrogatepass")) > MQTT_FILTER_BYTES_MAX:
                yield (
                    ("topics", number),
                    f"is longer than {MQTT_FILTER_BYTES_MAX:,} bytes, the maximum of MQTT; shorten it",
                )
                continue
            for name, level in self.fields.items():
                if level < 0 or (level >= len(levels) and levels[-1] != "#"):
                    yield (
                        ("fields", name),
                        f"level {level} is not in {topic!r}, which has levels 0 to {len(levels) - 1}",
                    )


class HttpSpec(DocumentModel):
    """Values that the head of an HTTP request adds to its records."""

    headers: dict[str, str] = Field(default_factory=dict, max_length=50)
    """Fields filled from a header if the record lacks them: name -> header, as `ce-source` or `x-device`."""
    accept: list[Literal["form", "query", "untyped"]] = Field(default_factory=list, max_length=3)
    """Additional requests that are accepted: `form` (application/x-www-form-urlencoded), `query` (a GET or an empty POST with a
    query), and `untyped` (a body without a content type)."""
    answer: str | None = Field(default=None, max_length=1_000)
    """Body of the response after all records of a request are confirmed, as `success`. Default: their number in JSON."""
    event_time: str | None = None
    """Timestamp field that the query parameter `event_time` fills. Default: the only timestamp of the schema."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        for name, header in self.headers.items():
            if not HEADER_NAME.fullmatch(header):
                yield ("headers", name), f"{header!r} is not the name of an HTTP header, as 'ce-source' or 'x-device'"
            elif header.lower() in HEADERS_NOT_FOR_RECORDS:
                yield (
                    ("headers", name),
                    f"'{header}' is never stored with records: it belongs to the connection, or is a secret",
                )

    @property
    def record_headers(self) -> dict[str, str]:
        """Field -> header of the record that fills it."""
        return {field: record_header(header) for field, header in self.headers.items()}


def record_header(header: str) -> str:
    """Return the header of a record that contains this HTTP header."""
    name = header.lower()
    return HEADER_CLOUD_EVENT_PREFIX + name[3:] if name.startswith("ce-") else HEADER_HTTP_PREFIX + name


class HmacSpec(DocumentModel):
    """Signed datagrams that the port accepts."""

    max_age: Retention = Field(default=300_000, json_schema_extra={"default": "5m"})
    """Maximum difference between a datagram's counter and the gateway's clock. With `forever`, counters don't have to be times.
    """

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.max_age != FOREVER_MS and self.max_age < 1_000:
            yield ("max_age",), f"is {format_retention(self.max_age)}; expected at least 1s"


class UdpSpec(DocumentModel):
    """A UDP port whose datagrams become records of the stream."""

    port: int = Field(ge=1, le=65_535)
    """Port number, to which the port offset of the stack is added."""
    framing: Literal["datagram", "lines"] = "datagram"
    """`datagram`: each datagram is a record. `lines`: each line is a record."""
    hmac: HmacSpec | None = None
    """Accept only signed datagrams, from clients that can write to the stream; `{}` for the defaults."""


class TcpSpec(DocumentModel):
    """A TCP port whose lines become records of the stream."""

    port: int = Field(ge=1, le=65_535)
    """Port number, to which the port offset of the stack is added."""
    ack: bool = False
    """True if the gateway responds with a line when records are confirmed."""


class SecretSpec(DocumentModel):
    """A value that is in the gateway's settings and in no document."""

    secret: str = Field(pattern=r"^[A-Za-z0-9_-]{1,100}$")
    """Name of the value in the gateway's settings."""


class PollSpec(DocumentModel):
    """A URL that is polled. The responses become records of the stream."""

    NOT_SUPPORTED: ClassVar[dict[str, str]] = {"explode": "belongs to the stream, next to 'poll': explode: $.items"}
    url: str
    """URL of http or https. The gateway's setting STRANDLINE_POLL_HOSTS lists the permitted hosts."""
    every: Duration = Field(default=60_000, json_schema_extra={"default": "60s"})
    """Interval between two requests, from 100ms to 1 day."""
    timeout: Duration = Field(default=10_000, json_schema_extra={"default": "10s"})
    """Maximum time for the whole response, up to 5 minutes."""
    framing: Literal["body", "json", "lines"] = "body"
    """`body`: a response is one record. `json`: it is a JSON object or an array of records. `lines`: each line is a record."""
    headers: dict[str, str | SecretSpec] = Field(default_factory=dict, max_length=20)
    """Headers of the request: name -> value, or `{secret: NAME}`."""
    fields: dict[str, str] = Field(default_factory=dict, max_length=50)
    """Fields that are added if a record lacks them: field -> string."""

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
                yield ("headers", name), f"'{name}' is set by the gateway itself; remove it"
            elif isinstance(value, SecretSpec):
                if not takes_secrets(self.url):
                    yield (
                        ("headers", name),
                        "is a secret, but the URL is http; secrets are sent only by https, or to this machine; "
                        "use https",
                    )
            elif name.lower() in SECRET_HEADERS:
                yield (
                    ("headers", name),
                    "is a secret, but documents are visible to many users; write {secret: NAME}",
                )
            elif not value.isascii() or not value.isprintable() or len(value) > 2_000:
                yield (
                    ("headers", name),
                    "has a value that no header can have; expected at most 2,000 printable characters",
                )


def takes_secrets(url: str) -> bool:
    """Return True if a request to this URL can contain a secret: other machines can't read it in transit."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return True  # `problem_of_url` reports it
    return parts.scheme != "http" or is_loopback(parts.hostname or "")


def problem_of_url(url: str) -> str | None:
    """Return the reason why the URL can't be polled. None if it can."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        return f"is not a URL: {error}"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "is not a URL of http or https, for example http://10.0.0.5/status"
    if parts.username is not None or parts.password is not None:
        return (
            "contains a user or a password, but documents are visible to many users; send them in headers, "
            "as {secret: NAME}"
        )
    if (
        parts.fragment
        or not url.isascii()
        or any(not " " < character < "\x7f" for character in url)
        or len(url) > 2_000
    ):
        return (
            "contains a fragment, spaces, or other characters that must be percent-encoded, or more than 2,000 "
            "characters"
        )
    return None
