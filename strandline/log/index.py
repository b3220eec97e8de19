"""What is where in the log: partitions, starts, ends, and the offset at which a log time falls."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from strandline.core.errors import LogUnavailable, NotFound

_ASK_AGAIN_S = 0.2
_SETTLED_TIMEOUT_S = 60.0
_SETTLED_POLL_S = 0.01


class LogIndex:
    """What is where in the log: partitions, starts, ends, offsets by log time. Asks the brokers at each call."""

    def __init__(self, bootstrap: str, timeout_s: float = 15.0) -> None:
        self._bootstrap = bootstrap
        self._timeout_s = timeout_s
        self._admin = self._connect()
        self._partitions: dict[str, list[int]] = {}

    def topic_id(self, stream: str) -> str:
        """The topic's id: another one under the same name means another life of the topic."""
        futures = self._admin.describe_topics(TopicCollection([stream]), request_timeout=self._timeout_s)
        return str(self._result(futures[stream], stream).topic_id)

    def partitions(self, stream: str) -> list[int]:
        """The partition numbers; remembered, so growth is seen by a new run."""
        if stream not in self._partitions:
            futures = self._admin.describe_topics(TopicCollection([stream]), request_timeout=self._timeout_s)
            self._partitions[stream] = sorted(p.id for p in self._result(futures[stream], stream).partitions)
        return self._partitions[stream]

    def starts(self, stream: str) -> dict[int, int]:
        """Per partition the first offset held."""
        return self._offsets(stream, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def ends(self, stream: str) -> dict[int, int]:
        """Per partition the offset up to which every record is settled: from the first open transaction on, nothing is, be
        it committed or not."""
        return self._offsets(stream, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def ends_with_open(self, stream: str) -> dict[int, int]:
        """Per partition the offset after the last record, settled or not. Reading up to it waits until all before it is."""
        return self._offsets(stream, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)  # type: ignore[no-untyped-call]

    def settled_ends(self, stream: str) -> dict[int, int]:
        """As `ends`, once all that is in the stream now is settled. Kafka says that a transaction is committed before each
        partition knows it. Raises LogUnavailable when somebody's transaction stays open."""
        written = self.ends_with_open(stream)
        deadline = time.monotonic() + _SETTLED_TIMEOUT_S
        while True:
            ends = self.ends(stream)
            if all(ends[partition] >= offset for partition, offset in written.items()):
                return ends
            if time.monotonic() > deadline:
                raise LogUnavailable(
                    f"stream {stream} holds a transaction that is still open after {_SETTLED_TIMEOUT_S:g} s, so results behind "
                    "it can't be read; find its producer, or have Kafka abort it"
                )
            time.sleep(_SETTLED_POLL_S)

    def offsets_at(self, stream: str, log_time_ms: int, ends: Mapping[int, int]) -> dict[int, int]:
        """Per partition the first offset whose log time is at or after `log_time_ms`, but at most `ends`."""
        found = self._offsets(stream, OffsetSpec.for_timestamp(log_time_ms))
        # The broker answers -1 where no record is that young: then the cut is the end.
        return {p: min(found[p], end) if found.get(p, -1) >= 0 else end for p, end in ends.items()}

    def _offsets(
        self, stream: str, spec: OffsetSpec, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> dict[int, int]:
        """Ask until there is an answer, for as long as the timeout. After a restart of a broker the client's memory of it is
        stale, and every answer an error, until it is made anew."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            wanted = {TopicPartition(stream, partition): spec for partition in self.partitions(stream)}
            futures = self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=self._timeout_s)
            try:
                return {place.partition: int(self._result(future, stream).offset) for place, future in futures.items()}
            except LogUnavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_ASK_AGAIN_S)
                self._admin = self._connect()

    def _connect(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 3})

    def _result(self, future, stream: str):  # type: ignore[no-untyped-def]
        try:
            return future.result(timeout=self._timeout_s + 5)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise NotFound(f"Kafka at {self._bootstrap} has no topic {stream}; apply the stream first") from error
            raise LogUnavailable(
                f"Kafka at {self._bootstrap} did not say what stream {stream} holds: {error.args[0].str()}"
            ) from error
        except TimeoutError as error:
            raise LogUnavailable(f"Kafka at {self._bootstrap} did not answer within {self._timeout_s:g} s") from error
