"""The loop of a pool: one look and one batch for all members, and each member has its own outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import (
    Conflict,
    Divergence,
    Fenced,
    LedgerUnavailable,
    LogUnavailable,
    NotFound,
    ReplayMismatch,
    SinkUnavailable,
    StrandlineError,
)
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import CheckpointRow, Desired, JobState, SliceRow, SliceStatus, offset_count
from strandline.processing.emission.cost_meter import NOTE_S
from strandline.processing.emission.keyed_task import BucketOutcome
from strandline.processing.emission.member_outcomes import Failure, MemberOutcome
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.run import pool as pool_module
from strandline.processing.run.ending import ending_by
from strandline.processing.run.membership import PIECE_RECORDS_MIN, SLICE_RECORDS_MIN, Part, PoolMember, spread
from strandline.processing.run.pool import BACK_OFF_S, REPLAY_S, TRIES, Pool
from strandline.processing.run.pool_features import MovedOut
from strandline.processing.run.slice_schedule import Closings
from strandline.processing.slices.planner import InputStream, PlannerSettings, SlicePlanner
from strandline.processing.slices.rewind import RewindPlan
from strandline.processing.slices.silence import SilenceMeter
from strandline.processing.source.member_slices import MemberSlice
from strandline.processing.source.slice_rows import SourceFacts
from tests.support.ledgers import a_checkpoint
from tests.support.waiting import stretched
from tests.unit.test_joint_planning import RULE, WINDOWS, Brokers

JOBS = ["a", "b", "c"]


class TimedBrokers(Brokers):
    """Streams whose records have log times: that of each record is its offset. So a slice can be cut anywhere."""

    def newest_log_time(self, stream: str) -> int:
        return max(self.ends(stream).values())

    def offsets_at(self, stream: str, log_time_ms: int, ends: Mapping[int, int]) -> dict[int, int]:
        return {partition: min(end, log_time_ms) for partition, end in ends.items()}


class Batches:
    """Processes each slice at once, or fails as the test says."""

    def __init__(self) -> None:
        self.ran: list[list[list[str]]] = []
        """Job and slice, of each task of each batch."""
        self.failing: dict[str, Exception] = {}
        """Job -> its failure."""
        self.ends_worker: set[str] = set()
        """Jobs with which a batch fails as a whole."""
        self.cpu_us: dict[str, int] = {}
        self.state_bytes: dict[str, int] = {}
        self.read_bytes: dict[str, int] = {}
        self.named_jobs: set[str] = set()
        self.is_cancelled = False
        self.meanwhile: Callable[[], None] = lambda: None

    def run(self, tasks: Sequence[Sequence[MemberSlice]]) -> list[MemberOutcome]:
        self.ran.append([[f"{one.job}{one.number}" for one in task] for task in tasks])
        members = [one for task in tasks for one in task]
        self.is_cancelled = False
        self.meanwhile()
        if self.is_cancelled:
            raise StrandlineError("the batch is cancelled")
        if self.ends_worker & {one.job for one in members}:
            raise StrandlineError("a worker has died")
        return [self._outcome(one) for one in members]

    def _outcome(self, one: MemberSlice) -> MemberOutcome:
        cpu_us, state_bytes = self.cpu_us.get(one.job, 1_000), self.state_bytes.get(one.job, 0)
        if one.job in self.failing:
            return MemberOutcome(one.job, one.number, failure=Failure.of(self.failing[one.job]), cpu_us=cpu_us)
        done = BucketOutcome(facts=[SourceFacts(bytes=self.read_bytes.get(one.job, 0))])
        return MemberOutcome(one.job, one.number, done, cpu_us=cpu_us, state_bytes=state_bytes)

    def cancel(self) -> None:
        self.is_cancelled = True

    def named(self) -> set[str]:
        named, self.named_jobs = self.named_jobs, set()
        return named

    def took(self) -> list[str]:
        """Return what the batches since the last call contained."""
        ran, self.ran = self.ran, []
        return sorted(one for batch in ran for task in batch for one in task)


class Slices:
    """The slices of one job in the ledger."""

    def __init__(self, ledger: Ledger, job: str, committed: int) -> None:
        self._ledger, self._job, self._committed = ledger, job, committed

    def replayed_from(self, first: int, rows_max: int | None = None) -> list[SliceRow]:
        found: list[SliceRow] = []
        records = 0
        for row in self._ledger.slices(self._job, first, self._committed):
            records += offset_count(row.offsets_first, row.offsets)
            if found and rows_max is not None and records > rows_max:
                break
            found.append(row)
        return found

    def batch(self, first: int, slices: Any, parallelism: int, before: CheckpointRow | None = None) -> Any:
        assert slices[0].number == first
        return [[]], b""


class Committer:
    """Makes checkpoints that always advance, or fails."""

    def __init__(self, job: str, epoch: int) -> None:
        self._job, self._epoch = job, epoch
        self.failure: Exception | None = None
        self.replays: list[int] = []
        self.waits_s: list[float] = []
        """For how long each committed slice was due before it was planned."""
        self.log_s_a_slice = 0.0
        """Log time that each slice covers."""

    def replayed(self, number: int, outcomes: Any) -> None:
        if self.failure is not None:
            raise self.failure
        self.replays.append(number)

    def checkpoint_of(self, sliced: SliceRow, facts: Any, outcomes: Any, before: Any) -> CheckpointRow:
        if self.failure is not None:
            raise self.failure
        assert (before.slice if before else 0) == sliced.number - 1
        log_ms = 1_000_000 + int(sliced.number * self.log_s_a_slice * 1_000)
        more: dict[str, Any] = {"emitted": {}, "reached": {}, "closes_ms": None, "latest_log_ms": log_ms}
        return a_checkpoint(sliced.number, self._epoch, self._job, **more)

    def committed(self, row: CheckpointRow, outcomes: Any, seconds: float, waited_s: float = 0.0) -> None:
        self.waits_s.append(waited_s)


class Lab:
    """A pool whose turns the test makes."""

    def __init__(self, path: Path, log: Brokers | None = None) -> None:
        self.ledger = Ledger.open(f"sqlite:///{path}/ledger.sqlite")
        self.log, self.now_s, self.batches = log or Brokers(), 100.0, Batches()
        self.committers: dict[str, Committer] = {}
        self.pool = self.new_pool()
        for job in JOBS:
            self.ledger.put_stream(f"of-{job}", {"stream": f"of-{job}"})
            self.ledger.submit_job(job, "", {"pipeline": job})
            self.log.add(f"of-{job}")

    def new_pool(self, tries: int | None = None, poll_max_s: float | None = None) -> Pool:
        clock: Callable[[], float] = lambda: self.now_s  # noqa: E731
        self.reported: list[list[str]] = []
        """Jobs of each batch, and none after it."""
        self.pool = Pool(
            self.batches,
            self.ledger,
            self.log,
            2,
            poll_s=0.1,
            poll_max_s=poll_max_s,
            tries=tries,
            state_bytes_max=1_000,
            cores_max=0.5,
            on_batch=lambda jobs: self.reported.append(list(jobs)),
            clock=clock,
        )
        return self.pool

    def member(self, job: str, interval_s: float = 1.0, rows_max: int = 10_000) -> PoolMember:
        """A new run of the job. It rewinds to the first slice."""
        epoch = self.ledger.begin_run(job, 1).epoch
        last = self.ledger.last_checkpoint(job)
        committed = last.slice if last else 0
        inputs = (InputStream(f"of-{job}", topic_id=f"id of of-{job}", stream_version=1),)
        settings = PlannerSettings(job, 1, epoch, inputs, rows_max, RULE, WINDOWS)
        meter = SilenceMeter(lambda: int(self.now_s * 1_000))
        self.committers[job] = Committer(job, epoch)
        slices = Slices(self.ledger, job, committed)
        rows = slices.replayed_from(1)
        return PoolMember(
            job=job,
            epoch=epoch,
            config="",
            plan=RewindPlan(1, committed),
            planner=SlicePlanner(settings, self.ledger, self.log, lambda: 0, meter, 0),
            slices=slices,
            committer=self.committers[job],
            interval_s=interval_s,
            wanted_end=lambda progress, _: ending_by(progress, 1, WINDOWS, lambda: False),
            checkpoint=last,
            records_left=sum(offset_count(row.offsets_first, row.offsets) for row in rows),
            leave=self.pool.leave,
        )

    def join(self, *jobs: str, interval_s: float = 1.0) -> list[PoolMember]:
        members = [self.member(job, interval_s) for job in jobs]
        for one in members:
            self.pool.join(one)
        return members

    def join_behind(self, job: str, rows_max: int) -> None:
        """Let the job join with this maximum number of records in a slice."""
        self.pool.join(self.member(job, rows_max=rows_max))

    def make_behind(self, *jobs: str) -> None:
        """Let these jobs join, with many records that need 0.1 ms each, and make two turns."""
        for job in jobs:
            self.join_behind(job, 40_000)
            self.send(job, count=300_000)
        self.turn()
        for job in jobs:
            self.batches.cpu_us[job] = 100 * self.records_of(job, 1)
        self.turn()

    def records_of(self, job: str, number: int) -> int:
        (row,) = self.ledger.slices(job, number, number)
        return offset_count(row.offsets_first, row.offsets)

    def records_in(self, seconds: float, job: str, number: int) -> int:
        """Return the number of records for this CPU time, by the costs of this slice, within the limits of a slice."""
        record_us = self.batches.cpu_us[job] / self.records_of(job, number)
        rows_max = self.pool._members[job].planner._settings.rows_max  # type: ignore[attr-defined]
        return max(PIECE_RECORDS_MIN, min(rows_max, int(seconds * 1e6 / record_us)))

    def send(self, *jobs: str, count: int = 2) -> None:
        for job in jobs:
            self.log.add(f"of-{job}", *range(1, count + 1))

    def turn(self, after_s: float = 1.0) -> list[str]:
        """Make a turn, and return what it processed."""
        self.now_s += after_s
        self.log.asked.clear()
        self.pool.turn()
        return self.batches.took()

    def committed(self, *jobs: str) -> list[int]:
        checkpoints = [self.ledger.last_checkpoint(job) for job in jobs or JOBS]
        return [one.slice if one else 0 for one in checkpoints]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    yield lab
    lab.ledger.close()


def test_one_look_and_one_batch_serve_all_members(lab: Lab) -> None:
    lab.join(*JOBS)
    lab.send(*JOBS)
    assert lab.turn() == ["a1", "b1", "c1"]
    assert lab.log.asked["ends"] == 1 and lab.committed() == [1, 1, 1]


def test_a_turn_without_new_records_is_one_look(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.join(*JOBS)
    lab.send(*JOBS)
    lab.turn()
    for name in ("plan_slices", "commit_checkpoints"):
        monkeypatch.setattr(lab.ledger, name, lambda _rows: pytest.fail("the turn wrote to the ledger"))
    assert lab.turn() == []
    assert lab.log.asked["ends"] == 1


def test_each_member_has_its_own_interval(lab: Lab) -> None:
    lab.join("a", interval_s=1)
    lab.join("b", interval_s=3)
    taken = []
    for _ in range(4):
        lab.send("a", "b")
        taken.append(lab.turn())
    assert taken == [["a1", "b1"], ["a2"], ["a3"], ["a4", "b2"]]


def test_a_member_has_a_slice_when_a_window_can_close(lab: Lab) -> None:
    (member,) = lab.join("a", interval_s=5)
    member.closings = Closings([WindowShape(10_000, 10_000)], 1_000, lambda: lab.now_s * 1_000)
    taken = []
    for _ in range(4):
        lab.send("a")
        taken += lab.turn(0.5)  # no window has closed yet, so the next slice is due soon
    assert taken == ["a1", "a2", "a3", "a4"]


@pytest.fixture
def late_lab(tmp_path: Path) -> Iterator[Lab]:
    """A lab in which jobs can be behind."""
    lab = Lab(tmp_path, TimedBrokers())
    yield lab
    lab.ledger.close()


@pytest.mark.parametrize("record_us", [5, 100, 1_000])
def test_a_member_that_is_behind_has_slices_by_the_cost_of_its_records(late_lab: Lab, record_us: int) -> None:
    late_lab.join("b")
    late_lab.join_behind("a", 10_000)
    late_lab.send("a", count=60_000)
    late_lab.turn()
    late_lab.batches.cpu_us["a"] = record_us * late_lab.records_of("a", 1)
    late_lab.turn()
    allowed = late_lab.records_in(0.5, "a", 2)
    late_lab.turn()
    # A cut by log time has at least half of the records that are allowed.
    assert allowed / 2 <= late_lab.records_of("a", 3) <= allowed
    late_lab.send("b")
    assert "b1" in late_lab.turn()


def test_members_that_are_behind_share_the_time_of_a_batch(late_lab: Lab) -> None:
    late_lab.join("c")
    late_lab.make_behind("a", "b")
    late_lab.pool._tasks_max = 1
    late_lab.turn()
    for job in ("a", "b"):
        allowed = late_lab.records_in(0.25, job, 2)
        assert allowed / 2 <= late_lab.records_of(job, 3) <= allowed, "each has half of 0.5 s"


def test_a_member_that_is_behind_has_smaller_slices_if_its_store_is_slow(
    late_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_STOP_S", 0.0)  # the test itself runs the turn in which a member leaves
    late_lab.join("b")
    late_lab.join_behind("a", 100_000)
    late_lab.send("a", count=1_500_000)
    late_lab.turn()
    first = late_lab.records_of("a", 1)

    def wait_for_store() -> None:
        late_lab.now_s += 4.0

    late_lab.batches.meanwhile = wait_for_store
    for _ in range(5):
        late_lab.turn()
    sizes = [late_lab.records_of("a", number) for number in range(3, 7)]
    assert sizes[0] <= first and sizes[1] <= sizes[0] / 2 + 1, "halved, because a batch took longer than 1 s"
    assert 5_000 <= sizes[-1] <= SLICE_RECORDS_MIN, "the smallest limit"
    late_lab.batches.meanwhile = lambda: None
    for _ in range(3):
        late_lab.turn()
    assert late_lab.records_of("a", 9) > SLICE_RECORDS_MIN, "larger again"
    late_lab.batches.meanwhile = wait_for_store
    for _ in range(5):
        late_lab.turn()
    late_lab.pool.leave(late_lab.pool._members["b"])
    for _ in range(2):
        late_lab.turn()
    number = late_lab.pool._members["a"].number
    assert late_lab.records_of("a", number) > 2 * SLICE_RECORDS_MIN, "alone again, it has no limit"


def test_members_that_are_all_behind_have_larger_slices(late_lab: Lab) -> None:
    late_lab.make_behind("a", "b")
    late_lab.turn()
    for job in ("a", "b"):
        allowed = late_lab.records_in(2.0, job, 2)
        assert allowed / 2 <= late_lab.records_of(job, 3) <= allowed, "no other member waits, so a batch takes 2 s"


def test_each_slice_reports_for_how_long_it_was_due(lab: Lab) -> None:
    (member,) = lab.join("a", interval_s=5)
    for seconds in (0.0, 5.0, 7.5):  # the last time, the pool was busy
        lab.send("a")
        lab.turn(seconds)
    assert isinstance(member.committer, Committer)
    assert member.committer.waits_s == [0.0, 0.0, 2.5]


def test_members_that_go_on_need_only_the_rows_of_their_jobs(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.join(*JOBS, interval_s=60)
    lab.send(*JOBS)
    lab.turn()
    lab.turn()
    read: list[list[str]] = []
    progress_of = lab.ledger.progress_of
    monkeypatch.setattr(lab.ledger, "progress_of", lambda names: read.append(sorted(names)) or progress_of(names))
    lab.turn()
    assert read == []
    lab.ledger.set_desired("b", Desired.STOPPED)
    lab.turn()
    assert read == [["b"]] and lab.pool.jobs == ["a", "c"]


def test_a_member_without_new_records_is_looked_at_less_often(lab: Lab) -> None:
    lab.new_pool(poll_max_s=1.0)
    lab.join("a")
    looks = 0
    for _ in range(100):
        lab.turn(0.1)
        looks += lab.log.asked["ends"]
    assert 10 <= looks <= 16
    lab.send("a")
    assert lab.turn(1.0) == ["a1"]


@pytest.mark.guarantee(
    "G907",
    "If a job of a pool fails, by its records, its store, its topic, or the ledger, only its run ends. The slices of the other "
    "jobs in the same batch are committed.",
    promise="a-failing-store-costs-no-result",
)
@pytest.mark.parametrize("failure", [Divergence("other results"), StrandlineError("no state"), ValueError("a defect")])
def test_a_failure_in_a_batch_ends_one_run(lab: Lab, failure: Exception) -> None:
    _, bad, _ = lab.join(*JOBS)
    lab.send(*JOBS)
    lab.batches.failing["b"] = failure
    lab.turn()
    assert lab.committed() == [1, 0, 1]
    assert not bad.isActive and str(failure) in str(bad.exception())
    lab.send(*JOBS)
    assert lab.turn() == ["a2", "c2"]


@pytest.mark.guarantee("G907")
def test_a_deleted_topic_ends_one_run(lab: Lab) -> None:
    _, bad, _ = lab.join(*JOBS)
    lab.send(*JOBS)
    lab.log.ids["of-b"] = "another id"
    assert lab.turn() == ["a1", "c1"]
    assert isinstance(bad.exception(), Conflict)


@pytest.mark.guarantee("G907")
def test_a_member_that_ends_a_worker_fails_alone(lab: Lab) -> None:
    _, bad, _ = lab.join(*JOBS)
    lab.send(*JOBS)
    lab.batches.ends_worker = {"b"}
    lab.turn()
    assert lab.committed() == [1, 0, 1] and not bad.isActive


@pytest.mark.guarantee("G907")
def test_a_job_that_hangs_is_moved_out_and_the_batch_is_repeated(lab: Lab) -> None:
    a, b, c = lab.join(*JOBS)
    lab.send(*JOBS)

    def hang() -> None:
        lab.batches.meanwhile = lambda: None
        lab.pool.move_out("b", "its slice took more than 30 s in a worker")

    lab.batches.meanwhile = hang
    assert lab.turn() == ["a1", "a1", "b1", "c1", "c1"]
    assert lab.committed() == [1, 0, 1] and lab.pool.jobs == ["a", "c"]
    assert isinstance(b.exception(), MovedOut) and "strandline job restart b" in str(b.exception())
    assert a.isActive and c.isActive


def test_a_job_that_ends_a_worker_is_named_by_its_mark(lab: Lab) -> None:
    _, b, _ = lab.join(*JOBS)
    lab.send(*JOBS)
    lab.batches.ends_worker, lab.batches.named_jobs = {"b"}, {"b"}
    assert lab.turn() == ["a1", "a1", "b1", "b1", "c1", "c1"]
    assert lab.committed() == [1, 0, 1] and not b.isActive


def test_a_job_with_a_large_state_is_moved_out(lab: Lab) -> None:
    _, b, _ = lab.join(*JOBS)
    lab.send(*JOBS)
    lab.batches.state_bytes = {"a": 1_000, "b": 1_001}
    lab.turn()
    lab.turn()
    assert lab.pool.jobs == ["a", "c"] and isinstance(b.exception(), MovedOut) and lab.committed() == [1, 1, 1]


@pytest.mark.guarantee(
    "G990",
    "The ledger contains the CPU time, the bytes read, and the size of the state of each job of a pool, also of one that failed.",
    promise="the-cost-of-each-job-is-shown",
)
def test_the_cost_of_each_member_is_noted(lab: Lab) -> None:
    lab.join("a", "b")
    lab.batches.cpu_us, lab.batches.state_bytes = {"a": 7_000, "b": 2_000}, {"a": 300}
    lab.batches.read_bytes = {"a": 90}
    for _ in range(3):
        lab.send("a", "b")
        lab.turn()
    assert lab.ledger.costs_of(JOBS) == {}
    lab.turn(NOTE_S)
    costs = lab.ledger.costs_of(JOBS)
    assert {job: (one.cpu_us, one.bytes, one.state_bytes) for job, one in costs.items()} == {
        "a": (21_000, 270, 300),
        "b": (6_000, 0, 0),
    }
    lab.batches.failing["b"] = Divergence("other results")
    lab.send("b")
    lab.turn()
    assert lab.pool.jobs == ["a"] and lab.ledger.costs_of(["b"])["b"].cpu_us == 8_000


def busy_turns(lab: Lab, jobs: Sequence[str], turns: int, cpu_us: int) -> None:
    """Let `a` use this CPU time in each turn of a second."""
    lab.batches.cpu_us["a"] = cpu_us
    for _ in range(turns):
        lab.send(*jobs)
        lab.turn()


@pytest.mark.guarantee(
    "G992",
    "A job of a pool whose new slices need more cores than the limit over 30 s is moved to its own runner, between two slices.",
    promise="kills-and-restarts-change-no-result",
)
def test_a_job_with_a_high_load_is_moved_out(lab: Lab) -> None:
    a, b, _ = lab.join(*JOBS)
    busy_turns(lab, JOBS, 40, 490_000)
    assert lab.pool.jobs == JOBS
    busy_turns(lab, JOBS, 35, 600_000)
    assert lab.pool.jobs == ["b", "c"] and isinstance(a.exception(), MovedOut)
    assert "cores for 30 s, and the limit is 0.5" in str(a.exception())
    assert lab.ledger.last_slice("a").status is SliceStatus.COMMITTED, "between two slices"  # type: ignore[union-attr]
    busy_turns(lab, ["b", "c"], 5, 0)
    assert b.isActive and lab.committed("b") == lab.committed("c")


def test_a_load_moves_a_job_that_is_alone(lab: Lab) -> None:
    (alone,) = lab.join("a")
    busy_turns(lab, ["a"], 40, 490_000)
    assert lab.pool.jobs == ["a"]
    busy_turns(lab, ["a"], 35, 600_000)
    assert lab.pool.jobs == [] and isinstance(alone.exception(), MovedOut)


def test_a_load_moves_no_job_that_is_placed_or_behind(lab: Lab) -> None:
    placed, other = lab.member("a"), lab.member("b")
    placed.is_placed = True
    lab.pool.join(placed)
    busy_turns(lab, ["a"], 40, 900_000)
    lab.pool.join(other)
    busy_turns(lab, ["a", "b"], 40, 900_000)
    assert lab.pool.jobs == ["a", "b"]
    lab.new_pool()
    behind = lab.member("a")
    lab.committers["a"].log_s_a_slice = 60
    alone_since = lab.committed("a")[0]
    lab.pool.join(behind)
    busy_turns(lab, ["a"], 40, 900_000)
    lab.join("b")
    busy_turns(lab, ["a", "b"], 40, 900_000)
    assert lab.pool.jobs == ["a", "b"] and lab.committed("a")[0] > alone_since + 40


def test_replays_are_no_load(lab: Lab) -> None:
    lab.join("a", interval_s=0)
    busy_turns(lab, ["a"], 60, 1_000)
    lab.new_pool()
    rewinding, _ = lab.join("a", "b", interval_s=0)
    lab.batches.cpu_us["a"] = 900_000
    while rewinding.is_rewinding:
        lab.turn()
    assert lab.pool.jobs == ["a", "b"]


def test_a_job_that_may_end_pools_is_alone_until_it_has_committed(lab: Lab) -> None:
    members = [lab.member(job) for job in JOBS]
    for one in members:
        one.is_alone = one.job != "a"
        lab.pool.join(one)
    lab.send(*JOBS)
    lab.turn()
    assert lab.reported == [["a"], [], ["b"], [], ["c"], []] and lab.committed() == [1, 1, 1]
    lab.send(*JOBS)
    lab.turn()
    assert sorted(lab.reported[-2]) == JOBS


def test_a_checkpoint_that_cannot_be_made_ends_one_run(lab: Lab) -> None:
    _, bad, _ = lab.join(*JOBS)
    lab.send(*JOBS)
    lab.committers["b"].failure = KeyError("stage")
    lab.turn()
    assert lab.committed() == [1, 0, 1] and not bad.isActive


@pytest.mark.guarantee("G907")
def test_a_job_that_is_removed_ends_one_run(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    _, bad, _ = lab.join(*JOBS)
    lab.send(*JOBS)
    read = lab.ledger.progress_of
    monkeypatch.setattr(lab.ledger, "progress_of", lambda names: {k: v for k, v in read(names).items() if k != "b"})
    assert lab.turn() == ["a1", "c1"]
    assert isinstance(bad.exception(), NotFound)


@pytest.mark.guarantee("G907")
def test_a_run_that_is_taken_over_is_fenced_alone(lab: Lab) -> None:
    """By its plan, by its checkpoint, and by a look without records."""
    _, bad, _ = lab.join(*JOBS)
    lab.send(*JOBS)
    run = lab.batches.run

    def taken_over(tasks: Any) -> Any:
        lab.batches.run = run  # type: ignore[method-assign]
        lab.ledger.begin_run("b", 2)
        return run(tasks)

    lab.batches.run = taken_over  # type: ignore[method-assign]
    lab.turn()
    assert lab.committed() == [1, 0, 1] and isinstance(bad.exception(), Fenced)
    (idle,) = lab.join("b")
    lab.turn()
    assert lab.committed() == [1, 1, 1]
    lab.ledger.begin_run("b", 3)
    lab.turn()
    assert isinstance(idle.exception(), Fenced) and lab.pool.jobs == ["a", "c"]


def test_a_failure_that_passes_is_tried_again_by_this_member_alone(lab: Lab) -> None:
    _, away, _ = lab.join(*JOBS, interval_s=0)
    lab.batches.failing["b"] = SinkUnavailable("the store is away")
    attempts_s = []
    for _ in range(90):
        lab.send("a")
        lab.send("b", count=1)
        taken = lab.turn(0.05)
        assert f"a{lab.committed('a')[0]}" in taken
        if "b1" in taken:
            attempts_s.append(lab.now_s)
    waits_s = [later - earlier for earlier, later in pairwise(attempts_s)]
    wanted_s = [BACK_OFF_S * 2**number for number in range(len(waits_s))]
    assert len(waits_s) >= 4
    assert all(wanted <= wait < wanted + 0.11 for wait, wanted in zip(waits_s, wanted_s, strict=True))
    assert away.isActive
    lab.batches.failing.clear()
    lab.turn(60)
    assert lab.committed("b") == [1] and away.failures == 0


def test_a_broker_that_is_away_delays_only_its_readers(lab: Lab) -> None:
    _, away, _ = lab.join(*JOBS)
    lab.send(*JOBS)
    lab.log.broken["of-b"] = LogUnavailable("no leader")
    assert lab.turn() == ["a1", "c1"]
    assert away.isActive
    lab.log.broken.clear()
    assert lab.turn() == ["b1"]


def test_a_run_that_is_alone_ends_after_some_attempts(lab: Lab) -> None:
    lab.new_pool(tries=TRIES)
    (one,) = lab.join("a")
    lab.send("a")
    lab.batches.failing["a"] = SinkUnavailable("the store is away")
    attempts = [lab.turn(5) for _ in range(TRIES + 2)]
    assert attempts == [["a1"]] * TRIES + [[], []]
    assert isinstance(one.exception(), SinkUnavailable)


def test_a_job_that_waits_for_its_store_can_be_stopped(lab: Lab) -> None:
    (one,) = lab.join("a")
    lab.send("a")
    lab.batches.failing["a"] = SinkUnavailable("the store is away")
    lab.turn()
    lab.ledger.set_desired("a", Desired.STOPPED)
    lab.turn(0.21)
    assert isinstance(one.exception(), SinkUnavailable)


def test_checkpoints_that_a_lost_ledger_has_not_confirmed_are_committed_later(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slices are not processed again."""
    lab.join(*JOBS)
    lab.send(*JOBS)
    commit = lab.ledger.commit_checkpoints

    def commit_unheard(rows: Any) -> Any:
        commit(rows)
        raise LedgerUnavailable("no answer")

    monkeypatch.setattr(lab.ledger, "commit_checkpoints", commit_unheard)
    with pytest.raises(LedgerUnavailable):
        lab.turn()
    assert lab.batches.took() == ["a1", "b1", "c1"]
    monkeypatch.setattr(lab.ledger, "commit_checkpoints", commit)
    lab.send(*JOBS)
    assert lab.turn() == ["a2", "b2", "c2"] and lab.committed() == [2, 2, 2]


@pytest.mark.guarantee(
    "G908",
    "Jobs of a pool start, stop, and drain between two batches, without an effect on the other jobs.",
    promise="kills-and-restarts-change-no-result",
)
def test_members_join_and_leave_between_two_turns(lab: Lab) -> None:
    first, _ = lab.join("a", "b")
    lab.send(*JOBS)
    assert lab.turn() == ["a1", "b1"]
    lab.join("c")
    leaving = threading.Thread(target=first.stop)
    leaving.start()
    while not lab.pool._leaving:
        leaving.join(0.01)
    lab.send(*JOBS)
    assert lab.turn() == ["b2", "c1"]
    leaving.join(stretched(5))
    assert not leaving.is_alive() and first.isActive and first.ending is None


@pytest.mark.guarantee("G908")
def test_the_ledger_orders_one_member_to_end(lab: Lab) -> None:
    stopped, replaced, _ = lab.join(*JOBS)
    lab.send(*JOBS)
    lab.turn()
    lab.ledger.set_desired("a", Desired.STOPPED)
    lab.ledger.submit_job("b", "", {"pipeline": "b", "n": 2})
    lab.send(*JOBS)
    assert lab.turn() == ["c2"]
    assert (stopped.ending, replaced.ending) == (JobState.STOPPED, "replaced")


@pytest.mark.guarantee(
    "G909",
    "A job of a pool that reads many records again does it in pieces of a bounded time, in batches that also contain the new "
    "slices of the other jobs.",
    promise="kills-and-restarts-change-no-result",
)
def test_a_rewind_is_cut_into_pieces_next_to_live_slices(lab: Lab) -> None:
    lab.join("a", interval_s=0)
    for _ in range(6):
        lab.send("a", count=PIECE_RECORDS_MIN)
        lab.turn()
    lab.new_pool()
    lab.batches.cpu_us["a"] = int(REPLAY_S * 1e6)
    rewinding, _ = lab.join("a", "b", interval_s=0)
    taken = []
    for _ in range(8):
        lab.send("b")
        taken.append(lab.turn())
    replays = lab.committers["a"].replays
    assert replays[-1] == 6 and len(replays) >= 5, "the first piece is guessed; the others take the time of a piece"
    assert all(f"b{number}" in one for number, one in enumerate(taken, start=1))
    lab.send("a")
    assert "a7" in lab.turn() and rewinding.isActive


@pytest.mark.guarantee("G909")
def test_the_smallest_rewinds_come_first(lab: Lab) -> None:
    lab.join(*JOBS, interval_s=0)
    for job, count in zip(JOBS, (3, 1, 2), strict=True):
        for _ in range(count):
            lab.send(job, count=PIECE_RECORDS_MIN)
            lab.turn()
    lab.new_pool()
    lab.pool._tasks_max = 1
    for member in lab.join(*JOBS):
        member._record_us = 1_000.0
    assert [lab.turn() for _ in range(2)] == [["b1"], ["c1"]]


def test_a_replay_that_differs_ends_one_run(lab: Lab) -> None:
    lab.join(*JOBS)
    lab.send(*JOBS)
    lab.turn()
    lab.new_pool()
    _, bad, _ = lab.join(*JOBS)
    lab.committers["b"].failure = ReplayMismatch("other counts")
    lab.turn()
    lab.send(*JOBS)
    assert lab.turn() == ["a2", "c2"]
    assert isinstance(bad.exception(), ReplayMismatch)


def test_expensive_members_are_spread_first() -> None:
    parts: Any = [
        Part(None, slice=name, row=None, records=0, cost_us=cost)  # type: ignore[arg-type]
        for name, cost in (("s1", 10), ("s2", 10), ("big", 100), ("s3", 10))
    ]
    assert spread(parts, 2) == [["big"], ["s1", "s2", "s3"]]
    assert spread(parts[:1], 4) == [["s1"]]


def test_the_end_of_the_pool_interrupts_its_members(lab: Lab) -> None:
    (one,) = lab.join("a")
    lab.pool.start()
    lab.pool.stop()
    assert one.wait(stretched(5)) and one.ending == "interrupted" and one.isActive
    (late,) = lab.join("b")
    assert late.ending == "interrupted"


def test_a_defect_of_the_loop_fails_its_members(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = lab.join("a")
    monkeypatch.setattr(lab.pool, "turn", lambda: 1 / 0)
    lab.pool.start()
    assert one.wait(stretched(5))
    assert "ZeroDivisionError" in str(one.exception())
