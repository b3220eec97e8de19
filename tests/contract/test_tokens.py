"""The guarantees of the ledger for tokens, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from strandline.core.errors import Conflict, NotFound
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import Role, TokenRow
from strandline.ledger.tokens import USE_NOTED_EVERY_MS


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    opened = Ledger.open(ledger_url)
    yield opened
    opened.close()


def make(ledger: Ledger, token_id: str, name: str = "sensor", expires_ms: int | None = None) -> TokenRow:
    return ledger.create_token(
        token_id, name, f"digest-{token_id}", role=Role.VIEWER, writes=["a", "b"], expires_ms=expires_ms, by="ops"
    )


def test_a_token_is_kept_revoked_once_and_counted(ledger: Ledger) -> None:
    assert ledger.token_counts() == (0, 0)
    row = make(ledger, "1")
    assert ledger.tokens() == ledger.live_tokens() == [row] and ledger.live_token("1") == row
    assert (row.role, row.writes, row.created_by, row.revoked_ms) == (Role.VIEWER, ["a", "b"], "ops", None)
    with pytest.raises(Conflict, match="There is a token sensor already"):
        make(ledger, "2")
    assert ledger.token_counts() == (1, 0)
    revoked = ledger.revoke_token("sensor", "boss")
    assert revoked.revoked_by == "boss" and revoked.revoked_ms is not None
    assert ledger.live_tokens() == [] and ledger.live_token("1") is None and ledger.tokens() == [revoked]
    with pytest.raises(NotFound):
        ledger.revoke_token("sensor", "boss")
    again = make(ledger, "2")
    assert ledger.live_tokens() == [again] and ledger.token_counts() == (2, 1)


def test_one_that_has_expired_makes_room_for_its_name(ledger: Ledger) -> None:
    make(ledger, "1", expires_ms=1)
    assert [row.id for row in ledger.live_tokens()] == ["1"], "the services check the clock themselves"
    make(ledger, "2")
    assert [row.id for row in ledger.live_tokens()] == ["2"] and ledger.token_counts() == (2, 1)


def test_of_two_that_are_made_at_once_one_is(ledger: Ledger) -> None:
    def try_to(token_id: str) -> bool:
        try:
            make(ledger, token_id)
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(try_to, "1234")) == 1


def test_uses_are_noted_once_an_hour(ledger: Ledger) -> None:
    make(ledger, "1")
    for at_ms, noted_ms in (
        (5_000, 5_000),
        (6_000, 5_000),
        (5_000 + USE_NOTED_EVERY_MS, 5_000 + USE_NOTED_EVERY_MS),
        (1, None),
    ):
        ledger.note_token_uses({"1": at_ms, "unknown": at_ms})
        assert ledger.tokens()[0].used_ms == (noted_ms or 5_000 + USE_NOTED_EVERY_MS)
    assert ledger.token_counts() == (1, 0)


def test_an_event_says_who_caused_it(ledger: Ledger) -> None:
    ledger.record_event("note", "by nobody")
    ledger.record_event("note", "by somebody", principal="ops")
    assert [event.principal for event in ledger.events()] == [None, "ops"]
