"""The contract of a dialect: the request targets, request forms, and responses of one family of HTTP clients.

To add a dialect, write a module with a subclass of `Dialect` and a function `target_of(url)`, and list the function in
`targets.TARGETS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from strandline.core.streams.stream import StreamSpec
from strandline.ingest.gateway.framing import Form, Framed
from strandline.ingest.gateway.serving.http_request import Refusal, Request, Response, problem
from strandline.ingest.http.request_headers import EventHead


class BodyForm(NamedTuple):
    """Arrangement of the records in a request body."""

    form: Form
    event: EventHead | None = None
    """Attributes of a CloudEvent in binary mode. None if the request isn't one."""
    is_coded: bool = True
    """True if `content-encoding` is removed before the body is split; False if the coding is part of the record."""


class Dialect(ABC):
    """One dialect of HTTP. Without state; one instance serves all requests."""

    dropped_after: ClassVar[tuple[int, ...]] = ()
    """Temporary statuses after which these clients drop their records. They get 503 instead."""

    methods: ClassVar[tuple[bytes, ...]] = (b"POST",)
    """Methods of requests that append records."""

    @abstractmethod
    def body_form(self, request: Request) -> BodyForm:
        """Return the arrangement of the body. Raises Refusal if no stream accepts such a request."""

    def logged_query(self, query: bytes) -> bytes:
        """Return the part of the URL's query that is stored with each record."""
        return query

    def require_stream(self, spec: StreamSpec) -> None:
        """Raise Refusal if the stream doesn't accept requests of this dialect."""
        return

    @abstractmethod
    def accepted(self, request: Request, framed: Framed) -> Response:
        """Return the response after all records that aren't in `framed.refused` were confirmed."""

    def refused(self, request: Request, refusal: Refusal) -> Response:
        """Return the response to a refused request. Its status makes the clients resend if a retry can help."""
        if refusal.status in self.dropped_after:
            refusal = Refusal(503, refusal.code, refusal.detail, refusal.headers)
        return self.refusal_answer(request, refusal)

    def refusal_answer(self, request: Request, refusal: Refusal) -> Response:
        """Return the response with the status of the refusal."""
        return problem(refusal, request.path)


class Target(NamedTuple):
    """Stream and dialect of a request that appends records."""

    stream: str
    dialect: Dialect
