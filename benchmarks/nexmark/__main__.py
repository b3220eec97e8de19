"""What each query of NEXMark costs at the desk, and in plain Spark: `python -m benchmarks.nexmark [--records N] [--query q5]`.

At the desk the engine works alone, in one process and without servers: records are decoded, go through steps and windows, and
become documents, as in a job; there is no log, no Spark and no store. The queries run one after the other over the same records,
and what each gives is compared with the oracle's answer. Then plain Spark runs those that it can, in a process of its own
(plain_spark.py).
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
"""What a process does only once is done with these, before the clock starts."""
SEED = 1
DISORDER_MS = 3_000


@dataclass(frozen=True)
class Cost:
    """What a query took."""

    query: str
    cpu_s_per_million: float
    """CPU-seconds per million records, all that come in."""
    results: int


def measure(names: Sequence[str], records: int) -> list[Cost]:
    """Run the queries. Raises RuntimeError where one gives what it should not."""
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
    """Query -> CPU-seconds per million records, of those that plain Spark can run. Raises RuntimeError where it fails."""
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
    """A header and a row for each query."""
    spark = {query: f"{cost:.1f}" for query, cost in of_spark.items()}
    rows = [
        (one.query.upper(), f"{one.cpu_s_per_million:.1f}", spark.get(one.query, ""), f"{one.results:,}")
        for one in costs
    ]
    return [("query", "CPU-s per M records", "plain Spark", "results"), *rows]


def results_text(command: str, costs: Sequence[Cost], of_spark: Mapping[str, float], records: int) -> str:
    """The part of RESULTS.md about NEXMark."""
    return f"""\
## NEXMark

{written_by(command)}

{machine_text()}

{records:,} records of the auction house (docs/nexmark.md) at 10,000 a second of event time, which come
up to {DISORDER_MS // 1000} s late; slices of {SLICE_RECORDS:,}. The engine alone, at the desk: one process decodes the
records, computes and makes the documents; no log, no Spark, no store. CPU-seconds are user and system
time, per million records that come in, of whichever kind. All results equal the oracle's.

Plain Spark reads the same records from files of {SLICE_RECORDS:,}, one a batch, keeps its state in memory, and makes each
result a text in JSON, which it gives to nobody (`benchmarks/nexmark/spark.sql`). Its cost is what a run over three
times as many records takes more than one over {records:,}, so without its start. Over a small log its results equal
the oracle's, too. Q12 goes by the time of a log, which files don't have; Spark refuses Q4 and Q9, which have a join by time in
front of a window.

{markdown(cost_rows(costs, of_spark))}
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark", description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS, help=f"how many records (default {RECORDS})")
    parser.add_argument("--query", action="append", choices=NAMES, help="only this one; may be given several times")
    parser.add_argument("--without-spark", action="store_true", help="measure the desk alone")
    parser.add_argument(
        "--output",
        type=Path,
        help=f"the file for the table (default {RESULTS.name}; none where only a part of all is measured)",
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
