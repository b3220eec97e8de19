"""Tokens for tests: one of each kind, and a configurable ledger of tokens."""

from __future__ import annotations

import time
from collections.abc import Mapping

from strandline.access.tokens import make_token, read_token, revoke_token
from strandline.core.errors import LedgerUnavailable
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import Role, TokenRow

WRONG = "sl_0123456789abcdef_" + "A" * 43


def tokens_of_each_kind(ledger: Ledger, stream: str) -> dict[str, str]:
    """Kind -> a token: of each role, one that may only write to the stream, and those that are worth nothing."""
    now_ms = time.time_ns() // 1_000_000

    def make(
        name: str, role: Role | None, writes: tuple[str, ...] = (), lasts_ms: int | None = None, at_ms: int = now_ms
    ) -> str:
        return make_token(ledger, name, role=role, writes=writes, lasts_ms=lasts_ms, now_ms=at_ms, by="the test").text

    made = {role.value: make(role.value, role) for role in Role}
    made["writer"] = make("writer", None, (stream,))
    made["writer-elsewhere"] = make("writer-elsewhere", None, (f"not-{stream}",))
    made["expired"] = make("expired", Role.ADMIN, lasts_ms=1_000, at_ms=now_ms - 10_000)
    made["revoked"] = make("revoked", Role.ADMIN)
    revoke_token(ledger, "revoked", "the test")
    made["wrong secret"] = made["admin"][:-1] + ("A" if made["admin"][-1] != "A" else "B")
    made["unknown"] = WRONG
    made["no token"] = "none"
    return made


def secret_of(token: str) -> str:
    """The part that proves it. It may hold the sign that parts it from the others."""
    credential = read_token(token.encode())
    assert credential is not None
    return credential.secret.decode()


class ToldBook:
    """Tokens that a test puts in, and a ledger whose outage a test can switch on."""

    def __init__(self) -> None:
        self.rows: dict[str, TokenRow] = {}
        self.revoked = 0
        self.is_away = False
        self.asked: list[str] = []
        self.used_ms: dict[str, int] = {}

    def add(self, row: TokenRow) -> None:
        self.rows[row.id] = row

    def revoke(self, token_id: str) -> None:
        del self.rows[token_id]
        self.revoked += 1

    def live_tokens(self) -> list[TokenRow]:
        self._ask("live_tokens")
        return list(self.rows.values())

    def live_token(self, token_id: str) -> TokenRow | None:
        self._ask("live_token")
        return self.rows.get(token_id)

    def token_counts(self) -> tuple[int, int]:
        self._ask("token_counts")
        return len(self.rows) + self.revoked, self.revoked

    def note_token_uses(self, used_ms: Mapping[str, int]) -> None:
        self._ask("note_token_uses")
        self.used_ms |= used_ms

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.is_away:
            raise LedgerUnavailable("the ledger is away")
