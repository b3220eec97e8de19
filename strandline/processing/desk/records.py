"""The records of a local run, and the choice of a partition for each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from strandline.core.errors import PermanentError
from strandline.core.record_headers import SOURCE_MQTT
from strandline.core.streams.stream import StreamSpec
from strandline.log.record_key import key_finder

RECORDS_AT_ONCE = 8_192


@dataclass(frozen=True)
class DeskRecords:
    """Records in log order."""

    values: Sequence[bytes | None]
    """Content of each record. None is a tombstone."""
    partitions: Sequence[int]
    """Partition of each record."""
    log_times_ms: Sequence[int | None] | None = None
    """Log time of each record. None if the input has none."""
    sources: Sequence[bytes | None] = ()
    """Header of each record from which fields are read (a query, an MQTT topic). Empty if no record has one."""
    offsets: Sequence[int] | None = None
    """Offset of each record in its partition. None if records are numbered as they arrive."""
    stream: str | None = None
    """Stream of the records. None for the first stream that the pipeline reads."""

    def __len__(self) -> int:
        return len(self.values)


def source_of_topic(stream: StreamSpec, topic: str) -> bytes:
    """Return the header of a record of the stream that was sent to this MQTT topic. Raises PermanentError if the stream doesn't
    subscribe to the topic."""
    from strandline.ingest.mqtt.topics import TopicRoutes  # only needed for records with topics

    if TopicRoutes([stream]).find(topic.encode()) is None:
        filters = stream.mqtt.topics if stream.mqtt else []
        way = "correct the topic or mqtt.topics" if filters else f"set its topics: mqtt: {{topics: [{topic}]}}"
        raise PermanentError(
            f"stream {stream.stream} gets no record of topic '{topic}', because it subscribes to "
            f"{', '.join(filters) or 'no topic'}; {way}"
        )
    return SOURCE_MQTT + topic.encode()


class Partitioner:
    """Chooses partitions like a gateway: equal keys have one partition, and records without a key alternate."""

    def __init__(self, stream: StreamSpec, partitions: int) -> None:
        self._partitions = partitions
        self._stream = stream
        self._key_of: Callable[[bytes], bytes | None] = lambda _: None
        if stream.key is not None and stream.form.is_json:
            self._key_of = key_finder(stream.key)
        self._without_key = 0

    def of_each(
        self, values: Sequence[bytes | None], topic: str | None = None, headers: Mapping[str, str] | None = None
    ) -> Sequence[int]:
        """Return the partition of each record. `topic`, `headers`: MQTT topic, and headers of the request, of all records."""
        if self._partitions == 1:
            return [0] * len(values)
        return [self._of(value, topic, headers or {}) for value in values]

    def _of(self, value: bytes | None, topic: str | None, headers: Mapping[str, str]) -> int:
        """Return the partition of a record. Its key is a level of the topic if the stream's document says so, otherwise a field
        of the record, or otherwise a header."""
        mqtt, http, field = self._stream.mqtt, self._stream.http, self._stream.key or ""
        if topic is not None and mqtt is not None and field in mqtt.fields:
            levels = dict(enumerate(topic.split("/")))
            text = levels.get(mqtt.fields[field])
            key = None if text is None else text.encode()
        else:
            key = None if value is None else self._key_of(value)
            wanted = "" if http is None else http.headers.get(field, "").lower()
            beside = {name.lower(): text for name, text in headers.items()}.get(wanted)
            key = key or (beside.encode() if beside else None)
        if key is not None:
            return partition_of_key(key, self._partitions)
        self._without_key += 1
        return (self._without_key - 1) % self._partitions


@lru_cache(maxsize=100_000)
def partition_of_key(key: bytes, partitions: int) -> int:
    """Return the partition that Kafka's clients choose for a key: its Murmur2 hash (seed 0x9747b28c), without the sign, modulo
    the number of partitions."""
    mask, factor = 0xFFFFFFFF, 0x5BD1E995
    mixed = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * factor & mask
        word = (word ^ word >> 24) * factor & mask
        mixed = mixed * factor & mask ^ word
    if rest := key[whole:]:
        mixed = (mixed ^ int.from_bytes(rest, "little")) * factor & mask
    mixed = (mixed ^ mixed >> 13) * factor & mask
    mixed ^= mixed >> 15
    return (mixed & 0x7FFFFFFF) % partitions


class Offsets:
    """Numbers the records of each partition from 0."""

    def __init__(self) -> None:
        self._next: dict[int, int] = defaultdict(int)

    def of_each(self, partitions: Sequence[int]) -> list[int]:
        """Return the offset of each record. The records follow those of earlier calls."""
        return list(self._numbered(partitions))

    def _numbered(self, partitions: Sequence[int]) -> Iterator[int]:
        for partition in partitions:
            yield self._next[partition]
            self._next[partition] += 1
