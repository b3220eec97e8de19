"""What a door knows of tokens: those of the ledger, read every few seconds, off the event loop.

- A token that was right before costs one look-up in a dictionary. Its keys are hashed under a key of this process, so how long a
  look-up takes says nothing about how near a guess is; the secret itself is compared in constant time.
- A token that was made a moment ago is found at once: the ledger is asked for an id that is not known. What it does not know is
  not asked for again before the next look, nor are more than UNKNOWN_MAX ids: guesses cost the ledger nothing.
- A token that was revoked is refused after the next look (`look_s`); one that was looked up meanwhile, after the next but one.
- While the ledger is away, tokens stay as they were last seen, for `kept_s` and no longer: records don't wait for the ledger, and
  no token is right for ever because nobody can be asked. Tokens of an OIDC provider are forgotten when their signing key is
  withdrawn, or when the keys are too old (`OidcIssuer`). After that, and for a token that was never seen, the answer is that it
  can't be told now (503), not that the token is wrong.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import structlog

from strandline.access.rights import Principal
from strandline.access.tokens import Credential, is_secret_of, principal_of, read_token, signing_key_of
from strandline.core.errors import LedgerUnavailable, TransientError, Unauthenticated
from strandline.ledger.states import TokenRow

logger = structlog.get_logger()

OIDC_PREFIX = "oidc:"
"""Prefix of the names of principals with a token of the OIDC provider. The name of a token of Strandline has no colon."""
UNKNOWN_MAX = 1_000
LOOKING_MAX = 50
KNOWN_MAX = 50_000
"""Over it all are forgotten: each is then checked again, which costs no question to the ledger."""
CHECKED_AGAIN_S = 3_600.0
"""A token that is used all the time is checked again, and noted as used, so often."""
_TICK_S = 1.0
_SCHEMES = (b"bearer", b"token")
"""`Token` is what clients of InfluxDB say."""
SEND_ONE = "send a token as `Authorization: Bearer TOKEN`"
T = TypeVar("T")


class TokensUnavailable(TransientError):
    """Whether a token is right can't be told now."""

    code = "tokens_unavailable"


class TokenBook(Protocol):
    """Where the tokens are kept: the ledger. Every method blocks, and may raise LedgerUnavailable."""

    def live_tokens(self) -> list[TokenRow]: ...
    def live_token(self, token_id: str) -> TokenRow | None: ...
    def token_counts(self) -> tuple[int, int]: ...
    def note_token_uses(self, used_ms: Mapping[str, int]) -> None: ...


class Issuer(Protocol):
    """Who else gives out tokens: an OIDC provider."""

    def principal(self, text: bytes) -> tuple[Principal, float, str]:
        """Return the holder of a token, its expiry in seconds since 1970, and the mark of its signing key. Blocks. Raises
        Unauthenticated, TransientError."""

    def trusts(self, mark: str) -> bool:
        """Return True if tokens of the key with this mark are still valid. Doesn't block."""

    def refresh(self) -> None:
        """Read the keys again if they are due. Blocks."""


class _Known(NamedTuple):
    principal: Principal
    row: TokenRow | None
    """The token; None for one of an issuer."""
    until_s: float
    """Seconds since 1970."""
    since_s: float
    key: str | None = None
    """Mark of the key that signed the token. None for a token of Strandline."""


class Signer(NamedTuple):
    """Who signs datagrams with a token."""

    principal: Principal
    key: bytes


class Doorkeeper:
    """Tells who sent a header `Authorization`, for one event loop. `follow` must run all the time."""

    def __init__(
        self,
        book: TokenBook,
        *,
        look_s: float,
        kept_s: float,
        issuer: Issuer | None = None,
        clock_s: Callable[[], float] = time.monotonic,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._book = book
        self._issuer = issuer
        self._look_s = look_s
        self._kept_s = kept_s
        self._clock_s = clock_s
        self._now_s = now_s
        self._rows: dict[str, TokenRow] = {}
        self._counts: tuple[int, int] | None = None
        """Of the tokens in `_rows`, as the ledger counted them; None: read them all again."""
        self._seen_s = -float("inf")
        """When the ledger was last asked with success."""
        self._known: dict[bytes, _Known] = {}
        self._unknown: set[str] = set()
        self._looking: dict[str, asyncio.Task[TokenRow | None]] = {}
        self._used_ms: dict[str, int] = {}
        self._signers: dict[str, tuple[TokenRow, Signer]] = {}
        """Token's id -> who signs with it, while the row is the one that `_rows` has."""
        self._is_reached = True
        self._asking = 0
        """Questions to the issuer that wait or are under way."""
        self._threads = ThreadPoolExecutor(max_workers=3, thread_name_prefix="tokens")

    def known(self, header: bytes) -> Principal | None:
        """Who sent this header, if it was right before. One look-up."""
        found = self._known.get(header)
        return found.principal if found is not None else None

    async def admit(self, header: bytes | None) -> Principal:
        """Who sent this header. Raises Unauthenticated, and TransientError when that can't be told now."""
        if header is None:
            raise Unauthenticated(f"this needs a token; {SEND_ONE}")
        recalled = self.recall(header)
        if recalled is not None:
            return recalled
        text = _token_of(header)
        if text is None:
            raise Unauthenticated(f"this header Authorization holds no token; {SEND_ONE}")
        credential = read_token(text)
        if credential is not None:
            if credential.token_id not in self._rows:
                row = await self._row(credential.token_id)
                found = self._check(header, row, credential) if row is not None else None
                if found is not None:
                    return found
            raise Unauthenticated("the token is wrong, has expired or was revoked; ask an admin for another one")
        if self._issuer is not None:
            if self._asking >= LOOKING_MAX:
                raise TokensUnavailable("too many tokens wait to be checked; send it again a little later")
            self._asking += 1
            try:
                principal, until_s, key = await self._in_thread(partial(self._issuer.principal, text))
            finally:
                self._asking -= 1
            return self._remember(header, principal, None, until_s, key)
        raise Unauthenticated(f"this is no token of Strandline's; {SEND_ONE}")

    def recall(self, header: bytes) -> Principal | None:
        """Who sent this header, if that can be told without asking anybody."""
        known = self._known.get(header)
        if known is not None:
            return known.principal
        text = _token_of(header)
        credential = read_token(text) if text is not None else None
        row = self._rows.get(credential.token_id) if credential is not None else None
        return self._check(header, row, credential) if row is not None and credential is not None else None

    @property
    def is_current(self) -> bool:
        """Whether the ledger was asked lately enough for an unknown token to be a wrong one."""
        return self._clock_s() - self._seen_s <= self._kept_s

    def signer(self, token_id: str) -> Signer | None:
        """Who signs with the token of this id, and with which key; None while no valid one is known. Asks nobody: a token that
        was made a moment ago is known after the next look. Who has proven to have the key calls `note_use`."""
        row = self._rows.get(token_id)
        if row is None or not row.is_valid_at(self._now_ms()):
            return None
        known = self._signers.get(token_id)
        if known is None or known[0] is not row:
            known = self._signers[token_id] = row, Signer(principal_of(row), signing_key_of(row))
        return known[1]

    def may_have_token(self, name: str) -> bool:
        """Return False if no valid token has this name. True also if this can't be known: the ledger doesn't respond, or an OIDC
        provider issues the tokens."""
        if name.startswith(OIDC_PREFIX):
            return self._issuer is not None
        now_ms = self._now_ms()
        return not self.is_current or any(row.name == name and row.is_valid_at(now_ms) for row in self._rows.values())

    def note_use(self, token_id: str) -> None:
        """Have the ledger know that a token was used."""
        self._used_ms[token_id] = self._now_ms()

    async def follow(self) -> None:
        """Keep the tokens up to date until cancelled."""
        ticking = asyncio.create_task(self._tick())
        refreshing = asyncio.create_task(self._refresh_issuer(self._issuer)) if self._issuer is not None else None
        try:
            while True:
                await self.look()
                await asyncio.sleep(self._look_s)
        finally:
            ticking.cancel()
            if refreshing is not None:
                refreshing.cancel()

    async def look(self) -> None:
        """Read the tokens if they have changed, forget those that are not valid any more, note which were used."""
        self._unknown.clear()
        began_s = self._clock_s()
        try:
            counts = await self._in_thread(self._book.token_counts)  # before the rows: they may be newer, not older
            if counts != self._counts:
                rows = await self._in_thread(self._book.live_tokens)
                self._rows, self._counts = {row.id: row for row in rows}, counts
            self._seen_s = began_s
            used_ms, self._used_ms = self._used_ms, {}
            if used_ms:
                await self._in_thread(partial(self._book.note_token_uses, used_ms))
        except LedgerUnavailable as error:
            if self._is_reached:
                logger.warning(
                    f"the tokens can't be read; those seen last are believed for {self._kept_s:g} s",
                    action="tokens_lost", reason=str(error),
                )  # fmt: skip
            self._is_reached = False
        except (
            Exception
        ) as error:  # the edge: a look that fails must not end the looking, or old tokens would stay for ever
            logger.error("the tokens can't be read", action="tokens_lost", error=repr(error), exc_info=error)
            self._is_reached = False
        else:
            self._is_reached = True
        self.forget_old()

    def forget_old(self) -> None:
        """Forget what is not valid any more, and everything when it was last seen too long ago."""
        clock_s, now_s = self._clock_s(), self._now_s()
        if clock_s - self._seen_s > self._kept_s:
            self._rows, self._counts = {}, None
        self._known = {
            header: one
            for header, one in self._known.items()
            if now_s < one.until_s
            and (one.row is None or self._is_still(one.row, clock_s - one.since_s))
            and (one.key is None or (self._issuer is not None and self._issuer.trusts(one.key)))
        }
        if len(self._signers) > len(self._rows):
            self._signers = {token_id: one for token_id, one in self._signers.items() if token_id in self._rows}

    def close(self) -> None:
        """Ask the ledger nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _refresh_issuer(self, issuer: Issuer) -> None:
        """Keep the keys of the provider up to date: a token whose key was withdrawn is forgotten."""
        while True:
            try:
                await self._in_thread(issuer.refresh)
            except Exception as error:  # the edge: an error must not end the refreshing, or old keys would stay valid
                logger.error("the OIDC provider's keys can't be read", action="oidc_keys_lost", exc_info=error)
            self.forget_old()
            await asyncio.sleep(self._look_s)

    async def _tick(self) -> None:
        """A look that hangs must not keep old tokens alive."""
        while True:
            await asyncio.sleep(_TICK_S)
            self.forget_old()

    def _is_still(self, row: TokenRow, known_for_s: float) -> bool:
        now = self._rows.get(row.id)
        is_same = now is not None and (now.digest, now.role, now.writes) == (row.digest, row.role, row.writes)
        return is_same and known_for_s < CHECKED_AGAIN_S

    def _check(self, header: bytes, row: TokenRow, credential: Credential) -> Principal | None:
        if not is_secret_of(row, credential.secret) or not row.is_valid_at(self._now_ms()):
            return None
        self.note_use(row.id)
        until_s = float("inf") if row.expires_ms is None else row.expires_ms / 1_000
        return self._remember(header, principal_of(row), row, until_s)

    def _remember(
        self, header: bytes, principal: Principal, row: TokenRow | None, until_s: float, key: str | None = None
    ) -> Principal:
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[header] = _Known(principal, row, until_s, self._clock_s(), key)
        return principal

    async def _row(self, token_id: str) -> TokenRow | None:
        row = self._rows.get(token_id)
        if row is not None or token_id in self._unknown:
            return row
        looking = self._looking.get(token_id)
        if looking is None:
            if len(self._looking) >= LOOKING_MAX or len(self._unknown) >= UNKNOWN_MAX:
                raise TokensUnavailable(
                    f"too many unknown tokens came just now, and this one was not looked for; send it again in {self._look_s:g} s"
                )
            looking = self._looking[token_id] = asyncio.create_task(self._look_up(token_id))
            looking.add_done_callback(lambda _: self._looking.pop(token_id))
        return await asyncio.shield(looking)  # a sender that leaves does not take the answer from the others

    async def _look_up(self, token_id: str) -> TokenRow | None:
        try:
            row = await self._in_thread(partial(self._book.live_token, token_id))
        except LedgerUnavailable as error:
            raise TokensUnavailable("the token can't be checked now, the ledger does not answer; try again") from error
        if row is None:
            self._unknown.add(token_id)
            return None
        # A look may have ended meanwhile that saw it revoked: the next one reads all again.
        self._counts = None
        self._rows[token_id] = row
        return row

    async def _in_thread(self, ask: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, ask)

    def _now_ms(self) -> int:
        return int(self._now_s() * 1_000)


def _token_of(header: bytes) -> bytes | None:
    """The token in a header; None when there is none."""
    scheme, _, text = header.partition(b" ")
    return text if text and scheme.lower() in _SCHEMES else None
