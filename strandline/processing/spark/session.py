"""The Spark session of a runner, an audit or a backfill."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from strandline.core.errors import InvalidSettings, SparkUnavailable, StrandlineError
from strandline.core.settings import Settings
from strandline.processing.source.slice_rows import bucket_keys
from strandline.processing.spark import callbacks, worker_daemon
from strandline.processing.spark.class_archive import use_archive
from strandline.processing.spark.cluster import ExecutorWatch, cluster_settings, is_cluster
from strandline.processing.spark.errors import message_of
from strandline.processing.spark.spark_home import use_spark_home

_ON_THIS_MACHINE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Shuffle files lie on this machine and are read once or never: compression and checksums don't pay.
    "spark.shuffle.compress": "false",
    "spark.shuffle.spill.compress": "false",
    "spark.shuffle.checksum.enabled": "false",
    # Connections are authenticated by AES keys of the session's secret, never by SASL. In normal operation there are none.
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.saslFallback": "false",
}

_AUTHENTICATE = "spark.authenticate"


def start_spark(settings: Settings, job: str, scratch: Path, java_options: str | None = None) -> SparkSession:
    """Start and return a Spark session for one job. State is kept in memory: a rewind rebuilds it from the log.

    On a cluster, the session has executors when this returns. `scratch`: directory for temporary files. `java_options`: replace
    the options for the class archive. Raises InvalidSettings if a secret for authenticated connections is missing, and
    SparkUnavailable or StrandlineError if Spark can't be started.
    """
    # The executors of a cluster use the same path: the planner process, next to the driver, is started by the name that they get.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    of_master = cluster_settings(settings) if is_cluster(settings) else _ON_THIS_MACHINE
    if not is_cluster(settings):
        use_spark_home(settings.cache_dir)
    # Spark looks up the machine's name before it reads its settings, and dies where the name has no address.
    os.environ["SPARK_LOCAL_HOSTNAME"] = of_master["spark.driver.host"]
    os.environ["SPARK_LOCAL_IP"] = _address_of(of_master["spark.driver.host"])
    settings_of_spark = {
        "spark.ui.enabled": "false",
        # Otherwise, any local user can store a block at the driver and run code as this user (decision 92). With a local master,
        # Spark draws a secret for each session and keeps it in its memory.
        _AUTHENTICATE: "true",
        "spark.driver.memory": settings.spark_driver_memory,
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(shuffle_partitions(settings)),
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
        # Spark's default starts a process to set the mode of each file, and more to rename it: dozens in a batch. It also writes
        # Hadoop's checksums next to them, which nothing compares: the file system that adds them ignores them when it reads.
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
        **of_master,
    }
    builder = SparkSession.builder.appName(f"strandline-{job}").master(settings.spark_master)
    for name, value in settings_of_spark.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
        callbacks.require_token()
    except (PySparkException, Py4JError) as error:
        if f"{_AUTHENTICATE}.secret" in str(error):
            raise InvalidSettings(
                f"job {job} can't start on {settings.spark_master}: Spark has no secret for {_AUTHENTICATE}; write the secret of "
                f"the cluster as `{_AUTHENTICATE}.secret SECRET` to the spark-defaults.conf in the directory SPARK_CONF_DIR"
            ) from error
        if is_cluster(settings):
            raise SparkUnavailable(
                f"The Spark cluster {settings.spark_master} did not take job {job}: {message_of(error)} The reason is in the "
                "job's runner log, the master's log, or what the executors said (`work/APPLICATION/EXECUTOR/stderr` of a worker)."
            ) from error
        raise StrandlineError(
            f"Spark could not be started for job {job}: {message_of(error)} The output of its Java process is in the job's "
            "runner log. Check that `java -version` says 17 or newer and that memory is free "
            f"(STRANDLINE_SPARK_DRIVER_MEMORY={settings.spark_driver_memory})."
        ) from error
    spark.sparkContext.setLogLevel("ERROR")
    try:
        ExecutorWatch(spark, settings).require_some(within_s=0)  # it has waited for them
    except SparkUnavailable:
        spark.stop()
        raise
    return spark


def shuffle_partitions(settings: Settings) -> int:
    """Return the number of parts into which a job's state is divided: one for each core that the job has."""
    return settings.spark_cores if is_cluster(settings) else len(os.sched_getaffinity(0))


def _address_of(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise InvalidSettings(
            f"STRANDLINE_SPARK_DRIVER_HOST: this machine can't resolve the name '{host}': {error}; set a name that all machines "
            "of the cluster resolve, or an IP address of this machine"
        ) from error


def keys_of_buckets(spark: SparkSession) -> tuple[int, ...]:
    """Return Spark's key of each bucket. There is one bucket for each shuffle partition."""
    partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    return bucket_keys(partitions, partitions)
