"""Session of the console: sign in with a token, show the rights, sign out."""

from __future__ import annotations

from typing import cast

from fastapi import APIRouter, Request, Response
from pydantic import Field

from strandline.access.authenticator import Authenticator
from strandline.access.oidc_client import OidcClient
from strandline.access.rights import ANYONE, REST_OPERATIONS, STRANGER, Principal, may
from strandline.access.sessions import Sessions
from strandline.core.errors import Conflict
from strandline.ledger.states import Role
from strandline.services.rest.guards.session_cookie import cookie, session_of
from strandline.services.rest.views import View

router = APIRouter(tags=["session"])

_TOKEN_CHARACTERS_MAX = 16_384


class SignIn(View):
    """A token to sign in with."""

    token: str = Field(min_length=1, max_length=_TOKEN_CHARACTERS_MAX, pattern=r"^[!-~]+$")
    """A token of Strandline or of the OIDC provider."""


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
    provider: ProviderView | None
    """The OIDC provider at which users of the console sign in; null if they need a token."""
    operations: dict[str, OperationView]
    """Operation, such as `POST /v1/jobs/{name}/stop` -> its right."""


@router.get("/v1/session")
def show_session(request: Request) -> SessionView:
    """Return the caller, by its token or by the cookie of the console, and the operations that it may use."""
    return _view(request, request.state.principal)


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
    response.headers["Set-Cookie"] = cookie(request.scope, sessions.open(authorization))
    return _view(request, principal)


@router.delete("/v1/session")
async def sign_out(request: Request, response: Response) -> SessionView:
    """Sign out of the console: the session ends, and the response removes the cookie."""
    session = session_of(request.scope)
    if session is not None:
        _sessions(request).close(session)
        response.headers["Set-Cookie"] = cookie(request.scope, "")
    return _view(request, ANYONE if _authenticator(request) is None else STRANGER)


def _view(request: Request, principal: Principal) -> SessionView:
    client = cast(OidcClient | None, request.app.state.oidc_client)
    is_known = principal is not ANYONE and principal is not STRANGER
    operations = {
        name: OperationView(needs=need.value, allowed=may(principal, need)) for name, need in REST_OPERATIONS.items()
    }
    return SessionView(
        requires_token=_authenticator(request) is not None,
        name=principal.name if is_known else None,
        role=principal.role,
        provider=None if client is None else ProviderView(**vars(client)),
        operations=operations,
    )


def _authenticator(request: Request) -> Authenticator | None:
    return cast(Authenticator | None, request.app.state.authenticator)


def _sessions(request: Request) -> Sessions:
    return cast(Sessions, request.app.state.sessions)
