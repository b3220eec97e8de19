"""A warm standby: a real Spark session that has run its small query, and waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.failover import Failover, Service, failover
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(900)
OWN_RUNNERS = {"STRANDLINE_STANDBYS": "1", "STRANDLINE_JOBS_PER_POOL": "1"}
"""Only such a service starts a standby before it has a job."""


@pytest.fixture
def stage(tmp_path: Path, kafka: str, elasticsearch: str) -> Iterator[Failover]:
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    with failover(tmp_path, url, kafka, elasticsearch, "stood-by", **OWN_RUNNERS) as made:
        yield made


def wait_for_standby(service: Service) -> tuple[int, Path]:
    """Wait until one is warm; returns its pid and its log."""

    def warm() -> tuple[int, Path] | None:
        for name, pid in service.pids().items():
            log = service.directory / "logs" / f"{name}.log"
            if name.startswith("standby-") and log.exists() and "standing by" in log.read_text(errors="replace"):
                return pid, log
        return None

    found = wait_until(warm, lambda one: one is not None, "a warm standby", 300)
    assert found is not None
    return found


@pytest.mark.long
def test_a_job_starts_on_the_standby(stage: Failover) -> None:
    service = stage.start_service()
    standby, log = wait_for_standby(service)
    warmed = next(line for line in log.read_text().splitlines() if "warmed up" in line)
    assert "batches=3" in warmed, "the small query ran to its end"
    stage.begin()
    assert service.pids()["runner-stood-by"] == standby
    assert "run begins" in (service.directory / "logs" / "runner-stood-by.log").read_text()
    assert stage.check() > 0


@pytest.mark.long
def test_a_standby_ends_with_its_control_service(stage: Failover) -> None:
    """Even when that is killed: the end of its stdin tells it."""
    service = stage.start_service()
    wait_for_standby(service)
    service.kill()
    wait_until(service.family, lambda pids: not pids, "ended", 60)
    assert not list((service.directory / "scratch").glob("*/standby.*"))
