"""The ledger, opened by a process that Spark started: for one use, or kept by the process."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from strandline.core.errors import InvalidSettings, LedgerUnavailable

if TYPE_CHECKING:  # a worker that only reads the log starts sooner without SQL
    from strandline.ledger.roles import TaskLedger


def open_ledger(url: str) -> TaskLedger:
    """Open the ledger with this URL, which contains no password, because it was sent through Spark.

    If STRANDLINE_LEDGER_URL in the environment of this process is the same ledger with a password, that password is used.

    Raises LedgerUnavailable; InvalidSettings if the ledger is a file that doesn't exist on this machine.
    """
    from strandline.core.settings import Settings
    from strandline.ledger.database import sqlite_file, without_secrets
    from strandline.ledger.roles import TaskLedger

    own = Settings.read()
    own_url = own.ledger_url if "ledger_url" in own.model_fields_set else url
    is_named = without_secrets(own_url) == url
    file = sqlite_file(url)
    if file is not None and not file.exists():
        raise InvalidSettings(
            f"There is no ledger {file} on {socket.gethostname()}. If Spark runs on a cluster, set STRANDLINE_LEDGER_URL of the "
            "control services to a PostgreSQL database. Otherwise restore the file."
        )
    try:
        return TaskLedger.open(own_url if is_named else url)
    except LedgerUnavailable as error:
        if is_named:
            raise
        raise LedgerUnavailable(
            f"{error} STRANDLINE_LEDGER_URL in the environment of this process on {socket.gethostname()} is missing, or is "
            "another ledger. If the ledger needs a password, set the variable there, on a cluster for the Spark worker on each "
            "machine."
        ) from error


_kept: dict[str, TaskLedger] = {}
"""Open ledgers of this process, by URL."""


@contextmanager
def kept_ledger(url: str) -> Iterator[TaskLedger]:
    """Yield the ledger that this process keeps open, because opening it costs more queries than a small slice needs. After
    LedgerUnavailable or InvalidSettings the ledger is closed, and the next use opens it again.

    Raises what `open_ledger` raises.
    """
    if url not in _kept:
        _kept[url] = open_ledger(url)
    try:
        yield _kept[url]
    except (LedgerUnavailable, InvalidSettings):
        if (broken := _kept.pop(url, None)) is not None:
            broken.close()
        raise
