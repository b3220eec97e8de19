"""Conditions for a start from a snapshot, and for a rewind instead.

Real ledger and directories; no Spark, no Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyspark
import pytest

from strandline.core.errors import (
    BadRecord,
    Conflict,
    Divergence,
    Fenced,
    IndexMisconfigured,
    IndexUnavailable,
    InvalidSettings,
    LogChanged,
    LogTruncated,
    LogUnavailable,
    NotFound,
    RecordTooLarge,
    SchemaChanged,
    StrandlineError,
)
from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import JobState, RunRow
from strandline.log.kafka_status import LogRange
from strandline.processing.pipelines.job_run import JobRun
from strandline.processing.pipelines.stored import load_pipeline
from strandline.processing.run.ending import Ending
from strandline.processing.run.snapshot_choice import SnapshotChoice
from strandline.processing.run.snapshots import SnapshotManifest
from strandline.processing.run.start import RunStart
from strandline.processing.slices.rewind import RewindPlan
from strandline.processing.spark.session import shuffle_partitions
from tests.support.control import BOTH, Api
from tests.support.ledgers import a_checkpoint, a_slice
from tests.unit.test_snapshots import made

JOB = "power"
Query = Callable[[], Ending]


class LogFrom:
    """A log whose partitions start at these offsets."""

    def __init__(self, starts: Mapping[int, int]) -> None:
        self._starts = dict(starts)

    def starts(self, stream: str) -> dict[int, int]:
        return self._starts


class NoTopic:
    def starts(self, stream: str) -> dict[int, int]:
        raise NotFound(f"no topic {stream!r}")


class Stage:
    """A job whose first run has committed slice 1 and left a snapshot of it; and the next run."""

    def __init__(self, directory: Path) -> None:
        url = f"sqlite:///{directory / 'ledger.sqlite'}"
        self.settings = Settings(data_dir=directory, ledger_url=url)
        self.ledger = Ledger.open(url)
        self.index: Any = LogFrom({0: 0, 1: 0})
        self.is_java_alive = True
        assert Api(self.ledger).outcomes(f"{BOTH}recovery: snapshot\n") == ["created", "created"]
        self.began: list[tuple[int, bool]] = []
        """Start of each query, and whether it was from a snapshot."""
        self.run = self.begin()
        self.ledger.plan_slice(a_slice(1))
        self.ledger.commit_checkpoint(a_checkpoint(1))
        self.keep(self.run)
        self.run = self.begin()

    @property
    def snapshots(self) -> Path:
        return self.settings.data_dir / "snapshots"

    def begin(self) -> RunRow:
        return self.ledger.begin_run(JOB, 1)

    def keep(self, run: RunRow) -> None:
        manifest = SnapshotManifest(
            JOB,
            load_pipeline(self.ledger, JOB, 1).digest,
            pyspark.__version__,
            shuffle_partitions(self.settings),
        )
        checkpoint = made(self.snapshots, run.epoch, 1, manifest=manifest)
        made_by = checkpoint.parent / "made-by.json"
        made_by.write_text(
            made_by.read_text().replace(f'"run_started_ms": {run.epoch * 1_000}', f'"run_started_ms": {run.started_ms}')
        )

    def start(self, query: Query) -> Ending:
        """Begin a run whose query is `query`: it gets the checkpoint directory."""

        def run_query(plan: RewindPlan, checkpoint: Path | None) -> Ending:
            self.began.append((plan.slice_first, checkpoint is not None and (checkpoint / "offsets").exists()))
            return query()

        pipeline = load_pipeline(self.ledger, JOB, self.run.version)
        run = JobRun(self.settings, self.ledger, self.index, self.run, pipeline)
        start = RunStart(
            self.ledger, pipeline, SnapshotChoice(run), lambda *_: None, run_query, lambda: self.is_java_alive
        )
        return start.run()

    def unusable(self) -> list[str]:
        return [one.facts["reason"] for one in self.ledger.events(JOB) if one.kind == "snapshot_unusable"]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.ledger.close()


def failing(*errors: Exception) -> Query:
    """A query that fails with each of these, and then ends in order."""
    left = list(errors)

    def run() -> Ending:
        if left:
            raise left.pop(0)
        return JobState.STOPPED

    return run


@pytest.mark.guarantee(
    "G90",
    "With `recovery: snapshot`, a job that was killed at any step of a slice continues from its snapshot. It reads "
    "only the interrupted slice again, and emits no committed result again.",
    promise="kills-and-restarts-change-no-result",
)
def test_a_fitting_snapshot_is_taken(stage: Stage) -> None:
    assert stage.start(failing()) is JobState.STOPPED
    assert stage.began == [(2, True)]
    assert stage.unusable() == []


@pytest.mark.parametrize(
    "error",
    [
        StrandlineError("java.io.FileNotFoundException: 7.delta"),
        Conflict("slice 7 does not follow the last one"),
        Divergence("differs"),
        OSError(5, "input/output error"),
    ],
    ids=repr,
)
def test_what_fails_on_a_snapshot_is_done_by_a_rewind_at_once(stage: Stage, error: Exception) -> None:
    assert stage.start(failing(error)) is JobState.STOPPED
    assert stage.began == [(2, True), (1, False)]
    assert str(error) in stage.unusable()[0]
    assert [one.name for one in (stage.snapshots / JOB).iterdir()] == ["2"], "the bad ones are gone"


@pytest.mark.parametrize(
    "error",
    [
        Fenced("a newer run"),
        IndexUnavailable("away"),
        BadRecord("decode", "not JSON"),
        LogUnavailable("Kafka does not answer"),
        LogChanged("partition 1 is not the one that was read"),
        LogTruncated("offset 7 is gone"),
        NotFound("no topic 'turbines'"),
        IndexMisconfigured("index_closed_exception"),
        InvalidSettings("STRANDLINE_SQL_SINK_URL is not set"),
        RecordTooLarge("a result of 9 MB"),
        SchemaChanged("schema 7"),
    ],
    ids=repr,
)
def test_what_has_other_causes_costs_no_snapshot(stage: Stage, error: StrandlineError) -> None:
    with pytest.raises(type(error)):
        stage.start(failing(error))
    assert stage.began == [(2, True)]
    assert sorted(one.name for one in (stage.snapshots / JOB).iterdir()) == ["1", "2"]


def test_a_dead_jvm_costs_no_snapshot(stage: Stage) -> None:
    stage.is_java_alive = False
    with pytest.raises(StrandlineError):
        stage.start(failing(StrandlineError("An error occurred while calling o1.start")))
    assert stage.unusable() == []


def test_a_run_that_has_committed_fails_like_any_other(stage: Stage) -> None:
    def commit_and_fail() -> Ending:
        stage.ledger.plan_slice(a_slice(2, 2))
        stage.ledger.commit_checkpoint(a_checkpoint(2, 2))
        raise StrandlineError("no space left on device")

    with pytest.raises(StrandlineError, match="no space"):
        stage.start(commit_and_fail)
    assert stage.unusable() == []


def test_after_two_runs_in_vain_the_third_rewinds(stage: Stage) -> None:
    stage.run = stage.begin()
    assert stage.start(failing()) is JobState.STOPPED
    stage.run = stage.begin()
    assert stage.start(failing()) is JobState.STOPPED
    assert stage.began == [(2, True), (1, False)]
    assert stage.unusable() == ["2 runs have committed nothing since the last checkpoint"]


def test_where_the_log_holds_no_rewind_no_failure_costs_the_snapshot(stage: Stage) -> None:
    """Whatever the cause is, after the remedy the job can begin from nothing else."""
    stage.index = LogFrom({0: 1_000_000, 1: 1_000_000})
    with pytest.raises(Conflict, match="the alias belongs to another job"):
        stage.start(failing(Conflict("the alias belongs to another job")))
    assert stage.began == [(2, True)]
    assert sorted(one.name for one in (stage.snapshots / JOB).iterdir()) == ["1", "2"]


def test_where_the_log_holds_no_rewind_the_snapshot_is_tried_again(stage: Stage) -> None:
    stage.index = LogFrom({0: 1_000_000, 1: 1_000_000})
    for _ in range(3):
        stage.run = stage.begin()
    assert stage.start(failing()) is JobState.STOPPED
    assert stage.began == [(2, True)]


def test_where_no_topic_is_found_the_snapshot_is_tried_again(stage: Stage) -> None:
    """A broker that has just started may not know it yet. Whether it is gone, the preparation of the run finds out."""
    stage.index = NoTopic()
    for _ in range(3):
        stage.run = stage.begin()
    assert stage.start(failing()) is JobState.STOPPED
    assert stage.began == [(2, True)]


def test_a_job_that_rewinds_keeps_no_snapshot(stage: Stage) -> None:
    api = Api(stage.ledger)
    api.log.ranges = {"turbines": LogRange({0: 0, 1: 0}, {0: 100, 1: 200})}
    assert api.outcomes(BOTH) == ["unchanged", "changed"]
    stage.run = stage.begin()
    assert stage.run.version == 2
    assert stage.start(failing()) is JobState.STOPPED
    assert stage.began == [(1, False)]
    assert not list((stage.snapshots / JOB).iterdir())
