"""`python -m benchmarks.cluster`: cost of a record on a Spark cluster of 1, 2, and 4 executors, each with one core.

Each number of executors is measured with two sizes of slices. If slices grow with the number of executors, an executor always
has the same work per slice. With the slices of one executor, the difference is the fixed cost of a slice per executor.

Starts its own servers and a standalone cluster in a temporary directory, all on this machine. Prints a table, and writes the
`cluster` part of benchmarks/RESULTS.md. With other options than the defaults, it writes only to the file of `--output`.

CPU time is that of the driver and of the cluster's workers with their child processes. It is measured from the moment when the
first third of the records is done to the end of the run. On a machine with fewer cores than executors, records per second have
no meaning.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from benchmarks.cluster.spark_cluster import spark_cluster
from benchmarks.measured import Run, Snapshot, watch
from benchmarks.process_tree import WatchedTree
from benchmarks.report import RESULTS, Row, machine_text, markdown, put_part, show
from benchmarks.servers import new_stack
from benchmarks.throughput import ROWS_MAX
from benchmarks.works import STREAM_TEXT, W1, Readings
from strandline.core.documents import read_documents
from strandline.core.errors import StrandlineError
from strandline.core.streams.stream import StreamSpec
from strandline.log.topics import Topics
from strandline.services.embedded.addresses import settings_environment
from strandline.services.embedded.stack import Stack

_RECORDS = 12_000_000
_EXECUTORS = (1, 2, 4)
_ROOT = Path(__file__).parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument(
        "--records", type=int, default=_RECORDS, help="number of records of a run; the first third is its cold part"
    )
    parser.add_argument("--executors", type=int, action="append", help="can be repeated (default 1, 2, and 4)")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument(
        "--output", type=Path, help=f"file for the table (default {RESULTS.name}, with the default options)"
    )
    options = parser.parse_args()
    counts = options.executors or list(_EXECUTORS)
    console = Console(soft_wrap=True)
    # Number of executors, records per slice.
    sides = [*((count, count * ROWS_MAX) for count in counts), *((count, ROWS_MAX) for count in counts if count > 1)]
    runs: dict[tuple[int, int], list[Run]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory(prefix="strandline-bench-") as directory:
        stack = new_stack(Path(directory) / "stack", console)
        try:
            readings = _fill(stack, options.records)
            for repetition in range(options.repetitions):
                for count, rows_max in sides:
                    run_directory = Path(directory) / f"{count}-{rows_max}-{repetition}"
                    run = _run(stack, count, rows_max, options.records, run_directory)
                    if not run.outcome.agrees(W1.expected(readings, None)):
                        raise SystemExit(f"{count} executors returned {run.outcome}, which is wrong")
                    runs[count, rows_max].append(run)
                    console.print(
                        f"{count} executors, slices of {rows_max:,}: {run.warm.cpu_s_per_million:.2f} CPU-s/M; results right"
                    )
        except (RuntimeError, StrandlineError) as error:
            raise SystemExit(f"the benchmark failed: {error}") from error
        finally:
            stack.stop()
    rows = _rows(runs)
    show(rows, f"Work W1 on a cluster: {options.records:,} records", console)
    is_whole = options == parser.parse_args([])
    if (output := options.output or (RESULTS if is_whole else None)) is not None:
        command = " ".join(["python -m benchmarks.cluster", *sys.argv[1:]])
        text = f"\n## On a cluster\n\n`{command}`. {machine_text()}\n\n{markdown(rows)}\n\n"
        put_part(output, "cluster", text)


def _fill(stack: Stack, records: int) -> Readings:
    bootstrap = stack.start_kafka()
    spec = StreamSpec.parse(read_documents(STREAM_TEXT, "readings.yaml")[0])
    Topics(bootstrap, replication=1, record_bytes_max=1_000_000).ensure_stream_topic(spec)
    readings = Readings.generate(records)
    readings.send(bootstrap)
    return readings


def _run(stack: Stack, executors: int, rows_max: int, records: int, directory: Path) -> Run:
    """Run one job over all records, on a new cluster. Raises RuntimeError if it fails."""
    directory.mkdir()
    with ExitStack() as until_end, (directory / "log").open("w+") as log:
        cluster = until_end.enter_context(spark_cluster(workers=executors))
        changes = {
            "data_dir": directory,
            "ledger_url": f"sqlite:///{directory / 'ledger.sqlite'}",
            "slice_rows_max": min(rows_max, records // 3),
            "spark_master": cluster.master,
            "spark_cores": executors,
            "spark_checkpoint_dir": cluster.checkpoint_dir,
        }
        command = [sys.executable, "-m", "benchmarks.strandline_pass", "--work", W1.name, "--mark", str(records // 3)]
        began_s = time.monotonic()
        process = until_end.enter_context(
            subprocess.Popen(
                [*command, "--directory", str(directory)],
                env=settings_environment(stack.settings.model_copy(update=changes))
                | cluster.driver_environment
                | {"PYTHONPATH": str(_ROOT)},
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        )
        roots = [process.pid, *(cluster.worker_pid(number) for number in range(1, executors + 1))]
        trees = [until_end.enter_context(WatchedTree(root)) for root in roots]
        try:
            assert process.stdout is not None
            return watch(process.stdout, records // 3, began_s, lambda done: _snapshot(trees, done))
        except RuntimeError as error:
            log.seek(0)
            raise RuntimeError(f"{executors} executors: {error}:\n{log.read()[-4000:]}") from error
        finally:
            process.communicate()


def _snapshot(trees: list[WatchedTree], records: int) -> Snapshot:
    by_role: dict[str, float] = {}
    for tree in trees:
        for role, seconds in tree.cpu_by_role().items():
            by_role[role] = by_role.get(role, 0.0) + seconds
    return Snapshot(records, time.monotonic(), by_role)


def _rows(runs: dict[tuple[int, int], list[Run]]) -> list[Row]:
    """Return a header and a row for each number of executors and size of slices. Figures are medians over the repetitions."""
    rows: list[Row] = [
        (
            "executors",
            "records in a slice",
            "warm: CPU-s per M records",
            "(least to most)",
            "against the first",
            "records/s",
            "driver / JVM / Python CPU-s per M",
        )
    ]
    first: float | None = None
    for (count, rows_max), of_side in runs.items():
        costs = [run.warm.cpu_s_per_million for run in of_side]
        cost = statistics.median(costs)
        first = first or cost
        parts = " / ".join(
            f"{statistics.median(run.warm.cpu_s[role] * 1e6 / run.warm.records for run in of_side):.1f}"
            for role in ("driver", "jvm", "python")
        )
        rate = statistics.median(run.warm.records_a_second for run in of_side)
        spread = f"{min(costs):.2f} to {max(costs):.2f}"
        rows.append((str(count), f"{rows_max:,}", f"{cost:.2f}", spread, f"{cost / first:.2f}", f"{rate:,.0f}", parts))
    return rows


if __name__ == "__main__":
    main()
