"""When a range is complete, decided from made-up answers; real brokers answer in tests/contract/test_log_readers.py."""

from __future__ import annotations

from contextlib import closing

import pytest
from aiokafka.errors import NoError, NotLeaderForPartitionError

from strandline.log.brokers import Answer
from strandline.log.range_reader import RangeReader, _Rest
from strandline.log.reader import OffsetRange
from tests.unit.test_record_batches import batch


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
