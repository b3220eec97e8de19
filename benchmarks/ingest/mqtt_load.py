"""The load of the MQTT measurements, as a separate process: prebuilt QoS 1 messages over open connections.

The benchmark starts `python -m benchmarks.ingest.mqtt_load`, which prints one line of JSON (Load). Half of the connections
speak 3.1.1, half 5.0. Without a rate, each has up to WINDOW unacknowledged messages. With a rate, messages become due at an
even pace on all connections in turn. A latency counts from the due time of a message to its PUBACK.
"""

from __future__ import annotations

import argparse
import asyncio
import struct
import time
from array import array
from typing import cast

import uvloop

from benchmarks.ingest.load import ANSWERS_WAIT_S, TICK_S, Costs, Load, load_parser
from benchmarks.ingest.work import readings

WINDOW = 20
"""Messages of one connection that wait for PUBACK: the limit of paho-mqtt."""
_SUCCESS = b"\x40\x02"


class Feed:
    """Counts of all messages."""

    def __init__(self) -> None:
        self.is_sending = False
        self.is_paced = False
        self.answered = 0
        self.failed = 0
        self.under_way = 0
        self.is_over = asyncio.Event()
        self.latencies_s = array("d")


class Connection(asyncio.Protocol):
    """One sensor that publishes to its own topic."""

    def __init__(self, feed: Feed, number: int, topic: str) -> None:
        self._feed = feed
        self._version = 5 if number % 2 else 4
        self._client_id = f"load-{number}"
        properties = b"\x00" if self._version == 5 else b""
        name = f"{topic}/{number}".encode()
        self._messages = [
            (_head(len(name) + 4 + len(properties) + len(reading), name), properties + reading)
            for reading in readings()[:100]
        ]
        self._next = 0
        self._packet_id = 0
        self._due_s = [0.0] * 65_536
        self._received = b""
        self._under_way = 0
        self.is_connected = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        client_id = self._client_id.encode()
        body = struct.pack(">H4sBBH", 4, b"MQTT", self._version, 0x02, 60)
        body += (b"\x00" if self._version == 5 else b"") + struct.pack(">H", len(client_id)) + client_id
        self._transport.write(bytes((0x10, len(body))) + body)

    def send(self, count: int, due_s: float) -> None:
        parts = []
        for _ in range(count):
            self._packet_id = self._packet_id % 65_535 + 1
            self._due_s[self._packet_id] = due_s
            head, rest = self._messages[self._next]
            self._next = (self._next + 1) % len(self._messages)
            parts += (head, self._packet_id.to_bytes(2, "big"), rest)
        self._under_way += count
        self._feed.under_way += count
        self._transport.write(b"".join(parts))

    def data_received(self, data: bytes) -> None:
        if not self.is_connected.done():
            self.is_connected.set_result(data[3] == 0)
            return
        data = self._received + data
        now_s, feed = time.perf_counter(), self._feed
        whole = len(data) // 4
        self._received = data[4 * whole :]
        for at in range(0, 4 * whole, 4):
            if data[at : at + 2] != _SUCCESS:
                feed.failed += 1
            feed.latencies_s.append(now_s - self._due_s[data[at + 2] << 8 | data[at + 3]])
        feed.answered += whole
        feed.under_way -= whole
        self._under_way -= whole
        if feed.is_sending and not feed.is_paced:
            self.send(whole, now_s)
        elif not feed.is_sending and not feed.under_way:
            feed.is_over.set()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.is_connected.done():
            self.is_connected.set_result(False)
        if self._feed.is_sending:
            self._feed.failed += self._under_way


def _head(length: int, topic: bytes) -> bytes:
    """Return the fixed header of a PUBLISH of QoS 1, and its topic. The length takes two bytes here."""
    assert 127 < length < 16_384
    return bytes((0x32, length & 0x7F | 0x80, length >> 7)) + struct.pack(">H", len(topic)) + topic


async def send_load(options: argparse.Namespace) -> Load:
    """Connect, warm up, measure, and wait for the last responses."""
    loop, feed = asyncio.get_running_loop(), Feed()
    connections: list[Connection] = []
    for number in range(options.connections):
        _, connection = await loop.create_connection(
            lambda number=number: Connection(feed, number, options.topic),  # type: ignore[misc]
            "127.0.0.1",
            options.port,
        )
        connections.append(connection)
    if not all(await asyncio.gather(*(connection.is_connected for connection in connections))):
        raise RuntimeError("a CONNECT was refused")
    feed.is_sending, feed.is_paced = True, options.rate > 0
    measured_from_s = time.perf_counter() + options.warm_up_s
    until_s = measured_from_s + options.seconds
    if feed.is_paced:
        pacing = asyncio.create_task(_pace(connections, options.rate, until_s))
    else:
        for connection in connections:
            connection.send(WINDOW, time.perf_counter())
    await asyncio.sleep(options.warm_up_s)
    before, first_latency = Costs.read(options.gateway_pid, options.kafka_pid), len(feed.latencies_s)
    answered_before, began_s = feed.answered, time.perf_counter()
    await asyncio.sleep(until_s - time.perf_counter())
    after, ended_s = Costs.read(options.gateway_pid, options.kafka_pid), time.perf_counter()
    answered = feed.answered - answered_before
    if feed.is_paced:
        await pacing
    feed.is_sending = False
    if feed.under_way:
        try:
            await asyncio.wait_for(feed.is_over.wait(), ANSWERS_WAIT_S)
        except TimeoutError:
            feed.failed += feed.under_way
    return Load.of(
        records=answered,
        records_whole_run=feed.answered,
        seconds=ended_s - began_s,
        failed=feed.failed,
        first_failure="",
        before=before,
        after=after,
        latencies_s=feed.latencies_s[first_latency:],
    )


async def _pace(connections: list[Connection], rate: float, until_s: float) -> None:
    """Make messages due at an even pace until the end."""
    began_s, count = time.perf_counter(), 0
    while (now_s := time.perf_counter()) < until_s:
        while (due_s := began_s + count / rate) <= now_s:
            connections[count % len(connections)].send(1, due_s)
            count += 1
        await asyncio.sleep(TICK_S)


def main() -> None:
    parser = load_parser()
    parser.add_argument("--topic", required=True, help="each connection adds its own level")
    uvloop.run(send_load(parser.parse_args())).print()


if __name__ == "__main__":
    main()
