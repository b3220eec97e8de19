"""Logs are bounded in size and number while their processes write on, and what dead processes left is bounded, too."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import pytest

from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.processing.spark.scratch import scratch_directory
from strandline.services.embedded import watcher
from strandline.services.embedded.watcher import bound_logs
from strandline.services.processes.log_files import bound_log, keep_newest
from strandline.services.supervision.housekeeping import Housekeeping
from tests.support.waiting import stretched, wait_until

BYTES_MAX = 64 * 1024


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "logs").mkdir()
    return Settings(data_dir=tmp_path, log_bytes_max=BYTES_MAX, logs_max=2)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")) as opened:
        yield opened


def fill(log: Path, mark: str, size: int = BYTES_MAX + 1) -> None:
    log.write_text(mark * size)


def test_a_log_that_grew_becomes_the_first_of_those_that_are_kept(settings: Settings) -> None:
    log = settings.data_dir / "logs" / "runner-power.log"
    for mark in "abcd":
        fill(log, mark)
        bound_log(log, settings)
        assert log.read_text() == ""
    assert {one.name: one.read_text() for one in log.parent.iterdir() if one != log} == {
        "runner-power.log.1": "d" * BYTES_MAX,
        "runner-power.log.2": "c" * BYTES_MAX,
    }


def test_a_small_log_stays_and_one_that_nobody_wants_older_of_is_emptied(settings: Settings) -> None:
    log = settings.data_dir / "logs" / "control.log"
    bound_log(log, settings)
    fill(log, "a", BYTES_MAX)
    bound_log(log, settings)
    assert log.read_text() == "a" * BYTES_MAX
    fill(log, "a")
    bound_log(log, settings.model_copy(update={"logs_max": 0}))
    assert [(one.name, one.read_text()) for one in log.parent.iterdir()] == [("control.log", "")]


def test_who_writes_writes_on_into_the_same_file(settings: Settings) -> None:
    """A runner, its JVM and its workers do so: they have the file that the control service opened for them."""
    log = settings.data_dir / "logs" / "runner-power.log"
    fill(log, "x")
    script = "import sys; print('before', flush=True); sys.stdin.readline(); print('after', flush=True)"
    with log.open("ab") as output:
        writer = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=output)
    wait_until(lambda: log.read_text().endswith("before\n"), bool, "the first line")
    bound_log(log, settings)
    writer.communicate(b"\n")
    assert log.read_text() == "after\n"
    assert log.with_name("runner-power.log.1").read_text().endswith("xbefore\n")


def copy_on_a_full_disk(file: BinaryIO, copy: BinaryIO, length: int) -> None:
    copy.write(file.read(length // 2))
    raise OSError(errno.ENOSPC, "No space left on device")


def test_on_a_full_disk_a_log_is_emptied_and_what_was_kept_stays(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = settings.data_dir / "logs" / "runner-power.log"
    for mark in "ab":
        fill(log, mark)
        bound_log(log, settings)
    monkeypatch.setattr("shutil.copyfileobj", copy_on_a_full_disk)
    for _ in range(3):
        fill(log, "c")
        bound_log(log, settings)
    assert {one.name: one.read_text()[:1] for one in log.parent.iterdir()} == {
        "runner-power.log": "",
        "runner-power.log.1": "b",
        "runner-power.log.2": "a",
    }
    assert caplog.text.count("the disk is full: the log was emptied") == 3 and str(log) in caplog.text


def test_one_log_that_can_not_be_bounded_keeps_nothing_else_from_it(
    settings: Settings, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logs = settings.data_dir / "logs"
    (logs / "runner-a.log").mkdir()  # larger than it may be, and no file
    fill(logs / "runner-b.log", "x")
    tiny = settings.model_copy(update={"log_bytes_max": 0})
    with scratch_directory(settings, "standby") as own:
        own.with_name(f"standby.{os.getpid()}.1").mkdir()
        Housekeeping(tiny, ledger).look()
        assert [one.name for one in own.parent.iterdir()] == [own.name]
    assert (logs / "runner-b.log").read_text() == ""
    assert f"can't limit the log {logs / 'runner-a.log'}" in caplog.text


def test_the_newest_are_kept(tmp_path: Path) -> None:
    files = [tmp_path / f"java-crash-{number}.log" for number in range(5)]
    for number, one in enumerate(files):
        one.touch()
        os.utime(one, (number, number))
    keep_newest(files, 2)
    assert sorted(one.name for one in tmp_path.iterdir()) == [files[n].name for n in (3, 4)]


@pytest.mark.guarantee(
    "G112",
    "Logs are limited in size and number. Scratch directories of dead processes are deleted, and only those of the "
    "same stack.",
    promise="stored-data-is-bounded",
)
def test_a_control_service_keeps_its_disk_in_order(settings: Settings, ledger: Ledger) -> None:
    logs = settings.data_dir / "logs"
    names = ["runner-power", "backfill-power", "audit-power", "standby-1", "control"]
    for name in names:
        fill(logs / f"{name}.log", "x")
    for number in range(10, 16):
        (logs / f"java-crash-{number}.log").touch()
    with scratch_directory(settings, "standby") as own:
        dead = own.with_name(f"standby.{os.getpid()}.1")
        dead.mkdir()
        Housekeeping(settings, ledger).look()
        assert own.exists() and not dead.exists()
    found = {one.name for one in logs.iterdir()}
    assert {f"{name}.log.1" for name in names[:4]} <= found
    assert "control.log.1" not in found, "another process sees to the log of the control service"
    assert len([name for name in found if name.startswith("java-crash-")]) == 2


def test_snapshots_go_with_their_job(settings: Settings, ledger: Ledger) -> None:
    """Not those of a job that runs, nor what else lies where others may keep theirs."""
    root = settings.data_dir / "snapshots"
    for job in ("gone", "here"):
        ledger.submit_job(job, "", {"pipeline": job})
    for path in (
        "gone/1/checkpoint/state",
        "gone/2/checkpoint",
        "here/1/checkpoint",
        "unknown/1/checkpoint",
        "gone.d/x",
    ):
        (root / path).mkdir(parents=True)
    housekeeping = Housekeeping(settings, ledger)
    housekeeping.look()
    assert len(list(root.iterdir())) == 4
    ledger.delete_job(ledger.end_runs("gone", "deleted"), {})
    housekeeping.look()
    assert sorted(one.name for one in root.iterdir()) == ["gone.d", "here", "unknown"]
    (root / "gone" / "mine").mkdir(parents=True)
    housekeeping.look()
    assert (root / "gone" / "mine").is_dir()


def test_it_goes_on_after_a_failure_and_ends_when_told(
    settings: Settings, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.services.supervision.housekeeping.POLL_INTERVAL_S", 0.01)
    looks = []

    def fail(self: Housekeeping) -> None:
        looks.append(1)
        raise OSError("no space left on device")

    monkeypatch.setattr(Housekeeping, "look", fail)
    with Housekeeping(settings, ledger) as housekeeping:
        wait_until(lambda: len(looks), lambda count: count > 2, "looks")
    assert not housekeeping._thread.is_alive()


@pytest.mark.guarantee("G112")
def test_the_watcher_bounds_the_logs_of_servers_and_gateways(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "LOG_INTERVAL_S", 0.01)
    log = settings.data_dir / "logs" / "kafka.log"
    fill(log, "x")
    no_file = log.with_name("mqtt.log")
    no_file.mkdir()
    tiny = settings.model_copy(update={"log_bytes_max": 0})
    stopping = threading.Event()
    thread = threading.Thread(target=bound_logs, args=([no_file, log], tiny, stopping))
    thread.start()
    try:
        wait_until(lambda: log.stat().st_size, lambda size: size == 0, "begun anew")
    finally:
        stopping.set()
        thread.join(stretched(30))
    assert not thread.is_alive()
