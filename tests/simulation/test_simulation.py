"""Thousands of small histories, each with kills, zombies, upgrades and lost answers: the same results as without any.

`make simulate SEEDS=1000000` runs more of them, from a seed of one's choice.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context

import pytest

from strandline.core.failpoints import FAILPOINTS
from strandline.ledger.states import SliceStatus
from tests.simulation.check import check_world, simulate
from tests.simulation.faults import FAULTS, name_of
from tests.simulation.mistakes import MISTAKES as MISTAKES_OF_THE_PLANNER
from tests.simulation.versions import JOB, STREAM
from tests.simulation.world import World

TIMES_A_FAILPOINT = 10
_PIECE = 100
_REPORTED = 1_000
SHOWN_LATE = {"masks what is cut off", "counts whatever is pending as silence"}
"""Mistakes that only one of hundreds of histories shows: `make test-all` looks for them."""
SHOWN_FROM = {"counts all between two looks as silence": 180, "has no partition idle": 160}
"""Seeds before the first that shows a mistake which one history of 150 does: only sooner found from there."""
MISTAKES = {
    "replays from the latest": "",
    "emits again": "",
    "writes again": "",
    "takes nothing over": "",
    "late by the batch's last slice": "",
    "closes by the facts before": "",
    "drops refused documents": "",
    "reads over a hole": "",
    "takes a lost commit for done": "",
    "takes a store that is late for a refusal": "",
    "takes a store that is busy for a refusal": "",
    "takes a store that is shut for a refusal": "",
    **dict.fromkeys(MISTAKES_OF_THE_PLANNER, ""),
    "asks nobody": "slice.before_action",
    "fences no run": "produce",
}
"""Mistake -> step at which a run must be held, or "".

Each mistake is put into every run of a history, and must be found alone. Some are found easily, others only if a run
is held at a step while another starts.
"""


KINDS = (
    *dict.fromkeys(map(name_of, FAULTS)),
    "lose the answer to a plan",
    "lose a commit",
    "lose the answer to a commit",
    "lose a worker",
)
"""Kinds of faults."""
CONSEQUENCES = (
    "begin a run",
    "rewind",
    "refuse a document",
    "stop a job",
    "stop a job at a hole",
    "late records",
    "other dead letters",
)
EXPECTED = KINDS + CONSEQUENCES
"""What has to happen now and then. Where some of it never does, a run says nothing about it."""


@dataclass
class Found:
    """Counts of events in some histories, and the seeds of failed histories with their problems."""

    happened: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[int, list[str]]] = field(default_factory=list)

    def add(self, other: Found) -> None:
        self.happened.update(other.happened)
        self.wrong += other.wrong

    @property
    def faults(self) -> int:
        return sum(self.happened[one] for one in KINDS)

    @property
    def never_happened(self) -> list[str]:
        return [one for one in EXPECTED if not self.happened[one]]

    def __str__(self) -> str:
        sizes = ", ".join(f"{self.happened[one]:,} {one}" for one in ("histories", "slices", "records", "results"))
        counts = "\n".join(f"  {one}: {self.happened[one]:,}" for one in EXPECTED)
        return f"{counts}\n{sizes}, {self.faults:,} faults, {len(self.wrong)} violations"


def run_seeds(first: int, count: int) -> Found:
    """Run the histories of these seeds."""
    found = Found()
    for seed in range(first, first + count):
        world, findings = simulate(seed)
        found.happened.update(world.happened)
        reasons = Counter(reason for _, reason in world.dead.committed(0))
        found.happened.update(
            {
                "histories": 1,
                "slices": world.ledger.slice_count("j"),
                "records": world.log.count,
                "results": len(world.index.documents),
                "late records": reasons["late"],
                "other dead letters": reasons.total() - reasons["late"],
            }
        )
        if findings:
            found.wrong.append((seed, findings[:5]))
    return found


def run_everywhere(first: int, count: int) -> Iterator[Found]:
    """Run the histories on all cores, `_PIECE` seeds at a time, in their order.

    Each core has one process for all of its pieces, so pipelines that it has read serve every later history.
    """
    firsts = range(first, first + count, _PIECE)
    counts = [min(_PIECE, first + count - at) for at in firsts]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn"), _begin_work) as workers:
        yield from workers.map(run_seeds, firsts, counts)


def _begin_work() -> None:
    """Exclude what is imported from the garbage collection: it stays, and needn't be scanned again."""
    gc.collect()
    gc.freeze()


@pytest.mark.guarantee(
    "G19",
    "In 200 seeded histories of planner, rewind, ledger rules, and transactions, no fault changes a result, a dead "
    "letter, or an emitted record. No record in time becomes late (limits: decision 24). The faults overlap: kills, "
    "superseded runs, lost commits, upgrades, wrong clocks, outages, and refusing stores. `make test-all` runs 10,000 "
    "histories.",
    promise="kills-and-restarts-change-no-result",
)
@pytest.mark.guarantee("G24")
@pytest.mark.guarantee(
    "G618",
    "In a simulated history, a topic is recreated under its name with other or the same records, or retention removes "
    "records that a rewind needs. The job stops, and plans no slice over later records.",
    promise="a-damaged-log-or-ledger-stops-the-job",
)
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("first", "seeds"),
    [*((first, _PIECE) for first in range(0, 200, _PIECE)), pytest.param(200, 9_800, marks=pytest.mark.long)],
)
def test_no_history_changes_the_results(first, seeds):
    """In pieces, which the workers of `make test` share."""
    found = Found()
    for piece in [run_seeds(first, seeds)] if seeds == _PIECE else run_everywhere(first, seeds):
        found.add(piece)
    assert found.wrong == []
    assert found.faults >= 5 * seeds
    assert found.happened["slices"] >= 5 * seeds
    assert seeds == _PIECE or found.never_happened == []


@pytest.mark.guarantee(
    "G619",
    "`make simulate` fails if any kind of fault never occurred, as it does for a violation.",
    promise="kills-and-restarts-change-no-result",
)
def test_a_run_in_which_a_kind_of_fault_never_occurs_fails(monkeypatch, capsys):
    everything = Found(Counter(dict.fromkeys(EXPECTED, 1)))
    monkeypatch.setattr(sys, "argv", ["simulate", "--seeds", "1"])
    monkeypatch.setitem(globals(), "run_everywhere", lambda first, count: iter([everything]))
    assert (main(), capsys.readouterr().out.splitlines()[-1].split(", ")[-1]) == (0, "0 violations")
    del everything.happened["recreate the topic"]
    assert main() == 1
    assert "never: recreate the topic" in capsys.readouterr().out


class CutOffInTime(World):
    """A world in which the last record of the slices is replaced after a run looks at the log, and before it reads."""

    def note(self, *what: object) -> None:
        super().note(*what)
        last = self.ledger.last_slice(JOB)
        if what[1:] != ("run.before_query",) or self.cut or last is None or last.status is SliceStatus.PLANNED:
            return
        end, partition = max((end, partition) for partition, end in last.offsets[STREAM].items())
        lost = self.log.records[partition][end - 1 :]
        self.log.cut(partition, end - 1)
        for record in lost:
            self.log.append(partition, record._replace(number=-record.number))
        self.cut = {partition}, last.number


@pytest.mark.guarantee("G35")
def test_a_log_that_is_cut_off_while_it_is_replayed_stops_the_job():
    """The job is stopped by what a run reads, not only by a later look."""
    worlds = [CutOffInTime(seed) for seed in range(8)]
    for world in worlds:
        world.run()
        assert check_world(world) == []
    assert any(world.stopped_by.startswith("a task has read another record") for world in worlds)


def test_a_seed_is_a_history():
    hashes = [simulate(seed)[0].hash for seed in range(20)]
    assert hashes == [simulate(seed)[0].hash for seed in range(20)]
    assert len(set(hashes)) == 20


@pytest.mark.guarantee("G19")
@pytest.mark.guarantee("G70")
@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_a_kill_at_a_failpoint_changes_no_result(failpoint):
    require_the_same_results(kill_at=failpoint)


@pytest.mark.guarantee("G19")
@pytest.mark.parametrize("failpoint", [name for name in FAILPOINTS if not name.startswith("plan.")])
def test_a_run_that_is_held_at_a_failpoint_while_another_begins_changes_no_result(failpoint):
    """The run continues later as if nothing had happened.

    Planning is one step here, so nothing can happen in the middle.
    """
    require_the_same_results(pause_at=failpoint)


def require_the_same_results(**what):
    """Some histories in which it happened; others end before a run has come there often enough."""
    happened, seed = 0, 0
    while happened < TIMES_A_FAILPOINT:
        world, findings = simulate(seed, **what)
        assert findings == [], f"seed {seed}"
        happened, seed = happened + (not world.comes_to_it), seed + 1
        assert seed < 10 * TIMES_A_FAILPOINT, f"only {happened} of {seed} histories come there"


@pytest.mark.long
@pytest.mark.guarantee("G19")
@pytest.mark.guarantee("G618")
@pytest.mark.parametrize(
    ("mistake", "pause_at"),
    [pytest.param(*one, marks=pytest.mark.long if one[0] in SHOWN_LATE else ()) for one in MISTAKES.items()],
)
def test_a_mistake_is_found(mistake, pause_at):
    first = SHOWN_FROM.get(mistake, 0)
    assert any(simulate(seed, broken=mistake, pause_at=pause_at)[1] for seed in range(first, first + 300))


def main() -> int:
    parser = argparse.ArgumentParser(description="Run seeded histories until one goes wrong, or all are done.")
    parser.add_argument("--seeds", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    began_s, found = time.monotonic(), Found()
    for piece in run_everywhere(options.first, options.seeds):
        found.add(piece)
        for seed, findings in piece.wrong:
            print(f"seed {seed}: {'; '.join(findings)}", flush=True)
        done = found.happened["histories"]
        if done % _REPORTED == 0:
            a_minute = 60 * done / (time.monotonic() - began_s)
            print(
                f"{done:,} of {options.seeds:,} histories, {found.faults:,} faults, {a_minute:,.0f} a minute",
                flush=True,
            )
        if found.wrong:
            break
    never = found.never_happened
    if never:
        print(f"never: {', '.join(never)}")
    print(found)
    return 1 if found.wrong or never else 0


if __name__ == "__main__":
    sys.exit(main())
