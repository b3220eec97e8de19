"""Knowledge of a service about tokens: immediately, for how long, and while the ledger is unavailable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from strandline.access import authenticator as module
from strandline.access.authenticator import Authenticator, TokensUnavailable
from strandline.access.tokens import MARK, digest_of, read_token
from strandline.core.errors import Unauthenticated
from strandline.ledger.states import Role, TokenRow
from tests.support.tokens import WRONG, ToldBook

SECRET = b"S" * 43
ROW = TokenRow("0" * 16, "sensor", digest_of(SECRET), None, ["readings"], 0, "the test", None, None, None, None)
TOKEN = f"Bearer {MARK}{ROW.id}_{SECRET.decode()}".encode()
KEPT_S = 100.0


class Clock:
    """Seconds since the process began, and since 1970."""

    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def play(script: Callable[[Authenticator, ToldBook, Clock], Awaitable[None]]) -> None:
    book, clock = ToldBook(), Clock()
    door = Authenticator(book, look_s=1, kept_s=KEPT_S, clock_s=clock, now_s=clock)
    try:
        asyncio.run(script(door, book, clock))
    finally:
        door.close()


def test_a_token_that_was_made_a_moment_ago_is_found_and_known_then() -> None:
    async def script(door: Authenticator, book: ToldBook, clock: Clock) -> None:
        await door.look()
        book.add(ROW)
        assert (await door.admit(TOKEN)).name == "sensor"
        asked = len(book.asked)
        assert door.known(TOKEN) == await door.admit(TOKEN)
        assert len(book.asked) == asked, "the second time costs no question"

    play(script)


@pytest.mark.guarantee(
    "G322",
    "A revoked token is refused within seconds. While the ledger is down, no token is valid for longer than "
    "`STRANDLINE_TOKENS_GRACE_S`, and an unknown one gets 503. Guesses cost the ledger a bounded number of queries.",
    promise="each-operation-requires-its-right",
)
def test_a_revoked_token_is_refused_after_the_next_look_and_an_expired_one_at_once() -> None:
    async def script(door: Authenticator, book: ToldBook, clock: Clock) -> None:
        book.add(replace(ROW, expires_ms=1_010_000))
        await door.look()
        await door.admit(TOKEN)
        clock.now_s = 1_009.9
        door.forget_old()
        assert door.known(TOKEN) is not None
        clock.now_s = 1_010.0
        door.forget_old()
        assert door.known(TOKEN) is None
        with pytest.raises(Unauthenticated, match="has expired, or was revoked"):
            await door.admit(TOKEN)
        book.rows[ROW.id] = ROW
        book.revoked += 1
        await door.look()
        await door.admit(TOKEN)
        book.revoke(ROW.id)
        await door.look()
        assert door.known(TOKEN) is None
        with pytest.raises(Unauthenticated):
            await door.admit(TOKEN)

    play(script)


def test_a_token_that_is_revoked_while_it_is_looked_up_is_refused_after_the_next_look() -> None:
    async def script(door: Authenticator, book: ToldBook, clock: Clock) -> None:
        book.add(ROW)
        await door.look()
        book.revoke(ROW.id)
        await door.look()
        answered = book.rows | {ROW.id: ROW}
        book.live_token = answered.get  # type: ignore[method-assign]  # it was asked before the token was revoked
        assert (await door.admit(TOKEN)).name == "sensor"
        await door.look()
        assert door.known(TOKEN) is None

    play(script)


@pytest.mark.guarantee("G322")
def test_while_the_ledger_is_away_tokens_are_believed_for_a_while_and_never_for_ever() -> None:
    async def script(door: Authenticator, book: ToldBook, clock: Clock) -> None:
        book.add(ROW)
        await door.look()
        await door.admit(TOKEN)
        book.is_away = True
        clock.now_s += KEPT_S
        await door.look()
        assert door.known(TOKEN) is not None
        clock.now_s += 0.1
        door.forget_old()
        assert door.known(TOKEN) is None
        with pytest.raises(TokensUnavailable):
            await door.admit(TOKEN)
        book.is_away = False
        await door.look()
        assert (await door.admit(TOKEN)).name == "sensor"

    play(script)


def test_a_token_that_was_never_seen_is_unavailable_while_the_ledger_is_away_and_not_wrong() -> None:
    async def script(door: Authenticator, book: ToldBook, clock: Clock) -> None:
        book.is_away = True
        with pytest.raises(TokensUnavailable):
            await door.admit(TOKEN)

    play(script)


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        TOKEN[:-1],
        TOKEN + b"A",
        TOKEN[:-1] + b"T",
        b"Basic dXNlcjpwYXNz",
        b"Bearer a.b.c",
        TOKEN.replace(b"Bearer ", b"Bearer  "),
        TOKEN.removeprefix(b"Bearer "),
        b"\xff\x00 " + TOKEN,
    ],
)
def test_what_is_no_right_token_is_refused(header: bytes | None) -> None:
    async def script(door: Authenticator, book: ToldBook, clock: Clock) -> None:
        book.add(ROW)
        await door.look()
        with pytest.raises(Unauthenticated) as refused:
            await door.admit(header)
        assert SECRET.decode()[:20] not in str(refused.value)

    play(script)


@pytest.mark.guarantee("G322")
def test_guesses_cost_the_ledger_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNKNOWN_MAX", 3)

    async def script(door: Authenticator, book: ToldBook, clock: Clock) -> None:
        await door.look()
        for _ in range(10):
            with pytest.raises(Unauthenticated):
                await door.admit(f"Bearer {WRONG}".encode())
        assert book.asked.count("live_token") == 1, "what is unknown is not asked for again before the next look"
        refused = []
        for number in range(10):
            with pytest.raises((Unauthenticated, TokensUnavailable)) as error:
                await door.admit(f"Bearer {MARK}{number:016x}_{SECRET.decode()}".encode())
            refused.append(error.type)
        assert book.asked.count("live_token") == 3 and refused[-1] is TokensUnavailable
        await door.look()
        book.add(ROW)
        assert (await door.admit(TOKEN)).name == "sensor"

    play(script)


def test_what_is_known_is_bounded_and_uses_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KNOWN_MAX", 2)

    async def script(door: Authenticator, book: ToldBook, clock: Clock) -> None:
        book.add(ROW)
        await door.look()
        for header in (TOKEN, TOKEN.replace(b"Bearer", b"bearer"), TOKEN.replace(b"Bearer", b"Token")):
            await door.admit(header)
        assert len(door._known) == 1
        await door.look()
        assert book.used_ms == {ROW.id: 1_000_000}
        clock.now_s += module.CHECKED_AGAIN_S
        await door.look()
        await door.admit(TOKEN)
        await door.look()
        assert book.used_ms == {ROW.id: 4_600_000}, "a token that is used all the time is noted again after an hour"

    play(script)


def test_many_tokens_cost_a_look_nothing_while_none_changes() -> None:
    async def script(door: Authenticator, book: ToldBook, clock: Clock) -> None:
        book.add(ROW)
        for _ in range(5):
            await door.look()
        assert book.asked.count("live_tokens") == 1
        book.add(replace(ROW, id="1" * 16, role=Role.VIEWER))
        await door.look()
        assert book.asked.count("live_tokens") == 2

    play(script)


def test_a_token_reads_back() -> None:
    credential = read_token(TOKEN.removeprefix(b"Bearer "))
    assert credential == (ROW.id, SECRET)


def test_a_look_that_fails_in_any_way_does_not_end_the_looking() -> None:
    async def script(door: Authenticator, book: ToldBook, clock: Clock) -> None:
        book.add(ROW)
        await door.look()
        await door.admit(TOKEN)
        book.rows = None  # type: ignore[assignment]
        await door.look()
        assert door.known(TOKEN) is not None
        clock.now_s += KEPT_S + 1
        await door.look()
        assert door.known(TOKEN) is None

    play(script)
