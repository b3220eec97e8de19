"""What was measured, as tables for people: on the terminal, and in RESULTS.md with the date and the machine."""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.latency import DELAY_MS, DEVICES, RECORDS_A_SECOND, Latency, percentile
from benchmarks.measured import Pass
from benchmarks.throughput import ROWS_MAX, SPARK_ROCKSDB, STRANDLINE, Throughput
from strandline.services.embedded.artifacts import find_java

Row = Sequence[str]
RESULTS = Path(__file__).with_name("RESULTS.md")


def throughput_rows(measured: Throughput) -> list[Row]:
    """A header and a row for each side and kind of pass; figures are medians over the repetitions."""
    rows: list[Row] = [
        (
            "side",
            "pass",
            "CPU-s per M records",
            "(least to most)",
            "records/s",
            "driver / JVM / Python CPU-s",
            "batches",
        )
    ]
    for side, repetitions in measured.repetitions.items():
        for number, kind in enumerate(("cold", "warm")):
            passes = [repetition[number] for repetition in repetitions]
            costs = [_cost(one, measured.records) for one in passes]
            roles = " / ".join(
                f"{statistics.median(one.cpu_s[role] for one in passes):.1f}" for role in passes[0].cpu_s
            )
            rows.append(
                (
                    side,
                    kind,
                    f"{statistics.median(costs):.1f}",
                    f"{min(costs):.1f} to {max(costs):.1f}",
                    f"{measured.records / statistics.median(one.seconds for one in passes):,.0f}",
                    roles,
                    str(passes[0].batches),
                )
            )
    return rows


def goal_sentence(measured: Throughput) -> str:
    """The warm cost of ours as a share of plain Spark's, and whether that is the goal."""
    ours, theirs = (
        statistics.median(_cost(repetition[1], measured.records) for repetition in measured.repetitions[side])
        for side in (STRANDLINE, SPARK_ROCKSDB)
    )
    verdict = "is reached" if ours <= theirs / 2 else "is missed"
    return f"Warm, Strandline takes {ours / theirs:.0%} of plain Spark's CPU time; the goal of at most 50 % {verdict}."


def latency_rows(measured: Latency) -> list[Row]:
    rows: list[Row] = [("from the HTTP answer to the result", "p50 s", "p99 s", "windows")]
    for name, values in (("searchable", measured.searchable_s), ("readable by id", measured.readable_s)):
        rows.append((name, f"{percentile(values, 50):.2f}", f"{percentile(values, 99):.2f}", str(len(values))))
    answers = measured.answer_s
    rows.append(
        (
            "(the HTTP answer itself)",
            f"{percentile(answers, 50):.3f}",
            f"{percentile(answers, 99):.3f}",
            f"{len(answers)} requests",
        )
    )
    return rows


def show(rows: Sequence[Row], title: str, console: Console) -> None:
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name)
    for row in rows[1:]:
        table.add_row(*row)
    console.print(table)


def results_text(command: str, throughput: Throughput, latency: Latency) -> str:
    """The part of RESULTS.md about jobs."""
    repetitions = len(throughput.repetitions[STRANDLINE])
    return f"""\
## Jobs

{written_by(command)}

{machine_text()}

### Work W1: {throughput.records:,} records

JSON records of 1,000 devices in 4 partitions, event time +5 ms a record with up to 3 s disorder; 10 s tumbling count and
avg a device, delay 10 s; then 1 min tumbling sum of counts and max of averages; results to a sink that counts.

For every side: batches of at most {ROWS_MAX:,} records, `local[*]`, a heap of 1 GB, SerialGC, as many shuffle partitions as
cores. The sides ran by turns over one filled topic, each time in a new process; figures are medians of {repetitions} such
processes. *Cold* is the first pass of a process, from the process's start on, with the start of the Spark session. *Warm*
is the second pass in it. CPU time is user and system time of the side's whole process tree, without the broker.

The number of results, the records they account for and the sum of their maxima equal those of an independent
recomputation in every pass. Strandline also closes the last windows (it drains); plain Spark leaves them open.

{markdown(throughput_rows(throughput))}

{goal_sentence(throughput)}

### Latency at {RECORDS_A_SECOND:,} records/s

{DEVICES} devices, 1 s tumbling windows, delay {DELAY_MS} ms, over the whole platform on this machine: Kafka, Elasticsearch,
control service, HTTP gateway, runner, and the sender. A window's latency counts from the HTTP answer to the first request
that holds a record with an event time of at least the window's end plus the delay, until all of its documents are visible:
to `_search` with the default refresh interval of 1 s, and to a GET by id. With this many windows, p99 is nearly the
slowest. {latency.records:,} records were sent, {latency.late:,} were late; results and dead letters account for all.

{markdown(latency_rows(latency))}
"""


def written_by(command: str) -> str:
    return f"Written by `{command}` on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC."


def put_part(results: Path, name: str, text: str) -> None:
    """Write one benchmark's part of the results and leave the parts of the others as they are."""
    whole = results.read_text(encoding="utf-8") if results.exists() else "# Benchmark results\n"
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, found, rest = whole.partition(begin)
    after = rest.partition(end)[2] if found else ""
    results.write_text(f"{before if found else before + chr(10)}{begin}{text}{end}{after}", encoding="utf-8")


def machine_text() -> str:
    """Processor, cores, memory and versions, in a sentence."""
    model = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    memory = re.search(r"MemTotal:\s*(\d+) kB", Path("/proc/meminfo").read_text(encoding="utf-8"))
    java = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=True).stderr.splitlines()[0]
    return (
        f"Machine: {model[1] if model else platform.processor()}, {len(os.sched_getaffinity(0))} cores, "
        f"{int(memory[1]) / 2**20 if memory else 0:.0f} GiB of memory, "
        f"load average {os.getloadavg()[2]:.1f} over the last 15 minutes. "
        f"Linux {platform.release()}, Python {platform.python_version()}, {java}, PySpark {version('pyspark')}."
    )


def _cost(one: Pass, records: int) -> float:
    return one.cpu_total_s * 1e6 / records


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table in a document; the first is its header."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])
