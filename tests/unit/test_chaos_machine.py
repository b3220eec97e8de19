"""A wall clock that is set, and a disk that is filled, are that for the processes that see them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.chaos.machine import SmallDisk, WallClock

TELLS = """
import sqlite3, sys, time
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "a", "log_level": 0})
for line in sys.stdin:
    time.sleep(0.001)
    consumer.poll(0.05)  # librdkafka waits until a moment of the wall clock
    seconds = sqlite3.connect(":memory:").execute("SELECT (julianday('now') - 2440587.5) * 86400").fetchone()[0]
    print(time.time(), seconds, time.monotonic(), flush=True)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    try:
        disk = SmallDisk(tmp_path / "disk")
    except OSError as error:
        pytest.skip(f"NO FILE SYSTEM CAN BE MOUNTED, so a full disk was NOT tested: {error}")
    with closing(disk):
        yield disk


def test_a_running_process_sees_each_step_of_its_wall_clock_and_none_of_the_monotonic_clock(tmp_path: Path):
    if shutil.which("cc") is None:
        pytest.skip("THERE IS NO C COMPILER, so steps of the clock were NOT tested")
    clock = WallClock(tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-c", TELLS],
        env=os.environ | clock.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdin is not None and child.stdout is not None

        def ask() -> tuple[float, float, float]:
            child.stdin.write("\n")
            child.stdin.flush()
            wall_s, database_s, monotonic_s = map(float, child.stdout.readline().split())
            return wall_s, database_s, monotonic_s

        first = ask()
        for ahead_s in (45, -45, 86_400, 0):
            clock.set(ahead_s)
            now = ask()
            passed_s = now[2] - first[2]
            assert 0 <= passed_s < 20
            assert now[0] - first[0] == pytest.approx(ahead_s + passed_s, abs=1)
            assert now[1] - first[1] == pytest.approx(ahead_s + passed_s, abs=1)


def test_a_clock_of_some_is_seen_by_these_and_what_they_start_and_added_to_that_of_all(tmp_path: Path):
    if shutil.which("cc") is None:
        pytest.skip("THERE IS NO C COMPILER, so steps of the clock were NOT tested")
    of_all, of_some = WallClock(tmp_path), WallClock(tmp_path, "some", "import subprocess")
    of_all.set(3_600)
    of_some.set(86_400)
    tell = "import time; print(time.time())"
    start = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {tell!r}]))"

    def ahead_s(code: str) -> float:
        environment = os.environ | of_all.environment | of_some.environment
        return float(subprocess.check_output([sys.executable, "-c", code], env=environment)) - time.time()

    assert ahead_s(tell) == pytest.approx(3_600, abs=20)
    assert ahead_s(start) == pytest.approx(90_000, abs=20)
    of_some.set(0)
    assert ahead_s(start) == pytest.approx(3_600, abs=20)
    ((from_ms, to_ms, by_ms),) = of_some.steps
    assert 0 < from_ms <= to_ms and by_ms == 86_400_000


def test_a_full_disk_takes_nothing_until_it_is_freed(disk: SmallDisk):
    disk.fill()
    with pytest.raises(OSError, match="No space left"):
        (disk.directory / "a").write_bytes(b"a")
    disk.free()
    (disk.directory / "a").write_bytes(b"a")
    assert (disk.directory / "a").read_bytes() == b"a"
