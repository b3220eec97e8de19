"""A topic that fills at 60,000 records a second, 5 ms of event time each: 300 s of event time a second. Producers send each
partition in batches of its own, so at any instant partitions differ by far more than the delay. The real planner cuts it, over
a ledger in a file and log times that the test makes up. No record is late, whether the job follows the log or comes later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
import pytest

from strandline.ledger.ledger import Ledger
from strandline.ledger.states import EventTimeRule, SliceRow, WatermarkPolicy
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.slices.planner import InputStream, PlannerSettings, SlicePlanner
from strandline.processing.slices.silence import SilenceMeter
from strandline.processing.slices.watermark import (
    accepted_in_after,
    accepted_partitions,
    closes_after,
    greatest,
    reached_after,
)
from tests.support.ledgers import a_checkpoint
from tests.support.one_by_one import OneByOne

STREAM, JOB = "s", "power"
PARTITIONS = 4
RECORDS_PER_S = 60_000
EVENT_STEP_MS = 5
BATCH_MAX_MS = 330
"""Longest time for which a producer collects records of one partition. It is 99 s of event time."""
DELAY_MS = 10_000


@dataclass
class FilledTopic(OneByOne):
    """Double of `LogIndex` at the moment `now_ms`. Log times and event times are arrays by partition."""

    log_ms: list[np.ndarray]
    event_ms: list[np.ndarray]
    now_ms: int = 0

    @staticmethod
    def of(records: int, chance: Random) -> FilledTopic:
        numbers = np.arange(records)
        log_ms, event_ms = [], []
        for partition in range(PARTITIONS):
            own = numbers[numbers % PARTITIONS == partition]
            made_ms = own * 1_000 // RECORDS_PER_S
            sent_ms, flushes_ms = 0, []
            while not flushes_ms or flushes_ms[-1] <= made_ms[-1]:
                sent_ms += chance.randint(1, BATCH_MAX_MS)
                flushes_ms.append(sent_ms)
            flushes = np.array(flushes_ms)
            log_ms.append(flushes[np.searchsorted(flushes, made_ms, "right")])
            event_ms.append(own * EVENT_STEP_MS)
        return FilledTopic(log_ms, event_ms)

    @property
    def end_ms(self) -> int:
        return max(int(times_ms[-1]) for times_ms in self.log_ms)

    def topic_id(self, stream: str) -> str:
        return stream

    def checksums(self, stream: str, offsets: dict[int, int]) -> dict[int, int]:
        return {partition: int(self.event_ms[partition][offset]) for partition, offset in offsets.items()}

    def partitions(self, stream: str) -> list[int]:
        return list(range(PARTITIONS))

    def starts(self, stream: str) -> dict[int, int]:
        return dict.fromkeys(range(PARTITIONS), 0)

    def ends(self, stream: str) -> dict[int, int]:
        return {p: int(np.searchsorted(times, self.now_ms, "right")) for p, times in enumerate(self.log_ms)}

    ends_with_open = ends

    def not_writable(self, stream: str) -> set[int]:
        return set()

    def newest_log_time(self, stream: str) -> int:
        return min(self.now_ms, self.end_ms)

    def offsets_at(self, stream: str, log_time_ms: int, ends: dict[int, int]) -> dict[int, int]:
        found = {p: int(np.searchsorted(times, log_time_ms)) for p, times in enumerate(self.log_ms)}
        return {p: min(found[p], end) for p, end in ends.items()}


@dataclass
class Reading:
    """A job that reads the topic to its end; each slice takes it some time."""

    topic: FilledTopic
    ledger: Ledger
    rule: EventTimeRule
    rows_max: int
    chance: Random
    late: int = 0
    read: int = 0
    apart_ms: list[int] = field(default_factory=list)
    """By how much the partitions' event times differed after each slice."""

    def run(self, from_ms: int) -> None:
        topic = self.topic
        epoch = self.ledger.begin_run(JOB, 1).epoch
        windows = (WindowShape(60_000, 60_000),)
        settings = PlannerSettings(JOB, 1, epoch, (InputStream(STREAM),), self.rows_max, self.rule, windows)
        planner = SlicePlanner(settings, self.ledger, topic, lambda: 0, SilenceMeter(lambda: topic.now_ms))  # type: ignore[arg-type]
        topic.now_ms = from_ms
        records = sum(len(times_ms) for times_ms in topic.log_ms)
        while self.read < records:
            row = planner.next_slice()
            if row is not None:
                self.commit(row, epoch)
            topic.now_ms += self.chance.randint(1, 400) if row is not None else 20

    def commit(self, row: SliceRow, epoch: int) -> None:
        latest = {}
        for partition, events_ms in self.events(row):
            is_late = events_ms < row.watermark_ms if row.watermark_ms is not None else np.zeros(len(events_ms), bool)
            self.read += len(events_ms)
            self.late += int(is_late.sum())
            if not is_late.all():
                latest[partition] = int(events_ms[~is_late].max())
        reached = reached_after(row.reached, {STREAM: latest})
        if reached:
            self.apart_ms.append(max(reached[STREAM].values()) - min(reached[STREAM].values()))
        before, came = self.ledger.last_checkpoint(JOB), accepted_partitions(row, {STREAM: latest})
        self.ledger.commit_checkpoint(
            a_checkpoint(
                row.number,
                epoch,
                emitted={},
                reached=reached,
                closes_ms=closes_after(row, reached, came),
                accepted_in=accepted_in_after(before, came, row.number),
                latest_event_ms=greatest(before.latest_event_ms if before else None, *latest.values()),
                latest_log_ms=self.topic.newest_log_time(STREAM) if row.offsets == self.topic.ends(STREAM) else None,
            )
        )

    def events(self, row: SliceRow) -> Iterator[tuple[int, np.ndarray]]:
        for partition, end in row.offsets[STREAM].items():
            first = row.offsets_first[STREAM].get(partition, 0)
            if first < end:
                yield partition, self.topic.event_ms[partition][first:end]


def read_topic(tmp_path: Path, records: int, watermark: WatermarkPolicy, *, is_live: bool, seed: int) -> Reading:
    chance = Random(seed)
    topic = FilledTopic.of(records, chance)
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite")
    try:
        ledger.put_stream(STREAM, {"stream": STREAM})
        ledger.submit_job(JOB, "pipeline: power", {"pipeline": JOB})
        rule = EventTimeRule(DELAY_MS, 60_000, 300_000, watermark)
        reading = Reading(topic, ledger, rule, 60_000 if not is_live else 1_000_000, chance)
        reading.run(0 if is_live else topic.end_ms)
    finally:
        ledger.close()
    assert reading.read == records
    assert max(reading.apart_ms) > 2 * DELAY_MS, "nothing would be late in any case"
    return reading


SIZES = [300_000, pytest.param(6_000_000, marks=pytest.mark.long)]


@pytest.mark.guarantee(
    "G23",
    "In a topic whose partitions fill at different speeds, no record is late because another partition is ahead. No "
    "later record belongs to a closed window, whatever slices divide the topic.",
    promise="no-record-is-late-without-cause",
)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("is_live", [True, False], ids=["followed", "read later"])
@pytest.mark.parametrize("records", SIZES)
def test_no_record_of_a_topic_that_fills_fast_is_late(tmp_path: Path, records: int, is_live: bool) -> None:
    reading = read_topic(tmp_path, records, "partitions", is_live=is_live, seed=1)
    print(f"{reading.late} of {reading.read} records are late, in {len(reading.apart_ms)} slices")
    assert reading.late == 0


def test_by_the_newest_event_of_all_many_are(tmp_path: Path) -> None:
    assert read_topic(tmp_path, 300_000, "newest", is_live=True, seed=1).late > 0
