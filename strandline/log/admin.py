"""The only way to Kafka's admin: asks the brokers, waits no longer than a timeout, and turns each failure into our error.

* NotFound          no such topic
* LogUnavailable    no answer, or an answer that passes
* Conflict          the brokers refused; only where the caller changes topics, for one who only reads every refusal passes
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
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

from strandline.core.errors import Conflict, LogUnavailable, NotFound
from strandline.log.kafka_connection import Refusals, librdkafka

_ASK_AGAIN_S = 0.2
_GRACE_S = 1.0
"""The client's own timeout should end a request: its error has a reason."""
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
    """A setting with which a topic can lose confirmed records."""

    kind: HazardKind
    sentence: str
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
    """A topic as the brokers have it. `topic_id` tells a topic from a later one of the same name."""

    name: str
    topic_id: str
    partitions: int
    has_senders_times: bool = False
    """Whether the log time of its records is what their producers say, as far as this was asked for."""
    replicas: int = field(default=1, compare=False)
    """Number of replicas of the partition that has the fewest."""
    hazards: tuple[Hazard, ...] = field(default=(), compare=False)
    """Settings that can lose confirmed records. Empty if the settings of the topic weren't read."""
    replica_counts: tuple[ReplicaCounts, ...] = field(default=(), compare=False)
    """Replicas of each partition, if the brokers described the topic."""


class _NotTold(LogUnavailable):
    """The answer to a question for offsets was lost or came too late."""


class KafkaAdmin:
    """One connection to the brokers' admin interface; blocking, safe for several threads."""

    def __init__(
        self,
        bootstrap: str,
        *,
        timeout_s: float,
        changes_topics: bool = False,
        make_client: Callable[[dict[str, Any]], AdminClient] = AdminClient,
    ) -> None:
        """With `changes_topics` a refusal is final and raises Conflict; else it raises LogUnavailable as everything does."""
        self.bootstrap = bootstrap
        self.timeout_s = timeout_s
        self._changes_topics = changes_topics
        self._make_client = make_client
        self._refusals = Refusals()
        self._client = self._connect()

    def check(self, timeout_s: float | None = None) -> None:
        """Return if the brokers answer."""
        try:
            self._client.list_topics(timeout=timeout_s or self.timeout_s)
        except KafkaException as error:
            raise self._explain("the brokers could not be asked", error) from error

    def check_writable(self) -> None:
        """Return if each partition has a leader, and as many replicas in step as a topic of Strandline's needs."""
        try:
            topics = self._client.list_topics(timeout=self.timeout_s).topics.values()
        except KafkaException as error:
            raise self._explain("the brokers could not be asked", error) from error
        for topic in topics:
            for number, partition in topic.partitions.items():
                if partition.leader < 0 or len(partition.isrs) < max(1, len(partition.replicas) - 1):
                    raise LogUnavailable(f"partition {number} of topic {topic.topic} can't be written to at present")

    def brokers(self) -> list[int]:
        """The ids of the brokers that are up."""
        try:
            return sorted(self._client.list_topics(timeout=self.timeout_s).brokers)
        except KafkaException as error:
            raise self._explain("the brokers could not be asked", error) from error

    def replicas(self) -> dict[str, int]:
        """Return all topics. The value is the number of replicas of the partition that has the fewest."""
        try:
            topics = self._client.list_topics(timeout=self.timeout_s).topics
        except KafkaException as error:
            raise self._explain("the brokers could not be asked", error) from error
        return {
            name: min((len(one.replicas) for one in topic.partitions.values()), default=1)
            for name, topic in topics.items()
        }

    def broker_config(self, broker: int) -> dict[str, str]:
        """Return all settings of a broker by name."""
        return self._config(ResourceType.BROKER, str(broker), f"the settings of broker {broker}")

    # Topics.

    def describe(self, topic: str, timeout_s: float | None = None) -> TopicDescription:
        """Raises NotFound when there is no such topic."""
        within_s = timeout_s or self.timeout_s

        def ask() -> TopicDescription:
            futures = self._client.describe_topics(TopicCollection([topic]), request_timeout=within_s)
            described = self._result(futures[topic], topic, f"topic {topic} could not be described", within_s)
            counts = {
                one.id: ReplicaCounts(len(one.replicas), len(one.isr) if one.leader is not None else 0)
                for one in described.partitions
            }
            in_order = tuple(counts[number] for number in sorted(counts))
            replicas = min((one.all for one in in_order), default=1)
            topic_id = str(described.topic_id)
            return TopicDescription(topic, topic_id, len(in_order), replicas=replicas, replica_counts=in_order)

        return self._until_answered(ask, within_s)

    def create(
        self, topic: str, partitions: int, replication: int, config: Mapping[str, str], *, only_asks: bool = False
    ) -> bool:
        """Return whether this call created the topic; False when it is there already. With `only_asks` none is created, and the
        brokers say whether they would."""
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
        """Delete the topic with all that it holds. Raises NotFound when there is none."""
        future = self._client.delete_topics([topic], request_timeout=self.timeout_s)[topic]
        self._result(future, topic, f"topic {topic} could not be deleted")

    def config(self, topic: str) -> dict[str, str]:
        """Return all settings of the topic by name."""
        return self._config(ResourceType.TOPIC, topic, f"the settings of topic {topic}")

    def change_config(self, topic: str, changes: Mapping[str, str]) -> None:
        """Set these settings of the topic; the others stay."""
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in changes.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        future = self._client.incremental_alter_configs([resource], request_timeout=self.timeout_s)[resource]
        self._result(future, topic, f"the settings of topic {topic} could not be changed")

    def do_leaders_answer(self, topic: str, partitions: Iterable[int]) -> bool:
        """Return whether the leader of each partition answers. Being named the leader is not enough: a broker that has not
        read the metadata so far yet says that it isn't."""
        try:
            self._ask_offsets(topic, partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        except _NotTold:
            return False
        except (NotFound, Conflict, LogUnavailable) as error:
            if _code(error.__cause__) in _NOT_YET_CODES:
                return False
            raise
        return True

    # Offsets, by partition.

    def starts(self, topic: str, partitions: Iterable[int], timeout_s: float | None = None) -> dict[int, int]:
        """The first offset held."""
        earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        return self._offsets(topic, partitions, earliest, timeout_s=timeout_s)

    def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """The offset of the first open transaction, or after the last record when none is open."""
        return self._offsets(topic, partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def ends_with_open(self, topic: str, partitions: Iterable[int], timeout_s: float | None = None) -> dict[int, int]:
        """The offset after the last record, whether its transaction is over or not."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        return self._offsets(topic, partitions, latest, IsolationLevel.READ_UNCOMMITTED, timeout_s)

    def newest_log_times(self, topic: str, partitions: Iterable[int], timeout_s: float | None = None) -> dict[int, int]:
        """The latest log time of a record (ms), open transactions included; 0 where the partition holds none."""
        newest = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
        found = self._listed(topic, partitions, newest, IsolationLevel.READ_UNCOMMITTED, timeout_s)
        return {partition: max(0, int(one.timestamp)) for partition, one in found.items()}

    def offsets_at(self, topic: str, partitions: Iterable[int], log_time_ms: int) -> dict[int, int]:
        """The first offset whose log time is at or after `log_time_ms`; -1 where no record is that young."""
        return self._offsets(topic, partitions, OffsetSpec.for_timestamp(log_time_ms))

    def _offsets(
        self,
        topic: str,
        partitions: Iterable[int],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
        timeout_s: float | None = None,
    ) -> dict[int, int]:
        return {at: int(one.offset) for at, one in self._listed(topic, partitions, spec, isolation, timeout_s).items()}

    def _listed(
        self,
        topic: str,
        partitions: Iterable[int],
        spec: OffsetSpec,
        isolation: IsolationLevel,
        timeout_s: float | None = None,
    ) -> dict[int, Any]:
        partitions, within_s = list(partitions), timeout_s or self.timeout_s

        def ask() -> dict[int, Any]:
            try:
                return self._ask_offsets(topic, partitions, spec, isolation, within_s)
            except NotFound as error:
                self.describe(topic, within_s)  # raises NotFound when it is so
                raise LogUnavailable(
                    f"the offsets of topic {topic} could not be read: a broker does not know all its partitions yet"
                ) from error

        return self._until_answered(ask, within_s)

    def _until_answered(self, ask: Callable[[], T], timeout_s: float) -> T:
        """Ask until there is an answer, for as long as the timeout, each time by a new client: after a restart of a broker
        the old one's metadata is stale, and every answer an error."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return ask()
            except LogUnavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_ASK_AGAIN_S)
                self._client = self._connect()

    def _ask_offsets(
        self,
        topic: str,
        partitions: Iterable[int],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
        timeout_s: float | None = None,
    ) -> dict[int, Any]:
        within_s = timeout_s or self.timeout_s
        asked = {TopicPartition(topic, partition): spec for partition in partitions}
        futures = self._client.list_offsets(asked, isolation_level=isolation, request_timeout=within_s)
        what = f"the offsets of topic {topic} could not be read"
        answers = {place.partition: self._result(future, topic, what, within_s) for place, future in futures.items()}
        # Where a broker's answer was lost or came too late, librdkafka reports no error and an offset of no meaning.
        if untold := sorted(number for number, answer in answers.items() if answer.offset == OFFSET_INVALID):
            raise _NotTold(f"{what}: no answer for partitions {untold} (Kafka at {self.bootstrap}); try again later")
        return answers

    def _connect(self) -> AdminClient:
        # What goes wrong comes back as an exception; librdkafka's own lines on stderr would only repeat it.
        timeout_ms = int(self.timeout_s * 1_000)
        own = {"socket.timeout.ms": timeout_ms, "log_level": 0, "error_cb": self._refusals}
        return self._make_client(librdkafka(self.bootstrap, own))

    def _config(self, kind: ResourceType, name: str, what: str) -> dict[str, str]:
        resource = ConfigResource(kind, name)
        future = self._client.describe_configs([resource], request_timeout=self.timeout_s)[resource]
        entries = self._result(future, name, f"{what} could not be read")
        return {setting: str(entry.value) for setting, entry in entries.items()}

    def _result(self, future: Future[T], topic: str, what: str, timeout_s: float | None = None) -> T:
        try:
            return future.result((timeout_s or self.timeout_s) + _GRACE_S)
        except (KafkaException, TimeoutError) as error:
            if _code(error) == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise NotFound(
                    f"Kafka at {self.bootstrap} has no topic {topic}; apply its stream document again"
                ) from error
            raise self._explain(what, error) from error

    def _explain(self, what: str, error: Exception) -> LogUnavailable | Conflict:
        code = _code(error)
        reason = error.args[0].str() if isinstance(error, KafkaException) else "no answer in time"
        if code is None or code < 0:
            self._client.poll(0)  # hears of a refused login or certificate, of which the call itself says nothing
            reason += self._refusals.text()
        if self._changes_topics and code is not None and code >= 0 and code not in _TRANSIENT_CODES:
            return Conflict(f"{what}: Kafka at {self.bootstrap} refused it ({reason})")
        return LogUnavailable(f"{what}: {reason} (Kafka at {self.bootstrap}); try again when Kafka answers")


def _code(error: BaseException | None) -> int | None:
    return int(error.args[0].code()) if isinstance(error, KafkaException) else None
