"""The guarantees of the ledger for leases, on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from strandline.core.errors import Fenced, NotFound
from strandline.ledger.database import Database
from strandline.ledger.ledger import Ledger
from strandline.ledger.progress import RunRequest
from strandline.ledger.states import JobState, LeaseRow
from tests.support.ledgers import a_checkpoint, a_slice, run_sql
from tests.support.waiting import stretched, wait_until
from tests.support.warm_processes import WARM

JOBS_A_MEETING = 10
LONG_MS = 60_000
SHORT_MS = 300


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    opened = Ledger.open(ledger_url)
    opened.submit_job("power", "", {})
    yield opened
    opened.close()


def claim(ledger: Ledger, holder: str, length_ms: int = LONG_MS, job: str = "power") -> LeaseRow:
    claimed = ledger.claim_lease(job, holder, length_ms)
    assert claimed is not None
    return claimed[0]


def let_run_out(ledger_url: str) -> None:
    run_sql(ledger_url, "UPDATE leases SET until_ms = 1")


def clock_ms(ledger_url: str) -> int:
    database = Database(ledger_url)
    with database.reading("ask the time") as connection:
        found = int(connection.execute(sa.select(database.clock_ms())).scalar_one())
    database.close()
    return found


def test_one_service_leads_and_the_other_does_not(ledger: Ledger) -> None:
    ledger.announce_service("a", "http://a:1", "/data/a", LONG_MS)
    assert [job.name for job in ledger.free_jobs("b")] == ["power"]
    lease = claim(ledger, "a")
    assert (lease.holder, lease.epoch, lease.address, lease.data_dir) == ("a", 1, "http://a:1", "/data/a")
    assert lease.until_ms == lease.granted_ms + LONG_MS
    assert ledger.claim_lease("power", "b", LONG_MS) is None
    assert ledger.free_jobs("b") == []
    assert ledger.leases() == {"power": lease}
    assert lease.is_held


def test_a_job_that_does_not_exist_is_led_by_nobody(ledger: Ledger) -> None:
    with pytest.raises(NotFound):
        ledger.claim_lease("none", "a", LONG_MS)


@pytest.mark.guarantee("G80")
def test_time_is_the_databases(ledger_url: str, ledger: Ledger) -> None:
    """The clocks of the services are a day apart; only the database's counts."""
    database = Database(ledger_url)
    early, late = Ledger(database, lambda: 0), Ledger(database, lambda: 2 * int(time.time() * 1000))
    before_ms = clock_ms(ledger_url)
    lease = claim(early, "early")
    assert before_ms <= lease.granted_ms <= clock_ms(ledger_url)
    assert abs(lease.granted_ms - time.time() * 1000) < stretched(5_000), (
        "both databases of the tests are on this machine"
    )
    assert late.claim_lease("power", "late", LONG_MS) is None
    assert late.free_jobs("late") == []
    database.close()


def test_a_lease_runs_out_by_itself(ledger: Ledger) -> None:
    began = time.monotonic()
    claim(ledger, "a", SHORT_MS)
    free = wait_until(lambda: ledger.free_jobs("b"), bool, "free")
    assert SHORT_MS / 1000 - 0.05 <= time.monotonic() - began < SHORT_MS / 1000 + stretched(5)
    assert 0 <= free[0].free_for_ms < stretched(5_000)
    assert not ledger.leases()["power"].is_held
    assert claim(ledger, "b").epoch == 2


def test_a_renewed_lease_goes_on(ledger: Ledger) -> None:
    lease = claim(ledger, "a", SHORT_MS)
    for _ in range(6):
        time.sleep(SHORT_MS / 3000)  # sleeps: the database's clock itself is what is tested
        assert ledger.renew_leases("a", {"power": lease.epoch}, SHORT_MS) == {"power"}
        assert ledger.claim_lease("power", "b", LONG_MS) is None
    now = ledger.leases()["power"]
    assert (now.epoch, now.granted_ms) == (1, lease.granted_ms)
    assert now.until_ms >= lease.until_ms + SHORT_MS


def test_a_lease_that_ran_out_and_that_nobody_took_can_be_renewed(ledger: Ledger, ledger_url: str) -> None:
    lease = claim(ledger, "a")
    let_run_out(ledger_url)
    assert ledger.renew_leases("a", {"power": lease.epoch}, LONG_MS) == {"power"}
    assert ledger.claim_lease("power", "b", LONG_MS) is None


def test_a_lease_that_was_taken_over_is_lost_for_good(ledger: Ledger, ledger_url: str) -> None:
    old = claim(ledger, "a")
    let_run_out(ledger_url)
    new, before = ledger.claim_lease("power", "b", LONG_MS) or pytest.fail("not free")
    assert before is not None
    assert (before.holder, before.epoch, new.holder, new.epoch) == ("a", 1, "b", 2)
    assert ledger.renew_leases("a", {"power": old.epoch}, LONG_MS) == set()
    ledger.release_leases("a", {"power": old.epoch})
    assert ledger.leases()["power"] == new


def test_one_of_many_is_lost_and_the_others_are_renewed(ledger: Ledger, ledger_url: str) -> None:
    for job in ("power", "heat", "wind"):
        ledger.submit_job(job, "", {})
        claim(ledger, "a", job=job)
    run_sql(ledger_url, "UPDATE leases SET until_ms = 1 WHERE job = 'heat'")
    claim(ledger, "b", job="heat")
    assert ledger.renew_leases("a", {"power": 1, "heat": 1, "wind": 1}, LONG_MS) == {"power", "wind"}
    assert ledger.renew_leases("a", {}, LONG_MS) == set()


def test_a_lease_that_is_given_back_is_free_at_once(ledger: Ledger) -> None:
    ledger.release_leases("a", {"power": claim(ledger, "a").epoch})
    assert [job.name for job in ledger.free_jobs("b")] == ["power"]
    assert claim(ledger, "b").epoch == 2


def test_a_service_that_starts_again_has_its_leases_under_a_new_epoch(ledger: Ledger) -> None:
    claim(ledger, "a")
    assert [job.name for job in ledger.free_jobs("a")] == ["power"]
    assert claim(ledger, "a").epoch == 2
    assert ledger.renew_leases("a", {"power": 1}, LONG_MS) == set()


@pytest.mark.guarantee("G670")
def test_a_clock_that_was_set_back_keeps_nobody_out(ledger: Ledger, ledger_url: str) -> None:
    """The database's clock was a day ahead when the lease was granted."""
    lease = claim(ledger, "a")
    run_sql(ledger_url, f"UPDATE leases SET until_ms = {lease.until_ms + 86_400_000}")
    assert [job.name for job in ledger.free_jobs("b")] == ["power"]
    assert claim(ledger, "b").epoch == 2


def test_a_clock_that_was_set_back_a_little_takes_no_job_from_a_living_leader(ledger: Ledger, ledger_url: str) -> None:
    """A time server corrects the database's clock by less than a lease."""
    lease = claim(ledger, "a")
    run_sql(ledger_url, f"UPDATE leases SET until_ms = {lease.until_ms + LONG_MS // 2}")
    assert ledger.free_jobs("b") == []
    assert ledger.claim_lease("power", "b", LONG_MS) is None
    assert ledger.renew_leases("a", {"power": 1}, LONG_MS) == {"power"}


@pytest.mark.guarantee(
    "G81",
    "After a takeover, writes of the old leader and of its run are refused.",
    promise="one-leader-and-one-run-write",
)
def test_what_an_old_leader_writes_is_refused(ledger: Ledger, ledger_url: str) -> None:
    old = claim(ledger, "a")
    ledger.move_job("power", JobState.STARTING, lease=old.epoch)
    ledger.begin_run("power", 1, lease=old.epoch)
    let_run_out(ledger_url)
    new = claim(ledger, "b")
    writes: list[Callable[[], object]] = [
        lambda: ledger.move_job("power", JobState.FAILED, lease=old.epoch),
        lambda: ledger.begin_run("power", 2, lease=old.epoch),
        lambda: ledger.end_run("power", 1, "died", lease=old.epoch),
    ]
    for write in writes:
        with pytest.raises(Fenced, match="another control service leads the job"):
            write()
    assert (ledger.job("power").state, ledger.job("power").epoch) == (JobState.STARTING, 1)
    ledger.begin_run("power", 3, lease=new.epoch)
    assert ledger.move_job("power", JobState.RUNNING, lease=new.epoch).epoch == 2


@pytest.mark.guarantee("G81")
@pytest.mark.guarantee(
    "G82",
    "A leader that is killed is replaced within 10 s, and no result is lost, repeated, or wrong.",
    promise="one-leader-and-one-run-write",
)
@pytest.mark.guarantee("G83")
def test_the_run_of_an_old_leader_writes_nothing_after_the_takeover(ledger: Ledger, ledger_url: str) -> None:
    """Not even before the new leader has begun a run of its own."""
    lease = claim(ledger, "a")
    epoch = ledger.begin_run("power", 1, lease=lease.epoch).epoch
    ledger.plan_slice(a_slice(1, epoch))
    let_run_out(ledger_url)
    claim(ledger, "b")
    with pytest.raises(Fenced, match="control service b took the job over"):
        ledger.commit_checkpoint(a_checkpoint(1, epoch))
    assert ledger.last_checkpoint("power") is None
    next_epoch = ledger.begin_run("power", 2).epoch
    ledger.commit_checkpoint(a_checkpoint(1, next_epoch))
    ledger.end_run("power", next_epoch, "stopped")
    with pytest.raises(Fenced, match="was ended"):
        ledger.plan_slice(a_slice(2, next_epoch))


def test_the_run_of_a_service_that_starts_again_is_left_to_it(ledger: Ledger) -> None:
    epoch = ledger.begin_run("power", 1, lease=claim(ledger, "a").epoch).epoch
    claim(ledger, "a")
    assert ledger.runs("power")[-1].outcome is None
    ledger.plan_slice(a_slice(1, epoch))


def test_living_services_are_counted(ledger: Ledger) -> None:
    assert ledger.living_services() == 0
    ledger.announce_service("a", "", "", LONG_MS)
    ledger.announce_service("b", "", "", SHORT_MS)
    ledger.announce_service("a", "", "", LONG_MS)
    assert ledger.living_services() == 2
    wait_until(ledger.living_services, lambda count: count == 1, "alone")
    ledger.announce_service("b", "", "", LONG_MS)
    assert ledger.living_services() == 2
    ledger.withdraw_service("b")
    assert ledger.living_services() == 1


def test_a_service_that_is_long_gone_is_forgotten_unless_it_leads(ledger: Ledger, ledger_url: str) -> None:
    for name in ("idle", "leader"):
        ledger.announce_service(name, "http://x", "/x", LONG_MS)
    claim(ledger, "leader")
    run_sql(ledger_url, "UPDATE control_services SET until_ms = until_ms - 172800000")
    ledger.announce_service("new", "", "", LONG_MS)
    names = run_sql(ledger_url, "SELECT name FROM control_services ORDER BY name")
    assert [name for (name,) in names] == ["leader", "new"]
    assert ledger.leases()["power"].address == "http://x"


def test_the_standing_of_a_job(ledger: Ledger, ledger_url: str) -> None:
    assert ledger.standing("power") == (0, None)
    ledger.begin_run("power", 1, lease=claim(ledger, "a").epoch)
    assert ledger.standing("power") == (1, 1)
    let_run_out(ledger_url)
    claim(ledger, "b")
    assert ledger.standing("power") == (1, 2)
    with pytest.raises(NotFound):
        ledger.standing("none")


def test_the_standings_of_several_jobs(ledger: Ledger, ledger_url: str) -> None:
    for name in ("led", "unled", "deleted"):
        ledger.submit_job(name, "", {})
    ledger.begin_run("led", 1, lease=claim(ledger, "a", job="led").epoch)
    run_sql(ledger_url, "UPDATE jobs SET deleted_ms = 1 WHERE name = 'deleted'")
    found = ledger.standings(["led", "unled", "deleted", "none"])
    assert found == {"led": (1, 1), "unled": (0, None)}
    assert ledger.standings([]) == {}


@pytest.mark.guarantee("G901")
def test_a_run_of_another_leader_does_not_begin_and_the_others_do(ledger: Ledger) -> None:
    ledger.submit_job("other", "", {})
    leases = {name: claim(ledger, "a", SHORT_MS, name).epoch for name in ("power", "other")}
    wait_until(lambda: ledger.claim_lease("power", "b", LONG_MS), lambda claimed: claimed is not None, "taken over")
    begun, refused = ledger.begin_runs([RunRequest(name, 1, lease=epoch) for name, epoch in leases.items()])
    assert {name: type(error) for name, error in refused.items()} == {"power": Fenced}
    assert {name: row.epoch for name, row in begun.items()} == {"other": 1}
    assert ledger.standings(["power", "other"]) == {"power": (0, 2), "other": (1, 1)}


def test_a_restart_is_asked_for_by_counting(ledger: Ledger) -> None:
    assert ledger.job("power").restarts == 0
    assert [ledger.ask_restart("power").restarts for _ in range(2)] == [1, 2]
    with pytest.raises(NotFound):
        ledger.ask_restart("none")


@pytest.mark.guarantee("G1070")
def test_leases_are_claimed_and_released_together(ledger: Ledger, ledger_url: str) -> None:
    for name in ("ours", "expired", "new", "deleted"):
        ledger.submit_job(name, "", {})
    own, gone = claim(ledger, "a", job="ours"), claim(ledger, "b", SHORT_MS, "expired")
    ledger.begin_run("expired", 1, lease=gone.epoch)
    claim(ledger, "b")
    wait_until(lambda: [job.name for job in ledger.free_jobs("c")], lambda free: "expired" in free, "expired")
    run_sql(ledger_url, "UPDATE jobs SET deleted_ms = 1 WHERE name = 'deleted'")
    granted = ledger.claim_leases(["power", "ours", "expired", "new", "deleted", "none"], "a", LONG_MS)
    assert {name: (lease.holder, lease.epoch) for name, (lease, _) in granted.items()} == {
        "ours": ("a", 2),
        "expired": ("a", 2),
        "new": ("a", 1),
    }
    assert {name: before.epoch if before else None for name, (_, before) in granted.items()} == {
        "ours": own.epoch,
        "expired": gone.epoch,
        "new": None,
    }
    assert ledger.leases()["power"].holder == "b"
    assert ledger.runs("expired")[0].message == "control service a took the job over"
    assert ledger.claim_leases([], "a", LONG_MS) == {}
    ledger.release_leases("a", {"ours": 2, "expired": 1, "power": 1})
    assert {name for name, lease in ledger.leases().items() if lease.is_held} == {"power", "expired", "new"}
    ledger.release_leases("a", {})


def test_a_lease_that_is_just_renewed_is_not_free_and_holds_up_no_claim(ledger: Ledger, ledger_url: str) -> None:
    """A renewal locks several leases in any order. A claim that waited for one of them, and held another, could stop both."""
    database = Database(ledger_url)
    if database.is_sqlite:
        pytest.skip("SQLite has one writer at a time")
    ledger.submit_job("other", "", {})
    for job in ("power", "other"):
        claim(ledger, "a", job=job)
    let_run_out(ledger_url)
    with database.writing("renew slowly") as connection:
        connection.execute(sa.text("UPDATE leases SET length_ms = length_ms WHERE job = 'power'"))
        assert set(ledger.claim_leases(["other", "power"], "b", LONG_MS)) == {"other"}
    database.close()
    assert set(ledger.claim_leases(["other", "power"], "b", LONG_MS)) == {"other", "power"}


def _claim_all(url: str, me: str, meeting: Path, report: Path) -> None:
    ledger = Ledger.open(url)
    jobs = [job.name for job in ledger.jobs()]
    other = meeting / ("one" if me == "other" else "other")
    got = {}
    for first in range(0, len(jobs), JOBS_A_MEETING):
        # They meet, so that neither runs ahead, however the database lets them take turns.
        (meeting / me).write_bytes(b"." * (first + 1))
        wait_until(
            lambda at=first: other.exists() and other.stat().st_size > at,  # type: ignore[misc]
            what=f"{other.name} at meeting {first}",
            poll_s=0.001,
        )
        group = jobs[first : first + JOBS_A_MEETING]
        if me == "other" and first // JOBS_A_MEETING % 2:
            # in every second group they start at opposite ends, so each gets some, independent of their speed
            group.reverse()
        for job in group:
            claimed = ledger.claim_lease(job, me, LONG_MS)
            if claimed is not None:
                got[job] = claimed[0].epoch
    report.write_text(json.dumps(got))
    ledger.close()


@pytest.mark.guarantee(
    "G80",
    "One control service leads a job at a time: of concurrent claims, one gets the lease. A lease passes on only "
    "after it was released or has expired by the database's clock.",
    promise="one-leader-and-one-run-write",
)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("jobs", [50, pytest.param(500, marks=pytest.mark.long)])
def test_two_claimers_race_for_each_lease(ledger_url: str, jobs: int, tmp_path: Path) -> None:
    """Each lease is granted to one claimer, at first and again when all have expired."""
    ledger = Ledger.open(ledger_url)
    numbers = "version, epoch, created_ms, updated_ms, restarts, generation, letters_first, version_first"
    columns = f"name, desired, state, message, restores, {numbers}"
    values = "'running', 'created', '', FALSE, 1, 0, 1, 1, 0, 1, 0, 1"
    rows = ", ".join(f"('job-{number:04}', {values})" for number in range(jobs))
    run_sql(ledger_url, f"INSERT INTO jobs ({columns}) VALUES {rows}")
    for epoch in (1, 2):
        meeting = tmp_path / f"meeting-{epoch}"
        meeting.mkdir()
        reports = {me: tmp_path / f"{me}-{epoch}.json" for me in ("one", "other")}
        claimers = [
            WARM.Process(target=_claim_all, args=(ledger_url, me, meeting, report)) for me, report in reports.items()
        ]
        for claimer in claimers:
            claimer.start()
        for claimer in claimers:
            claimer.join(stretched(240))
        assert [claimer.exitcode for claimer in claimers] == [0, 0]
        got = {me: json.loads(report.read_text()) for me, report in reports.items()}
        assert all(got.values()), "neither came too late to race"
        believed = sorted((job, me, its_epoch) for me, jobs in got.items() for job, its_epoch in jobs.items())
        assert believed == sorted((job, lease.holder, epoch) for job, lease in ledger.leases().items())
        assert len(believed) == jobs
        let_run_out(ledger_url)
    ledger.close()
