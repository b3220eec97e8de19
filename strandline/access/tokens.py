"""Tokens: `sl_ID_SECRET`. The id finds the token in the ledger, and the secret proves it.

The secret has 256 random bits, so nobody finds it by trying, also not from the ledger. A plain SHA-256 of it is therefore enough
there: a slow, salted hash protects passwords, which people choose and others guess, and would cost each gateway tens of
milliseconds for a token that it has not seen yet. The digest is also the key by which the holder signs datagrams (signing.py):
who can read the ledger can sign as everybody, as who checks an HMAC always can, but can log in as nobody.
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
"""Begins every token, so that programs which look for secrets in code and logs know one when they see it."""
_FORM = re.compile(rb"sl_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
NAME_CHARACTERS_MAX = 100


class Credential(NamedTuple):
    """What a token holds."""

    token_id: str
    secret: bytes


@dataclass(frozen=True)
class MadeToken:
    """A new token. This is the only moment at which it can be shown."""

    row: TokenRow
    text: str = field(repr=False)


def read_token(text: bytes) -> Credential | None:
    """The parts of a token; None for what can't be one."""
    found = _FORM.fullmatch(text)
    return Credential(found[1].decode("ascii"), found[2]) if found else None


def is_secret_of(row: TokenRow, secret: bytes) -> bool:
    """Whether this is the token's secret. Takes as long for a nearly right one as for any other."""
    return hmac.compare_digest(digest_of(secret), row.digest)


def digest_of(secret: bytes) -> str:
    """What the ledger keeps of a secret."""
    return hashlib.sha256(secret).hexdigest()


def signing_key_of(row: TokenRow) -> bytes:
    """By which the token's holder signs datagrams: the digest itself, which the holder can make from the secret."""
    return bytes.fromhex(row.digest)


def principal_of(row: TokenRow) -> Principal:
    """Whom the token stands for."""
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
    """Make a token and keep its digest in the ledger. Raises InvalidDocument for a wrong name or none of the rights, Conflict
    for a name that has a token."""
    problems = [
        Problem(f"{wrong!r} can't be a name; expected {NAME_FORM}", path)
        for path, values in (("name", [name]), ("writes", writes))
        for wrong in values
        if not (NAME.fullmatch(wrong) or (path == "writes" and wrong == ALL_STREAMS))
    ]
    if len(name) > NAME_CHARACTERS_MAX:
        problems.append(Problem(f"a name has at most {NAME_CHARACTERS_MAX} characters", "name"))
    if role is None and not writes:
        problems.append(Problem("such a token could do nothing: give it a role, or a stream to write to", "role"))
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
    """Make a token invalid for ever. Raises NotFound."""
    row = ledger.revoke_token(name, by)
    ledger.record_event("token_revoked", f"token {name} was revoked", facts={"token": name}, principal=by)
    return row
