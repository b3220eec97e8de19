"""The state of a control service's leases: its share, the remaining time, and when it must stop leading."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from strandline.core.errors import InvalidSettings, LedgerUnavailable
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import FreeJob, LeaseRow
from strandline.services.supervision import leadership as leadership_module
from strandline.services.supervision.leadership import Leadership, ServiceIdentity
from strandline.services.supervision.supervisor import Supervisor
from tests.support.waiting import stretched, wait_until

LEASE_S = 0.6


class LeasingLedger:
    """A ledger that grants every claim, renews the leases that the test names, and can be unavailable or hang."""

    def __init__(self) -> None:
        self.free: dict[str, int] = {}
        self.living = 1
        self.lost: set[str] = set()
        self.deleted: set[str] = set()
        self.is_away = False
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.renewals = 0
        self.announcements = 0
        self.given_back: list[tuple[str, int]] = []
        self.withdrawn = False
        self._epochs: dict[str, int] = {}

    def announce_service(self, name: str, address: str, data_dir: str, length_ms: int) -> None:
        self.announcements += 1
        self.may_answer.wait(stretched(30))
        if self.is_away:
            raise LedgerUnavailable("away")

    def living_services(self) -> int:
        return self.living

    def free_jobs(self, holder: str) -> list[FreeJob]:
        return [FreeJob(name, free_for_ms) for name, free_for_ms in self.free.items()]

    def claim_leases(
        self, names: Collection[str], holder: str, length_ms: int
    ) -> dict[str, tuple[LeaseRow, LeaseRow | None]]:
        granted = [name for name in names if name not in self.deleted]
        self._epochs |= {name: self._epochs.get(name, 0) + 1 for name in granted}
        return {
            name: (LeaseRow(name, holder, self._epochs[name], 0, length_ms, "", "", True), None) for name in granted
        }

    def renew_leases(self, holder: str, held: Mapping[str, int], length_ms: int) -> set[str]:
        self.renewals += 1
        return set(held) - self.lost

    def release_leases(self, holder: str, held: Mapping[str, int]) -> None:
        self.given_back.extend(held.items())

    def withdraw_service(self, name: str) -> None:
        self.withdrawn = True


class Service:
    """A control service over a LeasingLedger; keeps which runners were to be ended, and when."""

    def __init__(self, lease_s: float = LEASE_S) -> None:
        self.ledger = LeasingLedger()
        self.ended: dict[str, float] = {}
        identity = ServiceIdentity("here", "", "")
        self.leadership = Leadership(self.ledger, identity, lease_s, self._end)  # type: ignore[arg-type]

    def _end(self, job: str, why: str) -> None:
        self.ended[job] = time.monotonic()

    def lead(self, *jobs: str) -> None:
        self.ledger.free = dict.fromkeys(jobs, 0)
        wait_until(lambda: self.leadership.claim_free(len(jobs)), bool, "leading")
        self.ledger.free = {}

    def wait_for_renewals(self, count: int) -> None:
        before = self.ledger.renewals
        wait_until(lambda: self.ledger.renewals, lambda now: now >= before + count, "renewed")


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    made.leadership.start()
    yield made
    made.ledger.may_answer.set()
    made.leadership.close()


def test_a_lease_that_is_renewed_lasts(service: Service) -> None:
    service.lead("power")
    service.wait_for_renewals(8)
    assert service.leadership.lease_of("power") == 1
    assert service.ended == {}


def test_a_ledger_that_is_away_is_logged_once_and_that_it_is_back() -> None:
    made = Service()
    with capture_logs() as logs:
        made.leadership.start()
        made.ledger.is_away = True
        tries = made.ledger.announcements
        wait_until(lambda: made.ledger.announcements, lambda now: now >= tries + 5, "tried again")
        made.ledger.is_away = False
        made.lead("power")
        made.wait_for_renewals(2)
        made.leadership.close()
    assert [log["event"] for log in logs if log["action"] == "renew"] == [
        "can't renew the leases",
        "the leases are renewed again",
    ]


def test_nothing_is_claimed_before_the_service_is_known_to_live() -> None:
    made = Service()
    made.ledger.free = {"power": 0}
    assert made.leadership.claim_free(1) == []


@pytest.mark.parametrize(("living", "expected"), [(1, 5), (2, 3), (3, 2), (9, 1)])
def test_a_service_claims_its_share(service: Service, living: int, expected: int) -> None:
    service.ledger.living = living
    service.ledger.free = {f"job-{number}": 0 for number in range(5)}
    claimed = wait_until(lambda: service.leadership.claim_free(5), bool, "claimed")
    assert len(claimed) == expected
    assert service.leadership.claim_free(5) == []


def test_a_job_that_is_deleted_meanwhile_keeps_no_other_from_being_led(service: Service) -> None:
    service.ledger.free, service.ledger.deleted = {"a": 0, "b": 0}, {"a"}
    claimed = wait_until(lambda: service.leadership.claim_free(2), bool, "claimed")
    assert [lease.job for lease, _ in claimed] == ["b"]


@pytest.mark.guarantee(
    "G670",
    "After the ledger's clock was set back, however far, another control service leads the jobs of a lost one. It "
    "does so within one lease's length after it finds them free.",
    promise="one-leader-and-one-run-write",
)
def test_after_the_ledgers_clock_was_set_back_the_jobs_of_a_lost_service_are_claimed_a_lease_later(
    service: Service,
) -> None:
    """The leases, and the lost service itself, seem to last for two more hours.

    A living service renews its leases first.
    """
    service.ledger.living = 2
    service.lead("one")
    service.ledger.free = {"two": -7_200_000, "three": -7_200_000}
    assert service.leadership.claim_free(2) == []
    service.ledger.free = {"two": -7_200_000}  # the leader of the other one lives
    claimed = wait_until(lambda: service.leadership.claim_free(2), bool, "claimed", timeout_s=10 * LEASE_S)
    service.ledger.free = {"three": -7_200_000}
    assert [lease.job for lease, _ in claimed] == ["two"]
    assert service.leadership.claim_free(2) == [], "it is free only since just now"


def test_what_nobody_else_claims_is_claimed_beyond_the_share(service: Service) -> None:
    service.ledger.living = 2
    service.lead("one")
    service.ledger.free = {"other": 100}
    assert service.leadership.claim_free(2) == []
    service.ledger.free = {"other": int(LEASE_S * 1000)}
    assert [lease.job for lease, _ in service.leadership.claim_free(2)] == ["other"]


def test_a_lease_that_another_service_took_ends_its_runner_at_once(service: Service) -> None:
    service.lead("power", "heat")
    service.ledger.lost = {"heat"}
    wait_until(lambda: service.ended, bool, "ended")
    assert list(service.ended) == ["heat"]
    assert service.leadership.lease_of("heat") is None
    assert not service.leadership.holds("heat", 1)
    assert service.leadership.lease_of("power") == 1


@pytest.mark.guarantee(
    "G84",
    "A control service that can't renew its leases ends its runners before another one can start.",
    promise="one-leader-and-one-run-write",
)
@pytest.mark.parametrize("way", ["refuses", "hangs"])
def test_without_renewal_the_runner_is_ended_at_two_thirds_of_the_lease(way: str) -> None:
    service = Service(long_s := stretched(3.0))
    service.leadership.start()
    service.lead("power")
    service.wait_for_renewals(1)
    began = time.monotonic()
    if way == "refuses":
        service.ledger.is_away = True
    else:
        service.ledger.may_answer.clear()
    wait_until(lambda: service.leadership.lease_of("power"), lambda lease: lease is None, "in doubt")
    wait_until(lambda: service.ended, bool, "ended")
    assert long_s / 3 < service.ended["power"] - began < long_s, "before another may begin"
    service.ledger.may_answer.set()
    service.ledger.is_away = False
    service.leadership.close()


def test_after_a_pause_the_runner_waits_for_the_renewal_under_way(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process slept through its lease: it may do nothing for the job, but nothing is ended while it asks."""
    service.lead("power")
    service.ledger.may_answer.clear()
    monkeypatch.setattr(leadership_module, "_PAUSE_S", -1.0)  # every look is as after a pause
    wait_until(lambda: service.leadership.lease_of("power"), lambda lease: lease is None, "in doubt")
    assert service.leadership.holds("power", 1)
    service.ledger.may_answer.set()
    wait_until(lambda: service.leadership.lease_of("power"), lambda lease: lease == 1, "sure again")
    assert service.ended == {}


def test_close_gives_back_what_is_held() -> None:
    made = Service()
    made.leadership.start()
    made.lead("power", "heat")
    made.leadership.drop("heat")
    made.leadership.close()
    assert made.ledger.given_back == [("power", 1)]
    assert made.ledger.withdrawn


def test_a_service_that_resigns_renews_nothing_and_ends_its_runners(service: Service) -> None:
    assert service.leadership.is_alive()
    service.lead("power")
    service.leadership.resign()
    wait_until(lambda: service.ended, bool, "ended")
    wait_until(service.leadership.is_alive, lambda alive: not alive, "no longer ready")


@pytest.mark.parametrize("asked", ["jobs", "free_jobs"])
def test_a_look_that_fails_is_not_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    """The ledger's client reads its secrets again when it connects again, and one can just be replaced."""
    with closing(Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")) as ledger:
        supervisor = Supervisor(ledger, tmp_path)
        monkeypatch.setattr(supervisor._leadership, "_is_announced", True)
        supervisor._look()
        with monkeypatch.context() as patch, capture_logs() as said:
            patch.setattr(ledger, asked, Mock(side_effect=InvalidSettings("the file of a secret is missing")))
            supervisor._look()
        assert [line["event"] for line in said] == ["can't poll the jobs"]
        supervisor._look()
