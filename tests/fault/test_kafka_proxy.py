"""The proxy does to Kafka's frames what its rules say, and what naive clients then make of it is found by the checker."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.faults.checker import Verdict, check
from tests.support.faults.history import History
from tests.support.faults.kafka_cluster import KafkaCluster
from tests.support.faults.kafka_proxy import (
    Api,
    cut_request,
    delay_answer,
    drop_answer,
    hold_request,
    no_replicas_in_sync,
    stale_high_watermark,
    swallow_answer,
)
from tests.support.faults.topic_dump import dump_topic
from tests.support.waiting import stretched, wait_until


@pytest.fixture
def topic(cluster) -> Iterator[str]:
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(stretched(30))
    yield name
    cluster.heal()


class Sender:
    """A client of Kafka that writes a history, as a gateway's senders do."""

    def __init__(self, cluster: KafkaCluster, topic: str, directory, **config: object) -> None:
        self.cluster = cluster
        self.topic = topic
        self.history = History(directory / f"{uuid.uuid4().hex}.jsonl")
        settings = {"bootstrap.servers": cluster.bootstrap_proxied, "acks": "all", "log_level": 0, "linger.ms": 0}
        self.producer = Producer(settings | config)

    def send(self, record_id: str) -> None:
        value = json.dumps({"id": record_id}).encode()
        request = self.history.invoke("a", [(record_id, value)])

        def settle(error: object, _message: object) -> None:
            (self.history.info(request, str(error)) if error else self.history.ok(request))

        self.producer.produce(self.topic, value, on_delivery=settle)

    def check(self) -> Verdict:
        self.history.close()
        return check(self.history.path.read_text().splitlines(), dump_topic(self.cluster.bootstrap, self.topic))


def test_without_rules_everything_passes(cluster, topic, tmp_path):
    sender = Sender(cluster, topic, tmp_path)
    for n in range(1_000):
        sender.send(str(n))
    sender.producer.flush(30)
    verdict = sender.check()
    assert verdict.violations == []
    assert (verdict.acknowledged, verdict.logged) == (1_000, 1_000)


@pytest.mark.parametrize("make_rule", [drop_answer, cut_request])
def test_an_idempotent_client_bears_a_lost_answer_and_a_cut_request(cluster, topic, tmp_path, make_rule):
    sender = Sender(cluster, topic, tmp_path, **{"enable.idempotence": True})
    for n in range(20):
        rule = cluster.proxy.add(make_rule(Api.PRODUCE))
        sender.send(str(n))
        sender.producer.flush(30)
        assert rule.done == 1
        cluster.proxy.clear()
    verdict = sender.check()
    assert verdict.violations == []
    assert verdict.acknowledged == verdict.logged == 20


def test_a_naive_client_writes_twice_when_an_answer_is_lost(cluster, topic, tmp_path):
    """So the fault is real, and the checker sees it in a real topic."""
    sender = Sender(cluster, topic, tmp_path, **{"enable.idempotence": False})
    cluster.proxy.add(drop_answer(Api.PRODUCE))
    sender.send("x")
    sender.producer.flush(30)
    verdict = sender.check()
    assert len(verdict.twice) == 1
    assert verdict.logged == 2


def test_an_answer_that_never_comes_leaves_the_record_in_the_log(cluster, topic, tmp_path):
    sender = Sender(cluster, topic, tmp_path, **{"message.timeout.ms": 1_500, "retries": 0})
    cluster.proxy.add(swallow_answer(Api.PRODUCE))
    sender.send("x")
    sender.producer.flush(30)
    verdict = sender.check()
    assert (verdict.acknowledged, verdict.unknown_found) == (0, 1)


def test_a_held_request_is_delivered_when_its_client_has_gone(cluster, topic, tmp_path):
    """And a client that takes "not there" for "never will be" has it in the log twice."""
    sender = Sender(cluster, topic, tmp_path)
    rule = cluster.proxy.add(hold_request(Api.PRODUCE, 3.0))
    sender.send("x")
    wait_until(lambda: rule.hits, bool, "held")
    sender.producer.purge()
    del sender.producer
    sender.history.close()
    assert list(dump_topic(cluster.bootstrap, topic)) == []
    naive = Sender(cluster, topic, tmp_path)
    naive.send("x")
    naive.producer.flush(30)
    wait_until(lambda: rule.done, bool, "delivered")
    wait_until(lambda: len(list(dump_topic(cluster.bootstrap, topic))), lambda count: count == 2, "in the log twice")
    assert len(naive.check().twice) == 1


def test_a_stale_high_watermark_hides_what_is_there(cluster, topic, tmp_path):
    sender = Sender(cluster, topic, tmp_path)
    for n in range(5):
        sender.send(str(n))
    sender.producer.flush(30)
    consumer = reader(cluster, topic)
    assert len(consumer.consume(5, 10.0)) == 5
    rule = cluster.proxy.add(stale_high_watermark())
    wait_until(lambda: consumer.poll(0.1) or rule.hits, bool, "asked for more")
    for n in range(5, 10):
        sender.send(str(n))
    sender.producer.flush(30)
    assert consumer.consume(5, 2.0) == []
    cluster.proxy.clear()
    assert [json.loads(message.value())["id"] for message in consumer.consume(5, 10.0)] == ["5", "6", "7", "8", "9"]
    consumer.close()
    assert sender.check().violations == []


def test_metadata_can_show_that_no_replica_is_in_sync(cluster, topic, tmp_path):
    sender = Sender(cluster, topic, tmp_path)
    assert in_sync(cluster, topic) == [1]
    cluster.proxy.add(no_replicas_in_sync())
    assert in_sync(cluster, topic) == [0]
    sender.send("x")
    assert sender.producer.flush(30) == 0
    cluster.proxy.clear()
    assert in_sync(cluster, topic) == [1]
    assert sender.check().violations == []


def test_delayed_fetches_come_late(cluster, topic, tmp_path):
    sender = Sender(cluster, topic, tmp_path)
    sender.send("x")
    sender.producer.flush(30)
    cluster.proxy.add(delay_answer(Api.FETCH, 1.5))
    consumer, started_s = reader(cluster, topic), time.monotonic()
    assert consumer.poll(10.0) is not None
    assert time.monotonic() - started_s >= 1.5
    consumer.close()
    assert sender.check().violations == []


def test_a_network_that_is_cut_and_healed(cluster, topic, tmp_path):
    sender = Sender(cluster, topic, tmp_path)
    sender.send("before")
    sender.producer.flush(30)
    cluster.proxy.cut()
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_proxied, "log_level": 0})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=1.0)
    sender.send("during")
    assert sender.producer.flush(1.0) == 1
    cluster.proxy.heal()
    assert sender.producer.flush(30) == 0
    verdict = sender.check()
    assert verdict.violations == []
    assert verdict.acknowledged == 2


def in_sync(cluster: KafkaCluster, topic: str) -> list[int]:
    """Per partition the number of replicas that are in sync."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_proxied, "log_level": 0})
    described = admin.describe_topics(TopicCollection([topic]), request_timeout=stretched(30))[topic].result()
    return [len(one.isr) for one in described.partitions]


def reader(cluster: KafkaCluster, topic: str) -> Consumer:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_proxied, "group.id": "reader", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    return consumer
