"""The options that many verbs share, and what is read from them: settings, control service, times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # the verbs that need no stack begin sooner without it
    from strandline.services.client import ControlClient

DataDir = Annotated[
    Path | None,
    typer.Option(
        help="The stack's directory; default: STRANDLINE_DATA_DIR, else the place that docs/operating.md names."
    ),
]
Url = Annotated[
    str | None,
    typer.Option(envvar="STRANDLINE_URL", help="The control service's address, instead of a data directory."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Name = Annotated[str, typer.Argument(help="The job's name.")]
Timeout = Annotated[float, typer.Option(min=0, help="Give up waiting after so many seconds.")]
From = Annotated[
    str | None, typer.Option("--from", help="Only windows that end after this time: ISO 8601, UTC unless it says.")
]
To = Annotated[str | None, typer.Option("--to", help="Only windows that end at or before this time.")]


def connect(data_dir: Path | None, url: str | None) -> ControlClient:
    """The control service of `--data-dir`, else of `--url`, else of the usual data directory."""
    from strandline.services.client import ControlClient

    if url and data_dir is None:
        return ControlClient(url)
    from strandline.core.settings import Settings
    from strandline.services.embedded.addresses import read_stack

    return ControlClient(read_stack(data_dir or Settings.read().data_dir).api_url)


def parse_time(text: str | None, option: str) -> int | None:
    """An ISO 8601 time in ms since 1970; UTC when it names no zone."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {text!r} is no time; write 2026-11-21T10:00:00Z") from error
    since_1970 = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return since_1970 // timedelta(milliseconds=1)
