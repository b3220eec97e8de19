"""What Kafka holds now: the offsets and retention of a stream's topic, and the dead letters of a job. Reads only."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs forget to export what they import
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from strandline.core.errors import LogUnavailable, NotFound
from strandline.core.record import dead_letter_topic

_DEAD_LETTER_PARTITION = 0
_POLL_S = 0.2


@dataclass(frozen=True)
class LogRange:
    """What a topic holds: for each partition the first offset still there and the offset after the last."""

    offset_first: dict[int, int]
    offset_next: dict[int, int]


@dataclass(frozen=True)
class DeadLetter:
    """A record (or result) that could not be used: where it came from and why (headers), and the sender's bytes."""

    offset: int
    """Its place in the dead-letter stream."""
    log_time_ms: int
    headers: dict[str, str]
    value: bytes


class LogFacts:
    """Reads Kafka for status answers; blocking, safe for several threads.

    Every method raises LogUnavailable when the brokers don't answer within `timeout_s`.
    """

    def __init__(self, kafka_bootstrap: str, *, timeout_s: float = 5.0) -> None:
        self._bootstrap = kafka_bootstrap
        self._timeout_s = timeout_s
        self._admin = AdminClient({"bootstrap.servers": kafka_bootstrap, "socket.timeout.ms": int(timeout_s * 1_000)})

    def check(self) -> None:
        """Return if the brokers answer."""
        try:
            self._admin.list_topics(timeout=self._timeout_s)
        except KafkaException as error:
            raise self._unavailable("the brokers could not be asked", error) from error

    def range(self, topic: str) -> LogRange:
        """What the topic holds. Raises NotFound when there is no such topic."""
        try:
            metadata = self._admin.list_topics(topic, timeout=self._timeout_s).topics[topic]
        except KafkaException as error:
            raise self._unavailable(f"topic {topic} could not be read", error) from error
        if metadata.error is not None or not metadata.partitions:
            raise NotFound(f"Kafka at {self._bootstrap} has no topic {topic}; apply its stream document again")
        partitions = sorted(metadata.partitions)
        return LogRange(
            self._offsets(topic, partitions, OffsetSpec.earliest()),  # type: ignore[no-untyped-call]
            self._offsets(topic, partitions, OffsetSpec.latest()),  # type: ignore[no-untyped-call]
        )

    def retention_ms(self, topic: str) -> int:
        """How long the topic keeps its records; -1 is for ever."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        futures = self._admin.describe_configs([resource], request_timeout=self._timeout_s)
        entries = self._result(futures[resource], f"the settings of topic {topic} could not be read")
        return int(entries["retention.ms"].value)

    def dead_letters(self, job: str, after: int, limit: int) -> list[DeadLetter]:
        """Up to `limit` dead letters with an offset above `after`, the oldest first; empty when there are none."""
        topic = dead_letter_topic(job)
        try:
            held = self.range(topic)
        except NotFound:
            return []
        first = max(after + 1, held.offset_first[_DEAD_LETTER_PARTITION])
        return self._read(topic, first, held.offset_next[_DEAD_LETTER_PARTITION], limit)

    def _read(self, topic: str, first: int, end: int, limit: int) -> list[DeadLetter]:
        if first >= end:
            return []
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "strandline-control",  # demanded by the client; nothing is ever committed to it
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
            }
        )
        found: list[DeadLetter] = []
        deadline = time.monotonic() + self._timeout_s
        try:
            consumer.assign([TopicPartition(topic, _DEAD_LETTER_PARTITION, first)])
            while len(found) < limit:
                message = consumer.poll(_POLL_S)
                if message is None:
                    if time.monotonic() > deadline:
                        raise LogUnavailable(
                            f"{topic} could not be read to its end in time; try again when Kafka answers"
                        )
                    continue
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    break
                if error is not None:
                    raise self._unavailable(f"topic {topic} could not be read", KafkaException(error))
                found.append(_dead_letter(message))
                if found[-1].offset + 1 >= end:
                    break
        finally:
            consumer.close()
        return found

    def _offsets(self, topic: str, partitions: list[int], spec: OffsetSpec) -> dict[int, int]:
        asked = {TopicPartition(topic, partition): spec for partition in partitions}
        futures = self._admin.list_offsets(asked, request_timeout=self._timeout_s)
        return {
            place.partition: int(self._result(future, f"the offsets of topic {topic} could not be read").offset)
            for place, future in futures.items()
        }

    def _result(self, future: Future[Any], what: str) -> Any:
        try:
            return future.result(self._timeout_s)
        except (KafkaException, TimeoutError) as error:
            raise self._unavailable(what, error) from error

    def _unavailable(self, what: str, error: Exception) -> LogUnavailable:
        reason = error.args[0].str() if isinstance(error, KafkaException) else "no answer in time"
        return LogUnavailable(f"{what}: {reason} (Kafka at {self._bootstrap}); try again when Kafka answers")


def lag_records(held: LogRange, position: Mapping[int, int]) -> int:
    """Records at or after `position` (offset_next per partition); a partition that it lacks counts from the first."""
    return sum(
        max(0, offset_next - max(position.get(partition, 0), held.offset_first[partition]))
        for partition, offset_next in held.offset_next.items()
    )


def _dead_letter(message: Message) -> DeadLetter:
    headers = {str(name): _text(value) for name, value in list(message.headers() or [])}
    return DeadLetter(message.offset() or 0, message.timestamp()[1], headers, _bytes(message.value()))


def _text(value: str | bytes | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value or ""


def _bytes(value: str | bytes | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""
