"""`python -m benchmarks`: compare works W1 and W2 with plain Spark, Hazelcast Jet, and Flink, and measure the latency from the
HTTP response to the result.

Starts its own servers in a temporary directory, prints tables, and writes them to benchmarks/RESULTS.md. With `--quick`, a
small run whose figures mean little. It writes only to the file of `--output`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks.latency import Latency, measure_latency
from benchmarks.report import RESULTS, goal_summaries, latency_rows, put_part, results_text, show, throughput_rows
from benchmarks.servers import new_stack
from benchmarks.throughput import SIDES, STRANDLINE, Plan, Throughput, measure_throughput
from benchmarks.works import DEVICES, WORKS
from strandline.core.errors import StrandlineError


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a small run to check that everything works with correct results"
    )
    parser.add_argument(
        "--repetitions", type=int, help="number of runs of each side, each in a new process (default 3)"
    )
    parser.add_argument(
        "--side",
        action="append",
        choices=SIDES,
        help="measure only this side, and no latency; can be repeated",
    )
    parser.add_argument("--work", action="append", choices=WORKS, help="measure only this work; can be repeated")
    parser.add_argument("--records", type=int, help="number of records of a run; the first third is its cold part")
    parser.add_argument(
        "--devices", type=int, default=DEVICES, help=f"number of keys (default {DEVICES}; others only for W1)"
    )
    parser.add_argument(
        "--bad-percent", type=float, default=0.0, help="percentage of records that are no JSON (only Strandline)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        help=f"the file for the tables (default {RESULTS.name}; none if only a part is measured)",
    )
    options = parser.parse_args()
    if options.devices != DEVICES and options.work != ["W1"]:
        parser.error("--devices: only with --work W1")
    if options.bad_percent and options.side != [STRANDLINE]:
        parser.error("--bad-percent: only with --side strandline; the others don't process bad records")
    records, seconds, warm_up_s = (120_000, 10, 10) if options.quick else (6_000_000, 60, 30)
    records = options.records or records
    plan = Plan(
        records=records,
        mark=records // 3,
        repetitions=options.repetitions or (1 if options.quick else 3),
        sides=options.side or list(SIDES),
        works=[WORKS[name] for name in options.work or WORKS],
        devices=options.devices,
        bad_percent=options.bad_percent,
    )
    console = Console(soft_wrap=True)
    try:
        throughput, latency = _measure(plan, None if options.side else (warm_up_s, seconds), console)
    except (RuntimeError, StrandlineError) as error:
        raise SystemExit(f"the benchmark failed: {error}") from error
    for work in plan.works:
        show(throughput_rows(throughput, work), f"Work {work.name}: {records:,} records", console)
    for summary in goal_summaries(throughput):
        console.print(summary)
    if latency is not None:
        show(latency_rows(latency), "Latency", console)
    is_whole = not (options.quick or options.side or options.work or options.records)
    output = options.output or (RESULTS if is_whole else None)
    if output is not None:
        arguments = " ".join(sys.argv[1:])
        whole = f"make bench BENCH='{arguments}'" if arguments else "make bench"
        command = whole if is_whole else f"python -m benchmarks {arguments}"
        put_part(output, "jobs", results_text(command, throughput, latency))


def _measure(plan: Plan, live_s: tuple[int, int] | None, console: Console) -> tuple[Throughput, Latency | None]:
    """Measure throughput, then latency, each with a new stack.

    Args: `live_s`: Seconds of warm-up and of the latency measurement. None: no latency measurement.
    """
    with tempfile.TemporaryDirectory(prefix="strandline-bench-") as directory:
        stack = new_stack(Path(directory) / "throughput", console)
        try:
            throughput = measure_throughput(stack, plan, console)
        finally:
            stack.stop()
        if live_s is None:
            return throughput, None
        stack = new_stack(Path(directory) / "latency", console)
        try:
            return throughput, measure_latency(stack, *live_s, console)
        finally:
            stack.stop()


if __name__ == "__main__":
    main()
