"""Messages on their way to the log: in order, acknowledged only when confirmed, tried again only when nothing was sent."""

import asyncio
from dataclasses import replace

import pytest
from confluent_kafka import KafkaError, KafkaException

from strandline.core.errors import LogUnavailable, RecordTooLarge
from strandline.ingest.append.limits import RECORDS_PER_TURN
from strandline.ingest.append.outcome import Accepted, LogBusy
from strandline.ingest.append.spool import Spool
from strandline.ingest.append.writer import LogWriter
from strandline.ingest.gateway.metrics import IngestMetrics
from strandline.ingest.mqtt import batches as batches_module
from strandline.ingest.mqtt.batches import BYTES_WAITING_MAX, Batches
from strandline.ingest.mqtt.decoder import Publish
from strandline.ingest.mqtt.topics import Route
from strandline.ingest.mqtt.wire import PublishProperties
from tests.support.log_clients import FakeLog, ObedientConsumer, ObedientProducer
from tests.support.waiting import stretched, wait_until_async

ROUTE = Route("s", False, [("strandline-source", b"mqtt:a")], lambda _: None, b"application/json")


class SlowLog:
    """A writer that answers when and what the test says."""

    def __init__(self):
        self.appended = []
        self.refusals = []
        self.waiting = []

    async def append(self, topic, records, **more):
        if self.refusals and (refusal := self.refusals.pop(0)) is not None:
            raise refusal
        self.appended.append((topic, [value for value, _ in records], more))
        answer = asyncio.get_running_loop().create_future()
        self.waiting.append(answer)
        await answer
        return Accepted.LOG

    def confirm(self):
        for answer in self.waiting:
            answer.set_result(None)
        self.waiting.clear()

    def values(self):
        return [value for _, values, _ in self.appended for value in values]


class Sensor:
    def __init__(self):
        self.acknowledged = []
        self.withheld = 0

    def acknowledge(self, packet_ids):
        self.acknowledged += packet_ids

    def withhold(self):
        self.withheld += 1


class Bench:
    def __init__(self, busy_patience_s=5.0):
        self.log, self.sensor, self.reading = SlowLog(), Sensor(), []
        self.metrics = IngestMetrics("mqtt-listener")
        self.batches = Batches(self.log, self.metrics, self.reading.append, busy_patience_s=busy_patience_s)

    def add(self, payload, packet_id=1, sensor=None, qos=1, retain=False, properties=None, route=ROUTE):
        publish = Publish(b"a", payload, qos, retain, packet_id if qos else 0, properties)
        self.batches.add(sensor or self.sensor, publish, route)

    def count(self, name):
        labels = {"protocol": "mqtt-listener", "stream": "s"}
        families = [family for family in self.metrics.registry.collect() if family.name == f"strandline_ingest_{name}"]
        samples = [sample for family in families for sample in family.samples if not sample.name.endswith("_created")]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    def add_up(self):
        whole = self.count("confirmed") + self.count("refused") + self.count("spooled") + self.count("in_flight")
        return self.count("received") == whole


def run(test):
    async def all_of_it():
        async with asyncio.timeout(stretched(60)):
            await test(Bench())

    asyncio.run(all_of_it())


async def turns(count=5):
    for _ in range(count):
        await asyncio.sleep(0)


def test_what_arrives_in_one_turn_is_one_append_and_is_acknowledged_when_confirmed():
    async def test(bench):
        other = Sensor()
        bench.add(b"1", 1)
        bench.add(b"2", 7, other)
        bench.add(b"3", 2)
        bench.add(b"4", qos=0)
        await turns()
        assert len(bench.log.appended) == 1
        assert bench.log.values() == [b"1", b"2", b"3", b"4"]
        assert bench.sensor.acknowledged == []
        assert bench.count("in_flight") == 4
        bench.log.confirm()
        await turns()
        assert (bench.sensor.acknowledged, other.acknowledged) == ([1, 2], [7])
        assert (bench.count("confirmed"), bench.batches.bytes_waiting) == (4, 0)
        assert bench.add_up()

    run(test)


@pytest.mark.parametrize("refusal", [LogUnavailable("unknown"), RecordTooLarge("the topic takes less")], ids=repr)
def test_what_the_log_did_not_confirm_is_withheld_and_not_sent_again(refusal):
    async def test(bench):
        bench.log.refusals = [refusal]
        bench.add(b"1", 1)
        await turns()
        await asyncio.sleep(0.3)  # sleeps: long enough for a wrong second append
        assert (bench.sensor.acknowledged, bench.sensor.withheld) == ([], 1)
        assert bench.log.appended == []
        assert (bench.count("refused"), bench.batches.bytes_waiting) == (1, 0)
        assert bench.add_up()

    run(test)


def test_a_busy_log_is_tried_again_in_order_while_nobody_is_read():
    async def test(bench):
        bench.log.refusals = [LogBusy("full"), LogBusy("full")]
        for number in range(RECORDS_PER_TURN + 1):  # two batches of the same turn
            bench.add(b"%d" % number, number + 1)
        await turns()
        assert bench.reading == [False]
        bench.add(b"later", 5_000)
        await wait_until_async(lambda: len(bench.log.values()) == RECORDS_PER_TURN + 2)
        assert bench.log.values() == [*(b"%d" % number for number in range(RECORDS_PER_TURN + 1)), b"later"]
        assert bench.reading == [False]
        bench.log.confirm()
        await turns()
        assert bench.reading == [False, True]
        assert len(bench.sensor.acknowledged) == RECORDS_PER_TURN + 2
        assert bench.add_up()

    run(test)


def test_a_log_that_stays_busy_withholds():
    async def test(_):
        bench = Bench(busy_patience_s=0.15)
        bench.log.refusals = [LogBusy("full")] * 100
        bench.add(b"1", 1)
        await wait_until_async(lambda: bench.sensor.withheld)
        assert bench.log.appended == []
        assert bench.reading == [False, True]
        assert bench.add_up()

    run(test)


def test_over_the_bound_nobody_is_read_until_half_is_confirmed():
    async def test(bench):
        payload = b"x" * 1_000_000
        for number in range(BYTES_WAITING_MAX // len(payload) + 1):
            bench.add(payload, number + 1)
        assert bench.reading == [False]
        await turns()
        bench.log.confirm()
        await turns()
        assert bench.reading == [False, True]

    run(test)


def test_topics_and_properties_count_as_what_waits():
    async def test(bench):
        user = tuple((f"p{number:04}", "") for number in range(400))
        for topic, content_type, properties in (
            (b"t" * 16_000, None, ()),
            (b"a", "c" * 16_000, ()),
            (b"a", None, user),
        ):
            before = bench.batches.bytes_waiting
            said = PublishProperties(content_type, properties)
            bench.batches.add(bench.sensor, Publish(topic, b"1", 0, False, 0, said), ROUTE)
            assert bench.batches.bytes_waiting - before > 16_000
        for _ in range(BYTES_WAITING_MAX // 16_000):
            bench.batches.add(bench.sensor, Publish(b"t" * 16_000, b"1", 0, False, 0, None), ROUTE)
        assert bench.reading == [False]
        await turns()
        bench.log.confirm()
        await turns()
        assert (bench.reading, bench.batches.bytes_waiting) == ([False, True], 0)

    run(test)


def test_what_a_message_says_of_itself_is_in_its_headers():
    async def test(bench):
        bench.add(b"1", 1, retain=True)
        user = (("message-id", "m1"), ("strandline-writer", "forged"), ("unit", "m/s"))
        bench.add(b"2", 2, properties=PublishProperties(None, user))
        bench.add(b"3", 3, properties=PublishProperties("text/csv", ()))
        await turns()
        (_, _, plain), (_, _, csv) = bench.log.appended
        assert plain["content_type"] == b"application/json"
        assert plain["headers_each"] == [
            [("strandline-source", b"mqtt:a"), ("mqtt-retained", b"1")],
            [
                ("strandline-source", b"mqtt:a"),
                ("message-id", b"m1"),
                ("property-strandline-writer", b"forged"),
                ("property-unit", b"m/s"),
            ],
        ]
        assert (csv["content_type"], csv["source"]) == (b"text/csv", None)
        assert ROUTE.headers == [("strandline-source", b"mqtt:a")]

    run(test)


@pytest.mark.guarantee("G32")
def test_messages_of_different_content_types_keep_their_order():
    async def test(bench):
        for number, said in enumerate(["text/csv", None, "text/csv", "text/csv", "application/json", None], 1):
            bench.add(b"%d" % number, number, properties=PublishProperties(said, ()) if said else None)
        await turns()
        assert [(more["content_type"], values) for _, values, more in bench.log.appended] == [
            (b"text/csv", [b"1"]),
            (b"application/json", [b"2"]),
            (b"text/csv", [b"3", b"4"]),
            (b"application/json", [b"5", b"6"]),
        ]
        bench.log.confirm()
        await turns()
        assert bench.sensor.acknowledged == [1, 2, 3, 4, 5, 6]
        assert bench.add_up()

    run(test)


def test_a_changed_document_counts_for_the_next_message():
    async def test(bench):
        spooled = Route("s", True, ROUTE.headers, ROUTE.find_key, b"text/csv")
        bench.log.refusals = [LogBusy("full")]
        bench.add(b"1", 1, route=spooled)
        await turns()
        bench.add(b"2", 2, route=ROUTE)  # while the one before it is held
        bench.add(b"3", 3, route=ROUTE)
        await wait_until_async(lambda: bench.log.values() == [b"1", b"2", b"3"])
        assert [(more["may_spool"], more["content_type"], values) for _, values, more in bench.log.appended] == [
            (True, b"text/csv", [b"1"]),
            (False, b"application/json", [b"2", b"3"]),
        ]

    run(test)


def test_settling_waits_for_all():
    async def test(bench):
        bench.add(b"1", 1)
        settling = asyncio.create_task(bench.batches.settle())
        await turns()
        assert not settling.done()
        bench.log.confirm()
        await settling
        assert bench.sensor.acknowledged == [1]

    run(test)


@pytest.mark.parametrize("refusals", [[None, LogUnavailable("x"), None]])
def test_one_batch_that_fails_does_not_acknowledge_another(refusals):
    async def test(bench):
        bench.log.refusals = list(refusals)
        for number in (1, 2, 3):
            bench.add(b"%d" % number, number)
            await turns()
        bench.log.confirm()
        await turns()
        assert bench.sensor.acknowledged == [1, 3]
        assert bench.sensor.withheld == 1
        assert bench.add_up()

    run(test)


@pytest.mark.guarantee(
    "G32",
    "Messages of one MQTT topic from one connection to the server keep their order in the log, also while the spool "
    "has room only for small ones.",
    promise="records-are-stored-once-and-unchanged",
)
def test_a_spool_with_room_for_small_messages_only_turns_no_order_round(tmp_path, monkeypatch):
    """A large message is refused for room, and small ones come behind it in each turn of the event loop. Then there is room."""
    monkeypatch.setattr(batches_module, "BUSY_RETRY_S", 0.01)

    def no_transactions(config):
        if "transactional.id" in config:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return ObedientProducer(config, FakeLog())

    async def story():
        spool, sensor = Spool(tmp_path, bytes_max=1_000), Sensor()
        writer = LogWriter(
            "nowhere:9092", writer_id="test", epoch=7, record_bytes_max=1_000, confirm_timeout_s=0.1, spool=spool,
            make_producer=no_transactions, make_consumer=lambda config: ObedientConsumer(config, FakeLog()), make_admin=dict,
        )  # fmt: skip
        async with writer:
            batches = Batches(writer, IngestMetrics("mqtt-listener"), lambda _: None, busy_patience_s=20.0)
            count = 0

            def add(payload):
                nonlocal count
                count += 1
                publish = Publish(b"a", b"%d %s" % (count, payload), 1, False, count, None)
                batches.add(sensor, publish, replace(ROUTE, may_spool=True))

            add(b"first")
            await wait_until_async(lambda: sensor.acknowledged)
            spool.bytes_max = 60_000
            for _ in range(5):
                add(b"x" * 100_000)
                for _ in range(200):
                    add(b"small")
                    await asyncio.sleep(0)
                acknowledged = list(sensor.acknowledged)
                assert acknowledged == list(range(1, len(acknowledged) + 1))
            spool.bytes_max = 100_000_000
            await wait_until_async(lambda: len(sensor.acknowledged) == count)
            kept = spool.head("s", 10_000, 100_000_000).records
            assert [int(record.value.split()[0]) for record in kept] == list(range(1, count + 1))
            assert sensor.acknowledged == list(range(1, count + 1))
            assert sensor.withheld == 0

    asyncio.run(story())
