"""What the MQTT server keeps of the addresses that clients connect from: their connections, and their wrong passwords.

One address must not use up what all clients share. An IPv6 client owns a whole /64, so that counts as one address.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Generic, TypeVar

KEYS_MAX = 20_000
"""Addresses, and users at an address, whose wrong passwords are remembered. Over it the one that was wrong longest ago is
forgotten."""
FORGOTTEN_S = 600.0
"""After the last wrong password."""
USER_TRIES, ADDRESS_TRIES = 5, 50
"""Wrong passwords of a user at an address, and of all users there, before the first pause. Many sensors may share an address."""
PAUSE_S_MAX = 60.0
_USER_LENGTH_MAX = 64
C = TypeVar("C")


def address_of(peer: str) -> str:
    """What counts as one address."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return peer
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address.packed[:8] + bytes(8), 64)))
    return peer


class Arrivals(Generic[C]):
    """The connections of each address, and which of them have sent no CONNECT yet."""

    def __init__(self) -> None:
        self._open: dict[str, set[C]] = {}
        self._silent: dict[str, dict[C, None]] = {}
        """The oldest first."""

    def add(self, address: str, connection: C) -> None:
        self._open.setdefault(address, set()).add(connection)
        self._silent.setdefault(address, {})[connection] = None

    def has_spoken(self, address: str, connection: C) -> None:
        """Its CONNECT is there."""
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
        """Of this address, the connection that has waited longest without a CONNECT."""
        return next(iter(self._silent.get(address, ())), None)


class WrongPasswords:
    """For how long an address must wait after wrong passwords: twice as long after each. Who asks lets a password that is known
    to be right pass first, so that nobody's guesses lock out a sensor that was connected before."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._wrong: dict[tuple[str, ...], tuple[int, float, float]] = {}
        """(address,) or (address, user) -> wrong passwords, time of the last one, end of the pause; the oldest first."""

    def __len__(self) -> int:
        return len(self._wrong)

    def wait_s(self, address: str, user: str) -> float:
        """How long the next password of this user from this address will not be checked; 0: check it."""
        now_s = self._clock_s()
        return max(0.0, *(self._wrong.get(key, (0, 0.0, 0.0))[2] - now_s for key in self._keys(address, user)))

    def add(self, address: str, user: str) -> None:
        """One more wrong password."""
        now_s = self._clock_s()
        for key, tries in zip(self._keys(address, user), (ADDRESS_TRIES, USER_TRIES), strict=True):
            count, last_s, _ = self._wrong.pop(key, (0, now_s, 0.0))
            count = 1 if now_s - last_s > FORGOTTEN_S else count + 1
            pause_s = min(2.0 ** min(count - tries, 10), PAUSE_S_MAX) if count >= tries else 0.0
            self._wrong[key] = (count, now_s, now_s + pause_s)
        while len(self._wrong) > KEYS_MAX:
            del self._wrong[next(iter(self._wrong))]

    def forget(self, address: str, user: str) -> None:
        """The user's password was right."""
        self._wrong.pop(self._keys(address, user)[1], None)

    def _keys(self, address: str, user: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return (address,), (address, user[:_USER_LENGTH_MAX])
