"""Transactions: they write each dead letter and each result into Kafka once.

A *slot* is one transactional id, under which one bucket writes one kind of records to one topic. Initialising the id
fences its previous holder and aborts its open transaction. Two rules prevent duplicate records:

- After fencing a slot, an attempt first checks that its run is still the current one. Then it reads the topic from the
  last checkpoint to its end, and leaves out existing records.
- A new run fences every slot of earlier runs (`processing.emission.fencing`) before its first task starts. An older run
  that fences a slot later stops at the check, because it is no longer the current run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from confluent_kafka import KafkaException, Producer

from strandline.core.errors import Divergence, LogUnavailable, RecordTooLarge
from strandline.core.failpoints import failpoint
from strandline.log.index import LogIndex
from strandline.log.kafka_connection import Refusals, librdkafka
from strandline.log.messages import LogMessage, LogReader
from strandline.log.reader import OffsetRange
from strandline.log.record_size import is_too_large, record_batch_bytes_max

_TIMEOUT_S = 60.0
_TRANSACTION_TIMEOUT_S = 15
"""Seconds after which Kafka aborts an open transaction. It checks every 10 s, so it aborts before LogReader stops
waiting."""
_FENCED_AT_ONCE = 16

Headers = Sequence[tuple[str, str | bytes | None]]


class Entry(NamedTuple):
    """A record that must be in its topic once."""

    identity: str
    value: bytes | None
    key: bytes | None
    headers: Headers
    partition: int | None = None
    """Partition. None if it is selected by the key."""

    @property
    def size_bytes(self) -> int:
        """Size of its value, its key, and its headers."""
        parts = [self.value, self.key, *(part for header in self.headers for part in header)]
        return sum(len(part.encode() if isinstance(part, str) else part) for part in parts if part is not None)


@dataclass(frozen=True)
class SlotConfig:
    """Configuration that all slots of one topic share."""

    bootstrap: str
    topic: str
    epoch: int
    """The epoch of the run."""
    require_present: Callable[[int], None]
    """Raises Fenced unless the run of this epoch is still the job's current run."""
    identity_of: Callable[[LogMessage], str]
    failpoints: str
    """Prefix of the failpoints' names."""
    record_bytes_max: int
    """Maximum size of a record that gateways accept; the producer's limit is derived from it."""
    settings: Mapping[str, str | int] = field(default_factory=dict)
    """Other settings of the producer."""
    differences: Callable[[bytes, bytes], list[str]] | None = None
    """Returns a message for each difference between an existing value and a new value with the same identity. None if
    the identity determines the value."""
    must_reach: bool = False
    """True if the topic must reach the offsets of the last checkpoint. If it doesn't, records of committed slices are
    lost, and nothing is written. False if the topic may have been recreated, for example to clear dead letters."""


class TransactionSlot:
    """A slot in one attempt of a task. The attempt fences the slot when it has records to write."""

    def __init__(self, config: SlotConfig, transactional_id: str, written_before: Mapping[int, int]) -> None:
        """`written_before`: end of the topic at the last checkpoint, partition -> offset."""
        self._config = config
        self._id = transactional_id
        self._written_before = written_before
        self._producer: Producer | None = None
        self._there: dict[str, tuple[int, int]] = {}

    def write(self, entries: Sequence[Entry]) -> int:
        """Write the missing entries in one transaction. Return how many were missing.

        1. The first time: fence the slot, check that the run is still the current one, and read the existing records.
           From then on another attempt can write under the slot only after fencing this one. The check is also made
           before the fencing, so that a run that has ended does not fence the current one.
        2. Compare existing records with the entries, if the config has `differences`.
        3. Leave out existing records; write and commit the others.

        Raises LogUnavailable and Fenced. Raises Divergence if another value exists; then nothing is written. Raises
        RecordTooLarge if the topic refuses a record, or several that were sent together, as too large. Then nothing is
        written, and another call may be made with fewer entries.
        """
        config = self._config
        if self._producer is None:
            config.require_present(config.epoch)
            limit = {"message.max.bytes": record_batch_bytes_max(config.record_bytes_max)}
            producer = fence_producer(config.bootstrap, self._id, config.topic, {**config.settings, **limit})
            failpoint(f"{config.failpoints}.taken_over")
            config.require_present(config.epoch)
            self._there = self._read_there()
            self._producer = producer
        self._require_equal({entry.identity: entry for entry in entries if entry.identity in self._there})
        missing = [entry for entry in entries if entry.identity not in self._there]
        if missing:
            self._write_transaction(self._producer, missing)
        return len(missing)

    def there(self) -> frozenset[str]:
        """Return the identities that the topic contained, since `written_before`, when this attempt fenced the slot.

        A first call fences the slot, and raises the errors of `write`.
        """
        self.write([])
        return frozenset(self._there)

    def _read_there(self) -> dict[str, tuple[int, int]]:
        """Return the identities in the topic since the last checkpoint, each with its position (partition, offset).

        Reading to the end waits for open transactions of other slots, because records of this slot may be after them.
        If a partition ends before the last checkpoint, it is read completely; with `must_reach`, LogUnavailable is
        raised instead.
        """
        config = self._config
        index, reader = _readers(config.bootstrap)
        index.refresh(config.topic)  # an earlier attempt may have written to a partition that was just added
        starts, ends = index.starts(config.topic), index.ends_with_open(config.topic)
        there: dict[str, tuple[int, int]] = {}
        for partition, end in ends.items():
            written = self._written_before.get(partition, 0)
            if end < written and config.must_reach:
                raise LogUnavailable(
                    f"topic {config.topic}, partition {partition} ends at offset {end}, but records up to offset {written} are "
                    f"confirmed; nothing was written. The next run checks whether they are lost"
                )
            first = max(written, starts[partition]) if end >= written else starts[partition]
            for messages in reader.read(OffsetRange(config.topic, partition, first, end)):
                there.update((config.identity_of(one), (partition, one.offset() or 0)) for one in messages)
        return there

    def _require_equal(self, entries: Mapping[str, Entry]) -> None:
        """Raise Divergence unless the topic contains these existing entries with the same values.

        They are read again, which only a run that takes over a slice must do: keeping all values would use too much
        memory.
        """
        config = self._config
        if config.differences is None or not entries:
            return
        _, reader = _readers(config.bootstrap)
        positions = [self._there[identity] for identity in entries]
        diverging: list[str] = []
        for partition in sorted({partition for partition, _ in positions}):
            offsets = [offset for one, offset in positions if one == partition]
            for messages in reader.read(OffsetRange(config.topic, partition, min(offsets), max(offsets) + 1)):
                for message in messages:
                    entry = entries.get(config.identity_of(message))
                    different = config.differences(message.value() or b"", entry.value or b"") if entry else []
                    if different:
                        diverging.append(f"partition {partition}, offset {message.offset()}: {'; '.join(different)}")
        if diverging:
            raise Divergence(
                f"{len(diverging)} results differ from those in stream {config.topic}; nothing was written. First at "
                f"{diverging[0]}. Recompute the window from the log to see which is right"
            )

    def _write_transaction(self, producer: Producer, entries: Sequence[Entry]) -> None:
        config = self._config
        try:
            producer.begin_transaction()
            for entry in entries:
                _produce(producer, config.topic, entry)
            producer.flush(_TIMEOUT_S)
            failpoint(f"{config.failpoints}.before_commit")
            producer.commit_transaction(_TIMEOUT_S)
            failpoint(f"{config.failpoints}.committed")
        except KafkaException as error:
            failure = _failure(config.bootstrap, self._id, config.topic, error)
            if isinstance(failure, RecordTooLarge):
                self._producer = None  # the next call fences the slot again, which ends the open transaction
            raise failure from error


_kept_readers: dict[str, tuple[LogIndex, LogReader]] = {}
"""Readers of this process, by bootstrap servers, for all of its jobs. A slot refreshes the partitions of its topic."""


def _readers(bootstrap: str) -> tuple[LogIndex, LogReader]:
    if bootstrap not in _kept_readers:
        _kept_readers[bootstrap] = LogIndex(bootstrap), LogReader(bootstrap)
    return _kept_readers[bootstrap]


def fence_producer(
    bootstrap: str, transactional_id: str, topic: str, settings: Mapping[str, str | int] = MappingProxyType({})
) -> Producer:
    """Return a producer with this transactional id, after fencing the id's previous holder and aborting its
    transaction.

    `settings`: other settings of the producer. Raises LogUnavailable.
    """
    refusals = Refusals()
    own: dict[str, Any] = {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": _TRANSACTION_TIMEOUT_S * 1000,
        "compression.type": "lz4",
        "linger.ms": 5,
        "log_level": 3,
        # Connect to every broker immediately. Otherwise librdkafka looks for a connection every 50 ms, and one time in
        # ten it waits half a second before it requests the coordinator again.
        "enable.sparse.connections": False,
        "reconnect.backoff.max.ms": 500,  # by default it may take 10 s to detect that Kafka is back
        "error_cb": refusals,
        **settings,
    }
    producer = Producer(librdkafka(bootstrap, own))
    try:
        producer.init_transactions(_TIMEOUT_S)
    except KafkaException as error:
        # reports a refused login or certificate to `error_cb`; the error of the call doesn't contain it
        producer.poll(0)
        raise _failure(bootstrap, transactional_id, topic, error, refusals.text()) from error
    return producer


def fence_producers(bootstrap: str, slots: Sequence[tuple[str, str]]) -> None:
    """Fence the holder of each (transactional id, topic): none of them can commit after this returns.

    Raises LogUnavailable.
    """

    def fence(slot: tuple[str, str]) -> None:
        fence_producer(bootstrap, *slot)

    with ThreadPoolExecutor(min(_FENCED_AT_ONCE, max(1, len(slots)))) as pool:
        list(pool.map(fence, slots))


def _produce(producer: Producer, topic: str, entry: Entry) -> None:
    """Put one record into the open transaction, waiting while the producer's bounded queue is full."""
    while True:
        try:
            partition = -1 if entry.partition is None else entry.partition  # -1 is librdkafka's for none
            producer.produce(topic, value=entry.value, key=entry.key, headers=list(entry.headers), partition=partition)
            return
        except BufferError:
            producer.poll(0.1)


def _failure(
    bootstrap: str, transactional_id: str, topic: str, error: KafkaException, refused: str = ""
) -> LogUnavailable | RecordTooLarge:
    reason = error.args[0].str()
    if is_too_large(error.args[0]):
        return RecordTooLarge(
            f"topic {topic} in Kafka at {bootstrap} accepts no records of this size ({reason}). Apply the pipeline's document "
            f"again, which raises the topic's max.message.bytes as STRANDLINE_RECORD_BYTES_MAX requires; then start the job"
        )
    return LogUnavailable(
        f"nothing could be written to {topic} in Kafka at {bootstrap} as {transactional_id}: {reason}{refused}"
    )
