"""Session of the console: sign in with a token, renew it, show the rights, sign out."""

from __future__ import annotations

import time
from typing import cast

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import Field

from strandline.access.authenticator import Authenticator
from strandline.access.oidc_client import OidcClient
from strandline.access.oidc_renewal import renew_tokens
from strandline.access.rights import ALL_STREAMS, ANYONE, REST_OPERATIONS, STRANGER, Principal, may
from strandline.access.sessions import Session, Sessions
from strandline.core.errors import Conflict, Unauthenticated
from strandline.ledger.states import Role
from strandline.services.rest.guards.session_cookie import cookie, session_of
from strandline.services.rest.views import View

router = APIRouter(tags=["session"])

_TOKEN_CHARACTERS_MAX = 16_384
_RENEWED_S = 10.0
"""Time in seconds in which several tabs of a browser share one renewal."""


class SignIn(View):
    """A token to sign in with."""

    token: str = Field(min_length=1, max_length=_TOKEN_CHARACTERS_MAX, pattern=r"^[!-~]+$")
    """A token of Strandline or of the OIDC provider."""
    refresh_token: str | None = Field(default=None, min_length=1, max_length=_TOKEN_CHARACTERS_MAX, pattern=r"^[!-~]+$")
    """Refresh token of the OIDC provider, with which the service can renew the session. It stays in the service's memory."""


class OperationView(View):
    """The right that an operation needs."""

    needs: str
    """`open`, or the role."""
    allowed: bool
    """True if the caller has this right."""


class ProviderView(View):
    """The OIDC provider at which users of the console sign in, by an authorization code with PKCE."""

    issuer: str
    client_id: str
    scope: str
    audience: str


class SessionView(View):
    """The caller, and the operations that it may use."""

    requires_token: bool
    """True if the service authenticates its clients. If not, each client may do everything."""
    name: str | None
    """Name of the caller; null if it has not signed in."""
    role: Role | None
    ends_in_ms: int | None
    """Time until the session of the cookie ends; null without a session."""
    renews: bool
    """True if a renewal by the service makes the session last longer."""
    writes: list[str]
    """Streams to which the caller can write; `*` for all."""
    provider: ProviderView | None
    """The OIDC provider at which users of the console sign in; null if they need a token."""
    operations: dict[str, OperationView]
    """Operation, such as `POST /v1/jobs/{name}/stop` -> its right."""


@router.get("/v1/session")
def show_session(request: Request) -> SessionView:
    """Return the caller, by its token or by the cookie of the console, and the operations that it may use."""
    return _view(request, request.state.principal, _session(request))


@router.post("/v1/session", status_code=201)
async def sign_in(request: Request, wanted: SignIn, response: Response) -> SessionView:
    """Sign in to the console with a token: the response sets a cookie. Programs send the token with each request
    instead.
    """
    authenticator = _authenticator(request)
    if authenticator is None:
        raise Conflict("this service doesn't authenticate clients (STRANDLINE_AUTH=none); use it without signing in")
    cookie(request.scope, "checked before the token is read")
    authorization = b"Bearer " + wanted.token.encode("ascii")
    principal = await authenticator.admit(authorization)
    sessions = _sessions(request)
    former = session_of(request.scope)
    if former is not None:
        sessions.close(former)
    identifier = sessions.open(authorization, wanted.refresh_token, principal.name)
    response.headers["Set-Cookie"] = cookie(request.scope, identifier)
    return _view(request, principal, sessions.find(identifier))


@router.post("/v1/session/renewal")
async def renew_session(request: Request) -> SessionView:
    """Renew the token of the console's session at the OIDC provider. The session and its cookie stay. 401 if the
    provider doesn't renew it, 409 without a session: then a new sign-in is necessary.
    """
    session, authenticator = _session(request), _authenticator(request)
    if session is None or authenticator is None:
        raise Conflict("there is no session to renew; sign in")
    async with session.renewing:
        if not _sessions(request).was_renewed(session, _RENEWED_S):
            await _renew(request, session, authenticator)
    return _view(request, await authenticator.admit(session.authorization), session)


async def _renew(request: Request, session: Session, authenticator: Authenticator) -> None:
    """Replace the tokens of the session. Raises Unauthenticated, TokensUnavailable."""
    client = cast(OidcClient | None, request.app.state.oidc_client)
    if client is None or session.refresh_token is None:
        raise Unauthenticated("the service can't renew this session; sign in again")
    try:
        # the guard refuses a request with a cookie that has no Origin
        page = request.headers["origin"]
        tokens = await run_in_threadpool(renew_tokens, client, session.refresh_token, page)
        authorization = b"Bearer " + tokens.access_token.encode("ascii")
        principal = await authenticator.admit(authorization)
        if principal.name != session.holder:
            raise Unauthenticated("the OIDC provider has renewed the sign-in of another user; sign in again")
    except Unauthenticated:
        session.refresh_token = None
        raise
    _sessions(request).renew(session, authorization, tokens.refresh_token)


@router.delete("/v1/session")
async def sign_out(request: Request, response: Response) -> SessionView:
    """Sign out of the console: the session ends, and the response removes the cookie."""
    session = session_of(request.scope)
    if session is not None:
        _sessions(request).close(session)
        response.headers["Set-Cookie"] = cookie(request.scope, "")
    return _view(request, ANYONE if _authenticator(request) is None else STRANGER, None)


def _view(request: Request, principal: Principal, session: Session | None) -> SessionView:
    client = cast(OidcClient | None, request.app.state.oidc_client)
    is_known = principal is not ANYONE and principal is not STRANGER
    operations = {
        name: OperationView(needs=need.value, allowed=may(principal, need)) for name, need in REST_OPERATIONS.items()
    }
    return SessionView(
        requires_token=_authenticator(request) is not None,
        name=principal.name if is_known else None,
        role=principal.role,
        ends_in_ms=None if session is None else int(1_000 * min(_times_left_s(request, session))),
        renews=session is not None and session.refresh_token is not None and _is_renewal_useful(request, session),
        writes=[ALL_STREAMS] if principal.may_write(ALL_STREAMS) else sorted(principal.writes),
        provider=None if client is None else ProviderView(**vars(client)),
        operations=operations,
    )


def _times_left_s(request: Request, session: Session) -> tuple[float, float]:
    """Return the seconds until the session ends, and until its token expires. 0 for a token that isn't valid any more."""
    authenticator = _authenticator(request)
    expiry_s = None if authenticator is None else authenticator.expiry_s(session.authorization)
    token_s = 0.0 if expiry_s is None else max(0.0, expiry_s - time.time())
    return max(0.0, _sessions(request).left_s(session)), token_s


def _is_renewal_useful(request: Request, session: Session) -> bool:
    """Return True if the token expires before the session ends."""
    session_s, token_s = _times_left_s(request, session)
    return token_s < session_s


def _session(request: Request) -> Session | None:
    """Return the session of the cookie. None if there is none, or if the request has a token of its own."""
    identifier = session_of(request.scope)
    if identifier is None or "authorization" in request.headers:
        return None
    return _sessions(request).find(identifier)


def _authenticator(request: Request) -> Authenticator | None:
    return cast(Authenticator | None, request.app.state.authenticator)


def _sessions(request: Request) -> Sessions:
    return cast(Sessions, request.app.state.sessions)
