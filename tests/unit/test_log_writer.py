"""The guarantees of the writer while Kafka is late, refuses, contradicts itself or fails permanently.

The clients are scripted.
"""

import asyncio

import pytest
from confluent_kafka import KafkaError, KafkaException

from strandline.core.errors import InvalidSettings, LogUnavailable, RecordTooLarge
from strandline.ingest.append.limits import HEADER_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES
from strandline.ingest.append.outcome import LogAway, LogBusy
from strandline.ingest.append.writer import LogWriter
from tests.support.log_clients import FakeLog, ObedientConsumer, ObedientProducer
from tests.support.virtual_time import run_in_virtual_time
from tests.support.waiting import stretched, wait_until_async

DEADLINE_S = 10
FATAL = KafkaError(KafkaError._FATAL, "out of order sequence", fatal=True)
REFUSED = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)


class Bench:
    """A writer over obedient clients; `producers` and `consumers` hold each that was made."""

    def __init__(self, confirm_timeout_s=DEADLINE_S, bytes_in_flight_max=10_000):
        self.log = FakeLog()
        self.producers = []
        self.consumers = []
        self.unmade = {}  # "producer" or "consumer" -> why it can't be made
        self.writer = LogWriter(
            "nowhere:9092",
            writer_id="test",
            epoch=7,
            record_bytes_max=1_000,
            confirm_timeout_s=confirm_timeout_s,
            bytes_in_flight_max=bytes_in_flight_max,
            make_producer=self._make_producer,
            make_consumer=self._make_consumer,
        )

    def _make_producer(self, config):
        if "producer" in self.unmade:
            raise self.unmade["producer"]
        self.producers.append(ObedientProducer(config, self.log))
        return self.producers[-1]

    def _make_consumer(self, config):
        if "consumer" in self.unmade:
            raise self.unmade["consumer"]
        self.consumers.append(ObedientConsumer(config, self.log))
        return self.consumers[-1]

    def append(self, *values):
        """Start to append, and let it come as far as it gets by itself."""
        records = [(value, None) for value in values]
        return asyncio.ensure_future(
            self.writer.append("t", records, received_ms=5, source=b"http:peer", content_type=b"application/json")
        )


def run(story):
    """Run the story over a bench: a coroutine function of (bench, first producer)."""

    def test(**options):
        async def told():
            bench = Bench(**options)
            async with bench.writer:
                await story(bench, bench.producers[0])

        run_in_virtual_time(told())

    return test


def test_a_batch_is_confirmed_by_its_last_report_and_not_before():
    async def story(bench, producer):
        one, two = bench.append(b"a", b"b", b"c"), bench.append(b"d")
        await wait_until_async(lambda: len(producer.sent) == 4)
        producer.report(2)
        served = bench.append(b"e")  # its report comes after those of the first two
        await wait_until_async(lambda: len(producer.sent) == 5)
        assert not one.done()
        assert not two.done()
        producer.report(3)
        await asyncio.wait_for(asyncio.gather(one, two, served), stretched(DEADLINE_S))
        assert bench.writer.bytes_in_flight == 0
        first, second = producer.sent[:2]
        assert (first.topic_name, first.value_bytes, first.key_bytes) == ("t", b"a", None)
        assert dict(second.header_list)["strandline-sequence"] == b"2"
        assert dict(first.header_list) == {
            "strandline-writer": b"test",
            "strandline-epoch": b"7",
            "strandline-sequence": b"1",
            "strandline-received-ms": b"5",
            "strandline-source": b"http:peer",
            "content-type": b"application/json",
        }

    run(story)()


def test_the_producer_is_idempotent_and_waits_for_all_replicas():
    config = Bench(confirm_timeout_s=3).producers[0].config
    assert config["enable.idempotence"] is True
    assert config["acks"] == "all"
    assert config["message.timeout.ms"] == 0
    assert config["partitioner"] == "murmur2_random"


def test_a_batch_with_a_half_of_its_reports_is_not_confirmed():
    async def story(bench, producer):
        batch = bench.append(b"a", b"b")
        await wait_until_async(lambda: len(producer.sent) == 2)
        producer.report(1)
        await wait_until_async(lambda: not producer._reports)
        with pytest.raises(LogUnavailable, match=r"did not confirm within 0\.\d s; .* may or may not be"):
            await batch
        producer.report(1)
        await wait_until_async(lambda: bench.writer.bytes_in_flight == 0)

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
        await wait_until_async(lambda: bench.writer.bytes_in_flight == 0)
        again = bench.append(b"y" * 5_000)
        await wait_until_async(lambda: len(producer.sent) == 2)
        producer.report(1)
        await again

    run(story)(confirm_timeout_s=0.2)


def test_a_batch_larger_than_the_room_goes_alone():
    async def story(bench, producer):
        large = bench.append(b"x" * 20_000)
        await wait_until_async(lambda: len(producer.sent) == 1)
        assert bench.writer.bytes_in_flight == 20_000 + RECORD_OVERHEAD_BYTES
        with pytest.raises(LogBusy):
            await bench.append(b"y")
        producer.report(1)
        await large

    run(story)()


def test_headers_of_the_senders_count_for_each_record():
    async def story(bench, producer):
        query, own = ("strandline-query", b"?" + b"q" * 2_000), (("message-id", b"m1"),)
        batch = asyncio.ensure_future(
            bench.writer.append(
                "t", [(b"1", None)] * 3, received_ms=5, source=None, content_type=b"text/csv", headers=[query],
                headers_each=[own, (), own],
            )
        )  # fmt: skip
        await wait_until_async(lambda: len(producer.sent) == 3)
        each = 1 + RECORD_OVERHEAD_BYTES + len(query[0]) + len(query[1]) + HEADER_OVERHEAD_BYTES
        assert bench.writer.bytes_in_flight == 3 * each + 2 * (len("message-id") + len(b"m1") + HEADER_OVERHEAD_BYTES)
        producer.report(3)
        await batch
        assert bench.writer.bytes_in_flight == 0
        alone = asyncio.ensure_future(
            bench.writer.append(
                "t", [(b"1", None)], received_ms=5, source=b"s", content_type=b"text/csv", message_id=b"m1"
            )
        )
        await wait_until_async(lambda: len(producer.sent) == 4)
        assert dict(producer.sent[3].header_list)["message-id"] == b"m1"
        assert bench.writer.bytes_in_flight == 1 + RECORD_OVERHEAD_BYTES + 12 + HEADER_OVERHEAD_BYTES
        producer.report(1)
        await alone

    run(story)()


def test_one_refused_record_fails_its_own_batch_only():
    async def story(bench, producer):
        bad, good = bench.append(b"a", b"b"), bench.append(b"c")
        await wait_until_async(lambda: len(producer.sent) == 3)
        producer.report(1)
        producer.report(1, REFUSED)
        producer.report(1)
        await good
        with pytest.raises(RecordTooLarge, match=r"topic t accepts smaller records.*apply the stream's document again"):
            await bad
        assert bench.writer.bytes_in_flight == 0

    run(story)()


@pytest.mark.parametrize("confirmed_before", [0, 1])
def test_after_a_record_that_is_refused_at_once_none_of_its_batch_is_tried(confirmed_before):
    async def story(bench, producer):
        producer.refuse_from = (confirmed_before, REFUSED)
        batch = bench.append(b"a", b"b", b"c")
        if confirmed_before:
            await wait_until_async(lambda: len(producer.sent) == 1)
            assert not batch.done()
            producer.report(1)
        with pytest.raises(RecordTooLarge):
            await asyncio.wait_for(batch, stretched(DEADLINE_S))
        assert len(producer.sent) == confirmed_before
        assert bench.writer.bytes_in_flight == 0

    run(story)()


def test_a_producer_that_failed_for_good_is_replaced():
    async def story(bench, producer):
        waiting = bench.append(b"a")
        await wait_until_async(lambda: len(producer.sent) == 1)
        producer.refuse_from = (1, FATAL)
        with pytest.raises(LogUnavailable):
            await bench.append(b"b")
        with pytest.raises(LogUnavailable):
            await waiting  # the old producer gave it up
        await wait_until_async(lambda: len(bench.producers) == 2)
        fresh = bench.producers[1]
        await wait_until_async(lambda: bench.writer._direct._producer is fresh)
        after = bench.append(b"c")
        await wait_until_async(lambda: len(fresh.sent) == 1)
        fresh.report(1)
        await after
        assert bench.writer.bytes_in_flight == 0

    run(story)()


def test_a_fatal_error_of_the_client_itself_replaces_it_too():
    async def story(bench, producer):
        producer.config["error_cb"](FATAL)
        await wait_until_async(lambda: len(bench.producers) == 2)

    run(story)()


@pytest.mark.guarantee("G41")
@pytest.mark.parametrize("client", ["producer", "consumer"])
@pytest.mark.parametrize(
    "why",
    [
        InvalidSettings("the password file is gone"),
        KafkaException(KafkaError(KafkaError._SSL, "the password file is gone")),
    ],
    ids=["settings", "client"],
)
def test_new_clients_that_can_not_be_made_are_tried_again_and_meanwhile_kafka_is_away(client, why):
    async def story(bench, producer):
        long = bench.append(*[b"x"] * 2_500)
        await asyncio.sleep(0)  # as far as its first turn
        producer.report(len(producer.sent))
        waiting = bench.append(b"a")
        bench.unmade[client] = why
        producer.config["error_cb"](FATAL)
        with pytest.raises(LogUnavailable, match="may or may not be"):
            await asyncio.wait_for(waiting, stretched(DEADLINE_S))
        with pytest.raises(LogUnavailable, match="may or may not be"):
            await asyncio.wait_for(long, stretched(DEADLINE_S))
        assert bench.writer.bytes_in_flight == 0
        sent = len(producer.sent)
        for _ in range(3):
            with pytest.raises(LogAway, match="nothing of this request was persisted"):
                await asyncio.wait_for(bench.append(b"b"), stretched(DEADLINE_S))
            with pytest.raises(LogUnavailable, match=r"can't create the Kafka clients: .*the password file is gone"):
                await bench.writer.check(1.0)
            await asyncio.sleep(1)  # sleeps: in virtual time
        assert len(producer.sent) == sent
        bench.unmade.clear()
        await wait_until_async(lambda: bench.writer._direct._producer is not producer)
        await bench.writer.check(1.0)
        fresh = bench.producers[-1]
        after = bench.append(b"c")
        await wait_until_async(lambda: len(fresh.sent) == 1)
        fresh.report(1)
        await after

    run(story)(bytes_in_flight_max=10_000_000)


def test_one_who_stops_waiting_disturbs_nobody():
    async def story(bench, producer):
        left, stayed = bench.append(b"a"), bench.append(b"b")
        await wait_until_async(lambda: len(producer.sent) == 2)
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
        await wait_until_async(lambda: bench.writer.bytes_in_flight == 0)

    run(story)(bytes_in_flight_max=10_000_000)


def test_closing_waits_for_what_is_under_way_and_takes_no_more():
    async def told():
        bench = Bench()
        async with bench.writer:
            batch = bench.append(b"a")
            producer = bench.producers[0]
            await wait_until_async(lambda: len(producer.sent) == 1)
            closing = asyncio.ensure_future(bench.writer.__aexit__())
            await wait_until_async(lambda: bench.writer._is_closing)
            with pytest.raises(LogBusy, match="stopping"):
                await bench.append(b"b")
            with pytest.raises(LogUnavailable, match="restart"):
                await bench.writer.check(1.0)
            await asyncio.sleep(0)
            assert not closing.done()
            producer.report(1)
            await asyncio.wait_for(asyncio.gather(batch, closing), stretched(DEADLINE_S))

    run_in_virtual_time(told())


def test_closing_gives_up_after_the_confirmation_timeout():
    async def told():
        bench = Bench(confirm_timeout_s=0.3)
        async with bench.writer:
            batch = bench.append(b"a")
            await wait_until_async(lambda: len(bench.producers[0].sent) == 1)
        with pytest.raises(LogUnavailable):
            await batch
        await asyncio.sleep(0)
        assert bench.writer.bytes_in_flight == 0

    run_in_virtual_time(told())


def test_no_records_need_no_confirmation():
    async def story(bench, producer):
        await bench.append()
        assert not producer.sent

    run(story)()


@pytest.mark.guarantee("G40")
def test_what_is_delivered_and_not_to_be_read_is_never_confirmed():
    async def story(bench, producer):
        bench.log.shown = 0
        batch = bench.append(b"a")
        await wait_until_async(lambda: len(producer.sent) == 1)
        producer.report(1)
        with pytest.raises(LogUnavailable, match="may or may not be"):
            await batch
        await wait_until_async(lambda: len(bench.consumers) == 2)  # its clients are replaced
        assert bench.writer.bytes_in_flight == 0

    run(story)(confirm_timeout_s=0.3)


def test_a_leader_that_is_behind_is_asked_until_it_has_come_so_far():
    async def story(bench, producer):
        producer.report(0)
        bench.log.shown = 0
        batch = bench.append(b"a", b"b")
        await wait_until_async(lambda: len(producer.sent) == 2)
        producer.report(2)
        await wait_until_async(lambda: len(bench.consumers[0].assigned) > 2)
        assert not batch.done()
        bench.log.shown = None
        await batch
        assert len(bench.producers) == 1

    run(story)()


@pytest.mark.guarantee(
    "G40",
    "A gateway acknowledges a record only after it has read the record back at the offset that Kafka named: with the "
    "writer's id, epoch, and number, and the same bytes.",
    promise="acknowledged-records-are-stored",
)
@pytest.mark.parametrize(
    "spoil",
    [
        lambda record: setattr(record, "value_bytes", b"other"),
        lambda record: setattr(record, "key_bytes", b"other"),
        lambda record: setattr(record, "header_list", [("strandline-writer", b"somebody")]),
        lambda record: setattr(record, "header_list", [*record.header_list, ("strandline-epoch", b"6")]),
        lambda record: setattr(record, "header_list", [*record.header_list, ("strandline-sequence", b"3")]),
        lambda record: setattr(record, "place", 1),
    ],
    ids=["value", "key", "writer", "epoch", "sequence", "nothing there"],
)
def test_another_record_in_the_place_is_no_confirmation(spoil):
    async def story(bench, producer):
        batch = bench.append(b"a")
        await wait_until_async(lambda: len(producer.sent) == 1)
        sent = producer.sent[0]
        producer.report(1)
        stored = type(sent)(sent.topic_name, sent.value_bytes, sent.key_bytes, list(sent.header_list))
        spoil(stored)
        bench.log.records[0] = stored
        with pytest.raises(LogUnavailable, match=r"a record of this writer \(1 to 1\) in t/0 is not at offset 0"):
            await batch
        await wait_until_async(lambda: len(bench.producers) == 2)
        assert bench.producers[0].is_flushed.is_set()
        fresh = bench.append(b"c")
        await wait_until_async(lambda: len(bench.producers[1].sent) == 1)
        bench.producers[1].report(1)
        await fresh

    run(story)()


def test_a_place_that_the_broker_does_not_tell_is_looked_for():
    async def story(bench, producer):
        bench.log.tells_offsets = False
        batch = bench.append(b"a", b"b")
        await wait_until_async(lambda: len(producer.sent) == 2)
        producer.report(2)
        await batch
        bench.log.records.clear()
        lost = bench.append(b"c")
        await wait_until_async(lambda: len(producer.sent) == 3)
        producer.report(1)
        bench.log.records.clear()
        with pytest.raises(LogUnavailable):
            await lost

    run(story)(confirm_timeout_s=0.5)


def test_one_read_vouches_for_all_that_came_before_it():
    async def story(bench, producer):
        bench.log.shown = 0
        batches = [bench.append(b"%d" % n) for n in range(50)]
        await wait_until_async(lambda: len(producer.sent) == 50)
        producer.report(1)
        await wait_until_async(lambda: bench.consumers[0].assigned)
        producer.report(49)
        await asyncio.sleep(0.02)  # sleeps: long enough for a wrong second read
        bench.log.shown = None
        await asyncio.gather(*batches)
        places = {offset for _, _, offset in bench.consumers[0].assigned}
        assert places == {0, 49}

    run(story)(bytes_in_flight_max=100_000)


def test_a_kafka_that_is_only_slow_is_waited_for_longer():
    async def story(bench, producer):
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        batches = [bench.append(b"%d" % n) for n in range(6)]
        await wait_until_async(lambda: len(producer.sent) == 6)
        for number, batch in enumerate(batches, 1):
            await asyncio.sleep(0.2)  # sleeps: the slowness of this Kafka
            producer.report(1)
            await batch
            assert loop.time() - began_s >= 0.2 * number - 0.001
        assert loop.time() - began_s > 1.1  # more than twice the timeout

    run(story)(confirm_timeout_s=0.5)


def test_a_large_batch_is_waited_for_as_long_as_it_gets_on():
    async def story(bench, producer):
        batch = bench.append(*[b"x"] * 6)
        await wait_until_async(lambda: len(producer.sent) == 6)
        for _ in range(6):
            await asyncio.sleep(0.2)  # sleeps: the slowness of this Kafka
            assert not batch.done()
            producer.report(1)
        await batch

    run(story)(confirm_timeout_s=0.5)


def test_a_kafka_that_gets_on_and_never_comes_to_an_end_is_given_up():
    async def story(bench, producer):
        batch = bench.append(*[b"x"] * 1_000)
        while not batch.done():
            await asyncio.sleep(0.01)  # sleeps: the slowness of this Kafka
            producer.report(1)
        with pytest.raises(LogUnavailable, match=r"within (2|3)(\.\d+)? s"):
            await batch
        producer.report(1_000)

    run(story)(confirm_timeout_s=0.4, bytes_in_flight_max=1_000_000)


def test_silence_about_one_topic_is_not_broken_by_another():
    async def story(bench, producer):
        silent = bench.append(b"a")
        await wait_until_async(lambda: len(producer.sent) == 1)
        bench.writer._direct._callers.note_heard("u", asyncio.get_running_loop().time() + 1_000)
        with pytest.raises(LogUnavailable, match=r"within 0\.\d s"):
            await silent

    run(story)(confirm_timeout_s=0.3)


def test_while_kafka_is_away_all_are_refused_at_once_and_it_is_noticed_when_it_is_back():
    async def story(bench, producer):
        with pytest.raises(LogUnavailable, match="did not confirm within"):
            await bench.append(b"a")
        for _ in range(100):
            began_s = asyncio.get_running_loop().time()
            with pytest.raises(LogAway, match="nothing of this request was persisted"):
                await bench.append(b"c")
            assert asyncio.get_running_loop().time() == began_s
        assert len(producer.sent) == 1  # what is still under way will tell
        other = asyncio.ensure_future(
            bench.writer.append("u", [(b"x", None)], received_ms=5, source=b"", content_type=b"")
        )
        await wait_until_async(lambda: len(producer.sent) == 2)  # another topic may have a leader that answers
        producer.report(2)
        await other
        await wait_until_async(lambda: bench.writer.bytes_in_flight == 0)
        after = bench.append(b"d")
        await wait_until_async(lambda: len(producer.sent) == 3)
        producer.report(1)
        await after

    run(story)(confirm_timeout_s=0.4)


def test_while_kafka_is_away_and_nothing_is_under_way_one_batch_now_and_then_finds_out():
    async def story(bench, producer):
        refused = bench.append(b"a")
        await wait_until_async(lambda: len(producer.sent) == 1)
        producer.report(1, KafkaError(KafkaError.NOT_ENOUGH_REPLICAS))
        with pytest.raises(LogUnavailable):
            await refused
        probe = bench.append(b"b")
        await wait_until_async(lambda: len(producer.sent) == 2)
        with pytest.raises(LogAway):
            await bench.append(b"c")
        producer.report(1)
        await probe
        after = bench.append(b"d")
        await wait_until_async(lambda: len(producer.sent) == 3)
        producer.report(1)
        await after

    run(story)()
