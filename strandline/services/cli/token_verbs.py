"""Commands for tokens, which give access to the REST API and the gateways.

If the ledger can be read, they need no token: a user who can read it is an admin already. So the first token is created there.
With `--url`, they use the REST API, as an admin.
"""

from __future__ import annotations

import getpass
import os
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.text import Text

from strandline.core.times.durations import parse_duration_ms
from strandline.ledger.states import Role, TokenRow
from strandline.services.cli import display
from strandline.services.cli.options import AsJson, DataDir, TokenFile, Url, connect
from strandline.services.cli.output import print_json, show

token_app = typer.Typer(help="Tokens: access to the REST API and the gateways.", no_args_is_help=True)

TokenName = Annotated[str, typer.Argument(help="Name of the user or program of the token.")]
OfLedger = Annotated[
    bool, typer.Option("--ledger", help="Use the ledger of STRANDLINE_LEDGER_URL directly, without a control service.")
]


@token_app.command("create", epilog="Example: strandline token create dashboard --role viewer --expires 90d")
def create_token(
    name: TokenName,
    role: Annotated[Role | None, typer.Option(help="Role of the token. Default: no role.")] = None,
    write: Annotated[
        list[str] | None,
        typer.Option(metavar="STREAM", help="Stream that the token may write to; * for all. May be repeated."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Time until the token expires, as 90d.")
    ] = None,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    of_ledger: OfLedger = False,
    as_json: AsJson = False,
) -> None:
    """Create a token and print it. It can't be shown again."""
    from strandline.access.tokens import make_token

    lasts_ms = _lasts_ms(expires)
    ledger_url = _ledger_url(data_dir, url, of_ledger)
    if ledger_url is None:
        body = {"name": name, "role": role.value if role else None, "writes": write or [], "expires": expires}
        with connect(data_dir, url, token_file) as client:
            answer = client.post("/v1/tokens", body)
    else:
        with closing(_open(ledger_url)) as ledger:
            now_ms = time.time_ns() // 1_000_000
            made = make_token(
                ledger, name, role=role, writes=write or [], lasts_ms=lasts_ms, now_ms=now_ms, by=_local_user()
            )
        answer = {"token": made.text, **_shown(made.row)}
    if as_json:
        print_json(answer)
    else:
        print(answer["token"])


@token_app.command("list", epilog="Example: strandline token list")
def list_tokens(
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    of_ledger: OfLedger = False,
    as_json: AsJson = False,
) -> None:
    """List all tokens, without their secrets."""
    ledger_url = _ledger_url(data_dir, url, of_ledger)
    if ledger_url is None:
        with connect(data_dir, url, token_file) as client:
            answer = client.get("/v1/tokens")
    else:
        with closing(_open(ledger_url)) as ledger:
            answer = {"tokens": [_shown(row) for row in ledger.tokens()]}
    now_ms = time.time_ns() // 1_000_000
    show(answer, as_json, lambda: [display.tokens_table(answer["tokens"], now_ms)])


@token_app.command("revoke", epilog="Example: strandline token revoke dashboard")
def revoke_token(
    name: TokenName,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    of_ledger: OfLedger = False,
    as_json: AsJson = False,
) -> None:
    """Revoke a token permanently. All gateways and the REST API refuse it within seconds."""
    from strandline.access import tokens

    ledger_url = _ledger_url(data_dir, url, of_ledger)
    if ledger_url is None:
        with connect(data_dir, url, token_file) as client:
            answer = client.post(f"/v1/tokens/{quote(name, safe='')}/revoke", None)
    else:
        with closing(_open(ledger_url)) as ledger:
            answer = _shown(tokens.revoke_token(ledger, name, _local_user()))
    show(answer, as_json, lambda: [Text(f"token {name} is revoked")])


def _ledger_url(data_dir: Path | None, url: str | None, of_ledger: bool) -> str | None:
    """Return the URL of the ledger if it can be used directly. None if the control service at `--url` must be used."""
    from strandline.core.settings import Settings  # takes a tenth of a second to import

    if of_ledger:
        return Settings.read().ledger_url
    if url and data_dir is None:
        return None
    from strandline.services.embedded.addresses import read_stack

    return read_stack(data_dir or Settings.read().data_dir).ledger_url


def _open(ledger_url: str) -> Any:
    from strandline.ledger.roles import TokenLedger

    return TokenLedger.open(ledger_url)


def _local_user() -> str:
    try:
        return f"{getpass.getuser()} (local)"
    except (KeyError, OSError):
        return f"user {os.geteuid()} (local)"


def _lasts_ms(expires: str | None) -> int | None:
    if expires is None:
        return None
    try:
        lasts_ms = parse_duration_ms(expires)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--expires") from error
    if lasts_ms <= 0:
        raise typer.BadParameter("must be longer than 0, for example 90d", param_hint="--expires")
    return lasts_ms


def _shown(row: TokenRow) -> dict[str, Any]:
    return {name: value for name, value in vars(row).items() if name != "digest"}
