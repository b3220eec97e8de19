"""Authorization of requests to a gateway: the token, and the right that the request needs."""

from __future__ import annotations

from strandline.access.authenticator import SEND_ONE, Authenticator
from strandline.access.rights import RequiredRight, require
from strandline.core.errors import Forbidden, StrandlineError, Unauthenticated
from strandline.ingest.gateway.serving.http_request import Headers, Refusal, Request

CHALLENGE: Headers = ((b"www-authenticate", b'Bearer realm="strandline"'),)


def refuse_without_token(authenticator: Authenticator, request: Request, stream: str) -> None:
    """Admit a principal that is known to have the right, and refuse a request that can be refused without the ledger.

    Called when a request's head is complete, before its body is read. Costs one look-up. Raises Refusal.
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
    """Raises Unauthenticated or Forbidden, and TransientError if the principal can't be determined now."""
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
