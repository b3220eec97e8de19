"""TLS before a protocol: a handshake has a deadline, and only so many are under way at once.

A connection becomes the protocol's when its handshake is over; the protocol's own limits begin then. Of the handshakes that are
under way the oldest is dropped for a new one over the limit: so whoever opens connections and says nothing keeps nobody out.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import cast

from strandline.core.tls import ServerTls

HANDSHAKE_TIMEOUT_S = 10.0
"""From the connection to the end of its handshake."""
HANDSHAKES_MAX = 500
"""Under way at once, at one door."""

Protocols = Callable[[], asyncio.BaseProtocol]


class TlsDoor:
    """Makes protocols that shake hands first. For one event loop."""

    def __init__(self, tls: ServerTls, *, handshakes_max: int = HANDSHAKES_MAX) -> None:
        self.tls = tls
        self.handshakes_max = handshakes_max
        self.under_way: dict[Handshake, None] = {}

    def before(self, make: Protocols) -> asyncio.Protocol:
        """The protocol of a connection that has just been accepted. `make`: a new protocol, for one whose handshake is over."""
        return Handshake(self, make)


def behind_tls(tls: ServerTls | None, make: Protocols) -> Protocols:
    """The protocols that a server is to be given: those of `make`, behind a handshake where there is a certificate."""
    if tls is None:
        return make
    door = TlsDoor(tls)
    return lambda: door.before(make)


class Handshake(asyncio.Protocol):
    """A connection until its handshake is over.

    The event loop makes it for a plain connection. Its socket is then given to the loop once more, as one to shake hands on: from a
    connection that is open already the loops can't be relied on to begin TLS, since they may have read its first bytes.
    """

    def __init__(self, door: TlsDoor, make: Protocols) -> None:
        self._door = door
        self._make = make

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        own = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        own.setblocking(False)
        cast(asyncio.Transport, transport).abort()  # before it reads; the connection lives on in `own`
        under_way = self._door.under_way
        under_way[self] = None
        if len(under_way) > self._door.handshakes_max:
            next(iter(under_way)).drop()
        self._task = asyncio.get_running_loop().create_task(self._shake_hands(own))

    def drop(self) -> None:
        """End a handshake that is under way."""
        self._door.under_way.pop(self, None)
        self._task.cancel()

    async def _shake_hands(self, own: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make, own, ssl=self._door.tls.context, ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S
            )
        except (OSError, EOFError, asyncio.CancelledError):  # not TLS, a client without a certificate, too slow, gone
            own.close()
        finally:
            self._door.under_way.pop(self, None)
