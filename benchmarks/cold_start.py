"""`python -m benchmarks.cold_start`: cost of a cold start of Spark, alternately without and with the class archive.

Each time, a new process starts Spark as a runner does, and runs the warm-up query with few rows. So it loads classes, plans,
and generates code, with almost no other work. Writes the `cold-start` part of RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from benchmarks.process_tree import cpu_by_role
from benchmarks.report import RESULTS, machine_text, markdown, put_part, show, written_by
from strandline.core.settings import Settings
from strandline.processing.spark.class_archive import use_archive
from strandline.processing.spark.class_archive_maker import make_archive
from strandline.processing.spark.session import start_spark
from strandline.processing.spark.warm_up import warm_up

WITHOUT, WITH = "without the archive", "with it"
_NO_KAFKA = "127.0.0.1:1"
"""Address without a Kafka, because the query reads no topic."""


def measure_here(with_archive: bool) -> None:
    """Start Spark in this process, run the query, and print seconds and CPU-seconds as JSON."""
    with tempfile.TemporaryDirectory(prefix="strandline-bench-") as scratch:
        began = time.monotonic()
        spark = start_spark(Settings(), "cold", Path(scratch), java_options=None if with_archive else "")
        warm_up(spark, _NO_KAFKA, Path(scratch) / "checkpoint", lambda: False)
        took_s = time.monotonic() - began
        print(json.dumps({"seconds": took_s, "jvm_cpu_s": cpu_by_role(os.getpid())["jvm"]}), flush=True)
        spark.stop()


def measure(times: int) -> dict[str, list[dict[str, float]]]:
    """Return the measurements of `times` starts of each kind, alternately."""
    found: dict[str, list[dict[str, float]]] = {WITHOUT: [], WITH: []}
    for _ in range(times):
        for kind, argument in ((WITHOUT, "without"), (WITH, "with")):
            command = [sys.executable, "-m", "benchmarks.cold_start", "--here", argument]
            told = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
            found[kind].append(json.loads(told.stdout.splitlines()[-1]))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Start Spark repeatedly, without and with the class archive.")
    parser.add_argument("--times", type=int, default=5, help="number of starts of each kind (default %(default)s)")
    parser.add_argument("--here", choices=["without", "with"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        measure_here(options.here == "with")
        return 0
    console = Console()
    archive = make_archive(Settings())
    began = time.monotonic()
    use_archive(Settings().cache_dir)
    check_s = time.monotonic() - began
    found = measure(options.times)
    rows = [("start", "times", "seconds, median", "(least to most)", "CPU-s of the JVM, median")]
    for kind, starts in found.items():
        took = [one["seconds"] for one in starts]
        rows.append(
            (
                kind,
                str(len(took)),
                f"{statistics.median(took):.1f}",
                f"{min(took):.1f} to {max(took):.1f}",
                f"{statistics.median(one['jvm_cpu_s'] for one in starts):.1f}",
            )
        )
    show(rows, "cold start", console)
    text = f"""\
## Cold start

{written_by(f"python -m benchmarks.cold_start --times {options.times}")}

{machine_text()}

Time until a new Spark session has run a small query with two stages of windows, like the first batches of a runner. Each
start is a new process. The archive has {archive.stat().st_size / 1e6:.0f} MB; its checksum took {check_s:.1f} s, which is
included.

{markdown(rows)}
"""
    put_part(RESULTS, "cold-start", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
