"""Token of the admin of an embedded stack: a file that only its owner can read. Local commands and the example use it.

It gives its reader no additional rights: a reader of the data directory can also read and write the ledger in it.
"""

from __future__ import annotations

import time
from contextlib import closing, suppress
from pathlib import Path

from strandline.access.tokens import is_secret_of, make_token, read_token, revoke_token
from strandline.core.errors import NotFound, StackError
from strandline.ledger.roles import TokenLedger
from strandline.ledger.states import Role
from strandline.services.processes.private_files import write_private

ADMIN_TOKEN_FILE = "admin.token"  # noqa: S105  # a file's name
ADMIN_NAME = "local-admin"


def read_admin_token(data_dir: Path) -> str | None:
    """Return the token. None if the stack has none that this user can read."""
    try:
        return (data_dir / ADMIN_TOKEN_FILE).read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def ensure_admin_token(data_dir: Path, ledger_url: str) -> None:
    """Keep the stack's token if the ledger knows it. Otherwise replace it by a new token.

    Raises StackError if the file can't be written, and the errors of the ledger.
    """
    with closing(TokenLedger.open(ledger_url)) as ledger:
        now_ms = time.time_ns() // 1_000_000
        known = read_token((read_admin_token(data_dir) or "").encode())
        row = ledger.live_token(known.token_id) if known is not None else None
        if known is not None and row is not None and is_secret_of(row, known.secret) and row.is_valid_at(now_ms):
            return
        with suppress(NotFound):  # before the first start, there is none
            revoke_token(ledger, ADMIN_NAME, "strandline up")
        made = make_token(
            ledger, ADMIN_NAME, role=Role.ADMIN, writes=[], lasts_ms=None, now_ms=now_ms, by="strandline up"
        )
    _write(data_dir / ADMIN_TOKEN_FILE, made.text)


def _write(path: Path, text: str) -> None:
    try:
        write_private(path, f"{text}\n".encode("ascii"))
    except OSError as error:
        raise StackError(
            f"can't write the admin's token to {path}: {error.strerror}; correct this, then start the stack again"
        ) from error
