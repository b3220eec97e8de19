"""When a URL is asked next: pure decisions; times are in seconds."""

from __future__ import annotations

import hashlib

PAUSE_FIRST_S = 1.0
PAUSE_MAX_S = 60.0
"""After failures a URL is asked at least so often, or as often as its document says, whichever is less."""
RETRY_AFTER_MAX_S = 3_600.0
_DOUBLINGS_MAX = 12


def phase_s(url: str, every_s: float) -> float:
    """Where in the period a URL is asked: always there, also after a restart, and not all URLs at once."""
    fraction = int.from_bytes(hashlib.sha256(url.encode()).digest()[:8]) / 2**64
    return fraction * every_s


def wait_s(now_s: float, every_s: float, phase_s: float) -> float:
    """How long until the URL's next turn: more than nothing, at most a period."""
    return every_s - (now_s - phase_s) % every_s


def pause_s(failures: int, every_s: float, chance: float, retry_after_s: float | None = None) -> float:
    """How long to wait after so many failures in a row; `chance` is from 0 to 1, so that those that failed together don't come
    again together. What the server asked for goes before, up to RETRY_AFTER_MAX_S."""
    longest = max(every_s, PAUSE_MAX_S)
    pause = min(PAUSE_FIRST_S * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), longest)
    asked = 0.0 if retry_after_s is None else min(retry_after_s, RETRY_AFTER_MAX_S)
    return max(pause * (0.5 + chance / 2), asked)
