"""Acknowledges every MQTT message immediately and does nothing else: `python -m benchmarks.ingest.mqtt_responder PORT`.

The rate of the load with this program is the maximum of the load itself.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        data, at = self._rest + data, 0
        answers = []
        # Packets of the load: CONNECT with a length of one byte, PUBLISH of QoS 1 with one of two.
        while len(data) - at > 5:
            if data[at] == 0x10:
                answers.append(b"\x20\x03\x00\x00\x00" if data[at + 8] == 5 else b"\x20\x02\x00\x00")
                at += 2 + data[at + 1]
                continue
            end = at + 3 + (data[at + 1] & 0x7F | data[at + 2] << 7)
            if end > len(data):
                break
            packet_id = at + 5 + (data[at + 3] << 8 | data[at + 4])
            answers.append(b"\x40\x02" + data[packet_id : packet_id + 2])
            at = end
        self._rest = data[at:]
        self._transport.write(b"".join(answers))


async def respond(port: int) -> None:
    """Serve until killed."""
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", port, backlog=1_024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(respond(int(sys.argv[1])))
