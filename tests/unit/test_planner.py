"""How the log is cut into slices, over a real ledger in a file and a log that a test fills by hand."""

from __future__ import annotations

import pytest

from strandline.core.errors import Fenced
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import CheckpointRow, Desired, SliceKind
from strandline.processing.planner import PlannerSettings, SlicePlanner
from strandline.processing.watermark import EventTimeRule, greatest, open_until

RULE = EventTimeRule(delay_ms=1_000, idle_timeout_ms=5_000, window_sizes_ms=(10_000, 60_000))


class FakeLog:
    """Records by partition as (log time, event time); answers as LogIndex does."""

    def __init__(self, partitions=2):
        self.records = {partition: [] for partition in range(partitions)}

    def add(self, partition, log_ms, event_ms):
        self.records[partition].append((log_ms, event_ms))

    def starts(self, stream):
        return dict.fromkeys(self.records, 0)

    def ends(self, stream):
        return {partition: len(records) for partition, records in self.records.items()}

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
        self.rule = rule
        settings = PlannerSettings("j", 1, self.run.epoch, "s", "earliest", rows_max, rule)
        self.planner = SlicePlanner(settings, self.ledger, self.log, lambda: self.now_ms)

    def next(self, now_ms):
        self.now_ms = now_ms
        return self.planner.next_slice()

    def commit(self, row):
        held = [
            record
            for partition, offset_next in row.offsets["s"].items()
            for record in self.log.records[partition][row.offsets_first["s"][partition] : offset_next]
        ]
        before = self.ledger.last_checkpoint("j")
        accepted = [event for _, event in held if row.watermark_ms is None or event >= row.watermark_ms]
        self.ledger.commit_checkpoint(
            CheckpointRow(
                job="j", slice=row.number, epoch=self.run.epoch, version=1, emitted={},
                latest_event_ms=greatest(before.latest_event_ms if before else None, max(accepted, default=None)),
                latest_log_ms=greatest(before.latest_log_ms if before else None, max((log for log, _ in held), default=None)),
                records=len(held), accepted=len(accepted), rejected={}, results={}, dead_letter_offsets={}, committed_ms=0,
            )
        )  # fmt: skip
        return row

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


def test_a_slice_is_in_the_ledger_before_it_is_returned_and_is_not_cut_again(job):
    job.log.add(0, 100, 50)
    row = job.next(200)
    assert row.offsets == {"s": {0: 1, 1: 0}}
    assert job.ledger.last_slice("j") == row
    job.log.add(1, 210, 60)
    assert job.next(300) == row
    job.commit(row)
    assert job.next(300).offsets_first == row.offsets


def test_windows_that_time_has_closed_get_a_slice_of_their_own(job):
    job.log.add(0, 100, 9_000)
    job.log.add(0, 200, 12_000)  # closes 0-10 s
    kinds = [(row.kind, row.closes_ms) for row in job.commit_all(300)]
    assert kinds == [(SliceKind.LIVE, None), (SliceKind.IDLE, 11_000)]
    assert job.commit_all(310) == []


def test_silence_closes_windows_and_then_the_ledger_rests(job):
    job.log.add(0, 100, 9_000)
    job.commit_all(200)
    assert job.commit_all(5_000) == []
    closed = [row.closes_ms for row in job.commit_all(8_000)]
    assert closed[-1] == 9_000 + (8_000 - 100 - 5_000) - 1_000
    assert job.commit_all(200_000)[-1].closes_ms >= open_until(RULE, job.ledger.last_checkpoint("j"))
    assert job.commit_all(10_000_000) == []


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


def test_more_records_in_one_millisecond_than_a_slice_may_hold_are_one_slice(tmp_path):
    job = Job(tmp_path, rows_max=10)
    for _ in range(25):
        job.log.add(0, 1_000, 1_000)
    job.log.add(0, 2_000, 2_000)
    assert job.next(3_000).offsets == {"s": {0: 25, 1: 0}}
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


def test_drain_reads_what_is_there_and_closes_every_window(job):
    job.log.add(0, 100, 9_000)
    job.commit_all(200)
    job.log.add(1, 250, 11_500)
    job.ledger.set_desired("j", Desired.DRAINED)
    rows = [job.commit(job.next(300))]
    job.log.add(1, 350, 12_000)  # comes after the drain began: not waited for
    rows += job.commit_all(400)
    assert rows[-1].kind is SliceKind.DRAIN
    assert rows[-1].closes_ms >= 60_000
    assert rows[-1].offsets == {"s": {0: 1, 1: 1}}
    assert rows[-1].watermark_ms == rows[-1].closes_ms


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
    assert [row.kind for row in job.commit_all(500)] == [SliceKind.LIVE, SliceKind.IDLE]


def test_a_partition_that_was_added_joins_the_next_slice_at_its_beginning(job):
    job.log.add(0, 100, 50)
    job.commit(job.next(200))
    job.log.records[2] = [(250, 60)]
    row = job.next(300)
    assert row.offsets_first == {"s": {0: 1, 1: 0}}
    assert row.offsets == {"s": {0: 1, 1: 0, 2: 1}}


def test_a_slice_that_a_newer_run_planned_is_not_taken_up(tmp_path):
    """The older run was paused and may be of another version: it would emit other results of that slice."""
    job = Job(tmp_path)
    job.log.add(0, 1_000, 1_000)
    newer = job.ledger.begin_run("j", 2)
    settings = PlannerSettings("j", 1, newer.epoch, "s", "earliest", 100, RULE)
    assert SlicePlanner(settings, job.ledger, job.log, lambda: 2_000).next_slice() is not None
    with pytest.raises(Fenced, match=r"was planned by run 2: run 1 ends"):
        job.next(2_000)
