"""How a gateway remembers streams: for a while, and longer when the ledger is away or slow."""

import asyncio
import threading
import time

import pytest

from strandline.core.errors import LedgerUnavailable, NotFound
from strandline.core.stream import StreamSpec
from strandline.ingest.gateway.stream_directory import PATIENCE_S, StreamDirectory


class ToldLedger:
    """Answers what the test put in, and counts how often it was asked."""

    def __init__(self):
        self.streams = {}
        self.asked = []
        self.is_away = False
        self.may_answer = threading.Event()
        self.may_answer.set()

    def register(self, name, key=None):
        document = {"stream": name, "schema": {"a": "string", "b": "string"}} | ({"key": key} if key else {})
        self.streams[name] = StreamSpec.from_document(document)

    def read(self, name):
        self.asked.append(name)
        assert self.may_answer.wait(30)
        if self.is_away:
            raise LedgerUnavailable("away")
        if name not in self.streams:
            raise NotFound(name)
        return self.streams[name]


def run(story, keep_s=60.0):
    async def told():
        ledger = ToldLedger()
        directory = StreamDirectory(ledger.read, keep_s=keep_s)
        try:
            await story(ledger, directory)
        finally:
            ledger.may_answer.set()
            directory.close()

    asyncio.run(told())


def test_a_stream_is_read_once_for_a_while():
    async def story(ledger, directory):
        ledger.register("s", key="a")
        assert [(await directory.find("s")).key for _ in range(5)] == ["a"] * 5
        assert ledger.asked == ["s"]

    run(story)


def test_a_change_is_seen_when_the_while_is_over():
    async def story(ledger, directory):
        ledger.register("s", key="a")
        await directory.find("s")
        ledger.register("s", key="b")
        assert (await directory.find("s")).key == "b"

    run(story, keep_s=0.0)


def test_a_stream_that_is_not_there_is_not_remembered():
    async def story(ledger, directory):
        with pytest.raises(NotFound):
            await directory.find("s")
        ledger.register("s")
        assert (await directory.find("s")).stream == "s"

    run(story)


def test_what_cannot_be_a_name_is_not_looked_up():
    async def story(ledger, directory):
        for name in ("S", "a b", "", "a" * 201, "../x"):
            with pytest.raises(NotFound, match="expected lower-case"):
                await directory.find(name)
        assert ledger.asked == []

    run(story)


def test_many_who_ask_at_once_share_one_look():
    async def story(ledger, directory):
        ledger.register("s")
        ledger.may_answer.clear()
        finding = [asyncio.ensure_future(directory.find("s")) for _ in range(20)]
        await asyncio.sleep(0)
        finding[0].cancel()  # one who leaves does not take the answer from the others
        ledger.may_answer.set()
        found = await asyncio.gather(*finding[1:])
        assert {spec.stream for spec in found} == {"s"}
        assert ledger.asked == ["s"]

    run(story)


def test_while_the_ledger_is_away_a_stream_that_was_seen_stays():
    async def story(ledger, directory):
        ledger.register("s", key="a")
        await directory.find("s")
        ledger.is_away = True
        assert (await directory.find("s")).key == "a"
        with pytest.raises(LedgerUnavailable):
            await directory.find("never-seen")
        ledger.is_away = False
        ledger.register("s", key="b")
        assert (await directory.find("s")).key == "b"

    run(story, keep_s=0.0)


def test_a_stream_that_was_seen_does_not_wait_for_a_slow_ledger():
    async def story(ledger, directory):
        ledger.register("s")
        await directory.find("s")
        ledger.may_answer.clear()
        started_s = time.monotonic()
        assert (await directory.find("s")).stream == "s"
        assert time.monotonic() - started_s < PATIENCE_S + 5

    run(story, keep_s=0.0)
