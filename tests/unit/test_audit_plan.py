"""The input and the report of an audit, over a real ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from strandline.core.documents import read_documents
from strandline.core.errors import NotFound
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.ledger.lifecycle import Origin
from strandline.ledger.states import JobState, StreamVersions, WindowRange
from strandline.processing.audit.index_reader import EndRange
from strandline.processing.audit.plan import AuditPlan, plan_audit
from strandline.processing.audit.reconciliation import Kind
from strandline.processing.audit.report import letter_scope
from strandline.processing.backfill.plan import Backfilled, Load
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.source.recorded_slices import cut_tasks
from tests.support.control import HOUR, PIPELINE, STREAM
from tests.support.ledgers import a_checkpoint, a_slice, run_sql

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
HALF_HOUR_MS = HOUR_MS // 2
VERSIONS = {
    1: PIPELINE + HOUR,
    2: PIPELINE.replace("delay: 10s", "delay: 20s") + HOUR,
    3: PIPELINE.replace("max(", "min(") + HOUR,
}
ALL = EndRange()


def pipeline(version: int, _streams: StreamVersions | None = None, text: str | None = None) -> CheckedPipeline:
    return checked(text or VERSIONS[version])


@cache
def checked(text: str) -> CheckedPipeline:
    stream, document = read_documents(f"{STREAM}---\n{text}", "test.yaml")
    return check(PipelineSpec.parse(document), StreamSpec.parse(stream), document)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Yield a ledger of twelve slices, each half an hour of event time that is closed by the next one.

    Slices 1 to 4 are by version 1, 5 to 8 by version 2, which means the same, and 9 to 12 by version 3.
    """
    opened = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    opened.submit_job("power", "1", {"version": 1})
    for version in (1, 2, 3):
        opened.submit_job("power", str(version), {"version": version})
        opened.begin_run("power", pid=1)
        for number in range(4 * version - 3, 4 * version + 1):
            closes_ms = (number - 1) * HALF_HOUR_MS or None
            of_version = {"version": version}
            opened.plan_slice(a_slice(number, version, **of_version))
            emitted = {"per_minute": closes_ms, "per_hour": closes_ms // HOUR_MS * HOUR_MS} if closes_ms else {}
            latest_ms = number * HALF_HOUR_MS - 1
            opened.commit_checkpoint(
                a_checkpoint(
                    number, version, emitted=emitted, latest_event_ms=latest_ms, closes_ms=closes_ms, **of_version
                )
            )
    yield opened
    opened.close()


def plan(
    ledger: Ledger,
    requested: EndRange = ALL,
    starts: dict[int, int] | None = None,
    letters: dict[int, int] | None = None,
    results: dict[int, int] | None = None,
    by: Load = pipeline,
    backfills: Sequence[Backfilled] = (),
) -> AuditPlan:
    return plan_audit(
        ledger,
        "power",
        by,
        {"turbines": starts or {0: 0, 1: 0}},
        letters or {0: 0},
        requested,
        {"turbine-minute": results or {0: 0}},
        backfills,
    )


def test_all_windows_by_the_version_that_emitted_them(ledger: Ledger) -> None:
    """Versions that mean the same are one span. The third reads from where its open hour began, and accounts for its own."""
    found = plan(ledger)
    first, second = found.spans
    assert (first.version, first.slice_first, first.slice_own, first.slice_last) == (2, 1, 1, 8)
    assert first.windows == {"per_minute": EndRange(None, 7 * HALF_HOUR_MS), "per_hour": EndRange(None, 3 * HOUR_MS)}
    assert (second.version, second.slice_first, second.slice_own, second.slice_last) == (3, 7, 9, 12)
    assert second.windows["per_hour"] == EndRange(3 * HOUR_MS, 5 * HOUR_MS)
    assert (second.events_from_ms, second.events_before_ms) == (3 * HOUR_MS, 11 * HALF_HOUR_MS)
    assert found.scope == {"per_minute": EndRange(None, 11 * HALF_HOUR_MS), "per_hour": EndRange(None, 5 * HOUR_MS)}
    assert (found.slice_first, found.slice_last, found.totals.records) == (1, 12, 360)
    assert found.is_whole
    assert found.incomplete == ""


def test_a_slice_that_is_planned_and_not_committed_is_not_audited(ledger: Ledger) -> None:
    ledger.plan_slice(a_slice(13, 3, version=3))
    assert plan(ledger).slice_last == 12


def test_a_range_reads_the_slices_that_its_windows_need(ledger: Ledger) -> None:
    """Windows that end after 1:00, up to 1:30: their records lie in slice 3 at the earliest, and slice 4 closes them."""
    found = plan(ledger, EndRange(HOUR_MS, 3 * HALF_HOUR_MS))
    (span,) = found.spans
    assert (span.slice_first, span.slice_own, span.slice_last) == (3, 3, 4)
    assert span.windows["per_minute"] == EndRange(HOUR_MS, 3 * HALF_HOUR_MS)
    assert (found.totals.records, found.totals.rejected) == (60, {"late": 2, "decode": 2})
    assert found.offsets_first == {"turbines": {0: 20, 1: 40}}
    assert found.letters_from == {0: 4}
    assert not found.is_whole


def test_sliding_windows_reach_back_over_the_beginning_of_the_next(ledger: Ledger) -> None:
    """Windows of two minutes, each minute, in windows of an hour: the first of an hour begins a minute before it."""
    (span,) = plan(ledger, EndRange(HOUR_MS, 3 * HOUR_MS)).spans[:1]
    first, second = span.pipeline.stages
    sliding = replace(first, windows=WindowShape(2 * MINUTE_MS, MINUTE_MS))
    pipeline = replace(span.pipeline, stages=(sliding, second))
    per_minute, per_hour = EndRange(90 * MINUTE_MS, None), EndRange(2 * HOUR_MS, None)
    assert replace(span, pipeline=pipeline, windows={"per_minute": per_minute}).events_from_ms == 89 * MINUTE_MS
    assert replace(span, pipeline=pipeline, windows={"per_hour": per_hour}).events_from_ms == 119 * MINUTE_MS


def test_a_range_after_all_that_was_emitted_holds_nothing(ledger: Ledger) -> None:
    found = plan(ledger, EndRange(40 * HOUR_MS))
    assert found.spans == ()
    assert found.incomplete == ""


@pytest.mark.guarantee(
    "G62",
    "If the log no longer contains all records that an audit needs, the audit reports the time from which it is "
    "valid. It raises no false alarm and isn't called clean.",
    promise="the-audit-finds-every-difference",
)
def test_where_the_log_lost_its_beginning_only_windows_without_lost_records_are_audited(ledger: Ledger) -> None:
    """Slice 4 is lost in part. Its latest event is at 2:00 less a millisecond, so windows that begin at 2:00 are whole."""
    found = plan(ledger, starts={0: 31, 1: 0})
    assert min(span.slice_first for span in found.spans) == 5
    assert found.scope["per_minute"].after_ms == found.scope["per_hour"].after_ms == 2 * HOUR_MS
    assert not found.is_whole
    assert found.incomplete.endswith("--from 1970-01-01T02:00:00.000Z")
    assert plan(ledger, EndRange(2 * HOUR_MS), starts={0: 31, 1: 0}).incomplete == ""


def test_where_the_log_lost_its_beginning_sliding_windows_lose_as_much_as_they_overlap(ledger: Ledger) -> None:
    """The latest lost event, just before 2:00, is in windows of 50 minutes up to 2:30; the hour of their results ends at 3:00."""
    slides = PIPELINE.replace("tumbling: 1m", "sliding: {size: 50m, every: 20m}") + HOUR
    found = plan(ledger, starts={0: 31, 1: 0}, by=lambda number, _=None: pipeline(number, None, slides))
    assert (found.scope["per_minute"].after_ms, found.scope["per_hour"].after_ms) == (150 * MINUTE_MS, 3 * HOUR_MS)
    assert [(span.events_from_ms, span.slice_first) for span in found.spans] == [(2 * HOUR_MS, 5)]


def test_where_dead_letters_are_lost_only_windows_of_later_slices_are_audited(ledger: Ledger) -> None:
    """The letters of slices 1 to 5 end at 10. Slice 5 emitted the windows up to 2:00."""
    found = plan(ledger, letters={0: 9})
    assert found.scope["per_minute"].after_ms == 2 * HOUR_MS
    assert found.offsets_first == {"turbines": {0: 50, 1: 100}}
    assert found.letters_from == {0: 10}
    assert "--from 1970-01-01T02:00:00.000Z" in found.incomplete


@pytest.mark.guarantee(
    "G671",
    "An audit leaves out only windows whose own dead letters are gone, not windows of other slices or backfills.",
    promise="the-audit-finds-every-difference",
)
def test_letters_of_others_that_are_gone_are_no_loss(ledger: Ledger, tmp_path: Path) -> None:
    """The job has had no dead letter since slice 5, where they ended at 10. A backfill wrote more, and all have expired."""
    none_since = """UPDATE checkpoints SET dead_letter_offsets = '{"0": 10}' WHERE slice > 5"""
    run_sql(f"sqlite:///{tmp_path / 'ledger.sqlite'}", none_since)
    found = plan(ledger, letters={0: 30})
    assert found.scope["per_minute"] == EndRange(2 * HOUR_MS, 11 * HALF_HOUR_MS)
    assert found.offsets_first == {"turbines": {0: 50, 1: 100}}
    assert found.letters_from == {0: 30}, "what is gone can't be read"
    run_sql(f"sqlite:///{tmp_path / 'ledger.sqlite'}", "UPDATE checkpoints SET dead_letter_offsets = '{}'")
    found = plan(ledger, letters={0: 30})
    assert (found.is_whole, found.letters_from) == (True, {0: 30})


@pytest.mark.guarantee("G671")
def test_where_letters_of_a_backfill_are_gone_windows_that_it_computed_are_not_audited(
    ledger: Ledger, tmp_path: Path
) -> None:
    """The backfill was requested after slice 8, and the job has had no dead letter since slice 5."""
    none_since = """UPDATE checkpoints SET dead_letter_offsets = '{"0": 10}' WHERE slice > 5"""
    run_sql(f"sqlite:///{tmp_path / 'ledger.sqlite'}", none_since)
    windows = {"per_minute": WindowRange(HOUR_MS, 3 * HOUR_MS), "per_hour": WindowRange(HOUR_MS, 3 * HOUR_MS)}
    again = [Backfilled(2, 2, pipeline(2), windows, 8)]
    kept = plan(ledger, letters={0: 10}, backfills=again)
    assert kept.scope["per_minute"].after_ms == 2 * HOUR_MS
    assert next(span.is_backfill for span in kept.spans)
    gone = plan(ledger, letters={0: 11}, backfills=again)
    assert {ends.after_ms for ends in gone.scope.values()} == {3 * HOUR_MS}
    assert not any(span.is_backfill for span in gone.spans)
    assert "--from 1970-01-01T03:00:00.000Z" in gone.incomplete


def test_where_results_in_a_stream_are_lost_only_windows_of_later_slices_are_audited(ledger: Ledger) -> None:
    """The results of slices 1 to 5 end at 35 and 15. Of dead letters, all are there."""
    for results in ({0: 30}, {0: 35, 1: 15}, {1: 13}):
        found = plan(ledger, results=results)
        assert found.scope["per_minute"].after_ms == 2 * HOUR_MS
        assert "--from 1970-01-01T02:00:00.000Z" in found.incomplete
    assert plan(ledger, results={0: 36}).scope["per_minute"].after_ms == 5 * HALF_HOUR_MS


def test_a_log_that_lost_all_that_was_read_leaves_nothing_to_audit(ledger: Ledger) -> None:
    found = plan(ledger, starts={0: 1_000, 1: 2_000})
    assert found.spans == ()
    assert found.incomplete


def test_an_audit_with_nothing_to_compare_accuses_no_dead_letter(ledger: Ledger) -> None:
    """All that was read is gone; nothing was emitted since the time that is asked for; a reset, and no slice since."""
    nothing = [plan(ledger, starts={0: 1_000, 1: 2_000}), plan(ledger, EndRange(40 * HOUR_MS))]
    ledger.move_job("power", JobState.STOPPED)
    ledger.reset_job(ledger.end_runs("power", "reset"), Origin({"turbines": {0: 120, 1: 240}}, {0: 24}))
    nothing.append(plan(ledger))
    for found in nothing:
        assert found.spans == ()
        assert letter_scope(found, a_slice(13)).kind_of("turbines/0/5") is Kind.OUTSIDE


def test_a_job_without_a_checkpoint_can_not_be_audited(tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    ledger.submit_job("power", "1", {})
    with pytest.raises(NotFound, match="has committed nothing yet"):
        plan(ledger)
    ledger.close()


def test_tasks_are_bounded_and_hold_each_offset_once_with_the_watermark_of_its_slice() -> None:
    slices = [a_slice(number) for number in range(1, 8)]
    tasks = cut_tasks(slices, slice_own=3, rows_max=25)
    seen = {}
    for task in tasks:
        places = {(piece.offsets.stream, piece.offsets.partition) for piece in task.pieces}
        assert len(places) == 1
        assert sum(piece.offsets.offset_next - piece.offsets.offset_first for piece in task.pieces) <= 25
        for piece in task.pieces:
            for offset in range(piece.offsets.offset_first, piece.offsets.offset_next):
                assert (piece.offsets.partition, offset) not in seen
                seen[piece.offsets.partition, offset] = (piece.late_below_ms, task.own)
    expected = {
        (partition, offset): (row.watermark_ms, row.number >= 3)
        for row in slices
        for partition, end in row.offsets["turbines"].items()
        for offset in range(row.offsets_first["turbines"][partition], end)
    }
    assert seen == expected


def test_what_was_removed_from_the_ledger_is_not_audited_and_said(ledger: Ledger) -> None:
    """Windows that were emitted up to slice 6, and those that hold records of it."""
    ledger.raise_floor("power", 3, 6, limit=12)
    found = plan(ledger)
    assert found.slice_first > 6 and not found.is_whole
    assert "the ledger" in found.incomplete
    assert all((ends.after_ms or 0) >= 3 * HOUR_MS for ends in found.scope.values())
    assert found.totals.records == 30 * (12 - found.slice_first + 1)


@pytest.mark.parametrize("lost", [{}, {"letters": {0: 2}}, {"results": {0: 7}}], ids=["nothing", "letters", "results"])
def test_of_a_ledger_that_was_cleared_the_windows_that_end_after_its_floor_are_audited(
    ledger: Ledger, lost: dict[str, dict[int, int]]
) -> None:
    """Slices 1 to 3 are gone, and of slice 4 only the state after it is useful.

    Windows that end up to 2:00 can lack a record. The streams have lost less.
    """
    ledger.raise_floor("power", 3, 4, limit=99)
    found = plan(ledger, **lost)
    assert found.scope == {
        "per_minute": EndRange(2 * HOUR_MS, 11 * HALF_HOUR_MS),
        "per_hour": EndRange(2 * HOUR_MS, 5 * HOUR_MS),
    }
    assert (found.slice_first, found.slice_last) == (5, 12)
    assert found.incomplete.endswith("--from 1970-01-01T02:00:00.000Z")
