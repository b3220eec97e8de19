"""Runs the works on each side in turn, each time in a new process, over one filled topic."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from benchmarks.measured import Run, Snapshot, memory_text, watch
from benchmarks.peers.java import FLINK, JET, SNAPSHOT_EVERY_MS, JavaPeer
from benchmarks.peers.spark_connector import connector_jars
from benchmarks.process_tree import WatchedTree, kill_with_children
from benchmarks.works import DELAY_MS, DEVICES, STREAM, STREAM_TEXT, Readings, Work
from strandline.core.documents import read_documents
from strandline.core.settings import Settings
from strandline.core.streams.stream import StreamSpec
from strandline.log.topics import Topics
from strandline.services.embedded.addresses import settings_environment
from strandline.services.embedded.stack import Stack

ROWS_MAX = 500_000
"""Half of the default size of Strandline's slices, so that several end in the warm part."""
STRANDLINE, SPARK_ROCKSDB, SPARK, JET_SIDE, FLINK_SIDE = "strandline", "spark-rocksdb", "spark", "jet", "flink"
SIDES = {
    STRANDLINE: "Strandline",
    SPARK_ROCKSDB: "Spark, RocksDB state",
    SPARK: "Spark, in-memory state",
    JET_SIDE: "Hazelcast Jet 5.6.0",
    FLINK_SIDE: "Flink 2.2.1",
}
_JAVA: dict[str, JavaPeer] = {JET_SIDE: JET, FLINK_SIDE: FLINK}
_TIMEOUT_S = 1_200


@dataclass(frozen=True)
class Plan:
    """Plan of the measurements."""

    records: int
    mark: int
    """Number of records of the cold part."""
    repetitions: int
    sides: Sequence[str]
    works: Sequence[Work]
    devices: int = DEVICES
    bad_percent: float = 0.0
    """Percentage of records that are no JSON. Only Strandline processes these."""

    @property
    def rows_max(self) -> int:
        """Number of records of one slice or batch."""
        return min(ROWS_MAX, self.mark)


@dataclass(frozen=True)
class Throughput:
    """Runs per work and side."""

    plan: Plan
    runs: dict[str, dict[str, list[Run]]]


def measure_throughput(stack: Stack, plan: Plan, console: Console) -> Throughput:
    """Fill the topic once, then run the sides in turn. Raises RuntimeError if a side fails or its results are wrong, StackError
    if one of its parts is missing."""
    class_paths = {
        side: _JAVA[side].compile(stack.settings.cache_dir, stack.data_dir) for side in plan.sides if side in _JAVA
    }
    bootstrap = stack.start_kafka()
    readings = Readings.generate(plan.records, plan.devices, plan.bad_percent)
    spec = StreamSpec.parse(read_documents(STREAM_TEXT, "readings.yaml")[0])
    Topics(bootstrap, replication=1, record_bytes_max=1_000_000).ensure_stream_topic(spec)
    began_s = time.monotonic()
    readings.send(bootstrap)
    console.print(f"{plan.records:,} records are in the log ({time.monotonic() - began_s:.1f} s)")
    # Strandline drains and Flink's source ends, so both close every window. The others leave windows above their watermark
    # open.
    ends_ms = {
        SPARK: readings.latest_ms - DELAY_MS,
        SPARK_ROCKSDB: readings.latest_ms - DELAY_MS,
        JET_SIDE: readings.latest_everywhere_ms - DELAY_MS,
    }
    runs: dict[str, dict[str, list[Run]]] = {work.name: {} for work in plan.works}
    for work in plan.works:
        expected = {side: work.expected(readings.good, ends_ms.get(side)) for side in plan.sides}
        for repetition in range(plan.repetitions):
            for side in plan.sides:
                results = expected[side].results
                run = _run_side(_Start(side, work, results, class_paths.get(side, "")), plan, stack)
                if not run.outcome.agrees(expected[side]):
                    raise RuntimeError(f"{work.name}, {side}: returned {run.outcome}, but {expected[side]} is right")
                runs[work.name].setdefault(side, []).append(run)
                console.print(
                    f"{work.name}, {SIDES[side]}, repetition {repetition + 1}: {_summary(run)}; results right"
                )
    return Throughput(plan, runs)


def _summary(run: Run) -> str:
    warm, cold = run.warm, run.cold
    return (
        f"warm {warm.cpu_s_per_million:.1f} CPU-s/M at {warm.records_a_second:,.0f} records/s, cold {cold.cpu_s_per_million:.1f} "
        f"CPU-s/M ({sum(cold.cpu_s.values()):.1f} CPU-s in {cold.seconds:.1f} s), at most {memory_text(run.peak_mb)}"
    )


@dataclass(frozen=True)
class _Start:
    """Program of a side, with its work."""

    side: str
    work: Work
    results: int
    """Expected number of results. A side whose source never ends stops when it has them."""
    class_path: str

    def command(self, settings: Settings, plan: Plan, directory: Path) -> list[str]:
        """Return the program of the side, with its arguments."""
        if self.side in _JAVA:
            arguments: list[object] = [self.work.name, settings.kafka_bootstrap, STREAM, plan.records, plan.mark]
            arguments += [self.results, len(os.sched_getaffinity(0)), DELAY_MS, SNAPSHOT_EVERY_MS, directory]
            return _JAVA[self.side].command(self.class_path, directory, list(map(str, arguments)))
        arguments = ["--work", self.work.name, "--mark", plan.mark, "--directory", directory]
        module = "benchmarks.strandline_pass"
        if self.side != STRANDLINE:
            module = "benchmarks.peers.spark_pass"
            arguments += ["--jars", ",".join(map(str, connector_jars(settings.cache_dir)))]
            arguments += ["--state", "rocksdb" if self.side == SPARK_ROCKSDB else "memory", "--records", plan.records]
            arguments += ["--bootstrap", settings.kafka_bootstrap, "--rows-max", plan.rows_max]
        return [sys.executable, "-m", module, *map(str, arguments)]


def _run_side(start: _Start, plan: Plan, stack: Stack) -> Run:
    with tempfile.TemporaryDirectory(prefix="run-", dir=stack.data_dir) as name:
        directory = Path(name)
        ledger_url = f"sqlite:///{directory / 'ledger.sqlite'}"
        changes = {"data_dir": directory, "ledger_url": ledger_url, "slice_rows_max": plan.rows_max}
        settings = stack.settings.model_copy(update=changes)
        command = start.command(settings, plan, directory)
        root = Path(__file__).parents[1]
        environment = {"PYTHONPATH": os.pathsep.join([str(root), *sys.path[1:]])}
        with (directory / "log").open("w+") as log:
            began_s = time.monotonic()
            process = subprocess.Popen(
                command,
                env=settings_environment(settings) | environment,
                cwd=root,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            too_late = threading.Timer(_TIMEOUT_S, kill_with_children, [process.pid])
            too_late.start()
            try:
                assert process.stdout is not None
                with WatchedTree(process.pid) as tree:
                    run = watch(process.stdout, plan.mark, began_s, lambda records: Snapshot.take(tree, records))
                    run = replace(run, peak_mb=tree.peak_mb)
                process.communicate()
            except RuntimeError as error:
                log.seek(0)
                raise RuntimeError(f"{start.work.name}, {start.side}: {error}:\n{log.read()[-4000:]}") from error
            finally:
                too_late.cancel()
                kill_with_children(process.pid)
                process.wait()
            return run
