"""Checks of signed datagrams, in their order:

- `unsigned`: it has no signature in the form of access/signing.py.
- `keys_unavailable`: the ledger has been unavailable too long for a token to be accepted.
- `unknown_key`: no valid token has this id.
- `wrong_signature`: the token's holder did not sign it, or not for this stream.
- `forbidden`: the token may not write to the stream.
- `stale`, `early`: its counter, a time, differs from this machine's clock by more than the stream's `max_age`.
- `replayed`: its counter was accepted before, or is older than the oldest that is remembered.

Each refusal is counted under its word. No sender is answered, and before the signature is proven no part of a datagram
is kept.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import structlog

from strandline.access.authenticator import Authenticator
from strandline.access.rights import may
from strandline.access.signing import is_signed_by, read_signed
from strandline.core.streams.stream import StreamSpec
from strandline.core.times.durations import FOREVER_MS
from strandline.ingest.udp.counters import Counters
from strandline.ingest.udp.entry import GATEWAY

logger = structlog.get_logger()
_NEED = GATEWAY.actions["UDP DATAGRAM"]

REPORT_INTERVAL_S = 60.0
"""Interval in seconds at which refusals are logged, for each stream and reason."""
_US_PER_MS = 1_000


class SignedSenders:
    """The senders of one stream's signed datagrams."""

    def __init__(
        self,
        spec: StreamSpec,
        tokens: Authenticator,
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
        self._reported_s: dict[str, float] = {}
        self._unreported: Counter[str] = Counter()
        """Reason -> number of datagrams refused since the last log line."""

    def open(self, datagrams: list[bytes], host: str) -> tuple[dict[str, list[bytes]], Counter[str]]:
        """Return the accepted payloads by principal, in order, and the number of refused datagrams by reason."""
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
            self._report(refused, host)
        return taken, refused

    def _open(self, datagram: bytes, now_us: int) -> tuple[str, bytes | None]:
        """Return the name of the principal that signed the datagram, and the payload; or, for a refused datagram, the
        word of the refusal (see above) and None. `now_us`: this machine's clock, with which a counter that is a time is
        compared.
        """
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

    def _report(self, refused: Counter[str], host: str) -> None:
        self._unreported += refused
        now_s = self._clock_s()
        for reason in refused:
            if now_s - self._reported_s.get(reason, -REPORT_INTERVAL_S) < REPORT_INTERVAL_S:
                continue
            self._reported_s[reason] = now_s
            logger.warning(
                "signed datagrams were refused", action="datagrams_refused", stream=self._stream, reason=reason,
                datagrams=self._unreported.pop(reason), last_from=host,
            )  # fmt: skip
