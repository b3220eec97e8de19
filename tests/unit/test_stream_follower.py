"""Gateways without HTTP: how they learn of streams, and the pages that they show."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from prometheus_client import CollectorRegistry, Counter

from strandline.core.errors import LedgerUnavailable, LogUnavailable, StackError
from strandline.core.stream import StreamSpec
from strandline.ingest.gateway.health_server import serve_pages
from strandline.ingest.gateway.stream_follower import StreamFollower
from tests.support.gateways import free_port

SPEC = StreamSpec.from_document({"stream": "one", "schema": {"n": "long"}})


async def follow(answers: list[list[StreamSpec] | Exception], looks: int) -> list[list[StreamSpec]]:
    """What is taken up while the ledger gives these answers, the last one for ever."""
    taken: list[list[StreamSpec]] = []
    asked = 0
    enough = asyncio.Event()
    loop = asyncio.get_running_loop()

    def read() -> list[StreamSpec]:
        nonlocal asked
        answer = answers[min(asked, len(answers) - 1)]
        asked += 1
        if asked == looks:
            loop.call_soon_threadsafe(enough.set)
        if isinstance(answer, Exception):
            raise answer
        return answer

    following = asyncio.create_task(StreamFollower(read, taken.append, every_s=0.001).follow())
    waiting = asyncio.create_task(enough.wait())
    await asyncio.wait((following, waiting), timeout=30, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following
    return taken


def test_streams_are_handed_over_again_and_again():
    taken = asyncio.run(follow([[], [SPEC]], looks=4))
    assert taken[:3] == [[], [SPEC], [SPEC]]


def test_while_the_ledger_is_away_nobody_is_called_and_afterwards_it_goes_on():
    away = LedgerUnavailable("away")
    taken = asyncio.run(follow([away, away, [SPEC]], looks=4))
    assert taken[0] == [SPEC]


def test_an_error_of_the_gateway_ends_the_following():
    async def broken() -> None:
        def update_streams(_: list[StreamSpec]) -> None:
            raise RuntimeError("broken")

        await asyncio.wait_for(StreamFollower(lambda: [SPEC], update_streams).follow(), 30)

    with pytest.raises(RuntimeError, match="broken"):
        asyncio.run(broken())


async def ask(port: int, request: bytes) -> tuple[bytes, bytes]:
    """The first line and the body of an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0], body


def test_the_pages():
    async def look() -> None:
        registry, refreshed = CollectorRegistry(), []
        Counter("strandline_looks", "For the test", registry=registry).inc(7)
        is_away = False

        async def check() -> None:
            if is_away:
                raise LogUnavailable("Kafka is away")

        port = free_port()
        async with serve_pages("127.0.0.1", port, registry, check, lambda: refreshed.append(1)):
            assert await ask(port, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n") == (
                b"HTTP/1.1 200 OK",
                b'{"status":"ok"}',
            )
            assert (await ask(port, b"GET /readyz HTTP/1.1\r\n\r\n"))[0] == b"HTTP/1.1 200 OK"
            is_away = True
            line, body = await ask(port, b"GET /readyz HTTP/1.1\r\n\r\n")
            assert line == b"HTTP/1.1 503 Service Unavailable"
            assert b"Kafka is away" in body
            assert not refreshed
            assert b"strandline_looks_total 7.0" in (await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n"))[1]
            assert refreshed
            assert (await ask(port, b"HEAD /healthz HTTP/1.1\r\n\r\n"))[1] == b""
            assert (await ask(port, b"GET /x HTTP/1.1\r\n\r\n"))[0] == b"HTTP/1.1 404 Not Found"
            assert (await ask(port, b"POST /metrics HTTP/1.1\r\n\r\n"))[0] == b"HTTP/1.1 405 Method Not Allowed"
            assert await ask(port, b"x" * 20_000) == (b"", b"")
            with pytest.raises(StackError, match=str(port)):
                async with serve_pages("127.0.0.1", port, registry, check, lambda: None):
                    pass

    asyncio.run(look())
