"""Login sessions of the console: a random identifier in a cookie represents the token of the login.

The token itself is never sent back to the browser. It stays in the memory of this process, so a restart ends all sessions. Each
request of a session is authenticated by the token: a revoked or expired token ends its sessions.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from typing import NamedTuple

SESSIONS_MAX = 1_000
"""Maximum number of sessions. If there are more, the oldest session ends."""
SESSION_LASTS_S = 12 * 3_600.0
"""Lifetime of a session in seconds after its login."""
_ID_BYTES = 32


class _Session(NamedTuple):
    authorization: bytes
    """Value of the header `Authorization` with the token."""
    until_s: float


class Sessions:
    """The login sessions of the console, in the memory of one control service: identifier in the cookie -> header with
    the token. Use it from one event loop.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._open: dict[bytes, _Session] = {}
        """Digest of the identifier -> session, the oldest first. So the time of a lookup reveals nothing about identifiers."""

    def open(self, authorization: bytes) -> str:
        """Return the identifier of a new session. The caller has checked the token."""
        self._remove_ended()
        while len(self._open) >= SESSIONS_MAX:
            del self._open[next(iter(self._open))]
        identifier = secrets.token_urlsafe(_ID_BYTES)
        self._open[_digest(identifier)] = _Session(authorization, self._clock_s() + SESSION_LASTS_S)
        return identifier

    def authorization(self, identifier: str) -> bytes | None:
        """Return the header `Authorization` of the session. None if there is no such session, or if it has ended."""
        found = self._open.get(_digest(identifier))
        return found.authorization if found is not None and self._clock_s() < found.until_s else None

    def close(self, identifier: str) -> None:
        """End the session. Does nothing if there is no such session."""
        self._open.pop(_digest(identifier), None)

    def _remove_ended(self) -> None:
        now_s = self._clock_s()
        self._open = {key: one for key, one in self._open.items() if now_s < one.until_s}


def _digest(identifier: str) -> bytes:
    return hashlib.sha256(identifier.encode()).digest()
