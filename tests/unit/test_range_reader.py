"""When a range is complete, decided from made-up answers; real brokers answer in tests/contract/test_log_readers.py."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace

import pytest
from aiokafka.errors import CorruptRecordException, NoError, NotLeaderForPartitionError

from strandline.core.errors import Conflict
from strandline.log.brokers import Answer
from strandline.log.range_reader import RangeReader, _Rest
from strandline.log.reader import OffsetRange
from strandline.log.record_batches import checksum_at
from tests.unit.test_record_batches import COMMIT, batch, marker


def rest(partition: int = 0) -> _Rest:
    return _Rest(OffsetRange("s", partition, 0, 10), 0)


def answer(records: bytes = b"", stable_offset: int = 10, error: type = NoError) -> Answer:
    return Answer(error, stable_offset, [], records)


def positions(*answers: Answer) -> list[int]:
    left = [rest(number) for number in range(len(answers))]
    with closing(RangeReader("127.0.0.1:1")) as reader:
        reader._take(left, answers)
    return [one.position for one in left]


def test_an_empty_answer_completes_a_range_once_the_log_is_settled_up_to_its_end():
    assert positions(answer(stable_offset=10)) == [10]
    assert positions(answer(stable_offset=9)) == [0]
    assert positions(answer(), answer()) == [10, 10]


def test_an_empty_answer_behind_records_may_only_have_had_no_room():
    assert positions(answer(batch(9, b"a")), answer()) == [10, 0]


def test_no_range_is_read_before_the_one_in_front_of_it_is_complete():
    assert positions(answer(batch(3, b"a")), answer(batch(9, b"a"))) == [4, 0]
    assert positions(answer(stable_offset=3), answer(batch(9, b"a"))) == [0, 0]


def test_an_error_of_a_later_range_waits_for_its_turn():
    assert positions(answer(batch(9, b"a")), answer(error=NotLeaderForPartitionError)) == [10, 0]
    with pytest.raises(NotLeaderForPartitionError):
        positions(answer(error=NotLeaderForPartitionError))


@pytest.mark.parametrize(
    "broken", [batch(9, b"a")[:-1] + b"?", batch(9, b"a").replace(b"a", b"b", 1)], ids=["end", "value"]
)
def test_bytes_that_broke_in_a_later_range_cost_no_record_of_those_before_it(broken: bytes):
    """Once the reader has counted records as read, it hands them on: nobody asks for them again."""
    left = [rest(0), rest(1)]
    with closing(RangeReader("127.0.0.1:1")) as reader:
        arrived = reader._take(left, [answer(batch(9, b"a")), answer(broken)])
        assert [one.position for one in left] == [10, 0]
        assert [value for one in arrived for chunk in one.columns([], []) for value in chunk.values] == [b"a"]
        with pytest.raises(CorruptRecordException, match="checksum"):
            reader._take(left[1:], [answer(broken)])


@pytest.mark.parametrize(
    "last", [batch(8, b"b", b"c"), batch(9, b"c", b"beyond the end"), marker(9, COMMIT)], ids=["whole", "cut", "marker"]
)
def test_a_range_whose_last_batch_is_not_the_recorded_one_is_refused(last: bytes):
    """The log was cut off and has grown again: other records stand under the same offsets."""
    before = batch(0, b"a")

    def take(checksum: int | None, *records: bytes) -> int:
        one = _Rest(OffsetRange("s", 0, 0, 10, checksum), 0)
        with closing(RangeReader("127.0.0.1:1")) as reader:
            for data in records:
                reader._take([one], [answer(data)])
        return one.position

    recorded = checksum_at(last, 9)
    assert take(recorded, before + last) == take(None, before + last) == take(recorded, before, last)
    assert take(recorded, batch(0, b"other")) == 1, "what is not the last batch has a checksum of its own"
    for records in ([before + batch(9, b"other")], [before, batch(9, b"other")]):
        with pytest.raises(
            Conflict, match="stream s, partition 0 holds another record at offset 9 than when the slice"
        ):
            take(recorded, *records)


def test_what_the_caller_takes_to_work_counts_for_no_silence_of_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that was sent before is over time when a slow caller comes back, and is made again."""
    now_s, answers = [0.0], [answer(batch(3, b"a")), TimeoutError("the request took too long"), answer(batch(9, b"b"))]

    async def fetch(asked: object, bytes_max: int) -> list[Answer]:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return [found]

    monkeypatch.setattr(
        "strandline.log.range_reader.time",
        SimpleNamespace(monotonic=lambda: now_s[0], sleep=lambda s: now_s.__setitem__(0, now_s[0] + s)),
    )
    with closing(RangeReader("127.0.0.1:1", timeout_s=30)) as reader:
        monkeypatch.setattr(reader._brokers, "fetch", fetch)
        found = []
        for chunk in reader.read([OffsetRange("s", 0, 0, 10)]):
            found += chunk.values
            now_s[0] += 40
    assert found == [b"a", b"b"]
