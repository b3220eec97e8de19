"""TLS before a protocol: a handshake has a deadline, and only so many are under way at once.

A connection becomes the protocol's when its handshake is over; the protocol's own limits begin then. Of the handshakes that are
under way the oldest is dropped for a new one over the limit: so whoever opens connections and says nothing keeps nobody out.
"""

from __future__ import annotations

import asyncio
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
    """A connection until its handshake is over."""

    def __init__(self, door: TlsDoor, make: Protocols) -> None:
        self._door = door
        self._make = make
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.pause_reading()  # what the client says is for TLS alone
        under_way = self._door.under_way
        under_way[self] = None
        if len(under_way) > self._door.handshakes_max:
            next(iter(under_way)).drop()
        self._task = asyncio.get_running_loop().create_task(self._shake_hands())

    def drop(self) -> None:
        """End a handshake that is under way."""
        self._door.under_way.pop(self, None)
        self._task.cancel()

    async def _shake_hands(self) -> None:
        assert self._transport is not None
        early = _Early()
        try:
            transport = await asyncio.get_running_loop().start_tls(
                self._transport,
                early,
                self._door.tls.context,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
            )
        except (OSError, EOFError, asyncio.CancelledError):  # not TLS, a client without a certificate, too slow, gone
            self._transport.abort()
            return
        finally:
            self._door.under_way.pop(self, None)
        if transport is None or early.is_lost:
            return
        protocol = self._make()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if early.data and not transport.is_closing():
            _feed(protocol, bytes(early.data))
        if early.is_ended and not transport.is_closing() and not cast(asyncio.Protocol, protocol).eof_received():
            transport.close()


class _Early(asyncio.Protocol):
    """Keeps what a client sends right behind its handshake, until its protocol is there: a moment of the event loop."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.is_ended = self.is_lost = False

    def data_received(self, data: bytes) -> None:
        self.data += data

    def eof_received(self) -> bool:
        self.is_ended = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


def _feed(protocol: asyncio.BaseProtocol, data: bytes) -> None:
    if not isinstance(protocol, asyncio.BufferedProtocol):
        cast(asyncio.Protocol, protocol).data_received(data)
        return
    while data:
        buffer = memoryview(cast(bytearray, protocol.get_buffer(len(data))))
        taken = min(len(buffer), len(data))
        buffer[:taken] = data[:taken]
        protocol.buffer_updated(taken)
        data = data[taken:]
