"""Authentication and rights of requests to the REST API, and the audit log.

The guard is the first check. So a request without the right costs no body, no route, and no query to Kafka.
access/rights.py contains the right that each operation needs. An operation without an entry is refused to every client.

The audit log has a line `action=audit` for each request that can change something, and for each request that was refused to a
client. It contains the principal, the operation, its objects, the address of the client, and the status. Requests without a
valid token are logged at most every few seconds.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from typing import NamedTuple

import structlog
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strandline.access.authenticator import Authenticator
from strandline.access.rights import (
    ANYONE,
    PAGE_OPERATIONS,
    REST_OPERATIONS,
    STRANGER,
    Principal,
    RequiredRight,
    require,
)
from strandline.access.sessions import Sessions
from strandline.core.errors import Forbidden, StrandlineError, TransientError, Unauthenticated
from strandline.services.rest.guards.session_cookie import is_of_own_page, session_of
from strandline.services.rest.problems import RETRY_AFTER_S, problem_response

logger = structlog.get_logger()

CHALLENGE = 'Bearer realm="strandline"'
SAY_AGAIN_S = 10.0
_TELLS_VIEWERS_MORE = frozenset({"GET /readyz", "GET /v1/session"})
"""Open operations that return more to viewers. The others ignore tokens: `/healthz` must not wait for the ledger."""


class _Operation(NamedTuple):
    name: str
    """Method and path, as `POST /v1/jobs/{name}/start`."""
    need: RequiredRight
    path: re.Pattern[str]


_OPERATIONS: dict[str, list[_Operation]] = {}
"""Method -> its operations."""
for _name, _need in (REST_OPERATIONS | PAGE_OPERATIONS).items():
    _method, _, _path = _name.partition(" ")
    _OPERATIONS.setdefault(_method, []).append(_Operation(_name, _need, compile_path(_path)[0]))


class TokenGuard:
    """ASGI middleware: responds with 401, 403, and 503 itself, and passes the principal to the routes
    (`scope["state"]["principal"]`). Without an authenticator, every client that reaches the service can do everything."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator | None, sessions: Sessions | None = None) -> None:
        self._app = app
        self._authenticator = authenticator
        self._sessions = sessions or Sessions()
        self._said_s = -SAY_AGAIN_S
        self._unsaid = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        operation, about = _operation_of(scope["method"], scope["path"])
        principal = ANYONE
        is_page = operation is not None and operation.name in PAGE_OPERATIONS
        has_cookie = self._authenticator is not None and session_of(scope) is not None
        if has_cookie and not is_page and not is_of_own_page(scope):
            foreign = Forbidden(
                "a request with the cookie of the console must come from its own page; send a token instead"
            )
            await _refuse(scope, receive, send, 403, foreign, {})
            return
        if self._authenticator is not None and (operation is None or operation.need is not RequiredRight.OPEN):
            try:
                principal = await self._authenticator.admit(authorization_of(scope, self._sessions))
            except Unauthenticated as error:
                self._say_unauthenticated(scope)
                await _refuse(scope, receive, send, 401, error, {"WWW-Authenticate": CHALLENGE})
                return
            except TransientError as error:
                await _refuse(scope, receive, send, 503, error, {"Retry-After": str(RETRY_AFTER_S)})
                return
            if operation is not None:
                try:
                    require(principal, operation.need, operation.name, about.get("name", ""))
                except Forbidden as error:
                    _audit(scope, principal, operation, about, 403)
                    await _refuse(scope, receive, send, 403, error, {})
                    return
        elif self._authenticator is not None and operation is not None:
            principal = await _caller_of_open(self._authenticator, self._sessions, operation, scope)
        scope.setdefault("state", {})["principal"] = principal
        if operation is None or operation.need in (RequiredRight.OPEN, RequiredRight.METRICS, RequiredRight.VIEWER):
            await self._app(scope, receive, send)
            return

        async def send_and_say(message: Message) -> None:
            if message["type"] == "http.response.start":
                _audit(scope, principal, operation, about, message["status"])
            await send(message)

        await self._app(scope, receive, send_and_say)

    def _say_unauthenticated(self, scope: Scope) -> None:
        """Log refused requests. Every client that reaches the port can cause these lines, so their number is limited."""
        self._unsaid += 1
        now_s = time.monotonic()
        if now_s - self._said_s >= SAY_AGAIN_S:
            logger.warning(
                "requests without a valid token were refused",
                action="audit", requests=self._unsaid, method=scope["method"], path=scope["path"][:200], peer=_peer(scope),
                outcome=401,
            )  # fmt: skip
            self._said_s, self._unsaid = now_s, 0


def _operation_of(method: str, path: str) -> tuple[_Operation | None, dict[str, str]]:
    """Return the operation, and the values of the names in its path. None if no route has the path."""
    for one in _OPERATIONS.get("GET" if method == "HEAD" else method, ()):
        found = one.path.match(path)
        if found is not None:
            return one, found.groupdict()
    return None, {}


def methods_of(path: str) -> list[str]:
    """Return the methods of a path."""
    return sorted(method for method, those in _OPERATIONS.items() if any(one.path.match(path) for one in those))


def authorization_of(scope: Scope, sessions: Sessions) -> bytes | None:
    """Return the header `Authorization`, or that of the console's session if the request has none."""
    found = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
    if len(found) > 1:
        raise Unauthenticated("the request has Authorization twice; send it once")
    if found:
        return bytes(found[0])
    session = session_of(scope)
    return None if session is None else sessions.authorization(session)


async def _caller_of_open(
    authenticator: Authenticator, sessions: Sessions, operation: _Operation, scope: Scope
) -> Principal:
    """Return the caller of an open operation. A token isn't required, but used by operations that return more to viewers."""
    if operation.name in _TELLS_VIEWERS_MORE:
        with suppress(Unauthenticated, TransientError):
            return await authenticator.admit(authorization_of(scope, sessions))
    return STRANGER


async def _refuse(
    scope: Scope, receive: Receive, send: Send, status: int, error: StrandlineError, headers: dict[str, str]
) -> None:
    headers = headers | {"Connection": "close"}  # its body was not read
    await problem_response(scope["path"], status, error.code, str(error), headers=headers)(scope, receive, send)


def _peer(scope: Scope) -> str:
    """Return the address of the client. Only a proxy in STRANDLINE_CONTROL_TRUSTED_PROXIES can specify another address than
    that of its connection."""
    return str((scope.get("client") or ("unknown",))[0])


def _audit(scope: Scope, principal: Principal, operation: _Operation, about: dict[str, str], status: int) -> None:
    logger.info(
        "a request was refused" if status == 403 else "a request was processed",
        action="audit", principal=principal.name, operation=operation.name, about=about, peer=_peer(scope), outcome=status,
    )  # fmt: skip
