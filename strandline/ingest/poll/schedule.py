"""The times at which a URL is polled: pure decisions, in seconds."""

from __future__ import annotations

import hashlib

PAUSE_FIRST_S = 1.0
PAUSE_MAX_S = 60.0
"""After failures, the longest pause between two requests, unless the period of the document is longer."""
RETRY_AFTER_MAX_S = 3_600.0
_DOUBLINGS_MAX = 12


def phase_s(url: str, every_s: float) -> float:
    """Return the offset of a URL in its period. It is the same after a restart, and differs between URLs."""
    fraction = int.from_bytes(hashlib.sha256(url.encode()).digest()[:8]) / 2**64
    return fraction * every_s


def wait_s(now_s: float, every_s: float, phase_s: float) -> float:
    """Return the seconds until the URL's next turn: more than 0, at most a period."""
    return every_s - (now_s - phase_s) % every_s


def pause_s(failures: int, every_s: float, chance: float, retry_after_s: float | None = None) -> float:
    """Return the seconds to wait after this many consecutive failures.

    A pause that the server requests takes precedence, up to RETRY_AFTER_MAX_S.

    Args: chance: Random number from 0 to 1, so that URLs that failed together don't return together.
    """
    longest = max(every_s, PAUSE_MAX_S)
    pause = min(PAUSE_FIRST_S * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), longest)
    requested_s = 0.0 if retry_after_s is None else min(retry_after_s, RETRY_AFTER_MAX_S)
    return max(pause * (0.5 + chance / 2), requested_s)
