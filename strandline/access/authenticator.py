"""Authenticator of a listener: checks tokens against those of the ledger, which it reads every few seconds off the event loop.

- A token that was valid before costs one dictionary lookup. The keys are hashed with a key of this process, so the time of a
  lookup says nothing about how near a guess is. The secret itself is compared in constant time.
- A new token is valid immediately: the authenticator queries the ledger for an unknown id. It doesn't repeat the query for a
  missing id before the next read of the tokens, and it queries at most UNKNOWN_MAX ids. So guesses cost the ledger nothing.
- A revoked token is refused after the next read (`look_s`). If a query for its id ran during that read, it is refused after the
  read that follows.
- While the ledger doesn't respond, tokens stay as they were last read, for at most `kept_s`. So records don't wait for the
  ledger, and no token stays valid forever. Tokens of an OIDC provider are removed when their signing key is withdrawn, or when
  the keys are too old (`OidcIssuer`). After that, and for a token that was never seen, the response is 503 (can't be checked
  now), not that the token is wrong.
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
"""Maximum number of known tokens. If it is reached, all are removed, and each is checked again without a query to the ledger."""
CHECKED_AGAIN_S = 3_600.0
"""Interval in seconds at which a token in permanent use is checked again and noted as used."""
_TICK_S = 1.0
_SCHEMES = (b"bearer", b"token")
"""Schemes of the header. Clients of InfluxDB use `Token`."""
SEND_ONE = "send a token as `Authorization: Bearer TOKEN`"
T = TypeVar("T")


class TokensUnavailable(TransientError):
    """The token can't be checked now."""

    code = "tokens_unavailable"


class TokenStore(Protocol):
    """Store of the tokens: the ledger. Every method blocks, and can raise LedgerUnavailable."""

    def live_tokens(self) -> list[TokenRow]: ...
    def live_token(self, token_id: str) -> TokenRow | None: ...
    def token_counts(self) -> tuple[int, int]: ...
    def note_token_uses(self, used_ms: Mapping[str, int]) -> None: ...


class Issuer(Protocol):
    """Another issuer of tokens: an OIDC provider."""

    def principal(self, text: bytes) -> tuple[Principal, float, str]:
        """Return the holder of a token, its expiry in seconds since 1970, and the thumbprint of its signing key.
        Blocks. Raises Unauthenticated if the token isn't valid, TransientError if that can't be checked now.
        """

    def trusts(self, mark: str) -> bool:
        """Return True if tokens of the key with this thumbprint are still valid. Doesn't block."""

    def refresh(self) -> None:
        """Read the keys again if they are due. Blocks."""


class _Known(NamedTuple):
    principal: Principal
    row: TokenRow | None
    """The token. None for a token of an issuer."""
    until_s: float
    """Expiry in seconds since 1970."""
    since_s: float
    key: str | None = None
    """Thumbprint of the key that signed the token. None for a token of Strandline."""


class Signer(NamedTuple):
    """Holder of a token that signs datagrams."""

    principal: Principal
    key: bytes


class Authenticator:
    """Returns the principal for the header `Authorization` of a request. Use it from one event loop.

    Run `follow` as a task: without it, revoked tokens stay valid, and after `kept_s` no token can be checked any more.
    """

    def __init__(
        self,
        book: TokenStore,
        *,
        look_s: float,
        kept_s: float,
        issuer: Issuer | None = None,
        clock_s: Callable[[], float] = time.monotonic,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """Args: look_s: Seconds between two reads of the tokens. kept_s: Seconds for which known tokens stay valid
        while the ledger doesn't respond. issuer: Checks tokens that aren't Strandline's. None if there are no others.
        """
        self._book = book
        self._issuer = issuer
        self._look_s = look_s
        self._kept_s = kept_s
        self._clock_s = clock_s
        self._now_s = now_s
        self._rows: dict[str, TokenRow] = {}
        self._counts: tuple[int, int] | None = None
        """Counts of the tokens in `_rows` in the ledger. None if all must be read again."""
        self._seen_s = -float("inf")
        """Time of the last successful query of the ledger."""
        self._known: dict[bytes, _Known] = {}
        self._unknown: set[str] = set()
        self._looking: dict[str, asyncio.Task[TokenRow | None]] = {}
        self._used_ms: dict[str, int] = {}
        self._signers: dict[str, tuple[TokenRow, Signer]] = {}
        """Token id -> signer, while `_rows` has the same row."""
        self._is_reached = True
        self._asking = 0
        """Number of queries to the issuer that wait or run."""
        self._threads = ThreadPoolExecutor(max_workers=3, thread_name_prefix="tokens")

    def known(self, header: bytes) -> Principal | None:
        """Return the sender of this header if it was valid before. One dictionary lookup."""
        found = self._known.get(header)
        return found.principal if found is not None else None

    def expiry_s(self, header: bytes) -> float | None:
        """Return the expiry of a token that was valid before, in seconds since 1970; infinite if it doesn't expire. None if the
        token is unknown."""
        found = self._known.get(header)
        return found.until_s if found is not None else None

    async def admit(self, header: bytes | None) -> Principal:
        """Return the sender of this header. Raises Unauthenticated without a valid token; TransientError if that can't
        be checked now.
        """
        if header is None:
            raise Unauthenticated(f"this needs a token; {SEND_ONE}")
        recalled = self.recall(header)
        if recalled is not None:
            return recalled
        text = _token_of(header)
        if text is None:
            raise Unauthenticated(f"the header Authorization contains no token; {SEND_ONE}")
        credential = read_token(text)
        if credential is not None:
            if credential.token_id not in self._rows:
                row = await self._row(credential.token_id)
                found = self._check(header, row, credential) if row is not None else None
                if found is not None:
                    return found
            raise Unauthenticated("the token is wrong, has expired, or was revoked; ask an admin for another one")
        if self._issuer is not None:
            if self._asking >= LOOKING_MAX:
                raise TokensUnavailable("too many tokens wait to be checked; try again a little later")
            self._asking += 1
            try:
                principal, until_s, key = await self._in_thread(partial(self._issuer.principal, text))
            finally:
                self._asking -= 1
            return self._remember(header, principal, None, until_s, key)
        raise Unauthenticated(f"this is not a token of Strandline; {SEND_ONE}")

    def recall(self, header: bytes) -> Principal | None:
        """Return the sender of this header if no query is needed. None otherwise."""
        known = self._known.get(header)
        if known is not None:
            return known.principal
        text = _token_of(header)
        credential = read_token(text) if text is not None else None
        row = self._rows.get(credential.token_id) if credential is not None else None
        return self._check(header, row, credential) if row is not None and credential is not None else None

    @property
    def is_current(self) -> bool:
        """Return True if the ledger was queried recently enough to call an unknown token wrong."""
        return self._clock_s() - self._seen_s <= self._kept_s

    def signer(self, token_id: str) -> Signer | None:
        """Return the holder of the token with this id and its signing key. None if no valid one is known. It sends no query, so
        a new token is known after the next read. Call `note_use` after the holder has proven that it has the key."""
        row = self._rows.get(token_id)
        if row is None or not row.is_valid_at(self._now_ms()):
            return None
        known = self._signers.get(token_id)
        if known is None or known[0] is not row:
            known = self._signers[token_id] = row, Signer(principal_of(row), signing_key_of(row))
        return known[1]

    def may_have_token(self, name: str) -> bool:
        """Return False if no valid token has this name. True also if this can't be known: the ledger doesn't respond, or an
        OIDC provider issues the tokens."""
        if name.startswith(OIDC_PREFIX):
            return self._issuer is not None
        now_ms = self._now_ms()
        return not self.is_current or any(row.name == name and row.is_valid_at(now_ms) for row in self._rows.values())

    def note_use(self, token_id: str) -> None:
        """Note the time at which a token was used. The next `look`, within seconds, records it in the ledger."""
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
        """Read the tokens if they have changed, remove invalid ones, and record which tokens were used."""
        self._unknown.clear()
        began_s = self._clock_s()
        try:
            counts = await self._in_thread(
                self._book.token_counts
            )  # before the rows: the rows can be newer than the counts, but not older
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
                    f"can't read the tokens; the known tokens stay valid for {self._kept_s:g} s",
                    action="tokens_lost", reason=str(error),
                )  # fmt: skip
            self._is_reached = False
        except Exception as error:  # edge: a failed read must not end the loop, or old tokens would stay valid forever
            logger.error("can't read the tokens", action="tokens_lost", error=repr(error), exc_info=error)
            self._is_reached = False
        else:
            self._is_reached = True
        self.forget_old()

    def forget_old(self) -> None:
        """Remove tokens that expired, were revoked, or whose signing key was withdrawn. Remove all tokens of the ledger
        if they were last read more than `kept_s` ago.
        """
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
        """Stop querying the ledger."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _refresh_issuer(self, issuer: Issuer) -> None:
        """Keep the keys of the provider up to date. A token whose key was withdrawn is removed."""
        while True:
            try:
                await self._in_thread(issuer.refresh)
            except Exception as error:  # edge: an error must not end the loop, or old keys would stay valid
                logger.error("can't read the keys of the OIDC provider", action="oidc_keys_lost", exc_info=error)
            self.forget_old()
            await asyncio.sleep(self._look_s)

    async def _tick(self) -> None:
        """Remove old tokens even if a read hangs."""
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
                    f"too many unknown tokens arrived, so this token was not checked; try again in {self._look_s:g} s"
                )
            looking = self._looking[token_id] = asyncio.create_task(self._look_up(token_id))
            looking.add_done_callback(lambda _: self._looking.pop(token_id))
        return await asyncio.shield(looking)  # a sender that disconnects must not cancel the query for the others

    async def _look_up(self, token_id: str) -> TokenRow | None:
        try:
            row = await self._in_thread(partial(self._book.live_token, token_id))
        except LedgerUnavailable as error:
            raise TokensUnavailable(
                "can't check the token now, because the ledger does not respond; try again"
            ) from error
        if row is None:
            self._unknown.add(token_id)
            return None
        # A read that saw the token revoked may have ended in the meantime: the next read reads all tokens.
        self._counts = None
        self._rows[token_id] = row
        return row

    async def _in_thread(self, ask: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, ask)

    def _now_ms(self) -> int:
        return int(self._now_s() * 1_000)


def _token_of(header: bytes) -> bytes | None:
    """Return the token in a header. None if there is none."""
    scheme, _, text = header.partition(b" ")
    return text if text and scheme.lower() in _SCHEMES else None
