"""The Python processes in which Spark plans a query on a data source. Nothing needs them while the query runs."""

from __future__ import annotations

import contextlib

import psutil
from pyspark.sql import SparkSession

_MODULES = "pyspark.sql.worker."
"""The workers that plan for Spark: `lookup_data_sources`, `create_data_source` and `plan_data_source_read`."""


def end_planning_workers(spark: SparkSession) -> int:
    """End these processes, and return their number. Call it only while no query of the session is being planned.

    Each uses about 170 MB. Spark itself ends them only after a minute without work. For another query, it forks new ones from
    daemons, which stay.
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
