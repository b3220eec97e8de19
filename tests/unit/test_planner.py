"""How the log is cut into slices, over a real ledger in a file and a log that a test fills by hand."""

from __future__ import annotations

import pytest

from strandline.core.errors import Fenced
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import CheckpointRow, Desired, EventTimeRule, SliceKind
from strandline.processing.pipelines.event_time import WindowShape, open_until
from strandline.processing.slices.planner import PlannerSettings, SlicePlanner
from strandline.processing.slices.silence import SilenceMeter
from strandline.processing.slices.watermark import closes_after, greatest, reached_after
from tests.support.ledgers import a_checkpoint, a_slice

RULE = EventTimeRule(delay_ms=1_000, idle_timeout_ms=5_000)
WINDOWS = (WindowShape(10_000, 10_000), WindowShape(60_000, 60_000))


class FakeLog:
    """Records by partition as (log time, event time); answers as LogIndex does."""

    def __init__(self, partitions=2):
        self.records = {partition: [] for partition in range(partitions)}
        self.open_from = {}
        """Partition -> where an open transaction begins."""

    def add(self, partition, log_ms, event_ms):
        self.records[partition].append((log_ms, event_ms))

    def starts(self, stream):
        return dict.fromkeys(self.records, 0)

    def ends(self, stream):
        return {partition: self.open_from.get(partition, len(records)) for partition, records in self.records.items()}

    def ends_with_open(self, stream):
        return {partition: len(records) for partition, records in self.records.items()}

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
        self.rule = rule
        settings = PlannerSettings("j", 1, self.run.epoch, "s", "earliest", rows_max, rule, WINDOWS)
        self.planner = self.planner_of(settings)

    def planner_of(self, settings):
        """With a wall clock that is days off: nothing is decided by it."""
        meter = SilenceMeter(lambda: self.now_ms)
        return SlicePlanner(settings, self.ledger, self.log, lambda: self.now_ms + 10**9, meter)

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
        reached = reached_after(row.reached, {"s": self.latest(row)})
        self.ledger.commit_checkpoint(
            CheckpointRow(
                job="j", slice=row.number, epoch=self.run.epoch, version=1, emitted={},
                latest_event_ms=greatest(before.latest_event_ms if before else None, max(accepted, default=None)),
                latest_log_ms=greatest(before.latest_log_ms if before else None, max((log for log, _ in held), default=None)),
                records=len(held), accepted=len(accepted), rejected={}, results={}, dead_letter_offsets={}, committed_ms=0,
                closes_ms=closes_after(row, reached), reached=reached,
            )
        )  # fmt: skip
        return row

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


def test_a_run_goes_on_counting_where_the_last_slice_left_off(job):
    job.log.add(0, 100, 9_000)
    job.commit_all(200)
    job.commit_all(4_000)
    job.log.add(1, 4_000, 9_100)
    (row,) = job.commit_all(4_200)
    assert row.silence_ms == {"s": {0: 4_000}}
    run = job.ledger.begin_run("j", 2)
    job.planner = job.planner_of(PlannerSettings("j", 1, run.epoch, "s", "earliest", 100, RULE, WINDOWS))
    job.log.add(1, 3_600_000, 9_200)
    assert job.next(3_600_000).silence_ms == {"s": {0: 4_000}}, "what nobody counted is not known to be silence"


def test_a_rule_that_changes_counts_from_the_next_slice_on(job):
    job.log.add(0, 100, 50_000)
    job.log.add(1, 100, 9_000)
    job.commit_all(200)
    newest = EventTimeRule(500, None, None, "newest")
    job.planner = job.planner_of(PlannerSettings("j", 1, job.run.epoch, "s", "earliest", 100, newest, WINDOWS))
    (row,) = job.commit_all(300)
    assert (row.kind, row.watermark_ms, row.rule) == (SliceKind.IDLE, 49_500, newest)


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


def test_a_slice_that_a_newer_run_planned_is_not_taken_up(tmp_path):
    """The older run was paused and may be of another version: it would emit other results of that slice."""
    job = Job(tmp_path)
    job.log.add(0, 1_000, 1_000)
    newer = job.ledger.begin_run("j", 2)
    settings = PlannerSettings("j", 1, newer.epoch, "s", "earliest", 100, RULE, WINDOWS)
    assert job.planner_of(settings).next_slice() is not None
    with pytest.raises(Fenced, match=r"was planned by run 2: run 1 ends"):
        job.next(2_000)


class Reader(Job):
    """A job `j` that reads what a job `a` emits to stream `s`: 10 records each emission."""

    def __init__(self, tmp_path, rows_max=100, start="earliest"):
        super().__init__(tmp_path, EventTimeRule(0, None), rows_max)
        self.ledger.submit_job("a", "pipeline: a", {"pipeline": "a"})
        self.emitter = self.ledger.begin_run("a", 2)
        settings = PlannerSettings("j", 1, self.run.epoch, "s", start, rows_max, self.rule, WINDOWS[1:], "a")
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


@pytest.mark.parametrize(
    ("rows_max", "cuts"), [(20, [10, 15]), (10, [5, 10, 15]), (9, [5, 10, 15]), (1, [5, 10, 15]), (30, [15])]
)
def test_far_behind_a_stream_of_results_is_cut_between_emissions(tmp_path, rows_max, cuts):
    """As many as fit, and a single one that is larger whole. Emissions without results make no cut."""
    job = Reader(tmp_path, rows_max)
    numbers = iter(range(1, 100))
    for ends in (None, 5, 5, 10, 15, 15):
        job.confirm(next(numbers), None if ends is None else {0: ends, 1: ends})
    for number in (1, 2, 3, 4):
        job.write(number, 0, 1)
    rows = job.commit_all(50_000)
    assert [row.offsets["s"] for row in rows if row.kind is not SliceKind.IDLE] == [{0: end, 1: end} for end in cuts]
    job.ledger.close()


def test_latest_of_a_stream_of_results_is_after_the_last_committed_emission(tmp_path):
    job = Reader(tmp_path, start="latest")
    job.write(1, 0, 1)
    job.confirm(1, {0: 5, 1: 5})
    job.write(2, 0)
    assert job.next(100) is None
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


def test_latest_begins_where_the_log_ended_at_the_first_look(tmp_path):
    job = Job(tmp_path)
    job.planner = job.planner_of(PlannerSettings("j", 1, job.run.epoch, "s", "latest", 100, RULE, WINDOWS))
    job.log.add(0, 100, 50)
    assert job.next(200) is None
    job.log.add(1, 250, 60)
    row = job.next(300)
    assert (row.offsets_first, row.offsets) == ({"s": {0: 1, 1: 0}}, {"s": {0: 1, 1: 1}})
    job.ledger.close()
