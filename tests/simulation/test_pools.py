"""Histories of jobs in pools: `make simulate-pools SEEDS=1000 JOBS=100`.

The same seed and number of jobs give the same history.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest import mock

import pytest
import structlog

from strandline.core.errors import LedgerUnavailable, StrandlineError
from strandline.processing.emission.keyed_task import BucketOutcome
from strandline.processing.emission.member_outcomes import MemberOutcome
from strandline.processing.run.membership import Part, PoolMember
from strandline.processing.run.pool import Pool
from tests.simulation.pools.world import PoolLedger, World

STEPS = 30
"""Number of steps of a history before its faults end."""
KINDS = ("lost", "repeated", "wrong", "out of order", "zombie", "isolation")
HAPPENS = (
    "move a job out", "upgrade", "is poisoned", "hangs", "ends its worker", "the ledger is away", "replay a piece",
    "lose a commit", "lose the answer to a commit", "pause before a commit", "kill after a commit", "kill a document",
)  # fmt: skip


class Outcome:
    """Sums over several histories."""

    def __init__(self) -> None:
        self.findings: Counter[str] = Counter()
        """Kind of violation -> number."""
        self.samples: list[str] = []
        self.counts: Counter[str] = Counter()

    @property
    def wrong(self) -> int:
        """Number of violations."""
        return sum(self.findings.values())

    def add(self, seed: int, world: World) -> None:
        self.counts.update(world.counts)
        for one in world.findings:
            self.findings[one.partition(":")[0]] += 1
            if len(self.samples) < 10:
                self.samples.append(f"seed {seed}: {one}")


def run_histories(seeds: Sequence[int], jobs: int, steps: int = STEPS, stops: bool = False) -> Outcome:
    """Run one history for each seed. `stops`: True to end with the first history that has a violation."""
    outcome = Outcome()
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        for seed in seeds:
            world = World(seed, jobs, steps)
            world.run()
            outcome.add(seed, world)
            if stops and outcome.wrong:
                break
    finally:
        structlog.configure(**before)
    return outcome


@pytest.mark.guarantee(
    "G993",
    "Histories of jobs in pools contain kills, paused pools that wake up, moved-out jobs, upgrades, bad jobs, and outages of the "
    "ledger. No result is lost, repeated, or wrong, no replaced run writes to the ledger, and no job ends the run of another.",
    promise="kills-and-restarts-change-no-result",
)
def test_histories_of_pools_lose_and_repeat_nothing() -> None:
    outcome = run_histories(range(12), 20)
    assert not outcome.wrong, outcome.samples
    assert not [what for what in HAPPENS if not outcome.counts[what]]


@pytest.mark.guarantee("G993")
@pytest.mark.long
def test_a_pool_of_a_thousand_jobs_loses_and_repeats_nothing() -> None:
    assert not run_histories(range(3), 1_000).wrong


def _moved_as_done(self: Pool, parts: Sequence[Part]) -> Any:
    """Take each failed member for one that has done its slice."""
    done: dict[str, Any] = {}
    for job, one in _outcomes(self, parts).items():
        failed = isinstance(one, StrandlineError) or one.failure is not None
        number = next(part.slice.number for part in parts if part.member.job == job)
        done[job] = MemberOutcome(job, number, BucketOutcome()) if failed else one
    return done


def _forget_unconfirmed(self: Pool) -> None:
    emitted = dict(self._emitted)
    try:
        _commit(self)
    except LedgerUnavailable:
        self._emitted = {}
        for one in emitted.values():
            one.part.member.has_processed(one.row.slice, one.row)
        raise


def _end_all(self: Pool, member: PoolMember, error: Exception) -> None:
    """A failure ends the runs of all members."""
    for one in [member, *self._members.values()]:
        _failed(self, one, StrandlineError(f"member {member.job}: {error}"))


def _replay_last(self: PoolMember, seconds: float | None) -> Part:
    part = _piece(self, seconds)
    return self._part([*self.slices.replayed_from(self.plan.slice_committed)], None, part.records, part.cost_us)


_outcomes, _commit, _failed, _piece = Pool._outcomes, Pool._commit, Pool._failed, PoolMember.piece
MISTAKES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "a replaced run may write": lambda: mock.patch.object(PoolLedger, "_refuse_old_epoch", return_value=None),
    "a failed member counts as done": lambda: mock.patch.object(Pool, "_outcomes", _moved_as_done),
    "an unconfirmed checkpoint counts as committed": lambda: mock.patch.object(Pool, "_commit", _forget_unconfirmed),
    "a failure ends all members": lambda: mock.patch.object(Pool, "_failed", _end_all),
    "a replay reads only the last slice": lambda: mock.patch.object(PoolMember, "piece", _replay_last),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_pools_is_found(mistake: str) -> None:
    with MISTAKES[mistake]():
        assert run_histories(range(100, 130), 20, stops=True).wrong


def main() -> int:
    """Run histories, and print what happened and what was wrong. Return 1 if something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--mistake", choices=MISTAKES)
    options = parser.parse_args()
    began_s = time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    with MISTAKES[options.mistake]() if options.mistake else nullcontext():
        outcome = run_histories(seeds, options.jobs, options.steps)
    for what, number in sorted(outcome.counts.items()):
        print(f"{number:>12,}  {what}")
    print("\n".join(outcome.samples))
    wrong = ", ".join(f"{outcome.findings[kind]} {kind}" for kind in KINDS)
    print(f"{len(seeds):,} histories of {options.jobs:,} jobs in {time.monotonic() - began_s:.0f} s: {wrong}")
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
