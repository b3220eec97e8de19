"""Kill after kill under a running job: `make chaos KILLS=100`, or `python -m tests.fault.job_ladder --help`.

Real processes, a seeded nemesis, a history of what senders were told, and at the end an independent recomputation of
everything the job left behind. Prints its progress and a table; with any violation the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.table import Table

from strandline.core.errors import StrandlineError
from strandline.core.failpoints import FAILPOINTS
from tests.support.chaos.checker import JobVerdict, check_job
from tests.support.chaos.job_stack import JobStack
from tests.support.chaos.nemesis import FLOW_LIMIT_S, Fault, Nemesis, Progress
from tests.support.faults.checker import Verdict

_GIVEN_UP = (AssertionError, StrandlineError, OSError)
"""What a run ends with when something doesn't come back: what was found until then is still told."""


@dataclass
class Outcome:
    """What a run showed."""

    faults: list[Fault] = field(default_factory=list)
    job: JobVerdict | None = None
    ingested: Verdict | None = None
    reached: set[str] = field(default_factory=set)
    """The failpoints to which the job came before the first of them was armed."""
    failure: str = ""
    """Why the run ended before its time."""

    @property
    def violations(self) -> list[str]:
        found = [self.failure] if self.failure else []
        found += [
            f"fault {one.number}, {one.kind} of {one.target}: results only after {one.recovery_s:.1f} s"
            for one in self.faults
            if one.recovery_s > FLOW_LIMIT_S
        ]
        found += [] if self.job is None else self.job.violations
        return found + ([] if self.ingested is None else self.ingested.violations)


def run(
    directory: Path,
    kills: int,
    seed: int,
    say: Progress,
    *,
    only: list[str] | None = None,
    ledger: str = "sqlite",
    recovery: str = "rewind",
    failpoints: Sequence[str] = (),
    faults_max_s: float = math.inf,
) -> Outcome:
    """One run: start, kill at random, kill at the failpoints, drain, judge. A dump and the history stay in `directory`.

    `faults_max_s`: no fault is begun later than so long after the first results.
    """
    outcome = Outcome()
    stack = JobStack(directory, seed, ledger=ledger, recovery=recovery)
    with contextlib.closing(stack):
        stack.arm("*=note")
        stack.start()
        say("results flow; the faults begin")
        nemesis, began_s = Nemesis(stack, seed, only=only), time.monotonic()
        try:
            for fault in itertools.chain(nemesis.break_things(kills), nemesis.fail_at(failpoints)):
                outcome.faults.append(fault)
                held = f" for {fault.pause_s:g} s" if fault.pause_s else ""
                say(f"fault {fault.number}: {fault.kind} {fault.target}{held}: results after {fault.flow_s:.1f} s")
                if time.monotonic() - began_s > faults_max_s:
                    say(f"no more faults after {faults_max_s:g} s")
                    break
        except _GIVEN_UP as error:
            outcome.failure = str(error)
            say(outcome.failure)
        stack.disarm()
        outcome.reached = stack.reached()
        say("draining the job, and reading what there is")
        try:
            outcome.ingested, dump = stack.finish()
        except _GIVEN_UP as error:
            outcome.failure = outcome.failure or str(error)
            return outcome
        dump.save(directory / "dump.json.gz")
        outcome.job = check_job(dump, stack.job, stack.stream)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill parts of a running job again and again, and check every result.")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="draws the same faults again")
    parser.add_argument(
        "--failpoints", type=int, default=0, metavar="TIMES", help="then kill at every failpoint, so often"
    )
    parser.add_argument("--failpoint", action="append", choices=FAILPOINTS, metavar="NAME", help="only this one")
    parser.add_argument("--only", action="append", help="only this target (see the table for names)")
    parser.add_argument("--ledger", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--recovery", choices=["rewind", "snapshot"], default="rewind", help="the job's")
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

    say(f"seed {options.seed}, {options.kills} kills")
    directory = Path(tempfile.mkdtemp(prefix="strandline-chaos-"))
    try:
        points = (options.failpoint or FAILPOINTS) * options.failpoints
        outcome = run(
            directory,
            options.kills,
            options.seed,
            say,
            only=options.only,
            ledger=options.ledger,
            recovery=options.recovery,
            failpoints=points,
            faults_max_s=options.faults_max_s,
        )
    finally:
        if options.keep:
            _keep(directory, options.keep)
        shutil.rmtree(directory)
    _print(outcome, options.seed)
    for violation in outcome.violations:
        print(f"VIOLATION: {violation}")
    return 1 if outcome.violations else 0


def _print(outcome: Outcome, seed: int) -> None:
    table = Table("fault", "target", "times", "median s", "worst s", f"over {FLOW_LIMIT_S:g} s")
    kinds = sorted({(fault.kind, fault.target) for fault in outcome.faults})
    for kind, target in [*kinds, ("kill", "all"), ("pause", "all"), ("lose", "all")]:
        some = [one for one in outcome.faults if one.kind == kind and target in (one.target, "all")]
        if some:
            took_s = [one.recovery_s for one in some]
            slow = sum(one > FLOW_LIMIT_S for one in took_s)
            table.add_row(
                kind, target, str(len(some)), f"{statistics.median(took_s):.1f}", f"{max(took_s):.1f}", str(slow)
            )
    console = Console(width=160, highlight=False)
    console.print(table)
    for name, verdict in (("senders and log", outcome.ingested), ("job", outcome.job)):
        console.print(f"{name}: {verdict}", markup=False)
    if outcome.failure:
        console.print(f"the run ended early: {outcome.failure}", markup=False)
    console.print(f"failpoints reached: {len(outcome.reached)} of {len(FAILPOINTS)}", markup=False)
    kills = sum(fault.kind == "kill" for fault in outcome.faults)
    if outcome.job is not None:
        counts = ", ".join(f"{len(getattr(outcome.job, kind))} {kind}" for kind in JobVerdict.KINDS)
        console.print(f"{kills} kills with seed {seed}: {counts}", markup=False)


def _keep(directory: Path, kept: Path) -> None:
    kept.mkdir(parents=True, exist_ok=True)
    for path in (*directory.glob("*.jsonl"), *directory.glob("*.gz"), *directory.glob("ledger*")):
        shutil.copy(path, kept)
    shutil.copytree(directory / "logs", kept / "logs", dirs_exist_ok=True)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
