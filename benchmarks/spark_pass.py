"""The other side of W1: `python -m benchmarks.spark_pass`. Plain Spark Structured Streaming with its Kafka connector."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.measured import measure
from benchmarks.work_w1 import STREAM, Outcome

PROVIDERS = {"rocksdb": "RocksDBStateStoreProvider", "memory": "HDFSBackedStateStoreProvider"}


def start_session(jars: str, state: str, scratch: Path) -> SparkSession:
    """Like the session of a runner where that makes a difference for speed: master, heap, collector, shuffle partitions."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_LOCAL_HOSTNAME"] = "localhost"
    spark = (
        SparkSession.builder.appName("plain")
        .master("local[*]")
        .config("spark.jars", jars)
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


def build_query(spark: SparkSession, bootstrap: str, rows_max: int) -> DataFrame:
    """W1 as the documentation of Spark would have one write it."""
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", STREAM)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", rows_max)
        .load()
        .select(F.from_json(F.col("value").cast("string"), "device string, ts long, temp double").alias("record"))
        .select("record.device", F.timestamp_millis("record.ts").alias("ts"), "record.temp")
    )
    tens = (
        records.withWatermark("ts", "10 seconds")
        .groupBy(F.window("ts", "10 seconds"), "device")
        .agg(F.count("*").alias("n"), F.avg("temp").alias("mean"))
    )
    return tens.groupBy(F.window(F.window_time("window"), "1 minute"), "device").agg(
        F.sum("n").alias("n"), F.max("mean").alias("peak")
    )


def run_pass(spark: SparkSession, bootstrap: str, rows_max: int, checkpoint: Path) -> tuple[Outcome, int]:
    """Read the topic from its start to its end; return what came out, and the number of batches."""
    counted: list[tuple[int, int, float]] = []

    def count(results: DataFrame, batch: int) -> None:
        row = results.agg(F.count("*"), F.coalesce(F.sum("n"), F.lit(0)), F.coalesce(F.sum("peak"), F.lit(0.0))).first()
        assert row is not None
        counted.append((row[0], row[1], row[2]))

    query = (
        build_query(spark, bootstrap, rows_max)
        .writeStream.foreachBatch(count)
        .outputMode("append")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    results, readings, peaks = (sum(column) for column in zip(*counted, strict=True))
    return Outcome(int(results), int(readings), float(peaks)), len(counted)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--began", type=float, required=True)
    parser.add_argument("--passes", type=int, required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--rows-max", type=int, required=True)
    parser.add_argument("--jars", required=True)
    parser.add_argument("--state", choices=PROVIDERS, required=True)
    options = parser.parse_args()
    spark = start_session(options.jars, options.state, options.directory)

    def run(number: int) -> tuple[Outcome, int]:
        return run_pass(spark, options.bootstrap, options.rows_max, options.directory / f"checkpoint-{number}")

    measure(options.passes, options.began, run, options.report)
    spark.stop()


if __name__ == "__main__":
    main()
