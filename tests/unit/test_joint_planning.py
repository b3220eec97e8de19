"""One look at the log plans the next slices of many jobs, and each job has its own outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import Conflict, Fenced, LedgerUnavailable, LogChanged, LogUnavailable, NotFound
from strandline.ledger.ledger import Ledger
from strandline.ledger.progress import RunRequest
from strandline.ledger.states import CheckpointRow, Desired, EventTimeRule, SliceKind, SliceRow
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.slices.continuity import DOUBT_MS
from strandline.processing.slices.joint_planning import Outcome, count_silence, plan_next_slices
from strandline.processing.slices.planner import InputStream, PlannerSettings, SlicePlanner
from strandline.processing.slices.silence import SilenceMeter
from tests.support.ledgers import a_checkpoint
from tests.support.one_by_one import OneByOne

JOBS = [f"j{number:02}" for number in range(20)]
RULE = EventTimeRule(delay_ms=1_000, idle_timeout_ms=5_000)
WINDOWS = (WindowShape(10_000, 10_000),)


class Brokers(OneByOne):
    """Streams of two partitions, and how often each question was asked."""

    def __init__(self) -> None:
        self.records: dict[str, dict[int, list[int]]] = {}
        self.ids: dict[str, str] = {}
        self.broken: dict[str, Exception] = {}
        """Stream -> what a question for its ends raises."""
        self.asked: Counter[str] = Counter()

    def add(self, stream: str, *values: int) -> None:
        of_stream = self.records.setdefault(stream, {0: [], 1: []})
        self.ids.setdefault(stream, f"id of {stream}")
        for value in values:
            of_stream[value % 2].append(value)

    def _each(self, streams: Collection[str], name: str) -> Any:
        self.asked[name] += 1
        return super()._each(streams, name)

    def checksums_at(self, places: Collection[Any]) -> Any:
        self.asked["checksums"] += 1
        return super().checksums_at(places)

    def _of(self, stream: str) -> dict[int, list[int]]:
        if stream in self.broken:
            raise self.broken[stream]
        if stream not in self.records:
            raise NotFound(f"Kafka has no topic {stream}")
        return self.records[stream]

    def starts(self, stream: str) -> dict[int, int]:
        return dict.fromkeys(self._of(stream), 0)

    def ends(self, stream: str) -> dict[int, int]:
        return {partition: len(records) for partition, records in self._of(stream).items()}

    ends_with_open = ends

    def partitions(self, stream: str) -> list[int]:
        return list(self.records[stream])

    def topic_id(self, stream: str) -> str:
        self._of(stream)
        return self.ids[stream]

    def checksums(self, stream: str, offsets: Mapping[int, int]) -> dict[int, int]:
        held = self._of(stream)
        return {p: hash((stream, held[p][at])) for p, at in offsets.items() if at < len(held[p])}

    def not_writable(self, stream: str) -> set[int]:
        return set()

    def newest_log_time(self, stream: str) -> int:
        return 0

    def offsets_at(self, stream: str, log_time_ms: int, ends: Mapping[int, int]) -> dict[int, int]:
        return dict(ends)


class Lab:
    """Twenty jobs, each with a stream of its own and one that all read."""

    def __init__(self, path: Path) -> None:
        self.ledger = Ledger.open(f"sqlite:///{path}/ledger.sqlite")
        self.log, self.now_ms = Brokers(), 0
        self.ledger.put_stream("shared", {"stream": "shared"})
        self.log.add("shared")
        for job in JOBS:
            self.ledger.put_stream(f"of-{job}", {"stream": f"of-{job}"})
            self.ledger.submit_job(job, "", {"pipeline": job})
            self.log.add(f"of-{job}")
        self.runs = self.ledger.begin_runs([RunRequest(job, 1) for job in JOBS])[0]
        self.planners = {job: self._planner(job) for job in JOBS}

    def _planner(self, job: str) -> SlicePlanner:
        inputs = tuple(
            InputStream(name, topic_id=f"id of {name}", stream_version=1) for name in ("shared", f"of-{job}")
        )
        settings = PlannerSettings(job, 1, self.runs[job].epoch, inputs, 100, RULE, WINDOWS)
        meter = SilenceMeter(lambda: self.now_ms)
        return SlicePlanner(settings, self.ledger, self.log, lambda: 0, meter, 0)

    def plan(self, *jobs: str, committed: Mapping[str, int] | None = None) -> dict[str, Outcome]:
        self.log.asked.clear()
        planners = [self.planners[job] for job in jobs or JOBS]
        return plan_next_slices(planners, self.ledger, self.log, lambda: self.now_ms, committed)

    def with_checkpoints(self) -> list[tuple[SlicePlanner, CheckpointRow | None]]:
        return [(planner, self.ledger.last_checkpoint(job)) for job, planner in self.planners.items()]

    def commit(self, outcomes: Mapping[str, Outcome]) -> None:
        """Both partitions of a job's own stream have come to 5 s of event time."""
        rows = [row for row in outcomes.values() if isinstance(row, SliceRow)]
        refused = self.ledger.commit_checkpoints(
            [
                a_checkpoint(
                    row.number,
                    row.epoch,
                    row.job,
                    emitted={},
                    latest_event_ms=5_000,
                    latest_log_ms=5_000,
                    closes_ms=4_000,
                    reached={f"of-{row.job}": {0: 5_000, 1: 5_000}},
                    accepted_in={f"of-{row.job}": {0: 1, 1: 1}},
                )
                for row in rows
            ]
        )
        assert refused == {}

    def first(self) -> None:
        """One committed slice of each job."""
        for job in JOBS:
            self.log.add(f"of-{job}", 1, 2)
        self.commit(self.plan())


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    yield lab
    lab.ledger.close()


def numbers(outcomes: Mapping[str, Outcome]) -> dict[str, int | str | None]:
    return {
        job: found.number if isinstance(found, SliceRow) else None if found is None else type(found).__name__
        for job, found in outcomes.items()
    }


def test_twenty_jobs_need_one_request_for_each_kind_of_question(lab: Lab) -> None:
    lab.first()
    lab.log.add("shared", 4)
    found = lab.plan()
    assert numbers(found) == dict.fromkeys(JOBS, 2)
    asked = {"ends": 1, "ends_with_open": 1, "not_writable": 1, "topic_id": 1, "checksums": 1}
    assert lab.log.asked == asked, "no partition had an old record that the new ones come after"
    lab.commit(found)
    for job in JOBS[:3]:
        lab.log.add(f"of-{job}", 6)
    assert numbers(lab.plan()) == dict.fromkeys(JOBS[:3], 3) | dict.fromkeys(JOBS[3:])
    assert lab.log.asked == asked | {"checksums": 2}


def test_jobs_without_records_share_one_question_for_the_ends(lab: Lab) -> None:
    lab.first()
    assert numbers(lab.plan()) == dict.fromkeys(JOBS)
    assert lab.log.asked == {"ends": 1, "ends_with_open": 1, "not_writable": 1}


@pytest.mark.guarantee("G900")
def test_a_slice_is_as_one_that_is_planned_alone(lab: Lab) -> None:
    lab.first()
    lab.log.add("shared", 3)
    lab.log.add(f"of-{JOBS[0]}", 8, 9)
    alone = lab.planners[JOBS[0]].next_slice()
    assert isinstance(alone, SliceRow) and alone.kind is SliceKind.LIVE
    again = lab.plan()
    assert again[JOBS[0]] == alone, "it is planned already"
    other = again[JOBS[1]]
    assert isinstance(other, SliceRow)
    assert other.checksums["shared"] == alone.checksums["shared"]
    assert other.stream_versions == {"shared": 1, f"of-{JOBS[1]}": 1}


@pytest.mark.guarantee(
    "G900",
    "If several jobs are planned together, a deleted or recreated topic, a stream that can't be read, or a defect stops "
    "only the jobs that it affects. The others get the same slices as alone.",
    promise="a-damaged-log-or-ledger-stops-the-job",
)
def test_a_deleted_topic_is_an_outcome_of_the_job_that_reads_it(lab: Lab) -> None:
    lab.first()
    lab.log.add("shared", 3)
    del lab.log.records[f"of-{JOBS[4]}"]
    others = dict.fromkeys(JOBS, 2) | {JOBS[4]: None}
    found = lab.plan()
    assert numbers(found) == others, "a broker that is behind may not know it for a moment"
    lab.commit(found)
    logs = lab.planners[JOBS[4]]._continuity._logs
    logs[f"of-{JOBS[4]}"]._topic._since_ms -= DOUBT_MS  # type: ignore[operator]
    found = lab.plan()
    assert numbers(found) == dict.fromkeys(JOBS) | {JOBS[4]: "LogChanged"}
    assert "was deleted" in str(found[JOBS[4]])
    with pytest.raises(LogChanged):
        lab.planners[JOBS[4]].next_slice()


@pytest.mark.guarantee("G900")
def test_a_recreated_topic_and_another_record_end_only_the_jobs_that_read_them(lab: Lab) -> None:
    lab.first()
    lab.log.add("shared", 3)
    lab.log.ids[f"of-{JOBS[1]}"] = "another"
    lab.log.records[f"of-{JOBS[2]}"][1][0] = 77
    lab.log.add(f"of-{JOBS[2]}", 5)
    found = lab.plan()
    wrong = {JOBS[1]: "LogChanged", JOBS[2]: "LogChanged"}
    assert numbers(found) == dict.fromkeys(JOBS, 2) | wrong
    assert "The topic was deleted and recreated" in str(found[JOBS[1]])
    assert "holds another record" in str(found[JOBS[2]])


def test_an_end_that_fell_and_a_partition_that_lacks_are_looked_at_again(lab: Lab) -> None:
    lab.first()
    lab.log.add("shared", 3)
    lab.log.records[f"of-{JOBS[1]}"][1].clear()
    del lab.log.records[f"of-{JOBS[2]}"][0]
    assert numbers(lab.plan()) == dict.fromkeys(JOBS, 2) | {JOBS[1]: None, JOBS[2]: None}


@pytest.mark.guarantee("G900")
def test_a_stream_that_can_not_be_read_is_an_outcome_of_its_job(lab: Lab) -> None:
    lab.first()
    lab.log.add("shared", 3)
    lab.log.broken[f"of-{JOBS[7]}"] = LogUnavailable("no leader")
    assert numbers(lab.plan()) == dict.fromkeys(JOBS, 2) | {JOBS[7]: "LogUnavailable"}
    del lab.log.broken[f"of-{JOBS[7]}"]
    assert numbers(lab.plan())[JOBS[7]] == 2


@pytest.mark.guarantee("G900")
def test_a_fenced_job_and_a_defect_leave_the_others(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.first()
    lab.log.add("shared", 3)
    lab.ledger.begin_run(JOBS[1], 2)
    lab.ledger.set_desired(JOBS[2], Desired.STOPPED)
    monkeypatch.setattr(lab.planners[JOBS[3]], "_cut", lambda *_, **__: 1 // 0)
    found = lab.plan(committed={JOBS[4]: 9})
    wrong = {JOBS[1]: "Fenced", JOBS[2]: None, JOBS[3]: "ZeroDivisionError", JOBS[4]: "LedgerBehind"}
    assert numbers(found) == dict.fromkeys(JOBS, 2) | wrong
    assert isinstance(found[JOBS[1]], Fenced)
    for job in (JOBS[1], JOBS[2], JOBS[3], JOBS[4]):
        assert lab.ledger.slice_count(job) == 1


def test_a_ledger_that_is_away_is_no_outcome_of_a_job(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.first()
    lab.log.add("shared", 3)

    def away(rows: object) -> None:
        raise LedgerUnavailable("the ledger is away")

    with monkeypatch.context() as broken:
        broken.setattr(lab.ledger, "plan_slices", away)
        with pytest.raises(LedgerUnavailable):
            lab.plan()
    assert numbers(lab.plan()) == dict.fromkeys(JOBS, 2)


def test_silence_is_counted_for_each_job_by_one_look(lab: Lab) -> None:
    """The window that ends at 10 s closes without a record, after the timeout."""
    lab.first()
    for _ in range(20):
        lab.log.asked.clear()
        lab.now_ms += 1_000
        count_silence(lab.with_checkpoints(), lab.log, lambda: lab.now_ms)
        assert lab.log.asked == {"ends": 1, "ends_with_open": 1, "not_writable": 1}
    found = lab.plan()
    assert numbers(found) == dict.fromkeys(JOBS, 2)
    assert {row.kind for row in found.values() if isinstance(row, SliceRow)} == {SliceKind.IDLE}


def test_one_stream_that_fails_ends_the_count_of_silence_of_its_job_alone(lab: Lab) -> None:
    lab.first()
    for second in range(20):
        lab.now_ms += 1_000
        lab.log.broken = {f"of-{JOBS[0]}": NotFound("no topic")} if second == 17 else {}
        count_silence(lab.with_checkpoints(), lab.log, lambda: lab.now_ms)
    assert numbers(lab.plan()) == dict.fromkeys(JOBS, 2) | {JOBS[0]: None}


def test_a_slice_that_the_ledger_refuses_is_an_outcome(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.first()
    lab.log.add("shared", 3)
    monkeypatch.setattr(lab.ledger, "plan_slices", lambda rows: {rows[0].job: Conflict("refused")})
    assert numbers(lab.plan(*JOBS[:2])) == {JOBS[0]: "Conflict", JOBS[1]: 2}
