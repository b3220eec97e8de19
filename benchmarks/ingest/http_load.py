"""The load of the HTTP measurements, as a separate process: prebuilt requests over open connections, one at a time on each.

The benchmark starts `python -m benchmarks.ingest.http_load`, which prints one line of JSON (Load). Without a rate, each
connection sends its next request after the response to its last. With a rate, requests become due at an even pace, and a
latency counts from the due time. So the wait for a free connection counts, too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from array import array
from collections import deque
from typing import cast

import uvloop

from benchmarks.ingest.load import ANSWERS_WAIT_S, TICK_S, Costs, Load, load_parser
from benchmarks.ingest.work import LINES_A_REQUEST, line_requests, single_requests


class Feed:
    """State of all connections, and counts of the responses."""

    def __init__(self, requests: list[bytes], records_a_request: int) -> None:
        self._requests = requests
        self._next = 0
        self.records_a_request = records_a_request
        self.idle: deque[Connection] = deque()
        self.due_s: deque[float] = deque()
        """Due times of requests that wait for an idle connection."""
        self.is_paced = False
        self.is_sending = False
        self.answered = 0
        self.failed = 0
        self.first_failure = ""
        self.under_way = 0
        self.is_over = asyncio.Event()
        """Set when sending has ended and no response is outstanding."""
        self.latencies_s = array("d")

    def next_request(self) -> bytes:
        self._next = (self._next + 1) % len(self._requests)
        return self._requests[self._next]

    def release(self, connection: Connection) -> None:
        """Send the next request of a connection after its response, or let it wait."""
        if self.due_s:
            connection.send(self.due_s.popleft())
        elif not self.is_sending:
            if not self.under_way:
                self.is_over.set()
        elif self.is_paced:
            self.idle.append(connection)
        else:
            connection.send(time.perf_counter())

    async def pace(self, rate: float, until_s: float) -> None:
        """Make requests due at an even pace until the end."""
        began_s, count = time.perf_counter(), 0
        while (now_s := time.perf_counter()) < until_s:
            while (due_s := began_s + count / rate) <= now_s:
                count += 1
                if self.idle:
                    self.idle.popleft().send(due_s)
                else:
                    self.due_s.append(due_s)
            await asyncio.sleep(TICK_S)


class Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._sent_s = 0.0
        self._received = b""
        self._is_waiting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, due_s: float) -> None:
        self._sent_s = due_s
        self._is_waiting = True
        self._feed.under_way += 1
        self._transport.write(self._feed.next_request())

    def data_received(self, data: bytes) -> None:
        # Responses are short and end with a JSON object, so checking the last byte is enough.
        self._received += data
        if self._received[-1] != ord("}"):
            return
        feed = self._feed
        if self._received.startswith(b"HTTP/1.1 200"):
            feed.answered += 1
            feed.latencies_s.append(time.perf_counter() - self._sent_s)
        else:
            feed.failed += 1
            feed.first_failure = feed.first_failure or self._received.decode(errors="replace")
        self._received = b""
        self._is_waiting = False
        feed.under_way -= 1
        feed.release(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self._is_waiting:
            self._feed.failed += 1
            self._feed.under_way -= 1


async def send_load(options: argparse.Namespace) -> Load:
    """Connect, warm up, measure, and wait for the last responses."""
    is_single = options.form == "single"
    requests = (single_requests if is_single else line_requests)(options.stream)
    feed = Feed(requests, 1 if is_single else LINES_A_REQUEST)
    loop = asyncio.get_running_loop()
    connections = [
        (await loop.create_connection(lambda: Connection(feed), "127.0.0.1", options.port))[1]
        for _ in range(options.connections)
    ]
    feed.is_sending, feed.is_paced = True, options.rate > 0
    measured_from_s = time.perf_counter() + options.warm_up_s
    until_s = measured_from_s + options.seconds
    if feed.is_paced:
        feed.idle.extend(connections)
        pacing = asyncio.create_task(feed.pace(options.rate / feed.records_a_request, until_s))
    else:
        for connection in connections:
            connection.send(time.perf_counter())
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
        with contextlib.suppress(TimeoutError):  # requests without a response count as failed
            await asyncio.wait_for(feed.is_over.wait(), ANSWERS_WAIT_S)
    return Load.of(
        records=answered * feed.records_a_request,
        records_whole_run=feed.answered * feed.records_a_request,
        seconds=ended_s - began_s,
        failed=feed.failed + feed.under_way + len(feed.due_s),
        first_failure=feed.first_failure,
        before=before,
        after=after,
        latencies_s=feed.latencies_s[first_latency:],
    )


def main() -> None:
    parser = load_parser()
    parser.add_argument("--stream", required=True)
    parser.add_argument("--form", choices=("single", "lines"), required=True)
    uvloop.run(send_load(parser.parse_args())).print()


if __name__ == "__main__":
    main()
