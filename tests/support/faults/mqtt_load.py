"""Senders over MQTT at QoS 1, half of them 3.1.1 and half 5.0. The few packets of a connection are encoded here,
because a library would resend unacknowledged messages.

https://docs.oasis-open.org/mqtt/mqtt/v3.1.1/os/mqtt-v3.1.1-os.html and .../v5.0/os/mqtt-v5.0-os.html, chapter 3.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable

from tests.support.faults.load import LEFT, Batch, Left, Load, send_or_leave

_CONNECT, _CONNACK, _PUBLISH_QOS_1, _PUBACK, _DISCONNECT = 0x10, 0x20, 0x32, 0x40, 0xE0
_RECONNECT_S = 0.05
_KEEP_ALIVE_S = 60
_REFUSALS = {0x90, 0x95, 0x97, 0x99}
"""Reason codes that say that the message was not taken: topic, size, quota, format."""
_RESERVED_IDS = 60_000
"""Packet ids go round below this."""


class MqttLoad(Load):
    """Publishes a batch at a time and waits for the PUBACK of each. Sends `topic_of(stream)/CLIENT`."""

    async def send_all(self, client: str) -> None:
        version = 4 if client[-1] in "02468" else 5
        connection: _Connection | None = None
        number = 0
        again: Batch = []
        while not self.is_stopping or again:
            if connection is None:
                connection = await _connect(self.port(), version, client)
                if connection is None:
                    if self.is_stopping:
                        return
                    await asyncio.sleep(_RECONNECT_S)  # sleeps: the pace of this sender
                    continue
            if not again:
                number += 1
            batch = again or self.next_batch(client, number)
            requests = {record_id: self.history.invoke(client, [(record_id, value)]) for record_id, value in batch}
            why = "no PUBACK in time"
            try:
                async with asyncio.timeout(self.answer_timeout_s):
                    topic = f"{topic_of(self.stream)}/{client}"
                    async for record_id, reason in connection.publish(topic, batch, self.leaves_after):
                        if reason < 0x80:
                            self.history.ok(requests.pop(record_id))
                        elif reason in _REFUSALS:
                            self.history.fail(requests.pop(record_id), f"PUBACK 0x{reason:02x}")
                        else:
                            self.history.info(requests.pop(record_id), f"PUBACK 0x{reason:02x}")
            except TimeoutError:
                connection.close()
                connection = None
            except Left:
                why, connection = LEFT, None
            except (OSError, EOFError) as error:
                why = f"connection lost: {error}" if isinstance(error, Refused) else "connection lost"
                connection.close()
                connection = None
            for request in requests.values():
                self.history.info(request, why)
            again = [(record_id, value) for record_id, value in batch if record_id in requests] if self.resends else []
            if connection is None:
                await asyncio.sleep(_RECONNECT_S)  # sleeps: the pace of this sender
            else:
                await self.pause(client)
        if connection is not None:
            connection.disconnect()


def topic_of(stream: str) -> str:
    """Return the topic below which each client has one level."""
    return f"faults/{stream}"


class Refused(OSError):
    """The server said why."""


async def _connect(port: int, version: int, client: str) -> _Connection | None:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return None
    connection = _Connection(reader, writer, version)
    try:
        async with asyncio.timeout(10.0):
            await connection.connect(client)
    except (OSError, EOFError, TimeoutError):
        connection.close()
        return None
    return connection


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int) -> None:
        self._reader = reader
        self._writer = writer
        self._version = version
        self._packet_id = 0

    async def connect(self, client: str) -> None:
        properties = b"\x00" if self._version == 5 else b""
        head = _text("MQTT") + struct.pack(">BBH", self._version, 0x02, _KEEP_ALIVE_S) + properties
        self._write(_CONNECT, head + _text(client))
        kind, body = await self._read()
        if kind != _CONNACK or body[1] != 0:
            raise Refused(f"CONNACK {body.hex()}")

    async def publish(
        self, topic: str, batch: Batch, leaves_after: Callable[[int], int | None]
    ) -> AsyncIterator[tuple[str, int]]:
        """Send all, then yield the id of each record and the reason code as its PUBACK comes. Raises Left, OSError and
        EOFError."""
        waiting: dict[int, str] = {}
        packets = bytearray()
        properties = b"\x00" if self._version == 5 else b""
        for record_id, value in batch:
            self._packet_id = self._packet_id % _RESERVED_IDS + 1
            waiting[self._packet_id] = record_id
            body = _text(topic) + struct.pack(">H", self._packet_id) + properties + value
            packets += _packet(_PUBLISH_QOS_1, body)
        await send_or_leave(self._writer, bytes(packets), leaves_after(len(packets)))
        while waiting:
            kind, body = await self._read()
            if kind == _PUBACK:
                (packet_id,) = struct.unpack_from(">H", body)
                reason = body[2] if len(body) > 2 else 0
                yield waiting.pop(packet_id), reason
            elif kind == _DISCONNECT:
                raise Refused(f"DISCONNECT 0x{body[0]:02x}" if body else "DISCONNECT")

    def disconnect(self) -> None:
        self._write(_DISCONNECT, b"")
        self._writer.close()

    def close(self) -> None:
        self._writer.transport.abort()

    def _write(self, kind: int, body: bytes) -> None:
        self._writer.write(_packet(kind, body))

    async def _read(self) -> tuple[int, bytes]:
        kind = (await self._reader.readexactly(1))[0]
        length = shift = 0
        while True:
            byte = (await self._reader.readexactly(1))[0]
            length |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return kind & 0xF0, await self._reader.readexactly(length)


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()


def _packet(kind: int, body: bytes) -> bytes:
    length, encoded = len(body), bytearray()
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([kind, *encoded, length]) + body
