"""Authorization of requests to a gateway: the token, and the right that the request needs."""

from __future__ import annotations

from strandline.access.authenticator import SEND_ONE, Authenticator
from strandline.access.rights import RequiredRight, require
from strandline.core.errors import Forbidden, StrandlineError, Unauthenticated
from strandline.ingest.gateway.serving.http_request import Headers, Refusal, Request

CHALLENGE: Headers = ((b"www-authenticate", b'Bearer realm="strandline"'),)


def refuse_without_token(authenticator: Authenticator, request: Request, stream: str) -> None:
    """Raise Refusal for a request without a token, or with the token of a known principal without the right to write.
    Admit a known principal with the right. For an unknown token, decide nothing: `require_right` queries the ledger
    later.

    Called when a request's head is complete, before its body is read. Costs one look-up.
    """
    header = request.headers.get(b"authorization")
    if header is None:
        raise Refusal(401, Unauthenticated.code, f"this needs a token; {SEND_ONE}", CHALLENGE)
    principal = authenticator.known(header)
    if principal is None:
        return
    request.is_admitted = principal.may_write(stream)
    if not request.is_admitted:
        detail = f"{principal.name} may not append records: that needs the right to write to stream {stream}"
        raise Refusal(403, Forbidden.code, detail)


async def require_right(
    authenticator: Authenticator, request: Request, need: RequiredRight, what: str, stream: str = ""
) -> None:
    """Return if the token of the request has the right. Raises Unauthenticated without a valid token, Forbidden without
    the right, and TransientError if the token can't be checked now. `what`: see `require`.
    """
    header = request.headers.get(b"authorization")
    principal = authenticator.known(header) if header is not None else None
    if principal is None:
        principal = await authenticator.admit(header)
    require(principal, need, what, stream)


def refusal_of(error: StrandlineError) -> Refusal:
    """Return the HTTP refusal for an error of `require_right`."""
    if isinstance(error, Unauthenticated):
        return Refusal(401, error.code, str(error), CHALLENGE)
    return Refusal(403 if isinstance(error, Forbidden) else 503, error.code, str(error))
