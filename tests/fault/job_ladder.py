"""Fault after fault under a running job: `make chaos KILLS=100`, or `python -m tests.fault.job_ladder --help`.

Real processes, a seeded nemesis, a history of the answers to senders, and at the end an independent recomputation of
all that the job wrote. It prints its progress and a table. With any violation the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from confluent_kafka import KafkaException
from rich.console import Console
from rich.table import Table

from strandline.core.errors import StrandlineError
from strandline.core.failpoints import BACKFILL_FAILPOINTS, FAILPOINTS
from tests.fault.campaigns import CAMPAIGNS, PROMISED
from tests.support.chaos.acts import NOTE_ALL, wait_for_backfills
from tests.support.chaos.checker import JobVerdict, check_job
from tests.support.chaos.checking.pace import IDLE_MS, PACES
from tests.support.chaos.job_sets import GraphJobs, JobSet, ReadingJobs
from tests.support.chaos.job_stack import JobStack
from tests.support.chaos.more_jobs import JOBS_MAX
from tests.support.chaos.nemesis import TOGETHER_MAX, Nemesis, Progress, Round
from tests.support.chaos.shapes.job_set import ShapeJobs
from tests.support.chaos.states import missed, times_reached
from tests.support.chaos.work import RATE, draw_awake, draw_speed
from tests.support.faults.checker import Verdict
from tests.support.waiting import wait_until

REST_AFTER = 3
"""Number of rounds of which the second is followed by a rest of the senders, so that partitions become idle."""
REST_TIMEOUT_S = 120.0
_SLICES = "SELECT number, silence_ms FROM slices WHERE job = '{job}' AND number > {after} ORDER BY number"
_GIVEN_UP = (AssertionError, StrandlineError, KafkaException, OSError)
"""Errors that end a run when a service doesn't recover. What was found until then is still reported."""


@dataclass
class Outcome:
    """Findings of a run."""

    rounds: list[Round] = field(default_factory=list)
    jobs: dict[str, JobVerdict] = field(default_factory=dict)
    """Each checked job by name."""
    ingested: Verdict | None = None
    reached: set[str] = field(default_factory=set)
    """The failpoints to which the job came before the first of them was armed."""
    left_out: dict[str, str] = field(default_factory=dict)
    """The kinds of faults that can't be done on this machine, and why."""
    failure: str = ""
    """Why the run ended before its time."""
    states: dict[str, int] = field(default_factory=dict)
    """How often each state of `states.py` was reached; empty if the run ended before it was read."""
    must_reach: frozenset[str] = frozenset()
    """The states that the campaign names, and those that the faults that were done promise."""

    @property
    def job(self) -> JobVerdict | None:
        """The first job's."""
        return next(iter(self.jobs.values()), None)

    @property
    def violations(self) -> list[str]:
        found = [self.failure] if self.failure else []
        found += [
            f"{one}: results only {one.recovery_s:.1f} s later, the limit is {one.limit_s:.0f} s"
            for one in self.rounds
            if one.is_slow
        ]
        if self.jobs:
            found += missed(sorted(self.must_reach), self.states)
        found += [f"{job}: no record was {one}" for job, verdict in self.jobs.items() for one in verdict.missed]
        found += [f"{job}: {sentence}" for job, verdict in self.jobs.items() for sentence in verdict.violations]
        return found + ([] if self.ingested is None else self.ingested.violations)


def run(
    directory: Path,
    kills: float | None,
    seed: int,
    say: Progress,
    *,
    speed: int | None = None,
    rate: int = RATE,
    rounds: float = math.inf,
    only: Sequence[str] = (),
    together_max: int = TOGETHER_MAX,
    ledger: str = "sqlite",
    recovery: str = "rewind",
    failpoints: Sequence[str] = (),
    faults_max_s: float = math.inf,
    services: int = 1,
    job_set: JobSet | None = None,
    own_runners: bool = False,
    must_reach: Sequence[str] = (),
) -> Outcome:
    """Do one run: start, break at random, kill at the failpoints, drain, check.

    A dump and the history stay in `directory`.

    Args:
    - kills: None for every kind of fault once.
    - speed: seconds of event time per second. None: drawn by the seed.
    - rate: records/s.
    - rounds, only, together_max: as the nemesis takes them.
    - faults_max_s: no fault starts later than this after the first results.
    - services: number of control services.
    - job_set: the jobs and their senders. None: the job of `work.py`.
    - own_runners: whether each job has its own runner, instead of a pool.
    - must_reach: states without which the run is a violation.
    """
    outcome = Outcome()
    speed = draw_speed(seed) if speed is None else speed
    say(f"event time runs at {speed}x")
    stack = JobStack(
        directory,
        seed,
        speed=speed,
        rate=rate,
        ledger=ledger,
        recovery=recovery,
        kinds=only,
        services=services,
        job_set=job_set,
        own_runners=own_runners,
    )
    outcome.left_out = stack.left_out
    for name, why in stack.left_out.items():
        say(f"{name} is left out: {why}")
    with contextlib.closing(stack):
        stack.arm(NOTE_ALL)
        stack.start()
        say("results flow; the faults begin")
        nemesis, began_s = Nemesis(stack, seed, only=only, together_max=together_max), time.monotonic()
        rests = random.Random(seed)
        try:
            faults = nemesis.break_things(len(nemesis.names) if kills is None else kills, rounds)
            for one in itertools.chain(faults, nemesis.fail_at(failpoints)):
                outcome.rounds.append(one)
                say(f"{one}: results {one.recovery_s:.1f} s later")
                if len(outcome.rounds) % REST_AFTER == 2:
                    _rest(stack, rests, say)
                if time.monotonic() - began_s > faults_max_s:
                    say(f"no more faults after {faults_max_s:g} s")
                    break
        except _GIVEN_UP as error:
            outcome.failure = str(error)
            say(outcome.failure)
        stack.disarm()
        outcome.reached = stack.reached()
        say("draining the jobs, and reading what there is")
        try:
            wait_for_backfills(stack)
            outcome.ingested, dumps = stack.finish(lambda: say(f"in the drain: {nemesis.break_drain()}"))
        except _GIVEN_UP as error:
            outcome.failure = outcome.failure or str(error)
            return outcome
        for job, dump in zip(stack.jobs, dumps, strict=True):
            dump.save(directory / f"dump-{job.name}.json.gz")
            outcome.jobs[job.name] = check_job(dump, job.name, job.stream, job.pipeline)
        done = {fault.kind for one in outcome.rounds for fault in one.faults}
        outcome.must_reach = frozenset(must_reach) | {state for kind, state in PROMISED.items() if kind in done}
        outcome.states = times_reached([dump.tables for dump in dumps], stack.noted)
    return outcome


def _rest(stack: JobStack, chance: random.Random, say: Progress) -> None:
    """Let all senders rest, or all except one, until a slice is recorded in which a partition is idle."""
    awake = draw_awake(chance)
    last = max((row["number"] for row in stack.ask_ledger(_SLICES.format(job=stack.job, after=0))), default=0)
    began_s = time.monotonic()
    for load in stack.loads:
        load.begin_rest(awake)
    try:
        wait_until(
            lambda: stack.ask_ledger(_SLICES.format(job=stack.job, after=last)),
            lambda rows: any(
                max(row["silence_ms"].get(stack.stream, {}).values(), default=0) >= IDLE_MS for row in rows
            ),
            "idle: a partition",
            REST_TIMEOUT_S,
        )
    finally:
        for load in stack.loads:
            load.end_rest()
    say(f"the senders{'' if awake is None else f', except {awake},'} rested for {time.monotonic() - began_s:.1f} s")


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Break a running job and all around it again and again, and check every result."
    )
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument(
        "--kills", type=int, default=100, help="number of faults; pauses and lost answers don't count"
    )
    how_long.add_argument("--rounds", type=int, metavar="N", help="number of rounds, instead")
    how_long.add_argument("--each-kind-once", action="store_true", help="every kind of fault once instead")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="draws the same faults again")
    parser.add_argument(
        "--failpoints", type=int, default=0, metavar="TIMES", help="then kill at every failpoint, this number of times"
    )
    parser.add_argument(
        "--failpoint", action="append", choices=FAILPOINTS + BACKFILL_FAILPOINTS, metavar="NAME", help="only this one"
    )
    parser.add_argument("--speed", type=int, choices=sorted(PACES), help="of event time; else the seed draws it")
    parser.add_argument("--rate", type=int, default=RATE, metavar="N", help=f"records/s that are sent (default {RATE})")
    parser.add_argument(
        "--only", action="append", default=[], help="only this one (see the table for names); may be repeated"
    )
    parser.add_argument(
        "--campaign", choices=sorted(CAMPAIGNS), help="its kinds of faults, and the states that it must reach"
    )
    parser.add_argument("--single", action="store_true", help="one fault at a time, for how long each takes")
    parser.add_argument("--ledger", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--recovery", choices=["rewind", "snapshot"], default="rewind", help="the job's")
    parser.add_argument("--services", type=int, default=1, metavar="N", help="control services over the one ledger")
    which = parser.add_mutually_exclusive_group()
    several = f"jobs at once, up to {JOBS_MAX}"
    which.add_argument("--jobs", type=int, default=1, choices=range(1, JOBS_MAX + 1), metavar="N", help=several)
    which.add_argument(
        "--graph",
        action="store_true",
        help="instead, one job with branches, sessions, a join and a lookup that changes",
    )
    which.add_argument(
        "--shapes", action="store_true", help="instead, a stream and a job for each shape of records that devices send"
    )
    parser.add_argument("--own-runners", action="store_true", help="give each job its own runner, instead of a pool")
    parser.add_argument(
        "--faults-max-s", type=float, default=math.inf, metavar="S", help="begin no fault after so long"
    )
    parser.add_argument("--keep", type=Path, help="keep logs, history and dump in this directory")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):  # however it is asked to end, it ends its servers first
        signal.signal(number, _interrupt)
    console = Console(highlight=False, soft_wrap=True)
    began_s = time.monotonic()

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - began_s:7.1f} s  {text}", markup=False)

    kills = None if options.each_kind_once else math.inf if options.rounds else options.kills
    said = {None: "every kind of fault once", math.inf: f"{options.rounds} rounds"}.get(kills, f"{kills} faults")
    say(f"seed {options.seed}, {said}")
    directory = Path(tempfile.mkdtemp(prefix="strandline-chaos-"))
    try:
        points = (options.failpoint or FAILPOINTS + BACKFILL_FAILPOINTS) * options.failpoints
        campaign = CAMPAIGNS.get(options.campaign)
        only, must_reach = options.only, ()
        if campaign is not None:
            only, must_reach = [*only] or campaign.only, campaign.states
            points = points or campaign.failpoints
        outcome = run(
            directory,
            kills,
            options.seed,
            say,
            speed=options.speed,
            rate=options.rate,
            rounds=options.rounds or math.inf,
            only=only,
            must_reach=must_reach,
            together_max=1 if options.single else TOGETHER_MAX,
            ledger=options.ledger,
            recovery=options.recovery,
            failpoints=points,
            faults_max_s=options.faults_max_s,
            services=options.services,
            job_set=_job_set(options),
            own_runners=options.own_runners,
        )
    finally:
        if options.keep:
            _keep(directory, options.keep)
        shutil.rmtree(directory)
    _print(outcome, options.seed)
    for violation in outcome.violations:
        print(f"VIOLATION: {violation}")
    return 1 if outcome.violations else 0


def _job_set(options: argparse.Namespace) -> JobSet:
    if options.shapes:
        return ShapeJobs()
    return GraphJobs() if options.graph else ReadingJobs(options.jobs)


def _print(outcome: Outcome, seed: int) -> None:
    """Print the tables.

    A round counts for each of its faults, so the times of one kind also contain simultaneous faults. `--single`
    separates them.
    """
    table = Table("what was done", "times", "median s", "worst s", "over the limit")
    kinds: dict[str, list[Round]] = defaultdict(list)
    for one in outcome.rounds:
        for fault in one.faults:
            kinds[fault.name].append(one)
    for name in sorted(kinds):
        _add_row(table, name, kinds[name])
    table.add_section()
    for count in sorted({len(one.faults) for one in outcome.rounds}):
        _add_row(table, f"rounds of {count}", [one for one in outcome.rounds if len(one.faults) == count])
    _add_row(table, "all rounds", outcome.rounds)
    console = Console(width=160, highlight=False)
    console.print(table)
    for name, verdict in (("senders and log", outcome.ingested), *outcome.jobs.items()):
        console.print(f"{name}: {verdict}", markup=False)
    _print_reached(console, outcome)
    if outcome.failure:
        console.print(f"the run ended early: {outcome.failure}", markup=False)
    of_run, of_backfill = (len(outcome.reached & {*points}) for points in (FAILPOINTS, BACKFILL_FAILPOINTS))
    counts = f"{of_run} of {len(FAILPOINTS)}, {of_backfill} of {len(BACKFILL_FAILPOINTS)} of a backfill"
    console.print(f"failpoints reached: {counts}", markup=False)
    if outcome.states:
        reached = [f"{name} {times}" for name, times in outcome.states.items() if times or name in outcome.must_reach]
        console.print(f"states reached: {', '.join(reached) or 'none'}", markup=False)
    faults = sum(len(one.faults) for one in outcome.rounds)
    if outcome.jobs:
        found = {kind: sum(len(getattr(one, kind)) for one in outcome.jobs.values()) for kind in JobVerdict.KINDS}
        counts = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in found.items())
        console.print(f"{faults} faults in {len(outcome.rounds)} rounds with seed {seed}: {counts}", markup=False)


def _print_reached(console: Console, outcome: Outcome) -> None:
    """Print how often each reason of a dead letter, and what else is special in records, occurred."""
    for job, verdict in outcome.jobs.items():
        if verdict.must_reach:
            counts = {"rows": verdict.accepted} | {one: verdict.reached[one] for one in sorted(verdict.reached)}
            said = ", ".join(f"{one} {count}" for one, count in counts.items())
            console.print(f"{job} reached: {said}", markup=False)


def _add_row(table: Table, name: str, rounds: Sequence[Round]) -> None:
    if rounds:
        took_s = [one.recovery_s for one in rounds]
        slow = sum(one.is_slow for one in rounds)
        table.add_row(name, str(len(rounds)), f"{statistics.median(took_s):.1f}", f"{max(took_s):.1f}", str(slow))


def _keep(directory: Path, kept: Path) -> None:
    kept.mkdir(parents=True, exist_ok=True)
    for path in (*directory.glob("*.jsonl"), *directory.glob("*.gz"), *directory.glob("ledger*")):
        shutil.copy(path, kept)
    for logs in (directory / "logs", *directory.glob("control-*/logs")):
        shutil.copytree(logs, kept / logs.relative_to(directory), dirs_exist_ok=True)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
