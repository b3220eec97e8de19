"""Slices of a job that reads several streams: one watermark, one cut over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.core.errors import LogChanged, NotFound, PermanentError
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import CheckpointRow, EventTimeRule, SliceKind, SliceRow
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.slices.continuity import DOUBT_MS, LogContinuity
from strandline.processing.slices.planner import InputStream, PlannerSettings, SlicePlanner
from strandline.processing.slices.silence import SilenceMeter
from strandline.processing.slices.watermark import (
    accepted_in_after,
    accepted_partitions,
    closes_after,
    greatest,
    reached_after,
    watermark_by,
)
from strandline.results.records.partition_labels import PARTITIONS_MAX
from tests.support.one_by_one import OneByOne

FAST = EventTimeRule(1_000, 5_000, watermark="partitions")
SLOW = EventTimeRule(10_000, 20_000, max_ahead_ms=60_000)
RULE = replace(FAST, by_stream=(("a", FAST), ("b", SLOW)))
WINDOWS = (WindowShape(10_000, 10_000),)


class Streams(OneByOne):
    """Records by stream and partition as (log time, event time); answers as LogIndex does."""

    def __init__(self) -> None:
        self.records: dict[str, dict[int, list[tuple[int, int]]]] = {"a": {0: [], 1: []}, "b": {0: []}}
        self.ids: dict[str, str | None] = {"a": "of a", "b": "of b"}

    def add(self, stream: str, partition: int, log_ms: int, event_ms: int | None = None) -> None:
        self.records[stream][partition].append((log_ms, log_ms if event_ms is None else event_ms))

    def starts(self, stream: str) -> dict[int, int]:
        return dict.fromkeys(self.records[stream], 0)

    def partitions(self, stream: str) -> list[int]:
        return list(self.records[stream])

    def ends(self, stream: str) -> dict[int, int]:
        return {partition: len(records) for partition, records in self.records[stream].items()}

    ends_with_open = ends

    def topic_id(self, stream: str) -> str:
        if (found := self.ids[stream]) is None:
            raise NotFound(f"Kafka has no topic {stream}")
        return found

    def checksums(self, stream: str, offsets: Mapping[int, int]) -> dict[int, int]:
        held = self.records[stream]
        return {p: hash((stream, held[p][offset])) for p, offset in offsets.items() if offset < len(held[p])}

    def not_writable(self, stream: str) -> set[int]:
        return set()

    def newest_log_time(self, stream: str) -> int:
        return max((log_ms for records in self.records[stream].values() for log_ms, _ in records), default=0)

    def offsets_at(self, stream: str, log_time_ms: int, ends: Mapping[int, int]) -> dict[int, int]:
        found = {}
        for partition, records in self.records[stream].items():
            younger = [offset for offset, (log_ms, _) in enumerate(records) if log_ms >= log_time_ms]
            found[partition] = min([*younger, ends[partition]])
        return found


class Job:
    """A job over both streams, whose slices are committed by hand."""

    def __init__(self, path: Path, rows_max: int = 100, starts: tuple[str, str] = ("earliest", "earliest")) -> None:
        self.ledger = Ledger.open(f"sqlite:///{path}/ledger.sqlite")
        for stream in "ab":
            self.ledger.put_stream(stream, {"stream": stream})
        self.ledger.submit_job("j", "pipeline: j", {"pipeline": "j"})
        self.run = self.ledger.begin_run("j", 1)
        self.log, self.now_ms = Streams(), 0
        settings = PlannerSettings(
            "j",
            1,
            self.run.epoch,
            (InputStream("a", starts[0], "of a"), InputStream("b", starts[1], "of b")),
            rows_max,
            RULE,
            WINDOWS,
        )
        meter = SilenceMeter(lambda: self.now_ms)
        continuity = LogContinuity("j", "a", "of a", self.log, lambda: self.now_ms)  # type: ignore[arg-type]
        self.planner = SlicePlanner(
            settings,
            self.ledger,
            self.log,  # type: ignore[arg-type]
            lambda: 0,
            meter,
            0,
            continuity,
        )

    def next(self, now_ms: int) -> SliceRow | None:
        """Look once a second until then, or until there is a slice."""
        while self.now_ms + 1_000 < now_ms:
            self.now_ms += 1_000
            if (row := self.planner.next_slice()) is not None:
                return row
        self.now_ms = max(self.now_ms, now_ms)
        return self.planner.next_slice()

    def planned(self, now_ms: int) -> SliceRow:
        """The next slice, committed."""
        row = self.next(now_ms)
        assert row is not None
        latest: dict[str, dict[int, int]] = {}
        held = []
        for stream, ends in row.offsets.items():
            for partition, end in ends.items():
                some = self.log.records[stream][partition][row.offsets_first[stream].get(partition, 0) : end]
                held += some
                if events := [e for _, e in some if row.watermark_ms is None or e >= row.watermark_ms]:
                    latest.setdefault(stream, {})[partition] = max(events)
        before, reached = self.ledger.last_checkpoint("j"), reached_after(row.reached, latest)
        came = accepted_partitions(row, latest)
        known = [one for partitions in latest.values() for one in partitions.values()]
        self.ledger.commit_checkpoint(
            CheckpointRow(
                job="j", slice=row.number, epoch=self.run.epoch, version=1, emitted={},
                latest_event_ms=greatest(before.latest_event_ms if before else None, *known),
                latest_log_ms=greatest(before.latest_log_ms if before else None, *(log for log, _ in held)),
                records=len(held), accepted=len(held), rejected={}, results={}, dead_letter_offsets={}, committed_ms=0,
                closes_ms=closes_after(row, reached, came), reached=reached,
                accepted_in=accepted_in_after(before, came, row.number),
            )
        )  # fmt: skip
        return row

    @property
    def closed_ms(self) -> int | None:
        last = self.ledger.last_checkpoint("j")
        return last.closes_ms if last else None


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.mark.guarantee(
    "G453",
    "The effective watermark is the minimum over the streams, each with its own rule. A completely idle stream delays "
    "no other. The slice with the first records of a stream doesn't advance the watermark. A job that lags cuts its "
    "slices over all streams at one log time.",
    promise="no-record-is-late-without-cause",
)
def test_the_watermark_is_the_least_over_the_streams_by_their_own_rules(job: Job) -> None:
    for at_ms in (100_000, 101_000):
        job.log.add("a", 0, at_ms)
        job.log.add("a", 1, at_ms)
    job.log.add("b", 0, 101_000, 105_000)
    row = job.planned(1_000)
    assert (row.kind, row.watermark_ms) == (SliceKind.LIVE, None)
    assert row.offsets == {"a": {0: 2, 1: 2}, "b": {0: 1}}
    assert row.rule.by_stream == (("a", FAST), ("b", SLOW)), "as the ledger keeps it"
    assert job.closed_ms == 95_000, "b, less its delay"
    job.log.add("b", 0, 103_000, 130_000)
    assert job.planned(2_000).watermark_ms == 95_000
    assert job.closed_ms == 100_000, "a, less its own"


def test_a_stream_that_is_idle_as_a_whole_holds_no_other_back(job: Job) -> None:
    for stream, partition in (("a", 0), ("a", 1), ("b", 0)):
        job.log.add(stream, partition, 100_000)
    job.planned(1_000)
    assert job.closed_ms == 90_000
    job.next(6_500)  # partitions of a are silent for longer than their timeout, b is not for its own
    job.log.add("b", 0, 140_000)
    row = job.planned(7_000)
    assert row.silence_ms == {"a": {0: 5_000, 1: 5_000}, "b": {0: 5_000}}, "the slice has a record of b"
    assert job.closed_ms == 130_000, "a would say 99,000"


def test_first_records_of_a_stream_hold_all_and_when_all_are_idle_event_time_runs_on(job: Job) -> None:
    job.log.add("a", 0, 100_000)
    job.log.add("a", 1, 100_000)
    job.planned(1_000)
    assert job.closed_ms == 99_000, "a stream that never held a record doesn't count"
    job.log.add("a", 0, 200_000)
    job.log.add("a", 1, 200_000)
    job.log.add("b", 0, 200_000, 150_000)
    assert job.planned(2_000).watermark_ms == 99_000, "the event time reached in b was unknown"
    assert job.closed_ms == 140_000
    row = job.planned(90_000)
    assert row.kind is SliceKind.IDLE and row.watermark_ms is not None
    beyond_ms = min(row.silence_ms["a"][0] - 5_000, row.silence_ms["b"][0] - 20_000)
    assert row.watermark_ms == min(200_000 - 1_000, 150_000 - 10_000) + beyond_ms


@pytest.mark.guarantee("G453")
def test_far_behind_all_streams_are_cut_at_one_log_time(tmp_path: Path) -> None:
    job = Job(tmp_path, rows_max=40)
    for second in range(1, 101):
        job.log.add("a", second % 2, 1_000 * second)
        job.log.add("b", 0, 1_000 * second + 500)
    rows = []
    while (row := job.next(1_000)) is not None and row.kind is not SliceKind.IDLE:
        rows.append(job.planned(1_000))
        times = [
            log
            for stream, ends in row.offsets.items()
            for partition, end in ends.items()
            for log, _ in job.log.records[stream][partition][row.offsets_first[stream].get(partition, 0) : end]
        ]
        behind = [
            log
            for stream, ends in row.offsets.items()
            for partition, end in ends.items()
            for log, _ in job.log.records[stream][partition][end:]
        ]
        assert 0 < len(times) <= 40 and (not behind or max(times) < min(behind))
    assert len(rows) >= 5 and rows[0].kind is SliceKind.CATCH_UP
    assert rows[-1].offsets == {"a": {0: 50, 1: 50}, "b": {0: 100}}


def test_each_stream_begins_where_its_input_says(tmp_path: Path) -> None:
    job = Job(tmp_path, starts=("earliest", "latest"))
    job.log.add("a", 0, 1_000)
    job.log.add("b", 0, 1_000)
    row = job.planned(1_000)
    assert row.offsets == {"a": {0: 0, 1: 0}, "b": {0: 1}} == row.offsets_first, "where the job begins is recorded"
    assert job.planned(1_500).offsets == {"a": {0: 1, 1: 0}, "b": {0: 1}}


def test_a_partition_that_is_added_to_one_stream_joins(job: Job) -> None:
    job.log.add("a", 0, 100_000)
    job.log.add("b", 0, 100_000)
    job.planned(1_000)
    job.log.records["b"][1] = []
    job.log.add("b", 1, 101_000)
    row = job.planned(2_000)
    assert (row.offsets_first["b"], row.offsets["b"]) == ({0: 1}, {0: 1, 1: 1})
    assert row.checksums.keys() == {"a", "b"} and row.checksums["b"].keys() == {0, 1}


def test_a_stream_that_lost_records_or_was_made_anew_ends_the_job(job: Job) -> None:
    job.log.add("a", 0, 100_000)
    job.log.add("b", 0, 100_000)
    job.planned(1_000)
    kept = job.log.records["b"][0].pop()
    assert job.planner.next_slice() is None, "it may be a broker that is behind"
    job.log.records["b"][0].append(kept)
    job.log.ids["b"] = "another"
    job.log.add("a", 0, 101_000)
    with pytest.raises(LogChanged, match="stream b is another topic"):
        job.next(2_000)


def test_a_topic_that_is_gone_is_named(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.log.add("a", 0, 100_000)
    job.planned(1_000)
    job.log.ids["b"] = None
    job.log.add("a", 0, 101_000)
    clock = {"ms": 0}
    monkeypatch.setattr(job.planner._continuity._logs["b"]._topic, "_monotonic_ms", lambda: clock["ms"])
    assert job.planner.next_slice() is None
    clock["ms"] = DOUBT_MS
    with pytest.raises(LogChanged, match="topic of stream b, which job j reads, was deleted"):
        job.planner.next_slice()


def test_of_several_streams_none_may_have_too_many_partitions(job: Job) -> None:
    job.log.records["a"][PARTITIONS_MAX] = []
    with pytest.raises(PermanentError, match=r"stream a has more than 4,096 partitions.*pipeline of its own"):
        job.next(1_000)


def test_one_stream_is_judged_as_it_was() -> None:
    """With one rule for each of two streams that is the same, and one place in each, several are as one with two partitions."""
    same = EventTimeRule(1_000, 5_000)
    both = replace(same, by_stream=(("a", same), ("b", same)))
    for silence in ({}, {0: 6_000}, {0: 6_000, 1: 7_000}):
        alone = watermark_by(same, {"s": {0: 10_000, 1: 20_000}}, {"s": silence})
        parted = {"a": {0: silence.get(0, 0)}, "b": {0: silence.get(1, 0)}}
        assert watermark_by(both, {"a": {0: 10_000}, "b": {0: 20_000}}, parted) == alone
