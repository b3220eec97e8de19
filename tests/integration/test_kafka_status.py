"""The status of a real Kafka in the services: offsets, retention, and dead letters up to the first open transaction."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Producer

from strandline.core.errors import LogUnavailable, NotFound
from strandline.log.index import LogIndex
from strandline.log.kafka_status import KafkaStatus, LogRange
from strandline.log.topics import DEAD_LETTER_RETENTION_MS, Topics


@pytest.fixture
def job(kafka) -> str:
    job = f"job-{uuid.uuid4().hex[:12]}"
    Topics(kafka, replication=1, record_bytes_max=1_000).ensure_dead_letter_topic(job)
    return job


def offsets(kafka: str, job: str, after: int, limit: int) -> list[int]:
    return [letter.offset for letter in KafkaStatus(kafka).dead_letters(job, after, limit)]


def test_dead_letters_are_read_from_an_offset_up_to_a_limit(kafka, job):
    assert offsets(kafka, job, -1, 10) == []
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": job})
    producer.init_transactions()
    producer.begin_transaction()
    for number in range(5):
        producer.produce(f"{job}.dead-letter", b"%d" % number, headers={"reason": b"late", "message": None})
    producer.commit_transaction()
    LogIndex(kafka).settled_ends(f"{job}.dead-letter")
    first = KafkaStatus(kafka).dead_letters(job, -1, 1)[0]
    assert (first.offset, first.value, first.headers) == (0, b"0", {"reason": "late", "message": ""})
    assert first.log_time_ms > 0
    assert offsets(kafka, job, -1, 10) == [0, 1, 2, 3, 4]
    assert offsets(kafka, job, 1, 2) == [2, 3]
    assert offsets(kafka, job, 4, 10) == []

    producer.begin_transaction()
    producer.produce(f"{job}.dead-letter", b"open")
    producer.flush()
    assert offsets(kafka, job, -1, 10) == [0, 1, 2, 3, 4]
    status = KafkaStatus(kafka)
    assert status.range(f"{job}.dead-letter") == LogRange({0: 0}, {0: 7})
    assert status.retention_ms(f"{job}.dead-letter") == DEAD_LETTER_RETENTION_MS
    producer.abort_transaction()


def test_topics_are_listed_with_their_size_and_settings(kafka, job):
    topic = f"{job}.dead-letter"
    producer = Producer({"bootstrap.servers": kafka})
    for number in range(3):
        producer.produce(topic, b"%d" % number)
    producer.flush()
    status = KafkaStatus(kafka)
    assert topic in status.topic_names()
    found = status.summaries([topic, "nowhere"])
    assert isinstance(found["nowhere"], NotFound)
    summary = found[topic]
    assert (summary.partitions, summary.records) == (1, 3)
    assert (summary.config["cleanup.policy"], summary.config["retention.ms"]) == (
        "delete",
        str(DEAD_LETTER_RETENTION_MS),
    )


def test_what_is_not_there(kafka):
    assert KafkaStatus(kafka).dead_letters("nobody", -1, 10) == []
    assert KafkaStatus(kafka).summaries([]) == {}
    with pytest.raises(NotFound, match="has no topic nowhere"):
        KafkaStatus(kafka).range("nowhere")


@pytest.mark.parametrize("ask", [KafkaStatus.check, lambda s: s.range("t"), lambda s: s.dead_letters("j", -1, 1)])
def test_brokers_that_are_away_are_said_to_be(ask):
    with pytest.raises(LogUnavailable, match=r"Kafka at 127\.0\.0\.1:1"):
        ask(KafkaStatus("127.0.0.1:1", timeout_s=0.5))
