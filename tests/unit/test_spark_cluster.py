"""The settings of a session on a Spark cluster, the needs of an executor's machine, and what isn't sent there."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.core.errors import InvalidSettings, SparkUnavailable
from strandline.core.settings import Settings
from strandline.processing.spark.cluster import (
    cluster_settings,
    is_cluster,
    snapshot_directory,
)
from strandline.processing.spark.executor_check import MARK, VARIABLE, Expected, require_expected, versions_here
from strandline.processing.spark.session import shuffle_partitions
from strandline.results.document import DocumentShape
from strandline.results.elasticsearch_writer import ElasticsearchWriter
from tests.support.made_indices import MadeInMemory

SHAPE = DocumentShape("power", "power", "first", 1, (("device", "string"),), (("n", "long"),))
WITH_PASSWORD = "https://canary-user:canary-password@index:9200"


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    """For a master that answers."""
    with socket.create_server(("127.0.0.1", 0)) as master:
        url = f"spark://127.0.0.1:1,127.0.0.1:{master.getsockname()[1]}"
        yield Settings(spark_master=url, spark_cores=3, spark_checkpoint_dir=tmp_path / "shared", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("master", "expected"),
    [("local", False), ("local[2]", False), ("local[*,4]", False), ("spark://a:7077,b:7077", True), ("yarn", True)],
)
def test_a_cluster_is_any_master_but_local(master: str, expected: bool) -> None:
    assert is_cluster(Settings(spark_master=master)) == expected


def test_executors_are_told_the_address_from_which_the_master_is_reached(settings: Settings) -> None:
    told = cluster_settings(settings)
    assert told["spark.driver.host"] == "127.0.0.1"
    assert told["spark.cores.max"] == told["spark.default.parallelism"] == "3"
    assert shuffle_partitions(settings) == 3
    assert told["spark.speculation"] == "false"


def test_the_setting_for_the_address_goes_first(settings: Settings) -> None:
    named = settings.model_copy(update={"spark_driver_host": "driver.example"})
    assert cluster_settings(named)["spark.driver.host"] == "driver.example"


def test_no_master_that_answers(settings: Settings) -> None:
    with pytest.raises(SparkUnavailable, match=r"No Spark master answers \(127.0.0.1:1: .*STRANDLINE_SPARK_MASTER"):
        cluster_settings(settings.model_copy(update={"spark_master": "spark://127.0.0.1:1"}))


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({"spark_checkpoint_dir": None}, "STRANDLINE_SPARK_CHECKPOINT_DIR is missing"),
        ({"spark_master": "yarn"}, "STRANDLINE_SPARK_DRIVER_HOST is missing"),
    ],
)
def test_what_is_missing_is_named(settings: Settings, change: dict[str, object], missing: str) -> None:
    with pytest.raises(InvalidSettings, match=missing):
        cluster_settings(settings.model_copy(update=change))


def test_snapshots_lie_where_all_machines_see_them(settings: Settings, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    assert snapshot_directory(settings) == shared / "snapshots"
    here = settings.model_copy(update={"spark_master": "local[*]"})
    assert snapshot_directory(here) == tmp_path / "snapshots"


def expect(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    """Set the environment that the driver with these settings gives its executors."""
    monkeypatch.setenv(VARIABLE, cluster_settings(settings)[f"spark.executorEnv.{VARIABLE}"])


def test_an_executor_with_the_drivers_releases_and_directory_works(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_expected()  # this process is none
    expect(monkeypatch, settings)
    require_expected()
    expect(monkeypatch, settings)  # a second driver finds the mark of the first
    require_expected()


@pytest.mark.guarantee(
    "G79",
    "On a Spark cluster, a killed executor costs no run and no result. A worker, or a master with a recovery "
    "directory, may be killed and restarted. No password passes through Spark, and an executor that lacks releases, "
    "directory, or secrets fails the job with a message.",
    promise="kills-and-restarts-change-no-result",
)
@pytest.mark.parametrize("name", ["Strandline", "Python", "PySpark", "PyArrow"])
def test_an_executor_with_another_release_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, Expected(versions_here() | {name: "9.8"}, {}).text())
    with pytest.raises(InvalidSettings, match=rf"executor on .* has {name} \S+ instead of 9\.8 in .*: install"):
        require_expected()


@pytest.mark.guarantee("G79")
@pytest.mark.parametrize("there", ["nothing", "another directory"])
def test_an_executor_that_does_not_see_the_drivers_directory_is_refused(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    expect(monkeypatch, settings)
    mark = tmp_path / "shared" / MARK
    mark.unlink()
    if there == "another directory":
        mark.write_text("another")
    with pytest.raises(InvalidSettings, match=r"can't use the driver's directory .*shared: it must be one directory"):
        require_expected()


def test_a_snapshot_directory_of_its_own_must_be_shared_too(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect(monkeypatch, settings.model_copy(update={"snapshot_dir": tmp_path / "snapshots"}))
    (tmp_path / "snapshots" / MARK).unlink()
    with pytest.raises(InvalidSettings, match=r"can't use the driver's directory .*snapshots"):
        require_expected()


def test_the_password_of_the_results_store_does_not_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = ElasticsearchWriter(WITH_PASSWORD, SHAPE, made=MadeInMemory(), documents_max=7)
    sent = pickle.dumps(writer)
    assert b"canary" not in sent
    monkeypatch.setenv("STRANDLINE_ELASTICSEARCH_URL", WITH_PASSWORD)
    assert pickle.loads(sent) == writer


@pytest.mark.parametrize("own", ["https://index:9200", WITH_PASSWORD.replace("index", "other")])
def test_a_machine_without_the_password_says_so(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = pickle.dumps(ElasticsearchWriter(WITH_PASSWORD, SHAPE))
    monkeypatch.setenv("STRANDLINE_ELASTICSEARCH_URL", own)
    with pytest.raises(
        InvalidSettings, match="STRANDLINE_ELASTICSEARCH_URL does not name https://index:9200"
    ) as refused:
        pickle.loads(sent)
    assert "canary" not in str(refused.value)


def test_a_url_without_a_password_needs_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STRANDLINE_ELASTICSEARCH_URL", raising=False)
    writer = ElasticsearchWriter("http://index:9200", SHAPE)
    assert pickle.loads(pickle.dumps(writer)) == writer
