"""What the writer promises while Kafka is late, refuses, or fails for good; with a producer that does what it is told."""

import asyncio
import contextlib
import queue
import threading
import time

import pytest
from confluent_kafka import KafkaError, KafkaException

from strandline.core.errors import LogUnavailable
from strandline.ingest.writer import RECORD_OVERHEAD_BYTES, LogBusy, LogWriter, _Batch

DEADLINE_S = 10
FATAL = KafkaError(KafkaError._FATAL, "out of order sequence", fatal=True)
REFUSED = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)


class ObedientProducer:
    """Keeps records until the test says what became of them."""

    def __init__(self, config):
        self.config = config
        self.sent = []
        self.refuse_from = None  # (number of the record that is refused at once, error)
        self.is_flushing = threading.Event()
        self._waiting = []
        self._reports = queue.Queue()
        self._lock = threading.Lock()

    def produce(self, topic, value, key, on_delivery, headers):
        if self.refuse_from and len(self.sent) >= self.refuse_from[0]:
            raise KafkaException(self.refuse_from[1])
        with self._lock:
            self.sent.append((topic, value, key, headers))
            self._waiting.append(on_delivery)

    def report(self, count, error=None):
        """The test's word: the next `count` records are confirmed, or failed."""
        with self._lock:
            reported, self._waiting = self._waiting[:count], self._waiting[count:]
        self._reports.put([(on_delivery, error) for on_delivery in reported])

    def poll(self, timeout_s):
        with contextlib.suppress(queue.Empty):
            self._serve(self._reports.get(timeout=timeout_s))

    def purge(self):
        self.report(len(self._waiting), KafkaError(KafkaError._PURGE_QUEUE))

    def flush(self, timeout_s):
        self.is_flushing.set()
        deadline = time.monotonic() + timeout_s
        while (self._waiting or not self._reports.empty()) and time.monotonic() < deadline:
            self.poll(0.01)

    def list_topics(self, timeout):
        return None

    def _serve(self, reports):
        for on_delivery, error in reports:
            on_delivery(error, None)


class Bench:
    """A writer over obedient producers; `producers` holds each that was made."""

    def __init__(self, confirm_timeout_s=DEADLINE_S, bytes_in_flight_max=10_000):
        self.producers = []
        self.writer = LogWriter(
            "nowhere:9092",
            writer_id="test",
            record_bytes_max=1_000,
            confirm_timeout_s=confirm_timeout_s,
            bytes_in_flight_max=bytes_in_flight_max,
            make_producer=self._make,
        )

    def _make(self, config):
        self.producers.append(ObedientProducer(config))
        return self.producers[-1]

    def append(self, *values):
        """Start to append, and let it come as far as it gets by itself."""
        records = [(value, None) for value in values]
        return asyncio.ensure_future(
            self.writer.append("t", records, received_ms=5, source=b"http:peer", content_type=b"application/json")
        )


async def until(is_so):
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, "waited too long"
        await asyncio.sleep(0.005)


def run(story):
    """Run the story over a bench: a coroutine function of (bench, first producer)."""

    def test(**options):
        async def told():
            bench = Bench(**options)
            async with bench.writer:
                await story(bench, bench.producers[0])

        asyncio.run(told())

    return test


def test_a_batch_is_confirmed_by_its_last_report_and_not_before():
    async def story(bench, producer):
        one, two = bench.append(b"a", b"b", b"c"), bench.append(b"d")
        await until(lambda: len(producer.sent) == 4)
        producer.report(2)
        served = bench.append(b"e")  # its report comes after those of the first two
        await until(lambda: len(producer.sent) == 5)
        assert not one.done()
        assert not two.done()
        producer.report(3)
        await asyncio.wait_for(asyncio.gather(one, two, served), DEADLINE_S)
        assert bench.writer.bytes_in_flight == 0
        topic, value, key, headers = producer.sent[0]
        assert (topic, value, key) == ("t", b"a", None)
        assert dict(headers) == {
            "strandline-writer": b"test",
            "strandline-received-ms": b"5",
            "strandline-source": b"http:peer",
            "content-type": b"application/json",
        }

    run(story)()


def test_the_producer_is_idempotent_and_waits_for_all_replicas():
    config = Bench(confirm_timeout_s=3).producers[0].config
    assert config["enable.idempotence"] is True
    assert config["acks"] == "all"
    assert config["message.timeout.ms"] == 3_000
    assert config["partitioner"] == "murmur2_random"


def test_a_batch_with_a_half_of_its_reports_is_not_confirmed():
    async def story(bench, producer):
        batch = bench.append(b"a", b"b")
        await until(lambda: len(producer.sent) == 2)
        producer.report(1)
        await until(lambda: producer._reports.empty())
        with pytest.raises(LogUnavailable, match=r"did not confirm within 0.3 s; .* may or may not be"):
            await batch
        producer.report(1)
        await until(lambda: bench.writer.bytes_in_flight == 0)

    run(story)(confirm_timeout_s=0.3)


def test_what_kafka_has_not_confirmed_keeps_its_room_even_when_nobody_waits_any_more():
    async def story(bench, producer):
        given_up = bench.append(b"x" * 5_000)
        with pytest.raises(LogUnavailable):
            await given_up
        with pytest.raises(LogBusy, match="nothing of this request was persisted"):
            await bench.append(b"y" * 5_000)
        assert len(producer.sent) == 1
        producer.report(1)
        await until(lambda: bench.writer.bytes_in_flight == 0)
        again = bench.append(b"y" * 5_000)
        await until(lambda: len(producer.sent) == 2)
        producer.report(1)
        await again

    run(story)(confirm_timeout_s=0.2)


def test_a_batch_larger_than_the_room_goes_alone():
    async def story(bench, producer):
        large = bench.append(b"x" * 20_000)
        await until(lambda: len(producer.sent) == 1)
        assert bench.writer.bytes_in_flight == 20_000 + RECORD_OVERHEAD_BYTES
        with pytest.raises(LogBusy):
            await bench.append(b"y")
        producer.report(1)
        await large

    run(story)()


def test_one_refused_record_fails_its_own_batch_only():
    async def story(bench, producer):
        bad, good = bench.append(b"a", b"b"), bench.append(b"c")
        await until(lambda: len(producer.sent) == 3)
        producer.report(1)
        producer.report(1, REFUSED)
        producer.report(1)
        await good
        with pytest.raises(LogUnavailable, match="topic t takes smaller records"):
            await bad
        assert bench.writer.bytes_in_flight == 0

    run(story)()


@pytest.mark.parametrize("confirmed_before", [0, 1])
def test_after_a_record_that_is_refused_at_once_none_of_its_batch_is_tried(confirmed_before):
    async def story(bench, producer):
        producer.refuse_from = (confirmed_before, REFUSED)
        batch = bench.append(b"a", b"b", b"c")
        if confirmed_before:
            await until(lambda: len(producer.sent) == 1)
            assert not batch.done()
            producer.report(1)
        with pytest.raises(LogUnavailable):
            await asyncio.wait_for(batch, DEADLINE_S)
        assert len(producer.sent) == confirmed_before
        assert bench.writer.bytes_in_flight == 0

    run(story)()


def test_a_producer_that_failed_for_good_is_replaced():
    async def story(bench, producer):
        waiting = bench.append(b"a")
        await until(lambda: len(producer.sent) == 1)
        producer.refuse_from = (1, FATAL)
        with pytest.raises(LogUnavailable):
            await bench.append(b"b")
        with pytest.raises(LogUnavailable):
            await waiting  # the old producer gave it up
        await until(lambda: len(bench.producers) == 2)
        fresh = bench.producers[1]
        await until(lambda: bench.writer._producer is fresh)
        after = bench.append(b"c")
        await until(lambda: len(fresh.sent) == 1)
        fresh.report(1)
        await after
        assert bench.writer.bytes_in_flight == 0

    run(story)()


def test_a_fatal_error_of_the_client_itself_replaces_it_too():
    async def story(bench, producer):
        producer.config["error_cb"](FATAL)
        await until(lambda: len(bench.producers) == 2)

    run(story)()


def test_one_who_stops_waiting_disturbs_nobody():
    async def story(bench, producer):
        left, stayed = bench.append(b"a"), bench.append(b"b")
        await until(lambda: len(producer.sent) == 2)
        left.cancel()
        producer.report(2)
        await stayed
        assert left.cancelled()
        assert bench.writer.bytes_in_flight == 0

    run(story)()


def test_a_long_batch_that_is_cancelled_half_way_gives_its_room_back():
    async def story(bench, producer):
        batch = bench.append(*[b"x"] * 2_500)
        await asyncio.sleep(0)  # as far as its first turn
        batch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await batch
        assert 0 < len(producer.sent) < 2_500
        producer.report(len(producer.sent))
        await until(lambda: bench.writer.bytes_in_flight == 0)

    run(story)(bytes_in_flight_max=10_000_000)


def test_closing_waits_for_what_is_under_way_and_takes_no_more():
    async def told():
        bench = Bench()
        async with bench.writer:
            batch = bench.append(b"a")
            producer = bench.producers[0]
            await until(lambda: len(producer.sent) == 1)
            closing = asyncio.ensure_future(bench.writer.__aexit__())
            await until(lambda: bench.writer._closing.is_set())
            with pytest.raises(LogBusy, match="stopping"):
                await bench.append(b"b")
            with pytest.raises(LogUnavailable, match="restart"):
                await bench.writer.check(1.0)
            await until(producer.is_flushing.is_set)
            assert not closing.done()
            producer.report(1)
            await asyncio.wait_for(asyncio.gather(batch, closing), DEADLINE_S)

    asyncio.run(told())


def test_closing_gives_up_after_the_confirmation_timeout():
    async def told():
        bench = Bench(confirm_timeout_s=0.3)
        async with bench.writer:
            batch = bench.append(b"a")
            await until(lambda: len(bench.producers[0].sent) == 1)
        with pytest.raises(LogUnavailable):
            await batch
        await asyncio.sleep(0)
        assert bench.writer.bytes_in_flight == 0

    asyncio.run(told())


def test_a_batch_that_both_threads_find_whole_is_released_once():
    async def story(bench, producer):
        batch = _Batch(1, 500, asyncio.get_running_loop().create_future())
        bench.writer.bytes_in_flight = 507
        bench.writer._settle([batch])
        bench.writer._settle([batch])
        assert bench.writer.bytes_in_flight == 7
        assert batch.confirmed.done()

    run(story)()


def test_no_records_need_no_confirmation():
    async def story(bench, producer):
        await bench.append()
        assert not producer.sent

    run(story)()
