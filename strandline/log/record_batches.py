"""Kafka's record batches, as brokers send them: separated, checked, decompressed, and read into columns. Pure.

aiokafka parses the records, in C. Its codecs would need one more package; pyarrow, which is installed anyway, contains
all of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from aiokafka.errors import CorruptRecordException
from aiokafka.record.control_record import ABORT_MARKER, ControlRecord
from aiokafka.record.default_records import DefaultRecordBatch

_OFFSET_AND_LENGTH = struct.Struct(">qi")
_RECORD_COUNT = struct.Struct(">i")
_CHECKSUM = struct.Struct(">I")
_MAGIC_AT, _CHECKSUM_AT, _ATTRIBUTES_LOW_AT, _HEAD_BYTES = 16, 17, 22, 61
_MAGIC = 2
"""The format since Kafka 0.11."""
_CODEC_BITS = 7
_LOG_APPEND_TIME = 1
_CODECS = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEAD_BYTES = 16


class RecordBatch:
    """Records that a producer sent together. The checksum is correct."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._parsed = DefaultRecordBatch(data)
        if not self._parsed.validate_crc():
            raise CorruptRecordException(f"the checksum of the batch at offset {self._parsed.base_offset} is wrong")
        self.offset_first: int = self._parsed.base_offset
        self.offset_next: int = self._parsed.next_offset
        """Offset after the last record that ever existed; compaction may have removed it, and all others."""
        self.producer_id: int = self._parsed.producer_id
        self.is_transactional: bool = self._parsed.is_transactional
        self.is_control_batch: bool = self._parsed.is_control_batch
        self.max_timestamp_ms: int = self._parsed.max_timestamp
        has_log_time = self._parsed.timestamp_type == _LOG_APPEND_TIME
        self.log_time_ms: int | None = self.max_timestamp_ms if has_log_time else None
        """Time at which the broker appended it, if the topic stores that. None if each record has its own time."""
        self.checksum: int = _CHECKSUM.unpack_from(data, _CHECKSUM_AT)[0]
        """Checksum of its log time, its producer, and all its records. Every replica has the same batch."""
        (count,) = _RECORD_COUNT.unpack_from(data, _HEAD_BYTES - _RECORD_COUNT.size)
        self.has_holes: bool = count != self.offset_next - self.offset_first
        """True if the batch lacks a record of its offsets. Producers write none; only compaction removes records."""

    def bytes_in(self, first: int, end: int) -> int:
        """Return the stored size of its records from the offset `first` to before `end`, if all have the same size."""
        offsets = self.offset_next - self.offset_first
        inside = min(end, self.offset_next) - max(first, self.offset_first)
        return len(self._data) * max(0, inside) // max(1, offsets)

    def records(self) -> Iterator[Any]:
        """Yield its records, as aiokafka parses them.

        Keep none: thousands of them would make garbage collection dominate the time.
        """
        return iter(DefaultRecordBatch(self._plain))

    def may_have(self, header: str) -> bool:
        """Return True if any of its records may have a header with this name.

        Checking each record would cost as much as its value.
        """
        return header.encode() in bytes(self._plain)

    def forget_plain(self) -> None:
        """Drop the decompressed bytes."""
        self.__dict__.pop("_plain", None)

    @cached_property
    def _plain(self) -> bytes | memoryview:
        """The uncompressed batch, which the parser reads without its own codec."""
        codec = self._parsed.compression_type
        if not codec:
            return self._data
        head = bytearray(self._data[:_HEAD_BYTES])
        head[_ATTRIBUTES_LOW_AT] &= ~_CODEC_BITS
        return bytes(head) + _decompress(codec, self._data[_HEAD_BYTES:])

    def is_abort_marker(self) -> bool:
        """Return True if it marks its producer's transaction as aborted.

        A marker that compaction emptied is not recognized, and need not be: no record of its transaction is left.
        """
        return self.is_control_batch and any(
            ControlRecord.parse(record.key or b"") == ABORT_MARKER for record in self.records()
        )


class Hole(NamedTuple):
    """Offsets whose records a partition lacks, all or some.

    A broker answered a fetch at `offset_first` with a batch that begins later, or with a batch from which records were
    removed.
    """

    offset_first: int
    offset_next: int
    """First offset of the batch after the hole, or the end of the batch that lacks records."""
    log_time_ms: int
    """Timestamp of that batch: its log time, or the latest of its records' own times."""


class CommittedBatches(NamedTuple):
    """Committed batches of one fetch response, and how much of the partition the response proves."""

    batches: list[RecordBatch]
    offset_next: int
    """Offset up to which the response contains every batch. It is the requested offset if the response contains no
    batch."""
    checksums: list[int]
    """Checksums of the batches that contain the requested offsets, in the same order, as far as the response reaches.
    """
    hole: Hole | None
    """Hole at `offset_next`. None if the response shows none."""


def committed_batches(
    data: bytes,
    aborted: Sequence[tuple[int, int]],
    offset_first: int,
    offset_end: int,
    checked: Sequence[int] = (),
    *,
    allow_holes: bool = False,
) -> CommittedBatches:
    """Return the batches of `data` that contain offsets from `offset_first` up to, but not including, `offset_end`.

    Transaction markers and aborted batches are left out, and count as read. An incomplete batch at the end of `data` is
    ignored. Reading stops at a hole; a marker that compaction emptied is not a hole. With `allow_holes`, for a topic
    that may be compacted, a hole counts as read.

    Args:
    - aborted: Producer id and first offset of each aborted transaction.
    - checked: Ascending offsets of which the batches' checksums are requested. Not together with `allow_holes`.

    Raises CorruptRecordException if a batch is damaged, or repeats an earlier one.
    """
    to_come = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
    aborting: set[int] = set()
    kept: list[RecordBatch] = []
    checksums: list[int] = []
    position, hole = offset_first, None
    for offset, raw in _batches(data):
        if position >= offset_end:
            break
        if offset > position:
            if not allow_holes:
                hole = Hole(position, offset, RecordBatch(raw).max_timestamp_ms)
                break
            position = offset
            if offset >= offset_end:
                break
        batch = RecordBatch(raw)
        if batch.has_holes and not (allow_holes or batch.is_control_batch):
            hole = Hole(position, batch.offset_next, batch.max_timestamp_ms)
            break
        if batch.offset_next <= position or offset < position != offset_first:
            raise CorruptRecordException(
                f"the answer repeats the batch at offset {offset} where offset {position} is next"
            )
        position = batch.offset_next
        while len(checksums) < len(checked) and checked[len(checksums)] < position:
            checksums.append(batch.checksum)
        while to_come and to_come[-1][1] < position:
            aborting.add(to_come.pop()[0])
        if batch.is_control_batch:
            if batch.is_abort_marker():
                aborting.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in aborting):
            kept.append(batch)
    return CommittedBatches(kept, position, checksums, hole)


class ChecksumFound(NamedTuple):
    """Result of a search for the batch that contains an offset."""

    checksum: int | None
    """None if no complete batch of the response contains the offset."""
    is_in_hole: bool
    """True if the response proves that the partition lacks the offset: it has a later batch, and none contains the
    offset."""


def checksum_at(data: bytes, offset: int) -> ChecksumFound:
    """Search the response to a fetch at `offset` for the batch that contains it. Raises CorruptRecordException."""
    for _, raw in _batches(data):
        batch = RecordBatch(raw)
        if batch.offset_next > offset:
            has_it = batch.offset_first <= offset
            return ChecksumFound(batch.checksum if has_it else None, not has_it)
    return ChecksumFound(None, False)


def _batches(data: bytes) -> Iterator[tuple[int, memoryview]]:
    """Yield the first offset and the bytes of each complete batch."""
    view = memoryview(data)
    begin = 0
    while begin + _HEAD_BYTES <= len(view):
        offset, length = _OFFSET_AND_LENGTH.unpack_from(view, begin)
        end = begin + _OFFSET_AND_LENGTH.size + length
        if view[begin + _MAGIC_AT] != _MAGIC or end < begin + _HEAD_BYTES:
            raise CorruptRecordException(f"the batch at offset {offset} has a format before Kafka 0.11, or none")
        if end > len(view):
            return
        yield offset, view[begin:end]
        begin = end


def _decompress(codec: int, data: memoryview) -> bytes:
    import pyarrow as pa  # only here: other readers of the log don't need pyarrow

    name = _CODECS.get(codec)
    if name is None or not pa.Codec.is_available(name):
        raise CorruptRecordException(
            f"records are compressed with {name or f'codec {codec}'}, which this installation of pyarrow can't read; "
            "install pyarrow's own build, or set the topic's compression.type to another codec and write them again"
        )
    try:
        if name == "snappy":
            return _decompress_snappy(pa.Codec(name), data)
        return bytes(pa.CompressedInputStream(pa.py_buffer(data), name).read())
    except (OSError, IndexError, struct.error) as error:
        raise CorruptRecordException(f"records could not be decompressed ({name}): {error}") from error


def _decompress_snappy(codec: object, data: memoryview) -> bytes:
    """Decompress Snappy, which has no frames: librdkafka sends one block, Java's clients several, each after its
    length."""
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _decompress_block(codec, data)
    blocks = []
    begin = _XERIAL_HEAD_BYTES
    while begin < len(data):
        (length,) = struct.unpack_from(">i", data, begin)
        begin += 4 + length
        blocks.append(_decompress_block(codec, data[begin - length : begin]))
    return b"".join(blocks)


def _decompress_block(codec: object, data: memoryview) -> bytes:
    size, shift = 0, 0
    for byte in data:  # the length, 7 bits per byte, the lowest first
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return bytes(codec.decompress(data, size, asbytes=True))  # type: ignore[attr-defined]
