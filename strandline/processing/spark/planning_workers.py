"""The Python processes in which Spark asks a data source for its plan, and which nothing needs once the query runs."""

from __future__ import annotations

import contextlib

import psutil
from pyspark.sql import SparkSession

_MODULES = "pyspark.sql.worker."
"""The workers that plan for Spark: `lookup_data_sources`, `create_data_source` and `plan_data_source_read`."""


def end_planning_workers(spark: SparkSession) -> int:
    """End them and return how many there were. To be called where no query of the session is being planned.

    Spark itself ends them when they were idle for a minute: until then they hold about 170 MB. It forks new ones when it
    plans another query, from daemons that stay.
    """
    ended = 0
    for daemon in _children_of(spark.sparkContext._gateway.proc.pid):  # type: ignore[union-attr]
        if _plans(daemon):
            for worker in _children_of(daemon.pid):
                with contextlib.suppress(psutil.NoSuchProcess):  # Spark has ended it
                    worker.kill()
                    ended += 1
    return ended


def _children_of(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children()
    except psutil.NoSuchProcess:
        return []


def _plans(process: psutil.Process) -> bool:
    try:
        return any(argument.startswith(_MODULES) for argument in process.cmdline())
    except psutil.Error:
        return False  # it has ended
