"""Tokens: make, list and revoke them. A token is shown once, in the answer that makes it."""

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
    """A token that is to be made."""

    name: str = Field(pattern=f"^{NAME.pattern}$", max_length=tokens.NAME_CHARACTERS_MAX)
    role: Role | None = None
    writes: list[Annotated[str, Field(pattern=rf"^(\*|{NAME.pattern})$")]] = Field(default=[], max_length=1_000)
    """The streams that it may write to; `*` for all."""
    expires: str | None = Field(default=None, pattern=r"^([1-9][0-9]{0,8}(ms|s|m|h|d|w))+$", max_length=30)
    """After which time it is refused, as `90d`; null: never."""


@router.post("/v1/tokens", status_code=201)
def make_token(control: Control, caller: Caller, wanted: TokenRequest, response: Response) -> MadeTokenView:
    """Make a token, and show it this once."""
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
    """All tokens, without what is secret of them, by name; also those that were revoked."""
    return TokenList(tokens=[_view(row) for row in control.ledger.tokens()])


@router.post("/v1/tokens/{name}/revoke")
def revoke_token(control: Control, caller: Caller, name: str) -> TokenView:
    """Make a token invalid for ever, within seconds at every door."""
    return _view(tokens.revoke_token(control.ledger, name, _known(control, caller)))


def _known(control: Control, caller: str | None) -> str:
    """Who asks. Raises Conflict while nobody has to say so: a token that anyone may make would be worth nothing later."""
    if caller is None or not control.asks_for_tokens:
        raise Conflict(
            "this service asks nobody for a token, so it makes none: set STRANDLINE_AUTH=tokens; the first token is made where "
            "the ledger is, with `strandline token create NAME --role admin --data-dir DIR`"
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
        raise InvalidDocument([Problem("a token lasts longer than no time", "expires")])
    return lasts_ms


def _view(row: TokenRow) -> TokenView:
    shown = {name: value for name, value in vars(row).items() if name != "digest"}
    return TokenView(**shown)
