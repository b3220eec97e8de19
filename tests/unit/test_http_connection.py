"""HTTP connections over a transport that records. The test sets the time.

Checks complete requests, refusals, the order of the answers, and what ends a connection.
"""

from __future__ import annotations

import asyncio
import random
import socket

import pytest

from strandline.ingest.gateway.serving import http_connection
from strandline.ingest.gateway.serving.http_server import HttpServer
from tests.support.http_peers import ROOM_BYTES, EchoingApplication, Peer, play, post
from tests.support.waiting import stretched

REQUESTS = [
    post(b"one"),
    b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ntwo\r\n5;name=value\r\nthree\r\n0\r\nTrailer: x\r\n\r\n",
    b"GET /healthz?query HTTP/1.1\r\nHOST: x\r\nidempotency-KEY: a\r\n\r\n",
    post(b"", more=b"Expect: something\r\n"),
    post(b"x" * ROOM_BYTES),
]
BODIES = [b"one", b"twothree", b"", b"", b"x" * ROOM_BYTES]


@pytest.mark.parametrize("seed", range(20))
def test_requests_are_answered_in_order_however_their_bytes_arrive(seed: int) -> None:
    async def script(server: HttpServer, application: EchoingApplication) -> None:
        chance = random.Random(seed)
        peer = Peer(server)
        stream = b"".join(REQUESTS) * 2
        cuts = sorted(chance.choices(range(len(stream)), k=chance.choice([0, 1, 5, 50, 1_000])))
        pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
        if chance.random() < 0.5:
            await peer.send(*pieces)  # faster than they are answered
        else:
            for piece in pieces:
                await peer.send(piece)
        assert peer.transport.statuses() == [200] * 2 * len(REQUESTS)
        answers = [part.partition(b"\r\n\r\n")[2] for part in peer.transport.written.split(b"HTTP/1.1 200 OK")[1:]]
        assert [answer.split(b" ", 2)[2] for answer in answers] == BODIES * 2
        assert application.seen[2].headers == {b"host": b"x", b"idempotency-key": b"a"}
        assert application.seen[0].source == b"http:192.0.2.1"
        assert peer.transport.is_reading
        assert not peer.transport.ended

    play(script)


def test_a_second_request_waits_and_nothing_more_is_read_meanwhile() -> None:
    async def script(server: HttpServer, application: EchoingApplication) -> None:
        peer = Peer(server)
        await peer.send(post(b"a", b"/slow"), post(b"b"))
        assert len(application.seen) == 1
        assert not peer.transport.is_reading
        application.may_go_on.set()
        await peer.send()
        assert peer.transport.written.index(b"/slow a") < peer.transport.written.index(b"/x b")
        assert peer.transport.is_reading

    play(script)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"POST /x HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
        (b"POST /x HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST /x HTTP/1.1\r\nContent-Length: -5\r\n\r\n", 400),
        (b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    ],
)
def test_what_is_not_http_is_refused_and_the_rest_ignored(data: bytes, status: int) -> None:
    async def script(server: HttpServer, application: EchoingApplication) -> None:
        peer = Peer(server)
        await peer.send(post(b"good"), data, post(b"smuggled"))
        assert peer.transport.statuses() == [200, status]
        assert b"smuggled" not in peer.transport.written
        assert b"connection: close" in peer.transport.written
        server.sweep(http_connection.LINGER_S + 1)
        assert peer.transport.ended == "aborted"
        peer.lose()

    play(script)


@pytest.mark.parametrize("start", [b"POST / HTTP/1.1\r\nx: ", b"POST / HTTP/1.1\r\n"])
def test_a_head_without_end_is_refused(start: bytes) -> None:
    async def script(server: HttpServer, application: EchoingApplication) -> None:
        peer = Peer(server)
        await peer.send(start)
        pieces = 0
        while not peer.transport.written:
            await peer.send(b"x: y\r\n" * 100 if start.endswith(b"1.1\r\n") else b"x" * 600)
            pieces += 1
        assert peer.transport.statuses() == [431]
        assert pieces * 600 <= http_connection.HEAD_BYTES_MAX + 600
        peer.lose()

    play(script, bodies_held_max=100)


@pytest.mark.parametrize("target", [b"/nowhere", b"/x"])
def test_a_refused_body_is_read_on_and_thrown_away_until_it_ends(target: bytes) -> None:
    async def script(server: HttpServer, application: EchoingApplication) -> None:
        peer = Peer(server)
        body = b"x" * (ROOM_BYTES * 3)
        await peer.send(post(body, target)[:-1])
        assert peer.transport.statuses() == [404 if target == b"/nowhere" else 413]
        assert b"connection: close" in peer.transport.written
        assert not peer.transport.ended
        assert application.budget.bytes_held == 0
        await peer.send(b"x" + post(b"next"))
        assert peer.transport.ended == "closed"
        assert len(peer.transport.statuses()) == 1

    play(script)


@pytest.mark.parametrize(
    ("request_bytes", "is_closed"),
    [
        (b"GET /x\r\n\r\n", True),
        (b"GET /x HTTP/1.0\r\n\r\n", True),
        (b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True),
        (b"GET /x HTTP/1.1\r\nConnection: close\r\n\r\n", True),
        (b"GET /x HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n", False),
        (b"GET /x HTTP/1.1\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n", True),
        (b"CONNECT x:1 HTTP/1.1\r\n\r\n", True),
        (b"GET /x HTTP/1.1\r\n\r\n", False),
        (b"HEAD /x HTTP/1.1\r\n\r\n", False),
    ],
)
def test_a_connection_is_kept_unless_the_request_says_otherwise(request_bytes: bytes, is_closed: bool) -> None:
    async def script(server: HttpServer, application: EchoingApplication) -> None:
        peer = Peer(server)
        await peer.send(request_bytes)
        assert peer.transport.statuses() == [200]
        assert (peer.transport.ended == "closed") is is_closed
        assert (b"connection: close" in peer.transport.written) is is_closed
        is_head = request_bytes.startswith(b"HEAD")
        assert peer.transport.written.endswith(b"\r\n\r\n") is is_head

    play(script)


def test_a_sender_that_asks_first_is_told_to_go_on() -> None:
    async def script(server: HttpServer, application: EchoingApplication) -> None:
        peer = Peer(server)
        request = post(b"abc", more=b"Expect: 100-continue\r\n")
        await peer.send(request[:-3])
        assert peer.transport.statuses() == [100]
        await peer.send(request[-3:])
        assert peer.transport.statuses() == [100, 200]

    play(script)


def test_a_slow_head_and_a_slow_body_are_refused_and_an_idle_connection_is_closed() -> None:
    async def script(server: HttpServer, application: EchoingApplication) -> None:
        silent, idle, slow_head, slow_body = (Peer(server) for _ in range(4))
        await idle.send(post(b"a"))
        await slow_head.send(b"POST /x HT")
        await slow_body.send(post(b"abc")[:-1])
        server.sweep(http_connection.HEAD_TIMEOUT_S + 1)
        await slow_head.send()
        assert silent.transport.ended == "aborted"
        assert slow_head.transport.statuses() == [408]
        assert (idle.transport.ended, slow_body.transport.written) == ("", b"")
        silent.lose()
        slow_head.lose()
        server.sweep(http_connection.BODY_TIMEOUT_S + 1)
        await slow_body.send()
        assert slow_body.transport.statuses() == [408]
        assert idle.transport.ended == ""
        slow_body.lose()
        server.sweep(http_connection.KEEP_ALIVE_S + 1)
        assert idle.transport.ended == "aborted"
        idle.lose()
        assert server.connections == 0
        assert application.disconnected == 0

    play(script)


def test_a_request_that_is_being_answered_has_all_the_time_it_needs() -> None:
    async def script(server: HttpServer, application: EchoingApplication) -> None:
        peer = Peer(server)
        await peer.send(post(b"a", b"/slow"))
        await peer.send(post(b"b")[:20])
        server.sweep(1e9)
        assert not peer.transport.ended
        application.may_go_on.set()
        await peer.send(post(b"b")[20:])
        assert peer.transport.statuses() == [200, 200]

    play(script)


def test_a_sender_that_does_not_read_its_answers_is_cut() -> None:
    async def script(server: HttpServer, application: EchoingApplication) -> None:
        patient, impatient = Peer(server), Peer(server)
        for peer in (patient, impatient):
            peer.connection.pause_writing()
            await peer.send(post(b"a"), post(b"b"))
            assert len(peer.transport.statuses()) == 1
        patient.connection.resume_writing()
        await patient.send()
        assert patient.transport.statuses() == [200, 200]
        server.sweep(http_connection.WRITE_TIMEOUT_S + 1)
        assert impatient.transport.ended == "aborted"
        impatient.lose()
        await impatient.send()
        assert len(impatient.transport.statuses()) == 1

    play(script)


def test_over_the_bound_the_connection_that_waited_longest_makes_room() -> None:
    async def script(server: HttpServer, application: EchoingApplication) -> None:
        first, busy, third = (Peer(server) for _ in range(3))
        await busy.send(post(b"a", b"/slow"))
        await first.send(post(b"a"))  # so that it waits for less time than the third
        fourth = Peer(server)
        assert [peer.transport.ended for peer in (first, busy, third, fourth)] == ["", "", "aborted", ""]
        third.lose()
        assert server.connections == 3
        assert server.connections_evicted == 1
        application.may_go_on.set()
        await busy.send()
        assert busy.transport.statuses() == [200]

    play(script, connections_max=3)


def test_a_sender_that_leaves_is_counted_only_if_its_request_was_not_whole() -> None:
    async def script(server: HttpServer, application: EchoingApplication) -> None:
        idle, partial, whole, queued = (Peer(server) for _ in range(4))
        await partial.send(post(b"abc")[:-1])
        await whole.send(post(b"a", b"/slow"))
        await queued.send(post(b"a", b"/slow"), post(b"b"))
        for peer in (idle, partial, whole, queued):
            peer.lose()
        assert application.disconnected == 1
        application.may_go_on.set()
        await idle.send()
        assert [request.url for request in application.seen] == [b"/slow", b"/slow"]
        assert server.connections == 0

    play(script)


def test_stopping_answers_what_has_begun_and_closes_the_rest() -> None:
    async def script(server: HttpServer, application: EchoingApplication) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        await server.start(listener)
        idle, busy, partial = (Peer(server) for _ in range(3))
        await busy.send(post(b"a", b"/slow"), post(b"b"))
        await partial.send(post(b"abc")[:-1])
        stopping = asyncio.create_task(server.stop(10))
        await idle.send()
        assert idle.transport.ended == "closed"
        application.may_go_on.set()
        await busy.send()
        await partial.send(b"c")
        for peer, count in ((busy, 2), (partial, 1)):
            assert peer.transport.statuses() == [200] * count
            assert peer.transport.written.count(b"connection: close") == 1
            assert peer.transport.ended == "closed"
            peer.lose()
        await asyncio.wait_for(stopping, stretched(5))

    play(script)
