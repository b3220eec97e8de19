"""The results of a backfill and its pieces, over a real ledger."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise, product
from pathlib import Path

import pytest

from strandline.core.documents import read_documents
from strandline.core.errors import Conflict, LogTruncated
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import BackfillRow, BackfillState, StreamVersions, WindowRange
from strandline.processing.audit.index_reader import EndRange
from strandline.processing.audit.plan import plan_audit
from strandline.processing.backfill.plan import (
    Backfilled,
    BackfillPlan,
    Chunk,
    Load,
    complete_backfills,
    generations_by_store,
    next_chunk,
    plan_backfill,
    stores_of,
    windows_left,
)
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.results.generations import Generation
from tests.support.control import HOUR, PIPELINE, STREAM
from tests.support.ledgers import a_checkpoint, a_slice

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
HALF_HOUR_MS = HOUR_MS // 2
SLICES = 12
VERSIONS = {
    1: PIPELINE + HOUR,
    2: PIPELINE.replace("tumbling: 1m", "tumbling: 5m").replace("max(", "min(") + HOUR,
    3: PIPELINE.replace("tumbling: 1m", "tumbling: 7m") + HOUR.replace("1h", "14m"),
}


def load(version: int, streams: StreamVersions | None = None, text: str | None = None) -> CheckedPipeline:
    return checked(text or VERSIONS[version])


@cache
def checked(text: str) -> CheckedPipeline:
    stream, document = read_documents(f"{STREAM}---\n{text}", "test.yaml")
    return check(PipelineSpec.parse(document), StreamSpec.parse(stream), document)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Yield a ledger of twelve slices, each half an hour of event time that is closed by the next one.

    Slices 1 to 6 are by version 1, 7 to 12 by version 2, whose first windows are of five minutes.
    """
    opened = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    for version in (1, 2):
        opened.submit_job("power", str(version), {"version": version})
        opened.begin_run("power", pid=1)
        for number in range(6 * version - 5, 6 * version + 1):
            closes_ms = (number - 1) * HALF_HOUR_MS or None
            opened.plan_slice(a_slice(number, version, version=version))
            emitted = {"per_minute": closes_ms, "per_hour": closes_ms // HOUR_MS * HOUR_MS} if closes_ms else {}
            latest_ms = number * HALF_HOUR_MS - 1
            opened.commit_checkpoint(
                a_checkpoint(
                    number, version, emitted=emitted, latest_event_ms=latest_ms, closes_ms=closes_ms, version=version
                )
            )
    yield opened
    opened.close()


def plan(
    ledger: Ledger,
    from_ms: int = 0,
    to_ms: int | None = None,
    starts: dict[int, int] | None = None,
    by: Load = load,
) -> BackfillPlan:
    return plan_backfill(ledger, "power", by, lambda _: starts or {0: 0, 1: 0}, from_ms, to_ms)


def requested(ledger: Ledger, from_ms: int = 0, to_ms: int | None = None, by: Load = load) -> BackfillRow:
    found = plan(ledger, from_ms, to_ms, by=by)
    return ledger.request_backfill(
        "power", found.version, (from_ms, to_ms), found.windows, found.slice_committed, found.records, {"turbines": 1}
    )


def chunks(ledger: Ledger, row: BackfillRow, records_max: int, by: Load = load) -> list[Chunk]:
    found = []
    while (chunk := next_chunk(ledger, row, by(row.version), records_max)) is not None:
        found.append(chunk)
        row = replace(row, done_ms=chunk.up_to_ms)
        assert len(found) < 100
    return found


def test_all_that_was_emitted_by_the_present_version(ledger: Ledger) -> None:
    found = plan(ledger)
    assert (found.version, found.slice_first, found.slice_committed) == (2, 1, 12)
    assert found.windows == {"per_minute": WindowRange(0, 11 * HALF_HOUR_MS), "per_hour": WindowRange(0, 5 * HOUR_MS)}
    assert found.records == 30 * 12


def test_a_range_begins_where_windows_of_every_version_begin_and_ends_with_a_whole_one(ledger: Ledger) -> None:
    """From 1:07:30 to 2:13: the windows of five minutes from 1:05 to 2:10; an hour from 1:00 to 2:00."""
    found = plan(ledger, HOUR_MS + 15 * HALF_HOUR_MS // 60, 2 * HOUR_MS + 13 * MINUTE_MS)
    assert found.windows == {
        "per_minute": WindowRange(HOUR_MS + 5 * MINUTE_MS, 2 * HOUR_MS + 10 * MINUTE_MS),
        "per_hour": WindowRange(HOUR_MS, 2 * HOUR_MS),
    }
    # Slice 3 is the first of which the latest event is after 1:00; slice 6 closes 2:10.
    assert (found.slice_first, found.records) == (3, 30 * 4)


def test_where_a_former_version_had_other_sizes_a_range_begins_at_a_border_of_both(ledger: Ledger) -> None:
    """Windows of 1 and 5 minutes and, since version 3, of 7: from 1:50 on is from 1:45, a multiple of 35 minutes. Else a
    part of a window of another size would be replaced, and the other part be lost."""
    ledger.submit_job("power", "3", {"version": 3})
    ledger.begin_run("power", pid=1)
    ledger.plan_slice(a_slice(13, 3, version=3))
    emitted = {"per_minute": 11 * HALF_HOUR_MS, "per_hour": 5 * HOUR_MS}
    ledger.commit_checkpoint(
        a_checkpoint(13, 3, emitted=emitted, latest_event_ms=6 * HOUR_MS, closes_ms=6 * HOUR_MS, version=3)
    )
    found = plan(ledger, HOUR_MS + 50 * MINUTE_MS)
    assert found.windows["per_minute"] == WindowRange(HOUR_MS + 45 * MINUTE_MS, 329 * MINUTE_MS)
    assert found.windows["per_hour"].after_ms == 0, "a multiple of 60 and of 14 minutes"


def test_a_version_that_has_not_taken_over_can_not_say_where_its_results_begin(ledger: Ledger) -> None:
    ledger.submit_job("power", "3", {"version": 3})
    with pytest.raises(Conflict, match="version 3 of job power has committed nothing yet"):
        plan(ledger)


@pytest.mark.parametrize(("from_ms", "to_ms"), [(6 * HOUR_MS, None), (2 * HOUR_MS, HOUR_MS), (0, MINUTE_MS)])
def test_a_range_without_a_window_is_refused(ledger: Ledger, from_ms: int, to_ms: int | None) -> None:
    with pytest.raises(Conflict, match="there is nothing to recompute"):
        plan(ledger, from_ms, to_ms)


@pytest.mark.guarantee("G96")
def test_a_log_that_lost_the_beginning_says_from_when_it_could_begin(ledger: Ledger) -> None:
    """Slice 4 is lost in part. Its latest event is at 2:00 less a millisecond, so windows that begin at 2:00 are whole."""
    with pytest.raises(LogTruncated, match=r"needs? slice 1\. .* --from 1970-01-01T02:00:00.000Z$"):
        plan(ledger, 0, starts={0: 31, 1: 0})
    assert plan(ledger, 2 * HOUR_MS, starts={0: 31, 1: 0}).slice_first == 5
    with pytest.raises(LogTruncated):
        plan(ledger, 2 * HOUR_MS - 1, starts={0: 31, 1: 0})


def sliding(size: str, every: str) -> Load:
    """Return the same versions, but the second one's first windows slide."""
    shape = f"sliding: {{size: {size}, every: {every}}}"
    return lambda number, _=None: load(number, None, {2: PIPELINE.replace("tumbling: 1m", shape) + HOUR}.get(number))


def test_sliding_windows_are_taken_by_their_ends(ledger: Ledger) -> None:
    """Windows of 50 minutes that begin every 20 minutes.

    The start 1:07:30 means 1:00, and the first window that ends after that begins at 0:20. The last one up to 2:13 ends
    at 2:10. The hour from 1:00 on contains the same windows.
    """
    found = plan(ledger, HOUR_MS + 15 * HALF_HOUR_MS // 60, 2 * HOUR_MS + 13 * MINUTE_MS, by=sliding("50m", "20m"))
    assert found.windows == {
        "per_minute": WindowRange(HOUR_MS, 2 * HOUR_MS + 10 * MINUTE_MS),
        "per_hour": WindowRange(HOUR_MS, 2 * HOUR_MS),
    }
    assert (found.slice_first, found.records) == (1, 30 * 6)


def test_a_log_that_lost_the_beginning_of_sliding_windows_says_from_when_it_could_begin(ledger: Ledger) -> None:
    """The latest lost event, just before 2:00, is in windows up to 2:30. The hour that holds their results ends at 3:00."""
    slides, starts = sliding("50m", "20m"), {0: 31, 1: 0}
    with pytest.raises(LogTruncated, match=r"--from 1970-01-01T03:00:00.000Z$"):
        plan(ledger, 0, starts=starts, by=slides)
    assert plan(ledger, 3 * HOUR_MS, starts=starts, by=slides).slice_first == 5
    with pytest.raises(LogTruncated):
        plan(ledger, 3 * HOUR_MS - 1, starts=starts, by=slides)


@pytest.mark.parametrize("records_max", [1, 60, 100, 10_000])
@pytest.mark.parametrize("shape", [("50m", "20m"), ("20m", "5m"), ("1h", "1m"), ("7m", "3m")])
def test_chunks_of_sliding_windows_read_every_record_of_them(
    ledger: Ledger, shape: tuple[str, str], records_max: int
) -> None:
    by = sliding(*shape)
    row = requested(ledger, HOUR_MS, by=by)
    found = chunks(ledger, row, records_max, by)
    for stage, window in row.windows.items():
        parts = [chunk.windows[stage] for chunk in found if stage in chunk.windows]
        assert (parts[0].after_ms, parts[-1].up_to_ms) == window
        assert all(one.up_to_ms == other.after_ms for one, other in pairwise(parts))
    first, second = (stage.shape for stage in by(2).stages)
    for chunk, event_ms in product(found, range(0, 6 * HOUR_MS, MINUTE_MS)):
        ends = {
            "per_minute": set(
                range(first.last_end(event_ms) + first.every_ms, event_ms + first.size_ms + 1, first.every_ms)
            )
        }
        ends["per_hour"] = {-(-end // second.size_ms) * second.size_ms for end in ends["per_minute"]}
        if any(one.after_ms < end <= one.up_to_ms for stage, one in chunk.windows.items() for end in ends[stage]):
            assert chunk.events_from_ms <= event_ms
            assert chunk.slice_first <= event_ms // HALF_HOUR_MS + 1 <= chunk.slice_last


def test_long_windows_that_slide_by_little_do_not_make_every_chunk_read_all_again(ledger: Ledger) -> None:
    by = sliding("3h", "1m")
    found = chunks(ledger, requested(ledger, by=by), 1, by)
    assert len(found) > 1
    assert sum(chunk.slice_last - chunk.slice_first + 1 for chunk in found) <= 3 * SLICES


@pytest.mark.parametrize("records_max", [1, 60, 100, 10_000])
@pytest.mark.parametrize("from_ms", [0, HOUR_MS + 7 * MINUTE_MS, 4 * HOUR_MS])
def test_chunks_hold_each_window_once_and_all_slices_of_it(ledger: Ledger, from_ms: int, records_max: int) -> None:
    row = requested(ledger, from_ms)
    found = chunks(ledger, row, records_max)
    for stage, window in row.windows.items():
        parts = [chunk.windows[stage] for chunk in found if stage in chunk.windows]
        assert (parts[0].after_ms, parts[-1].up_to_ms) == window
        assert all(one.up_to_ms == other.after_ms for one, other in pairwise(parts))
    for chunk in found:
        # Slice n holds events from (n - 1) to n half hours, and the slice after closes them.
        assert chunk.slice_first <= chunk.events_from_ms // HALF_HOUR_MS + 1
        assert (chunk.slice_last - 1) * HALF_HOUR_MS >= chunk.up_to_ms
        sizes = {"per_minute": 5 * MINUTE_MS, "per_hour": HOUR_MS}
        assert all(one.after_ms // sizes[s] * sizes[s] >= chunk.events_from_ms for s, one in chunk.windows.items())
    if records_max == 10_000:
        assert len(found) == 1
    if records_max == 1:
        assert len(found) >= (row.windows["per_minute"].up_to_ms - from_ms) // HOUR_MS


def test_a_backfill_goes_on_behind_what_is_done(ledger: Ledger) -> None:
    row = replace(requested(ledger), done_ms=5 * HOUR_MS)
    assert windows_left(row) == {"per_minute": WindowRange(5 * HOUR_MS, 11 * HALF_HOUR_MS)}
    (chunk,) = chunks(ledger, row, 10_000)
    assert (chunk.windows, chunk.slice_first) == (windows_left(row), 11)
    assert chunks(ledger, replace(row, done_ms=11 * HALF_HOUR_MS), 10_000) == []


def test_what_the_aliases_show_follows_from_the_complete_ones(ledger: Ledger) -> None:
    for from_ms, end in ((0, BackfillState.COMPLETE), (HOUR_MS, BackfillState.CANCELLED), (HOUR_MS, None)):
        row = requested(ledger, from_ms, 3 * HOUR_MS)
        ledger.begin_backfill("power", row.generation)
        if end is BackfillState.COMPLETE:
            ledger.move_backfill("power", row.generation, BackfillState.SWAPPING)
            with pytest.raises(Conflict, match="try again"):
                complete_backfills(ledger, "power", load)
            assert complete_backfills(ledger, "power", load, row.generation) == []
        if end is not None:
            ledger.move_backfill("power", row.generation, end)
    found = complete_backfills(ledger, "power", load)
    assert [one.generation for one in found] == [2]
    assert generations_by_store(found) == {
        "turbine-minute": [Generation(2, 0, 3 * HOUR_MS)],
        "turbine-hour": [Generation(2, 0, 3 * HOUR_MS)],
    }
    assert stores_of(ledger.backfill("power", 2), load(2)) == ["turbine-hour", "turbine-minute"]


def backfilled(generation: int, after_ms: int, up_to_ms: int) -> Backfilled:
    windows = {"per_minute": WindowRange(after_ms, up_to_ms), "per_hour": WindowRange(after_ms, up_to_ms)}
    return Backfilled(generation, 2, load(2), windows, 8)


def test_an_audit_computes_a_window_by_the_version_and_generation_that_is_shown(ledger: Ledger) -> None:
    """Generation 2 from 1:00 to 4:00, and 3 from 2:00 to 3:00 of it."""
    again = [backfilled(2, HOUR_MS, 4 * HOUR_MS), backfilled(3, 2 * HOUR_MS, 3 * HOUR_MS)]
    found = plan_audit(ledger, "power", load, {"turbines": {0: 0, 1: 0}}, {0: 0}, EndRange(), backfills=again)
    second, third, *own = found.spans
    assert (second.generation, second.version, second.windows["per_hour"]) == (2, 2, EndRange(HOUR_MS, 4 * HOUR_MS))
    assert (second.slice_first, second.slice_last, second.slice_own) == (3, 9, 10), "it has no slice of its own"
    assert [one.number for one in second.replaced["turbine-minute"]] == [3]
    assert third.replaced == {}
    assert [one.version for one in own] == [1, 2]
    assert all([g.number for g in one.replaced["turbine-hour"]] == [2, 3] for one in own)
    assert (found.slice_first, found.slice_last, found.is_whole) == (1, 12, True)


def test_an_audit_of_a_range_reads_only_what_is_in_it(ledger: Ledger) -> None:
    again = [backfilled(2, HOUR_MS, 4 * HOUR_MS)]
    starts = {"turbines": {0: 0, 1: 0}}
    found = plan_audit(ledger, "power", load, starts, {0: 0}, EndRange(2 * HOUR_MS, 3 * HOUR_MS), backfills=again)
    assert found.spans[0].windows["per_minute"] == EndRange(2 * HOUR_MS, 3 * HOUR_MS)
    outside = plan_audit(ledger, "power", load, starts, {0: 0}, EndRange(4 * HOUR_MS), backfills=again)
    assert [one.generation for one in outside.spans] == [1]


def test_a_ledger_that_lost_the_beginning_says_from_when_it_could_begin(ledger: Ledger) -> None:
    row = requested(ledger, 3 * HOUR_MS)
    ledger.move_backfill("power", row.generation, BackfillState.CANCELLED)
    ledger.raise_floor("power", 2, 4, limit=12)
    with pytest.raises(LogTruncated, match=r"before 5 .*--from 1970-01-01T02:00:00.000Z"):
        plan(ledger)
    assert plan(ledger, 2 * HOUR_MS).slice_first == 5
    ledger.raise_floor("power", 2, 9, limit=12)
    with pytest.raises(LogTruncated, match="request the backfill again"):
        next_chunk(ledger, row, load(2), 1)
