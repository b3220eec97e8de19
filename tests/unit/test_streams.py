"""The streams that a gateway knows: as in the ledger, and as last seen when the ledger is unavailable or slow."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from strandline.core.errors import LedgerUnavailable, NotFound
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.gateway.streams import UNKNOWN_MAX, Streams
from strandline.ledger.ledger import Ledger
from tests.support.waiting import Patience, stretched, wait_until_async

SPEC = StreamSpec.from_document({"stream": "one", "schema": {"n": "long"}})


class ToldLedger:
    """Answers what the test put in, and notes which names it was asked for."""

    def __init__(self):
        self.streams = {}
        self.asked = []
        self.is_away = False
        self.may_answer = threading.Event()
        self.may_answer.set()

    def register(self, name, key=None):
        document = {"stream": name, "schema": {"a": "string", "b": "string"}} | ({"key": key} if key else {})
        self.streams[name] = StreamSpec.from_document(document)

    def read_all(self):
        assert self.may_answer.wait(stretched(30))
        if self.is_away:
            raise LedgerUnavailable("away")
        return list(self.streams.values())

    def read_one(self, name):
        self.asked.append(name)
        self.read_all()
        if name not in self.streams:
            raise NotFound(name)
        return self.streams[name]


def run(story):
    """Run a story about streams that are followed after a first look."""

    async def told():
        ledger = ToldLedger()
        streams = Streams(ledger.read_all, ledger.read_one, every_s=0.001)
        try:
            await story(ledger, streams)
        finally:
            ledger.may_answer.set()
            streams.close()

    asyncio.run(told())


@contextlib.asynccontextmanager
async def followed(streams, on_read=lambda _: None):
    following = asyncio.create_task(streams.follow(on_read))
    try:
        yield
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following


def test_a_stream_that_is_known_is_not_asked_for_again():
    async def story(ledger, streams):
        ledger.register("s", key="a")
        assert [(await streams.find("s")).key for _ in range(5)] == ["a"] * 5
        assert ledger.asked == ["s"]

    run(story)


def test_a_change_and_a_removal_are_seen_by_following():
    async def story(ledger, streams):
        ledger.register("s", key="a")
        await streams.find("s")
        read = []
        async with followed(streams, read.append):
            ledger.register("s", key="b")
            await wait_until_async(lambda: read and read[-1] and read[-1][0].key == "b")
            assert (await streams.find("s")).key == "b"
            del ledger.streams["s"]
            await wait_until_async(lambda: read[-1] == [])
            with pytest.raises(NotFound):
                await streams.find("s")

    run(story)


@pytest.mark.guarantee(
    "G162",
    "Wrong names of streams cost the ledger a bounded number of queries and keep no known stream out. They hide a new "
    "stream for at most two refreshes.",
    promise="no-client-can-exhaust-a-service",
)
def test_a_name_that_the_ledger_does_not_know_is_asked_for_once_until_the_next_look():
    async def story(ledger, streams):
        for _ in range(5):
            with pytest.raises(NotFound):
                await streams.find("s")
        assert ledger.asked == ["s"]
        ledger.register("s")
        async with followed(streams):
            patience = Patience("found", poll_s=0.001)
            while True:
                with contextlib.suppress(NotFound):
                    await streams.find("s")
                    break
                patience.check()
                await patience.pause_async()

    run(story)


@pytest.mark.guarantee("G162")
def test_wrong_names_without_end_cost_a_bounded_number_of_questions_and_keep_nobody_out():
    async def story(ledger, streams):
        ledger.register("known")
        read = []
        async with followed(streams, read.append):
            await wait_until_async(lambda: read)
            ledger.may_answer.clear()  # no further look
            finding = [asyncio.ensure_future(streams.find(f"wrong-{number}")) for number in range(3 * UNKNOWN_MAX)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert sum(not one.done() for one in finding) <= UNKNOWN_MAX
            assert (await streams.find("known")).stream == "known"
            ledger.may_answer.set()
            ends = await asyncio.gather(*finding, return_exceptions=True)
            assert all(isinstance(end, NotFound) for end in ends)
            assert len(ledger.asked) <= UNKNOWN_MAX
            looks = len(read)
            await wait_until_async(lambda: len(read) > looks + 1)
            with pytest.raises(NotFound):
                await streams.find("another")
            assert ledger.asked[-1] == "another"

    run(story)


def test_what_cannot_be_a_name_is_not_looked_up():
    async def story(ledger, streams):
        for name in ("S", "a b", "", "a" * 201, "../x"):
            with pytest.raises(NotFound, match="expected lower-case"):
                await streams.find(name)
        assert ledger.asked == []

    run(story)


def test_many_who_ask_at_once_share_one_look():
    async def story(ledger, streams):
        ledger.register("s")
        ledger.may_answer.clear()
        finding = [asyncio.ensure_future(streams.find("s")) for _ in range(20)]
        await asyncio.sleep(0)
        finding[0].cancel()  # one who leaves does not take the answer from the others
        ledger.may_answer.set()
        found = await asyncio.gather(*finding[1:])
        assert {spec.stream for spec in found} == {"s"}
        assert ledger.asked == ["s"]

    run(story)


def test_while_the_ledger_is_away_a_stream_that_was_seen_stays():
    async def story(ledger, streams):
        ledger.register("s", key="a")
        read = []
        async with followed(streams, read.append):
            await wait_until_async(lambda: read)
            ledger.is_away = True
            await asyncio.sleep(0.05)  # sleeps: for looks that fail
            reads_before = len(read)
            await asyncio.sleep(0.05)  # sleeps: for looks that fail
            assert len(read) == reads_before
            assert (await streams.find("s")).key == "a"
            with pytest.raises(LedgerUnavailable):
                await streams.find("never-seen")
            ledger.is_away = False
            ledger.register("s", key="b")
            await wait_until_async(lambda: len(read) > reads_before + 1)
            assert (await streams.find("s")).key == "b"

    run(story)


def test_a_stream_that_was_seen_does_not_wait_for_a_slow_ledger():
    async def story(ledger, streams):
        ledger.register("s")
        read = []
        async with followed(streams, read.append):
            await wait_until_async(lambda: read)
            ledger.may_answer.clear()
            await asyncio.sleep(0.01)  # sleeps: a look is under way, and does not end
            assert (await asyncio.wait_for(streams.find("s"), stretched(1))).stream == "s"

    run(story)


def test_streams_are_handed_over_again_and_again():
    async def story(ledger, streams):
        ledger.streams["one"] = SPEC
        read = []
        async with followed(streams, read.append):
            await wait_until_async(lambda: len(read) >= 3)
        assert read[:3] == [[SPEC]] * 3

    run(story)


def test_an_error_of_the_gateway_ends_the_following():
    async def story(ledger, streams):
        def broken(_):
            raise RuntimeError("broken")

        with pytest.raises(RuntimeError, match="broken"):
            await asyncio.wait_for(streams.follow(broken), stretched(30))

    run(story)


def test_a_document_that_did_not_change_gives_the_same_object_and_one_of_a_newer_version_is_left_out(tmp_path):
    async def told():
        with contextlib.closing(Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite")) as ledger:
            for name in ("a", "b"):
                ledger.put_stream(
                    name, StreamSpec.from_document({"stream": name, "schema": {"n": "long"}}).as_document()
                )
            ledger.put_stream("newer", {"stream": "newer", "unheard": 1})
            streams = Streams.of(ledger, every_s=0.001)
            read = []
            async with followed(streams, read.append):
                await wait_until_async(lambda: len(read) >= 2)
                ledger.put_stream("b", StreamSpec.from_document({"stream": "b", "schema": {"m": "long"}}).as_document())
                await wait_until_async(lambda: "m" in read[-1][1].fields)
            streams.close()
            assert [spec.stream for spec in read[0]] == ["a", "b"]
            assert all(before is after for before, after in zip(read[0], read[1], strict=True))
            assert read[-1][0] is read[0][0]

    asyncio.run(told())
