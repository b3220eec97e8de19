"""A stream's way into the log keeps the order of its appends while the log is busy."""

import asyncio

import pytest

from strandline.core.errors import LogUnavailable, RecordTooLarge
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.append.outcome import Accepted, LogAway, LogBusy
from strandline.ingest.gateway.metrics import IngestMetrics
from strandline.ingest.gateway.stream_appender import StreamAppender
from tests.support.waiting import wait_until_async

PATIENCE_S = 10.0


class BusyWriter:
    """A writer that refuses some attempts, then accepts records. It confirms when the test says so."""

    def __init__(self, refusals, refusal=None):
        self.refusals = refusals
        self.refusal = refusal or LogBusy("busy")
        self.attempts = []
        self.taken = []
        self.confirming = asyncio.Event()
        self.error = None

    async def append(self, topic, records, **_):
        self.attempts.append(records)
        if self.refusals:
            self.refusals -= 1
            raise self.refusal
        self.taken.append(records)
        await self.confirming.wait()
        if self.error is not None and records == self.taken[0]:
            raise self.error
        return Accepted.LOG


def appender_over(writer):
    spec = StreamSpec.model_validate({"stream": "s", "schema": {"n": {"type": "integer"}}})
    return StreamAppender(spec, writer, IngestMetrics("test"), may_spool=False, record_bytes_max=1_000)


def begin(appender, count):
    return [
        asyncio.ensure_future(appender.append([(b"%d" % n, None)], patience_s=PATIENCE_S, in_turn=True))
        for n in range(count)
    ]


def test_what_waits_for_its_next_try_is_not_overtaken():
    async def told():
        writer = BusyWriter(refusals=1)
        appender = appender_over(writer)
        appends = begin(appender, 5)
        await wait_until_async(lambda: len(writer.taken) == 5)
        assert [value for ((value, _),) in writer.taken] == [b"0", b"1", b"2", b"3", b"4"]
        assert len(writer.attempts) == 6
        writer.confirming.set()
        await asyncio.gather(*appends)

    asyncio.run(told())


def test_they_are_under_way_at_the_same_time():
    async def told():
        writer = BusyWriter(refusals=0)
        appends = begin(appender_over(writer), 5)
        await wait_until_async(lambda: len(writer.taken) == 5)
        assert not any(one.done() for one in appends)
        writer.confirming.set()
        await asyncio.gather(*appends)

    asyncio.run(told())


@pytest.mark.parametrize("failure", [LogUnavailable("unknown"), RecordTooLarge("the topic takes less")], ids=repr)
def test_what_waits_behind_one_that_fails_is_not_sent(failure):
    async def told():
        writer = BusyWriter(refusals=0)
        appender = appender_over(writer)
        (first,) = begin(appender, 1)
        await wait_until_async(lambda: len(writer.taken) == 1)
        writer.refusals = 1_000_000
        behind = begin(appender, 3)
        await wait_until_async(lambda: len(writer.attempts) == 2)
        writer.error = failure
        writer.confirming.set()
        with pytest.raises(type(failure)):
            await first
        assert appender.metrics.refused[failure.code].value == 1
        writer.refusals = 0
        for one in behind:
            with pytest.raises(LogBusy, match="nothing of these was persisted"):
                await one
        assert len(writer.taken) == 1
        await appender.append([(b"later", None)], patience_s=PATIENCE_S, in_turn=True)

    asyncio.run(told())


@pytest.mark.parametrize("in_turn", [False, True])
def test_patience_lasts_and_ends(in_turn):
    async def told():
        writer = BusyWriter(refusals=1_000_000)
        with pytest.raises(LogBusy):
            await appender_over(writer).append([(b"x", None)], patience_s=0.2, in_turn=in_turn)
        assert not writer.taken
        assert len(writer.attempts) > 1
        writer.refusals = 1
        writer.confirming.set()
        await appender_over(writer).append([(b"x", None)], patience_s=PATIENCE_S, in_turn=in_turn)

    asyncio.run(told())


def test_who_is_answered_hears_at_once_that_kafka_is_away():
    async def told():
        writer = BusyWriter(refusals=1_000_000, refusal=LogAway("away"))
        with pytest.raises(LogAway):
            await appender_over(writer).append([(b"x", None)], patience_s=PATIENCE_S)
        assert len(writer.attempts) == 1

    asyncio.run(told())
