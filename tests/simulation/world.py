"""A small world with a seed: a log, a ledger, an index and dead letters in memory, and runs of one job.

Runs are killed, overtaken and revived between any two of their steps.

The parts that decide are real: `SlicePlanner`, `plan_of_job`, the arithmetic of watermarks, the pipeline model. The
ledger is a twin with a contract suite. The rest is modelled step by step as the runner and Spark do it (`run.py`). The
tests with real processes cover what this leaves out.

All random choices come from one generator, so a seed is a history, and `World.hash` its name. `faults.py` contains the
faults, `load.py` the load, and `check.py` what must be true at the end.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from unittest import mock

from strandline.core.errors import Conflict, Fenced, LedgerUnavailable, LogTruncated, LogUnavailable
from strandline.ledger.states import Desired
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.slices import continuity, joint_planning
from strandline.processing.slices.planner import is_drained
from tests.simulation.chance import Chance
from tests.simulation.faults import break_things
from tests.simulation.index import Divergence, Index
from tests.simulation.load import START_MS, Load
from tests.simulation.log import Log
from tests.simulation.mistakes import make_mistake
from tests.simulation.run import JobRun, Step, StoreUnavailable
from tests.simulation.topic import Topic
from tests.simulation.versions import (
    JOB,
    Version,
    document_of,
    first_version,
    pipeline_of,
    pipeline_of_document,
    shapes_of,
)
from tests.support.twin_ledger import TwinLedger

PAUSED_TURNS = 300


class Killed(Exception):
    """In the planner, which does its work in one step."""


class World:
    """One history.

    - `broken`: a mistake that is put into the runs, to see that it is found.
    - `kill_at`: a step at which a run is killed at some time.
    - `pause_at`: a step at which a run is held while another starts.
    """

    job = JOB

    def __init__(
        self, seed: int, *, records: int = 220, broken: str = "", kill_at: str = "", pause_at: str = ""
    ) -> None:
        self.chance = Chance(seed)
        self.broken = broken
        self.kill_at = kill_at
        self.pause_at = pause_at
        self.comes_to_it = self.chance.randint(1, 4)
        """How often runs come to `kill_at` or `pause_at` until it happens there; 0 when it has."""
        self.now_ms = START_MS
        """The true time. The brokers' clock is off by `log.clock_off_ms`, the runs' wall clocks by `wall_off_ms`, and
        their monotonic clocks go too fast or too slow by `drift`."""
        self.mono_ms = self.chance.randint(0, 10**9)
        self.wall_off_ms, self.drift = 0, 0.0
        self.versions: list[Version] = []
        self._is_draining = False
        self.ledger = TwinLedger()
        self.submit(first_version(self.chance))
        self.log = Log(self.chance.choice([1, 2, 4]))
        self.load = Load(self.chance, self.log, records, self.versions[0].delay_ms)
        self.index = Index(self.chance.choice([None, seed]))
        self.dead = Topic()
        """Dead letters: partition and offset of a record, or the key of a document, with the reason."""
        self.results = Topic()
        """The results of the first stage, which emits to the index too."""
        self.findings: list[str] = []
        """What was found on the way: its kind, a colon, a sentence."""
        self.happened: Counter[str] = Counter()
        """What has happened how often."""
        self.runs: dict[int, Step] = {}
        self.asleep: dict[int, int] = {}
        """Runs that are paused, and for how many turns yet."""
        self.cut: tuple[set[int], int] | None = None
        """The partitions that lost records which are in slices, or are another topic's, and the last slice of that moment."""
        self.behind_until_ms: int | None = None
        """Until when a broker is or was behind."""
        self.stopped_by = ""
        """What the error says that has stopped the job for good, as only a log that has lost records may."""
        self.commits: list[int] = []
        """The epoch of each write to the ledger."""
        self._noted: list[tuple[object, ...]] = [(seed, records)]
        """All that has happened. It never changes, so it is processed only when it is needed."""

    @property
    def hash(self) -> str:
        """Return the hash of all that has happened so far."""
        return hashlib.sha256("".join(map(repr, self._noted)).encode()).hexdigest()

    def run(self) -> None:
        """Let things happen until the job is drained and every run has ended."""
        with ExitStack() as patches:
            if self.kill_at.startswith("plan."):
                patches.enter_context(mock.patch.object(joint_planning, "failpoint", self._reach_in_planner))
            patches.enter_context(
                mock.patch.object(continuity, "time", SimpleNamespace(sleep=lambda _: self.pass_time(1_000)))
            )
            patches.enter_context(mock.patch.object(PipelineSpec, "from_document", pipeline_of_document))
            make_mistake(self, patches)
            for _ in range(90_000):
                if self.findings or self.stopped_by or self._is_over():
                    return
                self._step()
        self.findings.append("stuck: the job does not come to its end")

    def count(self, what: str) -> None:
        """Note that it has happened, and count it."""
        self.happened[what] += 1
        self.note(what)

    def note(self, *what: object) -> None:
        self._noted.append(what)

    def submit(self, version: Version) -> None:
        """Apply it. One that is the same as the one before is no new version."""
        if self.ledger.submit_job(JOB, "", document_of(version)).version > len(self.versions):
            self.versions.append(version)

    def pipeline(self, version: int | None = None) -> CheckedPipeline:
        number = version or self.ledger.job(JOB).version
        return pipeline_of(self.versions[number - 1])

    def start(self) -> None:
        run = self.ledger.begin_run(JOB, 1)
        self.runs[run.epoch] = JobRun(self, run).steps()
        self.count("begin a run")
        self.note(run.epoch, run.version)

    def wall_clock(self) -> int:
        """The runners'. Nothing about records may hang on it."""
        return self.now_ms + self.wall_off_ms

    def monotonic_clock(self) -> Callable[[], int]:
        """One of a run that begins now."""
        began_ms, rate = self.mono_ms, 1 + self.drift
        return lambda: int((self.mono_ms - began_ms) * rate)

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.mono_ms += ms
        if self.log.seen_to and self.mono_ms >= (self.behind_until_ms or 0):
            self.log.seen_to = {}
        self.log.pass_time(ms)
        self.dead.end_stale(self.now_ms)
        self.results.end_stale(self.now_ms)

    def _is_over(self) -> bool:
        if not self._is_draining or self.runs:
            return False
        last = self.ledger.last_slice(JOB)
        return is_drained(last, self.ledger.last_checkpoint(JOB), shapes_of(self.versions[-1]))

    def _step(self) -> None:
        """Something happens: records come, time passes, a run takes a step, or something breaks."""
        dice = self.chance.random()
        is_quiet = self.mono_ms < self.load.quiet_until_ms
        if dice < 0.15 and self.load.left:
            if not is_quiet:
                self.load.send(self.now_ms, self.pass_time, self.note)
        elif dice < (0.4 if is_quiet else 0.25):
            self.pass_time(
                self.chance.choice([100, 1_000, 8_000] if self.load.is_real_time else [1, 10, 100, 1_000, 8_000])
            )
            self._heal(0.2)
        elif dice < 0.29 and self.load.left:
            break_things(self)
        elif not self.runs:
            self.start()
        else:
            epoch = self.chance.choice([*self.runs])  # in the order of their epochs
            if self.asleep and self.asleep.get(epoch, 0) > 0:
                self.asleep[epoch] -= 1
            else:
                self._advance(epoch)
        if not self.load.left and not self._is_draining:
            self._is_draining = True
            self._heal(1.0)
            self.ledger.set_desired(JOB, Desired.DRAINED)
            self.note("drain")

    def _heal(self, chance: float) -> None:
        """The brokers and the store come back, open transactions are committed, other partitions get records: each perhaps."""
        if self.log.away_ms is not None and self.chance.random() < chance:
            self.log.away_ms = None
            self.load.send_again(self.now_ms)
        for partition in sorted(self.log.open_from) if self.log.open_from else ():
            if self.chance.random() < chance:
                self.log.close_transaction(partition)
        if self.chance.random() < chance:
            self.index.is_busy = False
        if self.chance.random() < chance:
            self.index.is_shut = False
        if self.chance.random() < chance:
            self.index.is_late = False
        if self.chance.random() < chance:
            try:
                self.index.let_come_in()
            except Divergence as error:
                self.findings.append(f"wrong: {error}")
        if self.chance.random() < chance / 4:
            self.load.turn()

    def _advance(self, epoch: int) -> None:
        try:
            step = next(self.runs[epoch])
            self.note(epoch, step)
            if step == self.kill_at and self._happens_here():
                del self.runs[epoch]
            elif step == self.pause_at and self._happens_here():
                self.asleep[epoch] = PAUSED_TURNS
                self.start()
        except (StopIteration, Fenced, LedgerUnavailable, LogUnavailable, StoreUnavailable, Killed) as error:
            self.note(epoch, "ends", type(error).__name__)
            del self.runs[epoch]
        except Divergence as error:
            self.findings.append(f"wrong: {error}")
            del self.runs[epoch]
        except (Conflict, LogTruncated) as error:
            self.note(epoch, "stops")
            self.count("stop a job" if isinstance(error, Conflict) else "stop a job at a hole")
            if self.cut is None if isinstance(error, Conflict) else not self.log.removed:
                self.findings.append(f"wrong: the job stops, and the log holds all that it needs: {error}")
            self.stopped_by = str(error)
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
