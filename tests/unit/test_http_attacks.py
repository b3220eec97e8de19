"""Attacks of a sender on an HTTP connection, its server and the other senders. The test sets the time.

All that it sends is kept only within a bound. If there is no space left, the slowest connection of the source that uses
the most is closed.
"""

from __future__ import annotations

import pytest

from strandline.core.settings import Settings
from strandline.ingest.gateway.serving import http_connection
from strandline.ingest.gateway.serving.http_request import SMALL_REQUEST_BYTES
from strandline.ingest.gateway.serving.http_server import HttpServer
from strandline.ingest.http.gateway import BODY_BYTES_HELD_MAX
from tests.support.http_peers import ROOM_BYTES, EchoingApplication, Peer, play, post

MEGABYTE = 1_000_000
CHUNKED = b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
UNENDING = {
    "a target": (b"POST /", b"x", 414),
    "a header": (b"POST / HTTP/1.1\r\nhost: ", b"x", 431),
    "headers": (b"POST / HTTP/1.1\r\n", b"x: y\r\n", 431),
    "a trailer": (CHUNKED + b"1\r\na\r\n0\r\nhost: ", b"x", 431),
    "trailers": (CHUNKED + b"1\r\na\r\n0\r\n", b"host: y\r\n", 431),
    "the size of a chunk": (CHUNKED, b"0", 431),
    "an extension of a chunk": (CHUNKED + b"1;", b"x", 431),
    "empty lines": (b"", b"\r\n", 431),
}


@pytest.mark.guarantee(
    "G160",
    "Unfinished heads, trailers, chunks, and pipelined requests of HTTP senders are bounded for each connection and "
    "in total. A refused request isn't parsed.",
    promise="no-client-can-exhaust-a-service",
)
@pytest.mark.parametrize("piece_bytes", [600, 200_000])
@pytest.mark.parametrize("what", UNENDING)
def test_what_never_ends_is_refused_and_then_not_even_parsed(what: str, piece_bytes: int) -> None:
    async def script(server: HttpServer, application: EchoingApplication) -> None:
        start, more, status = UNENDING[what]
        piece = more * (piece_bytes // len(more))
        peer = Peer(server)
        await peer.send(start)
        sent = 0
        while not peer.transport.written:
            await peer.send(piece)
            sent += len(piece)
        assert peer.transport.statuses() == [status]
        assert sent <= http_connection.HEAD_BYTES_MAX + max(piece_bytes, 600)
        peer.connection._parser = None  # type: ignore[assignment]  # parsing more would raise an error
        await peer.send(*[piece] * 10)
        server.sweep(http_connection.LINGER_S + 1)
        assert peer.transport.ended == "aborted"
        peer.lose()

    play(script, bodies_held_max=2, body_bytes_max=MEGABYTE)


@pytest.mark.guarantee("G160")
def test_unfinished_heads_and_trailers_take_room() -> None:
    async def script(server: HttpServer, application: EchoingApplication) -> None:
        starts = [b"POST / HTTP/1.1\r\nx: ", CHUNKED + b"1\r\na\r\n0\r\nx: "] * 2
        for start in starts:
            await Peer(server).send(start, *[b"x" * 1_000] * 4)
        assert 16_000 <= application.budget.bytes_held <= 17_000
        for connection in list(server.waiting):
            connection.connection_lost(None)

    play(script, bodies_held_max=20)


@pytest.mark.guarantee("G160")
def test_a_body_in_tiny_chunks_takes_no_more_memory_than_its_bytes() -> None:
    async def script(server: HttpServer, application: EchoingApplication) -> None:
        peer = Peer(server)
        await peer.send(CHUNKED, b"2\r\nab\r\n" * 50_000)
        request = peer.connection.arriving
        assert request is not None
        assert request.bytes_held == 100_000
        assert request._body.__sizeof__() < 150_000
        await peer.send(b"0\r\n\r\n")
        assert peer.transport.written.endswith(b"/x " + b"ab" * 50_000)

    play(script, body_bytes_max=MEGABYTE)


@pytest.mark.parametrize("name", [b"Host", b"idempotency-key", b"Content-Encoding"])
def test_a_header_that_counts_comes_once(name: bytes) -> None:
    async def script(server: HttpServer, application: EchoingApplication) -> None:
        peer = Peer(server)
        await peer.send(b"POST /x HTTP/1.1\r\n%s: a\r\n%s: b\r\nContent-Length: 1\r\n\r\na" % (name, name) + post(b"b"))
        assert peer.transport.statuses() == [400, 200]

    play(script)


def test_a_trailer_says_nothing_about_the_request() -> None:
    async def script(server: HttpServer, application: EchoingApplication) -> None:
        peer = Peer(server)
        await peer.send(CHUNKED + b"1\r\na\r\n0\r\nIdempotency-Key: k\r\nHost: x\r\n\r\n")
        assert application.seen[0].headers == {b"transfer-encoding": b"chunked"}

    play(script)


@pytest.mark.guarantee(
    "G161",
    "Slow bodies keep no other sender out: small ones always have room. If memory is scarce, the slowest requests of "
    "the source that uses most are cut, and complete bodies never.",
    promise="no-client-can-exhaust-a-service",
)
def test_four_slow_bodies_keep_no_small_one_out() -> None:
    """Bodies of the largest size without their last byte. Four of them once used all the space."""
    size = Settings.model_fields["http_body_bytes_max"].default
    assert size * 4 == BODY_BYTES_HELD_MAX

    async def script(server: HttpServer, application: EchoingApplication) -> None:
        slow = [Peer(server, "198.51.100.1") for _ in range(4)]
        for peer in slow:
            await peer.send(post(bytes(size))[:-1])
        assert application.budget.bytes_held <= 3 * size
        for _ in range(20):
            peer = Peer(server)
            await peer.send(*(post(b"y" * SMALL_REQUEST_BYTES)[i : i + 60_000] for i in range(0, 280_000, 60_000)))
            assert peer.transport.statuses() == [200]
            peer.lose()
        for peer in slow:
            peer.lose()

    play(script, bodies_held_max=4, body_bytes_max=size)


@pytest.mark.guarantee("G161")
@pytest.mark.parametrize(("size", "begun", "bodies_held_max"), [(ROOM_BYTES, 600, 4), (MEGABYTE, 500_000, 5)])
def test_the_slowest_of_the_source_that_holds_most_makes_room(size: int, begun: int, bodies_held_max: int) -> None:
    async def script(server: HttpServer, application: EchoingApplication) -> None:
        greedy = [Peer(server, "198.51.100.1") for _ in range(3)]
        slow, modest = Peer(server, "198.51.100.2"), Peer(server)
        await slow.send(post(b"x" * size)[:-2])
        for peer in greedy:
            await peer.send(post(b"x" * size)[:begun])
        await greedy[1].send(b"x" * (size * 4 // 10))  # fast at first, then nothing
        for now_s in (1, 2, 3):
            server.sweep(now_s)
            for peer in (greedy[0], greedy[2]):
                await peer.send(b"x" * (size // 10))
        await modest.send(post(b"x" * size)[:-1])
        assert [peer.transport.statuses() for peer in greedy] == [[], [429], []]
        assert b"retry-after: " in greedy[1].transport.written
        assert slow.transport.written == b""
        await modest.send(b"x")
        assert modest.transport.statuses() == [200]
        for peer in (*greedy, slow):
            peer.lose()

    play(script, bodies_held_max=bodies_held_max, body_bytes_max=size)


def test_a_body_that_is_itself_the_slowest_gives_way() -> None:
    async def script(server: HttpServer, application: EchoingApplication) -> None:
        peers = [Peer(server) for _ in range(3)]
        for peer in peers:
            await peer.send(post(b"x" * ROOM_BYTES)[:-400])
        server.sweep(1)
        server.sweep(2)
        server.sweep(3)
        for peer in peers[1:]:
            await peer.send(b"x" * 200)
        await peers[0].send(b"x")
        assert [peer.transport.statuses() for peer in peers] == [[429], [], []]
        for peer in peers:
            peer.lose()

    play(script, bodies_held_max=2)


@pytest.mark.guarantee("G161")
def test_a_body_that_waits_for_its_answer_is_never_cut() -> None:
    async def script(server: HttpServer, application: EchoingApplication) -> None:
        whole, late = Peer(server), Peer(server)
        await whole.send(post(b"x" * ROOM_BYTES, b"/slow"))
        await late.send(post(b"y"))
        assert late.transport.statuses() == [429]
        application.may_go_on.set()
        await whole.send()
        assert whole.transport.statuses() == [200]

    play(script, bodies_held_max=1)


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("cut", [None, -3, 0, 3])
def test_a_request_for_another_protocol_is_taken_as_http_1_1(is_chunked: bool, cut: int | None) -> None:
    """Java's HttpClient requests another protocol by default."""

    async def script(server: HttpServer, application: EchoingApplication) -> None:
        peer = Peer(server)
        java = b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\nUpgrade: h2c\r\n"
        request = post(b"records", more=java)
        if is_chunked:
            request = CHUNKED[:-2] + java + b"\r\n7\r\nrecords\r\n0\r\n\r\n"
        place = request.index(b"\r\n\r\n") + 4 + (cut or 0)
        pieces = [request] if cut is None else [request[:place], request[place:]]
        for _ in range(3):
            await peer.send(*pieces)
        await peer.send(post(b"next"))
        assert peer.transport.statuses() == [200] * 4
        assert peer.transport.written.count(b"POST /x records") == 3
        assert not peer.transport.ended

    play(script)


def test_a_broken_body_behind_a_request_for_another_protocol_is_refused() -> None:
    async def script(server: HttpServer, application: EchoingApplication) -> None:
        peer = Peer(server)
        await peer.send(CHUNKED[:-2] + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\nzz\r\n")
        assert peer.transport.statuses() == [400]
        peer.lose()

    play(script)


@pytest.mark.guarantee("G160")
def test_pipelining_has_a_bound() -> None:
    async def script(server: HttpServer, application: EchoingApplication) -> None:
        peer = Peer(server)
        await peer.send(post(b"a", b"/slow"), b"GET /x HTTP/1.1\r\n\r\n" * 10_000)
        assert len(peer.connection._queue) == http_connection.PIPELINED_MAX + 1
        application.may_go_on.set()
        await peer.send()
        assert peer.transport.statuses() == [200] * (http_connection.PIPELINED_MAX + 1) + [429]
        assert b"connection: close" in peer.transport.written
        server.sweep(http_connection.LINGER_S + 1)
        assert peer.transport.ended == "aborted"
        peer.lose()

    play(script)
