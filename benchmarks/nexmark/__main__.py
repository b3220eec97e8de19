"""Cost of each query of NEXMark at the desk, and in plain Spark: `python -m benchmarks.nexmark [--records N] [--query q5]`.

At the desk, the engine works alone, in one process, without servers, log, Spark, or store. Records are decoded, pass steps and
windows, and become documents, as in a job. The queries run one after the other over the same records, and their results are
compared with the oracle's. Then plain Spark runs its queries in a separate process (plain_spark.py).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.nexmark import plain_spark
from benchmarks.nexmark.generator import Nexmark
from benchmarks.nexmark.oracle import Oracle
from benchmarks.nexmark.queries import NAMES, Log, read_query, rows_of_results, run_at_desk
from benchmarks.report import RESULTS, Row, machine_text, markdown, put_part, show, written_by
from strandline.core.errors import StrandlineError

RECORDS = 200_000
SLICE_RECORDS = 50_000
WARM_UP_RECORDS = 2_000
"""Number of records for the one-time work of a process, before the measurement."""
SEED = 1
DISORDER_MS = 3_000


@dataclass(frozen=True)
class Cost:
    """Cost of a query."""

    query: str
    cpu_s_per_million: float
    """CPU-seconds per million input records."""
    results: int


def measure(names: Sequence[str], records: int) -> list[Cost]:
    """Run the queries. Raises RuntimeError if a result is wrong."""
    log = Log.of(Nexmark(records, SEED, disorder_ms=DISORDER_MS))
    oracle = Oracle(log)
    return [_measured(name, log, oracle) for name in names]


def _measured(name: str, log: Log, oracle: Oracle) -> Cost:
    pipeline = read_query(name)
    for _ in run_at_desk(pipeline, log.first(WARM_UP_RECORDS)):
        pass
    began_s = time.process_time()
    results = list(run_at_desk(pipeline, log, SLICE_RECORDS))
    spent_s = time.process_time() - began_s
    if rows_of_results(results) != oracle.rows(name):
        raise RuntimeError(f"{name}: the results differ from the oracle's; `tests/property/test_nexmark.py` shows how")
    return Cost(name, spent_s / len(log.lines) * 1e6, len(results))


def measure_plain_spark(names: Sequence[str], records: int) -> dict[str, float]:
    """Return query -> CPU-seconds per million records, for the queries that plain Spark can run. Raises RuntimeError if it
    fails."""
    queries = [part for name in names if name in plain_spark.QUERIES for part in ("--query", name)]
    if not queries:
        return {}
    command = [sys.executable, "-m", plain_spark.__name__, *queries, "--records", str(records)]
    command += ["--file-records", str(SLICE_RECORDS), "--disorder-ms", str(DISORDER_MS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"plain Spark: {done.stderr.strip()[-500:]}")
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {one["query"]: one["cpu_s_per_million"] for one in found}


def cost_rows(costs: Sequence[Cost], of_spark: Mapping[str, float]) -> list[Row]:
    """Return a header and a row for each query."""
    spark = {query: f"{cost:.1f}" for query, cost in of_spark.items()}
    rows = [
        (one.query.upper(), f"{one.cpu_s_per_million:.1f}", spark.get(one.query, ""), f"{one.results:,}")
        for one in costs
    ]
    return [("query", "CPU-s per M records", "plain Spark", "results"), *rows]


def results_text(command: str, costs: Sequence[Cost], of_spark: Mapping[str, float], records: int) -> str:
    """Return the NEXMark part of RESULTS.md."""
    return f"""\
## NEXMark

{written_by(command)}

{machine_text()}

{records:,} records of the auctions (docs/nexmark.md) at 10,000 per second of event time, up to {DISORDER_MS // 1000} s late;
slices of {SLICE_RECORDS:,}. The engine works alone, at the desk: one process decodes the records, computes, and creates the
documents; no log, no Spark, no store. CPU-seconds are user and system time, per million input records of all kinds. All
results equal the oracle's.

Plain Spark reads the same records from files of {SLICE_RECORDS:,}, one per batch, and keeps its state in memory. It formats
each result as JSON and discards it (`benchmarks/nexmark/spark.sql`). Its cost is the difference between runs over three times
as many records and over {records:,}, so without its start. Over a small log, its results equal the oracle's, too. Q12 is based
on the time of a log, which files don't have. Spark refuses Q4 and Q9, which have a join by time before a window.

{markdown(cost_rows(costs, of_spark))}
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark", description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS, help=f"number of records (default {RECORDS})")
    parser.add_argument("--query", action="append", choices=NAMES, help="measure only this query; can be repeated")
    parser.add_argument("--without-spark", action="store_true", help="measure only the desk")
    parser.add_argument(
        "--output",
        type=Path,
        help=f"the file for the table (default {RESULTS.name}; none if only a part is measured)",
    )
    options = parser.parse_args()
    console = Console(soft_wrap=True)
    try:
        names = options.query or NAMES
        costs = measure(names, options.records)
        of_spark = {} if options.without_spark else measure_plain_spark(names, options.records)
    except (RuntimeError, StrandlineError) as error:
        raise SystemExit(f"the benchmark failed: {error}") from error
    show(cost_rows(costs, of_spark), f"NEXMark: {options.records:,} records", console)
    is_part = options.query or options.without_spark or options.records != RECORDS
    output = options.output or (None if is_part else RESULTS)
    if output is not None:
        arguments = " ".join(["python -m benchmarks.nexmark", *sys.argv[1:]])
        put_part(output, "nexmark", results_text(arguments, costs, of_spark, options.records))


if __name__ == "__main__":
    main()
