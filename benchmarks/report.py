"""Measurements as tables for people: on the terminal, and in RESULTS.md with the date and the machine."""

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

from benchmarks.latency import DELAY_MS as LIVE_DELAY_MS
from benchmarks.latency import DEVICES as LIVE_DEVICES
from benchmarks.latency import RECORDS_A_SECOND, Latency, percentile
from benchmarks.measured import Run
from benchmarks.peers.java import SNAPSHOT_EVERY_MS
from benchmarks.throughput import SIDES, STRANDLINE, Plan, Throughput
from benchmarks.works import PARTITIONS, Work
from strandline.services.embedded.artifacts import find_java

Row = Sequence[str]
RESULTS = Path(__file__).with_name("RESULTS.md")
WARM_GOALS = {"W1": 4.5, "W2": 5.0}
COLD_GOAL = 16
"""Maximum CPU-seconds per million records."""
RATE_GOAL = 200_000
"""Minimum records per second on 2 cores."""


def throughput_rows(measured: Throughput, work: Work) -> list[Row]:
    """Return a header and a row for each side. Figures are medians over the repetitions."""
    rows: list[Row] = [
        (
            "side",
            "warm: CPU-s per M records",
            "(least to most)",
            "records/s",
            "driver / JVM / Python CPU-s per M",
            "cold: CPU-s per M records",
            "(least to most)",
            "peak memory, MB",
        )
    ]
    for side, runs in measured.runs[work.name].items():
        warm, cold = list(map(_warm, runs)), list(map(_cold, runs))
        roles = " / ".join(
            f"{statistics.median(run.warm.cpu_s[role] * 1e6 / run.warm.records for run in runs):.1f}"
            for role in ("driver", "jvm", "python")
        )
        rows.append(
            (
                SIDES[side],
                f"{statistics.median(warm):.1f}",
                f"{min(warm):.1f} to {max(warm):.1f}",
                f"{statistics.median(map(_rate, runs)):,.0f}",
                roles,
                f"{statistics.median(cold):.1f}",
                f"{min(cold):.1f} to {max(cold):.1f}",
                f"{statistics.median(sum(run.peak_mb.values()) for run in runs):,.0f}",
            )
        )
    return rows


def goal_summaries(measured: Throughput) -> list[str]:
    """Return sentences about the goals of Strandline, and its share in the CPU time of each other side."""
    summaries = []
    for work, sides in measured.runs.items():
        warm, cold, rate = (
            {side: statistics.median(map(figure, runs)) for side, runs in sides.items()}
            for figure in (_warm, _cold, _rate)
        )
        if STRANDLINE not in sides:
            continue
        goals = [
            (
                f"{warm[STRANDLINE]:.1f} CPU-s per M warm",
                f"at most {WARM_GOALS[work]}",
                warm[STRANDLINE] <= WARM_GOALS[work],
            ),
            (f"{cold[STRANDLINE]:.1f} CPU-s per M cold", f"at most {COLD_GOAL}", cold[STRANDLINE] <= COLD_GOAL),
            (f"{rate[STRANDLINE]:,.0f} records/s", f"at least {RATE_GOAL:,}", rate[STRANDLINE] >= RATE_GOAL),
        ]
        summaries += [
            f"{work}: {found}; the goal of {goal} is {'reached' if reached else 'missed'}."
            for found, goal, reached in goals
        ]
        shares = [
            f"{warm[STRANDLINE] / theirs:.0%} of {SIDES[side]}'s" for side, theirs in warm.items() if side != STRANDLINE
        ]
        if shares:
            summaries.append(f"{work}: warm, Strandline takes {', '.join(shares)} CPU time.")
    return summaries


def _warm(run: Run) -> float:
    return run.warm.cpu_s_per_million


def _cold(run: Run) -> float:
    return run.cold.cpu_s_per_million


def _rate(run: Run) -> float:
    return run.warm.records_a_second


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


def results_text(command: str, throughput: Throughput, latency: Latency | None) -> str:
    """Return the part of RESULTS.md about jobs."""
    works = "\n".join(_work_text(throughput, work) for work in throughput.plan.works)
    return f"""\
## Jobs

{written_by(command)}

{machine_text()}

{_conditions_text(throughput.plan)}

{works}{_latency_text(latency) if latency else ""}"""


def _conditions_text(plan: Plan) -> str:
    bad = f"; {plan.bad_percent:g} % of the records are no JSON and become dead letters" if plan.bad_percent else ""
    return f"""\
{plan.records:,} JSON records of {plan.devices:,} devices in {PARTITIONS} partitions, event time +5 ms per record with up to 3 s
disorder{bad}; delay 10 s; results to a sink that counts. All sides read the same topic, which is filled once, in turn. Each run
is a new process. Figures are medians of {plan.repetitions} runs of each.

The estimator is the same for every side: user and system time of the side's whole process tree, without the broker. *Warm* is
from the moment when {plan.mark:,} records are done to the end of the output, in one run of one job. *Cold* is from the start
of the process to that moment. Records/s are those of the warm part. Memory is the maximum of the whole process tree. Shared
memory counts once.

Every side has as many tasks as the machine has cores, and its JVM a heap of 1 GB and SerialGC. Strandline and Spark use
slices or batches of at most {plan.rows_max:,} records. Hazelcast Jet and Flink run our main programs (`benchmarks/peers`),
exactly once, with a snapshot or checkpoint every {SNAPSHOT_EVERY_MS // 1000} s. Jet keeps it in memory. Flink writes it to the
disk and keeps its state on the heap. Each has one watermark per partition, decodes with Jackson's streaming parser, and
computes windows with the means that its documentation recommends. So does plain Spark.

Results are compared with an independent recomputation in every run. Four values must be equal: the number of results, the
number of their readings, these weighted by the number of the window, and the sum of the results' values. Strandline drains
and Flink's source ends, so both also return the last windows. Spark and Jet leave them open.
"""


def _work_text(measured: Throughput, work: Work) -> str:
    title = f"### Work {work.name}: {work.summary}"
    summaries = "\n".join(summary for summary in goal_summaries(measured) if summary.startswith(work.name))
    return "\n\n".join(filter(None, [title, markdown(throughput_rows(measured, work)), summaries])) + "\n"


def _latency_text(latency: Latency) -> str:
    return f"""
### Latency at {RECORDS_A_SECOND:,} records/s

{LIVE_DEVICES} devices, 1 s tumbling windows, delay {LIVE_DELAY_MS} ms, over the whole platform on this machine: Kafka,
Elasticsearch, control service, HTTP gateway, runner, and the sender. A window is complete when a record with an event time of
at least its end plus the delay is in the log. Its latency counts from the HTTP response to this record's request
until all of its documents are visible. They are requested by `_search` with the default refresh interval of 1 s, and by a GET
by id. With this number of windows, p99 is nearly the slowest. {latency.records:,} records were sent, {latency.late:,} were
late. Results and dead letters account for all.

{markdown(latency_rows(latency))}
"""


def written_by(command: str) -> str:
    return f"Written by `{command}` on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC."


def put_part(results: Path, name: str, text: str) -> None:
    """Write one benchmark's part of the results, and leave the other parts unchanged."""
    whole = results.read_text(encoding="utf-8") if results.exists() else "# Benchmark results\n"
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, found, rest = whole.partition(begin)
    after = rest.partition(end)[2] if found else ""
    results.write_text(f"{before if found else before + chr(10)}{begin}{text}{end}{after}", encoding="utf-8")


def machine_text() -> str:
    """Return processor, cores, memory, and versions, in a sentence."""
    model = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    memory = re.search(r"MemTotal:\s*(\d+) kB", Path("/proc/meminfo").read_text(encoding="utf-8"))
    java = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=True).stderr.splitlines()[0]
    return (
        f"Machine: {model[1] if model else platform.processor()}, {len(os.sched_getaffinity(0))} cores, "
        f"{int(memory[1]) / 2**20 if memory else 0:.0f} GiB of memory, "
        f"load average {os.getloadavg()[2]:.1f} over the last 15 minutes. "
        f"Linux {platform.release()}, Python {platform.python_version()}, {java}, PySpark {version('pyspark')}."
    )


def markdown(rows: Sequence[Row]) -> str:
    """Return the rows as a table in Markdown. The first row is its header."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])
