"""Settings and checks that only a Spark cluster needs. They concern the address of the driver, a share of the cores, directories
that all machines see, and the same releases everywhere.

A *cluster* is any Spark master but `local`. Executors share with the driver the network and `spark_checkpoint_dir`. Secrets they
find in the environment of their machine.
"""

from __future__ import annotations

import re
import socket
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.core.errors import InvalidSettings, SparkUnavailable
from strandline.core.settings import Settings
from strandline.processing.spark.executor_check import MARK, VARIABLE, Expected, logins_here, versions_here

if TYPE_CHECKING:  # a control service looks after scratch directories, and needs no Spark
    from pyspark.sql import SparkSession

CONNECT_S = 5.0
EXECUTORS_AWAITED_S = 30
"""How long a start waits for its cores before it goes on with those that it got."""
EXECUTORS_GONE_S = 30.0
"""How long a job may be without any executor before its run ends."""
_LOOK_S = 1.0

_LOCAL_MASTER = re.compile(r"local(\[.*\])?")
_STANDALONE_MASTERS = re.compile(r"spark://(.+)")


def is_cluster(settings: Settings) -> bool:
    """Return True if jobs run on executors of a Spark cluster, which can be on other machines."""
    return _LOCAL_MASTER.fullmatch(settings.spark_master) is None


def cluster_settings(settings: Settings) -> dict[str, str]:
    """Return Spark's settings for a session on the cluster.

    Raises InvalidSettings if a setting for a cluster is missing, SparkUnavailable if no master responds.
    """
    own_address = _address_towards_master(settings.spark_master)
    host = settings.spark_driver_host or own_address
    if host is None:
        raise InvalidSettings(
            f"STRANDLINE_SPARK_DRIVER_HOST is missing: the executors of {settings.spark_master} need the name or address at "
            "which they reach this machine."
        )
    marks = {str(directory): _mark(directory) for directory in shared_directories(settings)}
    cores = str(settings.spark_cores)
    return {
        "spark.driver.host": host,
        "spark.cores.max": cores,
        "spark.default.parallelism": cores,
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{EXECUTORS_AWAITED_S}s",
        # A bucket goes back to an executor that was lost and came again, rather than wait for the one that took it over.
        "spark.locality.wait": "200ms",
        "spark.speculation": "false",
        "spark.executor.defaultJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        f"spark.executorEnv.{VARIABLE}": Expected(versions_here(), marks, logins_here()).text(),
    }


def shared_directories(settings: Settings) -> list[Path]:
    """Return the directories that this machine and those of the executors must share. Raises InvalidSettings if none is set."""
    if settings.spark_checkpoint_dir is None:
        raise InvalidSettings(
            f"STRANDLINE_SPARK_CHECKPOINT_DIR is missing: on {settings.spark_master} it must name a directory that this machine "
            "and those of all executors share, at the same path."
        )
    return [one for one in (settings.spark_checkpoint_dir, settings.snapshot_dir) if one is not None]


def snapshot_directory(settings: Settings) -> Path:
    """Return the directory of the snapshots. On a cluster, executors share it. Raises InvalidSettings if it isn't set there."""
    root = shared_directories(settings)[0] if is_cluster(settings) else settings.data_dir
    return settings.snapshot_dir or root / "snapshots"


class ExecutorWatch:
    """Checks that a job on a cluster has executors."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self._spark = spark
        self._master = settings.spark_master if is_cluster(settings) else None
        self._next_look_s = 0.0
        self._missing_since_s: float | None = None

    def require_some(self, within_s: float = EXECUTORS_GONE_S) -> None:
        """Raise SparkUnavailable if there was no executor for `within_s` seconds. Do nothing without a cluster."""
        now_s = time.monotonic()
        if self._master is None or now_s < self._next_look_s:
            return
        self._next_look_s = now_s + _LOOK_S
        if self._count() > 0:
            self._missing_since_s = None
            return
        self._missing_since_s = now_s if self._missing_since_s is None else self._missing_since_s
        if now_s - self._missing_since_s >= within_s:
            raise SparkUnavailable(
                f"The job has had no executor for {within_s:g} s: see that the Spark cluster {self._master} has workers, that "
                f"cores and memory are free there, and that its machines reach {self._spark.conf.get('spark.driver.host')}."
            )

    def _count(self) -> int:
        return int(self._spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1  # one is the driver


def _address_towards_master(master: str) -> str | None:
    """Return this machine's address in its connection to a standalone master. None for another kind of master.

    Raises SparkUnavailable if none of the masters responds.
    """
    masters = _STANDALONE_MASTERS.fullmatch(master)
    if masters is None:
        return None
    failures = []
    for place in masters[1].split(","):
        host, _, port = place.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S) as connection:
                return str(connection.getsockname()[0])
        except (OSError, ValueError) as error:
            failures.append(f"{place}: {error}")
    raise SparkUnavailable(
        f"No Spark master answers ({'; '.join(failures)}): see that it runs, and that STRANDLINE_SPARK_MASTER is right."
    )


def _mark(directory: Path) -> str:
    """Return the content of the file MARK in a shared directory, by which executors recognize the directory. Create the file with
    a random content if it is missing. Raises InvalidSettings if the directory can't be used."""
    mark = directory / MARK
    try:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            with mark.open("x", encoding="ascii") as new:
                new.write(uuid.uuid4().hex)
        except FileExistsError:
            pass  # another job was first; it may be about to write it
        for _ in range(50):
            if text := mark.read_text(encoding="ascii"):
                return text
            time.sleep(0.1)
    except OSError as error:
        raise InvalidSettings(
            f"The directory {directory} for Spark's checkpoints can't be used: {error}. Give the user of this process "
            "the right to write there, or set STRANDLINE_SPARK_CHECKPOINT_DIR to another directory."
        ) from error
    raise InvalidSettings(f"The file {mark} is empty: delete it, and start the job again.")
