"""`python -m benchmarks`: work W1 side by side with plain Spark, and the latency from HTTP answer to result.

Starts servers of its own in a temporary directory, prints tables and writes them to benchmarks/RESULTS.md; with `--quick`
a small run whose figures mean little, and which writes only where `--output` says.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks.latency import measure_latency
from benchmarks.report import RESULTS, goal_sentence, latency_rows, put_part, results_text, show, throughput_rows
from benchmarks.servers import new_stack
from benchmarks.throughput import measure_throughput


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small run: does it work, are its results right")
    parser.add_argument("--repetitions", type=int, help="processes of each side (default 3)")
    parser.add_argument(
        "--output", type=Path, help=f"where the tables go (default {RESULTS.name}; with --quick nowhere)"
    )
    options = parser.parse_args()
    records, seconds, warm_up_s = (100_000, 10, 10) if options.quick else (1_000_000, 60, 30)
    repetitions = options.repetitions or (1 if options.quick else 3)
    console = Console(soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="strandline-bench-") as directory:
        stack = new_stack(Path(directory) / "throughput", console)
        try:
            throughput = measure_throughput(stack, records, repetitions, console)
        finally:
            stack.stop()
        stack = new_stack(Path(directory) / "latency", console)
        try:
            latency = measure_latency(stack, warm_up_s, seconds, console)
        finally:
            stack.stop()
    show(throughput_rows(throughput), f"Work W1: {records:,} records", console)
    console.print(goal_sentence(throughput))
    show(latency_rows(latency), "Latency", console)
    output = options.output or (None if options.quick else RESULTS)
    if output is not None:
        command = "python -m benchmarks --quick" if options.quick else "make bench"
        put_part(output, "jobs", results_text(command, throughput, latency))


if __name__ == "__main__":
    main()
