"""The changes of a stream's document that an existing topic prevents are known before anything is changed.

A double for Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from strandline.core.errors import Conflict, NotFound
from strandline.core.streams.stream import StreamSpec
from strandline.log.admin import HazardKind, KafkaAdmin, TopicDescription
from strandline.log.topics import Topics

CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "172800000",
    "message.timestamp.type": "LogAppendTime",
    "max.message.bytes": "1",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "retention.bytes": "-1",
}


class OneTopic(KafkaAdmin):
    """Has topic `s` with two partitions, and keeps what is changed."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self.timeout_s = 1.0
        self._config = {**CONFIG, **config}
        self.changes: list[Mapping[str, str]] = []
        self.replicas_of_topic = 3

    def describe(self, topic: str, timeout_s: float | None = None) -> TopicDescription:
        if topic != "s":
            raise NotFound(f"no topic {topic}")
        return TopicDescription("s", "id", 2, replicas=self.replicas_of_topic)

    def config(self, topic: str) -> dict[str, str]:
        return self._config

    def do_leaders_answer(self, topic: str, partitions: Iterable[int]) -> bool:
        return True

    def change_config(self, topic: str, changes: Mapping[str, str]) -> None:
        self.changes.append(changes)
        self._config.update(changes)


def topics(config: Mapping[str, str]) -> tuple[Topics, OneTopic]:
    made, admin = Topics("127.0.0.1:1", replication=1, record_bytes_max=1_000), OneTopic(config)
    made._admin = admin
    return made, admin


def spec(name: str = "s", partitions: int = 2, retention: str = "2d") -> StreamSpec:
    return StreamSpec.from_document(
        {"stream": name, "schema": {"n": "long"}, "partitions": partitions, "retention": retention}
    )


@pytest.mark.guarantee("G700")
@pytest.mark.parametrize(
    ("config", "document", "reason"),
    [
        ({}, spec(partitions=3), "has 2 partitions, but the document has 3"),
        ({}, spec(retention="1d"), "keeps its records for 2d, but the document has 1d"),
        ({"cleanup.policy": "compact"}, spec(), "has cleanup.policy=compact"),
    ],
)
def test_who_asks_before_gets_the_refusal_that_comes_then(
    config: Mapping[str, str], document: StreamSpec, reason: str
) -> None:
    made, admin = topics(config)
    with pytest.raises(Conflict, match=reason) as before:
        made.present_stream_topic(document)
    with pytest.raises(Conflict) as then:
        made.ensure_stream_topic(document)
    assert (str(before.value), admin.changes) == (str(then.value), [])


@pytest.mark.parametrize("senders", [False, True])
def test_a_topic_that_fits_is_described_and_not_changed(*, senders: bool) -> None:
    made, admin = topics({"message.timestamp.type": "CreateTime" if senders else "LogAppendTime"})
    present = made.present_stream_topic(spec(retention="3d"))
    assert present is not None
    assert (present.partitions, present.has_senders_times, admin.changes) == (2, senders, [])
    assert made.present_stream_topic(spec("another")) is None
    assert made.ensure_stream_topic(spec(retention="3d")) == present
    assert admin.changes


@pytest.mark.parametrize(
    ("config", "replicas", "kinds"),
    [
        ({}, 3, []),
        ({"min.insync.replicas": "1"}, 3, [HazardKind.ONE_REPLICA_CONFIRMS]),
        ({"min.insync.replicas": "1"}, 2, [HazardKind.ONE_REPLICA_CONFIRMS]),
        ({"min.insync.replicas": "1"}, 1, [HazardKind.ONE_REPLICA]),
        ({"unclean.leader.election.enable": "true"}, 3, [HazardKind.UNCLEAN_LEADER]),
        ({"retention.bytes": "1000000"}, 3, [HazardKind.SIZE_LIMIT]),
    ],
)
def test_a_present_topic_that_can_lose_confirmed_records_says_so(
    config: Mapping[str, str], replicas: int, kinds: list[HazardKind]
) -> None:
    made, admin = topics(config)
    admin.replicas_of_topic = replicas
    present = made.present_stream_topic(spec())
    assert present is not None
    assert [one.kind for one in present.hazards] == kinds
    assert all(one.message.startswith("topic s has ") and "topic s" in one.remedy for one in present.hazards)
