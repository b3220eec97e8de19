"""Senders over UDP, one datagram a record. Nothing comes back: every record's outcome is unknown to them."""

from __future__ import annotations

import asyncio
import socket

from tests.support.faults.load import Load

_PAUSE_S = 0.005
"""Between two batches: what a socket's buffer has no room for is lost, and no fault of the gateway."""


class UdpLoad(Load):
    """Sends at a bounded pace, whether anybody listens or not."""

    can_leave = hears = False

    async def send_all(self, client: str) -> None:
        number = 0
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            while not self.is_stopping:
                number += 1
                batch = self.next_batch(client, number)
                request = self.history.invoke(client, batch)
                for _, value in batch:
                    sender.sendto(value, ("127.0.0.1", self.port()))
                self.history.info(request, "UDP has no answer")
                await asyncio.sleep(_PAUSE_S)  # sleeps: the pace of this sender
                await self.pause(client)
