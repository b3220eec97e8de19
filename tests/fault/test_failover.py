"""Several control services over one ledger, with real runners: leaders and runners are killed and paused."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.failover import Failover, Service, failover
from tests.support.ledgers import run_sql
from tests.support.waiting import Patience, stretched, wait_until

pytestmark = pytest.mark.timeout(900)

LEASE_S = 4.0


@pytest.fixture
def stage(
    request: pytest.FixtureRequest, tmp_path: Path, ledger_url: str, kafka: str, elasticsearch: str
) -> Iterator[Failover]:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name).strip("-").lower()[-40:]
    job = f"f-{name.strip('-')}"
    with failover(tmp_path, ledger_url, kafka, elasticsearch, job, STRANDLINE_LEASE_S=str(LEASE_S)) as made:
        yield made


def two_services(stage: Failover) -> tuple[Service, Service]:
    """The first leads the job, and its run gives results; the second stands by."""
    first, second = stage.start_service(), stage.start_service()
    stage.begin()
    leader = stage.leader()
    assert leader is not None
    return (first, second) if leader is first else (second, first)


def assert_epochs_never_fall(stage: Failover) -> None:
    for epochs in stage.history():
        assert all(before <= after for before, after in pairwise(epochs)), epochs


ON_POSTGRESQL = pytest.mark.parametrize(
    "ledger_url", [pytest.param("sqlite", marks=pytest.mark.long), "postgresql"], indirect=True
)


@pytest.mark.guarantee("G82")
@pytest.mark.long
@ON_POSTGRESQL
def test_a_killed_leader_is_replaced_within_ten_seconds(stage: Failover) -> None:
    leader, other = two_services(stage)
    left_over = leader.family()
    epoch = stage.ledger.job(stage.job).epoch
    killed_at = time.monotonic()
    leader.kill()
    stage.wait_for_leader(other)
    assert time.monotonic() - killed_at < stretched(10)
    wait_until(lambda: set(left_over) & set(leader.family()), lambda alive: not alive, "the old runner ended")
    stage.wait_for_results(epoch + 1)
    assert stage.check() > 0
    assert_epochs_never_fall(stage)
    assert "leader_changed" in [event.kind for event in stage.ledger.events(stage.job)]


@pytest.mark.guarantee("G83")
@pytest.mark.long
@ON_POSTGRESQL
def test_a_leader_that_was_paused_with_its_runner_changes_nothing_when_it_wakes(stage: Failover) -> None:
    """The leader seems to be on another machine: the new one can't reach the processes of the old one."""
    leader, other = two_services(stage)
    epoch = stage.ledger.job(stage.job).epoch
    old_lease = stage.ledger.leases()[stage.job].epoch
    pause_all(stage.ledger_url, leader)
    # The new leader must not find the runners of the old one.
    run_sql(
        stage.ledger_url, "UPDATE control_services SET data_dir = '/elsewhere' WHERE name = :name", name=leader.name
    )
    zombies = leader.family()
    stage.wait_for_leader(other)
    before = stage.wait_for_results(epoch + 1)
    assert set(leader.family()) == set(zombies), "they are all still there"

    leader.signal_all(signal.SIGCONT)
    log = leader.directory / "logs" / f"runner-{stage.job}.log"
    wait_until(log.read_text, lambda text: "job left the pool" in text, "the old run ended", 3 * LEASE_S)
    stage.wait_for_results(before.epoch)
    assert stage.check() > 0
    assert_epochs_never_fall(stage)
    lease = stage.ledger.leases()[stage.job]
    assert (lease.holder, lease.epoch) == (other.name, old_lease + 1), "the old leader did not take it back"
    assert stage.ledger.runs(stage.job)[epoch - 1].outcome == "superseded"
    assert stage.ledger.job(stage.job).epoch == before.epoch
    assert leader.process.poll() is None, "the service itself goes on"


@pytest.mark.guarantee("G85")
@pytest.mark.long
@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("target", ["python", "java"])
def test_a_runner_that_is_paused_is_replaced(stage: Failover, target: str) -> None:
    """The runner exists and does nothing: only its silence shows this. A paused JVM is noticed by its own runner."""
    leader = stage.start_service()
    stage.begin()
    pid = stage.runner(leader)
    os.kill(pid if target == "python" else stage.java_of(pid), signal.SIGSTOP)
    stage.wait_for_results(2)
    assert stage.check() > 0
    assert_epochs_never_fall(stage)


@pytest.mark.long
@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
def test_a_killed_jvm_is_replaced(stage: Failover) -> None:
    leader = stage.start_service()
    stage.begin()
    os.kill(stage.java_of(stage.runner(leader)), signal.SIGKILL)
    stage.wait_for_results(2)
    assert stage.check() > 0


def pause_all(ledger_url: str, service: Service) -> None:
    """Stop the service and all that it started, at a moment when none of them is in a transaction: on SQLite a paused
    one would keep everybody out."""
    patience = Patience("paused outside a transaction", poll_s=0.05)
    while True:
        service.signal_all(signal.SIGSTOP)
        if not ledger_url.startswith("sqlite:///") or _is_free(ledger_url.removeprefix("sqlite:///")):
            return
        service.signal_all(signal.SIGCONT)
        patience.check()
        patience.pause()


def _is_free(path: str) -> bool:
    with closing(sqlite3.connect(path, timeout=0.1, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            return False
        connection.execute("ROLLBACK")
        return True
