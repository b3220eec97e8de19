"""What a log index knows of a topic that gets partitions. The brokers are made up."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.log import index, transactions
from strandline.log.admin import TopicDescription
from strandline.log.index import LogIndex
from strandline.log.transactions import Entry, SlotConfig, TransactionSlot
from strandline.processing.emission.commit import SliceCommitter

STREAM = "turbine-minute"


class GrowingTopic:
    """As much of KafkaAdmin as an index asks for, and a reader. Each partition holds a record at each offset before its end."""

    def __init__(self, *ends: int) -> None:
        self.offsets = list(ends)

    def describe(self, topic: str) -> TopicDescription:
        return TopicDescription(topic, "id-1", len(self.offsets))

    def starts(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        return dict.fromkeys(partitions, 0)

    def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        return {partition: self.offsets[partition] for partition in partitions}

    ends_with_open = ends

    def read(self, wanted: Any) -> list[list[Any]]:
        numbers = range(wanted.offset_first, wanted.offset_next)
        return [[SimpleNamespace(key=f"{wanted.partition}-{at}", offset=lambda at=at: at) for at in numbers]]


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> GrowingTopic:
    """Of two partitions. No time passes."""
    made = GrowingTopic(3, 4)
    monkeypatch.setattr(index, "KafkaAdmin", lambda *_, **__: made)
    monkeypatch.setattr(index, "time", SimpleNamespace(monotonic=lambda: 5.0))
    return made


def test_a_checkpoint_holds_a_partition_that_was_added_since_the_one_before(topic: GrowingTopic) -> None:
    """Its results stand there already: a reader would take the emission without them, and them as late."""
    stage = SimpleNamespace(name="minutes", streams=(STREAM,))
    run: Any = SimpleNamespace(
        index=LogIndex("nowhere"), pipeline=SimpleNamespace(all_stages=[stage]), ledger=None, job="minutes"
    )
    committer = SliceCommitter(run, SimpleNamespace(slice_first=1), lambda: None, lambda: None)  # type: ignore[arg-type]
    assert committer._result_offsets(None, {"minutes": 2}) == {STREAM: {0: 3, 1: 4}}
    topic.offsets.append(2)
    assert committer._result_offsets(None, {"minutes": 2}) == {STREAM: {0: 3, 1: 4, 2: 2}}


def test_a_task_that_is_done_again_finds_what_it_wrote_to_an_added_partition(
    topic: GrowingTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogIndex("nowhere")
    assert log.partitions(STREAM) == [0, 1]
    topic.offsets.append(2)
    monkeypatch.setattr(transactions, "_readers", lambda *_: (log, topic))
    monkeypatch.setattr(transactions, "fence_producer", lambda *_: None)
    config = SlotConfig(
        "nowhere",
        STREAM,
        1,
        lambda _: None,
        identity_of=lambda message: message.key,  # type: ignore[attr-defined,no-any-return]
        failpoints="stream",
        record_bytes_max=1_000,
    )
    slot = TransactionSlot(config, "minutes-0", {0: 3, 1: 4})
    assert slot.write([Entry("2-1", b"", None, ())]) == 0, "it is there"
