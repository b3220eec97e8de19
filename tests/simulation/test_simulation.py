"""Thousands of small histories, each with kills, zombies, upgrades and lost answers: the same results as without any.

`make simulate SEEDS=1000000` runs more of them, from a seed of one's choice.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest

from strandline.core.failpoints import FAILPOINTS
from tests.simulation.check import simulate
from tests.simulation.mistakes import MISTAKES as MISTAKES_OF_THE_PLANNER

TIMES_A_FAILPOINT = 20
_CHUNK = 5_000
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


def run_everywhere(first: int, count: int) -> Found:
    """The same on all cores, a process on each."""
    cores = len(os.sched_getaffinity(0))
    share = -(-count // cores)
    command = [sys.executable, "-m", "tests.simulation.test_simulation", "--json"]
    root = Path(__file__).parents[2]
    processes = [
        subprocess.Popen(
            [*command, "--first", str(first + at), "--seeds", str(min(share, count - at))],
            cwd=root,
            stdout=subprocess.PIPE,
        )
        for at in range(0, count, share)
    ]
    found = [json.loads(process.communicate()[0]) for process in processes]
    return sum(f for f, _, _ in found), sum(s for _, s, _ in found), [one for _, _, wrong in found for one in wrong]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("first", "seeds"), [(0, 1_000), pytest.param(1_000, 9_000, marks=pytest.mark.long)])
def test_no_history_changes_the_results(first, seeds):
    faults, slices, wrong = run_everywhere(first, seeds)
    assert wrong == []
    assert faults >= 5 * seeds
    assert slices >= 5 * seeds


def test_a_log_that_is_cut_off_while_it_is_replayed_stops_the_job():
    """After the run's look at its last slice, and before it reads it: without a look at what was read, results of other records
    would be emitted."""
    world, findings = simulate(6_058)
    assert (findings, world.is_stopped, world.cut is not None) == ([], True, True)


def test_a_seed_is_a_history():
    assert [simulate(seed)[0].hash for seed in range(20)] == [simulate(seed)[0].hash for seed in range(20)]
    assert len({simulate(seed)[0].hash for seed in range(20)}) == 20


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
    found = (seed for seed in range(300) if simulate(seed, broken=mistake, pause_at=pause_at)[1])
    assert len(list(islice(found, 3))) == 3


def main() -> int:
    parser = argparse.ArgumentParser(description="Run seeded histories until one goes wrong, or all are done.")
    parser.add_argument("--seeds", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="in this process, and say only what came of it")
    options = parser.parse_args()
    if options.json:
        print(json.dumps(run_seeds(options.first, options.seeds)))
        return 0
    began_s, all_faults = time.monotonic(), 0
    for first in range(options.first, options.first + options.seeds, _CHUNK):
        faults, _, wrong = run_everywhere(first, min(_CHUNK, options.first + options.seeds - first))
        for seed, findings in wrong:
            print(f"seed {seed}: {'; '.join(findings)}")
        if wrong:
            return 1
        all_faults += faults
        done = min(first + _CHUNK, options.first + options.seeds) - options.first
        rate = done / (time.monotonic() - began_s)
        print(f"{done:,} of {options.seeds:,} histories, {all_faults:,} faults, {rate * 60:,.0f} a minute", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
