"""The rows that a slice sends through Spark's exchange: a few blobs for each bucket, never a record.

A row is (bucket key, kind, partition, sequence, blob):

The partition is its label (`partition_labels`): of the only stream that a pipeline reads, its number.

- `RECORDS`: accepted records of one partition, cut for the bucket; see `operators.cascade.Chunk`. Those of other branches of
  the pipeline have kinds of their own: `kind_of_records`.
- `REJECTED`: rejected records of one partition with their bytes. They go to one bucket a partition.
- `FACTS`: what a task counted. A copy goes to each bucket.
- `RECORD_ROWS`: accepted records of one partition for one emission of records; see `operators.record_rows`. They go to one
  bucket a partition, and only where the slice is new.
- `WORK`: what the slice is, and what becomes final in it. A copy goes to each bucket, so every bucket has a row in each slice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec
import pyarrow as pa

from strandline.ledger.states import Offsets, SliceRow
from strandline.processing.operators.blobs import batch_of
from strandline.processing.slices.sender_faults import PartitionFacts
from strandline.processing.slices.watermark import (
    accepted_partitions,
    bounded_ms,
    closes_after,
    greatest,
    reached_after,
)

RECORDS, REJECTED, FACTS, WORK, RECORD_ROWS = range(5)
ROWS_SCHEMA = pa.schema(
    [
        pa.field("bucket", pa.int32()),
        pa.field("kind", pa.int8()),
        pa.field("partition", pa.int32()),
        pa.field("sequence", pa.int64()),
        pa.field("blob", pa.binary()),
    ]
)
REJECTED_SCHEMA = pa.schema(
    [
        pa.field("stream", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("value", pa.binary()),
        pa.field("reason", pa.string()),
        pa.field("message", pa.string()),
        pa.field("step", pa.string()),
        pa.field("element", pa.int32()),
        pa.field("taken_by", pa.string()),
    ]
)
_BATCH_BYTES = 4 << 20
"""About as many bytes of blobs cross to the JVM at once."""

SliceRowBlob = tuple[int, int, int, int, bytes]
Item = TypeVar("Item")


class SliceWork(msgspec.Struct, frozen=True):
    """Work of the keyed tasks in one batch."""

    number: int
    """Number of the batch's last slice. It is also the number of the emission."""
    emits: bool
    """True if the slice is new. A replayed slice only rebuilds state."""
    from_ms: int | None
    """Windows that end after it become final, up to `to_ms`, or up to what the new slice closes."""
    to_ms: int | None
    dead_letter_offsets: dict[int, int]
    """End of the dead-letter stream at the checkpoint before: partition -> offset."""
    result_offsets: Offsets
    """End of each stream that the job emits to, at the checkpoint before: stream -> partition -> offset."""
    new_slice: SliceRow | None = None
    """The slice, if the windows that it closes depend on its records. None if `to_ms` is known."""
    emitted_ms: int | None = None
    """Windows that end at or before it were emitted by earlier slices, and may be revised. None if none were."""
    digest: str = ""
    """Digest of the slice `number`, which the emitted results record. Empty if the batch emits nothing."""
    restores: bool = False
    """True if the slice is committed, and only results that its stores lost are emitted again."""

    def closes_ms(self, facts: Iterable[SourceFacts]) -> int | None:
        """Return the event time up to which windows become final. `facts`: of every source task."""
        if self.new_slice is None:
            return self.to_ms
        row, total = self.new_slice, add_facts(facts)
        return closes_after(row, reached_in(row, total), accepted_partitions(row, total.latest_ms))


class SourceFacts(msgspec.Struct):
    """Facts about the records that one task read."""

    records: int = 0
    rejected: dict[str, int] = {}
    """Reason -> records, late ones included."""
    latest_ms: dict[str, dict[int, int]] = {}
    """Stream -> partition -> the latest event time of its accepted records."""
    logged_ms: dict[str, dict[int, int]] = {}
    """Stream -> partition -> the maximum of min(event time, log time) over its accepted records."""
    ahead_ms: dict[str, dict[int, int]] = {}
    """Stream -> partition -> how far the event time of an accepted record was ahead of its log time, at most. Only if one was."""
    latest_log_ms: int | None = None
    sessions: dict[str, dict[int, str]] = {}
    """Stream -> partition -> declarations of its records up to the end of the task, packed. Only for formats with sessions."""
    partitions: dict[str, dict[int, PartitionFacts]] = {}
    """Stream -> partition -> its records and the faults of their senders. Only of a new slice."""
    bytes: int = 0
    """Size of the records as stored in Kafka."""
    cpu_us: int = 0
    """CPU time of the task's thread in microseconds. No result depends on it."""

    @property
    def latest_event_ms(self) -> list[int]:
        """Return the latest event time of each partition that has accepted records."""
        return [one for latest in self.latest_ms.values() for one in latest.values()]


def kind_of_records(entry: int) -> int:
    """Return the kind of rows with accepted records for this entry of the cascade."""
    return RECORDS if entry == 0 else RECORD_ROWS + entry


def entry_of(kind: int) -> int | None:
    """Return the entry of the cascade for rows of this kind. None if such rows aren't accepted records."""
    if kind == RECORDS:
        return 0
    return kind - RECORD_ROWS if kind > RECORD_ROWS else None


def row_identity(stream: str, partition: int, offset: int, element: int | None) -> str:
    """Return the unique identity of a row."""
    place = f"{stream}/{partition}/{offset}"
    return place if element is None else f"{place}/{element}"


def reached_in(row: SliceRow, facts: SourceFacts) -> Offsets:
    """Return stream -> partition -> event time reached after the slice. `facts`: sum over all its source tasks."""
    bounded = {
        stream: {
            partition: bounded_ms(row.rule.of(stream), row, latest_ms, facts.logged_ms[stream][partition])
            for partition, latest_ms in latest.items()
        }
        for stream, latest in facts.latest_ms.items()
    }
    return reached_after(row.reached, bounded)


def sessions_after(row: SliceRow, facts: SourceFacts) -> dict[str, dict[int, str]]:
    """Return the packed declarations of each partition after the slice: those of `facts`, otherwise those before the slice."""
    if not facts.sessions:
        return row.sessions
    return {
        stream: {**row.sessions.get(stream, {}), **facts.sessions.get(stream, {})}
        for stream in row.offsets
        if stream in row.sessions or stream in facts.sessions
    }


def add_facts(parts: Iterable[SourceFacts]) -> SourceFacts:
    """Return the sum of the facts of several tasks."""
    total, rejected = SourceFacts(), Counter[str]()
    for part in parts:
        total.records += part.records
        total.bytes += part.bytes
        total.cpu_us += part.cpu_us
        rejected.update(part.rejected)
        for known_of, found_of in (
            (total.latest_ms, part.latest_ms),
            (total.logged_ms, part.logged_ms),
            (total.ahead_ms, part.ahead_ms),
        ):
            for stream, found in found_of.items():
                known = known_of.setdefault(stream, {})
                for partition, ms in found.items():
                    known[partition] = max(ms, known.get(partition, ms))
        total.latest_log_ms = greatest(total.latest_log_ms, part.latest_log_ms)
        for stream, sessions in part.sessions.items():
            total.sessions.setdefault(stream, {}).update(sessions)
        for stream, partitions in part.partitions.items():
            of_stream = total.partitions.setdefault(stream, {})
            for partition, facts in partitions.items():
                of_stream.setdefault(partition, PartitionFacts()).add(facts)
    total.rejected = dict(sorted(rejected.items()))
    return total


def encode(value: SliceWork | SourceFacts) -> bytes:
    """Return the value as a blob of the kind `WORK` or `FACTS`."""
    return msgspec.json.encode(value)


def decode_work(blob: bytes) -> SliceWork:
    """Return the work in a blob of `encode`. Raises msgspec.DecodeError if it isn't one."""
    return msgspec.json.decode(blob, type=SliceWork)


def decode_facts(blob: bytes) -> SourceFacts:
    """Return the facts in a blob of `encode`. Raises msgspec.DecodeError if it isn't one."""
    return msgspec.json.decode(blob, type=SourceFacts)


def batches_of(rows: Iterable[SliceRowBlob]) -> Iterator[pa.RecordBatch]:
    """Yield the rows as Arrow batches of bounded size."""
    for part in parts_by_size(rows, lambda row: len(row[-1]), _BATCH_BYTES):
        yield batch_of(part, ROWS_SCHEMA)


def parts_by_size(items: Iterable[Item], size_of: Callable[[Item], int], size_enough: int) -> Iterator[list[Item]]:
    """Yield the items, in their order, in lists. A list ends with the item that makes it at least as large as `size_enough`."""
    held: list[Item] = []
    size = 0
    for item in items:
        held.append(item)
        size += size_of(item)
        if size >= size_enough:
            yield held
            held, size = [], 0
    if held:
        yield held


def bucket_keys(buckets: int, partitions: int) -> tuple[int, ...]:
    """A key for each bucket, such that bucket n goes to Spark's shuffle partition n modulo `partitions`.

    Spark sends an int to the partition that is its Murmur3 hash (x86, 32 bits, seed 42) modulo the number of partitions.
    """
    found: dict[int, list[int]] = {place: [] for place in range(partitions)}
    wanted = -(-buckets // partitions)
    key = 0
    while any(len(keys) < wanted for keys in found.values()):
        found[_spark_hash(key) % partitions].append(key)
        key += 1
    return tuple(found[bucket % partitions][bucket // partitions] for bucket in range(buckets))


def _spark_hash(value: int) -> int:
    mask, seed = 0xFFFFFFFF, 42

    def rotate(word: int, bits: int) -> int:
        return ((word << bits) | (word >> (32 - bits))) & mask

    word = rotate(value * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask
    mixed = (rotate(seed ^ word, 13) * 5 + 0xE6546B64) & mask
    mixed ^= 4  # the length of an int
    mixed ^= mixed >> 16
    mixed = mixed * 0x85EBCA6B & mask
    mixed ^= mixed >> 13
    mixed = mixed * 0xC2B2AE35 & mask
    mixed ^= mixed >> 16
    return mixed - (1 << 32) if mixed >> 31 else mixed


def to_every_bucket(keys: Sequence[int], kind: int, blob: bytes) -> Iterator[SliceRowBlob]:
    """Yield a row with a copy of the blob for each bucket."""
    for key in keys:
        yield key, kind, 0, 0, blob
