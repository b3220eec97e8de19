"""The Spark session of a runner, an audit or a backfill."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from strandline.core.errors import StrandlineError
from strandline.core.settings import Settings
from strandline.processing.source.slice_rows import bucket_keys
from strandline.processing.spark import worker_daemon
from strandline.processing.spark.class_archive import use_archive
from strandline.processing.spark.errors import sentence_of


def start_spark(settings: Settings, job: str, scratch: Path, java_options: str | None = None) -> SparkSession:
    """A Spark session for one job. State lives in memory: it is rebuilt from the log, never from a disk.

    `java_options` replace those for the class archive. Raises StrandlineError.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Spark looks up the machine's name before it reads its settings, and dies where the name has no address.
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_LOCAL_HOSTNAME"] = "localhost"
    settings_of_spark = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": settings.spark_driver_memory,
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(shuffle_partitions()),
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",  # our idle slices do this, and are recorded
        "spark.sql.streaming.minBatchesToRetain": "2",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "64",  # a row is a blob
        # The JVM moves a few rows a batch: compiling code for them costs more than it saves.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.python.daemon.module": worker_daemon.MODULE,
        "spark.sql.adaptive.enabled": "false",
        # Shuffle files and state lie on this machine and are read once or never: compression and checksums don't pay.
        "spark.shuffle.compress": "false",
        "spark.shuffle.spill.compress": "false",
        "spark.shuffle.checksum.enabled": "false",
        # Spark's default starts a process to set the mode of each file, and more to rename it: dozens in a batch. It also writes
        # Hadoop's checksums beside them, which nothing compares: the file system that adds them ignores them when it reads.
        "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager",
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        # State files are LZ4 blocks, and each block's own checksum is compared when it is read: no other is needed.
        "spark.sql.streaming.stateStore.compression.codec": "lz4",
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
        "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
        "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",
        "spark.ui.showConsoleProgress": "false",
        # What Spark keeps for its own web page, which is off: at two batches a second this adds up.
        "spark.sql.maxPlanStringLength": "1000",
        "spark.sql.ui.retainedExecutions": "4",
        "spark.ui.liveUpdate.period": "-1",
        "spark.ui.retainedJobs": "4",
        "spark.ui.retainedStages": "4",
        "spark.ui.retainedTasks": "100",
        # Else a crashed JVM writes its report into the working directory, which is the user's.
        "spark.driver.extraJavaOptions": f'"-XX:ErrorFile={settings.data_dir}/logs/java-crash-%p.log" '
        f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.io.tmpdir={scratch} -Dderby.system.home={scratch} "
        + (use_archive(settings.cache_dir) if java_options is None else java_options),
    }
    builder = SparkSession.builder.appName(f"strandline-{job}").master(settings.spark_master)
    for name, value in settings_of_spark.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        raise StrandlineError(
            f"Spark could not be started for job {job}: {sentence_of(error)} The output of its Java process is in the job's "
            "runner log. Check that `java -version` says 17 or newer and that memory is free "
            f"(STRANDLINE_SPARK_DRIVER_MEMORY={settings.spark_driver_memory})."
        ) from error
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def shuffle_partitions() -> int:
    """Into how many parts a job's state is cut: one for each core."""
    return len(os.sched_getaffinity(0))


def keys_of_buckets(spark: SparkSession) -> tuple[int, ...]:
    """Spark's key of each bucket: one bucket for each shuffle partition."""
    partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    return bucket_keys(partitions, partitions)
