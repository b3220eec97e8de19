"""`make soak HOURS=2`: run the example for hours, and fail if something grows.

The example runs with slices that follow each other without a pause (`STRANDLINE_SLICE_INTERVAL_MS=0`), and its event time as fast
as the hours allow. Each minute, this program samples each process of the stack: anonymous memory, file descriptors, threads; and
the disk use of each part of the data directory. The first half hour, or the first quarter of a shorter run, is the warm-up.
After it

* the memory of each process must grow less than 1 % per half hour;
* descriptors and threads must not grow;
* the disk use per record must not grow, for each part of the data directory.

Each sample is also a line of JSON in `samples.jsonl` of the working directory (`--samples`). If the run is interrupted, the
report covers the samples until then, and the exit code is 1.

A JVM's memory depends on when its heap was last collected. If `jcmd` (of a JDK) is on the PATH, each JVM collects its heap before
a sample; otherwise the report says that garbage is included.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import median

import psutil

from benchmarks.example import JOB
from benchmarks.process_tree import role_of
from benchmarks.servers import free_offset
from benchmarks.stack_memory import parents
from strandline.ledger.ledger import Ledger
from strandline.services.processes.pids import PidFile

HALF_HOUR_S = 1_800.0
SAMPLE_EVERY_S = 60.0
MEMORY_GROWTH_MAX = 0.01
"""Maximum growth of a process's memory per half hour, as a share of its median."""
COUNT_GROWTH_MAX = 0.5
"""Maximum growth of the descriptors or threads of a process per half hour."""
DISK_GROWTH_MAX = 0.05
"""Maximum growth of the bytes per record from the first half of the time after the warm-up to the second, as a share."""
DISK_BYTES_MIN = 1.0
"""Parts of the data directory that take fewer bytes per record than this don't count."""
EVENT_DAYS = 28.0
"""The example's event time starts 30 days ago and must not overtake the clock."""
SAMPLES_MIN = 6


@dataclass(frozen=True)
class Sample:
    """One look at the stack."""

    at_s: float
    """Seconds since the start."""
    records: int
    """Records that the job has committed."""
    slices: int
    processes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Process -> `memory` in bytes, `descriptors`, `threads`. Processes of one role below one parent count together."""
    disk: Mapping[str, int] = field(default_factory=dict)
    """Part of the data directory -> bytes."""


@dataclass(frozen=True)
class Finding:
    """One value that grows although it must not."""

    subject: str
    summary: str


def evaluate(samples: Sequence[Sample], warm_up_s: float) -> list[Finding]:
    """Return what grew after the warm-up. Raises ValueError if there are too few samples to say so."""
    judged = [one for one in samples if one.at_s >= warm_up_s]
    if len(judged) < SAMPLES_MIN:
        raise ValueError(
            f"{len(judged)} samples after the warm-up say nothing; {SAMPLES_MIN} are needed: run for longer"
        )
    findings = []
    names = sorted({name for one in judged for name in one.processes})
    for name in names:
        for measure in ("memory", "descriptors", "threads"):
            points = [(one.at_s, one.processes[name][measure]) for one in judged if name in one.processes]
            if len(points) >= SAMPLES_MIN:
                findings += _growth_of_process(name, measure, points)
    for part in sorted({part for one in judged for part in one.disk}):
        findings += _growth_of_disk(part, [(one.records, one.disk.get(part, 0)) for one in judged])
    return findings


def _growth_of_process(name: str, measure: str, points: Sequence[tuple[float, float]]) -> Iterator[Finding]:
    typical = median(value for _, value in points)
    grown = slope(points) * HALF_HOUR_S
    if measure == "memory":
        if grown > MEMORY_GROWTH_MAX * typical:
            share = f"{100 * grown / typical:.1f} % per half hour; {typical / 2**20:,.1f} MB in the middle"
            yield Finding(name, f"{name}: the memory grows by {share}")
    elif grown > COUNT_GROWTH_MAX:
        yield Finding(
            name, f"{name}: the number of {measure} grows by {grown:.1f} per half hour; {typical:,.0f} in the middle"
        )


def _growth_of_disk(part: str, points: Sequence[tuple[int, int]]) -> Iterator[Finding]:
    middle = len(points) // 2
    first, second = (_bytes_per_record(half) for half in (points[: middle + 1], points[middle:]))
    if second > DISK_BYTES_MIN and second > first * (1 + DISK_GROWTH_MAX) + DISK_BYTES_MIN:
        yield Finding(
            part, f"disk, {part}: {second:,.1f} bytes per record in the second half, {first:,.1f} in the first"
        )


def _bytes_per_record(points: Sequence[tuple[int, int]]) -> float:
    return max(0.0, slope(points))


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the median of the slopes between all pairs of points (Theil and Sen): single outliers don't change it."""
    return median([(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if b[0] != a[0]] or [0.0])


def report(samples: Sequence[Sample], warm_up_s: float) -> Iterator[str]:
    """Yield a table: each value at the end of the warm-up and at the end, and its growth."""
    judged = [one for one in samples if one.at_s >= warm_up_s]
    first, last = judged[0], judged[-1]
    records, minutes = last.records - first.records, (last.at_s - first.at_s) / 60
    yield (
        f"{len(judged)} samples in {minutes:.0f} minutes after the warm-up; {records:,} records, "
        f"{(last.slices - first.slices) / (minutes * 60):.2f} slices per second"
    )
    yield f"{'PROCESS':34} {'MB FIRST':>9} {'MB LAST':>9} {'% PER 30 MIN':>13} {'DESCRIPTORS':>12} {'THREADS':>8}"
    for name in sorted(set(first.processes) & set(last.processes)):
        points = [(one.at_s, one.processes[name]["memory"]) for one in judged if name in one.processes]
        grown = 100 * slope(points) * HALF_HOUR_S / median(value for _, value in points)
        a, b = first.processes[name], last.processes[name]
        counts = (f"{a[one]:.0f}-{b[one]:.0f}" for one in ("descriptors", "threads"))
        megabytes = f"{a['memory'] / 2**20:9,.1f} {b['memory'] / 2**20:9,.1f}"
        yield "{:34} {} {:13.2f} {:>12} {:>8}".format(name, megabytes, grown, *counts)
    yield f"{'DISK':34} {'MB FIRST':>9} {'MB LAST':>9} {'BYTES PER RECORD':>17}"
    for part in sorted(last.disk):
        points = [(one.records, one.disk.get(part, 0)) for one in judged]
        sizes = f"{first.disk.get(part, 0) / 2**20:9,.1f} {last.disk[part] / 2**20:9,.1f}"
        yield f"{part:34} {sizes} {_bytes_per_record(points):17,.1f}"


class Sampler:
    """Looks at a running stack. Not thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started_s = time.monotonic()
        self._jcmd = shutil.which("jcmd")
        self._slice = self._records = 0

    @property
    def collects_heaps(self) -> bool:
        return self._jcmd is not None

    def sample(self) -> Sample:
        self._count_records()
        at_s = time.monotonic() - self._started_s
        return Sample(at_s, self._records, self._slice, self._processes(), disk_use(self._directory))

    def _count_records(self) -> None:
        """Add the records of the slices that were committed since the last look."""
        with closing(Ledger.open(f"sqlite:///{self._directory}/ledger.sqlite")) as ledger:
            last = ledger.last_checkpoint(JOB)
            if last is not None and last.slice > self._slice:
                self._records += sum(row.records for row in ledger.checkpoints(JOB, last.slice - self._slice))
                self._slice = last.slice

    def _processes(self) -> dict[str, dict[str, float]]:
        named = {pid: name for name, pid in PidFile(self._directory).alive().items()}
        above = parents()
        found: dict[str, dict[str, float]] = {}
        for pid in above:
            owner: int | None = pid
            while owner is not None and owner not in named:
                owner = above.get(owner)
            if owner is None:
                continue
            # It ended meanwhile; or its heap wasn't collected in time, and garbage must not count.
            with suppress(psutil.Error, OSError, StopIteration, subprocess.TimeoutExpired):
                process = psutil.Process(pid)
                role = role_of(process, owner)
                if role == "jvm":
                    self._collect_heap(process)
                sizes = {
                    "memory": anonymous_bytes(pid),
                    "descriptors": process.num_fds(),
                    "threads": process.num_threads(),
                }
                totals = found.setdefault(
                    named[pid] if pid in named else f"{named[owner]}: {role}", dict.fromkeys(sizes, 0.0)
                )
                for measure, value in sizes.items():
                    totals[measure] += value
        return found

    def _collect_heap(self, process: psutil.Process) -> None:
        """Collect the heap of a JVM. Only the user of a JVM can request it."""
        if self._jcmd is not None:
            users = process.uids().effective
            subprocess.run(
                [self._jcmd, str(process.pid), "GC.run"],
                user=users if users != os.geteuid() else None,
                capture_output=True,
                timeout=60,
                check=False,
            )


def anonymous_bytes(pid: int) -> int:
    """Return the anonymous memory of a process: its own allocations, without files and shared memory."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Anonymous:"))


def disk_use(directory: Path) -> dict[str, int]:
    """Return the allocated bytes of each entry of the directory, with all below it."""
    found = {}
    for entry in directory.iterdir():
        size = 0
        for path in [entry, *entry.rglob("*")] if entry.is_dir() else [entry]:
            with suppress(OSError):
                size += path.lstat().st_blocks * 512
        found[entry.name] = size
    return found


def run(hours: float, say: Callable[[str], None], written: Path) -> int:
    """Run the example for `hours`, write each sample to `written`, and report. Return the exit code."""
    seconds = hours * 3_600
    warm_up_s = min(HALF_HOUR_S, seconds / 4)
    speed = min(1_200.0, EVENT_DAYS * 86_400 / seconds)
    samples: list[Sample] = []
    was_interrupted = False
    with tempfile.TemporaryDirectory(prefix="strandline-soak-") as name:
        directory = Path(name)
        program = Path(sys.executable).with_name("strandline")
        options = ["--data-dir", name, "--port-offset", free_offset(), "--seconds", seconds, "--speed", f"{speed:g}"]
        environment = os.environ | {"STRANDLINE_SLICE_INTERVAL_MS": "0"}
        with (directory / "example.log").open("wb") as log, written.open("w", encoding="utf-8") as lines:
            example = subprocess.Popen(
                [program, "example", *map(str, options)], env=environment, stdout=log, stderr=log
            )
            try:
                signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))  # the example ends, too
                sampler = Sampler(directory)
                say(
                    f"{hours:g} hours at {speed:g} times the clock; heaps are {'' if sampler.collects_heaps else 'not '}collected"
                )
                while not _has_ended(example, SAMPLE_EVERY_S):
                    if (directory / "ledger.sqlite").exists():
                        samples.append(sampler.sample())
                        one = samples[-1]
                        print(json.dumps(asdict(one)), file=lines, flush=True)
                        memory = sum(process["memory"] for process in one.processes.values()) / 2**20
                        say(
                            f"{one.at_s / 60:6.1f} min: {one.records:,} records, {one.slices:,} slices, {memory:,.0f} MB"
                        )
            except (KeyboardInterrupt, SystemExit):
                was_interrupted = True
            finally:
                example.terminate()
                example.wait()
        if example.returncode != 0 and not was_interrupted:
            say((directory / "example.log").read_text(errors="replace")[-4_000:])
            say(f"the example failed, with exit code {example.returncode}")
            return 1
    try:
        findings = evaluate(samples, warm_up_s)
    except ValueError as error:
        say(str(error))
        return 1
    for line in report(samples, warm_up_s):
        say(line)
    for finding in findings:
        say(f"GROWS: {finding.summary}")
    if was_interrupted:
        say("the run was interrupted: this result doesn't cover the whole time")
    else:
        say("something grows" if findings else "nothing grows")
    return 1 if findings or was_interrupted else 0


def _has_ended(process: subprocess.Popen[bytes], within_s: float) -> bool:
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description="Run the example for hours; fail if something grows."
    )
    parser.add_argument("--hours", type=float, default=2.0, help="default %(default)s")
    parser.add_argument("--samples", type=Path, default=Path("samples.jsonl"), help="default %(default)s")
    options = parser.parse_args()
    return run(options.hours, lambda line: print(line, flush=True), options.samples)


if __name__ == "__main__":
    sys.exit(main())
