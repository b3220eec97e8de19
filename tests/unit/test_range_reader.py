"""Complete and incomplete ranges, with made-up answers. Real brokers answer in tests/contract/test_log_readers.py."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace

import pytest
from aiokafka.errors import CorruptRecordException, NoError, NotLeaderForPartitionError

from strandline.core.errors import Conflict, LogChanged, LogTruncated, LogUnavailable
from strandline.log.brokers import PartitionResponse
from strandline.log.range_reader import RangeReader, _Rest
from strandline.log.reader import OffsetRange
from strandline.log.record_batches import checksum_at
from tests.support.waiting import stretched
from tests.unit.test_record_batches import ABORT, COMMIT, PRODUCER, batch, marker


def rest(partition: int = 0) -> _Rest:
    return _Rest.of(OffsetRange("s", partition, 0, 10))


def answer(records: bytes = b"", stable_offset: int = 10, error: type = NoError) -> PartitionResponse:
    return PartitionResponse(error, stable_offset, [], records)


def full(first: int, end: int) -> bytes:
    """A batch with a record at each offset."""
    return batch(first, *[b"a"] * (end - first))


def positions(*answers: PartitionResponse) -> list[int]:
    left = [rest(number) for number in range(len(answers))]
    with closing(RangeReader("127.0.0.1:1")) as reader:
        reader._take(left, answers)
    return [one.position for one in left]


class Played:
    """A reader whose broker answers as scripted, and whose clock moves only while it waits. The last answer is repeated."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *script: PartitionResponse | Exception) -> None:
        self.now_s, self.script, self.fetches = 0.0, list(script), 0
        self.reader = RangeReader("127.0.0.1:1", timeout_s=30)
        clock = SimpleNamespace(monotonic=lambda: self.now_s, sleep=self.wait)
        monkeypatch.setattr("strandline.log.range_reader.time", clock)
        monkeypatch.setattr(self.reader._brokers, "fetch", self.fetch)

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    async def fetch(self, asked: object, bytes_max: int) -> list[PartitionResponse]:
        self.fetches += 1
        found = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(found, Exception):
            raise found
        return [found]

    def read(self, wanted: OffsetRange) -> list[bytes | None]:
        with closing(self.reader):
            return [value for chunk in self.reader.read([wanted]) for value in chunk.values]


@pytest.mark.guarantee(
    "G750",
    "A range of the log is completely read only when the batch with its last offset has arrived; a transaction marker "
    "or an aborted batch there counts, too. Empty responses are fetched again, and without progress reading ends with "
    "`log_unavailable`. The recorded checksums of slices in the range are compared.",
    promise="a-damaged-log-or-ledger-stops-the-job",
)
@pytest.mark.parametrize("stable_offset", [110, -1], ids=["settled", "unknown"])
def test_an_empty_answer_proves_nothing_and_the_range_is_fetched_again(monkeypatch, stable_offset: int):
    """A broker answers so if its tiered storage takes longer than remote.fetch.max.wait.ms."""
    empty = answer(stable_offset=stable_offset)
    played = Played(monkeypatch, empty, answer(full(0, 10)), empty, empty, answer(batch(10, *[b"b"] * 100)))
    assert played.read(OffsetRange("s", 0, 0, 110)) == [b"a"] * 10 + [b"b"] * 100


@pytest.mark.guarantee("G750")
def test_a_range_whose_answers_stay_empty_is_unavailable(monkeypatch):
    played = Played(monkeypatch, answer(full(0, 4)), answer(stable_offset=10))
    with pytest.raises(
        LogUnavailable,
        match=r"sent no records of stream s, partition 0 from offset 4 for 30 s: the responses are empty, but the log is settled "
        r"up to offset 10; if the topic has tiered storage, check .*remote\.fetch\.max\.wait\.ms",
    ):
        played.read(OffsetRange("s", 0, 0, 10))
    assert played.fetches > 100 and 30 < played.now_s < 31, "it asked all the time, and slept in between"


def test_a_transaction_that_stays_open_is_told_from_empty_answers(monkeypatch):
    with pytest.raises(
        LogUnavailable, match="from offset 0 for 30 s: the log is settled only up to offset 0: a transaction"
    ):
        Played(monkeypatch, answer(stable_offset=0)).read(OffsetRange("s", 0, 0, 10))


@pytest.mark.guarantee(
    "G751",
    "A job whose stream lacks records at offsets that it needs computes nothing without them: it fails, and the error "
    "names the offsets and the remedy. A hole that heals within 30 s has no effect.",
    promise="a-damaged-log-or-ledger-stops-the-job",
)
def test_a_hole_is_no_end_of_a_range(monkeypatch):
    """Offsets 10 to 99 are missing, and the broker answers a fetch at offset 10 with the batch at offset 100."""
    played = Played(monkeypatch, answer(full(0, 10) + full(100, 110)), answer(full(100, 110)))
    with pytest.raises(
        LogTruncated,
        match=r"stream s, partition 0 lacks records of offsets 10 to 99: .*strandline job reset JOB --to TIME, "
        r"with a time later than 2023-11-14T22:13:20\.000Z\. .* delete the records before offset 100 ",
    ):
        played.read(OffsetRange("s", 0, 0, 110))
    assert 30 < played.now_s < 31, "it may heal, as when another replica leads"


@pytest.mark.guarantee("G751")
@pytest.mark.parametrize("end", [50, 100, 110])
def test_a_hole_that_heals_costs_no_record(monkeypatch, end: int):
    holed, whole = answer(full(0, 10) + full(100, 110)), answer(full(10, 100) + full(100, 110))
    played = Played(monkeypatch, holed, *[answer(full(100, 110))] * 9, whole)
    assert len(played.read(OffsetRange("s", 0, 0, end))) == end


def test_a_topic_that_may_be_compacted_is_read_over_its_holes(monkeypatch):
    played = Played(monkeypatch, answer(full(3, 10) + full(100, 110)))
    with closing(played.reader):
        chunks = list(played.reader.read([OffsetRange("s", 0, 0, 110)], allow_holes=True))
    assert [offset for chunk in chunks for offset in chunk.offsets] == [*range(3, 10), *range(100, 110)]


@pytest.mark.guarantee("G750")
@pytest.mark.parametrize(
    "last", [marker(9, COMMIT), batch(5, *[b"x"] * 5, transactional=True)], ids=["marker", "aborted"]
)
def test_a_marker_or_an_aborted_batch_at_the_last_offset_completes_a_range(last: bytes):
    first = int.from_bytes(last[:8], "big")
    one = _Rest.of(OffsetRange("s", 0, 0, 10, checksum_at(last, 9).checksum))
    with closing(RangeReader("127.0.0.1:1")) as reader:
        (arrived,) = reader._take([one], [PartitionResponse(NoError, 10, [(PRODUCER, 5)], full(0, first) + last)])
    assert one.is_complete
    assert [batch.offset_first for batch in arrived.batches] == [0]


def test_an_empty_answer_completes_no_range():
    assert positions(answer(stable_offset=10)) == [0]
    assert positions(answer(), answer()) == [0, 0]
    assert positions(answer(full(0, 10)), answer()) == [10, 0], "there may have been no room for the second"


def test_no_range_is_read_before_the_one_in_front_of_it_is_complete():
    assert positions(answer(full(0, 4)), answer(full(0, 10))) == [4, 0]
    assert positions(answer(stable_offset=3), answer(full(0, 10))) == [0, 0]


def test_an_error_of_a_later_range_waits_for_its_turn():
    assert positions(answer(full(0, 10)), answer(error=NotLeaderForPartitionError)) == [10, 0]
    with pytest.raises(NotLeaderForPartitionError):
        positions(answer(error=NotLeaderForPartitionError))


@pytest.mark.parametrize("broken", [full(0, 10)[:-1] + b"?", full(0, 10).replace(b"a", b"b", 1)], ids=["end", "value"])
def test_bytes_that_broke_in_a_later_range_cost_no_record_of_those_before_it(broken: bytes):
    """Once the reader has counted records as read, it returns them, because they are never requested again."""
    left = [rest(0), rest(1)]
    with closing(RangeReader("127.0.0.1:1")) as reader:
        arrived = reader._take(left, [answer(full(0, 10)), answer(broken)])
        assert [one.position for one in left] == [10, 0]
        assert [value for one in arrived for chunk in one.columns([], []) for value in chunk.values] == [b"a"] * 10
        with pytest.raises(CorruptRecordException, match="checksum"):
            reader._take(left[1:], [answer(broken)])


@pytest.mark.guarantee("G35")
@pytest.mark.parametrize(
    "last",
    [batch(8, b"b", b"c"), batch(8, b"b", b"c", b"beyond the end"), full(8, 9) + marker(9, COMMIT)],
    ids=["whole", "cut", "marker"],
)
def test_a_range_whose_last_batch_is_not_the_recorded_one_is_refused(last: bytes):
    """The log was cut off and has grown again: other records have the same offsets."""
    before = full(0, 8)

    def take(checksum: int | None, *records: bytes) -> int:
        one = _Rest.of(OffsetRange("s", 0, 0, 10, checksum))
        with closing(RangeReader("127.0.0.1:1")) as reader:
            for data in records:
                reader._take([one], [answer(data)])
        return one.position

    recorded = checksum_at(last, 9).checksum
    assert take(recorded, before + last) == take(None, before + last) == take(recorded, before, last)
    assert take(recorded, batch(0, b"other")) == 1, "what is not the last batch has a checksum of its own"
    for records in ([before + full(8, 10)], [before, full(8, 10)]):
        with pytest.raises(Conflict, match="stream s, partition 0: the record at offset 9 has changed since the slice"):
            take(recorded, *records)


@pytest.mark.guarantee("G750")
def test_each_recorded_checksum_inside_a_range_is_compared():
    """A replay reads several slices at once; each has the checksum of its own end."""
    batches = [full(0, 3), full(3, 5), marker(5, ABORT), full(6, 10)]
    sums = [checksum_at(data, int.from_bytes(data[:8], "big")).checksum for data in batches]

    def take(inner: list[tuple[int, int]], *answers: bytes) -> None:
        one = _Rest.of(OffsetRange("s", 0, 0, 10, sums[3], tuple(inner)))
        with closing(RangeReader("127.0.0.1:1")) as reader:
            for data in answers:
                reader._take([one], [answer(data)])
        assert one.is_complete
        assert not one.recorded

    inner = [(0, sums[0]), (2, sums[0]), (4, sums[1]), (5, sums[2])]
    take(inner, b"".join(batches))
    take(inner, *batches)
    for wrong, (offset, checksum) in enumerate(inner):
        with pytest.raises(LogChanged, match=f"the record at offset {offset} has changed"):
            take([*inner[:wrong], (offset, checksum + 1), *inner[wrong + 1 :]], *batches)


def test_what_the_caller_takes_to_work_counts_for_no_silence_of_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that was sent before is over time when a slow caller comes back, and is made again."""
    played = Played(monkeypatch, answer(full(0, 4)), TimeoutError("the request took too long"), answer(full(4, 10)))
    with closing(played.reader):
        found = 0
        for chunk in played.reader.read([OffsetRange("s", 0, 0, 10)]):
            found += len(chunk.values)
            played.wait(stretched(40))
    assert found == 10
