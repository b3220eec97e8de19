"""Tokens in the ledger: clients that may use a service, by the digest of a secret that only the holder has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from strandline.core.errors import Conflict, NotFound
from strandline.ledger.models import tokens
from strandline.ledger.part import Part
from strandline.ledger.states import Role, TokenRow

USE_NOTED_EVERY_MS = 3_600_000
"""Minimum interval in ms between two writes of a token's last use."""


class TokenReader(Part):
    """Reads tokens."""

    def tokens(self) -> list[TokenRow]:
        """Return all tokens, including revoked ones, by name and then by age."""
        return self._tokens(sa.select(tokens).order_by(tokens.c.name, tokens.c.created_ms, tokens.c.id))

    def live_tokens(self) -> list[TokenRow]:
        """Return the tokens that were not revoked; some may have expired."""
        return self._tokens(sa.select(tokens).where(tokens.c.revoked_ms.is_(None)))

    def live_token(self, token_id: str) -> TokenRow | None:
        """Return the token. None if it doesn't exist or was revoked."""
        found = self._tokens(sa.select(tokens).where(tokens.c.id == token_id, tokens.c.revoked_ms.is_(None)))
        return found[0] if found else None

    def token_counts(self) -> tuple[int, int]:
        """Return the number of tokens ever created, and the number of revoked ones.

        While both are unchanged, so are the live tokens.
        """
        with self._database.reading("count the tokens") as connection:
            made, revoked = connection.execute(sa.select(sa.func.count(), sa.func.count(tokens.c.revoked_ms))).one()
            return int(made), int(revoked)

    def _tokens(self, wanted: sa.Select[Any]) -> list[TokenRow]:
        with self._database.reading("read the tokens") as connection:
            return [TokenRow(*row) for row in connection.execute(wanted)]


class TokenUses(Part):
    """Records when tokens were last used."""

    def note_token_uses(self, used_ms: Mapping[str, int]) -> None:
        """Record the last uses: id -> time. A use that was recorded within the last hour stays."""
        with self._database.writing("note when tokens were used") as connection:
            for token_id, at_ms in used_ms.items():
                is_older = tokens.c.used_ms.is_(None) | (tokens.c.used_ms <= at_ms - USE_NOTED_EVERY_MS)
                connection.execute(sa.update(tokens).where(tokens.c.id == token_id, is_older).values(used_ms=at_ms))


class Tokens(Part):
    """Creates and revokes tokens. Each method is one transaction."""

    def create_token(
        self,
        token_id: str,
        name: str,
        digest: str,
        *,
        role: Role | None,
        writes: Sequence[str],
        expires_ms: int | None,
        by: str,
    ) -> TokenRow:
        """Store a new token.

        It replaces an expired token with the same name. Raises Conflict if there is a valid one.
        """
        with self._database.writing(f"make token {name}") as connection:
            now_ms = self._clock_ms()
            row = TokenRow(token_id, name, digest, role, [*writes], now_ms, by, expires_ms, None, None, None)
            known = _live(connection, name)
            if known is not None and known.is_valid_at(now_ms):
                raise Conflict(
                    f"There is a token {name} already; revoke it first, or choose another name for the new one."
                )
            if known is not None:
                _revoke(connection, known, now_ms, by)
            connection.execute(sa.insert(tokens).values(vars(row)))
            return row

    def revoke_token(self, name: str, by: str) -> TokenRow:
        """Revoke a token. Raises NotFound."""
        with self._database.writing(f"revoke token {name}") as connection:
            known = _live(connection, name)
            if known is None:
                raise NotFound(f"There is no token {name} that could be revoked; see all with: strandline token list")
            return _revoke(connection, known, self._clock_ms(), by)


def _live(connection: sa.Connection, name: str) -> TokenRow | None:
    wanted = sa.select(tokens).where(tokens.c.name == name, tokens.c.revoked_ms.is_(None)).with_for_update()
    row = connection.execute(wanted).first()
    return TokenRow(*row) if row else None


def _revoke(connection: sa.Connection, row: TokenRow, now_ms: int, by: str) -> TokenRow:
    connection.execute(sa.update(tokens).where(tokens.c.id == row.id).values(revoked_ms=now_ms, revoked_by=by))
    return replace(row, revoked_ms=now_ms, revoked_by=by)
