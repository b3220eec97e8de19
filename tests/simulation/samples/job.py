"""Runs of a job over the log. Planner, rewind, decoder, operators, emission, and checkpoints are the real ones; only Spark, which
moves blobs between them, Kafka, the ledger's database, and the stores are models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from strandline.ledger import progress
from strandline.ledger.states import (
    NO_TOTALS,
    CheckpointRow,
    Desired,
    SliceKind,
    SliceRow,
    SliceStatus,
    Totals,
)
from strandline.processing.emission import keyed_task
from strandline.processing.emission.commit import SliceCommitter
from strandline.processing.emission.keyed_task import BucketOutcome, KeyedTask
from strandline.processing.emission.result_shapes import document_shape, letter_shape
from strandline.processing.emission.stage_emission import StageEmission
from strandline.processing.operators import open_groups
from strandline.processing.operators.segments import MemorySegments
from strandline.processing.slices.planner import InputStream, PlannerSettings, SlicePlanner
from strandline.processing.slices.rewind import RewindPlan, plan_of_job, restore_plan_of_job, whole_plan_of_job
from strandline.processing.slices.silence import SeenEnds, SilenceMeter, Vector
from strandline.processing.source.run_slices import RunSlices, SourceConfig
from strandline.processing.source.slice_rows import add_facts
from tests.simulation.chance import Chance
from tests.simulation.clocks.job import NothingIsLost
from tests.simulation.samples.history import STREAM, History, Log
from tests.simulation.samples.pipelines import JOB, Setup
from tests.simulation.samples.store import LettersOfRun, Store, StoreWriterOfRun
from tests.support.twin_ledger import TwinLedger

ROWS_MAX = 1_000


class How(NamedTuple):
    """Division of the work of a run. No result depends on it."""

    buckets: int = 1
    tasks: int = 1
    """Source tasks of a slice, at most."""
    chunk_records: int | None = None
    replay_rows: int = 1 << 30
    """Records that a replay reads together, about."""
    has_segments: bool = False
    """True if groups leave the state as soon as there are a few."""


class Snapshot(NamedTuple):
    """State after a slice."""

    number: int
    states: dict[int, bytes]


class Planning(NamedTuple):
    """Times at which runs look at the log, and the size of their slices."""

    looks_ms: tuple[int, ...]
    restarts: frozenset[int]
    """Looks that are the first of a run, which counts silence from there."""
    rows_max: int


class Ledger(TwinLedger):
    """With the counts that a replay compares."""

    def totals(self, job: str, up_to: int | None = None) -> Totals:
        found = NO_TOTALS
        for row in self._checkpoints[job][:up_to]:
            found = progress._add(found, row)
        return found

    def slice_versions(self, job: str, first: int, last: int) -> set[int]:
        return {row.version for row in self._checkpoints[job][first - 1 : last]}

    def branch(self, committed: int, *, has_planned: bool) -> Ledger:
        """Return the ledger as it was after this slice. `has_planned`: the next slice was planned."""
        found = Ledger()
        found.submit_job(JOB, "", {})
        found._slices[JOB] = self._slices[JOB][:committed]
        found._checkpoints[JOB] = self._checkpoints[JOB][:committed]
        if has_planned:
            found._slices[JOB].append(replace(self._slices[JOB][committed], status=SliceStatus.PLANNED))
        return found


class PatientMeter(SilenceMeter):
    """The silence that a run counts if it looks at the log all the time, also between the looks of this simulation."""

    def __init__(self, log: Log, ledger: Ledger) -> None:
        super().__init__(lambda: log.now_ms)
        self._log, self._ledger = log, ledger
        self.from_ms = log.now_ms
        """When the count began: with the run, or after an outage."""

    def look(
        self,
        ask: Callable[[], SeenEnds],
        accepted_in: Any,
        closed: Callable[[], Collection[int]] = tuple,
    ) -> tuple[Vector, Vector]:
        ends, found = ask().ends, {}
        for partition in ends:
            last_ms = self.from_ms
            if (number := accepted_in.get(partition)) is not None:
                (row,) = self._ledger.slices(JOB, number, number)
                last_ms = max(last_ms, self._log.came_ms[partition][row.offsets[STREAM][partition] - 1])
            found[partition] = self._log.now_ms - last_ms
        return ends, found


class _OneFormat:
    """All slices have the format of the pipeline."""

    def of(self, row: SliceRow, stream: str) -> None:
        return None

    def lookups_of(self, row: SliceRow) -> tuple[()]:
        return ()


class _SegmentsInMemory:
    """In place of `SegmentFiles`."""

    def __init__(self) -> None:
        self._stores: defaultdict[tuple[int, int], MemorySegments] = defaultdict(MemorySegments)

    def of(self, checkpoint: Path, bucket: int, number: int) -> MemorySegments:
        return self._stores[bucket, number]


class Run:
    """One run of the job: it rewinds, or begins from a snapshot, and then processes slices."""

    def __init__(
        self,
        setup: Setup,
        ledger: Ledger,
        log: Log,
        store: Store,
        how: How,
        chance: Chance,
        *,
        snapshot: Snapshot | None = None,
        restores_from: int | None = None,
    ) -> None:
        pipeline = setup.pipeline
        self.ledger, self.store, self.how = ledger, store, how
        self._log, self._chance = log, chance
        self._compiled = setup.compiled(how.buckets)
        self.row = ledger.begin_run(JOB, 1)
        self.plan = self._plan_of(setup, snapshot, restores_from)
        self.states = {} if snapshot is None else dict(snapshot.states)
        self.settings = PlannerSettings(
            JOB, 1, self.row.epoch, (InputStream(STREAM),), ROWS_MAX, pipeline.event_time_rule, pipeline.windows
        )
        config = SourceConfig(self._compiled.config, self.settings, self.plan, how.replay_rows, 0, how.tasks, "")
        self._slices = RunSlices(config, ledger)  # type: ignore[arg-type]  # as much of a ledger as it uses
        self._slices._formats = _OneFormat()  # type: ignore[assignment]
        index = SimpleNamespace(settled_ends=lambda _: {0: len(store.letters)})
        run: Any = SimpleNamespace(
            job=JOB, epoch=self.row.epoch, version=1, ledger=ledger, index=index, pipeline=pipeline, row=self.row
        )
        self._committer = SliceCommitter(run, self.plan, lambda: None, lambda: None)
        emissions = tuple(
            StageEmission(
                (StoreWriterOfRun(document_shape(pipeline, stage, stage.emits[0], 1), store),),
                (),
                letter_shape(pipeline, stage, 1),
                JOB,
                stage.name,
                1,
                self.plan.emitted.get(stage.name),
                "",
                "",
                0,
            )
            if stage.emits
            else StageEmission((), (), letter_shape(pipeline, stage, 1), JOB, stage.name, 1, None, "", "", 0)
            for stage in pipeline.stages
        )
        letters = LettersOfRun("nowhere", "none", JOB, 1, 0, store=store)
        checkpoint = Path("segments") if how.has_segments else None
        self._keyed = KeyedTask(pipeline.stages, self._compiled.keys, emissions, letters, checkpoint=checkpoint)
        vars(self._keyed)["cascade"] = self._compiled.cascade  # as a process keeps it
        self._segments = _SegmentsInMemory()
        self.replayed_records = 0

    def _plan_of(self, setup: Setup, snapshot: Snapshot | None, restores_from: int | None) -> RewindPlan:
        if restores_from is not None:
            return restore_plan_of_job(self.ledger, setup.pipeline, restores_from, merges=True)  # type: ignore[arg-type]
        if snapshot is None:
            return plan_of_job(self.ledger, setup.pipeline)  # type: ignore[arg-type]
        whole = whole_plan_of_job(self.ledger, setup.pipeline)  # type: ignore[arg-type]
        return replace(whole, slice_first=snapshot.number + 1, reaches_back_to_ms=None)

    def replay(self) -> None:
        """Process the committed slices of the plan. Raises ReplayMismatch if they contain something else than they did."""
        number = self.plan.slice_first - 1
        while number < self.plan.slice_committed:
            slices = self._slices.replayed_from(number + 1)
            last = slices[-1].number
            facts = add_facts(fact for one in self._process(number + 1, slices) for fact in one.facts)
            self.replayed_records += facts.records
            self._committer._require_same(number + 1, last, facts)
            number = last

    def process(self, row: SliceRow) -> CheckpointRow:
        """Compute a new slice, and write its results. Return its checkpoint, which isn't committed."""
        before = self.ledger.last_checkpoint(JOB)
        outcomes = self._process(row.number, [row], before)
        facts = add_facts(one for outcome in outcomes for one in outcome.facts)
        return self._committer.checkpoint_of(row, facts, outcomes, before)

    def _process(
        self, first: int, slices: Sequence[SliceRow], before: CheckpointRow | None = None
    ) -> list[BucketOutcome]:
        """Process a batch as Spark does: source tasks, an exchange that keeps no order, and keyed tasks."""
        last, keys = slices[-1].number, self._compiled.keys
        is_new, restores = last > self.plan.slice_committed, self.plan.restores(last)
        spread, work = self._slices.batch(first, slices, self.how.tasks, before)
        self.store.begin(last)
        self._log.chunk_records = self.how.chunk_records
        rows: defaultdict[int, list[Any]] = defaultdict(list)
        for at, pieces in enumerate(spread):
            for key, *row in self._compiled.source.blobs(
                pieces, is_new=is_new, work=work if at == 0 else None, restores=restores, reader=self._log
            ):
                rows[key].append(row)
        outcomes: list[BucketOutcome] = []
        parts: defaultdict[tuple[int, int], list[bytes]] = defaultdict(list)
        with self._few_groups():
            for bucket, key in enumerate(keys):
                self._chance.shuffle(rows[key])
                done = self._keyed.process(bucket, rows[key], self.states.get(bucket))
                self.states[bucket] = done.state
                outcomes.append(done.outcome)
                for target, stage, part in done.parts:
                    parts[target, stage].append(part)
            for (bucket, stage), of_bucket in sorted(parts.items()):
                outcomes.append(self._keyed.emit_merged(bucket, stage, of_bucket, done.work))
        return outcomes

    def _few_groups(self) -> ExitStack:
        stack = ExitStack()
        if self.how.has_segments:
            stack.enter_context(mock.patch.object(keyed_task, "SegmentFiles", self._segments))
            stack.enter_context(mock.patch.object(open_groups, "RECENT_ROWS_MAX", 3))
            stack.enter_context(mock.patch.object(open_groups, "_LARGE_STEP", 0))
        return stack


@dataclass(frozen=True)
class Recorded:
    """A job that has processed the whole log, slice by slice, and was drained."""

    setup: Setup
    log: Log
    ledger: Ledger
    store: Store
    snapshots: dict[int, Snapshot]

    @property
    def slices(self) -> list[SliceRow]:
        return self.ledger._slices[JOB]

    @property
    def checkpoints(self) -> list[CheckpointRow]:
        return self.ledger._checkpoints[JOB]


def record(history: History, setup: Setup, planning: Planning, chance: Chance) -> Recorded:
    """Plan and process slices by the real planner, until the job is drained."""
    log, ledger, store = history.log, Ledger(), Store()
    log.now_ms = planning.looks_ms[0]
    ledger.submit_job(JOB, "", {})
    run = Run(setup, ledger, log, store, How(), chance)
    meter = PatientMeter(log, ledger)
    settings = replace(run.settings, rows_max=planning.rows_max)
    planner = SlicePlanner(settings, ledger, log, lambda: log.now_ms, meter, filling_ms=0)  # type: ignore[arg-type]
    planner._continuity = NothingIsLost()  # type: ignore[assignment]
    snapshots: dict[int, Snapshot] = {}

    def go_on() -> None:
        while (row := planner.next_slice()) is not None:
            ledger.commit_checkpoint(run.process(row))
            snapshots[row.number] = Snapshot(row.number, dict(run.states))
            assert row.number < 500, "the job does not come to its end"

    for at, look_ms in enumerate(planning.looks_ms):
        log.now_ms = look_ms
        if at in planning.restarts:
            meter.from_ms = look_ms
        if history.kafka_away is not None and look_ms >= history.kafka_away.end_ms:
            meter.from_ms = max(meter.from_ms, history.kafka_away.end_ms)
        go_on()
    ledger.set_desired(JOB, Desired.DRAINED)
    go_on()
    last = ledger.last_slice(JOB)
    assert last is None or last.kind is SliceKind.DRAIN or not ledger.checkpoint(JOB, last.number).reached
    return Recorded(setup, log, ledger, store, snapshots)
