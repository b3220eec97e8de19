"""Records as they come to the desk, and the partition that each would come to."""

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
    """Some records, in the order of the log."""

    values: Sequence[bytes | None]
    """The senders' bytes; None is a tombstone."""
    partitions: Sequence[int]
    """Of each record."""
    log_times_ms: Sequence[int | None] | None = None
    """Of each record; None: not said."""
    sources: Sequence[bytes | None] = ()
    """Of each record the header that fields are taken from (a query, an MQTT topic); empty: none has one."""
    offsets: Sequence[int] | None = None
    """Of each record in its partition; None: they are numbered as they come."""
    stream: str | None = None
    """That they come to; None: the first that the pipeline reads."""

    def __len__(self) -> int:
        return len(self.values)


def source_of_topic(stream: StreamSpec, topic: str) -> bytes:
    """The header of a record that came to the stream from this MQTT topic. Raises PermanentError where the gateway has none of
    its records for the stream."""
    from strandline.ingest.mqtt.topics import TopicRoutes  # only where topics are said

    if TopicRoutes([stream]).find(topic.encode()) is None:
        filters = stream.mqtt.topics if stream.mqtt else []
        way = "mend the topic, or mqtt.topics" if filters else f"say in its document which: mqtt: {{topics: [{topic}]}}"
        raise PermanentError(
            f"no record of topic '{topic}' comes to stream {stream.stream}, which takes {', '.join(filters) or 'none'}; {way}"
        )
    return SOURCE_MQTT + topic.encode()


class Placement:
    """Chooses partitions as a gateway does: equal keys come to one, and records without a key go round."""

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
        """The partition of each record. `topic`, `headers`: the MQTT topic that all came from, the headers of their request."""
        if self._partitions == 1:
            return [0] * len(values)
        return [self._of(value, topic, headers or {}) for value in values]

    def _of(self, value: bytes | None, topic: str | None, headers: Mapping[str, str]) -> int:
        """The key is a level of the topic, if the document says so; else a field of the record, or else a header."""
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
    """Where Kafka's clients put a key: its Murmur2 hash (seed 0x9747b28c), without the sign, modulo the partitions."""
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
        """The offset of each record, which comes behind those of the calls before."""
        return list(self._numbered(partitions))

    def _numbered(self, partitions: Sequence[int]) -> Iterator[int]:
        for partition in partitions:
            yield self._next[partition]
            self._next[partition] += 1
