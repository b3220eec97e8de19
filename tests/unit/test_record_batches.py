"""Record batches as brokers send them: cut off, damaged, and with unreadable compression."""

from __future__ import annotations

import struct

import pytest
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from strandline.log.record_batches import ChecksumFound, Hole, checksum_at, committed_batches

FOR_EVER = 1 << 62
PRODUCER = 7
COMMIT, ABORT = struct.pack(">hh", 0, 1), struct.pack(">hh", 0, 0)


def batch(offset: int, *values: bytes, transactional: bool = False) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, int(transactional), PRODUCER, 0, 0, 1_000_000)
    for number, value in enumerate(values):
        builder.append(number, 1_700_000_000_000, None, value, [])
    return at_offset(builder.build(), offset)


def at_offset(data: bytearray, offset: int) -> bytes:
    return struct.pack(">q", offset) + bytes(data[8:])


def with_attributes(data: bytes, attributes: int, records: int | None = None) -> bytes:
    """Return the batch with these attributes, and without records if `records` is 0. Its checksum is right."""
    from aiokafka.record._crc32c import crc

    body = struct.pack(">h", attributes) + data[23:]
    if records == 0:
        body = body[:36] + struct.pack(">i", 0)
    length = struct.pack(">i", 9 + len(body))
    return data[:8] + length + data[12:17] + struct.pack(">I", crc(body)) + body


def marker(offset: int, key: bytes) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 1, PRODUCER, 0, -1, 1_000)
    builder.append(0, 1_700_000_000_000, key, b"", [])
    return with_attributes(at_offset(builder.build(), offset), 0x30)


def without_last_records(data: bytes, kept: int, records: int) -> bytes:
    """The batch of `kept` records, as compaction leaves a batch of `records` after it removed the last ones."""
    return with_attributes(data[:23] + struct.pack(">i", records - 1) + data[27:], 0)


def values(
    data: bytes, aborted: list[tuple[int, int]] | None = None, end: int = FOR_EVER, *, first: int = 0
) -> tuple[list[bytes], int]:
    """The values of the committed records from `first` on, and the offset up to which `data` proves what there is."""
    found = committed_batches(data, aborted or [], first, end)
    return [record.value for one in found.batches for record in one.records()], found.offset_next


def test_a_batch_that_was_cut_off_is_left_out():
    whole = batch(0, b"a", b"b") + batch(2, b"c")
    assert values(whole) == ([b"a", b"b", b"c"], 3)
    for cut in range(len(batch(0, b"a", b"b")), len(whole)):
        assert values(whole[:cut]) == ([b"a", b"b"], 2)
    assert values(whole[:20]) == ([], 0)
    assert values(b"", first=7) == ([], 7)


def test_nothing_is_looked_at_beyond_the_end():
    damaged = bytearray(batch(5, b"c"))
    damaged[-1] ^= 1
    assert values(batch(4, b"a") + bytes(damaged), end=5, first=4) == ([b"a"], 5)


@pytest.mark.parametrize("place", [21, 40, 60, 65, -1])
def test_a_wrong_checksum_is_noticed(place):
    damaged = bytearray(batch(0, b"a", b"b"))
    damaged[place] ^= 1
    with pytest.raises(CorruptRecordException, match="the checksum of the batch at offset 0 is wrong"):
        values(bytes(damaged))


@pytest.mark.parametrize("length", [-1, 0, 48])
def test_a_length_that_no_batch_has_ends_the_reading(length):
    damaged = batch(3, b"a")
    with pytest.raises(CorruptRecordException, match="the batch at offset 3"):
        values(damaged[:8] + struct.pack(">i", length) + damaged[12:])


def test_records_of_before_kafka_0_11_are_refused():
    old = bytearray(batch(3, b"a"))
    old[16] = 1
    with pytest.raises(CorruptRecordException, match=r"a format before Kafka 0\.11"):
        values(bytes(old))


def test_a_codec_that_nobody_knows_says_what_to_do():
    (unknown,), *_ = committed_batches(with_attributes(batch(0, b"a"), 5), [], 0, FOR_EVER)
    with pytest.raises(CorruptRecordException, match=r"compressed with codec 5.*set the topic's compression\.type"):
        list(unknown.records())


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_what_cannot_be_decompressed_says_so(codec):
    (damaged,), *_ = committed_batches(with_attributes(batch(0, b"a" * 50), codec), [], 0, FOR_EVER)
    with pytest.raises(CorruptRecordException, match="could not be decompressed"):
        list(damaged.records())


def test_an_abort_marker_ends_its_transaction_alone():
    data = (
        batch(0, b"a", transactional=True)
        + marker(1, ABORT)
        + batch(2, b"b", transactional=True)
        + marker(3, COMMIT)
        + batch(4, b"c", transactional=True)
    )
    assert values(data, [(PRODUCER, 0)]) == ([b"b", b"c"], 5)
    assert values(data, [(PRODUCER, 4), (PRODUCER, 0)]) == ([b"b"], 5)
    assert values(data, [(PRODUCER + 1, 0)]) == ([b"a", b"b", b"c"], 5)
    assert values(marker(9, ABORT), first=9) == ([], 10)


def test_a_marker_that_compaction_emptied_is_passed_over():
    empty = with_attributes(marker(1, ABORT), 0x30, records=0)
    assert values(empty + batch(2, b"b"), first=1) == ([b"b"], 3)


@pytest.mark.guarantee("G751")
@pytest.mark.parametrize("kept", [0, 1])
def test_a_batch_from_which_records_were_removed_is_a_hole(kept: int):
    """The offsets follow those of the batch before, and only its number of records shows that some are missing."""
    cut = (
        with_attributes(batch(1, b"a", b"b", b"c"), 0, records=0)
        if kept == 0
        else without_last_records(batch(1, b"a"), 1, 3)
    )
    data = batch(0, b"z") + cut + batch(4, b"d")
    assert committed_batches(data, [], 0, 5)[1:] == (1, [], Hole(1, 4, 1_700_000_000_000))
    assert committed_batches(cut, [], 2, 5)[1:] == (2, [], Hole(2, 4, 1_700_000_000_000))
    found = committed_batches(data, [], 0, 5, allow_holes=True)
    read = [record.value for one in found.batches for record in one.records()]
    assert (read, found.offset_next) == ([b"z", b"a", b"d"] if kept else [b"z", b"d"], 5)


@pytest.mark.parametrize(
    "after", [batch(100, b"b"), batch(12, b"b", b"c"), marker(30, COMMIT)], ids=["far", "near", "marker"]
)
def test_a_batch_after_the_next_offset_ends_the_reading_and_names_the_hole(after: bytes):
    (next_first,) = struct.unpack_from(">q", after)
    before = batch(9, b"a")
    hole = Hole(10, next_first, 1_700_000_000_000)
    assert committed_batches(before + after, [], 9, 200, [9, 11])[1:] == (10, [checksum_at(before, 9).checksum], hole)
    assert committed_batches(after, [], 10, 200)[1:] == (10, [], hole)
    assert committed_batches(after, [], 10, 11)[1:] == (10, [], hole), "also if the hole is the rest of the range"
    assert committed_batches(before + after, [], 9, 10)[1:] == (10, [], None), "this part is never read"


def test_a_topic_that_may_be_compacted_is_read_over_its_holes():
    found = committed_batches(batch(0, b"a") + batch(5, b"b"), [], 0, 6, allow_holes=True)
    assert ([one.offset_first for one in found.batches], found.offset_next, found.hole) == ([0, 5], 6, None)
    assert committed_batches(batch(5, b"b"), [], 0, 3, allow_holes=True)[:2] == ([], 5)


def test_the_first_batch_may_begin_before_the_offset_and_no_other_may():
    assert values(batch(3, b"a", b"b", b"c") + batch(6, b"d"), first=4) == ([b"a", b"b", b"c", b"d"], 7)
    for repeats in (batch(0, b"a", b"b") + batch(1, b"c", b"d"), batch(0, b"a") * 2, marker(0, ABORT) * 2):
        with pytest.raises(
            CorruptRecordException, match=r"the answer repeats the batch at offset \d where offset \d is next"
        ):
            values(repeats)
    with pytest.raises(CorruptRecordException, match="repeats the batch at offset 3 where offset 4 is next"):
        values(batch(3, b"a"), first=4)


def test_checksums_of_several_offsets_are_those_of_their_batches():
    data = batch(0, b"a", b"b") + marker(2, COMMIT) + batch(3, b"c", b"d")
    sums = [checksum_at(data, offset).checksum for offset in range(5)]
    assert committed_batches(data, [], 0, 5, range(5)).checksums == sums
    assert committed_batches(data, [], 0, 5, [1, 2, 9]).checksums == sums[1:3]


def test_the_checksum_of_an_offset_is_that_of_its_batch():
    data = batch(0, b"a", b"b") + batch(2, b"c") + batch(5, b"d")
    found = [checksum_at(data, offset) for offset in range(7)]
    assert found[0] == found[1] and len({one.checksum for one in found[:3]} | {found[5].checksum}) == 3
    assert found[3] == found[4] == ChecksumFound(None, is_in_hole=True)
    assert found[6] == ChecksumFound(None, is_in_hole=False)
    assert checksum_at(batch(7, b"c"), 7) == found[2], "an offset is not in it"
    assert checksum_at(data[:-1], 5) == checksum_at(b"", 5) == ChecksumFound(None, is_in_hole=False)
