"""The Kafka topics behind streams: made as a stream needs them, and never changed in a way that loses records.

Invariants of a topic that Strandline made:
- `LogAppendTime`: retention and the cutting of slices go by arrival; event time stays in the payload.
- `cleanup.policy=delete`: compaction would take records out of the middle of the log, and no rewind could be repeated.
- Its partitions don't change: a key would move to another partition, and the order of its records would be lost.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs forget to export what they import
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from strandline.core.durations import format_duration
from strandline.core.errors import Conflict, LogUnavailable, NotFound
from strandline.core.record import dead_letter_topic
from strandline.core.stream import StreamSpec

DEAD_LETTER_PARTITIONS = 1
"""Dead letters are few, and one partition keeps them in the order in which they were found."""
DEAD_LETTER_RETENTION_MS = 30 * 86_400_000
"""Thirty days: a person looks at them, not a program."""
_POLL_S = 0.05
_TRANSIENT_CODES = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_CONTROLLER,
        KafkaError.BROKER_NOT_AVAILABLE,
    }
)
"""Answers of a broker that pass; librdkafka's own codes, all negative, are about reaching one."""
_NOT_YET_CODES = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""Answers for a partition of a topic that is just being made."""


@dataclass(frozen=True)
class TopicDescription:
    """A topic as the brokers have it. `topic_id` tells a topic from a later one of the same name."""

    name: str
    topic_id: str
    partitions: int


def record_batch_bytes_max(record_bytes_max: int) -> int:
    """The `max.message.bytes` under which the largest record always fits: its value, its key (a part of the value, so
    at most as long again) and the headers. The writer's own limit is the same number."""
    return 2 * record_bytes_max + 65_536


class Topics:
    """Creates and describes topics. Used by the control service when a stream or a job is applied; blocking.

    Every method raises LogUnavailable when the brokers don't answer within `timeout_s`.
    """

    def __init__(
        self, kafka_bootstrap: str, *, replication: int, record_bytes_max: int, timeout_s: float = 30.0
    ) -> None:
        # What goes wrong comes back as an exception; librdkafka's own lines on stderr would only repeat it.
        self._admin = AdminClient(
            {"bootstrap.servers": kafka_bootstrap, "socket.timeout.ms": int(timeout_s * 1_000), "log_level": 0}
        )
        self._bootstrap = kafka_bootstrap
        self._replication = replication
        self._batch_bytes_max = record_batch_bytes_max(record_bytes_max)
        self._timeout_s = timeout_s

    def ensure_stream_topic(self, spec: StreamSpec) -> TopicDescription:
        """Make the stream's topic, or bring the present one up to the spec; when it returns, the topic can be written.

        Doing it again changes nothing. Retention may grow. Raises Conflict, and changes nothing, when the present topic
        has another number of partitions, would lose records by a shorter retention, or is not a log of arrivals
        (compacted, or stamped with the senders' time).
        """
        made = self._create_unless_present(spec.stream, spec.partitions, spec.retention_ms)
        if made is not None:
            return made
        present = self._wait_until_writable(spec.stream)
        if present.partitions != spec.partitions:
            raise Conflict(
                f"topic {spec.stream} has {present.partitions} partitions, the document says {spec.partitions}: fewer "
                f"would lose records, more would move keys to other partitions and lose their order; "
                f"write partitions: {present.partitions}, or register a stream of another name"
            )
        config = self._read_config(spec.stream)
        _check_is_log_of_arrivals(spec.stream, config)
        changes = {}
        if _retention_grows(spec, int(config["retention.ms"])):
            changes["retention.ms"] = str(spec.retention_ms)
        if self._batch_bytes_max > int(config["max.message.bytes"]):
            changes["max.message.bytes"] = str(self._batch_bytes_max)
        if changes:
            self._write_config(spec.stream, changes)
        return present

    def ensure_dead_letter_topic(self, job: str) -> TopicDescription:
        """Make the job's dead-letter topic unless it is there; an operator may have set its retention, which stays.

        Raises Conflict when a topic of that name is no log of arrivals.
        """
        topic = dead_letter_topic(job)
        made = self._create_unless_present(topic, DEAD_LETTER_PARTITIONS, DEAD_LETTER_RETENTION_MS)
        if made is not None:
            return made
        present = self._wait_until_writable(topic)
        _check_is_log_of_arrivals(topic, self._read_config(topic))
        return present

    def describe(self, topic: str) -> TopicDescription:
        """Return the topic's partitions and id. Raises NotFound when there is no such topic."""
        description = self._describe(topic)
        if description is None:
            raise NotFound(f"Kafka at {self._bootstrap} has no topic {topic}; apply its stream document again")
        return description

    def _create_unless_present(self, topic: str, partitions: int, retention_ms: int) -> TopicDescription | None:
        """Return the new topic once it can be written, or None when it is there already."""
        if self._describe(topic) is None and self._create(topic, partitions, retention_ms):
            return self._wait_until_writable(topic)
        return None

    def _create(self, topic: str, partitions: int, retention_ms: int) -> bool:
        """Return whether we made it; False when someone else did between our look and our order."""
        config = {
            "cleanup.policy": "delete",
            "message.timestamp.type": "LogAppendTime",
            "retention.ms": str(retention_ms),
            "retention.bytes": "-1",  # a broker's own limit by size would eat what the retention promises
            "max.message.bytes": str(self._batch_bytes_max),
            # With three replicas an acknowledged record survives the loss of any one.
            "min.insync.replicas": str(max(1, self._replication - 1)),
            "unclean.leader.election.enable": "false",
        }
        order = NewTopic(topic, partitions, self._replication, config=config)
        try:
            self._admin.create_topics([order], request_timeout=self._timeout_s)[topic].result(self._timeout_s)
        except KafkaException as error:
            if _code(error) == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise self._explain(f"topic {topic} could not be made", error) from error
        except TimeoutError as error:
            raise self._explain(f"topic {topic} could not be made", error) from error
        return True

    def _describe(self, topic: str) -> TopicDescription | None:
        """None when there is no such topic."""
        try:
            futures = self._admin.describe_topics(TopicCollection([topic]), request_timeout=self._timeout_s)
            described = futures[topic].result(self._timeout_s)
        except KafkaException as error:
            if _code(error) == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise self._explain(f"topic {topic} could not be described", error) from error
        except TimeoutError as error:
            raise self._explain(f"topic {topic} could not be described", error) from error
        return TopicDescription(topic, str(described.topic_id), len(described.partitions))

    def _wait_until_writable(self, topic: str) -> TopicDescription:
        """Wait until the leader of each partition answers for it: brokers take up a new topic a moment after the order."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            description = self._describe(topic)
            if description is not None and self._do_leaders_answer(description):
                return description
            if time.monotonic() > deadline:
                raise LogUnavailable(
                    f"topic {topic} has no leader for every partition after {self._timeout_s:g} s; "
                    f"look at the brokers at {self._bootstrap} and try again"
                )
            time.sleep(_POLL_S)

    def _do_leaders_answer(self, description: TopicDescription) -> bool:
        """Being named the leader is not enough: a broker that has not read so far yet says that it isn't."""
        partitions = [TopicPartition(description.name, number) for number in range(description.partitions)]
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        futures = self._admin.list_offsets(dict.fromkeys(partitions, latest), request_timeout=self._timeout_s)
        try:
            for future in futures.values():
                future.result(self._timeout_s)
        except KafkaException as error:
            if _code(error) in _NOT_YET_CODES:
                return False
            raise self._explain(f"the partitions of topic {description.name} could not be reached", error) from error
        except TimeoutError as error:
            raise self._explain(f"the partitions of topic {description.name} could not be reached", error) from error
        return True

    def _read_config(self, topic: str) -> Mapping[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            futures = self._admin.describe_configs([resource], request_timeout=self._timeout_s)
            entries: dict[str, Any] = futures[resource].result(self._timeout_s)
        except (KafkaException, TimeoutError) as error:
            raise self._explain(f"the settings of topic {topic} could not be read", error) from error
        return {name: str(entry.value) for name, entry in entries.items()}

    def _write_config(self, topic: str, changes: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in changes.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        try:
            futures = self._admin.incremental_alter_configs([resource], request_timeout=self._timeout_s)
            futures[resource].result(self._timeout_s)
        except (KafkaException, TimeoutError) as error:
            raise self._explain(f"the settings of topic {topic} could not be changed", error) from error

    def _explain(self, what: str, error: Exception) -> LogUnavailable | Conflict:
        if isinstance(error, KafkaException) and _code(error) >= 0 and _code(error) not in _TRANSIENT_CODES:
            return Conflict(f"{what}: Kafka at {self._bootstrap} refused it ({error.args[0].str()})")
        reason = error.args[0].str() if isinstance(error, KafkaException) else "no answer in time"
        return LogUnavailable(f"{what}: {reason} (Kafka at {self._bootstrap}); try again when Kafka answers")


def _check_is_log_of_arrivals(topic: str, config: Mapping[str, str]) -> None:
    policy, stamp = config["cleanup.policy"], config["message.timestamp.type"]
    if policy != "delete" or stamp != "LogAppendTime":
        raise Conflict(
            f"topic {topic} exists with cleanup.policy={policy} and message.timestamp.type={stamp}, Strandline needs "
            f"delete and LogAppendTime, and what such a topic has lost can't be had back; use another name"
        )


def _retention_grows(spec: StreamSpec, present_ms: int) -> bool:
    """Raises Conflict when it would shrink. Kafka writes -1 for "for ever"."""
    if present_ms != -1 and spec.retention_ms >= present_ms:
        return spec.retention_ms > present_ms
    kept = "for ever" if present_ms == -1 else f"for {format_duration(present_ms)}"
    remedy = (
        "if that is meant, set the topic's retention.ms by hand first"
        if present_ms == -1
        else f"write retention: {format_duration(present_ms)} or longer"
    )
    raise Conflict(
        f"topic {spec.stream} keeps its records {kept}, the document says {format_duration(spec.retention_ms)}, "
        f"which would delete records; {remedy}"
    )


def _code(error: KafkaException) -> int:
    return int(error.args[0].code())
