"""The only module that uses Kafka's admin client. It limits the time of each request, and converts each failure to one
of these errors:

* NotFound          the topic doesn't exist
* LogUnavailable    no answer, or a temporary error
* Conflict          the brokers refused; only if the caller changes topics, because every refusal of a read is temporary
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs forget to export what they import
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from strandline.core.errors import Conflict, LogUnavailable, NotFound, StrandlineError
from strandline.log.answers import Answers, answer_of, answers_of
from strandline.log.kafka_connection import Refusals, librdkafka

_ASK_AGAIN_S = 0.2
_CONNECT_AGAIN_S = 1.0
"""Minimum time between two new clients that are made because a topic's answer was an error."""
_SOCKET_TIMEOUT_MS_MIN, _SOCKET_TIMEOUT_MS_MAX = 10, 300_000
"""Range of librdkafka. The timeout of a question can be longer or shorter."""
_GRACE_S = 1.0
"""Seconds in addition to the client's own timeout. That timeout should end a request, because its error has a reason.
"""
_TRANSIENT_CODES = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_CONTROLLER,
        KafkaError.BROKER_NOT_AVAILABLE,
    }
)
"""Temporary errors of a broker. librdkafka's own codes, all negative, mean that no broker was reached."""
_NOT_YET_CODES = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._NOENT,  # librdkafka's own: "no leaders found"
    }
)
"""Answers for a partition of a topic that is just being created."""

T = TypeVar("T")


class HazardKind(StrEnum):
    """Setting of a topic that can lose confirmed records."""

    UNCLEAN_LEADER = "unclean_leader"
    ONE_REPLICA_CONFIRMS = "one_replica_confirms"
    SIZE_LIMIT = "size_limit"
    ONE_REPLICA = "one_replica"


@dataclass(frozen=True)
class Hazard:
    """A setting that can lose confirmed records of a topic."""

    kind: HazardKind
    message: str
    """Topic, setting with its value, and consequence."""
    remedy: str
    """Setting to change."""


class ReplicaCounts(NamedTuple):
    """Replicas of one partition."""

    all: int
    in_sync: int
    """0 if the partition has no leader."""

    def takes_records(self, in_sync_min: int) -> bool:
        """Return True if senders that wait for all in-sync replicas can write to the partition.

        With fewer replicas than `in_sync_min`, such senders can never write to it. Then its senders wait for the leader alone.
        """
        return self.in_sync >= (in_sync_min if self.all >= in_sync_min else 1)


@dataclass(frozen=True)
class TopicDescription:
    """A topic as the brokers describe it. `topic_id` distinguishes it from a later topic with the same name."""

    name: str
    topic_id: str
    partitions: int
    has_senders_times: bool = False
    """True if the log time of its records is set by their producers. False also if the settings weren't read."""
    replicas: int = field(default=1, compare=False)
    """Number of replicas of the partition that has the fewest."""
    hazards: tuple[Hazard, ...] = field(default=(), compare=False)
    """Settings that can lose confirmed records. Empty if the settings of the topic weren't read."""
    replica_counts: tuple[ReplicaCounts, ...] = field(default=(), compare=False)
    """Replicas of each partition, if the brokers described the topic."""


class _OffsetsUnavailable(LogUnavailable):
    """A broker's answer with offsets was lost or too late."""


class KafkaAdmin:
    """One connection to the brokers' admin interface. Blocking, safe for several threads."""

    def __init__(
        self,
        bootstrap: str,
        *,
        timeout_s: float,
        patience_s: float | None = None,
        changes_topics: bool = False,
        make_client: Callable[[dict[str, Any]], AdminClient] = AdminClient,
    ) -> None:
        """`changes_topics`: If the brokers refuse a request, raise Conflict, because a retry can't help. Otherwise, a
        refusal is LogUnavailable, like every failure.

        `patience_s`: Seconds for which a request is repeated while its answer is a temporary error. None for the
        timeout.
        """
        self.bootstrap = bootstrap
        self.timeout_s = timeout_s
        self._patience_s = patience_s
        self._is_stale = False
        """True if an answer of this client was an error that a new client may not get."""
        self._changes_topics = changes_topics
        self._make_client = make_client
        self._refusals = Refusals()
        self._client = self._connect()

    def check(self, timeout_s: float | None = None) -> None:
        """Return if the brokers answer."""
        try:
            self._client.list_topics(timeout=timeout_s or self.timeout_s)
        except KafkaException as error:
            raise self._explain("the brokers could not be queried", error) from error

    def check_writable(self) -> None:
        """Return if each partition has a leader, and as many in-sync replicas as a topic of Strandline needs."""
        try:
            topics = self._client.list_topics(timeout=self.timeout_s).topics.values()
        except KafkaException as error:
            raise self._explain("the brokers could not be queried", error) from error
        for topic in topics:
            for number, partition in topic.partitions.items():
                if partition.leader < 0 or len(partition.isrs) < max(1, len(partition.replicas) - 1):
                    raise LogUnavailable(
                        f"partition {number} of topic {topic.topic} lacks a leader or in-sync replicas; check the brokers"
                    )

    def brokers(self) -> list[int]:
        """Return the ids of the brokers that are up."""
        try:
            return sorted(self._client.list_topics(timeout=self.timeout_s).brokers)
        except KafkaException as error:
            raise self._explain("the brokers could not be queried", error) from error

    def replicas(self) -> dict[str, int]:
        """Return all topics. The value is the number of replicas of the partition that has the fewest."""
        try:
            topics = self._client.list_topics(timeout=self.timeout_s).topics
        except KafkaException as error:
            raise self._explain("the brokers could not be queried", error) from error
        return {
            name: min((len(one.replicas) for one in topic.partitions.values()), default=1)
            for name, topic in topics.items()
        }

    def broker_config(self, broker: int) -> dict[str, str]:
        """Return all settings of a broker by name."""
        return self._config(ResourceType.BROKER, str(broker), f"the settings of broker {broker}")

    # Topics.

    def describe(self, topic: str, timeout_s: float | None = None) -> TopicDescription:
        """Return the description of the topic. Raises NotFound if it doesn't exist."""
        return answer_of(self.describe_each([topic], timeout_s), topic)

    def describe_each(self, topics: Collection[str], timeout_s: float | None = None) -> Answers[TopicDescription]:
        """Describe these topics with one request. The answer of a topic that doesn't exist is NotFound."""
        within_s = timeout_s or self.timeout_s
        return self._until_answered(topics, lambda left: self._describe_once(left, within_s), within_s)

    def _describe_once(self, topics: Collection[str], within_s: float) -> Answers[TopicDescription]:
        futures = self._client.describe_topics(TopicCollection(list(topics)), request_timeout=within_s)

        def described(topic: str) -> TopicDescription:
            found = self._result(futures[topic], topic, f"topic {topic} could not be described", within_s)
            counts = {
                one.id: ReplicaCounts(len(one.replicas), len(one.isr) if one.leader is not None else 0)
                for one in found.partitions
            }
            in_order = tuple(counts[number] for number in sorted(counts))
            replicas = min((one.all for one in in_order), default=1)
            topic_id = str(found.topic_id)
            return TopicDescription(topic, topic_id, len(in_order), replicas=replicas, replica_counts=in_order)

        return answers_of(topics, described)

    def create(
        self, topic: str, partitions: int, replication: int, config: Mapping[str, str], *, only_asks: bool = False
    ) -> bool:
        """Create the topic. Return True if this call created it, False if it exists already.

        With `only_asks`, no topic is created: the brokers answer whether they would.
        """
        order = NewTopic(topic, partitions, replication, config=dict(config))
        future = self._client.create_topics([order], request_timeout=self.timeout_s, validate_only=only_asks)[topic]
        try:
            self._result(future, topic, f"topic {topic} could not be created")
        except (Conflict, LogUnavailable) as error:
            if _code(error.__cause__) == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise
        return True

    def delete(self, topic: str) -> None:
        """Delete the topic with its records. Raises NotFound if it doesn't exist."""
        future = self._client.delete_topics([topic], request_timeout=self.timeout_s)[topic]
        self._result(future, topic, f"topic {topic} could not be deleted")

    def config(self, topic: str) -> dict[str, str]:
        """Return all settings of the topic by name."""
        return answer_of(self.config_each([topic]), topic)

    def config_each(self, topics: Iterable[str]) -> Answers[dict[str, str]]:
        """Return all settings of each of these topics, with one request."""
        resources = {topic: ConfigResource(ResourceType.TOPIC, topic) for topic in topics}
        if not resources:
            return {}  # the client raises for an empty list
        futures = self._client.describe_configs(list(resources.values()), request_timeout=self.timeout_s)
        return answers_of(
            resources,
            lambda topic: self._settings(futures[resources[topic]], topic, f"the settings of topic {topic}"),
        )

    def change_config(self, topic: str, changes: Mapping[str, str]) -> None:
        """Set these settings of the topic; the others stay."""
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in changes.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        future = self._client.incremental_alter_configs([resource], request_timeout=self.timeout_s)[resource]
        self._result(future, topic, f"the settings of topic {topic} could not be changed")

    def do_leaders_answer(self, topic: str, partitions: Iterable[int]) -> bool:
        """Return True if the leader of each partition answers.

        A broker that hasn't read the newest metadata yet may deny that it is the leader.
        """
        try:
            latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
            answer_of(self._ask_offsets({topic: list(partitions)}, latest), topic)
        except _OffsetsUnavailable:
            return False
        except (NotFound, Conflict, LogUnavailable) as error:
            if _code(error.__cause__) in _NOT_YET_CODES:
                return False
            raise
        return True

    # Offsets, by partition.

    def starts(self, topic: str, partitions: Iterable[int], timeout_s: float | None = None) -> dict[int, int]:
        """Return the first offset of each partition."""
        return answer_of(self.starts_each({topic: list(partitions)}, timeout_s), topic)

    def starts_each(
        self, partitions: Mapping[str, Collection[int]], timeout_s: float | None = None
    ) -> Answers[dict[int, int]]:
        """Read `starts` of several topics with one request."""
        earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        return self._offsets_each(partitions, earliest, timeout_s=timeout_s)

    def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Return the offset of the first open transaction, or the offset after the last record if none is open."""
        return answer_of(self.ends_each({topic: list(partitions)}), topic)

    def ends_each(self, partitions: Mapping[str, Collection[int]]) -> Answers[dict[int, int]]:
        """Read `ends` of several topics with one request."""
        return self._offsets_each(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def ends_with_open(self, topic: str, partitions: Iterable[int], timeout_s: float | None = None) -> dict[int, int]:
        """Return the offset after the last record, including records of open transactions."""
        return answer_of(self.ends_with_open_each({topic: list(partitions)}, timeout_s), topic)

    def ends_with_open_each(
        self, partitions: Mapping[str, Collection[int]], timeout_s: float | None = None
    ) -> Answers[dict[int, int]]:
        """Read `ends_with_open` of several topics with one request."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        return self._offsets_each(partitions, latest, IsolationLevel.READ_UNCOMMITTED, timeout_s)

    def newest_log_times(self, topic: str, partitions: Iterable[int], timeout_s: float | None = None) -> dict[int, int]:
        """Return the latest log time of a record in ms, including open transactions. 0 for an empty partition."""
        newest = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
        listed = self._listed({topic: list(partitions)}, newest, IsolationLevel.READ_UNCOMMITTED, timeout_s)
        return {partition: max(0, int(one.timestamp)) for partition, one in answer_of(listed, topic).items()}

    def offsets_at(self, topic: str, partitions: Iterable[int], log_time_ms: int) -> dict[int, int]:
        """Return the first offset whose log time is at or after `log_time_ms`. -1 if there is no such record."""
        spec = OffsetSpec.for_timestamp(log_time_ms)
        return answer_of(self._offsets_each({topic: list(partitions)}, spec), topic)

    def _offsets_each(
        self,
        partitions: Mapping[str, Collection[int]],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
        timeout_s: float | None = None,
    ) -> Answers[dict[int, int]]:
        listed = self._listed(partitions, spec, isolation, timeout_s)
        return answers_of(listed, lambda topic: {at: int(one.offset) for at, one in answer_of(listed, topic).items()})

    def _listed(
        self,
        partitions: Mapping[str, Collection[int]],
        spec: OffsetSpec,
        isolation: IsolationLevel,
        timeout_s: float | None = None,
    ) -> Answers[dict[int, Any]]:
        within_s = timeout_s or self.timeout_s

        def ask(left: Collection[str]) -> Answers[dict[int, Any]]:
            found = self._ask_offsets({topic: partitions[topic] for topic in left}, spec, isolation, within_s)
            if unknown := [topic for topic, answer in found.items() if _may_be_unknown(answer)]:
                described = self._describe_once(unknown, within_s)
                found |= {topic: self._explain_unknown(topic, described[topic], found[topic]) for topic in unknown}
            return found

        return self._until_answered(partitions.keys(), ask, within_s)

    def _explain_unknown(self, topic: str, described: object, answer: object) -> StrandlineError:
        """Return NotFound only if there is no such topic: a broker may not know a new partition, or its leader, yet."""
        if isinstance(described, StrandlineError):
            return described
        if isinstance(answer, LogUnavailable):
            return answer
        assert isinstance(answer, NotFound)
        error = LogUnavailable(
            f"the offsets of topic {topic} could not be read: a broker does not know all its partitions yet"
        )
        error.__cause__ = answer
        return error

    def _until_answered(
        self, topics: Collection[str], ask: Callable[[Collection[str]], Answers[T]], timeout_s: float
    ) -> Answers[T]:
        """Repeat the request until each topic has an answer or a permanent error, or the patience has passed.

        Each time, a new client asks. After a restart of a broker, the metadata of the previous client is stale, and
        every answer is an error.
        """
        deadline = time.monotonic() + (timeout_s if self._patience_s is None else min(self._patience_s, timeout_s))
        if self._is_stale and time.monotonic() > self._connected_s + _CONNECT_AGAIN_S:
            self._client = self._connect()
        found: Answers[T] = {}
        left: Collection[str] = topics
        while left:
            found |= ask(left)
            left = [topic for topic in left if isinstance(found[topic], LogUnavailable)]
            if left and time.monotonic() > deadline:
                self._is_stale = True
                break
            if left:
                time.sleep(_ASK_AGAIN_S)
                self._client = self._connect()
        return found

    def _ask_offsets(
        self,
        partitions: Mapping[str, Collection[int]],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
        timeout_s: float | None = None,
    ) -> Answers[dict[int, Any]]:
        within_s = timeout_s or self.timeout_s
        requested = {TopicPartition(topic, number): spec for topic, numbers in partitions.items() for number in numbers}
        futures: dict[str, dict[int, Future[Any]]] = {topic: {} for topic in partitions}
        if requested:
            listed = self._client.list_offsets(requested, isolation_level=isolation, request_timeout=within_s)
            for partition_key, future in listed.items():
                futures[partition_key.topic][partition_key.partition] = future

        def listed_of(topic: str) -> dict[int, Any]:
            what = f"the offsets of topic {topic} could not be read"
            answers = {number: self._result(one, topic, what, within_s) for number, one in futures[topic].items()}
            # If a broker's answer was lost or too late, librdkafka reports no error and a meaningless offset.
            if unanswered := sorted(number for number, answer in answers.items() if answer.offset == OFFSET_INVALID):
                raise _OffsetsUnavailable(
                    f"{what}: no answer for partitions {unanswered} (Kafka at {self.bootstrap}); try again later"
                )
            return answers

        return answers_of(futures, listed_of)

    def _connect(self) -> AdminClient:
        # Failures are raised as exceptions; librdkafka's own lines on stderr would only repeat them.
        timeout_ms = min(max(int(self.timeout_s * 1_000), _SOCKET_TIMEOUT_MS_MIN), _SOCKET_TIMEOUT_MS_MAX)
        own = {"socket.timeout.ms": timeout_ms, "log_level": 0, "error_cb": self._refusals}
        self._connected_s, self._is_stale = time.monotonic(), False
        return self._make_client(librdkafka(self.bootstrap, own))

    def _config(self, kind: ResourceType, name: str, what: str) -> dict[str, str]:
        resource = ConfigResource(kind, name)
        futures = self._client.describe_configs([resource], request_timeout=self.timeout_s)
        return self._settings(futures[resource], name, what)

    def _settings(self, future: Future[Any], name: str, what: str) -> dict[str, str]:
        entries = self._result(future, name, f"{what} could not be read")
        return {setting: str(entry.value) for setting, entry in entries.items()}

    def _result(self, future: Future[T], topic: str, what: str, timeout_s: float | None = None) -> T:
        try:
            return future.result((timeout_s or self.timeout_s) + _GRACE_S)
        except (KafkaException, TimeoutError) as error:
            if _code(error) == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise NotFound(
                    f"Kafka at {self.bootstrap} has no topic {topic}: it was deleted, or its stream was never applied. "
                    "strandline apply of the stream's document creates it, or says what to do"
                ) from error
            raise self._explain(what, error) from error

    def _explain(self, what: str, error: Exception) -> LogUnavailable | Conflict:
        code = _code(error)
        reason = error.args[0].str() if isinstance(error, KafkaException) else "no answer in time"
        if code is None or code < 0:
            # reports a refused login or certificate to `error_cb`; the error of the call doesn't contain it
            self._client.poll(0)
            reason += self._refusals.text()
        if self._changes_topics and code is not None and code >= 0 and code not in _TRANSIENT_CODES:
            return Conflict(f"{what}: Kafka at {self.bootstrap} refused it ({reason})")
        return LogUnavailable(f"{what}: {reason} (Kafka at {self.bootstrap}); try again when Kafka answers")


def _code(error: BaseException | None) -> int | None:
    return int(error.args[0].code()) if isinstance(error, KafkaException) else None


def _may_be_unknown(answer: object) -> bool:
    """Return True if the brokers may not know the topic. librdkafka reports no leaders if it knows none of all topics."""
    return isinstance(answer, NotFound) or (
        isinstance(answer, LogUnavailable) and _code(answer.__cause__) == KafkaError._NOENT
    )
