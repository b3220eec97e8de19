"""Options that many commands share, and what is read from them: settings, control service, times."""

from __future__ import annotations

import os
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.core.errors import InvalidSettings, PermanentError

if TYPE_CHECKING:  # the commands that need no stack start sooner without it
    from strandline.services.client import ControlClient
    from strandline.services.trust import ClientTls

DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Directory of the stack. Default: STRANDLINE_DATA_DIR, else /var/lib/strandline for root, or "
        "~/.local/share/strandline."
    ),
]
Url = Annotated[
    str | None,
    typer.Option(envvar="STRANDLINE_URL", help="Address of the control service, instead of a data directory."),
]
IgnoredDataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Accepted for consistency and ignored: this command doesn't use a stack."),
]
IgnoredUrl = Annotated[
    str | None, typer.Option("--url", help="Accepted for consistency and ignored: this command doesn't use a stack.")
]
TokenFile = Annotated[
    Path | None,
    typer.Option(help="File with the token. Default: STRANDLINE_TOKEN; with a data directory, the token of the stack."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the response as JSON.")]
Wide = Annotated[bool, typer.Option("--wide", help="Print long values of tables in full on a terminal.")]
"""`commands` adds it to each command that has `AsJson`."""
Name = Annotated[str, typer.Argument(help="Name of the job.")]
Timeout = Annotated[float, typer.Option(min=0, help="Maximum time to wait in seconds.")]
From = Annotated[
    str | None,
    typer.Option("--from", help="Only windows that end after this time (ISO 8601; UTC if it names no zone)."),
]
To = Annotated[str | None, typer.Option("--to", help="Only windows that end at or before this time.")]


_trust: ContextVar[ClientTls | None] = ContextVar("trust", default=None)
"""TLS files of the options before the command."""


def trust(ca: Path | None, certificate: Path | None, key: Path | None) -> None:
    """Set the TLS files for `https` connections of `connect`."""
    if ca is not None or certificate is not None:
        from strandline.services.trust import ClientTls

        _trust.set(ClientTls(ca, certificate, key))


def connect(data_dir: Path | None, url: str | None, token_file: Path | None = None) -> ControlClient:
    """Return the client of the control service: of `--data-dir`, otherwise of `--url`, otherwise of the default data directory.
    It uses the token for that service. The token of a stack takes precedence over STRANDLINE_TOKEN, which can belong to another
    platform. Raises InvalidSettings for a file without a token."""
    from strandline.services.client import TOKEN_VARIABLE, ControlClient

    token = os.environ.get(TOKEN_VARIABLE) or None
    if token_file is not None:
        token = _read_token(token_file)
    if url and data_dir is None:
        return ControlClient(url, token=token, trust=_trust.get())
    from strandline.core.settings import Settings
    from strandline.services.embedded.addresses import read_stack
    from strandline.services.embedded.admin_token import read_admin_token

    addresses = read_stack(data_dir or Settings.read().data_dir)
    own = read_admin_token(Path(addresses.data_dir)) if token_file is None else None
    return ControlClient(addresses.api_url, token=own or token)


def _read_token(file: Path) -> str:
    try:
        token = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"can't read the token file {file}: {error}; check its path and its rights") from error
    if not token or any(character.isspace() for character in token):
        raise InvalidSettings(f"the token file {file} must contain one token and nothing else")
    return token


def parse_time(text: str | None, option: str) -> int | None:
    """Return an ISO 8601 time in ms since 1970; UTC if it has no zone. None for None."""
    if text is None:
        return None
    from strandline.core.times.durations import parse_time_ms

    try:
        return parse_time_ms(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from error


def check_directory_of(file: Path | None) -> None:
    """Raise PermanentError if the output file can't be created. Call this before long work."""
    if file is not None and not file.parent.is_dir():
        raise PermanentError(
            f"can't write {file}: the directory {file.parent} doesn't exist; create it, or pass another file"
        )
