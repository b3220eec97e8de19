"""Which signed datagrams of a gateway are taken: what each must be, in the order in which it is looked at.

    unsigned          it has no signature (access/signing.py says the form)
    keys_unavailable  the ledger has not answered for so long that no token is believed
    unknown_key       no valid token has this id
    wrong_signature   the token's holder did not sign it, or not for this stream
    forbidden         the token may not write to the stream
    stale, early      its counter, a time, differs from this machine's clock by more than the stream's `max_age`
    replayed          its counter was taken before, or is older than the oldest that is remembered

Each refusal is counted under its word. No sender is answered, and before the signature is proven nothing is kept of a datagram.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import structlog

from strandline.access.doorkeeper import Doorkeeper
from strandline.access.rights import may
from strandline.access.signing import is_signed_by, read_signed
from strandline.core.streams.stream import StreamSpec
from strandline.core.times.durations import FOREVER_MS
from strandline.ingest.udp.counters import Counters
from strandline.ingest.udp.entry import GATEWAY

logger = structlog.get_logger()
_NEED = GATEWAY.actions["UDP DATAGRAM"]

TOLD_EVERY_S = 60.0
"""How often a log line tells of refusals, for each stream and reason."""
_US_PER_MS = 1_000


class SignedSenders:
    """The senders of one stream's signed datagrams."""

    def __init__(
        self,
        spec: StreamSpec,
        tokens: Doorkeeper,
        counters: Counters,
        *,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        assert spec.udp is not None and spec.udp.hmac is not None, "its datagrams are signed"
        self._stream = spec.stream
        self._stream_bytes = spec.stream.encode()
        max_age_ms = spec.udp.hmac.max_age
        self._max_age_us = None if max_age_ms == FOREVER_MS else max_age_ms * _US_PER_MS
        self._tokens = tokens
        self.counters = counters
        self._now_us = now_us
        self._clock_s = clock_s
        self._told_s: dict[str, float] = {}
        self._untold: Counter[str] = Counter()
        """Reason -> datagrams refused since a log line told of it."""

    def open(self, datagrams: list[bytes], host: str) -> tuple[dict[str, list[bytes]], Counter[str]]:
        """The payloads that are taken, by principal and in order; and how many datagrams were refused, by reason."""
        taken: dict[str, list[bytes]] = {}
        refused: Counter[str] = Counter()
        now_us = self._now_us()
        for datagram in datagrams:
            name_or_reason, payload = self._open(datagram, now_us)
            if payload is None:
                refused[name_or_reason] += 1
            elif name_or_reason in taken:
                taken[name_or_reason].append(payload)
            else:
                taken[name_or_reason] = [payload]
        if refused:
            self._tell(refused, host)
        return taken, refused

    def _open(self, datagram: bytes, now_us: int) -> tuple[str, bytes | None]:
        """Whose the payload is, and the payload; or why it is refused, and None."""
        signed = read_signed(datagram)
        if signed is None:
            return "unsigned", None
        signer = self._tokens.signer(signed.token_id)
        if signer is None:
            return "unknown_key" if self._tokens.is_current else "keys_unavailable", None
        principal, key = signer
        if not is_signed_by(signed, self._stream_bytes, key):
            return "wrong_signature", None
        self._tokens.note_use(signed.token_id)
        if not may(principal, _NEED, self._stream):
            return "forbidden", None
        if self._max_age_us is not None:
            age_us = now_us - signed.counter
            if age_us > self._max_age_us:
                return "stale", None
            if -age_us > self._max_age_us:
                return "early", None
        if not self.counters.take(datagram[4:12] + self._stream_bytes, signed.counter):
            return "replayed", None
        return principal.name, signed.payload

    def _tell(self, refused: Counter[str], host: str) -> None:
        self._untold += refused
        now_s = self._clock_s()
        for reason in refused:
            if now_s - self._told_s.get(reason, -TOLD_EVERY_S) < TOLD_EVERY_S:
                continue
            self._told_s[reason] = now_s
            logger.warning(
                "signed datagrams were refused", action="datagrams_refused", stream=self._stream, reason=reason,
                datagrams=self._untold.pop(reason), last_from=host,
            )  # fmt: skip
