"""The sender repeats a request until it is acknowledged, sends by all ways at once, and counts honestly."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import BinaryIO

import httpx
import pytest

from strandline.core.errors import PermanentError
from strandline.example.carriers import HttpCarrier, MqttCarrier, UdpCarrier
from strandline.example.fleet import SITES, TICK_MS, Fleet
from strandline.example.sender import EventClock, FleetSender
from tests.support.waiting import stretched

START_MS = 1_700_000_000_000
DEADLINE_S = 20.0


class Gateway:
    """A gateway with scripted answers. The last one is repeated."""

    def __init__(self, *answers: Callable[[int], httpx.Response] | Exception) -> None:
        self._answers = list(answers)
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self.asked = threading.Semaphore(0)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.bodies.append(request.content)
        self.paths.append(request.url.path)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        self.asked.release()
        if isinstance(answer, Exception):
            raise answer
        return answer(request.content.count(b"\n") + 1)


class SlowBroker(threading.Thread):
    """A broker for one MQTT 3.1.1 client, which acknowledges no message until the test permits it.

    A client can send a message twice while it connects, so messages are counted by their numbers. Later messages are
    acknowledged too.
    """

    def __init__(self, messages: int) -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._messages = messages
        self.url = f"mqtt://127.0.0.1:{self._listener.getsockname()[1]}"
        self.got_all = threading.Event()
        self.acknowledge = threading.Event()

    def run(self) -> None:
        client, _ = self._listener.accept()
        with self._listener, client, client.makefile("rb") as packets:
            self._packet(packets)
            client.sendall(b"\x20\x02\x00\x00")
            numbers: set[bytes] = set()
            while len(numbers) < self._messages:
                numbers |= self._published(packets)
            self.got_all.set()
            self.acknowledge.wait(stretched(DEADLINE_S))
            while numbers:
                client.sendall(b"".join(b"\x40\x02" + number for number in numbers))
                numbers = self._published(packets)

    def _published(self, packets: BinaryIO) -> set[bytes]:
        """The number of the next message, in a set; an empty one at the end of the connection."""
        while packet := self._packet(packets):
            kind, body = packet
            if kind >> 4 == 3:
                begin = 2 + int.from_bytes(body[:2])
                return {body[begin : begin + 2]}
        return set()

    @staticmethod
    def _packet(packets: BinaryIO) -> tuple[int, bytes] | None:
        """The first byte and the body of the next packet; None at the end of the connection."""
        head = packets.read(2)
        if len(head) < 2:
            return None
        size, shift, digit = head[1] & 0x7F, 7, head[1]
        while digit & 0x80:
            digit = packets.read(1)[0]
            size |= (digit & 0x7F) << shift
            shift += 7
        return head[0], packets.read(size)


def accepted(count: int) -> httpx.Response:
    return httpx.Response(200, json={"accepted": count})


def busy(_count: int) -> httpx.Response:
    return httpx.Response(503, headers={"Retry-After": "0"}, json={"code": "log_busy"})


def refused(_count: int) -> httpx.Response:
    return httpx.Response(404, json={"code": "not_found"})


def half(count: int) -> httpx.Response:
    return httpx.Response(200, json={"accepted": count // 2})


def by_http(gateway: Gateway) -> dict[str, HttpCarrier]:
    """All sites send to the same gateway."""
    return dict.fromkeys(SITES, HttpCarrier("http://gateway", "turbines", transport=httpx.MockTransport(gateway)))


def run(gateway: Gateway, requests: int, ticks: int = 3) -> FleetSender:
    """Send `ticks` ticks, then wait until the gateway was asked `requests` times and the sender has stopped."""
    clock = EventClock(START_MS, START_MS, 1.0)
    sender = FleetSender(by_http(gateway), Fleet(), clock, wall_ms=lambda: START_MS + ticks * TICK_MS)
    sender.start()
    for _ in range(requests):
        assert gateway.asked.acquire(timeout=stretched(DEADLINE_S))
    sender.stop()
    return sender


def test_sends_all_ticks_that_are_over_and_counts_them():
    gateway = Gateway(accepted)
    sent = run(gateway, 1).sent()
    assert gateway.paths == ["/v1/streams/turbines/records"]
    assert (sent.sent, sent.acknowledged, sent.repeats) == (120, 120, 0)
    assert sent.event_ms == START_MS + 3 * TICK_MS


@pytest.mark.parametrize("failure", [busy, httpx.ReadTimeout("lost")], ids=["503", "no answer"])
def test_repeats_the_same_lines_until_they_are_acknowledged(failure):
    gateway = Gateway(failure, failure, accepted)
    sent = run(gateway, 3).sent()
    assert gateway.bodies[0] == gateway.bodies[1] == gateway.bodies[2]
    assert (sent.sent, sent.acknowledged, sent.repeats) == (120, 120, 2)


def test_counts_nothing_as_acknowledged_that_was_not():
    sent = run(Gateway(busy), 2).sent()
    assert (sent.sent, sent.acknowledged, sent.event_ms) == (120, 0, None)
    assert not sent.spoiled


@pytest.mark.parametrize("answer", [refused, half], ids=["404", "half of it"])
def test_an_answer_that_repeating_cannot_mend_ends_the_sender(answer):
    sender = run(Gateway(answer), 1)
    with pytest.raises(PermanentError, match="gateway"):
        sender.sent()


def test_late_reports_only_when_allowed():
    def lateness(allow: bool) -> bool:
        gateway = Gateway(accepted)
        clock = EventClock(START_MS, START_MS, 1.0)
        sender = FleetSender(by_http(gateway), Fleet(spoiled_share=1.0), clock, wall_ms=lambda: START_MS + 20 * TICK_MS)
        if allow:
            sender.allow_late()
        sender.start()
        assert gateway.asked.acquire(timeout=stretched(DEADLINE_S))
        sender.stop()
        return "late" in sender.sent().spoiled

    assert (lateness(True), lateness(False)) == (True, False)


def test_event_time_runs_faster_until_it_has_caught_up_with_the_clock():
    clock = EventClock(event_start_ms=0, wall_start_ms=1_000_000, speed=100.0)
    assert clock.event_ms(1_000_000) == 0
    assert clock.event_ms(1_010_000) == 1_000_000
    assert clock.event_ms(1_020_000) == 1_020_000, "never ahead of the clock"


def test_each_site_has_its_way_and_what_nobody_acknowledges_is_counted_apart():
    gateway = Gateway(accepted)
    carriers = dict(by_http(gateway))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(DEADLINE_S)
        carriers[SITES[3]] = UdpCarrier(*receiver.getsockname())
        clock = EventClock(START_MS, START_MS, 1.0)
        sender = FleetSender(carriers, Fleet(), clock, wall_ms=lambda: START_MS + 3 * TICK_MS)
        sender.start()
        datagrams = [receiver.recv(65_536) for _ in range(30)]
        assert gateway.asked.acquire(timeout=stretched(DEADLINE_S))
        sender.stop()
    sent = sender.sent()
    assert (sent.sent, sent.acknowledged, sent.unacknowledged) == (120, 90, 30)
    assert sent.by_protocol == {"HTTP": 90, "UDP": 30}
    reports = {report.line for tick in range(3) for report in Fleet().reports(START_MS // TICK_MS + tick, False)}
    assert {*datagrams, *gateway.bodies[0].split(b"\n")} == reports


def test_what_the_broker_acknowledges_after_the_stop_counts_too():
    broker = SlowBroker(messages=30)
    broker.start()
    carriers = {**by_http(Gateway(accepted)), SITES[2]: MqttCarrier(broker.url)}
    sender = FleetSender(carriers, Fleet(), EventClock(START_MS, START_MS, 1.0), wall_ms=lambda: START_MS + 3 * TICK_MS)
    sender.start()
    assert broker.got_all.wait(stretched(DEADLINE_S))
    # `stop` waits for the sender, so the broker answers from a timer.
    threading.Timer(0.5, broker.acknowledge.set).start()
    sender.stop()
    sent = sender.sent()
    assert (sent.sent, sent.acknowledged, sent.by_protocol["MQTT"]) == (120, 120, 30)
