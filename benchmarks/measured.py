"""One pass of one side over the work, as it reports it to the process that compares."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.process_tree import cpu_by_role
from benchmarks.work_w1 import Outcome


@dataclass(frozen=True)
class Pass:
    """The first pass of a process is cold and counts from the start of that process; the others are warm."""

    seconds: float
    cpu_s: dict[str, float]
    """By role, over the whole process tree of the side."""
    batches: int
    outcome: Outcome

    @property
    def cpu_total_s(self) -> float:
        return sum(self.cpu_s.values())


def measure(passes: int, began_s: float, run: Callable[[int], tuple[Outcome, int]], report: Path) -> None:
    """Run the passes in this process and write what each took, a JSON line each. `began_s` is the monotonic time at which
    this process was started; `run` takes the number of the pass and returns its outcome and how many batches it took."""
    spent = dict.fromkeys(cpu_by_role(os.getpid()), 0.0)
    with report.open("w", encoding="utf-8", buffering=1) as file:
        for number in range(passes):
            outcome, batches = run(number)
            ended_s = time.monotonic()
            now = cpu_by_role(os.getpid())
            cpu_s = {role: seconds - spent[role] for role, seconds in now.items()}
            file.write(json.dumps(asdict(Pass(ended_s - began_s, cpu_s, batches, outcome))) + "\n")
            spent, began_s = now, ended_s


def read_report(report: Path) -> list[Pass]:
    """The passes that a side wrote."""
    lines = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
    return [Pass(**(line | {"outcome": Outcome(**line["outcome"])})) for line in lines]
