"""The state of a log index for a topic that gets partitions. The brokers are made up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.core.errors import LogUnavailable, NotFound
from strandline.log import index, transactions
from strandline.log.admin import ReplicaCounts, TopicDescription
from strandline.log.answers import Answers
from strandline.log.index import LogIndex
from strandline.log.transactions import Entry, SlotConfig, TransactionSlot
from strandline.processing.emission.commit import SliceCommitter

STREAM = "turbine-minute"


class GrowingTopic:
    """The part of KafkaAdmin that an index uses, and a reader.

    Each partition has a record at each offset before its end.
    """

    def __init__(self, *ends: int) -> None:
        self.offsets = list(ends)
        self.replicas: list[ReplicaCounts] = []
        self.settings: dict[str, str] | None = {"min.insync.replicas": "2"}
        self.requests: list[str] = []

    def describe_each(self, topics: Iterable[str]) -> dict[str, TopicDescription]:
        self.requests.append("describe")
        one = TopicDescription("", "id-1", len(self.offsets), replica_counts=tuple(self.replicas))
        return {topic: replace(one, name=topic) for topic in topics}

    def config_each(self, topics: Iterable[str]) -> Answers[dict[str, str]]:
        self.requests.append("config")
        return dict.fromkeys(topics, LogUnavailable("no answer") if self.settings is None else self.settings)

    def starts_each(self, partitions: Mapping[str, Iterable[int]]) -> dict[str, dict[int, int]]:
        return {topic: dict.fromkeys(numbers, 0) for topic, numbers in partitions.items()}

    def ends_each(self, partitions: Mapping[str, Iterable[int]]) -> dict[str, dict[int, int]]:
        return {topic: {number: self.offsets[number] for number in numbers} for topic, numbers in partitions.items()}

    ends_with_open_each = ends_each

    def read(self, wanted: Any) -> list[list[Any]]:
        numbers = range(wanted.offset_first, wanted.offset_next)
        return [[SimpleNamespace(key=f"{wanted.partition}-{at}", offset=lambda at=at: at) for at in numbers]]


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> GrowingTopic:
    """Return a topic of two partitions. No time passes."""
    made = GrowingTopic(3, 4)
    monkeypatch.setattr(index, "KafkaAdmin", lambda *_, **__: made)
    monkeypatch.setattr(index, "time", SimpleNamespace(monotonic=lambda: 5.0))
    return made


@pytest.mark.guarantee("G36")
def test_a_checkpoint_holds_a_partition_that_was_added_since_the_one_before(topic: GrowingTopic) -> None:
    """The partition's results are already there: a reader would take the emission without them, and treat them as late."""
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


@pytest.mark.guarantee("G757")
def test_a_partition_without_a_leader_or_enough_replicas_in_sync_cannot_be_written(topic: GrowingTopic) -> None:
    topic.offsets = [0] * 5
    topic.replicas = [ReplicaCounts(3, 3), ReplicaCounts(3, 1), ReplicaCounts(3, 0), ReplicaCounts(3, 2)]
    assert LogIndex("nowhere").not_writable(STREAM) == {1, 2, 4}, "nothing is known of the last"


def test_if_a_topic_has_fewer_replicas_than_must_be_in_sync_its_senders_need_only_the_leader(
    topic: GrowingTopic,
) -> None:
    topic.replicas = [ReplicaCounts(1, 1), ReplicaCounts(1, 0)]
    assert LogIndex("nowhere").not_writable(STREAM) == {1}


@pytest.mark.parametrize("settings", [None, {}, {"min.insync.replicas": ""}])
def test_if_the_setting_is_not_known_no_partition_counts_as_writable(
    topic: GrowingTopic, settings: dict[str, str] | None
) -> None:
    topic.replicas, topic.settings = [ReplicaCounts(3, 3)] * 2, settings
    log = LogIndex("nowhere")
    assert log.not_writable(STREAM) == {0, 1}
    topic.settings = {"min.insync.replicas": "2"}
    assert log.not_writable(STREAM) == set()


def test_replicas_are_read_once_a_second_and_the_setting_twice_a_minute(
    topic: GrowingTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.replicas = [ReplicaCounts(3, 3)] * 2
    now_s = 5.0
    monkeypatch.setattr(index, "time", SimpleNamespace(monotonic=lambda: now_s))
    log = LogIndex("nowhere")
    for _ in range(600):
        log.not_writable(STREAM)
        log.partitions(STREAM)
        now_s += 0.1
    assert topic.requests.count("describe") <= 60 and topic.requests.count("config") == 2
    topic.replicas = [ReplicaCounts(3, 1)] * 2
    now_s += 1.0
    assert log.not_writable(STREAM) == {0, 1}


def test_many_streams_are_asked_about_in_one_request(topic: GrowingTopic) -> None:
    streams = [f"s{number}" for number in range(50)]
    topic.replicas = [ReplicaCounts(3, 3), ReplicaCounts(3, 1)]
    log = LogIndex("nowhere")
    assert log.ends_of(streams) == {stream: {0: 3, 1: 4} for stream in streams}
    assert log.not_writable_of(streams) == {stream: {1} for stream in streams}
    assert topic.requests == ["describe", "config"]


def test_a_stream_without_a_topic_has_its_own_answer(topic: GrowingTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    described = topic.describe_each
    gone = NotFound("there is no topic")
    monkeypatch.setattr(topic, "describe_each", lambda topics: {**described(topics), "gone": gone})
    log = LogIndex("nowhere")
    assert log.ends_of([STREAM, "gone"]) == {STREAM: {0: 3, 1: 4}, "gone": gone}
    assert log.topic_ids([STREAM, "gone"]) == {STREAM: "id-1", "gone": gone}
    with pytest.raises(NotFound, match="there is no topic"):
        log.ends("gone")
