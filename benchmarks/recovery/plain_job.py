"""Typical job in plain Spark Structured Streaming: `python -m benchmarks.recovery.plain_job`. It writes the first window of the
work to Elasticsearch by foreachBatch, with ids of Elasticsearch and a checkpoint on disk. On SIGTERM, it reads the remaining
records of the log and ends.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

import httpx
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from benchmarks.peers.spark_pass import start_session
from benchmarks.recovery.work import DELAY_MS

_BULK_ROWS = 1_000
_POLL_S = 0.2


def write_rows(url: str, index: str, rows: Iterable[Row]) -> None:
    """Append the rows of one partition."""
    lines: list[str] = []
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:

        def flush() -> None:
            answer = client.post(
                f"/{index}/_bulk", content="\n".join(lines) + "\n", headers={"content-type": "application/x-ndjson"}
            )
            if answer.status_code != 200 or answer.json()["errors"]:
                raise RuntimeError(f"Elasticsearch refused results: {answer.text[:500]}")
            lines.clear()

        for row in rows:
            lines += ['{"index":{}}', json.dumps({"@timestamp": row.end_ms, "device": row.device, "n": row.n})]
            if len(lines) >= 2 * _BULK_ROWS:
                flush()
        if lines:
            flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--bootstrap", "--stream", "--jars", "--url", "--index"):
        parser.add_argument(name, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    options = parser.parse_args()
    is_over = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        is_over.set()

    signal.signal(signal.SIGTERM, end)
    spark = start_session(options.jars, "memory", options.directory)
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("subscribe", options.stream)
        .option("startingOffsets", "earliest")
        .load()
        .select(F.from_json(F.col("value").cast("string"), "device string, ts long, temp double").alias("record"))
        .select("record.device", F.timestamp_millis("record.ts").alias("ts"), "record.temp")
    )
    seconds = (
        records.withWatermark("ts", f"{DELAY_MS} milliseconds")
        .groupBy(F.window("ts", "1 second"), "device")
        .agg(F.count("*").alias("n"), F.avg("temp").alias("mean"))
        .select(F.unix_millis("window.end").alias("end_ms"), "device", "n", "mean")
    )
    url, index = options.url, options.index

    def write(results: DataFrame, batch: int) -> None:
        results.foreachPartition(lambda rows: write_rows(url, index, rows))

    query = (
        seconds.writeStream.foreachBatch(write)
        .outputMode("append")
        .option("checkpointLocation", str(options.directory / "checkpoint"))
        .start()
    )
    while not is_over.is_set():
        query.awaitTermination(_POLL_S)  # raises the error of the query
    query.processAllAvailable()
    query.stop()


if __name__ == "__main__":
    main()
