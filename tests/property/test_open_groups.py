"""Open groups in segments: results are the same bits as with all groups in the state, and a step costs what it changes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.errors import StrandlineError
from strandline.processing.emission import segment_files
from strandline.processing.emission.segment_files import SegmentFiles
from strandline.processing.operators import open_groups
from strandline.processing.operators.cascade import Cascade
from strandline.processing.operators.closing import Closing
from strandline.processing.operators.open_groups import OpenGroupsOperator
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from tests.property.test_window_operator import (
    CASCADE,
    END,
    KEPT,
    MINUTE,
    Record,
    SegmentsOfBuckets,
    chunk_columns,
    digest,
    histories,
    pipeline,
    run,
    sliding,
)
from tests.support.examples import examples

BY_MACHINE: dict[str, Any] = {
    "by": ["machine"],
    "aggregate": {"n": "count(*)", "power": "sum(power)", "last": "last(power)"},
}
PIPELINES = {
    "cascade": CASCADE,
    "every aggregate": pipeline(
        {"name": "a", "tumbling": "10s", "by": ["machine", "site"], "aggregate": {**MINUTE, **KEPT}}
    ),
    "sliding": sliding(10_000, 4_000),
    "with gaps": sliding(3_000, 5_000),
    "cumulative": pipeline({"name": "a", "cumulative": {"size": "60s", "step": "10s"}, **BY_MACHINE}),
    "days": pipeline({"name": "a", "tumbling": "1d", "tz": "Europe/Berlin", **BY_MACHINE}),
    "split": pipeline(
        {"name": "a", "tumbling": "5s", **BY_MACHINE},
        {"name": "b", "tumbling": "20s", "by": ["n"], "aggregate": {"total": "sum(power)"}},
    ),
}


BY_MINUTE = pipeline({"name": "a", "tumbling": "1m", **BY_MACHINE})


@pytest.fixture(autouse=True, scope="module")
def small_segments() -> Iterator[None]:
    """Two recent groups are many, and three segments are merged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_groups, "RECENT_ROWS_MAX", 2)
        patch.setattr(open_groups, "FANOUT", 3)
        patch.setattr(open_groups, "_LARGE_STEP", 0)
        yield


@pytest.mark.guarantee(
    "G890",
    "Results are the same bits whether open groups are in the state or in segments, also if a slice is done twice.",
    promise="results-depend-only-on-the-log",
)
@pytest.mark.parametrize("name", PIPELINES)
@examples(25)
@given(history=histories(), buckets=st.integers(1, 3))
def test_results_are_the_same_bits_with_segments(name: str, history: Any, buckets: int) -> None:
    checked, stores = PIPELINES[name], SegmentsOfBuckets()
    with_segments = run(checked, history, buckets, 5, stores=stores)
    assert digest(with_segments) == digest(run(checked, history, buckets, 5))


@examples(15)
@given(history=histories())
def test_places_with_the_same_first_hash_are_told_apart(history: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        hashed = OpenGroupsOperator._hashed

        def alike(*given: Any) -> Any:
            high, low = hashed(*given)
            return high % 2, low

        patch.setattr(OpenGroupsOperator, "_hashed", alike)
        found = run(CASCADE, history, 1, 5, stores=SegmentsOfBuckets())
    assert digest(found) == digest(run(CASCADE, history, 1, 5))


class Machines:
    """Slices of many machines in one bucket, whose segments lie in files."""

    def __init__(self, checked: CheckedPipeline, directory: Path) -> None:
        self.cascade = Cascade(checked.stages, 1)
        self.stores = partial(SegmentFiles.of, directory, 0)
        self.state: bytes | None = None

    def take(self, machines: range, at_ms: int, closing: Closing) -> list[dict[str, Any]]:
        """Take a record of each of these machines in; return the results."""
        rows = [Record(0, at_ms, f"m{one:06}", None, 0.1 * one, 1, None) for one in machines]
        event_us = pa.array(np.full(len(rows), at_ms * 1000))
        chunks = [chunk for _, chunk in self.cascade.cut(0, 0, event_us, chunk_columns(rows))]
        stepped = self.cascade.step(self.state, chunks, closing, self.stores)
        self.state = stepped.state
        return [row for one in stepped.results for row in one.rows.to_pylist()]

    def shown(self, rows_max: int) -> list[dict[str, Any]]:
        """Return what open windows contain."""
        assert self.state is not None
        stage = self.cascade.open_stage(0, self.state, self.stores)
        rows: list[dict[str, Any]] = self.cascade.open_results(stage, None, rows_max).to_pylist()
        return rows


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    monkeypatch.setattr(open_groups, "RECENT_ROWS_MAX", 256)
    monkeypatch.setattr(open_groups, "FANOUT", 4)
    return Machines(BY_MINUTE, tmp_path)


OPEN = Closing(0, 0)


@pytest.mark.guarantee(
    "G891",
    "A slice writes the groups that it changes, however many groups of a window stage are open.",
    promise="stored-data-is-bounded",
)
def test_a_slice_writes_what_it_changes_however_much_is_open(machines: Machines, tmp_path: Path) -> None:
    for first in range(0, 20_000, 1_000):
        machines.take(range(first, first + 1_000), 1_000, OPEN)
    before = {one.name for one in tmp_path.rglob("*") if one.is_file()}
    sizes = []
    for first in range(0, 20_000, 2_000):
        machines.take(range(first, first + 20), 2_000, OPEN)
        assert machines.state is not None
        sizes.append(len(machines.state))
    added = [one for one in tmp_path.rglob("*") if one.is_file() and one.name not in before]
    assert max(sizes) < 60_000, "all groups together have 2 MB"
    assert not added, "200 changed groups are still recent ones"


def test_a_state_that_large_slices_fill_stays_small(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each slice brings more than a quarter of the groups, as in a rewind."""
    monkeypatch.setattr(open_groups, "_LARGE_STEP", 4)
    monkeypatch.setattr(open_groups, "STATE_BYTES_MAX", 300_000)
    for first in range(0, 9_000, 3_000):
        machines.take(range(first, first + 3_000), 1_000, OPEN)
        assert machines.state is not None
        assert len(machines.state) < 400_000, "three slices together have 640 kB"
    assert len(machines.shown(10_000)) == 9_000


@pytest.mark.parametrize("fanout", [2, 4])
def test_segments_of_closed_windows_are_removed(
    machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fanout: int
) -> None:
    """Each window is open for two minutes, and a segment has groups of several windows."""
    monkeypatch.setattr(open_groups, "FANOUT", fanout)
    sizes, closed_ms = [], 0
    for minute in range(40):
        for first in range(0, 2_000, 200):
            at_ms = 60_000 * minute + 20 * first
            machines.take(range(first, first + 200), at_ms, Closing(closed_ms, max(0, at_ms - 60_000)))
            closed_ms = max(0, at_ms - 60_000)
        sizes.append(sum(one.stat().st_size for one in tmp_path.rglob("*") if one.is_file()))
    assert max(sizes[20:]) <= max(sizes[:20])


def test_a_window_in_segments_closes_with_the_newest_of_each_group(machines: Machines) -> None:
    for at_ms in (1_000, 2_000, 3_000):
        for first in range(0, 2_000, 400):
            machines.take(range(first, first + 400), at_ms, OPEN)
    machines.take(range(100), 61_000, OPEN)
    closed = machines.take(range(0), 0, Closing(0, 60_000))
    assert [(row["machine"], row["n"]) for row in closed] == [(f"m{one:06}", 3) for one in range(2_000)]
    assert closed[7]["power"] == 0.1 * 7 + 0.1 * 7 + 0.1 * 7
    closed = machines.take(range(0), 0, Closing(60_000, 120_000))
    assert [(row["machine"], row["n"]) for row in closed] == [(f"m{one:06}", 1) for one in range(100)]


def test_open_windows_are_shown_from_segments_too(machines: Machines) -> None:
    for at_ms in (1_000, 61_000):
        for first in range(0, 1_200, 400):
            machines.take(range(first, first + 400), at_ms, OPEN)
    assert [row["n"] for row in machines.shown(10_000)] == [1] * 2_400
    first_window = machines.shown(1_000)
    assert [row["machine"] for row in first_window] == [f"m{one:06}" for one in range(1_200)], "whole windows"
    assert {row["@window_start_ms"] for row in first_window} == {0}


def test_a_segment_that_is_missing_ends_the_run_with_a_remedy(
    machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in range(0, 2_000, 400):
        machines.take(range(first, first + 400), 1_000, OPEN)
    for one in tmp_path.rglob("*"):
        if one.is_file():
            one.unlink()
    monkeypatch.setattr(segment_files, "_opened", {})
    another_process = Machines(BY_MINUTE, tmp_path)
    another_process.state = machines.state
    with pytest.raises(StrandlineError, match="The job rewinds"):
        another_process.take(range(10), 2_000, OPEN)


def test_stages_that_revise_or_count_keep_their_state_in_one_part() -> None:
    by = {"by": ["machine"], "aggregate": {"n": "count(*)"}}
    shapes: list[dict[str, Any]] = [{"session": {"gap": "5s", "max": "20s"}}, {"count": {"size": 3, "max": "1m"}}]
    for shape in shapes:
        stores = SegmentsOfBuckets()
        slices = [
            ([Record(0, at, f"m{at}", None, 1.0, 1, None) for at in range(first, first + 9)], None) for first in (0, 9)
        ]
        run(pipeline({"name": "a", **shape, **by}), [*slices, ([], END)], 1, 5, stores=stores)
        assert not any(one.bytes_kept for one in stores.stores.values())
