"""Treatment of a topic that ends before the last checkpoint. Kafka is made up."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.core.errors import LogUnavailable
from strandline.log import transactions
from strandline.log.reader import OffsetRange
from strandline.log.transactions import Entry, SlotConfig, TransactionSlot


class Topic:
    """A topic with one partition that holds these values, and its readers and producers."""

    def __init__(self, *values: str) -> None:
        self.values = list(values)

    def refresh(self, topic: str) -> None: ...

    def starts(self, topic: str) -> dict[int, int]:
        return {0: 0}

    def ends_with_open(self, topic: str) -> dict[int, int]:
        return {0: len(self.values)}

    def read(self, wanted: OffsetRange) -> Iterator[list[Any]]:
        offsets = range(wanted.offset_first, wanted.offset_next)
        yield [SimpleNamespace(key=self.values[offset], offset=lambda offset=offset: offset) for offset in offsets]

    def produce(self, topic: str, value: bytes, **_: object) -> None:
        self.values.append(value.decode())

    def begin_transaction(self) -> None: ...

    def flush(self, timeout: float) -> None: ...

    def commit_transaction(self, timeout: float) -> None: ...


def slot_of(topic: Topic, monkeypatch: pytest.MonkeyPatch, written_before: int, *, must_reach: bool) -> TransactionSlot:
    monkeypatch.setattr(transactions, "_readers", lambda *_: (topic, topic))
    monkeypatch.setattr(transactions, "fence_producer", lambda *_: topic)
    config = SlotConfig(
        "nowhere",
        "minutes",
        1,
        lambda _: None,
        identity_of=lambda message: message.key,  # type: ignore[attr-defined,no-any-return]
        failpoints="stream",
        record_bytes_max=1_000,
        must_reach=must_reach,
    )
    return TransactionSlot(config, "minutes-0", {0: written_before})


ENTRIES = [Entry(identity, identity.encode(), None, ()) for identity in "bc"]


def test_what_is_there_since_the_last_checkpoint_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic("a", "b")
    assert slot_of(topic, monkeypatch, 1, must_reach=True).write(ENTRIES) == 1
    assert topic.values == ["a", "b", "c"]


@pytest.mark.guarantee("G35")
def test_nothing_is_written_to_a_stream_that_has_lost_results(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic("a", "b")
    with pytest.raises(LogUnavailable, match="partition 0 ends at offset 2, but records up to offset 9 are confirmed"):
        slot_of(topic, monkeypatch, 9, must_reach=True).write(ENTRIES)
    assert topic.values == ["a", "b"]


def test_dead_letters_go_on_once_in_a_topic_that_was_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The letters that an interrupted slice has written there are before the offset of the last checkpoint."""
    topic = Topic("b")
    assert slot_of(topic, monkeypatch, 9, must_reach=False).write(ENTRIES) == 1
    assert topic.values == ["b", "c"]
