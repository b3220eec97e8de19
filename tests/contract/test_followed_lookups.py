"""The ledger's data about lookups whose sources are followed, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from strandline.core.errors import Conflict
from strandline.core.lookups.packed_rows import pack_rows
from strandline.ledger.database import Database
from strandline.ledger.ledger import Ledger
from strandline.ledger.lookups.sources import SourceBegin, SourceRows
from strandline.ledger.states import LookupSourceRow
from tests.support.ledgers import a_checkpoint, a_slice

DOCUMENT: dict[str, Any] = {
    "lookup": "devices",
    "schema": {"device": {"type": "string"}},
    "key": ["device"],
    "source": {"stream": "registry"},
}
MINUTE_MS, HOUR_MS = 60_000, 3_600_000


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    opened = Ledger.open(ledger_url)
    yield opened
    opened.close()


def follow(ledger: Ledger, content: str = "r0", read_for_ms: int = 0, **changed: Any) -> int:
    source = SourceBegin({"registry": {0: 5}}, 0, read_for_ms)
    return ledger.put_lookup("devices", DOCUMENT, content, pack_rows(b""), 0, source=source, **changed).version


def read(content: str | None, offset: int = 9, **changed: Any) -> SourceRows:
    packed = None if content is None else pack_rows(content.encode())
    return SourceRows(content or "r0", packed, 1, {"registry": {0: offset}}, 0, **changed)


def claim(ledger: Ledger, reader: str = "me", hold_ms: int = HOUR_MS) -> LookupSourceRow:
    claimed = ledger.claim_lookup("devices", reader, hold_ms)
    assert claimed is not None
    return claimed


def state(ledger: Ledger) -> LookupSourceRow:
    return ledger.lookup_sources()["devices"]


@pytest.mark.guarantee("G520")
def test_what_is_read_becomes_a_version_if_it_is_another_and_the_next_reading_goes_on_behind_it(ledger: Ledger) -> None:
    assert follow(ledger) == 1
    assert ledger.due_lookups() == ["devices"]
    claimed = claim(ledger)
    assert claimed.position == {"registry": {0: 5}}
    row = ledger.record_lookup_rows("devices", claimed.claim, read("r1", skipped=2, skipped_last="offset 7"), HOUR_MS)
    assert row is not None
    assert (row.version, row.document) == (2, DOCUMENT)
    assert ledger.present_lookups(("devices",)) == {"devices": 2}
    assert ledger.lookup_table("r1") == pack_rows(b"r1")
    found = state(ledger)
    assert (found.position, found.skipped, found.skipped_last) == ({"registry": {0: 9}}, 2, "offset 7")
    assert HOUR_MS - 60_000 < found.due_in_ms <= HOUR_MS
    assert (ledger.due_lookups(), ledger.claim_lookup("devices", "me", 1)) == ([], None)
    ledger.delete_lookup("devices")
    assert (ledger.lookups(), ledger.lookup_sources()) == ([], {})


@pytest.mark.guarantee(
    "G521",
    "One control service reads a lookup's source at a time, another one continues if it crashes, and late results of "
    "a paused one aren't recorded. Versions never go back to older content of the source.",
    promise="one-leader-and-one-run-write",
)
def test_one_reads_at_a_time_and_what_an_older_claim_brings_is_not_recorded(ledger: Ledger) -> None:
    follow(ledger)
    first = claim(ledger, hold_ms=0)  # it has run out already
    second = claim(ledger, "another")
    assert ledger.claim_lookup("devices", "a third", HOUR_MS) is None
    assert ledger.record_lookup_rows("devices", first.claim, read("old", 6), 0) is None
    ledger.record_lookup_failure("devices", first.claim, "too late", 0)
    assert ledger.record_lookup_rows("devices", second.claim, read("new"), 0) is not None
    assert (ledger.lookup("devices").digest, state(ledger).error) == ("new", "")
    third = claim(ledger)
    follow(ledger, content="another document", base=2, floor=None)
    assert ledger.record_lookup_rows("devices", third.claim, read("of the document before"), 0) is None
    assert ledger.lookup("devices").digest == "another document"


@pytest.mark.guarantee("G521")
def test_who_starts_again_reads_at_once_what_it_was_reading(ledger: Ledger) -> None:
    follow(ledger)
    claim(ledger, "me")
    ledger.release_lookups("another")
    assert ledger.due_lookups() == []
    ledger.release_lookups("me")
    assert ledger.due_lookups() == ["devices"]


@pytest.mark.guarantee("G522")
def test_age_and_failure_count_from_what_the_source_said_last(ledger: Ledger) -> None:
    follow(ledger, read_for_ms=HOUR_MS)
    before = claim(ledger, hold_ms=HOUR_MS)
    assert before.failing_ms is None
    assert before.age_ms >= HOUR_MS
    ledger.record_lookup_failure("devices", before.claim, "no answer", 0)
    failing = claim(ledger)
    ledger.record_lookup_failure("devices", failing.claim, "no answer yet", 0, is_torn=True)
    found = state(ledger)
    assert found.failing_ms is not None
    assert (found.error, found.position, found.age_ms >= HOUR_MS) == ("no answer yet", None, True)
    ledger.record_lookup_rows("devices", claim(ledger).claim, read(None, is_current=False), 0)
    assert state(ledger).age_ms >= HOUR_MS, "it was not read to its end"
    ledger.record_lookup_rows("devices", claim(ledger).claim, read(None), 0)
    assert state(ledger).age_ms < HOUR_MS
    assert (state(ledger).failing_ms, state(ledger).error, ledger.lookup("devices").version) == (None, "", 1)


def read_another(ledger: Ledger) -> None:
    """Read other rows, which become a version."""
    version = ledger.lookup("devices").version + 1
    ledger.record_lookup_rows("devices", claim(ledger, hold_ms=0).claim, read(f"r{version}"), 0)


def commit(ledger: Ledger, epoch: int, number: int, version: int) -> None:
    ledger.plan_slice(a_slice(number, epoch, "j", lookup_versions={"devices": version}))
    ledger.commit_checkpoint(a_checkpoint(number, epoch, "j"))


@pytest.mark.guarantee("G525")
def test_versions_of_a_source_that_no_replay_needs_go_with_their_rows(ledger: Ledger) -> None:
    """Versions that a slice used stay, for any number of newer ones."""
    follow(ledger)
    ledger.submit_job("j", "", {"pipeline": "j"}, lookups={"devices": 1})
    epoch = ledger.begin_run("j", 1).epoch
    for number in range(1, 5):
        while ledger.lookup("devices").version < 10 * number:
            read_another(ledger)
        commit(ledger, epoch, number, 10 * number)
    assert list(ledger.lookup_history("devices")) == list(range(10, 41)), "the oldest slice says 10"
    assert list(ledger.lookup_history("devices", 3)) == [38, 39, 40]
    ledger.raise_floor("j", 1, 3, 100)
    assert (ledger.lookup_floor("devices"), list(ledger.lookup_history("devices"))) == (30, list(range(30, 41)))
    assert ledger.lookup_digests("devices", 39) == {39: "r39", 40: "r40"}
    assert ledger.lookup_version("devices", 30).digest == "r30"
    assert ledger.lookup_documents("devices") == [DOCUMENT]
    assert ledger.lookup_table("r30") == pack_rows(b"r30")


@pytest.fixture
def minutes(ledger_url: str) -> Iterator[tuple[Ledger, list[int]]]:
    """Yield a ledger, and the list with the minutes that its clock shows."""
    Ledger.migrate(ledger_url)
    database, now = Database(ledger_url), [0]
    yield Ledger(database, lambda: now[0] * MINUTE_MS), now
    database.close()


@pytest.mark.guarantee(
    "G525",
    "Versions of a source are limited to the rate at which the ledger may grow. They are removed with their rows if "
    "no replay needs them, but at the earliest an hour after their replacement. A slice whose version was removed "
    "isn't recorded.",
    promise="stored-data-is-bounded",
)
def test_versions_that_no_slice_names_go_though_a_job_rests_or_is_quiet(minutes: tuple[Ledger, list[int]]) -> None:
    """Every five minutes the source has other rows. The job cuts two slices, and none for hours between them and after."""
    ledger, now = minutes
    follow(ledger)
    ledger.submit_job("j", "", {"pipeline": "j"}, lookups={"devices": 1})
    epoch = ledger.begin_run("j", 1).epoch
    commit(ledger, epoch, 1, 1)
    for version in range(2, 101):
        now[0] += 5
        read_another(ledger)
        if version == 51:
            commit(ledger, epoch, 2, 51)
    assert list(ledger.lookup_history("devices")) == [1, 51, *range(88, 101)], "what was in force an hour ago stays"
    for version in (1, 51, 88, 100):
        ledger.lookup_table(ledger.lookup_version("devices", version).digest)
    commit(ledger, epoch, 3, 100)
    ledger.raise_floor("j", 1, 2, 100)
    assert list(ledger.lookup_history("devices")) == [51, *range(88, 101)]


@pytest.mark.guarantee("G525")
def test_a_version_that_was_just_replaced_stays_for_who_has_asked_for_it(minutes: tuple[Ledger, list[int]]) -> None:
    """For an hour after it was replaced, however long it was in force. Who is held up for longer is refused."""
    ledger, now = minutes
    follow(ledger)
    ledger.submit_job("j", "", {"pipeline": "j"}, lookups={"devices": 1})
    epoch = ledger.begin_run("j", 1).epoch
    commit(ledger, epoch, 1, 1)
    now[0] = 1
    read_another(ledger)
    asked = ledger.present_lookups(("devices",))
    for now[0] in range(1000, 1020):
        read_another(ledger)
    ledger.plan_slice(a_slice(2, epoch, "j", lookup_versions=asked))
    ledger.commit_checkpoint(a_checkpoint(2, epoch, "j"))
    asked = {"devices": 3}
    for now[0] in range(1100, 1140):
        read_another(ledger)
    with pytest.raises(Conflict, match="does not keep version 3 of lookup devices any more"):
        ledger.plan_slice(a_slice(3, epoch, "j", lookup_versions=asked))
    ledger.plan_slice(a_slice(3, epoch, "j", lookup_versions=ledger.present_lookups(("devices",))))


def test_a_version_of_the_source_is_no_change_of_the_document_that_others_were_checked_against(ledger: Ledger) -> None:
    follow(ledger)
    ledger.record_lookup_rows("devices", claim(ledger).claim, read("r1"), 0)
    ledger.submit_job("j", "", {"pipeline": "j"}, lookups={"devices": 1})
    assert ledger.job_version("j").lookup_versions == {"devices": 2}
    assert follow(ledger, content="r2", base=1, floor=2) == 3
    other = {**DOCUMENT, "source": {"stream": "another"}}
    assert ledger.put_lookup("devices", other, "r3", pack_rows(b""), 0, base=3, floor=2).version == 4
    with pytest.raises(Conflict):
        ledger.submit_job("k", "", {"pipeline": "k"}, lookups={"devices": 3})
    with pytest.raises(Conflict):
        ledger.put_lookup("devices", other, "r5", pack_rows(b""), 0, base=3, floor=2)


@pytest.mark.guarantee("G521")
def test_rows_that_were_replaced_while_others_were_read_do_not_come_back(ledger: Ledger) -> None:
    follow(ledger)
    other = {**DOCUMENT, "max_age": "1h"}
    follower = claim(ledger)
    older = ledger.claim_lookup("devices", "an apply", HOUR_MS, at_once=True)
    assert older is not None
    assert ledger.record_lookup_rows("devices", follower.claim, read("newer"), 0) is None
    assert ledger.due_lookups() == []
    newer = ledger.claim_lookup("devices", "another apply", HOUR_MS, at_once=True)
    assert newer is not None
    for content in ("older", "r0"):
        with pytest.raises(Conflict, match="Another process has read the source of lookup"):
            ledger.put_lookup("devices", other, content, pack_rows(b""), 0, base=1, claim=older.claim)
    ledger.release_claim("devices", older.claim)
    assert ledger.due_lookups() == []
    assert ledger.put_lookup("devices", other, "newest", pack_rows(b""), 0, base=1, claim=newer.claim).version == 2
    ledger.release_claim("devices", newer.claim)
    assert ledger.claim_lookup("another", "an apply", HOUR_MS, at_once=True) is None


def test_a_lookup_whose_document_has_rows_again_is_followed_no_more(ledger: Ledger) -> None:
    follow(ledger)
    claimed = claim(ledger)
    with_rows = {name: value for name, value in DOCUMENT.items() if name != "source"}
    assert ledger.put_lookup("devices", with_rows, "rows", pack_rows(b""), 0, base=1).version == 2
    assert ledger.lookup_sources() == {}
    assert ledger.record_lookup_rows("devices", claimed.claim, read("late"), 0) is None
    with pytest.raises(Conflict):
        ledger.put_lookup("devices", with_rows, "other", pack_rows(b""), 0, base=1)
