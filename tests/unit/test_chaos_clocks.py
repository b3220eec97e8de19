"""A clock that is wrong is that for the processes that see it, and for no others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.chaos.clocks import WallClock
from tests.support.waiting import stretched

TELLS = """
import sqlite3, sys, threading, time
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "a", "log_level": 0})
lock = threading.Lock()
lock.acquire()
for line in sys.stdin:
    time.sleep(0.001)
    consumer.poll(0.05)  # librdkafka waits until a moment of the wall clock
    lock.acquire(timeout=0.001)
    seconds = sqlite3.connect(":memory:").execute("SELECT (julianday('now') - 2440587.5) * 86400").fetchone()[0]
    print(time.time(), seconds, time.monotonic(), flush=True)
"""
WAITS = """
import sys, threading, time
lock = threading.Lock()
lock.acquire()
began_s = time.monotonic()
time.sleep(float(sys.argv[1]))
print(time.monotonic() - began_s)
began_s = time.monotonic()
lock.acquire(timeout=float(sys.argv[1]))
print(time.monotonic() - began_s)
"""
TELL = "import time; print(time.time())"
START = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {TELL!r}]))"
Moments = tuple[float, float, float]
"""By the wall clock, by that of a database in the process, and by the monotonic clock, in seconds."""

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None, reason="THERE IS NO C COMPILER, so clocks that are wrong were NOT tested"
)


@contextmanager
def teller(clock: WallClock) -> Iterator[Callable[[], Moments]]:
    """Start a process that uses this clock. Yields a function that returns the moments of the process."""
    child = subprocess.Popen(
        [sys.executable, "-c", TELLS],
        env=os.environ | clock.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdin is not None and child.stdout is not None

        def ask() -> Moments:
            child.stdin.write("\n")
            child.stdin.flush()
            wall_s, database_s, monotonic_s = map(float, child.stdout.readline().split())
            return wall_s, database_s, monotonic_s

        yield ask


def ahead_s(code: str, *clocks: WallClock) -> float:
    """By how much the clock of a process that runs this code, or of what it starts, is ahead."""
    environment = dict(os.environ)
    for clock in clocks:
        environment |= clock.environment
    return float(subprocess.check_output([sys.executable, "-c", code], env=environment)) - time.time()


def test_a_running_process_sees_each_step_of_its_wall_clock_and_none_of_the_monotonic_clock(tmp_path: Path):
    clock = WallClock(tmp_path)
    with teller(clock) as ask:
        first = ask()
        for ahead_s in (45, -45, 86_400, 0):
            clock.set(ahead_s)
            now = ask()
            passed_s = now[2] - first[2]
            assert 0 <= passed_s < stretched(20)
            assert now[0] - first[0] == pytest.approx(ahead_s + passed_s, abs=1)
            assert now[1] - first[1] == pytest.approx(ahead_s + passed_s, abs=1)


@pytest.mark.parametrize("rate", [5.0, 0.2])
def test_a_clock_that_drifts_takes_the_monotonic_clock_along_which_never_steps(tmp_path: Path, rate: float):
    """The wall clock that is right again is the machine's, and the monotonic clock continues from its value."""
    clock = WallClock(tmp_path)
    with teller(clock) as ask:
        right = ask()
        off_s = right[2] - time.monotonic()
        clock.set(0, rate)
        began_s = time.monotonic()
        before = ask()
        while time.monotonic() < began_s + 1:  # sleeps: the clock itself is the subject
            now = ask()
            assert now[2] >= before[2]
            before = now
        passed_s = time.monotonic() - began_s
        assert now[2] - off_s - began_s == pytest.approx(rate * passed_s, abs=stretched(0.5))
        assert now[0] - time.time() == pytest.approx((rate - 1) * passed_s, abs=stretched(0.5))
        assert now[1] - time.time() == pytest.approx((rate - 1) * passed_s, abs=stretched(0.5))
        clock.set(0)
        gained_s = (rate - 1) * (time.monotonic() - began_s)
        after = ask()
        assert after[2] >= now[2]
        assert after[2] - off_s - time.monotonic() == pytest.approx(gained_s, abs=stretched(0.2))
        assert after[0] - time.time() == pytest.approx(0, abs=stretched(0.2))
    (wrong,) = clock.wrong
    assert (wrong.ahead_ms, wrong.rate) == (0, rate)


@pytest.mark.parametrize("rate", [2.0, 0.5])
def test_a_process_whose_time_drifts_waits_as_long_as_it_meant_to_by_its_own_clock(tmp_path: Path, rate: float):
    clock = WallClock(tmp_path)
    clock.set(3_600, rate)
    began_s = time.monotonic()
    command = [sys.executable, "-c", WAITS, "1.0"]
    told = subprocess.check_output(command, env=os.environ | clock.environment, text=True)
    took_s = time.monotonic() - began_s
    assert [float(one) for one in told.split()] == pytest.approx([1.0, 1.0], abs=stretched(0.3))
    assert took_s == pytest.approx(2.0 / rate, abs=stretched(0.7))


def test_a_clock_of_some_is_seen_by_these_and_what_they_start_and_added_to_that_of_all(tmp_path: Path):
    of_all, of_some = WallClock(tmp_path), WallClock(tmp_path, "some", some="import subprocess")
    of_all.set(3_600)
    of_some.set(86_400)
    assert ahead_s(TELL, of_all, of_some) == pytest.approx(3_600, abs=20)
    assert ahead_s(START, of_all, of_some) == pytest.approx(90_000, abs=20)
    of_some.set(0)
    assert ahead_s(START, of_all, of_some) == pytest.approx(3_600, abs=20)
    (wrong,) = of_some.wrong
    assert 0 < wrong.from_ms <= wrong.to_ms and wrong.ahead_ms == 86_400_000


def test_a_clock_of_one_is_not_seen_by_what_it_starts(tmp_path: Path):
    of_all, of_one = WallClock(tmp_path), WallClock(tmp_path, "one", one="import subprocess")
    of_one.set(86_400)
    shows_its_own = f"import subprocess; {TELL}"
    assert ahead_s(shows_its_own, of_all, of_one) == pytest.approx(86_400, abs=20)
    assert ahead_s(START, of_all, of_one) == pytest.approx(0, abs=20)
    assert ahead_s(TELL, of_all, of_one) == pytest.approx(0, abs=20)
