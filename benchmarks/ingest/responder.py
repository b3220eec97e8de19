"""Responds to every request immediately and does nothing else: `python -m benchmarks.ingest.responder PORT REQUEST_BYTES`.

The rate of the load with this program is the maximum of the load itself. All requests of a feed have the same length, so
counting bytes is enough framing.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

_ANSWER = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 14\r\n\r\n{"accepted":1}'


class _Connection(asyncio.Protocol):
    def __init__(self, request_bytes: int) -> None:
        self._request_bytes = request_bytes
        self._bytes_received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._bytes_received += len(data)
        whole, self._bytes_received = divmod(self._bytes_received, self._request_bytes)
        if whole:
            self._transport.write(_ANSWER * whole)


async def respond(port: int, request_bytes: int) -> None:
    """Serve until killed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(request_bytes), "127.0.0.1", port, backlog=1_024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(respond(int(sys.argv[1]), int(sys.argv[2])))
