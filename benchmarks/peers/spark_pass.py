"""Run of a work in plain Spark Structured Streaming with its Kafka connector: `python -m benchmarks.peers.spark_pass`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.progress import tell_answer, telling_mark
from benchmarks.works import STREAM, W1, WORKS, Outcome, Work

PROVIDERS = {"rocksdb": "RocksDBStateStoreProvider", "memory": "HDFSBackedStateStoreProvider"}


def start_session(jars: str, state: str, scratch: Path) -> SparkSession:
    """Start a session that is like a runner's in all that affects speed: master, heap, collector, shuffle partitions."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_LOCAL_HOSTNAME"] = "localhost"
    spark = (
        SparkSession.builder.appName("plain")
        .master("local[*]")
        .config("spark.jars", jars)
        .config("spark.authenticate", "true")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", f"-XX:+UseSerialGC -Djava.io.tmpdir={scratch}")
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(len(os.sched_getaffinity(0))))
        .config("spark.sql.adaptive.enabled", "false")
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            f"org.apache.spark.sql.execution.streaming.state.{PROVIDERS[state]}",
        )
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def build_query(spark: SparkSession, work: Work, bootstrap: str, rows_max: int) -> DataFrame:
    """Return the work as the documentation of Spark recommends."""
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", STREAM)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", rows_max)
        .load()
        .select(F.from_json(F.col("value").cast("string"), "device string, ts long, temp double").alias("record"))
        .select("record.device", F.timestamp_millis("record.ts").alias("ts"), "record.temp")
        .withWatermark("ts", "10 seconds")
    )
    count_and_mean = (F.count("*").alias("n"), F.avg("temp").alias("mean"))
    if work is not W1:
        return records.groupBy(F.window("ts", "1 minute", "5 seconds"), "device").agg(*count_and_mean)
    tens = records.groupBy(F.window("ts", "10 seconds"), "device").agg(*count_and_mean)
    return tens.groupBy(F.window(F.window_time("window"), "1 minute"), "device").agg(
        F.sum("n").alias("n"), F.max("mean").alias("peak")
    )


def run(spark: SparkSession, work: Work, bootstrap: str, rows_max: int, mark: int, checkpoint: Path) -> Outcome:
    """Read the topic from its start to its end, and return the outcome."""
    counted: list[tuple[int, int, int, float]] = []
    window = F.unix_millis("window.start") / work.every_ms

    def count(results: DataFrame, batch: int) -> None:
        row = results.agg(
            F.count("*"),
            F.coalesce(F.sum("n"), F.lit(0)),
            F.coalesce(F.sum(F.col("n") * window.cast("long")), F.lit(0)),
            F.coalesce(F.sum(work.value), F.lit(0.0)),
        ).first()
        assert row is not None
        counted.append((row[0], row[1], row[2], row[3]))

    query = (
        build_query(spark, work, bootstrap, rows_max)
        .writeStream.foreachBatch(count)
        .outputMode("append")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )

    def records_done() -> int:
        last = query.lastProgress
        return (last["batchId"] + 1) * rows_max if last else 0

    with telling_mark(records_done, mark):
        query.awaitTermination()
    results, readings, windows, values = (sum(column) for column in zip(*counted, strict=True))
    return Outcome(int(results), int(readings), int(windows), float(values))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", choices=WORKS, required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--mark", type=int, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--rows-max", type=int, required=True)
    parser.add_argument("--jars", required=True)
    parser.add_argument("--state", choices=PROVIDERS, required=True)
    options = parser.parse_args()
    spark = start_session(options.jars, options.state, options.directory)
    checkpoint = options.directory / "checkpoint"
    outcome = run(spark, WORKS[options.work], options.bootstrap, options.rows_max, options.mark, checkpoint)
    tell_answer(options.records, outcome)
    spark.stop()


if __name__ == "__main__":
    main()
