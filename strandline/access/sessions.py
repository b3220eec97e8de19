"""Login sessions of the console: a random identifier in a cookie represents the token of the login.

The token itself is never sent back to the browser. It stays in the memory of this process, so a restart ends all sessions. Each
request of a session is authenticated by the token: a revoked or expired token ends its sessions.

A session can also have a refresh token of the OIDC provider. With it, the service replaces the token before it expires. The
identifier and the lifetime of the session stay as they are.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

SESSIONS_MAX = 1_000
"""Maximum number of sessions. If there are more, the oldest session ends."""
SESSION_LASTS_S = 12 * 3_600.0
"""Lifetime of a session in seconds after its login."""
_ID_BYTES = 32


@dataclass
class Session:
    """One login session."""

    authorization: bytes
    """Value of the header `Authorization` with the token."""
    until_s: float
    """End of the session, whatever its token."""
    refresh_token: str | None = None
    """Refresh token of the OIDC provider. None if the service can't renew the token of the session."""
    holder: str = ""
    """Name of the user. A renewal must return a token of the same user."""
    renewed_s: float = -float("inf")
    """Time of the last renewal."""
    renewing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during a renewal: a provider can accept a refresh token once."""


class Sessions:
    """The login sessions of the console, in the memory of one control service: identifier in the cookie -> header with
    the token. Use it from one event loop.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._open: dict[bytes, Session] = {}
        """Digest of the identifier -> session, the oldest first. So the time of a lookup reveals nothing about identifiers."""

    def open(self, authorization: bytes, refresh_token: str | None = None, holder: str = "") -> str:
        """Return the identifier of a new session. The caller has checked the token."""
        self._remove_ended()
        while len(self._open) >= SESSIONS_MAX:
            del self._open[next(iter(self._open))]
        identifier = secrets.token_urlsafe(_ID_BYTES)
        self._open[_digest(identifier)] = Session(
            authorization, self._clock_s() + SESSION_LASTS_S, refresh_token, holder
        )
        return identifier

    def authorization(self, identifier: str) -> bytes | None:
        """Return the header `Authorization` of the session. None if there is no such session, or if it has ended."""
        found = self.find(identifier)
        return found.authorization if found is not None else None

    def find(self, identifier: str) -> Session | None:
        """Return the session. None if there is no such session, or if it has ended."""
        found = self._open.get(_digest(identifier))
        return found if found is not None and self._clock_s() < found.until_s else None

    def left_s(self, session: Session) -> float:
        """Return the time in seconds until the session ends, whatever its token."""
        return session.until_s - self._clock_s()

    def was_renewed(self, session: Session, within_s: float) -> bool:
        """Return True if the token of the session was renewed within this time."""
        return self._clock_s() - session.renewed_s < within_s

    def renew(self, session: Session, authorization: bytes, refresh_token: str | None) -> None:
        """Replace the tokens of the session. The caller has checked that the token is of the same user."""
        session.authorization, session.refresh_token, session.renewed_s = authorization, refresh_token, self._clock_s()

    def close(self, identifier: str) -> None:
        """End the session. Does nothing if there is no such session."""
        self._open.pop(_digest(identifier), None)

    def _remove_ended(self) -> None:
        now_s = self._clock_s()
        self._open = {key: one for key, one in self._open.items() if now_s < one.until_s}


def _digest(identifier: str) -> bytes:
    return hashlib.sha256(identifier.encode()).digest()
