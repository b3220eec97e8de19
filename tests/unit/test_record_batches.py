"""Record batches as brokers send them: cut off, damaged, compressed in ways that nobody can read."""

from __future__ import annotations

import struct

import pytest
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from strandline.log.record_batches import checksum_at, committed_batches

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
    """The same batch with these attributes, and with no records where `records` is 0; its checksum is right again."""
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


def values(
    data: bytes, aborted: list[tuple[int, int]] | None = None, end: int = FOR_EVER
) -> tuple[list[bytes], int | None]:
    batches, offset_next, _ = committed_batches(data, aborted or [], end)
    return [record.value for one in batches for record in one.records()], offset_next


def test_a_batch_that_was_cut_off_is_left_out():
    whole = batch(0, b"a", b"b") + batch(2, b"c")
    assert values(whole) == ([b"a", b"b", b"c"], 3)
    for cut in range(len(batch(0, b"a", b"b")), len(whole)):
        assert values(whole[:cut]) == ([b"a", b"b"], 2)
    assert values(whole[:20]) == ([], None)
    assert values(b"") == ([], None)


def test_nothing_is_looked_at_beyond_the_end():
    damaged = bytearray(batch(5, b"c"))
    damaged[-1] ^= 1
    assert values(batch(0, b"a") + bytes(damaged), end=5) == ([b"a"], 5)


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
    with pytest.raises(CorruptRecordException, match=r"a format of before Kafka 0\.11"):
        values(bytes(old))


def test_a_codec_that_nobody_knows_says_what_to_do():
    (unknown,), *_ = committed_batches(with_attributes(batch(0, b"a"), 5), [], FOR_EVER)
    with pytest.raises(CorruptRecordException, match=r"compressed with codec 5.*set the topic's compression\.type"):
        list(unknown.records())


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_what_cannot_be_decompressed_says_so(codec):
    (damaged,), *_ = committed_batches(with_attributes(batch(0, b"a" * 50), codec), [], FOR_EVER)
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
    assert values(marker(9, ABORT)) == ([], 10)


def test_a_marker_that_compaction_emptied_is_passed_over():
    empty = with_attributes(marker(1, ABORT), 0x30, records=0)
    assert values(empty + batch(2, b"b")) == ([b"b"], 3)


def test_a_batch_that_compaction_emptied_still_moves_on():
    empty = with_attributes(batch(1, b"a", b"b", b"c"), 0, records=0)
    assert values(empty) == ([], 4)


def test_the_checksum_of_an_offset_is_that_of_its_batch():
    data = batch(0, b"a", b"b") + batch(2, b"c") + batch(5, b"d")
    found = [checksum_at(data, offset) for offset in range(7)]
    assert found[0] == found[1] and len(set(found[:3]) | {found[5]}) == 3
    assert found[3] is found[4] is found[6] is None
    assert checksum_at(batch(7, b"c"), 7) == found[2], "an offset is not in it"
    assert checksum_at(data[:-1], 5) is None
