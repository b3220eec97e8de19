"""The Spark session of the tests that need one in their own process: one for a whole run, since a cold start takes long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from strandline.core.settings import Settings
from strandline.processing.spark.session import start_spark


@pytest.fixture(scope="session")
def spark_of_the_run(class_archive: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Started by the first test that asks. Tests take `spark`, which forgets what they set."""
    directory = tmp_path_factory.mktemp("spark")
    session = start_spark(Settings(data_dir=directory), "tests", directory)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def spark(spark_of_the_run: SparkSession) -> Iterator[SparkSession]:
    """The session of the run. Settings that the tests of a module change are put back at its end."""
    name = "spark.sql.shuffle.partitions"
    before = spark_of_the_run.conf.get(name)
    yield spark_of_the_run
    assert before is not None
    spark_of_the_run.conf.set(name, before)
