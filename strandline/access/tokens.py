"""Tokens: `sl_ID_SECRET`. The id finds the token in the ledger, and the secret proves it.

The secret has 256 random bits, so it can't be guessed, even from the ledger. Therefore the ledger stores a plain SHA-256 of it.
A slow, salted hash protects passwords, which people choose and others guess. It would cost each gateway tens of milliseconds
for a new token.

The digest is also the key with which the holder signs datagrams (signing.py). A reader of the ledger can sign as every holder,
like everyone who checks an HMAC, but can't log in.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from strandline.access.rights import ALL_STREAMS, Principal
from strandline.core.documents import NAME, NAME_FORM
from strandline.core.errors import InvalidDocument, Problem
from strandline.ledger.roles import TokenLedger
from strandline.ledger.states import Role, TokenRow

MARK = "sl_"
"""Prefix of every token, so that scanners for secrets in code and logs recognize it."""
_FORM = re.compile(rb"sl_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
NAME_CHARACTERS_MAX = 100


class Credential(NamedTuple):
    """Parts of a token."""

    token_id: str
    secret: bytes


@dataclass(frozen=True)
class MadeToken:
    """A new token. It can't be displayed again later."""

    row: TokenRow
    text: str = field(repr=False)


def read_token(text: bytes) -> Credential | None:
    """Return the parts of a token. None if it can't be a token."""
    found = _FORM.fullmatch(text)
    return Credential(found[1].decode("ascii"), found[2]) if found else None


def is_secret_of(row: TokenRow, secret: bytes) -> bool:
    """Return True if this is the token's secret. Compares in constant time."""
    return hmac.compare_digest(digest_of(secret), row.digest)


def digest_of(secret: bytes) -> str:
    """Return the form in which the ledger stores a secret."""
    return hashlib.sha256(secret).hexdigest()


def signing_key_of(row: TokenRow) -> bytes:
    """Return the key with which the token's holder signs datagrams: the digest, which the holder can compute from the secret."""
    return bytes.fromhex(row.digest)


def principal_of(row: TokenRow) -> Principal:
    """Return the principal of the token."""
    return Principal(row.name, row.role, frozenset(row.writes))


def make_token(
    ledger: TokenLedger,
    name: str,
    *,
    role: Role | None,
    writes: Sequence[str],
    lasts_ms: int | None,
    now_ms: int,
    by: str,
) -> MadeToken:
    """Make a token and store its digest in the ledger.

    Raises InvalidDocument for a wrong name or without rights; Conflict if a token has the name.
    """
    problems = [
        Problem(f"{wrong!r} can't be a name; expected {NAME_FORM}", path)
        for path, values in (("name", [name]), ("writes", writes))
        for wrong in values
        if not (NAME.fullmatch(wrong) or (path == "writes" and wrong == ALL_STREAMS))
    ]
    if len(name) > NAME_CHARACTERS_MAX:
        problems.append(Problem(f"a name can have at most {NAME_CHARACTERS_MAX} characters", "name"))
    if role is None and not writes:
        problems.append(Problem("the token would have no rights; give it a role, or a stream to write to", "role"))
    if problems:
        raise InvalidDocument(problems)
    token_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    expires_ms = None if lasts_ms is None else now_ms + lasts_ms
    row = ledger.create_token(
        token_id, name, digest_of(secret.encode()), role=role, writes=writes, expires_ms=expires_ms, by=by
    )
    rights = ", ".join([*([role.value] if role else []), *(f"write {stream}" for stream in writes)])
    facts = {"token": name, "role": role.value if role else None, "writes": [*writes], "expires_ms": expires_ms}
    ledger.record_event("token_made", f"token {name} was made: {rights}", facts=facts, principal=by)
    return MadeToken(row, f"{MARK}{token_id}_{secret}")


def revoke_token(ledger: TokenLedger, name: str, by: str) -> TokenRow:
    """Make a token invalid forever. Raises NotFound."""
    row = ledger.revoke_token(name, by)
    ledger.record_event("token_revoked", f"token {name} was revoked", facts={"token": name}, principal=by)
    return row
