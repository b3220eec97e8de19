"""State of the MQTT server for each client address: its connections, and its wrong passwords.

A single address must not use up resources that all clients share. An IPv6 client owns a complete /64, so that counts as
one address.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Generic, TypeVar

KEYS_MAX = 20_000
"""Maximum number of stored entries with wrong passwords: addresses, and users at an address. Over it the entry with the
oldest wrong password is removed."""
FORGOTTEN_S = 600.0
"""Seconds after the last wrong password until an entry is ignored."""
USER_TRIES, ADDRESS_TRIES = 5, 50
"""Number of wrong passwords before the first pause: of a user at an address, and of all users there. Many sensors may
share an address."""
PAUSE_S_MAX = 60.0
_USER_LENGTH_MAX = 64
C = TypeVar("C")


def address_of(peer: str) -> str:
    """Return the key under which an address is counted."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return peer
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address.packed[:8] + bytes(8), 64)))
    return peer


class Arrivals(Generic[C]):
    """The connections of each address, and those of them that have not sent a CONNECT yet."""

    def __init__(self) -> None:
        self._open: dict[str, set[C]] = {}
        self._silent: dict[str, dict[C, None]] = {}
        """Address -> connections without a CONNECT, the oldest first."""

    def add(self, address: str, connection: C) -> None:
        self._open.setdefault(address, set()).add(connection)
        self._silent.setdefault(address, {})[connection] = None

    def has_spoken(self, address: str, connection: C) -> None:
        """Note that the connection has sent its CONNECT."""
        silent = self._silent.get(address, {})
        silent.pop(connection, None)
        if not silent:
            self._silent.pop(address, None)

    def remove(self, address: str, connection: C) -> None:
        self.has_spoken(address, connection)
        present = self._open.get(address, set())
        present.discard(connection)
        if not present:
            self._open.pop(address, None)

    def count(self, address: str) -> int:
        return len(self._open.get(address, ()))

    def oldest_silent(self, address: str) -> C | None:
        """Return the connection of this address that has waited longest without a CONNECT. None if there is none."""
        return next(iter(self._silent.get(address, ())), None)


class WrongPasswords:
    """Pauses after wrong passwords, by address and user. Each wrong password doubles the pause.

    The caller accepts a password that was right before without this check, so that guesses of another client can't lock
    out a sensor.
    """

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._wrong: dict[tuple[str, ...], tuple[int, float, float]] = {}
        """(address,) or (address, user) -> wrong passwords, time of the last one, end of the pause; the oldest first."""

    def __len__(self) -> int:
        return len(self._wrong)

    def wait_s(self, address: str, user: str) -> float:
        """Return the seconds until the next password of this user from this address is checked. 0 if it is checked now."""
        now_s = self._clock_s()
        return max(0.0, *(self._wrong.get(key, (0, 0.0, 0.0))[2] - now_s for key in self._keys(address, user)))

    def add(self, address: str, user: str) -> None:
        """Count a wrong password."""
        now_s = self._clock_s()
        for key, tries in zip(self._keys(address, user), (ADDRESS_TRIES, USER_TRIES), strict=True):
            count, last_s, _ = self._wrong.pop(key, (0, now_s, 0.0))
            count = 1 if now_s - last_s > FORGOTTEN_S else count + 1
            pause_s = min(2.0 ** min(count - tries, 10), PAUSE_S_MAX) if count >= tries else 0.0
            self._wrong[key] = (count, now_s, now_s + pause_s)
        while len(self._wrong) > KEYS_MAX:
            del self._wrong[next(iter(self._wrong))]

    def forget(self, address: str, user: str) -> None:
        """Reset the user's pause after a right password."""
        self._wrong.pop(self._keys(address, user)[1], None)

    def _keys(self, address: str, user: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return (address,), (address, user[:_USER_LENGTH_MAX])
