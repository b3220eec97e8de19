"""The home that a runner's JVM lives in."""

from __future__ import annotations

import os
from pathlib import Path

import pyspark
import pytest

from strandline.processing.spark.spark_home import use_spark_home


@pytest.fixture(autouse=True)
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "whatever it is")  # so that the end of the test restores the previous value
    monkeypatch.delenv("SPARK_HOME")


def test_it_has_what_starts_a_jvm_and_no_sources(tmp_path: Path) -> None:
    for _ in range(2):  # a later start finds the links
        os.environ.pop("SPARK_HOME", None)
        use_spark_home(tmp_path)
    home = Path(os.environ["SPARK_HOME"])
    assert (home / "bin" / "spark-submit").exists()
    assert (home / "jars").resolve() == (Path(pyspark.__file__).parent / "jars").resolve()
    assert not (home / "python").exists()


def test_a_home_that_the_environment_names_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    use_spark_home(tmp_path)
    assert os.environ["SPARK_HOME"] == "/opt/spark"
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cant_be_written_makes_a_start_slow_and_no_failure(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.write_text("a file")
    use_spark_home(cache)
    assert "SPARK_HOME" not in os.environ
