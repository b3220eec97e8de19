"""The queries of NEXMark in plain Spark: `python -m benchmarks.nexmark.plain_spark [--records N] [--query q5]`.

Structured Streaming reads the records from files, one per batch, and writes each result as JSON to a sink that discards it.
First, each query runs over a small log, and its results are compared with the oracle's. Then it runs over `--records` and over
three times as many. The cost is the difference of the two runs, so it excludes the start. Prints a line of JSON for each query.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.nexmark.generator import START_MS, Nexmark
from benchmarks.nexmark.oracle import TYPES, Oracle, parts_of
from benchmarks.nexmark.queries import EXAMPLES, OF_SHORT_AUCTIONS, Log, Rows, as_row
from benchmarks.peers.spark_pass import start_session
from benchmarks.process_tree import tree_cpu_s

_VIEWS, QUERIES = parts_of(Path(__file__).with_name("spark.sql"))
"""Query -> stage -> statement with its results."""
_SCHEMA = ", ".join(f"{name} {'string' if pa.types.is_string(kind) else 'bigint'}" for name, kind in TYPES.items())
_DELAY = "4 seconds"
_END_MS = 2 * 86_400_000
"""Event time in ms between the last records, which close all windows, and all others."""
_NOBODY = -1
_LAST = (
    {"kind": "bid", "auction": _NOBODY, "bidder": _NOBODY, "price": 0, "channel": "", "url": "", "extra": ""},
    {"kind": "person", "id": _NOBODY, "name": "", "city": "", "state": ""},
    {"kind": "auction", "id": _NOBODY, "seller": _NOBODY - 1, "category": 0},
)
"""One record of each kind, because Spark evaluates the filters of a query before the time."""
_CHECKED_RECORDS = 2_400
_TIMES = 3


class PlainSpark:
    """Runs queries over logs in a directory."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._directory = directory
        self._runs = 0
        side = spark.read.csv(str(EXAMPLES / "side_input.csv"), header=True, schema="slot bigint, value string")
        side.createOrReplaceTempView("side")

    def write(self, name: str, log: Log, file_records: int) -> Path:
        """Write the log to files of that number of records, in order, and the last records to a file after them."""
        directory = self._directory / name
        directory.mkdir()
        end_ms = max(log.log_ms) + _END_MS
        last = [json.dumps({"date_time": end_ms, **one}).encode() for one in _LAST]
        pieces = [log.lines[first : first + file_records] for first in range(0, len(log.lines), file_records)]
        for number, lines in enumerate([*pieces, last]):
            path = directory / f"{number:05}.ndjson"
            path.write_bytes(b"\n".join(lines) + b"\n")
            os.utime(path, (START_MS // 1000 + number, START_MS // 1000 + number))  # Spark reads the oldest first
        return directory

    def rows(self, query: str, log: Path) -> Rows:
        """Return the results of the query, by stage, for stages with results."""
        found: Rows = {}
        for stage, results in self._stages(query, log):
            rows: Counter[str] = Counter()

            def collect(batch: DataFrame, _number: int, rows: Counter[str] = rows) -> None:
                found = (row.asDict(recursive=True) for row in batch.toLocalIterator())
                rows.update(as_row(row) for row in found if row.get("auction") != _NOBODY)

            self._run(results.writeStream.foreachBatch(collect))
            if rows:
                found[stage] = rows
        return found

    def cpu_s(self, query: str, log: Path) -> float:
        """Return the CPU time of a run, of this process and its descendants."""
        began_s = tree_cpu_s(os.getpid())
        for _, results in self._stages(query, log):
            self._run(results.select(F.to_json(F.struct("*"))).writeStream.format("noop"))
        return tree_cpu_s(os.getpid()) - began_s

    def _stages(self, query: str, log: Path) -> Iterator[tuple[str, DataFrame]]:
        records = self._spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1).json(str(log))
        times = {name: F.timestamp_millis(name) for name in ("date_time", "expires")}
        records.withColumns(times).withWatermark("date_time", _DELAY).createOrReplaceTempView("record")
        for view in filter(str.strip, _VIEWS.split(";")):
            self._spark.sql(view)
        for stage, text in QUERIES[query].items():
            yield stage, self._spark.sql(text.strip().rstrip(";"))

    def _run(self, writer: object) -> None:
        self._runs += 1
        checkpoint = self._directory / f"checkpoint-{self._runs}"
        writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()  # type: ignore[attr-defined]
        shutil.rmtree(checkpoint)


def check(plain: PlainSpark, names: Sequence[str], disorder_ms: int) -> None:
    """Compare the results with the oracle's. Raises RuntimeError if they differ."""
    small = {rate: Log.of(Nexmark(_CHECKED_RECORDS, 3, rate=rate, disorder_ms=disorder_ms)) for rate in (20, 500)}
    oracles = {rate: Oracle(log) for rate, log in small.items()}
    written = {rate: plain.write(f"small-{rate}", log, _CHECKED_RECORDS // 3) for rate, log in small.items()}
    for name in names:
        rate = 500 if name in OF_SHORT_AUCTIONS else 20
        if plain.rows(name, written[rate]) != oracles[rate].rows(name):
            raise RuntimeError(f"{name}: plain Spark's results differ from the oracle's")


def measure(plain: PlainSpark, names: Sequence[str], records: int, file_records: int, disorder_ms: int) -> None:
    """Print the cost of each query."""
    whole = Log.of(Nexmark(_TIMES * records, 1, disorder_ms=disorder_ms))
    logs = [plain.write(f"of-{count}", whole.first(count), file_records) for count in (records, _TIMES * records)]
    for name in names:
        short_s, long_s = (plain.cpu_s(name, log) for log in logs)
        cost = (long_s - short_s) / ((_TIMES - 1) * records) * 1e6
        print(json.dumps({"query": name, "cpu_s_per_million": cost}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark.plain_spark", description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--file-records", type=int, default=50_000)
    parser.add_argument("--disorder-ms", type=int, default=3_000)
    parser.add_argument("--query", action="append", choices=list(QUERIES))
    parser.add_argument("--check", action="store_true", help="only compare with the oracle")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        spark = start_session("", "memory", Path(directory))
        try:
            plain = PlainSpark(spark, Path(directory))
            names = options.query or list(QUERIES)
            check(plain, names, options.disorder_ms)
            if not options.check:
                measure(plain, names, options.records, options.file_records, options.disorder_ms)
        except RuntimeError as error:
            sys.exit(f"the benchmark failed: {error}")
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
