"""The parts of an audit's reading: in this process where there is little, else in processes of their own."""

from __future__ import annotations

import operator
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass

import psutil
import pytest

from strandline.core.errors import LogTruncated, StrandlineError, TransientError
from strandline.processing.audit.parts import Account, run_parts
from tests.support.waiting import wait_until

MANY = 1_000_000


@dataclass(frozen=True)
class CountingPart:
    """Counts itself, under the id of the process in which it ran."""

    rows: int
    fails: str = ""

    def run(self) -> Account:
        if self.fails == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fails:
            raise LogTruncated(self.fails)
        return Account(1, Counter({str(os.getpid()): 1}))


def test_few_rows_are_read_in_this_process() -> None:
    assert list(run_parts([CountingPart(10)] * 5)) == [Account(1, Counter({str(os.getpid()): 1}))] * 5
    assert list(run_parts([])) == []


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="needs two cores")
def test_many_rows_are_read_in_processes_of_their_own() -> None:
    accounts = list(run_parts([CountingPart(MANY)] * 20))
    assert sum(one.records for one in accounts) == 20
    assert all(str(os.getpid()) not in one.rejected for one in accounts)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="needs two cores")
@pytest.mark.parametrize(
    ("fails", "kind", "says"),
    [
        ("offset 5 is gone", LogTruncated, "offset 5 is gone"),
        ("killed", TransientError, "a process of the audit was killed"),
    ],
)
def test_a_part_that_fails_ends_them_all(fails: str, kind: type[StrandlineError], says: str) -> None:
    with pytest.raises(kind, match=says):
        list(run_parts([CountingPart(MANY)] * 3 + [CountingPart(MANY, fails)] + [CountingPart(MANY)] * 200))


SLEEPER = """
import os, time
from dataclasses import dataclass
from strandline.processing.audit.parts import run_parts

@dataclass
class SleepingPart:
    rows: int = 1_000_000
    def run(self):
        print(os.getpid(), flush=True)
        time.sleep(600)

if __name__ == "__main__":
    list(run_parts([SleepingPart()] * 4))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="needs two cores")
def test_the_processes_end_with_an_audit_that_was_killed(tmp_path) -> None:
    script = tmp_path / "sleeper.py"
    script.write_text(SLEEPER)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, cwd=os.getcwd()) as process:
        assert process.stdout is not None
        pids = [int(process.stdout.readline()) for _ in range(2)]
        process.kill()
        process.wait()
        wait_until(lambda: [pid for pid in pids if psutil.pid_exists(pid)], operator.not_, "ended")
