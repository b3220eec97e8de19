"""A Spark session for one bounded batch over the log, as a backfill is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from strandline.core.settings import Settings
from strandline.processing.source.recorded_slices import TASK_ROWS
from strandline.processing.spark.scratch import scratch_directory
from strandline.processing.spark.session import start_spark

_PARTITIONS_MIN, _PARTITIONS_MAX = 4, 2_000


@contextmanager
def batch_spark(settings: Settings, job: str, purpose: str, records: int) -> Iterator[SparkSession]:
    """Yield a new session, and stop it at the end. The number of partitions grows with `records`, so that the memory of a task is
    bounded. `purpose`: one word for the name of the scratch directory.
    """
    with scratch_directory(settings, f"{purpose}-{job}") as scratch:
        spark = start_spark(settings, f"{job}-{purpose}", scratch)
        try:
            # Equal on every machine: each attempt at a backfill must spread its results over the same tasks.
            partitions = min(max(_PARTITIONS_MIN, records // TASK_ROWS), _PARTITIONS_MAX)
            spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
            yield spark
        finally:
            spark.stop()
