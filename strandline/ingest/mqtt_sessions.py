"""The sessions of the MQTT listener: that a client's session exists is all there is to one that only publishes.

It still matters: a client of MQTT 5 that is told "no session" on connecting again throws away the messages that wait for
their PUBACK, where it should send them again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from strandline.ingest.mqtt_packets import Connect

SESSIONS_MAX = 100_000
"""The one that was used longest ago goes first."""
EXPIRY_S_MAX = 7 * 86_400
"""A client that asks for a longer session is told that it gets this."""


class Sessions:
    """Which clients have a session. For one event loop."""

    def __init__(self, clock_s: Callable[[], float] = time.time) -> None:
        self._clock_s = clock_s
        self._ends_s: dict[str, float] = {}
        """Client identifier -> when its session ends if it does not come back; ordered by use."""

    async def begin(self, client_id: str, connect: Connect) -> tuple[bool, int]:
        """Return whether there is a session to go on with, and how long it outlives the connection, in seconds."""
        is_present = not connect.clean_start and self._ends_s.get(client_id, 0.0) > self._clock_s()
        self._ends_s.pop(client_id, None)
        expiry_s = min(connect.session_expiry_s, EXPIRY_S_MAX)
        if expiry_s:
            self._remember(client_id, expiry_s)
        return is_present, expiry_s

    def end(self, client_id: str, expiry_s: int) -> None:
        """The connection is closed; the session goes on for so long."""
        self._ends_s.pop(client_id, None)
        if expiry_s:
            self._remember(client_id, min(expiry_s, EXPIRY_S_MAX))

    def _remember(self, client_id: str, expiry_s: int) -> None:
        if len(self._ends_s) >= SESSIONS_MAX:
            del self._ends_s[next(iter(self._ends_s))]
        self._ends_s[client_id] = self._clock_s() + expiry_s
