"""A small world with a seed: a log, a ledger, an index and dead letters in memory, and runs of one job that are killed,
overtaken and revived between any two of their steps.

Real are the parts that decide: `SlicePlanner`, `plan_of_job`, the arithmetic of watermarks, the pipeline model. The ledger is
a twin with a contract suite. The rest is modelled here step by step as the runner and Spark do it; what that leaves out
the tests with real processes show. Everything that is left to chance is drawn from one generator, so a seed is a history,
and `World.hash` its name.
"""

from __future__ import annotations

import hashlib
import random
import zlib
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from typing import Any
from unittest import mock

from strandline.core.documents import YamlDocument, read_documents
from strandline.core.errors import Fenced, LedgerUnavailable, LogUnavailable
from strandline.core.record_headers import dead_letter_topic
from strandline.core.stream import StreamSpec
from strandline.ledger.states import CheckpointRow, Desired, RunRow, SliceKind, SliceRow, SliceStatus
from strandline.processing.emission.fencing import slots_of_older_runs
from strandline.processing.emission.transactional_ids import id_of_rejected_records, id_of_result_stream
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.pipelines.model import PipelineSpec
from strandline.processing.slices import planner as planner_module
from strandline.processing.slices.planner import PlannerSettings, SlicePlanner, is_drained
from strandline.processing.slices.rewind import RewindPlan, plan_of_job
from strandline.processing.slices.silence import GAP_MAX_MS, SilenceMeter
from strandline.processing.slices.watermark import closes_after, emitted_up_to, greatest, reached_after
from tests.simulation.topic import Topic
from tests.support.twin_ledger import TwinLedger

JOB, STREAM, RESULTS = "j", "s", "shorts"
TASK_TRIES = 4
ENTRIES_A_TRANSACTION = 3
PAUSED_TURNS = 300
MAX_AHEAD_MS = 60_000
START_MS = 1_700_000_040_000  # the beginning of a minute
TEXT = """
stream: s
schema: {{device: string, ts: {{type: timestamp, unit: ms}}, power: long}}
---
pipeline: j
input: {{stream: s}}
event_time: {{field: ts, delay: {delay}ms, watermark: {watermark}, idle_timeout: {idle}, max_ahead: {ahead}s}}
steps:
  - where: power < {below}
  - window: {{name: short, {short}, by: [device], aggregate: {{n: count(*), total: sum(power)}}}}
    emit: [{{elasticsearch: short}}, {{stream: shorts}}]
  - window: {{name: minute, tumbling: 1m, by: [device], aggregate: {{n: sum(n), total: sum(total)}}}}
    emit: [{{elasticsearch: minute}}]
"""

Step = Generator[str]
"""One actor: it yields before each step that others could come between. Where the runner has a failpoint, its name."""
Key = tuple[str, int, int, str]
"""Of a result: stage, window start and end, device."""
Results = dict[Key, tuple[int, int]]
Sums = dict[Key, list[int]]
"""Of windows that are open: records, power."""
MINUTE = WindowShape(60_000, 60_000)
SHORTS = [
    WindowShape(*shape)
    for shape in ((10_000, 10_000), (15_000, 15_000), (20_000, 20_000), (20_000, 5_000), (15_000, 10_000))
]
"""Of the last, no window ends where one begins."""


@dataclass(frozen=True)
class Record:
    log_ms: int
    event_ms: int
    device: str
    power: int
    is_broken: bool


@dataclass(frozen=True)
class Version:
    """What a version of the pipeline does."""

    below: int
    short: WindowShape
    """Tumbling or sliding."""
    delay_ms: int
    watermark: str
    idle: str
    ahead_s: int = 60

    @property
    def windows(self) -> dict[str, WindowShape]:
        return {"short": self.short, "minute": MINUTE}


@dataclass
class Held:
    """A document in the index."""

    value: tuple[int, int]
    version: int
    epoch: int
    writes: int = 1


class Log:
    """Records by partition; answers as `LogIndex` does. Behind an open transaction nothing can be read."""

    def __init__(self, partitions: int) -> None:
        self.records: list[list[Record]] = [[] for _ in range(partitions)]
        self.open_from: dict[int, int] = {}
        """Partition -> where the open transaction begins."""
        self.away_ms: int | None = None
        """For how long the brokers have been away; None: they answer."""
        self.silent_ms = [0] * partitions
        """For how long nothing came to each partition, while nothing was pending there and the brokers were up. The first moments
        of an outage count: nobody sees one that is over between two looks."""

    def starts(self, stream: str) -> dict[int, int]:
        return dict.fromkeys(range(len(self.records)), 0)

    def ends(self, stream: str) -> dict[int, int]:
        return {partition: self.open_from.get(partition, end) for partition, end in self.ends_with_open(stream).items()}

    def ends_with_open(self, stream: str) -> dict[int, int]:
        if self.away_ms is not None:
            raise LogUnavailable("the brokers are away")
        return {partition: len(records) for partition, records in enumerate(self.records)}

    def newest_log_time(self, stream: str) -> int:
        return max((one.log_ms for records in self.records for one in records), default=0)

    def append(self, partition: int, record: Record) -> None:
        self.records[partition].append(record)
        self.silent_ms[partition] = 0

    def close_transaction(self, partition: int) -> None:
        if self.open_from.pop(partition, len(self.records[partition])) < len(self.records[partition]):
            self.silent_ms[partition] = 0

    def pass_time(self, ms: int, read: dict[int, int]) -> None:
        """Time that was silent counts as such; `read` is where the slices end."""
        if self.away_ms is not None:
            self.away_ms, ms = self.away_ms + ms, max(0, min(ms, GAP_MAX_MS - self.away_ms))
        for partition, records in enumerate(self.records):
            if self.open_from.get(partition, len(records)) == len(records) == read.get(partition):
                self.silent_ms[partition] += ms

    def offsets_at(self, stream: str, log_time_ms: int, ends: dict[int, int]) -> dict[int, int]:
        return {
            partition: min(
                next((at for at, one in enumerate(records) if one.log_ms >= log_time_ms), len(records)), ends[partition]
            )
            for partition, records in enumerate(self.records)
        }


@cache
def pipeline_of(version: Version) -> CheckedPipeline:
    stream, pipeline = documents_of(version)
    return check(PipelineSpec.parse(pipeline), StreamSpec.parse(stream))


def document_of(version: Version) -> dict[str, Any]:
    return dict(documents_of(version)[1].data)


def documents_of(version: Version) -> list[YamlDocument]:
    text = TEXT.format(
        delay=version.delay_ms,
        idle=version.idle,
        watermark=version.watermark,
        ahead=version.ahead_s,
        below=version.below,
        short=_window_text(version.short),
    )
    return read_documents(text, "simulation.yaml")


def _window_text(shape: WindowShape) -> str:
    if shape.size_ms == shape.every_ms:
        return f"tumbling: {shape.size_ms}ms"
    return f"sliding: {{size: {shape.size_ms}ms, every: {shape.every_ms}ms}}"


def windows_holding(shape: WindowShape, event_ms: int) -> list[tuple[int, int]]:
    """(start, end) of each, the first one first."""
    last = event_ms // shape.every_ms * shape.every_ms
    starts = range(last, event_ms - shape.size_ms, -shape.every_ms)
    return [(start, start + shape.size_ms) for start in reversed(starts)]


def spread(all_of_them: dict[Any, Any], slots: int, number: Callable[[Any], int]) -> dict[int, dict[Any, Any]]:
    """Slot -> its part, without the empty ones."""
    parts: dict[int, dict[Any, Any]] = defaultdict(dict)
    for key, value in all_of_them.items():
        parts[number(key) % slots][key] = value
    return dict(parts)


@dataclass
class Operators:
    """The two windows, as the operators compute them: a step takes rows in and closes what ends at or before `to_ms`; results of
    the first window flow into the second in the same step."""

    version: Version
    closed_ms: int | None = None
    short: Sums = field(default_factory=dict)
    minute: Sums = field(default_factory=dict)

    def step(self, rows: list[Record], to_ms: int | None) -> list[tuple[Key, tuple[int, int]]]:
        for row in rows:
            for start, end in windows_holding(self.version.short, row.event_ms):
                if self.closed_ms is not None and end <= self.closed_ms:
                    raise AssertionError(f"an accepted record comes to a closed window: {row}, closed {self.closed_ms}")
                if row.power < self.version.below:
                    add(self.short, ("short", start, end, row.device), 1, row.power)
        self.closed_ms = to_ms
        shorts = list(self._close(self.short))
        for (_, _, short_end, device), (n, total) in shorts:
            for start, end in windows_holding(MINUTE, short_end - 1):
                add(self.minute, ("minute", start, end, device), n, total)
        return [*shorts, *self._close(self.minute)]

    def _close(self, open_: Sums) -> Iterator[tuple[Key, tuple[int, int]]]:
        for key in sorted(key for key in open_ if self.closed_ms is not None and key[2] <= self.closed_ms):
            n, total = open_.pop(key)
            yield key, (n, total)


class Killed(Exception):
    """In the planner, which does its work in one step."""


class World:
    """One history. `broken` names a mistake that is built into the runs, to see that it is found; `kill_at` a step at which a
    run is killed, some time or other, and `pause_at` one at which a run is held, while another begins."""

    def __init__(
        self, seed: int, *, records: int = 220, broken: str = "", kill_at: str = "", pause_at: str = ""
    ) -> None:
        self.chance = random.Random(seed)
        self.broken = broken
        self.kill_at = kill_at
        self.pause_at = pause_at
        self.comes_to_it = self.chance.randint(1, 4)
        """How often runs come to `kill_at` or `pause_at` until it happens there; 0 when it has."""
        self.now_ms = START_MS
        self.records_left = records
        self.log = Log(self.chance.choice([1, 2, 4]))
        self.ledger = TwinLedger()
        self.index: dict[Key, Held] = {}
        self.dead = Topic()
        """Dead letters: partition and offset, with the reason."""
        self.results = Topic()
        """Of the first stage, which emits to the index, too."""
        self.findings: list[str] = []
        self.faults = 0
        self.runs: dict[int, Step] = {}
        self.asleep: dict[int, int] = {}
        """Runs that are paused, and for how many turns yet."""
        self.mono_ms = self.chance.randint(0, 10**9)
        """What the runs' monotonic clocks show; `now_ms` is the log's time, and the runs' wall clocks are off by days."""
        delay_ms, idle = self.chance.choice([2_000, 5_000, 20_000]), self.chance.choice(["null", "5s", "30s"])
        watermark = self.chance.choice(["partitions", "partitions", "newest"])
        self.versions = [Version(90, self.chance.choice(SHORTS), delay_ms, watermark, idle)]
        self.lags_ms = [self.chance.choice([0, 0, 1_000, 3 * delay_ms]) for _ in self.log.records]
        """How far event time in each partition is behind."""
        self.fed = list(range(len(self.log.records)))
        """The partitions that records come to now."""
        self.quiet_until_ms = 0
        """No record comes before the monotonic clock shows it."""
        self.commits: list[int] = []
        """The epoch of each write to the ledger."""
        self._digest = hashlib.sha256(repr((seed, records)).encode())
        self._event_ms = START_MS
        self._submit()

    @property
    def hash(self) -> str:
        """Of all that has happened so far."""
        return self._digest.hexdigest()

    def run(self) -> None:
        """Let things happen until the job is drained and every run has ended."""
        with ExitStack() as patches:
            if self.kill_at.startswith("plan."):
                patches.enter_context(mock.patch.object(planner_module, "failpoint", self._reach_in_planner))
            for _ in range(90_000):
                if self.findings or self._is_over():
                    return
                self._step()
        self.findings.append("the job does not come to its end")

    def note(self, *what: object) -> None:
        self._digest.update(repr(what).encode())

    def _is_over(self) -> bool:
        if self.records_left or self.runs or self.ledger.job(JOB).desired is not Desired.DRAINED:
            return False
        last = self.ledger.last_slice(JOB)
        return is_drained(last, self.ledger.last_checkpoint(JOB), self._pipeline().windows)

    def _submit(self) -> None:
        self.ledger.submit_job(JOB, "", document_of(self.versions[-1]))

    def _pipeline(self, version: int | None = None) -> CheckedPipeline:
        number = version or self.ledger.job(JOB).version
        return pipeline_of(self.versions[number - 1])

    def _step(self) -> None:
        """Something happens: records come, time passes, a run takes a step, or something breaks."""
        dice = self.chance.random()
        if self.records_left and dice < 0.15:
            self._feed()
        elif dice < (0.4 if self.mono_ms < self.quiet_until_ms else 0.25):
            passed_ms = self.chance.choice([1, 10, 100, 1_000, 8_000])
            self.now_ms += passed_ms
            self.mono_ms += passed_ms
            last = self.ledger.last_slice(JOB)
            self.log.pass_time(passed_ms, last.offsets[STREAM] if last is not None else {})
            self._heal(0.2)
            self.dead.end_stale(self.now_ms)
            self.results.end_stale(self.now_ms)
        elif dice < 0.29 and self.records_left:
            self._break()
        elif not self.runs:
            self._start()
        else:
            epoch = self.chance.choice(sorted(self.runs))
            if self.asleep.get(epoch, 0) > 0:
                self.asleep[epoch] -= 1
            else:
                self._advance(epoch)
        if not self.records_left and self.ledger.job(JOB).desired is Desired.RUNNING:
            self._heal(1.0)
            self.ledger.set_desired(JOB, Desired.DRAINED)
            self.note("drain")

    def _heal(self, chance: float) -> None:
        """The brokers come back, open transactions are committed, other partitions get records: each of it perhaps."""
        if self.chance.random() < chance:
            self.log.away_ms = None
        for partition in sorted(self.log.open_from):
            if self.chance.random() < chance:
                self.log.close_transaction(partition)
        if self.chance.random() < chance / 4:
            every = range(len(self.log.records))
            self.fed = sorted(self.chance.sample(every, self.chance.randint(1, len(self.log.records))))

    def _feed(self) -> None:
        if self.log.away_ms is not None or self.mono_ms < self.quiet_until_ms:
            return
        for _ in range(min(self.records_left, self.chance.randint(1, 20))):
            self.records_left -= 1
            self.now_ms += self.chance.choice([0, 0, 1, 50])
            self._event_ms += self.chance.choice([0, 100, 1_000, 3_000])
            partition = self.chance.choice(self.fed)
            delay_ms = self.versions[0].delay_ms
            event_ms = self._event_ms - self.lags_ms[partition]
            event_ms -= self.chance.choice([0, 0, 0, 500, delay_ms, 2 * delay_ms + 1, 90_000])
            if self.chance.random() < 0.01:
                event_ms = self.now_ms + 10 * MAX_AHEAD_MS
            # Event time runs ahead of the clock of the log by less than is allowed: the log's clock follows.
            self.now_ms = max(self.now_ms, self._event_ms)
            record = Record(
                self.now_ms,
                event_ms,
                self.chance.choice("abc"),
                self.chance.randint(0, 99),
                self.chance.random() < 0.02,
            )
            self.log.append(partition, record)
            self.note("record", record)

    def _break(self) -> None:
        self.faults += 1
        kind = self.chance.choice(["kill", "kill", "overtake", "upgrade", "outage", "hang", "quiet"])
        self.note(kind)
        if kind == "kill" and self.runs:
            del self.runs[self.chance.choice(sorted(self.runs))]
        elif kind == "overtake":  # the older run does not know it: it was paused, or cut off
            self.asleep |= {epoch: self.chance.choice([0, 5, 50]) for epoch in self.runs}
            self._start()
        elif kind == "upgrade" and len(self.versions) < 4:
            self.versions.append(
                Version(
                    self.chance.choice([50, 90]),
                    self.chance.choice(SHORTS),
                    self.chance.choice([1_000, self.versions[-1].delay_ms, 30_000]),
                    self.chance.choice(["partitions", "newest"]),
                    self.chance.choice(["null", "5s", "30s"]),
                    self.chance.choice([60, 120]),
                )
            )
            self._submit()
            if self.chance.random() < 0.5:
                self.asleep |= {epoch: self.chance.choice([5, 50]) for epoch in self.runs}
                self._start()
        elif kind == "outage":
            self.log.away_ms = self.log.away_ms or 0
        elif kind == "quiet":
            self.quiet_until_ms = self.mono_ms + self.chance.choice([10_000, 60_000, 120_000])
        elif kind == "hang":
            partition = self.chance.randrange(len(self.log.records))
            self.log.open_from.setdefault(partition, len(self.log.records[partition]))

    def _start(self) -> None:
        run = self.ledger.begin_run(JOB, 1)
        self.runs[run.epoch] = self._job_run(run)
        self.note("start", run.epoch, run.version)

    def _advance(self, epoch: int) -> None:
        try:
            step = next(self.runs[epoch])
            self.note(epoch, step)
            if step == self.kill_at and self._happens_here():
                del self.runs[epoch]
            elif step == self.pause_at and self._happens_here():
                self.asleep[epoch] = PAUSED_TURNS
                self._start()
        except (StopIteration, Fenced, LedgerUnavailable, LogUnavailable, Killed) as error:
            self.note(epoch, "ends", type(error).__name__)
            del self.runs[epoch]
        except Divergence as error:
            self.findings.append(str(error))
            del self.runs[epoch]

    def _happens_here(self) -> bool:
        self.comes_to_it = max(0, self.comes_to_it - 1)
        if self.comes_to_it:
            return False
        self.note("it happens at", self.kill_at, self.pause_at)
        self.kill_at = self.pause_at = ""
        return True

    def _reach_in_planner(self, name: str) -> None:
        if name == self.kill_at and self._happens_here():
            raise Killed(name)

    def _job_run(self, run: RunRow) -> Step:
        """A run, as `Runner._run_version` and `SliceCommitter` do it."""
        epoch, version = run.epoch, run.version
        pipeline = self._pipeline(version)
        rule = pipeline.event_time_rule
        yield "run.begun"
        yield "rewind.before_plan"
        plan = plan_of_job(self.ledger, pipeline)  # type: ignore[arg-type]  # a twin
        if self.broken == "replays from the latest":
            plan = RewindPlan(plan.slice_committed + 1, plan.slice_committed, plan.emitted)
        yield "rewind.planned"
        topics = {dead_letter_topic(JOB): self.dead, RESULTS: self.results}
        for slot, topic in slots_of_older_runs(self.ledger, run):  # type: ignore[arg-type]  # a twin
            yield "shut an older run out"
            if self.broken != "shuts nobody out":
                topics[topic].take_over(slot)
        slots = self.chance.choice([1, 2, 3])
        self.ledger.set_run_slots(JOB, epoch, slots)
        operators = Operators(self.versions[version - 1])
        rows_max = self.chance.choice([15, 60, 10_000])
        settings = PlannerSettings(JOB, version, epoch, STREAM, "earliest", rows_max, rule, pipeline.windows)
        off_ms = self.chance.choice([-(10**9), 0, 10**9])
        meter = SilenceMeter(lambda: self.mono_ms)
        planner = SlicePlanner(settings, self.ledger, self.log, lambda: self.now_ms + off_ms, meter)  # type: ignore[arg-type]
        done = plan.slice_first - 1
        yield "run.before_query"
        while True:
            yield "look"
            job, last = self.ledger.job(JOB), self.ledger.last_slice(JOB)
            if job.epoch != epoch and self.broken != "is not fenced":
                raise Fenced("a newer run")
            if last is None or last.status is SliceStatus.COMMITTED:
                is_drained_now = is_drained(last, self.ledger.last_checkpoint(JOB), pipeline.windows)
                is_over = job.desired is Desired.DRAINED and is_drained_now
                if is_over or job.version != version:
                    return
            if done < plan.slice_committed:
                end = min(plan.slice_committed, done + self.chance.randint(1, 8))
            else:
                if self.broken != "plans late":
                    yield "plan a slice"
                while self.log.away_ms is not None and self.chance.random() < 0.9:
                    yield "wait for the brokers"
                planned = planner.next_slice()
                if planned is not None and planned != last:
                    self._check_silence(planned)
                self.commits.append(epoch) if planned is not None and planned.epoch == epoch else None
                if planned is None or planned.number <= done:
                    continue
                end = planned.number
            yield from self._batch(run, slots, plan, operators, done + 1, end)
            done = end

    def _check_silence(self, planned: SliceRow) -> None:
        """No more counts as silence than there was."""
        for partition, ms in planned.silence_ms.get(STREAM, {}).items():
            if ms > self.log.silent_ms[partition]:
                was_ms = self.log.silent_ms[partition]
                self.findings.append(f"slice {planned.number}: {ms} ms of silence in {partition}, and it was {was_ms}")

    def _batch(self, run: RunRow, slots: int, plan: RewindPlan, operators: Operators, first: int, end: int) -> Step:
        yield "slice.before_action"
        epoch, version = run.epoch, run.version
        pipeline = self._pipeline(version)
        slices = self.ledger.slices(JOB, first, end)
        last = slices[-1]
        before = self.ledger.last_checkpoint(JOB)
        rows: list[Record] = []
        refused: list[tuple[int, int, str]] = []
        counted: list[Record] = []
        reached = slices[0].reached
        for one in slices:
            judged_by = last if self.broken == "late by the batch's last slice" else one
            accepted_here, refused_here, all_here = self._judge(one, judged_by.watermark_ms)
            reached = reached_after(reached, {STREAM: latest_of(accepted_here)})
            rows += [record for records in accepted_here.values() for record in records]
            refused += refused_here
            counted += all_here
        if end <= plan.slice_committed:
            closes_ms = plan.closed_ms(self.ledger.checkpoint(JOB, end))
        else:
            closes_ms = closes_after(last, last.reached if self.broken == "closes by the facts before" else reached)
        results = operators.step(rows, closes_ms)
        new: dict[str, Results] = {"short": {}, "minute": {}}
        for key, value in results:
            stage, _, window_end_ms, _ = key
            if self.broken != "emits again" and window_end_ms <= plan.emitted.get(stage, -1):
                continue
            if end <= plan.slice_committed and self.broken != "emits again":
                self.findings.append(f"a replayed slice emits {key}")
            new[stage][key] = value
        emitted_to = before.result_offsets.get(RESULTS, {}).get(0, 0) if before else 0
        for stage, of_stage in new.items():
            yield from self._tasks(
                spread(of_stage, slots, lambda key: zlib.crc32(key[3].encode())),
                lambda slot, part, stage=stage: self._emit(run, stage, slot, part, emitted_to),
            )
        yield "slice.written"
        if end <= plan.slice_committed:
            yield "rewind.replayed"
            return
        yield "commit.before_dead_letters"
        dead_end = before.dead_letter_offsets.get(0, 0) if before else 0
        if refused:
            letters = {(partition, offset): reason for partition, offset, reason in refused}
            yield from self._tasks(
                spread(letters, slots, lambda place: place[0]),
                lambda slot, part: self._write_once(
                    self.dead, id_of_rejected_records(JOB, slot), part, dead_end, epoch, "dead_letters"
                ),
            )
            dead_end = self.dead.settled_end()
        result_end = len(self.results.entries)
        while self.results.settled_end() < result_end:
            yield "wait until results are settled"
        result_end = self.results.settled_end()
        yield "commit.before_checkpoint"
        yield "checkpoint.before_commit"  # within the transaction: what is killed here was never there
        reasons = [reason for _, _, reason in refused]
        self.ledger.commit_checkpoint(
            CheckpointRow(
                job=JOB,
                slice=end,
                epoch=epoch,
                version=version,
                emitted=emitted_up_to(
                    [(stage.name, stage.shape) for stage in pipeline.stages],
                    closes_ms,
                    before.emitted if before else {},
                ),
                latest_event_ms=greatest(before.latest_event_ms if before else None, *(row.event_ms for row in rows)),
                latest_log_ms=greatest(before.latest_log_ms if before else None, *(row.log_ms for row in counted)),
                records=len(counted),
                accepted=len(rows),
                rejected={reason: reasons.count(reason) for reason in sorted(set(reasons))},
                results={},
                dead_letter_offsets={0: dead_end},
                result_offsets={RESULTS: {0: result_end}},
                closes_ms=closes_ms,
                reached=reached,
                committed_ms=self.now_ms,
            )
        )
        self.commits.append(epoch)
        if self.chance.random() < 0.02:
            self.faults += 1
            raise LedgerUnavailable("the answer to the commit was lost")
        yield "checkpoint.committed"

    def _tasks(self, parts: dict[int, dict[Any, Any]], start: Callable[[int, dict[Any, Any]], Step]) -> Step:
        """One task for each slot, all at once. One whose worker dies, or is lost sight of, is tried again."""
        lost: list[Step] = []
        at_work = {slot: start(slot, part) for slot, part in parts.items()}
        tries = dict.fromkeys(at_work, 1)
        while at_work:
            if lost and self.chance.random() < 0.3:
                try:
                    yield next(lost[-1])
                except (StopIteration, LogUnavailable):
                    lost.pop()
                continue
            slot = self.chance.choice(sorted(at_work))
            step = next(at_work[slot], None)
            if step is None:
                del at_work[slot]
                continue
            yield step
            if self.chance.random() < 0.01 and tries[slot] < TASK_TRIES:
                self.faults += 1
                tries[slot] += 1
                if self.chance.random() < 0.5:
                    lost.append(at_work[slot])
                at_work[slot] = start(slot, parts[slot])
                yield "a worker dies"

    def _emit(self, run: RunRow, stage: str, slot: int, results: Results, written_before: int) -> Step:
        """One task of a stage, as `StageEmission` does it."""
        yield "emit.before_write"
        for key, value in results.items():
            self._create(key, value, run.version, run.epoch)
            yield "a document"
        if stage == "short":
            place = id_of_result_stream(JOB, stage, RESULTS, slot)
            yield from self._write_once(self.results, place, results, written_before, run.epoch, "stream")
        yield "emit.written"

    def _write_once(
        self, topic: Topic, place: str, entries: dict[Any, Any], written_before: int, epoch: int, failpoints: str
    ) -> Step:
        """As `transactions.Slot` does it."""
        if self.ledger.job(JOB).epoch != epoch and self.broken != "asks nobody":
            raise Fenced("a newer run")
        yield "take a slot over"
        hold = topic.hold(place) if self.broken == "takes nothing over" else topic.take_over(place)
        yield f"{failpoints}.taken_over"
        if self.ledger.job(JOB).epoch != epoch and self.broken != "asks nobody":
            raise Fenced("a newer run")
        yield "look where it ends"
        end = len(topic.entries)
        while topic.settled_end() < end:
            yield "wait for open transactions"
        there = dict(topic.committed(written_before, end))
        missing = [one for one in entries.items() if one[0] not in there or self.broken == "writes again"]
        for first in range(0, len(missing), ENTRIES_A_TRANSACTION):
            for identity, value in missing[first : first + ENTRIES_A_TRANSACTION]:
                yield "produce"
                topic.append(hold, identity, value, self.now_ms)
            yield f"{failpoints}.before_commit"
            topic.commit(hold)
            yield f"{failpoints}.committed"

    def _judge(
        self, one: SliceRow, watermark_ms: int | None
    ) -> tuple[dict[int, list[Record]], list[tuple[int, int, str]], list[Record]]:
        """Partition -> its accepted records; those refused; all."""
        accepted: dict[int, list[Record]] = {}
        refused, everything = [], []
        for partition, end in sorted(one.offsets[STREAM].items()):
            first = one.offsets_first[STREAM].get(partition, 0)
            for offset in range(first, end):
                record = self.log.records[partition][offset]
                everything.append(record)
                reason = reason_against(record, replace(one, watermark_ms=watermark_ms))
                if reason:
                    refused.append((partition, offset, reason))
                else:
                    accepted.setdefault(partition, []).append(record)
        return accepted, refused, everything

    def _create(self, key: Key, value: tuple[int, int], version: int, epoch: int) -> None:
        held = self.index.get(key)
        if held is None:
            self.index[key] = Held(value, version, epoch)
        elif self.broken == "overwrites":
            self.index[key] = Held(value, version, epoch, held.writes + 1)
        elif held.value != value:
            raise Divergence(f"{key} is {held.value} by epoch {held.epoch}, and epoch {epoch} makes it {value}")


class Divergence(Exception):
    """Two runs say different things of one window."""


def latest_of(records: dict[int, list[Record]]) -> dict[int, int]:
    """Partition -> the latest event."""
    return {partition: max(record.event_ms for record in held) for partition, held in records.items()}


def reason_against(record: Record, one: SliceRow) -> str:
    """Why the record can't be used in its slice; empty when it can."""
    if record.is_broken:
        return "decode"
    if one.rule.max_ahead_ms is not None and record.event_ms > record.log_ms + one.rule.max_ahead_ms:
        return "future_event"
    if one.watermark_ms is not None and record.event_ms < one.watermark_ms:
        return "late"
    return ""


def check_world(world: World) -> list[str]:
    """What is wrong at the end, by the log and the ledger alone: nothing here knows what the runs have computed."""
    findings = list(world.findings)
    if findings:
        return findings
    slices = world.ledger.slices(JOB, 1, world.ledger.slice_count(JOB))
    accepted: list[Record] = []
    dead: list[tuple[int, int, str]] = []
    seen = 0
    for one in slices:
        for partition, end in one.offsets[STREAM].items():
            for offset in range(one.offsets_first[STREAM].get(partition, 0), end):
                record = world.log.records[partition][offset]
                seen += 1
                reason = reason_against(record, one)
                if reason:
                    dead.append((partition, offset, reason))
                else:
                    accepted.append(record)
    if seen != sum(map(len, world.log.records)):
        findings.append(f"{seen} records are in slices, {sum(map(len, world.log.records))} in the log")
    letters = sorted((partition, offset, reason) for (partition, offset), reason in world.dead.committed(0))
    if sorted(dead) != letters:
        findings.append(f"{len(dead)} dead letters are due, {len(letters)} are there")
    totals = world.ledger.totals(JOB)
    if (totals.records, totals.accepted) != (seen, len(accepted)):
        findings.append(f"the ledger counts {totals}, there are {seen} records, {len(accepted)} accepted")
    if any(before > after for before, after in pairwise(world.commits)):
        findings.append("an old run wrote after a newer one")
    if any(held.writes > 1 for held in world.index.values()):
        findings.append("a document was overwritten")
    findings += wrong_times(world, slices)
    findings += uncovered(world, accepted)
    expected = expected_index(world, slices, accepted)
    found = {key: held.value for key, held in world.index.items()}
    in_stream = sorted(world.results.committed(0))
    of_short = sorted(one for one in expected.items() if one[0][0] == "short")
    if in_stream != of_short:
        findings.append(f"{len(of_short)} results are due in the stream, {len(in_stream)} are there, or others")
    findings += [f"missing {key}" for key in sorted(expected.keys() - found.keys())]
    findings += [f"extra {key}" for key in sorted(found.keys() - expected.keys())]
    findings += [
        f"{key} is {found[key]}, expected {expected[key]}"
        for key in sorted(expected.keys() & found.keys())
        if found[key] != expected[key]
    ]
    return findings


def wrong_times(world: World, slices: list[SliceRow]) -> list[str]:
    """Where a recorded watermark, or what a slice closed, is not what the rule of docs/pipeline.md gives, by the log alone."""
    findings = []
    reached: dict[int, int] = {}
    closed_ms: int | None = None
    for one in slices:
        name, rule, silence_ms = f"slice {one.number}", one.rule, one.silence_ms.get(STREAM, {})
        expected = [greatest(closed_ms, watermark_of(one, reached, silence_ms))]
        if one.kind is SliceKind.DRAIN:
            expected = [one.watermark_ms] if (one.watermark_ms or 0) >= (expected[0] or 0) else expected
        if [one.watermark_ms] != expected:
            findings.append(f"{name} has the watermark {one.watermark_ms}, expected {expected[0]} by {rule}")
        if one.reached.get(STREAM, {}) != reached:
            findings.append(f"{name} says that event time has come to {one.reached}, and it was {reached}")
        for partition, end in one.offsets[STREAM].items():
            for record in world.log.records[partition][one.offsets_first[STREAM].get(partition, 0) : end]:
                if not reason_against(record, one):
                    reached[partition] = max(record.event_ms, reached.get(partition, 0))
        closed_ms = greatest(one.watermark_ms, watermark_of(one, reached, silence_ms))
        found_ms = world.ledger.checkpoint(JOB, one.number).closes_ms
        if found_ms != closed_ms:
            findings.append(f"{name} closes up to {found_ms}, expected {closed_ms} by {rule}")
    return findings


def watermark_of(one: SliceRow, reached: dict[int, int], silence_ms: dict[int, int]) -> int | None:
    rule = one.rule
    if not reached:
        return None
    limit_ms = 10**15 if rule.idle_timeout_ms is None else rule.idle_timeout_ms
    active = [partition for partition in reached if silence_ms.get(partition, 0) < limit_ms]
    if not active:
        return max(reached.values()) + min(silence_ms[partition] for partition in reached) - limit_ms - rule.delay_ms
    if rule.watermark == "newest":
        return max(reached.values()) - rule.delay_ms
    return min(reached[partition] for partition in active) - rule.delay_ms


def expected_index(world: World, slices: list[SliceRow], accepted: list[Record]) -> dict[Key, tuple[int, int]]:
    """Each window by the version whose checkpoint closed it: what ends after all that its stage had emitted, up to there.

    A version with windows of another size goes on, whole windows only, where the one before it had come.
    """
    expected: dict[Key, tuple[int, int]] = {}
    emitted_ms: dict[str, int] = {}
    for one in slices:
        checkpoint = world.ledger.checkpoint(JOB, one.number)
        if checkpoint.closes_ms is None:
            continue
        version = world.versions[checkpoint.version - 1]
        due = {
            stage: (emitted_ms.get(stage, 0), last_end(shape, checkpoint.closes_ms))
            for stage, shape in version.windows.items()
        }
        emitted_ms = {stage: max(bounds) for stage, bounds in due.items()}
        sums: Sums = {}
        for record in accepted if any(from_ms < to_ms for from_ms, to_ms in due.values()) else ():
            for stage, start, end in windows_of(version, record.event_ms):
                if due[stage][0] < end <= due[stage][1] and record.power < version.below:
                    add(sums, (stage, start, end, record.device), 1, record.power)
        expected |= {key: (n, total) for key, (n, total) in sums.items()}
    return expected


def last_end(shape: WindowShape, at_ms: int) -> int:
    return (at_ms - shape.size_ms) // shape.every_ms * shape.every_ms + shape.size_ms


def windows_of(version: Version, event_ms: int) -> Iterator[tuple[str, int, int]]:
    """(stage, start, end) of each window in which an event counts, as often as it counts there."""
    for start, end in windows_holding(version.short, event_ms):
        yield "short", start, end
        for first, last in windows_holding(MINUTE, end - 1):
            yield "minute", first, last


def add(sums: Sums, key: Key, n: int, total: int) -> None:
    held = sums.setdefault(key, [0, 0])
    held[0] += n
    held[1] += total


def uncovered(world: World, accepted: list[Record]) -> list[str]:
    """Records that every version would use, and that no window of a stage holds."""
    spans: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for stage, start, end, device in world.index:
        spans[stage].append((start, end, device))
    below = min(version.below for version in world.versions)
    shorts = [version.short for version in world.versions]
    # A short window that slides may lie in the minute after its record's, and in that one only.
    beyond_ms = {"short": 0, "minute": max((one.size_ms for one in shorts if one.size_ms > one.every_ms), default=0)}
    return [
        f"{record} is in no window of stage {stage}"
        for stage in ("short", "minute")
        for record in accepted
        if record.power < below
        and not any(
            start - beyond_ms[stage] <= record.event_ms < end and device == record.device
            for start, end, device in spans[stage]
        )
    ]


def simulate(seed: int, **options: Any) -> tuple[World, list[str]]:
    """Run one history; return it, and what is wrong with it."""
    world = World(seed, **options)
    world.run()
    return world, check_world(world)
