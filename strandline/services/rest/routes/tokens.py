"""Tokens: create, list, and revoke them. Only the response that creates a token contains it."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import Field

from strandline.access import tokens
from strandline.core.documents import NAME
from strandline.core.errors import Conflict, InvalidDocument, Problem
from strandline.core.times.durations import parse_duration_ms
from strandline.ledger.states import Role, TokenRow
from strandline.services.rest.dependencies import Caller, Control
from strandline.services.rest.views import MadeTokenView, TokenList, TokenView, View

router = APIRouter(tags=["tokens"])


class TokenRequest(View):
    """Request to create a token."""

    name: str = Field(pattern=f"^{NAME.pattern}$", max_length=tokens.NAME_CHARACTERS_MAX)
    role: Role | None = None
    writes: list[Annotated[str, Field(pattern=rf"^(\*|{NAME.pattern})$")]] = Field(default=[], max_length=1_000)
    """Streams that the token may write to; `*` for all."""
    expires: str | None = Field(default=None, pattern=r"^([1-9][0-9]{0,8}(ms|s|m|h|d|w))+$", max_length=30)
    """Time until the token expires, as `90d`; null: never."""


@router.post("/v1/tokens", status_code=201)
def make_token(control: Control, caller: Caller, wanted: TokenRequest, response: Response) -> MadeTokenView:
    """Create a token. Only this response contains it."""
    made = tokens.make_token(
        control.ledger,
        wanted.name,
        role=wanted.role,
        writes=wanted.writes,
        lasts_ms=_duration_ms(wanted.expires),
        now_ms=time.time_ns() // 1_000_000,
        by=_known(control, caller),
    )
    response.headers["Cache-Control"] = "no-store"
    return MadeTokenView(token=made.text, **_view(made.row).model_dump())


@router.get("/v1/tokens")
def list_tokens(control: Control) -> TokenList:
    """Return all tokens without their secrets, by name, also revoked ones."""
    return TokenList(tokens=[_view(row) for row in control.ledger.tokens()])


@router.post("/v1/tokens/{name}/revoke")
def revoke_token(control: Control, caller: Caller, name: str) -> TokenView:
    """Revoke a token permanently. All gateways and the REST API refuse it within seconds."""
    return _view(tokens.revoke_token(control.ledger, name, _known(control, caller)))


def _known(control: Control, caller: str | None) -> str:
    """Return the caller. Raise Conflict if the service doesn't authenticate clients: a token would then have no use."""
    if caller is None or not control.requires_token:
        raise Conflict(
            "this service doesn't authenticate clients, so it creates no token; set STRANDLINE_AUTH=tokens, and create the "
            "first token on the machine of the ledger: `strandline token create NAME --role admin --data-dir DIR`"
        )
    return caller


def _duration_ms(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        lasts_ms = parse_duration_ms(text)
    except ValueError as error:
        raise InvalidDocument([Problem(str(error), "expires")]) from error
    if lasts_ms <= 0:
        raise InvalidDocument([Problem("must be longer than 0, for example 90d", "expires")])
    return lasts_ms


def _view(row: TokenRow) -> TokenView:
    shown = {name: value for name, value in vars(row).items() if name != "digest"}
    return TokenView(**shown)
