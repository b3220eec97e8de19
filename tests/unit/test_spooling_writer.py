"""The records that are spooled when a transaction hangs, their order, and those that are recorded as in doubt."""

import asyncio
import contextlib
import gc
import threading
import time
import weakref
from collections import defaultdict
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from strandline.core.errors import InvalidSettings
from strandline.core.record_headers import HEADER_EPOCH, HEADER_RECEIVED, HEADER_SEQUENCE, HEADER_WRITER
from strandline.ingest.append import spool_drain, spooling_writer
from strandline.ingest.append.attempts import Decision, Questions
from strandline.ingest.append.outcome import Accepted, SpoolFull
from strandline.ingest.append.spool import Spool, SpooledRecord
from strandline.ingest.append.spool_drain import SpoolDrain
from strandline.ingest.append.spool_intake import SpoolingBatch
from strandline.ingest.append.writer import LogWriter
from tests.support.log_clients import FakeLog, FakeMessage, ObedientConsumer, ObedientProducer
from tests.support.waiting import stretched, wait_until_async

DEADLINE_S = 10


class HangingProducer(ObedientProducer):
    """A producer whose transactions hang until the test releases them; every commit then fails."""

    def __init__(self, config, log, let_go):
        super().__init__(config, log)
        self.let_go = let_go
        self.is_committing = threading.Event()

    def init_transactions(self, timeout_s):
        pass

    def begin_transaction(self):
        pass

    def produce(self, topic, value, key, *rest, headers=None, on_delivery=None):
        self.sent.append(value)

    def commit_transaction(self, timeout_s):
        self.is_committing.set()
        self.let_go.wait(stretched(DEADLINE_S))
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


class NarrowProducer(HangingProducer):
    """A producer whose topic accepts no records of this size: Kafka says so at every commit."""

    def commit_transaction(self, timeout_s):
        raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))


class PickyProducer(NarrowProducer):
    """A producer with two topics: `narrow` accepts no records of this size, and the other accepts all."""

    def produce(self, topic, value, key, partition, on_delivery, *_):
        self.sent.append((topic, value, key, on_delivery, _[-1]))

    def commit_transaction(self, timeout_s):
        sent, self.sent = self.sent, []
        if any(topic == "narrow" for topic, *_ in sent):
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        for topic, value, key, on_delivery, headers in sent:
            message = FakeMessage(topic, value, key, list(headers), place=len(self.log.records))
            self.log.records.append(message)
            if on_delivery is not None:
                on_delivery(None, message)


class TwoPartitions:
    """The admin client of a Kafka in which every topic has two partitions, which end at 5 and 9."""

    def __init__(self, config):
        pass

    def describe_topics(self, topics, request_timeout):
        partitions = [SimpleNamespace(id=one, replicas=[1], isr=[1], leader=1) for one in range(2)]
        return defaultdict(lambda: done(SimpleNamespace(topic_id="id", partitions=partitions)))

    def list_offsets(self, asked, isolation_level, request_timeout):
        return {place: done(SimpleNamespace(offset=(5, 9)[place.partition])) for place in asked}


def done(answer):
    future = Future()
    future.set_result(answer)
    return future


def writer_over(log, spool, make_producer, *, confirm_timeout_s, make_admin=TwoPartitions):
    return LogWriter(
        "nowhere:9092",
        writer_id="test",
        epoch=7,
        record_bytes_max=1_000,
        confirm_timeout_s=confirm_timeout_s,
        spool=spool,
        make_producer=make_producer,
        make_consumer=lambda config: ObedientConsumer(config, log),
        make_admin=make_admin,
    )


@pytest.mark.parametrize("hangs_longer_than_anyone_waits", [True, False])
def test_what_is_in_doubt_comes_first_and_covers_nothing_else(tmp_path, hangs_longer_than_anyone_waits):
    async def story():
        log, let_go, producers = FakeLog(), threading.Event(), []
        spool = Spool(tmp_path, bytes_max=1_000_000)

        def make_producer(config):
            producers.append(HangingProducer(config, log, let_go))
            return producers[-1]

        async with writer_over(log, spool, make_producer, confirm_timeout_s=0.4) as writer:

            def append(*values):
                records = [(value, None) for value in values]
                return asyncio.ensure_future(
                    writer.append("t", records, received_ms=5, source=b"", content_type=b"", may_spool=True)
                )

            first = append(b"1", b"2")
            await wait_until_async(lambda: len(producers) == 2 and producers[1].is_committing.is_set())
            waiting = [append(b"3"), append(b"4")]
            if not hangs_longer_than_anyone_waits:
                await asyncio.sleep(0)
                let_go.set()
            assert (
                await asyncio.wait_for(asyncio.gather(first, *waiting), stretched(DEADLINE_S)) == [Accepted.SPOOL] * 3
            )
            later = append(b"5")
            assert await later is Accepted.SPOOL
            attempt = spool.attempt_of("t")
            assert attempt.scan_from == {0: 5, 1: 9}
            covered = spool.head("t", 0, 0, up_to_id=attempt.last_id)
            assert [(record.value, record.epoch, record.sequence) for record in covered.records] == [
                (b"1", 7, 1),
                (b"2", 7, 2),
            ]
            assert [record.value for record in spool.head("t", 100, 100_000).records] == [b"1", b"2", b"3", b"4", b"5"]
            let_go.set()

    asyncio.run(story())


def test_what_is_too_large_for_its_topic_waits_in_the_spool_and_the_log_says_what_to_do(tmp_path, monkeypatch):
    """Such a record can have been acknowledged from there, so it is kept, and tried again until the topic's limit is raised."""
    said = []
    logger = SimpleNamespace(info=lambda *_, **__: None, warning=lambda *_, reason, **__: said.append(reason))
    monkeypatch.setattr(spooling_writer, "logger", logger)

    async def story():
        log, producers = FakeLog(), []
        spool = Spool(tmp_path, bytes_max=1_000_000)

        def make_producer(config):
            producers.append(NarrowProducer(config, log, threading.Event()))
            return producers[-1]

        async with writer_over(log, spool, make_producer, confirm_timeout_s=0.4) as writer:
            appended = await asyncio.wait_for(
                writer.append("t", [(b"1", None)], received_ms=5, source=b"", content_type=b"", may_spool=True),
                stretched(DEADLINE_S),
            )
            assert appended is Accepted.SPOOL
            await wait_until_async(lambda: len(producers) > 2)  # it goes on: another producer than the first has tried
            assert writer._spooling.failure is None
            assert [record.value for record in spool.head("t", 100, 100_000).records] == [b"1"]

    asyncio.run(story())
    reason = said[0]
    assert "accepts smaller records than the gateway" in reason
    assert "apply the stream's document again" in reason


@pytest.mark.guarantee(
    "G111",
    "If a topic accepts smaller records than the gateway, the gateway spools only records of this stream. A message "
    "whose topic or properties fit in no record is refused once and isn't redelivered forever.",
    promise="acknowledged-records-are-stored",
)
def test_a_topic_that_takes_less_spools_its_own_records_and_no_others(tmp_path):
    """Kafka is there: the other streams go on into the log."""

    async def story():
        log = FakeLog()
        spool = Spool(tmp_path, bytes_max=1_000_000)
        async with writer_over(
            log, spool, lambda config: PickyProducer(config, log, threading.Event()), confirm_timeout_s=DEADLINE_S
        ) as writer:

            def append(topic, value):
                appending = writer.append(
                    topic, [(value, None)], received_ms=5, source=b"", content_type=b"", may_spool=True
                )
                return asyncio.wait_for(appending, stretched(DEADLINE_S))

            for number in range(3):
                assert await append("narrow", b"%d" % number) is Accepted.SPOOL
                assert await append("wide", b"%d" % number) is Accepted.LOG
            assert [record.value for record in spool.head("narrow", 100, 100_000).records] == [b"0", b"1", b"2"]
            assert spool.head("wide", 100, 100_000) is None

    asyncio.run(story())


def test_a_transactional_producer_that_fails_for_good_costs_no_record_of_the_other_producer(tmp_path):
    async def story():
        log, producers = FakeLog(), []

        def make_producer(config):
            is_other = "transactional.id" not in config
            producers.append(ObedientProducer(config, log) if is_other else PickyProducer(config, log, None))
            return producers[-1]

        spool = Spool(tmp_path, bytes_max=1_000_000)
        async with writer_over(log, spool, make_producer, confirm_timeout_s=5) as writer:

            def append(topic, may_spool):
                records = [(b"1", None)]
                return asyncio.ensure_future(
                    writer.append(topic, records, received_ms=5, source=b"", content_type=b"", may_spool=may_spool)
                )

            assert await append("spooled", may_spool=True) is Accepted.LOG
            direct = append("t", may_spool=False)
            await wait_until_async(lambda: len(producers[0].sent) == 1)
            producers[1].config["error_cb"](KafkaError(KafkaError._FATAL, "fenced", fatal=True))
            await asyncio.sleep(0.3)  # sleeps: long enough for a wrong replacement
            producers[0].report(1)
            assert await direct is Accepted.LOG
            assert len(producers) == 2, "none was replaced"

    asyncio.run(asyncio.wait_for(story(), 4 * DEADLINE_S))


def test_spooled_records_of_a_topic_that_is_gone_are_not_read_again_and_again(tmp_path, monkeypatch):
    """The records wait until the topic exists again, and the log says so once."""
    said, read, asked, is_gone = [], [], [], threading.Event()
    logger = SimpleNamespace(info=lambda *_, **__: None, warning=lambda *_, reason, **__: said.append(reason))
    monkeypatch.setattr(spool_drain, "logger", logger)

    class ForgottenTopic(TwoPartitions):
        def describe_topics(self, topics, request_timeout):
            asked.append(time.monotonic())
            future = Future()
            future.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
            return {"t": future} if is_gone.is_set() else super().describe_topics(topics, request_timeout)

    class WatchedSpool(Spool):
        def head(self, topic, *arguments, **more):
            read.append(topic)
            return super().head(topic, *arguments, **more)

    async def story():
        log, spool = FakeLog(), WatchedSpool(tmp_path, bytes_max=1_000_000)

        def make_producer(config):
            return PickyProducer(config, log, None)

        async with writer_over(log, spool, make_producer, confirm_timeout_s=0.4, make_admin=ForgottenTopic) as writer:
            is_gone.set()
            append = writer.append("t", [(b"1", None)], received_ms=5, source=b"", content_type=b"", may_spool=True)
            assert await append is Accepted.SPOOL
            await wait_until_async(lambda: said)
            asked.clear()
            await wait_until_async(lambda: len(asked) == 4)
            assert (len(said), read) == (1, [])
            assert "t" in said[0]
            assert asked[3] - asked[0] > 3 * spool_drain.RETRY_S, "each pause is longer than the one before"
            is_gone.clear()
            await wait_until_async(lambda: spool.records == 0)
            assert [record.value() for record in log.records] == [b"1"]

    asyncio.run(asyncio.wait_for(story(), 4 * DEADLINE_S))


class ShortenedLog(TwoPartitions):
    """Retention has deleted the records before offset 10 of both partitions, and nothing came after."""

    def list_offsets(self, asked, isolation_level, request_timeout):
        return {place: done(SimpleNamespace(offset=10)) for place in asked}


def spooled(value, sequence, topic="t"):
    headers = [
        (HEADER_WRITER, b"test"),
        (HEADER_EPOCH, b"6"),
        (HEADER_SEQUENCE, b"%d" % sequence),
        (HEADER_RECEIVED, b"1700000000000"),
    ]
    return SpooledRecord(topic, 6, sequence, value, None, headers)


def spool_with_lost_attempt(directory):
    """Two records of `t` were sent at offsets that no longer exist. Later records wait behind them."""
    spool = Spool(directory, bytes_max=1_000_000)
    spool.add([spooled(b"1", 1), spooled(b"2", 2)], {"t": {0: 5, 1: 9}})
    spool.add([spooled(b"3", 3), spooled(b"4", 4, "u")])
    return spool


def logged(log):
    return [record.value() for record in log.records]


@pytest.mark.guarantee(
    "G770",
    "A spooled attempt whose outcome the log no longer shows, because retention deleted records of that time, is "
    "never resent automatically. Its records stay on disk until an operator decides, and a metric, the log, and the "
    "doctor report it. The same holds for `strandline ingest`.",
    promise="records-are-stored-once-and-unchanged",
)
@pytest.mark.parametrize(
    ("decision", "sent"), [(Decision.RESEND, [b"1", b"2", b"3", b"4"]), (Decision.DROP, [b"3", b"4"])]
)
def test_an_attempt_that_the_log_no_longer_shows_waits_for_the_operator_and_holds_up_nothing(
    tmp_path, monkeypatch, decision, sent
):
    said = []
    logger = SimpleNamespace(
        info=lambda *_, **__: None, warning=lambda *_, **__: None, error=lambda text, **_: said.append(text)
    )
    monkeypatch.setattr(spool_drain, "logger", logger)
    monkeypatch.setattr(spool_drain, "ANSWER_LOOK_S", 0.05)
    log = FakeLog()

    def writer(spool):
        return writer_over(
            log, spool, lambda config: PickyProducer(config, log, None), confirm_timeout_s=1, make_admin=ShortenedLog
        )

    async def wait_for_question():
        spool = spool_with_lost_attempt(tmp_path)
        bytes_before = spool.bytes_of["t"]
        async with writer(spool):
            await wait_until_async(lambda: spool.records == 0 and said)
            assert sorted(logged(log)) == [b"3", b"4"], "nothing is resent, and nothing waits for the answer"
            assert spool.records_in_doubt == 2
            assert 0 < spool.bytes_of["t"] < bytes_before
            (question,) = Questions(tmp_path).all()
            assert (question.topic, question.records, question.received_first_ms) == ("t", 2, 1_700_000_000_000)
            assert f"strandline spool resolve {tmp_path.name}/1 resend, or drop" in said[0]

    async def wait_for_end():
        spool = Spool(tmp_path, bytes_max=1_000_000)
        assert spool.records_in_doubt == 2, "the records outlive the process"
        async with writer(spool):
            await wait_until_async(lambda: len(said) == 2)
            Questions(tmp_path).answer(1, decision)
            await wait_until_async(lambda: not spool.doubts)
            await wait_until_async(lambda: not list(Questions(tmp_path).all()))
            assert sorted(logged(log)) == sent
            assert spool.bytes == 0

    asyncio.run(asyncio.wait_for(wait_for_question(), stretched(DEADLINE_S)))
    asyncio.run(asyncio.wait_for(wait_for_end(), stretched(DEADLINE_S)))


@pytest.mark.guarantee("G770")
def test_records_that_are_resent_and_lost_from_sight_again_are_asked_about_again(tmp_path, monkeypatch):
    """The process ended while it resent them, and came back after the retention."""
    said = []
    logger = SimpleNamespace(
        info=lambda *_, **__: None, warning=lambda *_, **__: None, error=lambda text, **_: said.append(text)
    )
    monkeypatch.setattr(spool_drain, "logger", logger)
    monkeypatch.setattr(spool_drain, "ANSWER_LOOK_S", 0.05)
    spool, log = spool_with_lost_attempt(tmp_path), FakeLog()
    spool.set_aside(spool.attempt_of("t"))
    spool.begin_again(1, {0: 5, 1: 9})
    Questions(tmp_path).answer(1, Decision.RESEND)

    async def story():
        async with writer_over(
            log, spool, lambda config: PickyProducer(config, log, None), confirm_timeout_s=1, make_admin=ShortenedLog
        ):
            await wait_until_async(lambda: len(said) == 2)
            assert spool.doubts[1].scan_from is None and Questions(tmp_path).answer_of(1) is None
            assert sorted(logged(log)) == [b"3", b"4"]

    asyncio.run(asyncio.wait_for(story(), stretched(DEADLINE_S)))


def test_what_was_only_slow_is_written_directly_again(tmp_path):
    """The ends of a topic are answered too late for the batch that waits for them. Kafka is then as fast as before."""
    let_go = threading.Event()

    class SlowOnce(TwoPartitions):
        def list_offsets(self, asked, isolation_level, request_timeout):
            let_go.wait(stretched(DEADLINE_S))
            return super().list_offsets(asked, isolation_level, request_timeout)

    async def story():
        log, producers = FakeLog(), []
        spool = Spool(tmp_path, bytes_max=1_000_000)

        def make_producer(config):
            producers.append(PickyProducer(config, log, threading.Event()))
            return producers[-1]

        async with writer_over(log, spool, make_producer, confirm_timeout_s=0.2, make_admin=SlowOnce) as writer:

            async def append(value):
                return await asyncio.wait_for(
                    writer.append("t", [(value, None)], received_ms=5, source=b"", content_type=b"", may_spool=True),
                    stretched(DEADLINE_S),
                )

            assert await append(b"1") is Accepted.SPOOL
            let_go.set()
            await wait_until_async(lambda: spool.records == 0)
            await wait_until_async(lambda: not writer._spooling._intake.behind.total())
            assert [await append(b"2"), await append(b"3")] == [Accepted.LOG] * 2
            assert [record.value() for record in log.records] == [b"1", b"2", b"3"]
            assert len(producers) == 2  # one for each way into the log: none had to be replaced

    asyncio.run(story())


@pytest.mark.parametrize("unmade", ["producer", "admin"])
def test_a_client_that_can_not_be_made_sends_records_to_the_spool_until_it_can(tmp_path, monkeypatch, unmade):
    """A password or certificate is being replaced just when a client reads it."""
    said, is_replaced = [], threading.Event()
    logger = SimpleNamespace(info=lambda *_, **__: None, warning=lambda *_, reason, **__: said.append(reason))
    monkeypatch.setattr(spooling_writer, "logger", logger)

    def require(client):
        if client == unmade and not is_replaced.is_set():
            raise InvalidSettings("the password file is gone")

    async def story():
        log = FakeLog()
        spool = Spool(tmp_path, bytes_max=1_000_000)

        def make_producer(config):
            if "transactional.id" in config:
                require("producer")
            return PickyProducer(config, log, threading.Event())

        def make_admin(config):
            require("admin")
            return TwoPartitions(config)

        async with writer_over(log, spool, make_producer, confirm_timeout_s=0.4, make_admin=make_admin) as writer:

            async def append(value):
                return await asyncio.wait_for(
                    writer.append("t", [(value, None)], received_ms=5, source=b"", content_type=b"", may_spool=True),
                    stretched(DEADLINE_S),
                )

            assert [await append(b"1"), await append(b"2")] == [Accepted.SPOOL] * 2
            assert writer._spooling.failure is None
            is_replaced.set()
            await wait_until_async(lambda: spool.records == 0)
            await wait_until_async(lambda: not writer._spooling._intake.behind.total())
            assert await append(b"3") is Accepted.LOG
            assert [record.value() for record in log.records] == [b"1", b"2", b"3"]

    asyncio.run(story())
    assert "the password file is gone" in said


def test_a_topic_that_is_spooled_for_the_first_time_disturbs_no_look_for_the_next_one(tmp_path):
    """The disk's thread adds a topic while the event loop looks which one to drain."""
    spool = Spool(tmp_path, bytes_max=1_000_000)

    class Retried(dict):
        def get(self, topic, default):
            spool.records_of.setdefault("new", 1)
            return time.monotonic() + DEADLINE_S

    drain = SpoolDrain(spool, None, None, None, None)
    drain._retry_at_s = Retried()
    spool.records_of.update({"a": 1, "b": 1})
    assert drain.next_topic() is None
    spool.close()


@pytest.mark.parametrize("is_spooled", [False, True])
def test_a_batch_is_let_go_as_soon_as_it_is_settled(tmp_path, monkeypatch, is_spooled):
    """The batch's records are no longer counted, so they must not be kept for the rest of the longest wait."""
    made = []

    class WatchedBatch(SpoolingBatch):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(weakref.ref(self))

    monkeypatch.setattr(spooling_writer, "SpoolingBatch", WatchedBatch)

    async def story():
        log = FakeLog()
        spool = Spool(tmp_path, bytes_max=1_000_000)
        make = NarrowProducer if is_spooled else PickyProducer
        async with writer_over(
            log, spool, lambda config: make(config, log, threading.Event()), confirm_timeout_s=100 * DEADLINE_S
        ) as writer:
            appending = writer.append("t", [(b"1", None)], received_ms=5, source=b"", content_type=b"", may_spool=True)
            accepted = await asyncio.wait_for(appending, stretched(DEADLINE_S))
            assert accepted is (Accepted.SPOOL if is_spooled else Accepted.LOG)
            del appending
            await wait_until_async(lambda: gc.collect() >= 0 and [batch() for batch in made] == [None])

    asyncio.run(story())


class FullSpool(Spool):
    """Has room for small records only. Its `add` waits until it is let go."""

    def __init__(self, directory):
        super().__init__(directory, bytes_max=1_000_000)
        self.is_adding, self.let_go = threading.Event(), threading.Event()
        self.let_go.set()

    def add(self, records, attempted=None):
        self.is_adding.set()
        assert self.let_go.wait(stretched(DEADLINE_S))
        super().add(records, attempted)


@contextlib.asynccontextmanager
async def writer_over_full_spool(tmp_path):
    """Yields the spool, the writer, and how to append a value; Kafka is away."""

    def no_transactions(config):
        if "transactional.id" in config:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return ObedientProducer(config, FakeLog())

    spool = FullSpool(tmp_path)
    async with writer_over(FakeLog(), spool, no_transactions, confirm_timeout_s=DEADLINE_S) as writer:

        async def append(value, topic="t"):
            try:
                return await writer.append(
                    topic, [(value, None)], received_ms=5, source=b"", content_type=b"", may_spool=True
                )
            except SpoolFull as error:
                return type(error)

        assert await append(b"0", "other") is Accepted.SPOOL
        spool.is_adding.clear()
        yield spool, writer, append


LARGE = b"x" * 2_000_000


@pytest.mark.guarantee("G32")
def test_a_batch_without_room_in_the_spool_is_overtaken_by_none_of_its_topic(tmp_path):
    """Neither by one that waited with it, nor by one that came while it was on its way to the disk. Other topics go on."""

    async def story():
        async with writer_over_full_spool(tmp_path) as (spool, _, append):
            spool.let_go.clear()
            group = [append(LARGE), append(b"small"), append(b"small", "other"), append(LARGE, "third")]
            group = [asyncio.ensure_future(one) for one in group]
            assert await asyncio.to_thread(spool.is_adding.wait, DEADLINE_S)
            waiting = [asyncio.ensure_future(one) for one in (append(b"later"), append(b"later", "other"))]
            await asyncio.sleep(0)
            spool.let_go.set()
            assert await asyncio.gather(*group) == [SpoolFull, SpoolFull, Accepted.SPOOL, SpoolFull]
            assert await asyncio.gather(*waiting) == [SpoolFull, Accepted.SPOOL]
            assert await append(b"again") is Accepted.SPOOL

    asyncio.run(story())


def test_until_a_caller_knows_of_its_refused_batch_no_later_one_of_its_topic_is_taken(tmp_path):
    """Else the batch comes behind them when it is tried again. In each turn of the event loop another one comes; they don't keep
    the topic refused when the caller knows."""

    async def story():
        async with writer_over_full_spool(tmp_path) as (_, writer, append):
            refused = asyncio.ensure_future(append(LARGE))

            answers = []

            async def append_behind():
                was_before = not refused.done()
                answers.append((was_before, await append(b"small")))

            behind = []
            while (False, Accepted.SPOOL) not in answers and len(behind) < 5_000:
                behind.append(asyncio.ensure_future(append_behind()))
                await asyncio.sleep(0)
            await asyncio.gather(*behind)
            assert await refused is SpoolFull
            assert {answer for was_before, answer in answers if was_before} == {SpoolFull}
            assert Accepted.SPOOL in {answer for was_before, answer in answers if not was_before}
            assert writer.bytes_in_flight == 0

    asyncio.run(story())


def test_what_waits_to_be_written_directly_overtakes_no_refused_batch(tmp_path, monkeypatch):
    """A topic whose spool is just being written: later records wait for the end of this in memory."""
    monkeypatch.setattr(spooling_writer, "RETRY_S", 100 * DEADLINE_S)  # nothing else sends it to the spool

    async def story():
        async with writer_over_full_spool(tmp_path) as (spool, writer, append):
            spool.let_go.clear()
            refused = asyncio.ensure_future(append(LARGE))
            assert await asyncio.to_thread(spool.is_adding.wait, DEADLINE_S)
            writer._spooling._is_away, writer._spooling._drain.catching_up = False, "t"
            behind = asyncio.ensure_future(append(b"small"))
            await asyncio.sleep(0)
            spool.let_go.set()
            both = asyncio.gather(refused, behind)
            assert await asyncio.wait_for(both, DEADLINE_S / 2) == [SpoolFull] * 2

    asyncio.run(story())


def test_a_caller_that_has_left_leaves_its_topic_usable(tmp_path):
    async def story():
        async with writer_over_full_spool(tmp_path) as (spool, _, append):
            spool.let_go.clear()
            gone = asyncio.ensure_future(append(LARGE))
            assert await asyncio.to_thread(spool.is_adding.wait, DEADLINE_S)
            gone.cancel()
            await asyncio.wait((gone,))
            spool.let_go.set()
            assert await append(b"other", "other") is Accepted.SPOOL  # behind the refused one
            assert await append(b"small") is Accepted.SPOOL

    asyncio.run(story())
