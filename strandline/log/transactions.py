"""Transactions: how dead letters and results get into Kafka, each once.

A *slot* is a place from which a run's tasks write. It has a transactional id, and who takes that over has ended whatever its
holder before left open, and lets it commit nothing more. No record is written twice, because

* whoever takes a slot over asks next whether its run is still the present one, and only then reads what the topic holds
  since the last checkpoint, to its very end, and leaves that out;
* a new run takes over every slot of the runs before it (`fencing.fence_older_runs`) before its first task starts: what an
  older run holds is lost to it, and what it takes over later it gives up again, since it is no longer the present run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType

from confluent_kafka import KafkaException, Message, Producer

from strandline.core.errors import LogUnavailable
from strandline.core.failpoints import failpoint
from strandline.log.index import LogIndex
from strandline.log.reader import LogReader, OffsetRange

_TIMEOUT_S = 60.0
_TRANSACTION_TIMEOUT_S = 15
"""Kafka ends a transaction that was left open for so long, looking every 10 s: before LogReader gives up waiting for that."""
_CONNECTED_S = 0.05
_FENCED_AT_ONCE = 16

Headers = Sequence[tuple[str, str | bytes | None]]


@dataclass(frozen=True)
class Entry:
    """A record that is to be in its topic once."""

    identity: str
    value: bytes | None
    key: bytes | None
    headers: Headers


@dataclass(frozen=True)
class SlotConfig:
    """What the slots of one stream of dead letters or results have in common."""

    bootstrap: str
    topic: str
    epoch: int
    """The run's."""
    require_present: Callable[[int], None]
    """Raises Fenced unless the run of this epoch is still the job's present one."""
    identity_of: Callable[[Message], str]
    failpoints: str
    """What the names of its failpoints begin with."""
    settings: Mapping[str, str | int] = field(default_factory=dict)
    """Of the producer, beside those that every one has."""


class TransactionSlot:
    """One attempt's hold on a slot. It takes the slot over when it has something to write."""

    def __init__(self, config: SlotConfig, transactional_id: str, written_before: Mapping[int, int]) -> None:
        """`written_before`: where the topic ended at the last checkpoint, partition -> offset."""
        self._config = config
        self._id = transactional_id
        self._written_before = written_before
        self._producer: Producer | None = None
        self._there: set[str] = set()

    def write(self, entries: Sequence[Entry]) -> int:
        """Write those that are not in the topic, in one transaction; return how many that were. Raises LogUnavailable, Fenced.

        1. At first: take the slot over, see that the run is still the present one, and read what is there. Nobody writes under
           the slot afterwards without taking it over in turn, and then this attempt commits nothing more. Asked before as well,
           a run that is over takes nothing from the present one.
        2. Leave out what is there; write and commit the rest.
        """
        config = self._config
        if self._producer is None:
            config.require_present(config.epoch)
            producer = fence_producer(config.bootstrap, self._id, config.topic, config.settings)
            failpoint(f"{config.failpoints}.taken_over")
            config.require_present(config.epoch)
            self._there = self._read_there()
            self._producer = producer
        missing = [entry for entry in entries if entry.identity not in self._there]
        if missing:
            self._write_transaction(self._producer, missing)
        return len(missing)

    def _read_there(self) -> set[str]:
        """The identities in the topic since the last checkpoint. Reading to the end waits for the transactions of other slots,
        behind which some of this one may stand."""
        config = self._config
        index, reader = _readers(config.bootstrap, config.epoch)
        starts, ends = index.starts(config.topic), index.ends_with_open(config.topic)
        there: set[str] = set()
        for partition, end in ends.items():
            first = max(self._written_before.get(partition, 0), starts[partition])
            for messages in reader.read(OffsetRange(config.topic, partition, first, end)):
                there.update(map(config.identity_of, messages))
        return there

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
            raise _unavailable(config.bootstrap, self._id, config.topic, error) from error


_kept_readers: dict[tuple[str, int], tuple[LogIndex, LogReader]] = {}
"""(bootstrap, epoch) -> what this process reads with: an index remembers the partitions that a run began with."""


def _readers(bootstrap: str, epoch: int) -> tuple[LogIndex, LogReader]:
    if (bootstrap, epoch) not in _kept_readers:
        for _, older in _kept_readers.values():
            older.close()
        _kept_readers.clear()
        _kept_readers[bootstrap, epoch] = LogIndex(bootstrap), LogReader(bootstrap)
    return _kept_readers[bootstrap, epoch]


def fence_producer(
    bootstrap: str, transactional_id: str, topic: str, settings: Mapping[str, str | int] = MappingProxyType({})
) -> Producer:
    """A producer that holds the transactional id: what its holder before left open is ended, and it commits nothing more.

    `settings` are the producer's beside those that every one has. Raises LogUnavailable.
    """
    try:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": _TRANSACTION_TIMEOUT_S * 1000,
                "compression.type": "lz4",
                "linger.ms": 5,
                "log_level": 3,
                **settings,
            }
        )
        # Asked in its first moments, librdkafka often looks for the coordinator again only after half a second.
        producer.list_topics(topic, timeout=_TIMEOUT_S)
        producer.poll(_CONNECTED_S)
        producer.init_transactions(_TIMEOUT_S)
    except KafkaException as error:
        raise _unavailable(bootstrap, transactional_id, topic, error) from error
    return producer


def fence_producers(bootstrap: str, slots: Sequence[tuple[str, str]]) -> None:
    """Take over each (transactional id, topic) and let it go: no older holder commits anything after this returns.

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
            producer.produce(topic, value=entry.value, key=entry.key, headers=list(entry.headers))
            return
        except BufferError:
            producer.poll(0.1)


def _unavailable(bootstrap: str, transactional_id: str, topic: str, error: KafkaException) -> LogUnavailable:
    return LogUnavailable(
        f"nothing could be written to {topic} in Kafka at {bootstrap} as {transactional_id}: {error.args[0].str()}"
    )
