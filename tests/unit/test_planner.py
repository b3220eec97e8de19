"""Cuts of the log into slices, over a real ledger in a file and a log that a test fills by hand."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest

from strandline.core.errors import Fenced, LedgerBehind, LogUnavailable, NotFound
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import CheckpointRow, Desired, EventTimeRule, SliceKind
from strandline.processing.pipelines.event_time import WindowShape, open_until
from strandline.processing.slices.continuity import LogContinuity
from strandline.processing.slices.emissions import Emitter
from strandline.processing.slices.planner import FILLING_MS, InputStream, PlannerSettings, SlicePlanner
from strandline.processing.slices.rewind import RewindPlan
from strandline.processing.slices.silence import SilenceMeter
from strandline.processing.slices.spark_offset import offset_of_slice
from strandline.processing.slices.watermark import (
    accepted_in_after,
    accepted_partitions,
    bounded_ms,
    closes_after,
    greatest,
    reached_after,
)
from strandline.processing.source.data_source import SliceStreamReader
from tests.support.ledgers import a_checkpoint, a_slice
from tests.support.one_by_one import OneByOne

RULE = EventTimeRule(delay_ms=1_000, idle_timeout_ms=5_000)
WINDOWS = (WindowShape(10_000, 10_000), WindowShape(60_000, 60_000))


class FakeLog(OneByOne):
    """Records by partition as (log time, event time); answers as LogIndex does."""

    def __init__(self, partitions=2):
        self.records = {partition: [] for partition in range(partitions)}
        self.open_from = {}
        """Partition -> where an open transaction begins."""
        self.is_away = False
        self.read_only = set()
        self.first = {}
        """Partition -> the first offset that retention left, where it took some."""
        self.id = "first"
        """The topic's; None: there is no topic."""
        self.unseen = set()
        """Partitions that a query for ends doesn't see until the partitions are queried."""

    def add(self, partition, log_ms, event_ms):
        self.records[partition].append((log_ms, event_ms))

    def starts(self, stream):
        return dict.fromkeys(self.records, 0) | self.first

    def partitions(self, stream):
        self.unseen.clear()
        return list(self.records)

    def ends(self, stream):
        if self.is_away:
            raise LogUnavailable("the brokers are away")
        known = self.records.keys() - self.unseen
        return {partition: self.open_from.get(partition, len(self.records[partition])) for partition in sorted(known)}

    def ends_with_open(self, stream):
        return {partition: len(records) for partition, records in self.records.items()}

    def topic_id(self, stream):
        if self.id is None:
            raise NotFound("Kafka has no topic s")
        return self.id

    def checksums(self, stream, offsets):
        starts = self.starts(stream)
        return {
            partition: hash(records[offset])
            for partition, offset in offsets.items()
            if starts[partition] <= offset < len(records := self.records[partition])
        }

    def not_writable(self, stream):
        return self.read_only

    def newest_log_time(self, stream):
        return max((log_ms for records in self.records.values() for log_ms, _ in records), default=0)

    def offsets_at(self, stream, log_time_ms, ends):
        found = {}
        for partition, records in self.records.items():
            younger = [offset for offset, (log_ms, _) in enumerate(records) if log_ms >= log_time_ms]
            found[partition] = min([*younger, ends[partition]])
        return found


class Job:
    """A job whose slices are planned and committed by hand."""

    def __init__(self, tmp_path, rule=RULE, rows_max=100):
        self.ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite")
        self.ledger.put_stream("s", {"stream": "s"})
        self.ledger.submit_job("j", "pipeline: j", {"pipeline": "j"})
        self.run = self.ledger.begin_run("j", 1)
        self.log = FakeLog()
        self.now_ms = 0
        self.is_bounded = False
        """True if log times are right. In most tests, a record is sent long before its event time, for short."""
        self.rule = rule
        settings = PlannerSettings("j", 1, self.run.epoch, (InputStream("s"),), rows_max, rule, WINDOWS)
        self.planner = self.planner_of(settings)

    def planner_of(self, settings, filling_ms=0):
        """With a wall clock that is days off: nothing is decided by it."""
        meter = SilenceMeter(lambda: self.now_ms)
        continuity = LogContinuity("j", "s", "first", self.log, lambda: self.now_ms)
        return SlicePlanner(settings, self.ledger, self.log, lambda: self.now_ms + 10**9, meter, filling_ms, continuity)

    def next(self, now_ms):
        """Look once a second until `now_ms`, or until there is a slice."""
        while self.now_ms + 1_000 < now_ms:
            self.now_ms += 1_000
            if (row := self.planner.next_slice()) is not None:
                return row
        self.now_ms = max(self.now_ms, now_ms)
        return self.planner.next_slice()

    def commit(self, row):
        held = [
            record
            for partition, offset_next in row.offsets["s"].items()
            for record in self.log.records[partition][row.offsets_first["s"].get(partition, 0) : offset_next]
        ]
        before = self.ledger.last_checkpoint("j")
        accepted = [event for _, event in held if row.watermark_ms is None or event >= row.watermark_ms]
        latest = {"s": self.latest(row)}
        logged = {"s": self.logged(row)} if self.is_bounded else latest
        reached, came = reached_after(row.reached, logged), accepted_partitions(row, latest)
        self.ledger.commit_checkpoint(
            CheckpointRow(
                job="j", slice=row.number, epoch=self.run.epoch, version=1, emitted={},
                latest_event_ms=greatest(before.latest_event_ms if before else None, max(accepted, default=None)),
                latest_log_ms=greatest(before.latest_log_ms if before else None, max((log for log, _ in held), default=None)),
                records=len(held), accepted=len(accepted), rejected={}, results={}, dead_letter_offsets={}, committed_ms=0,
                closes_ms=closes_after(row, reached, came), reached=reached,
                accepted_in=accepted_in_after(before, came, row.number),
            )
        )  # fmt: skip
        return row

    def logged(self, row):
        """Partition -> how far its accepted records move event time: none further than its log time."""
        found = {}
        for partition, offset_next in row.offsets["s"].items():
            held = self.log.records[partition][row.offsets_first["s"].get(partition, 0) : offset_next]
            if accepted := [min(one) for one in held if row.watermark_ms is None or one[1] >= row.watermark_ms]:
                found[partition] = max(accepted)
        return found

    def latest(self, row):
        found = {}
        for partition, offset_next in row.offsets["s"].items():
            held = self.log.records[partition][row.offsets_first["s"].get(partition, 0) : offset_next]
            if accepted := [e for _, e in held if row.watermark_ms is None or e >= row.watermark_ms]:
                found[partition] = max(accepted)
        return found

    @property
    def closed_ms(self):
        return self.ledger.last_checkpoint("j").closes_ms

    def commit_all(self, now_ms):
        rows = []
        while (row := self.next(now_ms)) is not None:
            rows.append(self.commit(row))
            assert len(rows) < 100, "the planner never comes to rest"
        return rows


@pytest.fixture
def job(tmp_path):
    job = Job(tmp_path)
    yield job
    job.ledger.close()


def test_an_empty_log_has_no_slice(job):
    assert job.next(10) is None


@pytest.mark.guarantee(
    "G10",
    "A slice is recorded in the ledger before it is processed, and its ranges never change.",
    promise="results-depend-only-on-the-log",
)
def test_a_slice_is_in_the_ledger_before_it_is_returned_and_is_not_cut_again(job):
    job.log.add(0, 100, 50)
    row = job.next(200)
    assert row.offsets == {"s": {0: 1, 1: 0}}
    assert job.ledger.last_slice("j") == row
    job.log.add(1, 210, 60)
    assert job.next(300) == row
    job.commit(row)
    assert job.next(300).offsets_first == row.offsets


def test_a_slice_closes_the_windows_that_its_own_records_complete(job):
    job.log.add(0, 100, 9_000)
    job.log.add(0, 200, 12_000)  # closes 0-10 s
    (row,) = job.commit_all(300)
    assert (row.kind, row.watermark_ms, job.closed_ms) == (SliceKind.LIVE, None, 11_000)
    job.log.add(1, 300, 11_500)
    (row,) = job.commit_all(400)
    assert (row.watermark_ms, row.rule, row.reached) == (11_000, RULE, {"s": {0: 12_000}})


def test_silence_closes_windows_and_then_the_ledger_rests(job):
    job.log.add(0, 100, 9_000)
    job.commit_all(200)
    assert job.commit_all(5_000) == []
    (row,) = job.commit_all(8_000)
    assert (row.kind, row.silence_ms["s"][0]) == (SliceKind.IDLE, 7_800)
    assert job.closed_ms == row.watermark_ms == 9_000 + (7_800 - 5_000) - 1_000
    job.commit_all(200_000)
    assert job.closed_ms >= open_until(WINDOWS, job.ledger.last_checkpoint("j").latest_event_ms)
    assert job.commit_all(400_000) == []


def test_a_partition_that_is_behind_holds_the_others_back_until_it_is_idle(job):
    job.log.add(0, 100, 50_000)
    job.log.add(1, 100, 9_000)
    job.commit_all(200)
    assert job.closed_ms == 8_000
    for second in range(1, 8):
        job.log.add(0, 1_000 * second, 50_000 + 1_000 * second)
        job.commit_all(1_000 * second)
    assert job.closed_ms == 57_000 - 1_000


@pytest.mark.guarantee("G24")
def test_behind_an_open_transaction_there_is_no_silence(job):
    for partition in (0, 1):
        job.log.add(partition, 100, 9_000)
    job.commit_all(200)
    for partition in (0, 1):
        job.log.open_from[partition] = 1
        job.log.add(partition, 300, 9_500)
    assert job.commit_all(600_000) == []
    job.log.open_from.clear()
    assert [row.watermark_ms for row in job.commit_all(600_100)] == [8_000], "what was behind it is not late"


def test_what_was_counted_is_recorded_with_the_slice_and_a_new_run_begins_anew(job):
    job.log.add(0, 100, 9_000)
    job.commit_all(200)
    job.commit_all(4_000)
    job.log.add(1, 4_000, 9_100)
    (row,) = job.commit_all(4_200)
    assert row.silence_ms == {"s": {0: 4_000, 1: 4_000}}, "the slice's record ends that of 1 only if it is accepted"
    assert job.ledger.last_checkpoint("j").accepted_in == {"s": {0: 1, 1: row.number}}
    run = job.ledger.begin_run("j", 2)
    job.planner = job.planner_of(PlannerSettings("j", 1, run.epoch, (InputStream("s"),), 100, RULE, WINDOWS))
    assert job.commit_all(8_000) == []
    job.log.add(1, 8_000, 9_200)
    assert job.next(8_300).silence_ms == {"s": {0: 3_100, 1: 3_100}}, "from its own first look on"


@pytest.mark.guarantee("G24")
@pytest.mark.parametrize("wall_ms", [lambda now_ms: now_ms + 45_000, lambda now_ms: now_ms + now_ms % 3 * 86_400_000])
def test_a_wall_clock_that_is_ahead_or_steps_by_days_makes_no_record_late(job, wall_ms):
    """Two partitions get a record a second, logged as they happen; one of them pauses for 4 of the 5 seconds again and again."""
    settings = PlannerSettings("j", 1, job.run.epoch, (InputStream("s"),), 100, RULE, WINDOWS)
    job.planner = SlicePlanner(
        settings, job.ledger, job.log, lambda: wall_ms(job.now_ms), SilenceMeter(lambda: job.now_ms), 0
    )
    job.log.add(1, 100, 100)
    for second in range(1, 61):
        job.log.add(0, 1_000 * second, 1_000 * second)
        if second % 5 == 0:
            for held_up in range(second - 4, second + 1):
                job.log.add(1, 1_000 * second, 1_000 * held_up)
        job.commit_all(1_000 * second + 300)
    rows = job.ledger.slices("j", 1, 1_000)
    accepted = sum(job.ledger.checkpoint("j", row.number).accepted for row in rows)
    assert accepted == 121
    assert rows[-1].watermark_ms == 55_000 - 1_000


@pytest.mark.guarantee("G24")
@pytest.mark.parametrize("begins_a_new_run", [False, True])
def test_what_was_held_up_by_an_outage_is_not_late(job, begins_a_new_run):
    """Two feeds; the brokers go away when one of them has been silent for 4 of the 5 seconds. Both senders deliver what they
    kept when they are back, one of them 3 s after the other."""
    for partition in (0, 1):
        job.log.add(partition, 100, 9_000)
    job.commit_all(200)
    for second in range(1, 5):
        job.log.add(0, 1_000 * second, 9_000 + 1_000 * second)
        job.commit_all(1_000 * second)
    job.log.is_away = True
    with pytest.raises(LogUnavailable):
        job.next(4_000)
    job.log.is_away = False
    if begins_a_new_run:
        run = job.ledger.begin_run("j", 2)
        job.run = run
        job.planner = job.planner_of(PlannerSettings("j", 1, run.epoch, (InputStream("s"),), 100, RULE, WINDOWS))
    job.now_ms = 60_000
    job.commit_all(60_000)
    for second in range(4, 60):
        job.log.add(0, 60_000, 9_000 + 1_000 * second)
    job.commit_all(63_000)
    for second in range(1, 60):
        job.log.add(1, 63_000, 9_000 + 1_000 * second)
    (row,) = job.commit_all(63_100)
    assert row.watermark_ms == 8_000
    assert job.ledger.last_checkpoint("j").accepted == 59


@pytest.mark.parametrize("is_good", [True, False])
def test_the_first_records_of_a_partition_are_not_late_for_the_silence_of_others(job, is_good):
    """The records are like those of a partition with earlier records: event time does not advance with what arrives now.

    If none of them was accepted, it does from the next slice on.
    """
    job.planner = job.planner_of(PlannerSettings("j", 1, job.run.epoch, (InputStream("s"),), 100, RULE, WINDOWS[1:]))
    job.log.add(0, 100, 9_000)
    job.commit_all(200)
    assert job.commit_all(30_000) == [], "the window is open"
    job.log.add(1, 30_000, 12_000 if is_good else 7_000)
    (row,) = job.commit_all(30_100)
    assert (row.silence_ms["s"][0], row.watermark_ms) == (29_900, 8_000)
    assert job.closed_ms == (11_000 if is_good else 9_000 + 29_900 - 5_000 - 1_000)


def test_a_rule_that_changes_counts_from_the_next_slice_on(job):
    job.log.add(0, 100, 50_000)
    job.log.add(1, 100, 9_000)
    job.commit_all(200)
    newest = EventTimeRule(500, None, None, "newest")
    job.planner = job.planner_of(PlannerSettings("j", 1, job.run.epoch, (InputStream("s"),), 100, newest, WINDOWS))
    (row,) = job.commit_all(300)
    assert (row.kind, row.watermark_ms, row.rule) == (SliceKind.IDLE, 49_500, newest)


def waiting(job):
    settings = PlannerSettings("j", 1, job.run.epoch, (InputStream("s"),), 10_000, RULE, WINDOWS)
    job.planner = job.planner_of(settings, FILLING_MS)
    return job


@pytest.mark.guarantee("G23")
def test_the_first_slice_waits_for_all_partitions_of_a_stream_that_begins_to_fill(job):
    """Fast: 30 s of event time in 100 ms, and the partition that comes second begins with the oldest."""
    waiting(job)
    assert job.commit_all(100_000) == [], "it stays empty for long"
    for number in range(3_000):
        job.log.add(0, 100_000, 10 * number)
    assert job.next(100_020) is None
    for number in range(3_000):
        job.log.add(1, 100_050, 10 * number + 5)
    job.commit_all(100_100)
    assert job.ledger.last_checkpoint("j").accepted == 6_000


def test_a_partition_that_stays_empty_holds_the_first_slice_up_for_a_moment_only(job):
    waiting(job).log.add(0, 100, 50)
    assert job.next(1_000) is None
    assert job.next(1_000 + FILLING_MS - 1) is None
    assert job.commit(job.next(1_000 + FILLING_MS)).offsets == {"s": {0: 1, 1: 0}}
    job.log.add(0, 3_000, 60)
    assert job.next(3_000).offsets == {"s": {0: 2, 1: 0}}, "only the first one"


def test_the_first_slice_waits_for_an_open_transaction_in_an_empty_partition(job):
    waiting(job).log.add(0, 100, 50_000)
    job.log.open_from[1] = 0
    job.log.add(1, 100, 9_000)
    assert job.next(60_000) is None
    job.log.open_from.clear()
    assert job.commit(job.next(60_100)).offsets == {"s": {0: 1, 1: 1}}
    assert job.ledger.last_checkpoint("j").accepted == 2


def test_a_drain_waits_for_nobody(job):
    waiting(job).log.add(0, 100, 50)
    job.ledger.set_desired("j", Desired.DRAINED)
    assert [row.kind for row in job.commit_all(100)] == [SliceKind.LIVE, SliceKind.DRAIN]


def test_far_behind_all_partitions_are_cut_at_one_log_time(tmp_path):
    job = Job(tmp_path, rows_max=10)
    for second in range(30):
        job.log.add(0, second * 1_000, second * 1_000)
        if second % 3 == 0:
            job.log.add(1, second * 1_000 + 500, second * 1_000)
    while (row := job.next(40_000)) is not None:
        for partition, offset_next in row.offsets["s"].items():
            for offset, (log_ms, _) in enumerate(job.log.records[partition]):
                assert (log_ms < row.cut_time_ms) == (offset < offset_next) or row.kind is not SliceKind.CATCH_UP
        held = sum(row.offsets["s"][p] - row.offsets_first["s"][p] for p in (0, 1))
        assert held <= 10
        job.commit(row)
    assert job.ledger.last_slice("j").offsets == {"s": {0: 30, 1: 10}}
    job.ledger.close()


def job_that_has_read(tmp_path, record_ms, until_ms, rule=RULE, rows_max=10):
    """Return a job over a topic of one partition, with one record, which it has committed by `until_ms`."""
    job = Job(tmp_path, rule, rows_max)
    job.log.records = {0: []}
    job.log.add(0, record_ms, record_ms)
    job.commit_all(until_ms)
    return job


def late_in(job, rows):
    """(partition, event time) of each record that is late."""
    return [
        (partition, event_ms)
        for row in rows
        for partition, end in row.offsets["s"].items()
        for _, event_ms in job.log.records[partition][row.offsets_first["s"].get(partition, 0) : end]
        if row.watermark_ms is not None and event_ms < row.watermark_ms
    ]


def row_counts(rows):
    return [sum(row.offsets["s"].values()) - sum(row.offsets_first["s"].values()) for row in rows]


@pytest.mark.guarantee(
    "G36",
    "Running jobs notice an added partition within 10 s and read it from its first record. No record is late because "
    "its partition was added, with the limits of decision 24.",
    promise="no-record-is-late-without-cause",
)
@pytest.mark.parametrize("late_first", [0, 1, 3], ids=lambda n: f"{n} that are late come first")
def test_far_behind_no_record_of_an_added_partition_is_late_because_the_brokers_clock_jumped(tmp_path, late_first):
    """The clock is set back while the job is far behind: by log time, all of the old partition comes before the new one."""
    job = job_that_has_read(tmp_path, 100_000, 100, rows_max=30)
    job.log.add(0, 101_000, 101_000)
    job.log.records[1] = [*[(101_000, 5_000)] * late_first, (102_000, 102_000)]
    for second in range(103, 120):
        for partition in (0, 1):
            job.log.add(partition, 1_000 * second - 80_000, 1_000 * second)
    rows = job.commit_all(200)
    assert job.ledger.last_slice("j").offsets == {"s": {0: 19, 1: 18 + late_first}}
    assert late_in(job, rows) == [(1, 5_000)] * late_first
    job.ledger.close()


def test_what_is_not_read_yet_of_an_added_partition_is_not_late_for_the_silence_of_others(tmp_path):
    """More of it waits than a slice may hold, and nothing of the first slice can be used."""
    job = job_that_has_read(tmp_path, 1_000, 30_000)
    job.log.records[1] = [(29_000 + number, -50_000 if number < 12 else 20_000) for number in range(32)]
    job.log.records[2] = []
    rows = job.commit_all(30_100)
    assert late_in(job, rows) == [(1, -50_000)] * 12
    assert max(row_counts(rows)) <= 10
    job.ledger.close()


def test_far_behind_the_newest_event_counts_when_all_is_read(tmp_path):
    """An added partition is read first, and a new version's rule finds it ahead of what waits."""
    job = job_that_has_read(tmp_path, 0, 100)
    for second in range(1, 40):
        job.log.add(0, 1_000 * second, 1_000 * second)
    job.log.records[1] = [(38_500, 38_500)]
    rows = [job.commit(job.next(200))]
    assert rows[0].offsets["s"][1] == 1
    newest = EventTimeRule(1_000, 5_000, watermark="newest")
    job.planner = job.planner_of(PlannerSettings("j", 1, job.run.epoch, (InputStream("s"),), 10, newest, WINDOWS))
    rows += job.commit_all(300)
    job.log.add(0, 40_000, 40_000)
    rows += job.commit_all(400)
    assert late_in(job, rows) == []
    assert max(row_counts(rows)) <= 10
    assert [row.rule.watermark for row in rows] == ["partitions"] * (len(rows) - 1) + ["newest"]
    job.ledger.close()


def test_where_the_newest_event_counts_an_added_partition_does_not_run_ahead(tmp_path):
    job = job_that_has_read(tmp_path, 0, 100, EventTimeRule(1_000, None, watermark="newest"))
    job.log.records[1] = []
    for number in range(20):
        job.log.add(0, 1_000 * number, 1_000 * number)
    for number in range(5):
        job.log.add(1, 15_000 + 1_000 * number, 15_000 + 1_000 * number)
    assert late_in(job, job.commit_all(200)) == []
    job.ledger.close()


def test_a_partition_of_which_nothing_can_be_used_does_not_stop_the_others(tmp_path):
    """New records come to it before every slice."""
    job = job_that_has_read(tmp_path, 100_000, 100)
    job.log.records[1] = []
    for number in range(50):
        job.log.add(0, 150_000 + number, 150_000 + number)
    slices = 0
    while job.log.ends("s")[0] > job.ledger.last_slice("j").offsets["s"][0]:
        for _ in range(6):
            job.log.add(1, 101_000, -90_000)
        job.commit(job.next(200))
        slices += 1
        assert slices < 20
    job.ledger.close()


@pytest.fixture
def bounded(tmp_path):
    """A job whose log times are right."""
    job = Job(tmp_path, rows_max=1_000)
    job.is_bounded = True
    yield job
    job.ledger.close()


def late_records(job, row):
    return [
        (partition, event_ms)
        for partition, end in row.offsets["s"].items()
        for _, event_ms in job.log.records[partition][row.offsets_first["s"].get(partition, 0) : end]
        if row.watermark_ms is not None and event_ms < row.watermark_ms
    ]


@pytest.mark.guarantee(
    "G755",
    "A clock that is ahead makes no record of another sender late if that record reaches Kafka within `delay` after "
    "its event time. A record moves event time at most to its log time, also with `watermark: newest` and after a "
    "silence of all partitions.",
    promise="no-record-is-late-without-cause",
)
def test_a_clock_that_is_ahead_makes_no_record_of_others_late(bounded):
    """Two senders write to each partition. One of them, in partition 0, is three minutes ahead."""
    job, late = bounded, []
    for second in range(1, 31):
        now_ms = 1_000 * second
        for partition in (0, 1):
            job.log.add(partition, now_ms, now_ms - 300)
        job.log.add(0, now_ms, now_ms + 180_000)
        row = job.next(now_ms)
        late += late_records(job, row)
        job.commit(row)
    assert late == []
    assert 27_000 <= job.closed_ms <= 30_000


@pytest.mark.guarantee("G755")
def test_after_a_silence_of_all_partitions_a_clock_that_is_ahead_makes_no_record_of_others_late(bounded):
    job, late = bounded, []
    for second in [*range(1, 11), *range(80, 90)]:
        now_ms = 1_000 * second
        job.commit_all(now_ms - 100)
        job.log.add(0, now_ms, now_ms + 270_000)
        job.log.add(1, now_ms, now_ms - 300)
        while (row := job.next(now_ms)) is not None:
            late += late_records(job, row)
            job.commit(row)
    assert late == []


@pytest.mark.guarantee(
    "G756",
    "A partition whose records are all rejected becomes idle after `idle_timeout`, and then holds no window open. "
    "Records that aren't read yet don't count as rejected.",
    promise="no-record-is-late-without-cause",
)
def test_a_partition_whose_records_are_all_rejected_becomes_idle(bounded):
    """The clock of its only sender was reset. Its records come as often as those of the other partition."""
    job, ended_ms = bounded, []
    for second in range(1, 31):
        now_ms = 1_000 * second
        job.log.add(0, now_ms, now_ms)
        job.log.add(1, now_ms, now_ms if second <= 10 else 5_000)
        row = job.next(now_ms)
        job.commit(row)
        ended_ms.append(job.closed_ms)
    assert job.ledger.last_checkpoint("j").accepted_in["s"][1] <= 11
    assert ended_ms[13] < 11_000, "the timeout of 5 s has not passed"
    assert job.closed_ms == 29_000, "less the delay, as if there were no other partition"


def test_a_record_that_is_accepted_again_ends_the_idle_time_of_its_partition(bounded):
    job = bounded
    for second in range(1, 21):
        now_ms = 1_000 * second
        job.log.add(0, now_ms, now_ms)
        job.log.add(1, now_ms, now_ms if second <= 5 or second > 15 else 2_000)
        row = job.next(now_ms)
        assert second < 17 or late_records(job, row) == []
        job.commit(row)
    assert job.ledger.last_checkpoint("j").accepted_in["s"][1] == row.number
    job.log.add(0, 60_000, 60_000)
    job.commit(job.next(21_000))
    assert job.closed_ms == 19_000, "partition 1 holds the watermark back again"


@pytest.mark.guarantee("G756")
def test_records_of_a_partition_that_are_not_read_yet_do_not_count_as_none(tmp_path):
    """A slice takes only a part of what waits there. It is unknown whether the rest is accepted."""
    job = Job(tmp_path, rows_max=10)
    job.is_bounded = True
    for partition in (0, 1):
        job.log.add(partition, 1_000, 1_000)
    job.commit_all(1_500)
    for second in range(2, 10):
        job.log.add(0, 1_000 * second, 1_000 * second)
        job.commit_all(1_000 * second)
    for _ in range(30):
        job.log.add(1, 9_500, 500)  # all of them are late
    job.log.add(1, 9_600, 9_600)
    found = []
    while (row := job.next(9_700)) is not None:
        found.append((row.kind, 1 in row.silence_ms.get("s", {}), late_records(job, row)))
        job.commit(row)
    assert [one for one in found if one[0] is SliceKind.CATCH_UP and one[1]] == []
    assert (1, 9_600) not in [late for _, _, records in found for late in records]
    job.ledger.close()


@pytest.mark.guarantee(
    "G757",
    "While a partition has no leader or too few in-sync replicas, or while this isn't known, no time counts as its "
    "silence.",
    promise="no-record-is-late-without-cause",
)
def test_while_a_partition_cannot_be_written_it_is_not_silent(job):
    for partition in (0, 1):
        job.log.add(partition, 100, 9_000)
    job.commit_all(200)
    job.log.read_only = {0}
    job.log.add(1, 300, 22_000)
    job.commit_all(60_000)
    assert job.closed_ms == 8_000, "the senders of partition 0 can't write"
    job.log.read_only = set()
    job.log.add(0, 60_100, 9_500)
    (row,) = [one for one in job.commit_all(61_000) if one.offsets != one.offsets_first]
    assert late_records(job, row) == []
    job.log.read_only = {1}
    job.commit_all(90_000)
    assert job.closed_ms == 21_000, "partition 0 is idle now"


@pytest.mark.guarantee(
    "G760",
    "If producers set the log times of a topic, a record moves event time at most to the time at which its slice was "
    "planned. This bound is recorded with the slice, and the audit computes it, too.",
    promise="no-record-is-late-without-cause",
)
def test_if_producers_write_the_log_times_the_planners_clock_bounds_event_time(tmp_path):
    job = Job(tmp_path)
    settings = PlannerSettings("j", 1, job.run.epoch, (InputStream("s", has_senders_times=True),), 100, RULE, WINDOWS)
    job.planner = job.planner_of(settings)
    job.log.add(0, 900_000, 900_000)
    row = job.next(1_000)
    assert (row.rule.bound, row.planned_ms) == ("planned", 1_000 + 10**9)
    assert (bounded_ms(row.rule, row, 10**12, 10**12), bounded_ms(row.rule, row, 900_000, 7)) == (
        10**9 + 1_000,
        900_000,
    )
    assert bounded_ms(RULE, row, 900_000, 7) == 7
    job.ledger.close()


def test_more_records_in_one_millisecond_than_a_slice_may_hold_are_one_slice(tmp_path):
    job = Job(tmp_path, rows_max=10)
    for _ in range(25):
        job.log.add(0, 1_000, 1_000)
    job.log.add(0, 2_000, 2_000)
    assert job.next(3_000).offsets == {"s": {0: 25, 1: 0}}
    job.ledger.close()


FAR_MS = 4_000_000_000_000
"""A year that a producer with a broken clock may say."""
TIMES = {
    "out of order": lambda chance: chance.randrange(10_000),
    "one far ahead of all": lambda chance: FAR_MS if chance.random() < 0.01 else chance.randrange(10_000),
    "none": lambda chance: -1,
    "equal": lambda chance: 5_000,
}


@pytest.mark.guarantee(
    "G264",
    "The producers of a topic can set its log times in any order, and one of them years ahead. A job that lags in "
    "this topic still proceeds in slices of a bounded size.",
    promise="no-client-can-exhaust-a-service",
)
@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES)
@pytest.mark.parametrize("is_first_far", [False, True])
def test_a_job_far_behind_gets_on_whatever_times_producers_say(tmp_path, times, is_first_far):
    """Each slice holds some records and about as many as it may, and each record is in one slice."""
    job, chance = Job(tmp_path, rows_max=50), random.Random(5)
    settings = PlannerSettings("j", 1, job.run.epoch, (InputStream("s", has_senders_times=True),), 50, RULE, WINDOWS)
    job.planner = job.planner_of(settings)
    for number in range(600):
        log_ms = FAR_MS if is_first_far and number == 0 else times(chance)
        job.log.add(number * number % 2, log_ms, 10_000 + number)
    at, slices = {0: 0, 1: 0}, 0
    while at != job.log.ends("s"):
        row = job.commit(job.next(100))
        held = sum(row.offsets["s"][partition] - at[partition] for partition in at)
        assert row.offsets_first["s"] == at
        assert 0 < held <= 50 + len(at)
        at, slices = row.offsets["s"], slices + 1
    assert slices <= 4 * 600 // 50
    assert sum(row.records for row in job.ledger.checkpoints("j")) == 600
    job.ledger.close()


def test_stop_plans_nothing_more(job):
    job.log.add(0, 100, 50)
    job.ledger.set_desired("j", Desired.STOPPED)
    assert job.next(200) is None


def test_a_planned_slice_is_finished_even_when_the_job_shall_stop(job):
    job.log.add(0, 100, 50)
    row = job.next(200)
    job.ledger.set_desired("j", Desired.STOPPED)
    assert job.next(300) == row


def test_drain_reads_what_is_there_and_closes_every_window_in_one_more_slice(job):
    job.log.add(0, 100, 9_000)
    job.commit_all(200)
    job.log.add(1, 250, 11_500)
    job.ledger.set_desired("j", Desired.DRAINED)
    rows = [job.commit(job.next(300))]
    job.log.add(1, 350, 12_000)  # comes after the drain began: not waited for
    rows += job.commit_all(400)
    assert [row.kind for row in rows] == [SliceKind.LIVE, SliceKind.DRAIN]
    assert rows[-1].watermark_ms == job.closed_ms == 60_000
    assert rows[-1].offsets == {"s": {0: 1, 1: 1}}


def test_drain_of_a_job_without_records_is_one_empty_slice(job):
    job.ledger.set_desired("j", Desired.DRAINED)
    assert [row.kind for row in job.commit_all(100)] == [SliceKind.DRAIN]


def test_after_a_drain_the_job_goes_on(job):
    job.log.add(0, 100, 9_000)
    job.ledger.set_desired("j", Desired.DRAINED)
    job.commit_all(200)
    job.ledger.set_desired("j", Desired.RUNNING)
    assert job.commit_all(300) == []
    job.log.add(0, 400, 100_000)
    assert [row.kind for row in job.commit_all(500)] == [SliceKind.LIVE]


def test_a_partition_that_was_added_joins_the_next_slice_at_its_beginning(job):
    job.log.add(0, 100, 50)
    job.commit(job.next(200))
    job.log.records[2] = [(250, 60)]
    row = job.next(300)
    assert row.offsets_first == {"s": {0: 1, 1: 0}}
    assert row.offsets == {"s": {0: 1, 1: 0, 2: 1}}


@pytest.mark.guarantee("G36")
@pytest.mark.parametrize("idle_timeout_ms", [None, 5_000])
def test_no_record_of_an_added_partition_is_late_because_it_was_seen_late(tmp_path, idle_timeout_ms):
    """The planner knows of it a moment after it asked for the ends. It holds a record by then, and the others later ones."""
    job = Job(tmp_path, EventTimeRule(1_000, idle_timeout_ms))
    for partition in (0, 1):
        job.log.add(partition, 100, 5_000)
    job.commit_all(200)
    job.log.records[2] = []
    job.log.unseen = {2}
    for partition, event_ms in ((2, 10_000), (0, 100_000), (1, 100_000)):
        job.log.add(partition, 300, event_ms)
    assert job.next(400) is None
    row = job.commit(job.next(420))
    assert row.offsets == {"s": {0: 2, 1: 2, 2: 1}}
    assert job.ledger.last_checkpoint("j").accepted == 3
    assert job.closed_ms == 9_000
    job.ledger.close()


def test_silence_does_not_pass_by_a_partition_that_was_added_a_moment_ago(tmp_path):
    """The remembered partitions are older, until the topic is described again."""
    job = Job(tmp_path)
    for partition in (0, 1):
        job.log.add(partition, 100, 9_000)
    job.commit(job.next(200))
    job.log.add(0, 300, 70_000)
    job.commit(job.next(400))
    remember_partitions(job.log)
    job.log.records[2] = [(500, 9_500)]
    row = job.commit(job.next(20_000))
    assert row.offsets == {"s": {0: 2, 1: 1, 2: 1}}
    assert job.ledger.last_checkpoint("j").accepted == 1, "it is not late"
    job.ledger.close()


def remember_partitions(log):
    """Remember the partitions as LogIndex does for a moment, until the topic's id is requested."""
    known = [log.partitions("s")]
    ends, topic_id = log.ends, log.topic_id

    def described(stream):
        known[0] = list(log.records)
        return topic_id(stream)

    log.partitions = lambda stream: known[0]
    log.topic_id = described
    log.ends = lambda stream: {partition: ends(stream)[partition] for partition in known[0]}


def test_a_drain_does_not_wait_for_a_partition_that_was_added_after_it_began(job):
    job.log.add(0, 100, 9_000)
    job.ledger.set_desired("j", Desired.DRAINED)
    job.commit(job.next(200))
    job.log.records[2] = [(250, 60)]
    assert [row.kind for row in job.commit_all(300)] == [SliceKind.DRAIN]


def test_a_slice_that_a_newer_run_planned_is_not_taken_up(tmp_path):
    """The older run was paused and may be of another version: it would emit other results of that slice."""
    job = Job(tmp_path)
    job.log.add(0, 1_000, 1_000)
    newer = job.ledger.begin_run("j", 2)
    settings = PlannerSettings("j", 1, newer.epoch, (InputStream("s"),), 100, RULE, WINDOWS)
    assert job.planner_of(settings).next_slice() is not None
    with pytest.raises(Fenced, match=r"was planned by run 2: run 1 ends"):
        job.next(2_000)


class Reader(Job):
    """A job `j` that reads what a job `a` emits to stream `s`: 10 records each emission."""

    def __init__(self, tmp_path, rows_max=100, start="earliest"):
        super().__init__(tmp_path, EventTimeRule(0, None), rows_max)
        self.ledger.submit_job("a", "pipeline: a", {"pipeline": "a"})
        self.emitter = self.ledger.begin_run("a", 2)
        settings = PlannerSettings(
            "j", 1, self.run.epoch, (InputStream("s", start),), rows_max, self.rule, WINDOWS[1:], (Emitter("s", "a"),)
        )
        self.planner = self.planner_of(settings)

    def write(self, number, *partitions):
        """Results of emission `number`, as far as they are there yet."""
        for partition in partitions:
            for _ in range(5):
                self.log.add(partition, number * 1_000, number * 10_000)

    def confirm(self, number, result_offsets):
        """The checkpoint of emission `number`."""
        epoch = self.emitter.epoch
        self.ledger.plan_slice(
            a_slice(number, epoch, "a", offsets_first={"r": {0: number - 1}}, offsets={"r": {0: number}})
        )
        self.ledger.commit_checkpoint(
            a_checkpoint(number, epoch, "a", result_offsets={"s": result_offsets} if result_offsets else {})
        )


@pytest.mark.guarantee(
    "G73",
    "A job that reads another job's results reads each emission completely or not at all. None of these results is "
    "late, with no delay.",
    promise="each-sink-contains-each-result-once",
)
def test_a_stream_of_results_is_read_up_to_the_last_committed_emission_only(tmp_path):
    job = Reader(tmp_path)
    job.write(1, 0)
    assert job.next(100) is None  # half an emission, and no checkpoint yet
    job.write(1, 1)
    job.confirm(1, {0: 5, 1: 5})
    job.write(2, 1)  # the next one has begun
    row = job.commit(job.next(200))
    assert row.offsets == {"s": {0: 5, 1: 5}}
    assert {row.kind for row in job.commit_all(300)} <= {SliceKind.IDLE}
    job.write(2, 0)
    job.confirm(2, {0: 10, 1: 10})
    assert job.next(400).offsets == {"s": {0: 10, 1: 10}}
    job.ledger.close()


@pytest.mark.guarantee("G73")
@pytest.mark.parametrize(
    ("rows_max", "cuts"), [(20, [10, 15]), (10, [5, 10, 15]), (9, [5, 10, 15]), (1, [5, 10, 15]), (30, [15])]
)
def test_far_behind_a_stream_of_results_is_cut_between_emissions(tmp_path, rows_max, cuts):
    """A slice has as many emissions as fit, and a single larger one completely.

    Emissions without results make no cut.
    """
    job = Reader(tmp_path, rows_max)
    numbers = iter(range(1, 100))
    for ends in (None, 5, 5, 10, 15, 15):
        job.confirm(next(numbers), None if ends is None else {0: ends, 1: ends})
    for number in (1, 2, 3, 4):
        job.write(number, 0, 1)
    rows = job.commit_all(50_000)
    assert [row.offsets["s"] for row in rows if row.kind is not SliceKind.IDLE] == [{0: end, 1: end} for end in cuts]
    job.ledger.close()


def test_a_reader_behind_the_emitters_oldest_checkpoint_takes_all_up_to_it(tmp_path):
    job = Reader(tmp_path, rows_max=10)
    for number in (1, 2, 3, 4):
        job.confirm(number, {0: 5 * number, 1: 5 * number})
        job.write(number, 0, 1)
    job.ledger.raise_floor("a", 1, 3, 9)
    rows = [row for row in job.commit_all(50_000) if row.kind is not SliceKind.IDLE]
    assert [row.offsets["s"] for row in rows] == [{0: 15, 1: 15}, {0: 20, 1: 20}]
    job.ledger.close()


def test_a_reader_that_meets_a_checkpoint_of_the_emitter_that_goes_cuts_above_it(tmp_path, monkeypatch):
    job = Reader(tmp_path, rows_max=10)
    for number in (1, 2, 3, 4):
        job.confirm(number, {0: 5 * number, 1: 5 * number})
        job.write(number, 0, 1)
    job.ledger.raise_floor("a", 1, 3, 9)
    floor, before = job.ledger.floor, iter([0])  # they go after the floor was read
    monkeypatch.setattr(job.ledger, "floor", lambda emitter: next(before, floor(emitter)))
    assert job.next(50_000).offsets == {"s": {0: 15, 1: 15}}
    job.ledger.close()


def test_latest_of_a_stream_of_results_is_after_the_last_committed_emission(tmp_path):
    job = Reader(tmp_path, start="latest")
    job.write(1, 0, 1)
    job.confirm(1, {0: 5, 1: 5})
    job.write(2, 0)
    origin = job.commit(job.next(100))
    assert (origin.offsets_first, origin.offsets) == ({"s": {0: 5, 1: 5}}, {"s": {0: 5, 1: 5}})
    job.write(2, 1)
    job.confirm(2, {0: 10, 1: 10})
    row = job.next(200)
    assert (row.offsets_first, row.offsets) == ({"s": {0: 5, 1: 5}}, {"s": {0: 10, 1: 10}})
    job.ledger.close()


def test_what_the_log_does_not_hold_is_not_read_whatever_a_checkpoint_says(tmp_path):
    job = Reader(tmp_path)
    job.write(1, 0)
    job.confirm(1, {0: 5, 1: 5})
    assert job.next(100).offsets == {"s": {0: 5, 1: 0}}
    job.ledger.close()


def latest(job):
    """A run of the job that begins at the latest record."""
    job.run = job.ledger.begin_run("j", 1)
    return job.planner_of(PlannerSettings("j", 1, job.run.epoch, (InputStream("s", "latest"),), 100, RULE, WINDOWS))


@pytest.mark.guarantee(
    "G27",
    "A job with `start: latest` reads from the end of the log at its first run, whatever happens to that run.",
    promise="results-depend-only-on-the-log",
)
def test_a_run_that_dies_before_its_first_slice_has_recorded_where_it_begins(job):
    """The next one begins there too, whatever has come since."""
    job.log.add(0, 100, 50)
    latest(job).record_range()
    job.log.add(1, 250, 60)
    planner = latest(job)
    planner.record_range()
    origin = job.commit(planner.next_slice())
    assert (origin.offsets_first, origin.offsets) == ({"s": {0: 1, 1: 0}}, {"s": {0: 1, 1: 0}})
    row = planner.next_slice()
    assert (row.offsets_first, row.offsets) == ({"s": {0: 1, 1: 0}}, {"s": {0: 1, 1: 1}})


def test_an_origin_is_recorded_once_and_only_where_a_job_begins_at_the_latest_record(job):
    job.log.add(0, 100, 50)
    job.planner.record_range()
    assert job.ledger.last_slice("j") is None
    job.commit(job.next(200))
    job.log.add(0, 300, 70)
    latest(job).record_range()
    assert job.ledger.slice_count("j") == 1


@pytest.mark.guarantee(
    "G762",
    "If the ledger loses slices that a running job has committed, the run plans and commits nothing more: the job "
    "fails, and its message says so.",
    promise="a-damaged-log-or-ledger-stops-the-job",
)
@pytest.mark.parametrize("lost", ["the plan of slice 2", "the commit of slice 2", "both slices"])
def test_a_ledger_that_lost_slices_of_the_run_ends_the_run(tmp_path, lost):
    """The copy of the ledger is from before the last commit, as a replica without synchronous commits has it. Planning goes on
    from the copy in no case: a slice that is planned again under a lost number would hide the loss."""
    job = Job(tmp_path)
    for number in (1, 2):
        shutil.copy(tmp_path / "ledger.sqlite", tmp_path / f"before-{number}.sqlite")
        job.log.add(0, 1_000 * number, 1_000 * number)
        row = job.next(job.now_ms + 1_000)
        shutil.copy(tmp_path / "ledger.sqlite", tmp_path / f"planned-{number}.sqlite")
        job.commit(row)
    copy = {"the plan of slice 2": "before-2", "the commit of slice 2": "planned-2", "both slices": "before-1"}[lost]
    shutil.copy(tmp_path / f"{copy}.sqlite", tmp_path / "ledger.sqlite")
    job.log.add(0, 3_000, 3_000)
    reader = SliceStreamReader(SimpleNamespace(plan=RewindPlan(1, 0), slice_interval_ms=0))
    reader._planner = job.planner
    before = job.ledger.last_slice("j")
    with pytest.raises(
        LedgerBehind, match=r"the ledger is older than what job j has written: .* has committed slice 2"
    ):
        reader.latestOffset(offset_of_slice(2))
    assert job.ledger.last_slice("j") == before


@pytest.mark.guarantee("G762")
def test_a_slice_that_the_ledger_lost_is_not_committed_and_none_is_planned_behind_it(tmp_path):
    job = Job(tmp_path)
    shutil.copy(tmp_path / "ledger.sqlite", tmp_path / "before.sqlite")
    job.log.add(0, 1_000, 1_000)
    row = job.next(1_000)
    shutil.copy(tmp_path / "before.sqlite", tmp_path / "ledger.sqlite")
    with pytest.raises(
        LedgerBehind, match="it contains no slice, and run 1 has planned slice 1 and emitted its results"
    ):
        job.commit(row)
    with pytest.raises(LedgerBehind, match="it contains no slice, and run 1 has committed slice 1"):
        job.ledger.plan_slice(replace(row, number=2))
