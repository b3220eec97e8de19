"""Fairness in a pool: a job that reads millions of records again, next to live jobs. Times are those of a model of CPU costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from strandline.ledger.roles import RunLedger
from strandline.ledger.states import SliceKind, SliceRow, SliceStatus
from strandline.processing.emission.keyed_task import BucketOutcome
from strandline.processing.emission.member_outcomes import MemberOutcome
from strandline.processing.run.membership import PoolMember
from strandline.processing.run.pool import REPLAY_S, Pool
from strandline.processing.slices.planner import InputStream, PlannerSettings, SlicePlanner
from strandline.processing.slices.rewind import RewindPlan
from strandline.processing.slices.silence import SilenceMeter
from strandline.processing.source.member_slices import MemberSlice
from tests.simulation.pools.world import RULE, Committer, PoolLedger, Slices, World

BEHIND, LIVE = "behind", [f"live{number}" for number in range(50)]
RECORDS, SLICES = 20_000_000, 1_000
"""Records that the job reads again, and the slices in which it read them."""
CORES = 2
BATCH_S, LIVE_SLICE_S, RECORD_S = 0.03, 0.003, 2.5e-6
"""Model of the costs: a batch, a slice of a live job, and a replayed record, in seconds."""
INTERVAL_S = 1.0


class Machine:
    """Runs batches on its cores: a batch takes as long as its longest task."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.read = 0
        """Number of records that were read again."""

    def run(self, tasks: Sequence[Sequence[MemberSlice]]) -> list[MemberOutcome]:
        outcomes: list[MemberOutcome] = []
        longest_s = 0.0
        for task in tasks:
            task_s = 0.0
            for one in task:
                seconds = LIVE_SLICE_S
                if not one.is_new:
                    rows = cast(Sequence[SliceRow], one.pieces)
                    records = rows[-1].offsets[one.job][0] - rows[0].offsets_first[one.job][0]
                    seconds = records * RECORD_S
                    self.read += records
                task_s += seconds
                outcomes.append(MemberOutcome(one.job, one.number, BucketOutcome(), cpu_us=int(seconds * 1e6)))
            longest_s = max(longest_s, task_s)
        self._world.now_s += BATCH_S + longest_s
        return outcomes

    def cancel(self) -> None:
        pass

    def named(self) -> set[str]:
        return set()


def a_pool(live: Sequence[str]) -> tuple[World, Machine, Pool]:
    """Return a pool of these live jobs, and of one that was killed after it had read RECORDS."""
    world = World(0, 0, 0)
    world.jobs, world.ledger, world.has_faults = [BEHIND, *live], PoolLedger(world), False
    world.log.counts = dict.fromkeys(world.jobs, 0)
    for job in world.jobs:
        world.ledger.submit_job(job, "", {"pipeline": job})
    machine = Machine(world)
    pool = Pool(
        machine,
        cast(RunLedger, world.ledger),
        world.log,  # type: ignore[arg-type]  # a twin
        CORES,
        poll_s=0.1,
        clock=lambda: world.now_s,
    )
    first = world.ledger.begin_run(BEHIND, 1)
    for number in range(1, SLICES + 1):
        row = _slice(number, first.epoch)
        world.ledger.plan_slice(row)
        world.ledger.commit_checkpoint(Committer(world, first).checkpoint_of(row, None, None, None))
    world.log.counts[BEHIND] = RECORDS
    for job in world.jobs:
        pool.join(_member(world, job))
    return world, machine, pool


def _slice(number: int, epoch: int) -> SliceRow:
    size = RECORDS // SLICES
    ends: list[dict[str, dict[int, int]]] = [{BEHIND: {0: size * at}} for at in (number - 1, number)]
    return SliceRow(
        BEHIND,
        number,
        epoch,
        1,
        ends[0],
        ends[1],
        cut_time_ms=number,
        watermark_ms=None,
        rule=RULE,
        reached={},
        silence_ms={},
        kind=SliceKind.LIVE,
        status=SliceStatus.PLANNED,
        planned_ms=number,
    )


def _member(world: World, job: str) -> PoolMember:
    ledger, run = world.ledger, world.ledger.begin_run(job, 1)
    last = ledger.last_checkpoint(job)
    committed = last.slice if last else 0
    settings = PlannerSettings(job, 1, run.epoch, (InputStream(job),), 100_000, RULE, ())
    meter = SilenceMeter(lambda: int(world.now_s * 1_000))
    planner: Any = SlicePlanner(settings, ledger, world.log, lambda: 0, meter, 0)  # type: ignore[arg-type]  # twins
    return PoolMember(
        job=job,
        epoch=run.epoch,
        config="1",
        plan=RewindPlan(1, committed),
        planner=planner,
        slices=Slices(ledger, job, committed),
        committer=Committer(world, run),
        interval_s=INTERVAL_S,
        wanted_end=lambda *_: None,
        checkpoint=last,
        records_left=RECORDS if job == BEHIND else 0,
    )


def measure(live: Sequence[str], seconds: float) -> tuple[float, list[float]]:
    """Return the rate of the rewind in records/s, and the time from when each live slice was due to its commit."""
    world, machine, pool = a_pool(live)
    began_s = world.now_s
    pool.turn()
    due_s = dict.fromkeys(live, world.now_s)
    committed, delays_s = dict.fromkeys(live, 0), list[float]()
    for job in live:
        world.log.counts[job] += 20
    while world.now_s - began_s < seconds and pool._members[BEHIND].is_rewinding:
        wait_s = pool.turn()
        for job in live:
            if (count := world.ledger.slice_count(job)) > committed[job]:
                delays_s.append(world.now_s - due_s[job])
                committed[job] = count
                due_s[job] = max(due_s[job] + INTERVAL_S, pool._members[job].due_s)
                world.log.counts[job] += 20
        world.now_s += wait_s
    return machine.read / (world.now_s - began_s), delays_s


@pytest.mark.guarantee(
    "G994",
    "A job of a pool that reads 20 million records again delays the slices of 50 live jobs by the time of two batches at most. "
    "It reads at least half as fast as alone.",
    promise="kills-and-restarts-change-no-result",
)
def test_a_rewind_of_millions_of_records_is_fair_to_live_jobs() -> None:
    alone, _ = measure([], 20)
    shared, delays_s = measure(LIVE, 20)
    batch_s = BATCH_S + len(LIVE) * LIVE_SLICE_S + REPLAY_S
    assert len(delays_s) > 15 * len(LIVE)
    assert max(delays_s) <= 2 * batch_s + 0.1, f"a live slice was {max(delays_s):.2f} s late"
    assert shared >= alone / 2, f"{shared:,.0f} records/s, and {alone:,.0f} alone"
