"""The ledger's data about lookups, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from strandline.core.errors import Conflict, NotFound
from strandline.core.lookups.packed_rows import pack_rows
from strandline.ledger.ledger import Ledger
from strandline.ledger.lifecycle import Origin
from strandline.ledger.states import BackfillState, Desired, JobState, WindowRange
from tests.support.ledgers import a_checkpoint, a_slice

DOCUMENT: dict[str, Any] = {"lookup": "sites", "schema": {"site": {"type": "string"}}, "key": ["site"]}


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    opened = Ledger.open(ledger_url)
    yield opened
    opened.close()


def put(ledger: Ledger, content: str) -> int:
    """Apply these rows; the version that they have."""
    return ledger.put_lookup("sites", DOCUMENT, content, pack_rows(content.encode()), 1).version


def kept(ledger: Ledger, *contents: str) -> set[str]:
    """Return which of the rows the ledger contains."""
    found = set()
    for one in contents:
        try:
            assert ledger.lookup_table(one) == pack_rows(one.encode())
            found.add(one)
        except NotFound:
            pass
    return found


def test_the_same_content_is_the_same_version_and_each_version_stays(ledger: Ledger) -> None:
    assert [put(ledger, one) for one in ("a", "a", "b", "a")] == [1, 1, 2, 3]
    assert {version: row.digest for version, row in ledger.lookup_history("sites").items()} == {1: "a", 2: "b", 3: "a"}
    assert [(row.name, row.version, row.document) for row in ledger.lookups()] == [("sites", 3, DOCUMENT)]
    assert ledger.present_lookups(("sites",)) == {"sites": 3}
    assert kept(ledger, "a", "b") == {"a"}, "no job needs the others"
    for ask in (lambda: ledger.lookup("none"), lambda: ledger.present_lookups(("sites", "none"))):
        with pytest.raises(NotFound, match="There is no lookup none; register it"):
            ask()
    ledger.delete_lookup("sites")
    assert (ledger.lookups(), kept(ledger, "a")) == ([], set())


def commit(ledger: Ledger, epoch: int, number: int, version: int, said: dict[str, int]) -> None:
    ledger.plan_slice(a_slice(number, epoch, "j", version=version, lookup_versions=said))
    ledger.commit_checkpoint(a_checkpoint(number, epoch, "j", version=version))


@pytest.mark.guarantee(
    "G441",
    "The rows of a version stay while a slice that can be replayed uses the version, and are removed with the last of "
    "these slices. Slices from before a job used a lookup use one version forever.",
    promise="stored-data-is-bounded",
)
def test_rows_stay_as_long_as_a_slice_that_may_be_replayed_went_by_them(ledger: Ledger) -> None:
    """The version that a job used before it used the lookup also stays, as long as such slices exist."""
    ledger.submit_job("j", "", {"pipeline": "j"})
    commit(ledger, ledger.begin_run("j", 1).epoch, 1, 1, {})
    put(ledger, "v1")
    put(ledger, "v2")
    ledger.submit_job("j", "", {"pipeline": "j", "uses": "it"}, lookups={"sites": 2})
    epoch = ledger.begin_run("j", 1).epoch
    for number, version in ((2, 2), (3, 3), (4, 3), (5, 4), (6, 4)):
        if version > ledger.lookup("sites").version:
            put(ledger, f"v{version}")
        commit(ledger, epoch, number, 2, {"sites": version})
    names = ("v1", "v2", "v3", "v4")
    assert (kept(ledger, *names), ledger.lookup_floor("sites")) == ({"v2", "v3", "v4"}, 2)
    for floor, left, of_lookup in ((2, "v2 v3 v4", 2), (3, "v3 v4", 3), (4, "v3 v4", 3), (5, "v4", 4)):
        ledger.raise_floor("j", 2, floor, 100)
        assert (kept(ledger, *names), ledger.lookup_floor("sites")) == (set(left.split()), of_lookup), f"floor {floor}"
    assert ledger.jobs_with_lookup("sites") == ["j"]
    with pytest.raises(Conflict, match="is needed by job j"):
        ledger.delete_lookup("sites")


def test_a_job_that_gave_a_lookup_up_needs_it_until_its_slices_are_old(ledger: Ledger) -> None:
    put(ledger, "v1")
    ledger.submit_job("j", "", {"pipeline": "j", "uses": "it"}, lookups={"sites": 1})
    commit(ledger, ledger.begin_run("j", 1).epoch, 1, 1, {"sites": 1})
    ledger.submit_job("j", "", {"pipeline": "j"})
    epoch = ledger.begin_run("j", 1).epoch
    for number in (2, 3):
        commit(ledger, epoch, number, 2, {})
    put(ledger, "v2")
    assert (ledger.lookup_floor("sites"), kept(ledger, "v1", "v2")) == (1, {"v1", "v2"})
    ledger.raise_floor("j", 2, 2, 100)
    assert (ledger.lookup_floor("sites"), kept(ledger, "v1", "v2")) == (None, {"v2"})
    ledger.delete_lookup("sites")


def test_a_backfill_needs_the_lookups_of_its_version_as_long_as_it_is_shown(ledger: Ledger) -> None:
    """The job has given the lookup up. Without it the next backfill could not be shown, and no audit be made."""
    put(ledger, "v1")
    ledger.submit_job("j", "", {"pipeline": "j", "uses": "it"}, lookups={"sites": 1})
    commit(ledger, ledger.begin_run("j", 1).epoch, 1, 1, {"sites": 1})
    backfill = ledger.request_backfill("j", 1, (0, None), {"per_minute": WindowRange(None, 60_000)}, 1, 30, {})
    ledger.move_backfill("j", backfill.generation, BackfillState.CANCELLED)
    ledger.submit_job("j", "", {"pipeline": "j"})
    epoch = ledger.begin_run("j", 1).epoch
    for number in (2, 3):
        commit(ledger, epoch, number, 2, {})
    ledger.raise_floor("j", 2, 2, 100)
    assert ledger.jobs_with_lookup("sites") == ["j"]
    with pytest.raises(Conflict, match="is needed by job j"):
        ledger.delete_lookup("sites")
    ledger.set_desired("j", Desired.STOPPED)
    ledger.move_job("j", JobState.STOPPED)
    ledger.reset_job(ledger.end_runs("j", "reset"), Origin({}, {}))  # its windows are shown no more
    ledger.delete_lookup("sites")


def test_a_job_is_submitted_only_with_the_lookups_that_it_was_checked_against(ledger: Ledger) -> None:
    put(ledger, "v1")
    for version in (0, 2):
        with pytest.raises(Conflict, match="Lookup sites has just got another version"):
            ledger.submit_job("j", "", {"pipeline": "j"}, lookups={"sites": version})
    with pytest.raises(NotFound):
        ledger.job("j")
    ledger.submit_job("j", "", {"pipeline": "j"}, lookups={"sites": 1})
    with pytest.raises(Conflict, match="or another job that uses it"):
        ledger.put_lookup("sites", DOCUMENT, "v2", pack_rows(b""), 0, base=1, floor=None)
    assert ledger.put_lookup("sites", DOCUMENT, "v2", pack_rows(b""), 0, base=1, floor=1).version == 2
