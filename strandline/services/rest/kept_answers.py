"""Responses about several jobs, which clients share.

Each open page of the console requests them again and again, and each costs CPU time for every job in it. So a response is
computed once for all clients, kept for a multiple of the time that it took, and encoded, compressed, and hashed once. A client
that already has a response gets status 304 without a body (RFC 9110, section 13.1.2).
"""

from __future__ import annotations

import gzip
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

SHARE = 50.0
"""A response is kept for this multiple of the time that it took. So clients use at most a fiftieth of a core for it."""
_KEPT_MAX = 64
"""Maximum number of responses of a route that are kept: those about other jobs than all."""
_COMPRESSED_BYTES_MIN = 1_000
_COMPRESSION_LEVEL = 4
MaxAge = Annotated[
    int,
    Query(
        ge=0,
        le=60,
        description="Accept a response to an earlier request, whose data are at most this number of seconds old. The service "
        "keeps a response for fifty times the time that it took.",
    ),
]
NOT_MODIFIED: dict[int | str, dict[str, Any]] = {
    304: {"description": "The client has this response: its `If-None-Match` contains the `ETag`."}
}
"""Description of the status, for the routes."""


@dataclass(frozen=True)
class Answer:
    """A response in JSON."""

    body: bytes

    @cached_property
    def compressed(self) -> bytes:
        """The body, compressed with gzip."""
        return gzip.compress(self.body, _COMPRESSION_LEVEL, mtime=0)

    @cached_property
    def tag(self) -> str:
        """Entity tag. It is weak, because the body may be compressed."""
        return f'W/"{hashlib.blake2b(self.body, digest_size=12).hexdigest()}"'

    def to(self, request: Request) -> Response:
        """Return the response to a request. It has no body if the client already has this one."""
        headers = {"ETag": self.tag, "Vary": "Accept-Encoding"}
        if self.tag in request.headers.get("if-none-match", ""):
            return Response(None, 304, headers)
        body = self.body
        if len(body) >= _COMPRESSED_BYTES_MIN and "gzip" in request.headers.get("accept-encoding", ""):
            body, headers = self.compressed, headers | {"Content-Encoding": "gzip"}
        return Response(body, 200, headers, "application/json")


@dataclass
class _Kept:
    """Newest response to one question."""

    answer: Answer | None = None
    began_s: float = 0.0
    """Time at which its computation began: its data aren't older."""
    took_s: float = 0.0
    running: set[float] = field(default_factory=set)
    """Times at which the running computations began."""


class KeptAnswers:
    """Newest responses of one route. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()

    def respond(
        self, request: Request, question: Hashable, max_age_s: float, compute: Callable[[], BaseModel]
    ) -> Response:
        """Return the response to a request that asks this question. See `get`."""
        return self.get(question, max_age_s, lambda: compute().model_dump_json(by_alias=True).encode()).to(request)

    def get(self, question: Hashable, max_age_s: float, compute: Callable[[], bytes]) -> Answer:
        """Return a response to a question whose data were read at most `max_age_s` seconds ago. With 0, always compute it.

        If another request computes one that is new enough, wait for it.
        """
        asked_s = self._clock()
        with self._changed:
            one = self._kept.setdefault(question, _Kept())
            self._kept.move_to_end(question)
            while len(self._kept) > _KEPT_MAX:
                self._kept.popitem(last=False)
            while max_age_s > 0:
                age_s = asked_s - one.began_s
                is_kept = bool(one.running) or age_s <= SHARE * one.took_s
                if one.answer is not None and age_s <= max_age_s and is_kept:
                    return one.answer
                if not any(asked_s - began_s <= max_age_s for began_s in one.running):
                    break
                self._changed.wait()
            began_s = self._clock()
            one.running.add(began_s)
        body: bytes | None = None
        try:
            body = compute()
        finally:
            with self._changed:
                one.running.discard(began_s)
                if body is not None:
                    answer = Answer(body)
                    if one.answer is None or began_s >= one.began_s:  # else, a later request was faster
                        one.answer, one.began_s, one.took_s = answer, began_s, self._clock() - began_s
                self._changed.notify_all()
        return answer
