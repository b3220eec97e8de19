"""The guarantees of the ledger for notices, on SQLite, on PostgreSQL, and in the simulation's twin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from strandline.core.errors import Fenced, NotFound
from strandline.ledger.ledger import Ledger
from strandline.ledger.notices import MessageRow, NoticeChanges, NoticeRow, ProblemRow, WatermarkRow
from strandline.ledger.states import BackfillState, JobState
from tests.simulation.notices.twin import TwinNotices
from tests.support.ledgers import a_checkpoint, a_slice

DOCUMENT: dict[str, Any] = {"notice": "night", "when": [{"job_failed": {}}]}
LEASE_MS = 20_000
Store = Ledger | TwinNotices


@pytest.fixture(params=["ledger", "twin"])
def store(request: pytest.FixtureRequest, ledger_url: str) -> Iterator[Store]:
    if request.param == "twin":
        if not ledger_url.startswith("sqlite"):
            pytest.skip("the twin has no database")
        yield TwinNotices()
        return
    opened = Ledger.open(ledger_url)
    yield opened
    opened.close()


def a_problem(number: int, **changed: Any) -> ProblemRow:
    values: dict[str, Any] = {
        "notice": "night",
        "number": number,
        "condition": "job_failed",
        "subject": f"job {number}",
        "job": None,
        "cause": 0,
        "since_ms": 1,
        "opened_ms": 2,
        "title": "t",
        "reason": "r",
        "affected": "a",
        "action": "d",
    }
    return ProblemRow(**values | changed)


def a_message(number: int, **changed: Any) -> MessageRow:
    values: dict[str, Any] = {
        "notice": "night",
        "number": number,
        "channel": "mail",
        "kind": "problem",
        "problems": [1],
        "content": {"title": "t"},
        "made_ms": 5,
        "due_ms": 5,
    }
    return MessageRow(**values | changed)


def lead(store: Store, holder: str = "one/1") -> int:
    granted = store.lead_notices(holder, LEASE_MS)
    assert granted is not None
    return granted[0]


def record(store: Store, epoch: int, row: NoticeRow, *messages: MessageRow, **changed: Any) -> None:
    memory = {"problems": 1, "messages": max((one.number for one in messages), default=0)}
    values: dict[str, Any] = {"memory": memory, "event_seen": 0, "problems": [a_problem(1)], "messages": messages}
    store.record_notice(epoch, row, NoticeChanges(**values | changed))


def test_a_notice_is_registered_changed_and_deleted(store: Store) -> None:
    store.record_event("note", "before")
    row = store.put_notice("night", DOCUMENT)
    assert (row.version, row.event_seen, row.memory) == (1, 1, {})
    assert store.put_notice("night", dict(DOCUMENT)) == row
    changed = store.put_notice("night", DOCUMENT | {"limit": 2})
    assert (changed.version, changed.created_ms, changed.revision) == (2, row.created_ms, 2)
    assert store.mute_notice("night", 99, "ops").muted_by == "ops"
    assert store.mute_notice("night", None, "ops").muted_by is None
    record(store, lead(store), store.notice("night"), a_message(1))
    store.delete_notice("night")
    assert store.notices() == [] and store.pending_messages() == []
    for unknown in (store.notice, store.delete_notice):
        with pytest.raises(NotFound, match="strandline notice list"):
            unknown("night")


def test_one_service_leads_until_its_lease_is_given_back(store: Store) -> None:
    first = lead(store)
    assert lead(store) == first and store.lead_notices("two/1", LEASE_MS) is None
    store.release_notices("tw")
    assert store.lead_notices("two/1", LEASE_MS) is None
    store.release_notices("one")
    assert lead(store, "two/1") == first + 1
    row = store.put_notice("night", DOCUMENT)
    with pytest.raises(Fenced):
        record(store, first, row)
    assert store.notice_problems("night") == []


def test_a_look_at_an_older_document_records_nothing(store: Store) -> None:
    row, epoch = store.put_notice("night", DOCUMENT), lead(store)
    store.add_test_messages("night", [("mail", {"title": "test"})])
    with pytest.raises(Fenced, match="was changed in the meantime"):
        record(store, epoch, row, a_message(1))
    assert [one.kind for one in store.pending_messages()] == ["test"]
    record(store, epoch, store.notice("night"), a_message(2))
    assert [one.number for one in store.pending_messages()] == [1, 2]


def test_an_attempt_is_recorded_before_and_after_and_a_new_leader_ends_interrupted_ones(store: Store) -> None:
    row, epoch = store.put_notice("night", DOCUMENT), lead(store)
    record(store, epoch, row, a_message(1), a_message(2))
    first = store.begin_attempt(epoch, a_message(1))
    assert first is not None and store.notice_attempts() == [first]
    store.end_attempt(first, "no answer", 60_000)
    (failed,) = (one for one in store.pending_messages() if one.number == 1)
    assert (failed.error, failed.attempts) == ("no answer", 1) and failed.due_ms >= first.begun_ms + 60_000
    second = store.begin_attempt(epoch, a_message(1))
    assert second is not None and second.number == 2
    store.release_notices("one")
    other = lead(store, "two/1")
    assert all(one.ended_ms is not None for one in store.notice_attempts())
    (due,) = (one for one in store.pending_messages() if one.number == 1)
    assert due.due_ms < failed.due_ms
    with pytest.raises(Fenced):
        store.begin_attempt(epoch, a_message(1))
    store.end_attempt(second, "late failure of the former leader", 60_000)
    assert [one.error for one in store.pending_messages()] == ["no answer", ""]
    store.end_attempt(second, None, 0)
    assert [one.number for one in store.pending_messages()] == [2]
    assert store.begin_attempt(other, a_message(1)) is None


def test_a_summary_replaces_messages_that_are_still_pending(store: Store) -> None:
    row, epoch = store.put_notice("night", DOCUMENT), lead(store)
    record(store, epoch, row, a_message(1), a_message(2), a_message(3))
    sent = store.begin_attempt(epoch, a_message(1))
    assert sent is not None
    store.end_attempt(sent, None, 0)
    assert not store.merge_messages(epoch, a_message(4, kind="summary"), [1, 2])
    assert not store.merge_messages(epoch, a_message(9, kind="summary"), [2, 3])
    assert store.merge_messages(epoch, a_message(4, kind="summary"), [2, 3])
    assert [one.number for one in store.pending_messages()] == [4]
    assert [one.merged_into for one in store.notice_messages("night")] == [None, 4, 4, None]


def test_problems_of_use_are_those_that_are_not_settled_or_were_reported_lately(store: Store) -> None:
    row, epoch = store.put_notice("night", DOCUMENT), lead(store)
    settled = {"reported_ms": 10, "ended_ms": 20, "end_reported_ms": 30}
    problems = [a_problem(1), a_problem(2, **settled), a_problem(3, **settled | {"reported_ms": 15})]
    record(store, epoch, row, problems=problems)
    assert [one.number for one in store.notice_problems("night", since_ms=12)] == [1, 3]
    assert [one.number for one in store.notice_problems("night", limit=2)] == [2, 3]
    store.forget_notices(31)
    assert [one.number for one in store.notice_problems("night")] == [1]


def test_readings_are_replaced_kept_and_forgotten(store: Store) -> None:
    assert store.service_readings() == []
    store.record_readings("south-2", {"host": "south"})
    store.record_readings("north-1", {"host": "north", "disk": {"free_bytes": 1}})
    store.record_readings("south-2", {"host": "south-new"})
    north, south = store.service_readings()
    assert (north.service, north.readings["disk"], south.readings) == (
        "north-1",
        {"free_bytes": 1},
        {"host": "south-new"},
    )
    assert abs(south.at_ms - store.notice_clock_ms()) < 60_000
    store.forget_notices(south.at_ms - 60_000)
    assert len(store.service_readings()) == 2
    store.forget_notices(south.at_ms + 60_000)
    assert store.service_readings() == []


@pytest.mark.guarantee(
    "G824",
    "A failure of a job is recorded as an event in the transaction that makes the job failed. The same holds for "
    "completed batches and ended backfills.",
    promise="failures-are-reported-with-their-remedy",
)
def test_a_failure_a_batch_and_a_backfill_are_events_of_their_own_transaction(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    ledger.put_stream("turbines", {"stream": "turbines"})
    ledger.submit_job("power", "text", {"pipeline": "power"})
    ledger.move_job("power", JobState.STARTING)
    ledger.move_job("power", JobState.FAILED, "no space")
    ledger.move_job("power", JobState.FAILED, "no space at all")
    ledger.request_backfill("power", 1, (0, None), {}, 0, 0, {})
    ledger.begin_backfill("power", 2)
    ledger.move_backfill("power", 2, BackfillState.FAILED, "no records")
    assert [(event.kind, event.job, event.message) for event in ledger.events()] == [
        ("job_failed", "power", "no space"),
        ("backfill_ended", "power", "backfill 2 of job power is failed: no records"),
    ]
    ledger.close()


def test_the_time_since_which_the_watermark_has_its_value(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    ledger.submit_job("power", "text", {"pipeline": "power"})
    ledger.begin_run("power", pid=4711)
    assert ledger.watermark_since("power") is None
    for number, closes_ms in enumerate((None, 900, 1_900, 1_900, 1_900), 1):
        ledger.plan_slice(a_slice(number))
        ledger.commit_checkpoint(a_checkpoint(number, closes_ms=closes_ms))
        if closes_ms is None:
            assert ledger.watermark_since("power") is None
    assert ledger.watermark_since("power") == WatermarkRow(1_900, 3_600, 60)
    ledger.close()
