"""UDP ports while Kafka stalls.

No received datagram is refused for lack of space, and what can wait stays in the socket.
"""

import asyncio
import socket

import pytest

from strandline.core.streams.stream import StreamSpec
from strandline.ingest.append.limits import RECORD_OVERHEAD_BYTES, BytesInFlight, bytes_of
from strandline.ingest.append.outcome import Accepted
from strandline.ingest.gateway.metrics import IngestMetrics
from strandline.ingest.gateway.stream_appender import StreamAppender
from strandline.ingest.udp.gateway import UdpPort
from strandline.ingest.udp.records_waiting import RecordsWaiting
from tests.support.waiting import wait_until_async

DATAGRAM = b"x" * 1_000
BYTES_MAX = 100 * (len(DATAGRAM) + RECORD_OVERHEAD_BYTES)
READ_AT_ONCE = 30
SENT = 400
"""To each port: eight times what the writer takes."""


class StalledWriter:
    """Refuses what is over its bound, as the real one does, and answers nothing until it is let go."""

    def __init__(self):
        self.in_flight = BytesInFlight(BYTES_MAX)
        self.let_go = asyncio.Event()
        self.taken = []

    async def append(self, topic, records, headers, **_):
        size = bytes_of(records, headers)
        self.in_flight.require_budget(size)
        self.in_flight.take(size)
        self.taken += [(topic, value) for value, _ in records]
        await self.let_go.wait()
        self.in_flight.give_back(size)
        return Accepted.SPOOL


class TrustingSenders:
    """Takes each datagram as one that a sender has signed."""

    counters = None

    def open(self, datagrams, host):
        return {"gateway" * 30: datagrams}, {}


class FullBuffers:
    """Reads numbered datagrams, READ_AT_ONCE per call, of sockets in which a number of them wait."""

    def __init__(self, sockets):
        self.left = {one: [b"%d %s" % (number, DATAGRAM) for number in range(SENT)] for one in sockets}

    def read(self, one):
        read, self.left[one] = self.left[one][:READ_AT_ONCE], self.left[one][READ_AT_ONCE:]
        return {"192.0.2.1": read} if read else {}


@pytest.mark.guarantee("G21")
@pytest.mark.parametrize("senders", [None, TrustingSenders()])
@pytest.mark.parametrize("closes", [False, True])
def test_while_kafka_stalls_ports_stop_reading_and_nothing_is_refused(closes, senders):
    async def told():
        writer, waiting, metrics = StalledWriter(), RecordsWaiting(BYTES_MAX), IngestMetrics("udp")
        sockets = [readable_socket() for _ in range(2)]
        buffers = FullBuffers(sockets)

        def port(name, one):
            spec = StreamSpec.from_document({"stream": name, "schema": {"n": "long"}, "udp": {"port": 8082}})
            appender = StreamAppender(spec, writer, metrics, may_spool=True, record_bytes_max=10_000)
            return UdpPort(appender, [one], buffers, lambda _: senders, waiting)

        ports = [port(name, one) for name, one in zip("ab", sockets, strict=True)]
        await wait_until_async(lambda: not any(port._is_reading for port in ports))
        read = 2 * SENT - sum(map(len, buffers.left.values()))
        assert read <= BYTES_MAX / (len(DATAGRAM) + RECORD_OVERHEAD_BYTES) + READ_AT_ONCE
        await asyncio.sleep(0.05)  # sleeps: long enough for a port that reads on
        assert 0 < writer.in_flight.now <= BYTES_MAX
        closing = [asyncio.ensure_future(port.close()) for port in ports] if closes else []
        await asyncio.sleep(0)
        writer.let_go.set()
        await wait_until_async(lambda: len(writer.taken) == 2 * SENT)
        await asyncio.gather(*closing or [port.close() for port in ports])
        for name in "ab":
            counts = metrics.of(name)
            assert (counts.received.value, counts.refused) == (SENT, {})
            numbers = [int(value.split()[0]) for topic, value in writer.taken if topic == name]
            assert numbers == list(range(SENT))

    asyncio.run(told())


def readable_socket():
    """The event loop finds it readable all the time, because its datagram is never read."""
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.bind(("127.0.0.1", 0))
    one.sendto(b"", one.getsockname())
    return one


def test_what_is_larger_than_all_room_goes_alone_and_in_its_turn():
    async def told():
        waiting, began, let_go = RecordsWaiting(10), [], asyncio.Event()

        async def append(size):
            async with waiting.in_writer(size):
                began.append(size)
                await let_go.wait()

        appending = [asyncio.ensure_future(append(size)) for size in (4, 50, 5)]
        await asyncio.sleep(0.01)  # sleeps: long enough for a wrong second append
        assert began == [4]
        let_go.set()
        await asyncio.gather(*appending)
        assert began == [4, 50, 5]

    asyncio.run(told())
