"""The cost of a rewind as the status shows it, and the warning before retention cuts it off."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import strandline
from strandline.processing.slices.rewind import RewindCost
from strandline.services.jobs.job_status import rewind_view

HOUR_MS = 3_600_000


def cost(needed_since_ms: int | None, records: int = 1_000) -> RewindCost:
    return RewindCost(records, 4.0, {}, needed_since_ms)


@pytest.mark.parametrize(("hours_ago", "says"), [(17, ""), (20, "in 4h"), (25, "a restart would fail")])
def test_the_status_warns_before_retention_reaches_what_a_rewind_needs(hours_ago: int, says: str) -> None:
    now_ms = time.time_ns() // 1_000_000
    view = rewind_view(cost(now_ms - hours_ago * HOUR_MS + 60_000), 24 * HOUR_MS)
    assert says in view.warning
    assert bool(view.warning) == bool(says)
    assert view.retention_left_ms is not None


@pytest.mark.parametrize(("one", "retention_ms"), [(cost(None), HOUR_MS), (cost(0, 0), HOUR_MS), (cost(0), -1)])
def test_nothing_is_warned_of_where_nothing_can_be_lost(one: RewindCost, retention_ms: int) -> None:
    view = rewind_view(one, retention_ms)
    assert (view.warning, view.retention_left_ms) == ("", None)


def test_completed_is_written_in_one_place() -> None:
    """The state of an ended batch has its own word in the API. A second place with it could differ."""
    root = Path(strandline.__file__).parent
    shown_by = [
        *root.glob("services/jobs/**/*.py"),
        *root.glob("services/rest/**/*.py"),
        *root.glob("services/cli/**/*.py"),
        *root.glob("frontends/client/*.py"),
    ]
    assert [path.name for path in shown_by if '"completed"' in path.read_text()] == []
