"""Ranges of several members that are fetched in one go: order, members that fail, and errors of one range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from strandline.core.errors import LogTruncated, LogUnavailable
from strandline.log.range_reader import FetchedBatches, FetchedRecords
from strandline.log.reader import OffsetRange
from strandline.processing.source.shared_records import STUCK_MAX, SharedRecords

ALL = [OffsetRange(f"s{member}", partition, 10, 20) for member in range(4) for partition in (0, 1)]


class Arrived(FetchedBatches):
    """Batches whose only record is the name of the range."""

    def columns(self, headers: Sequence[str], headers_beside: Sequence[str]) -> Iterator[FetchedRecords]:
        one = self.offset_range
        yield FetchedRecords(one, [one.offset_first], [0], [f"{one.stream}/{one.partition}".encode()], [])


class Broker:
    """Sends each range in two parts, and keeps the requests. `errors`: stream -> error that its first range raises."""

    def __init__(self, **errors: Exception) -> None:
        self.errors = errors
        self.requests: list[list[OffsetRange]] = []
        self.waited: list[str] = []

    def batches(self, ranges: Sequence[OffsetRange]) -> Iterator[FetchedBatches]:
        self.requests.append(list(ranges))
        for one in ranges:
            if one.stream in self.errors:
                self.waited.append(one.stream)
                raise self.errors[one.stream]
            yield Arrived(one, [])
            yield Arrived(one, [], is_last=True)


def of_member(member: int) -> list[OffsetRange]:
    return [one for one in ALL if one.stream == f"s{member}"]


def read(shared: SharedRecords, ranges: Sequence[OffsetRange]) -> list[bytes | None]:
    return [value for found in shared.read(ranges) for value in found.values]


def names(member: int) -> list[bytes]:
    return [f"s{member}/{partition}".encode() for partition in (0, 0, 1, 1)]


def test_one_request_reads_the_ranges_of_all_members() -> None:
    broker = Broker()
    shared = SharedRecords(broker, ALL)
    assert [read(shared, of_member(member)) for member in range(4)] == [names(member) for member in range(4)]
    assert broker.requests == [ALL]


def test_ranges_of_a_member_that_failed_are_left_out() -> None:
    broker = Broker()
    shared = SharedRecords(broker, ALL)
    next(shared.read(of_member(0)))  # the member fails at its first records
    assert read(shared, of_member(2)) == names(2)
    assert read(shared, of_member(3)) == names(3)
    assert broker.requests == [ALL, [*of_member(2), *of_member(3)]]


def test_an_error_of_a_range_concerns_its_member_alone() -> None:
    broker = Broker(s1=LogTruncated("s1 is gone"))
    shared = SharedRecords(broker, ALL)
    assert read(shared, of_member(0)) == names(0)
    with pytest.raises(LogTruncated, match="s1 is gone"):
        read(shared, of_member(1))
    assert [read(shared, of_member(member)) for member in (2, 3)] == [names(2), names(3)]


def test_only_some_ranges_are_waited_for_if_kafka_sends_nothing() -> None:
    """Each wait takes the timeout of the reader, so a hundred members must not wait one after the other."""
    streams = [f"s{member}" for member in range(STUCK_MAX + 3)]
    ranges = [OffsetRange(stream, 0, 0, 1) for stream in streams]
    broker = Broker(**{stream: LogUnavailable(f"nothing of {stream}") for stream in streams})
    shared = SharedRecords(broker, ranges)
    for one in ranges:
        with pytest.raises(LogUnavailable):
            read(shared, [one])
    assert broker.waited == streams[:STUCK_MAX]


def test_a_range_that_arrives_ends_a_series_of_waits() -> None:
    stuck = {f"s{member}": LogUnavailable("nothing") for member in (0, 1)}
    shared = SharedRecords(Broker(**stuck), ALL)
    for member in (0, 1):
        with pytest.raises(LogUnavailable):
            read(shared, of_member(member))
    assert read(shared, of_member(2)) == names(2)
    assert shared._stuck == 0


def test_a_range_that_was_not_announced_is_read_alone() -> None:
    """Replays merge the ranges of several slices when they read them."""
    broker = Broker()
    shared = SharedRecords(broker, of_member(1))
    whole = OffsetRange("s0", 0, 0, 100)
    assert read(shared, [whole]) == [b"s0/0", b"s0/0"]
    assert read(shared, of_member(1)) == names(1)
    assert broker.requests == [[whole], of_member(1)]
