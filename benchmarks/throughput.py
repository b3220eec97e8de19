"""W1 by each side in turn, each time in a process of its own, over one filled topic."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.connector import connector_jars
from benchmarks.measured import Pass, read_report
from benchmarks.work_w1 import DELAY_MS, STREAM_TEXT, Readings, expected_outcome
from strandline.core.documents import read_documents
from strandline.core.settings import Settings
from strandline.core.stream import StreamSpec
from strandline.log.topics import Topics
from strandline.services.embedded.addresses import settings_environment
from strandline.services.embedded.stack import Stack

ROWS_MAX = 250_000
"""Records of one batch, for every side."""
PASSES = 2
"""A cold one, then a warm one."""
STRANDLINE, SPARK_ROCKSDB, SPARK_MEMORY = "Strandline", "Spark, RocksDB state", "Spark, in-memory state"
SIDES = (STRANDLINE, SPARK_ROCKSDB, SPARK_MEMORY)
_TIMEOUT_S = 600


@dataclass(frozen=True)
class Throughput:
    """What was measured: per side, for each repetition, its passes."""

    records: int
    repetitions: dict[str, list[list[Pass]]]


def measure_throughput(stack: Stack, records: int, repetitions: int, console: Console) -> Throughput:
    """Fill the topic once, then let the sides run by turns. Raises RuntimeError when a side fails or its results are wrong."""
    bootstrap = stack.start_kafka()
    jars = connector_jars(stack.settings.cache_dir)
    readings = Readings.generate(records)
    spec = StreamSpec.parse(read_documents(STREAM_TEXT, "w1.yaml")[0])
    Topics(bootstrap, replication=1, record_bytes_max=1_000_000).ensure_stream_topic(spec)
    began_s = time.monotonic()
    readings.send(bootstrap)
    console.print(f"{records:,} records are in the log ({time.monotonic() - began_s:.1f} s)")
    whole = expected_outcome(readings)
    # Plain Spark has no drain: what its last watermark leaves open it never gives out.
    closed = expected_outcome(readings, int(readings.event_ms.max()) - DELAY_MS)
    found: dict[str, list[list[Pass]]] = {side: [] for side in SIDES}
    for repetition in range(repetitions):
        for side in SIDES:
            passes = _run_side(side, stack.settings, jars, stack.data_dir)
            expected = whole if side == STRANDLINE else closed
            for one in passes:
                if not one.outcome.agrees(expected):
                    raise RuntimeError(f"{side} gave out {one.outcome}, but {expected} is right")
            found[side].append(passes)
            told = ", ".join(f"{p.cpu_total_s * 1e6 / records:.1f} CPU-s/M in {p.seconds:.1f} s" for p in passes)
            console.print(f"{side}, repetition {repetition + 1}: {told}; results right")
    return Throughput(records, found)


def _run_side(side: str, settings: Settings, jars: list[Path], data_dir: Path) -> list[Pass]:
    with tempfile.TemporaryDirectory(prefix="pass-", dir=data_dir) as name:
        directory = Path(name)
        mine = settings.model_copy(
            update={
                "data_dir": directory,
                "ledger_url": f"sqlite:///{directory / 'ledger.sqlite'}",
                "slice_rows_max": ROWS_MAX,
            }
        )
        report = directory / "report"
        arguments = ["--passes", str(PASSES), "--report", str(report), "--directory", str(directory)]
        if side == STRANDLINE:
            module = "benchmarks.strandline_pass"
        else:
            module = "benchmarks.spark_pass"
            state = "rocksdb" if side == SPARK_ROCKSDB else "memory"
            arguments += ["--jars", ",".join(map(str, jars)), "--state", state]
            arguments += ["--bootstrap", settings.kafka_bootstrap, "--rows-max", str(ROWS_MAX)]
        root = Path(__file__).parents[1]
        with (directory / "log").open("w+") as log:
            done = subprocess.run(
                [sys.executable, "-m", module, "--began", str(time.monotonic()), *arguments],
                env=settings_environment(mine) | {"PYTHONPATH": os.pathsep.join([str(root), *sys.path[1:]])},
                cwd=root,
                stdout=log,
                stderr=log,
                check=False,
                timeout=_TIMEOUT_S,
            )
            if done.returncode != 0:
                log.seek(0)
                raise RuntimeError(f"{side} ended with {done.returncode}:\n{log.read()[-4000:]}")
        return read_report(report)
