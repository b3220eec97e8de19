"""The last records of a topic whose start moves and whose partitions grow during the look; real ones in test_newer_results.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strandline.core.errors import LogTruncated
from strandline.log import messages
from strandline.log.messages import last_records
from strandline.log.reader import OffsetRange


class ShrinkingTopic:
    """A topic, and a reader of it. A record is its offset.

    `removed`: what retention has removed after a number of calls.
    """

    def __init__(self, *removed: int) -> None:
        self.removed = list(removed)
        self.start = 0
        self.partitions = [0]
        self.read_from: list[int] = []

    def starts(self, topic: str) -> dict[int, int]:
        return dict.fromkeys(self.partitions, self.start)

    def settled_ends(self, topic: str) -> dict[int, int]:
        self.partitions = [0, 1]
        self._pass()
        return dict.fromkeys(self.partitions, 2_000)

    def read(self, wanted: OffsetRange) -> Iterator[list[int]]:
        self.read_from.append(wanted.offset_first)
        self._pass()
        if wanted.offset_first < self.start:
            raise LogTruncated(f"offset {wanted.offset_first} is gone")
        yield list(range(wanted.offset_first, wanted.offset_next))

    def close(self) -> None:
        pass

    def _pass(self) -> None:
        self.start = self.removed.pop(0) if self.removed else self.start


def found_in(topic: ShrinkingTopic, monkeypatch: pytest.MonkeyPatch, wanted: set[int]) -> list[object]:
    monkeypatch.setattr(messages, "LogReader", lambda bootstrap: topic)
    return list(last_records("nowhere", topic, "t", {}, lambda record: record in wanted))  # type: ignore[arg-type, operator]


def test_a_partition_that_is_added_and_records_that_are_removed_while_the_ends_settle_are_no_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = ShrinkingTopic(1_800)
    assert found_in(topic, monkeypatch, {1_900}) == [1_900, 1_900]
    assert topic.read_from == [1_800, 1_800]


def test_what_retention_removes_during_the_look_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = ShrinkingTopic(0, 1_600)
    assert found_in(topic, monkeypatch, {1_550, 1_700}) == [1_700, 1_700]
    assert topic.read_from == [1_500, 1_600, 1_500, 1_600]
    assert found_in(ShrinkingTopic(0, 2_000), monkeypatch, {1_550}) == []


def test_a_log_that_misses_what_it_says_it_holds_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = ShrinkingTopic(0, 1_600)
    monkeypatch.setattr(topic, "starts", lambda name: {0: 0, 1: 0})
    with pytest.raises(LogTruncated, match="offset 1500 is gone"):
        found_in(topic, monkeypatch, {1_700})
