"""Scratch directories: each is its process's own, ends with it, and is swept when the process could not delete it."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strandline.core.process_identity import start_ticks
from strandline.core.settings import Settings
from strandline.processing.spark import scratch
from strandline.processing.spark.scratch import scratch_checkpoint, scratch_directory, sweep


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data", scratch_dir=tmp_path / "scratch")


class Holder:
    """Another process, and the scratch directory that is its own by name."""

    def __init__(self, settings: Settings, name: str) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with scratch_directory(settings, name) as own:
            pid = self.process.pid
            self.scratch = own.with_name(f"{name}.{pid}.{start_ticks(pid)}")
        (self.scratch / "local").mkdir(parents=True)
        (self.scratch / "local" / "shuffle").write_text("x")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def test_it_ends_with_its_use(settings: Settings) -> None:
    with scratch_directory(settings, "standby") as scratch:
        (scratch / "local").mkdir()
    assert not scratch.exists()


@pytest.mark.guarantee("G112")
def test_what_a_killed_process_left_is_swept_and_nothing_else(settings: Settings, tmp_path: Path) -> None:
    """The root is shared: another stack keeps what its own dead left, until it sweeps itself."""
    other = settings.model_copy(update={"data_dir": tmp_path / "other"})
    dead, alive, of_other = Holder(settings, "runner-a.b"), Holder(settings, "runner-wind"), Holder(other, "runner-a.b")
    nobodys = dead.scratch.parent / "notes.of.mine"
    nobodys.mkdir()
    try:
        for holder in (dead, of_other):
            holder.kill()
        with scratch_directory(settings, "audit-power") as own:
            assert sweep(settings) == [dead.scratch]
            assert own.exists()
        assert not dead.scratch.exists()
        assert alive.scratch.exists() and of_other.scratch.exists() and nobodys.exists()
        assert sweep(other) == [of_other.scratch]
    finally:
        alive.kill()


def test_a_pid_that_was_given_out_again_is_another_process(settings: Settings) -> None:
    with scratch_directory(settings, "backfill-power") as own:
        name, pid, ticks = own.name.rsplit(".", 2)
        assert (name, int(pid), ticks) == ("backfill-power", os.getpid(), start_ticks(os.getpid()))
        older = own.with_name(f"{name}.{pid}.{int(ticks) - 1}")
        older.mkdir()
        assert sweep(settings) == [older]


def test_a_checkpoint_of_a_query_lies_where_all_its_machines_see_it_and_is_swept_there(
    settings: Settings, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    cluster = settings.model_copy(update={"spark_master": "spark://master:7077", "spark_checkpoint_dir": shared})
    with scratch_directory(settings, "runner-power") as scratch:
        with scratch_checkpoint(settings, scratch / "3", "runner-power-3") as checkpoint:
            assert checkpoint == scratch / "3" / "checkpoint"
        with scratch_checkpoint(cluster, scratch / "3", "runner-power-3") as checkpoint:
            assert checkpoint.is_relative_to(shared / "scratch")
            checkpoint.mkdir(parents=True)
            left = checkpoint.with_name(f"runner-power-2.{os.getpid()}.1")
            left.mkdir()
            assert sweep(cluster) == [left]
            assert checkpoint.exists()
        assert not checkpoint.exists()


def test_a_container_with_the_same_host_name_and_path_keeps_its_own(settings: Settings, tmp_path: Path) -> None:
    """The roots are one shared directory, their data directories are two, and neither sees the other's processes."""
    with scratch_directory(settings, "runner-power") as own:
        of_other = own.with_name("runner-wind.1.1")
        of_other.mkdir()
    settings.data_dir.rename(tmp_path / "of the other container")
    assert sweep(settings) == []
    settings.data_dir.rename(tmp_path / "of this one")
    (tmp_path / "of the other container").rename(settings.data_dir)
    assert sweep(settings) == [of_other]


def test_processes_that_ask_at_once_share_one_stack(settings: Settings) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(lambda _: scratch._stack(settings), range(64)))) == 1
    assert [one.name for one in settings.data_dir.iterdir()] == ["scratch.id"]


def test_there_may_be_nothing_to_sweep(settings: Settings) -> None:
    assert sweep(settings) == []
