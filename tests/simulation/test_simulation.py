"""Thousands of small histories, each with kills, zombies, upgrades and lost answers: the same results as without any.

`make simulate SEEDS=1000000` runs more of them, from a seed of one's choice.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from strandline.core.failpoints import FAILPOINTS
from tests.simulation.check import simulate
from tests.simulation.mistakes import MISTAKES as MISTAKES_OF_THE_PLANNER

TIMES_A_FAILPOINT = 20
_PIECE = 100
_REPORTED = 5_000
MISTAKES = {
    "replays from the latest": "",
    "emits again": "",
    "writes again": "",
    "takes nothing over": "",
    "late by the batch's last slice": "",
    "closes by the facts before": "",
    "drops refused documents": "",
    "takes a store that is busy for a refusal": "",
    "takes a store that is shut for a refusal": "",
    **dict.fromkeys(MISTAKES_OF_THE_PLANNER, ""),
    "asks nobody": "slice.before_action",
    "shuts nobody out": "produce",
}
"""Each of them is built into every run of a history, and one alone must be found: some of them easily, others where a run is
held at a step while another begins."""


Found = tuple[int, int, list[tuple[int, list[str]]]]
"""Faults, slices, and the seeds whose histories went wrong, each with what is wrong."""


def run_seeds(first: int, count: int) -> Found:
    """Run the histories of these seeds."""
    faults = slices = 0
    wrong = []
    for seed in range(first, first + count):
        world, findings = simulate(seed)
        faults += world.faults
        slices += world.ledger.slice_count("j")
        if findings:
            wrong.append((seed, findings[:5]))
    return faults, slices, wrong


def run_everywhere(first: int, count: int) -> Iterator[Found]:
    """The same on all cores, `_PIECE` seeds at a time, in their order.

    Each core has one process for all of its pieces: what it has read of pipelines serves every history that comes later.
    """
    firsts = range(first, first + count, _PIECE)
    counts = [min(_PIECE, first + count - at) for at in firsts]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn"), _begin_work) as workers:
        yield from workers.map(run_seeds, firsts, counts)


def _begin_work() -> None:
    """What is imported stays; the collector need not look through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("first", "seeds"),
    [*((first, _PIECE) for first in range(0, 1_000, _PIECE)), pytest.param(1_000, 9_000, marks=pytest.mark.long)],
)
def test_no_history_changes_the_results(first, seeds):
    """In pieces, which the workers of `make test` share."""
    found = [run_seeds(first, seeds)] if seeds == _PIECE else list(run_everywhere(first, seeds))
    assert [one for _, _, wrong in found for one in wrong] == []
    assert sum(faults for faults, _, _ in found) >= 5 * seeds
    assert sum(slices for _, slices, _ in found) >= 5 * seeds


def test_a_log_that_is_cut_off_while_it_is_replayed_stops_the_job():
    """After the run's look at its last slice, and before it reads it: what it reads stops the job, not a later look."""
    world, findings = simulate(1_203)
    assert (findings, world.cut is not None) == ([], True)
    assert world.stopped_by.startswith("a task has read another record")


def test_a_seed_is_a_history():
    hashes = [simulate(seed)[0].hash for seed in range(20)]
    assert hashes == [simulate(seed)[0].hash for seed in range(20)]
    assert len(set(hashes)) == 20


@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_a_kill_at_a_failpoint_changes_no_result(failpoint):
    require_the_same_results(kill_at=failpoint)


@pytest.mark.parametrize("failpoint", [name for name in FAILPOINTS if not name.startswith("plan.")])
def test_a_run_that_is_held_at_a_failpoint_while_another_begins_changes_no_result(failpoint):
    """It goes on later as if nothing had happened. Planning is one step here, so nothing can come between."""
    require_the_same_results(pause_at=failpoint)


def require_the_same_results(**what):
    """Twenty histories in which it happened; some end before a run has come there often enough."""
    happened, seed = 0, 0
    while happened < TIMES_A_FAILPOINT:
        world, findings = simulate(seed, **what)
        assert findings == [], f"seed {seed}"
        happened, seed = happened + (not world.comes_to_it), seed + 1
        assert seed < 10 * TIMES_A_FAILPOINT, f"only {happened} of {seed} histories come there"


@pytest.mark.parametrize(("mistake", "pause_at"), MISTAKES.items())
def test_a_mistake_is_found(mistake, pause_at):
    assert any(simulate(seed, broken=mistake, pause_at=pause_at)[1] for seed in range(300))


def main() -> int:
    parser = argparse.ArgumentParser(description="Run seeded histories until one goes wrong, or all are done.")
    parser.add_argument("--seeds", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    began_s, all_faults, done = time.monotonic(), 0, 0
    for faults, _, wrong in run_everywhere(options.first, options.seeds):
        for seed, findings in wrong:
            print(f"seed {seed}: {'; '.join(findings)}")
        if wrong:
            return 1
        all_faults += faults
        done = min(done + _PIECE, options.seeds)
        if done % _REPORTED == 0 or done == options.seeds:
            rate = done / (time.monotonic() - began_s)
            print(
                f"{done:,} of {options.seeds:,} histories, {all_faults:,} faults, {rate * 60:,.0f} a minute", flush=True
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
