"""Requests that are repeated and answers that are omitted, with made-up answers. A real broker answers in test_log_reader.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from aiokafka.errors import NoError, NotLeaderForPartitionError, OffsetOutOfRangeError

from strandline.core.errors import LogUnavailable
from strandline.log import batch_checksums as module
from strandline.log.batch_checksums import BatchChecksums, LogPosition
from strandline.log.brokers import PartitionKey, PartitionRequest, PartitionResponse
from strandline.log.record_batches import checksum_at
from tests.unit.test_record_batches import batch

DATA = {partition: batch(5, b"a" * partition, b"b") for partition in range(4)}
SUMS = {partition: checksum_at(data, 6).checksum for partition, data in DATA.items()}


def answer(records: bytes = b"", error: type = NoError, stable_offset: int = 10) -> PartitionResponse:
    return PartitionResponse(error, stable_offset, [], records)


class ScriptedBrokers:
    """Brokers with scripted answers, which record the requests."""

    def __init__(self, script: list[list[PartitionResponse | Exception]]) -> None:
        self.script = script
        self.asked: list[list[tuple[int, int]]] = []
        self.bytes: list[list[int]] = []

    async def fetch_each(
        self, asked: list[PartitionRequest], bytes_max: int
    ) -> dict[PartitionKey, PartitionResponse | Exception]:
        self.asked.append([(one.partition_key[1], one.offset_first) for one in asked])
        self.bytes.append([one.bytes_max for one in asked])
        return dict(zip([one.partition_key for one in asked], self.script.pop(0), strict=True))

    async def close(self) -> None: ...


@pytest.fixture
def checksums(monkeypatch: pytest.MonkeyPatch) -> Iterator[BatchChecksums]:
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    checksums = BatchChecksums("nowhere", 0.2)
    yield checksums
    checksums.close()


def told(checksums: BatchChecksums, *script: list[PartitionResponse | Exception]) -> ScriptedBrokers:
    brokers = ScriptedBrokers(list(script))
    checksums._brokers = brokers  # type: ignore[assignment]
    return brokers


def at(checksums: BatchChecksums, offsets: dict[int, int]) -> dict[int, object]:
    found = checksums.at([LogPosition("s", partition, offset) for partition, offset in offsets.items()])
    return {place.partition: checksum for place, checksum in found.items()}


def test_what_found_no_room_and_what_another_broker_leads_is_asked_for_again(checksums):
    brokers = told(
        checksums, [answer(DATA[1]), answer(DATA[2][:-1]), answer()], [answer(DATA[2]), answer()], [answer(DATA[3])]
    )
    assert at(checksums, {1: 6, 2: 6, 3: 6}) == {1: SUMS[1], 2: SUMS[2], 3: SUMS[3]}
    assert brokers.asked == [[(1, 6), (2, 6), (3, 6)], [(2, 6), (3, 6)], [(3, 6)]]
    assert [sizes[-1] // brokers.bytes[0][0] for sizes in brokers.bytes] == [1, 8, 64], "a batch may be large"


def test_two_offsets_of_one_partition_are_asked_for_one_after_the_other(checksums):
    """Two jobs read the partition, and one of them is behind."""
    first, second = batch(5, b"a", b"b"), batch(7, b"c")
    brokers = told(checksums, [answer(first)], [answer(second)])
    found = checksums.at([LogPosition("s", 1, 6), LogPosition("s", 1, 7)])
    assert list(found.values()) == [checksum_at(first, 6).checksum, checksum_at(second, 7).checksum]
    assert brokers.asked == [[(1, 6)], [(1, 7)]]


def test_an_offset_that_is_not_there_is_left_out(checksums):
    ended = answer(stable_offset=6)
    told(checksums, [answer(error=OffsetOutOfRangeError), answer(DATA[2]), ended])
    assert at(checksums, {1: 6, 2: 6, 3: 6}) == {2: SUMS[2]}
    told(checksums, [answer(DATA[1]), ended])
    assert at(checksums, {1: 4, 2: 7}) == {}, "the next batch begins after it, and the log ends before it"


@pytest.mark.guarantee("G750")
@pytest.mark.parametrize("stable_offset", [10, 7, -1])
def test_an_empty_answer_is_no_proof_that_an_offset_is_not_there(checksums, stable_offset):
    """A broker answers so if its tiered storage takes longer than remote.fetch.max.wait.ms."""
    empty = answer(stable_offset=stable_offset)
    brokers = told(checksums, [empty, empty], [empty, answer(DATA[2])], [empty], [answer(DATA[1])])
    assert at(checksums, {1: 6, 2: 6}) == {1: SUMS[1], 2: SUMS[2]}
    assert [len(asked) for asked in brokers.asked] == [2, 2, 1, 1]


def test_answers_that_stay_empty_are_an_error(checksums, monkeypatch):
    monkeypatch.setattr(module.time, "monotonic", iter(range(100)).__next__)
    told(checksums, [answer(DATA[1]), answer()], *[[answer()]] * 100)
    found = at(checksums, {1: 6, 2: 6})
    assert found[1] == SUMS[1], "the answer of another partition stays"
    with pytest.raises(
        LogUnavailable,
        match=r"\(for offset 6 of partition 2, which the log reaches, the responses are empty; if the topic has",
    ):
        raise found[2]


def test_an_offset_that_is_out_of_range_is_not_asked_for_again(checksums):
    brokers = told(checksums, [answer(DATA[1]), answer(error=OffsetOutOfRangeError)])
    assert at(checksums, {1: 6, 2: 6}) == {1: SUMS[1]}
    assert brokers.asked == [[(1, 6), (2, 6)]]


def test_errors_that_pass_are_asked_again(checksums):
    brokers = told(
        checksums,
        [answer(DATA[1]), answer(error=NotLeaderForPartitionError)],
        [ConnectionError("closed")],
        [TimeoutError()],
        [answer(DATA[2])],
    )
    assert at(checksums, {1: 6, 2: 6}) == {1: SUMS[1], 2: SUMS[2]}
    assert brokers.asked[1:] == [[(2, 6)]] * 3


def test_the_asking_ends_with_the_timeout(checksums, monkeypatch):
    monkeypatch.setattr(module.time, "monotonic", iter(range(100)).__next__)
    told(checksums, *[[ConnectionError("refused")]] * 100)
    with pytest.raises(
        LogUnavailable, match=r"the checksums of stream s could not be read from Kafka at nowhere \(refused"
    ):
        raise at(checksums, {1: 6})[1]
