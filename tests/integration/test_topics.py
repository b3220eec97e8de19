"""Topics on a real Kafka: made once, grown where that loses nothing, and otherwise left alone."""

import time
import uuid

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from strandline.core.errors import Conflict, LogUnavailable, NotFound
from strandline.core.streams.stream import StreamSpec
from strandline.log.record_size import record_batch_bytes_max
from strandline.log.topics import Topics
from tests.support.waiting import stretched

RECORD_BYTES_MAX = 300_000


@pytest.fixture
def topics(kafka):
    return Topics(kafka, replication=1, record_bytes_max=RECORD_BYTES_MAX)


@pytest.fixture
def name():
    return f"topic-{uuid.uuid4().hex[:12]}"


def spec(name, partitions=3, retention="2d"):
    document = {"stream": name, "partitions": partitions, "retention": retention, "schema": {"n": "long"}}
    return StreamSpec.from_document(document)


def make_by_hand(kafka, name, config):
    admin = AdminClient({"bootstrap.servers": kafka})  # held until the answer is there: it ends with its last reference
    admin.create_topics([NewTopic(name, 3, 1, config=config)])[name].result(stretched(30))


def config_of(topics, name):
    return topics._admin.config(name)


def test_a_stream_topic_is_a_log_of_arrivals(topics, name):
    made = topics.ensure_stream_topic(spec(name))
    assert (made.name, made.partitions) == (name, 3)
    assert made.topic_id
    assert topics.describe(name) == made
    config = config_of(topics, name)
    assert config["message.timestamp.type"] == "LogAppendTime"
    assert config["cleanup.policy"] == "delete"
    assert config["retention.ms"] == str(2 * 86_400_000)
    assert config["retention.bytes"] == "-1"
    assert config["max.message.bytes"] == str(record_batch_bytes_max(RECORD_BYTES_MAX))


def test_when_it_returns_every_partition_answers_at_once(topics, kafka):
    """A broker that is named the leader of a new partition may still refuse it for a moment."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "none", "log_level": 2})
    try:
        for _ in range(10):
            made = topics.ensure_stream_topic(spec(f"topic-{uuid.uuid4().hex[:12]}", partitions=16))
            for partition in range(16):
                assert consumer.get_watermark_offsets(TopicPartition(made.name, partition), 30.0) == (0, 0)
    finally:
        consumer.close()


@pytest.mark.guarantee("G996")
def test_the_topic_of_a_stream_that_had_one_is_not_created(topics, name):
    with pytest.raises(NotFound, match=name):
        topics.ensure_stream_topic(spec(name), creates=False)
    assert topics.find(name) is None
    made = topics.ensure_stream_topic(spec(name))
    assert topics.ensure_stream_topic(spec(name), creates=False) == made


def test_doing_it_again_changes_nothing(topics, name):
    made = topics.ensure_stream_topic(spec(name))
    before = config_of(topics, name)
    assert topics.ensure_stream_topic(spec(name)) == made
    assert config_of(topics, name) == before


def test_retention_and_the_size_of_records_may_grow(topics, kafka, name):
    made = topics.ensure_stream_topic(spec(name))
    larger = Topics(kafka, replication=1, record_bytes_max=2 * RECORD_BYTES_MAX)
    assert larger.ensure_stream_topic(spec(name, retention="3d")) == made
    config = config_of(topics, name)
    assert config["retention.ms"] == str(3 * 86_400_000)
    assert config["max.message.bytes"] == str(record_batch_bytes_max(2 * RECORD_BYTES_MAX))
    topics.ensure_stream_topic(spec(name, retention="3d"))
    assert config_of(topics, name) == config


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"partitions": 2}, "has 3 partitions, but the document has 2"),
        ({"partitions": 8}, "has 3 partitions, but the document has 8"),
        ({"retention": "1d"}, "keeps its records for 2d, but the document has 1d"),
    ],
    ids=str,
)
def test_a_change_that_would_lose_records_or_their_order_is_refused(topics, name, change, part):
    made = topics.ensure_stream_topic(spec(name))
    before = config_of(topics, name)
    with pytest.raises(Conflict, match=part):
        topics.ensure_stream_topic(spec(name, **change))
    assert topics.describe(name) == made
    assert config_of(topics, name) == before


def test_a_stream_may_keep_its_records_forever(topics, name):
    made = topics.ensure_stream_topic(spec(name))
    for _ in range(2):
        assert topics.ensure_stream_topic(spec(name, retention="forever")) == made
        assert config_of(topics, name)["retention.ms"] == "-1"
    with pytest.raises(
        Conflict, match="forever, but the document has 2d, which would delete records; write retention: forever, or"
    ):
        topics.ensure_stream_topic(spec(name))
    assert config_of(topics, name)["retention.ms"] == "-1"


def test_a_topic_that_is_compacted_is_not_taken_over(topics, kafka, name):
    whole = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
    make_by_hand(kafka, name, whole)
    with pytest.raises(Conflict, match="use another name"):
        topics.ensure_stream_topic(spec(name))
    assert config_of(topics, name).items() >= whole.items()


def test_a_topic_with_its_producers_times_is_taken_as_it_is_and_said_to_be_one(topics, kafka, name):
    config = {"cleanup.policy": "delete", "message.timestamp.type": "CreateTime", "retention.ms": "172800000"}
    make_by_hand(kafka, name, config)
    assert topics.ensure_stream_topic(spec(name)).has_senders_times
    assert config_of(topics, name).items() >= config.items()


def test_a_topic_kept_for_ever_is_not_shortened(topics, kafka, name):
    config = {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}
    make_by_hand(kafka, name, config)
    with pytest.raises(Conflict, match="keeps its records forever, but the document has 2d"):
        topics.ensure_stream_topic(spec(name))


@pytest.mark.guarantee("G769")
@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        ({"min.insync.replicas": "1"}, ["one_replica"]),
        (
            {"unclean.leader.election.enable": "true", "retention.bytes": "1000"},
            ["unclean_leader", "one_replica", "size_limit"],
        ),
    ],
)
def test_an_adopted_topic_that_can_lose_confirmed_records_says_so(topics, kafka, name, config, kinds):
    make_by_hand(kafka, name, config | {"retention.ms": str(2 * 86_400_000)})
    assert [one.kind for one in topics.present_stream_topic(spec(name)).hazards] == kinds


def test_the_dead_letter_topic_is_made_once_and_an_operators_retention_stays(topics, name):
    made = topics.ensure_dead_letter_topic(name)
    assert (made.name, made.partitions) == (f"{name}.dead-letter", 1)
    topics._change_config(made.name, {"retention.ms": "86400000"})
    assert topics.ensure_dead_letter_topic(name) == made
    assert config_of(topics, made.name)["retention.ms"] == "86400000"


def test_a_dead_letter_topic_has_room_again_when_the_job_is_applied_with_a_larger_limit(topics, kafka, name):
    made = topics.ensure_dead_letter_topic(name)
    larger = Topics(kafka, replication=1, record_bytes_max=2 * RECORD_BYTES_MAX)
    assert larger.ensure_dead_letter_topic(name) == made
    assert config_of(topics, made.name)["max.message.bytes"] == str(record_batch_bytes_max(2 * RECORD_BYTES_MAX))
    topics.ensure_dead_letter_topic(name)
    assert config_of(topics, made.name)["max.message.bytes"] == str(record_batch_bytes_max(2 * RECORD_BYTES_MAX))


def test_room_for_records_is_all_that_changes_of_a_stream_of_results(topics, kafka, name):
    topics.ensure_stream_topic(spec(name))
    before = config_of(topics, name)
    Topics(kafka, replication=1, record_bytes_max=2 * RECORD_BYTES_MAX).ensure_room_for_records(name)
    room = {"max.message.bytes": str(record_batch_bytes_max(2 * RECORD_BYTES_MAX))}
    assert config_of(topics, name) == {**before, **room}
    topics.ensure_room_for_records(name)
    assert config_of(topics, name) == {**before, **room}


def test_an_unknown_topic_is_not_found(topics, name):
    with pytest.raises(NotFound, match=name):
        topics.describe(name)


def test_more_replicas_than_brokers_is_a_clear_refusal(kafka, name):
    with pytest.raises(Conflict, match=r"(?i)replication factor"):
        Topics(kafka, replication=3, record_bytes_max=RECORD_BYTES_MAX).ensure_stream_topic(spec(name))


def test_brokers_that_are_away_are_said_to_be_within_the_timeout(name):
    topics = Topics("127.0.0.1:1", replication=1, record_bytes_max=RECORD_BYTES_MAX, timeout_s=1.0)
    started_s = time.monotonic()
    with pytest.raises(LogUnavailable, match="try again"):
        topics.ensure_stream_topic(spec(name))
    assert time.monotonic() - started_s < stretched(10)
