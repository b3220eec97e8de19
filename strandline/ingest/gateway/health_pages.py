"""`/healthz`, `/readyz`, and `/metrics` of a gateway process.

`/healthz` and `/readyz` answer to every client under any `Host`. `/metrics` answers under the names of the gateway, and
only to clients that may read (access/rights.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from functools import lru_cache

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from strandline.access.authenticator import Authenticator
from strandline.access.rights import GATEWAY_PAGES
from strandline.core.errors import StrandlineError, TransientError
from strandline.core.host_names import HEALTH_PATHS, LOOPBACK_NAMES, host_name, is_address, is_own_page
from strandline.ingest.gateway.admission import refusal_of, require_right
from strandline.ingest.gateway.serving.http_request import (
    BodyBudget,
    Refusal,
    Request,
    Response,
    method_not_allowed,
    problem,
)

logger = structlog.get_logger()

HEADS_BYTES_MAX = 4 * 1024 * 1024
"""Maximum size in bytes of all heads that are arriving."""
_HOST_BYTES_MAX = 300
"""Maximum length in bytes of a `Host` header. The longest host name has 253."""
_METRICS_PATH = "/metrics"
_OK = Response(200, b'{"status":"ok"}')


class HostNames:
    """The names under which a gateway answers, so that no web page can use it: addresses, loopback names, and `names`.

    If `names` contains `*`, the gateway answers under any name.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = frozenset(name.lower() for name in names) | LOOPBACK_NAMES

    def check(self, request: Request) -> None:
        """Raise Refusal if the `Host` isn't a name of the gateway, or if a page of another site sent the request. A
        request without a `Host` passes: every browser sends it, some devices don't.
        """
        host = request.headers.get(b"host", b"")
        if host and not (len(host) <= _HOST_BYTES_MAX and _is_among(host, self._names)):
            name = host[:_HOST_BYTES_MAX].decode("latin-1")
            detail = (
                f"{name!r} is not a name of this gateway; use its address, or add the name to STRANDLINE_GATEWAY_NAMES"
            )
            raise Refusal(421, "misdirected_request", detail)
        origin = request.headers.get(b"origin")
        if origin is not None and not is_own_page(origin.decode("latin-1"), host.decode("latin-1")):
            raise Refusal(
                403, "forbidden", f"pages of {origin[:_HOST_BYTES_MAX].decode('latin-1')!r} may not use this gateway"
            )


@lru_cache(maxsize=1_000)
def _is_among(host_header: bytes, names: frozenset[str]) -> bool:
    name = host_name(host_header.decode("latin-1"))
    return name in names or "*" in names or is_address(name)


class HealthServer:
    """An application for `HttpServer`. The HTTP gateway passes every request to it that contains no records.

    `check_log` raises TransientError while the gateway can't append records to the log.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        check_log: Callable[[], Awaitable[None]],
        host_names: HostNames,
        hint: str = "",
        authenticator: Authenticator | None = None,
    ) -> None:
        self._registry = registry
        self._check_log = check_log
        self._host_names = host_names
        self._authenticator = authenticator
        self._hint = hint
        """End of the message that a path doesn't exist."""
        self._is_ready = True
        self.budget = BodyBudget(body_bytes_max=0, bytes_held_max=HEADS_BYTES_MAX)

    def admit(self, request: Request) -> None:
        """Raise Refusal for an unknown path, a method other than GET and HEAD, or `/metrics` under a foreign host name."""
        path = request.path
        if path not in HEALTH_PATHS and path != _METRICS_PATH:
            raise Refusal(404, "not_found", f"there is no {path} here{self._hint}")
        if request.method not in (b"GET", b"HEAD"):
            raise method_not_allowed(request, "GET", "HEAD")
        if path == _METRICS_PATH:
            self._host_names.check(request)

    async def answer(self, request: Request) -> Response:
        """Return the page, or the refusal."""
        request.let_go()
        if request.refusal is not None:
            return problem(request.refusal, request.path)
        if request.path == _METRICS_PATH:
            if self._authenticator is not None:
                try:
                    await require_right(self._authenticator, request, GATEWAY_PAGES["GET /metrics"], "read the metrics")
                except StrandlineError as error:
                    return problem(refusal_of(error), request.path)
            return Response(200, generate_latest(self._registry), CONTENT_TYPE_LATEST.encode())
        if request.path == "/readyz":
            try:
                await self._check_log()
            except TransientError as error:
                if self._is_ready:
                    logger.warning("records can't be persisted", action="not_ready", error=str(error))
                self._is_ready = False
                # If clients authenticate, an anonymous client doesn't learn the address of Kafka.
                hint = "records can't be persisted now; the gateway's log has the reason"
                detail = str(error) if self._authenticator is None else hint
                return problem(Refusal(503, error.code, detail), request.path)
            self._is_ready = True
        return _OK

    def note_disconnected(self, request: Request) -> None:
        """Do nothing: these requests aren't counted."""
