"""A member whose windows have known ends has a slice when a window can close. The others have slices at an interval."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandline.core.streams.stream import StreamSpec
from strandline.ledger.states import CheckpointRow
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.event_time import AnywhereShape, WindowShape
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.run.slice_schedule import QUIET_S, Closings, closings_of
from tests.support.ledgers import a_checkpoint

STREAM = StreamSpec.from_document({"stream": "s", "schema": {"device": "string", "ts": "timestamp", "x": "double"}})


WINDOWS = [WindowShape(60_000, 60_000), WindowShape(10_000, 10_000)]
NEVER_S = 1e9


def committed(closes_ms: int | None, latest_log_ms: int | None = None) -> CheckpointRow:
    return a_checkpoint(1, closes_ms=closes_ms, latest_log_ms=latest_log_ms)


@pytest.mark.parametrize(("wall_ms", "closes_ms", "expected_s"), [
    (101_000, 100_000, 10.0),  # the next window ends at 110 s, and the delay is 1 s
    (110_000, 100_000, 1.0),
    (111_000, 100_000, 0.5),  # it can close now
    (500_000, 100_000, 0.5),  # event time is far behind
    (111_000, None, 0.5),
])  # fmt: skip
def test_the_next_slice_is_due_when_a_window_can_close(wall_ms: int, closes_ms: int | None, expected_s: float) -> None:
    assert Closings(WINDOWS, 1_000, lambda: wall_ms).due_s(NEVER_S, 0, committed(closes_ms), wall_ms) == expected_s


@pytest.mark.parametrize(("quiet_s", "expected_s"), [
    (120.0, 111.0),  # the window can close before
    (111.0, 111.0),
    (109.5, 111.0),  # the window can close shortly after, so the slice waits for it
    (108.9, 108.9),
    (101.0, 101.0),  # it is due already
    (90.0, 90.0),  # the job is behind
])  # fmt: skip
def test_a_slice_shortly_before_a_window_can_close_waits_for_it(quiet_s: float, expected_s: float) -> None:
    now_s = 101.0
    closings = Closings(WINDOWS, 1_000, lambda: now_s * 1_000)
    assert closings.due_s(quiet_s, now_s, committed(100_000), 101_000) == expected_s


def slices_until_s(
    end_s: int, sent_every_s: float, batch_s: Callable[[float], float] = lambda now_s: 0.1
) -> list[float]:
    """Run slices until this time of devices that send their records of the last `sent_every_s` at once, and return when they
    were planned. `batch_s`: returns the length of a batch that begins at this time."""
    now_s = 0.0
    closings = Closings([WindowShape(10_000, 10_000)], 1_000, lambda: now_s * 1_000)
    planned, due_s = [], 0.0
    while due_s < end_s:
        now_s = due_s
        planned.append(now_s)
        sent_ms = int(now_s // sent_every_s * sent_every_s * 1_000)
        now_s += batch_s(now_s)
        planned_ms = int(planned[-1] * 1_000)
        due_s = closings.due_s(planned[-1] + QUIET_S, now_s, committed(sent_ms - 50 - 1_000, sent_ms), planned_ms)
    return planned


def test_a_slice_waits_for_the_records_that_close_a_window() -> None:
    found = slices_until_s(100, sent_every_s=1.0)
    assert found[-3:] == [72, 82, 92], (
        "a window that ends at 10 s can close at 12 s: the records of the second 11 arrive then"
    )


def test_a_slice_does_not_wait_long_for_records_that_come_seldom() -> None:
    found = slices_until_s(100, sent_every_s=5.0)
    assert any(95 <= planned_s < 95.6 for planned_s in found), "the window that ends at 90 s can close at 95 s"


def test_a_slice_comes_early_again_when_records_do() -> None:
    closings = Closings([WindowShape(10_000, 10_000)], 1_000, lambda: 0)
    closings.wall_ms = lambda: 11_500.0
    assert closings.due_s(NEVER_S, 11.5, committed(9_000, 11_500), 11_500) == 12.0, (
        "the records that close the window are missing"
    )
    closings.wall_ms = lambda: 12_000.0
    due_s = [
        closings.due_s(NEVER_S, 0, committed(end_ms, end_ms + 2_000), 12_000)
        for end_ms in range(10_000, 190_000, 10_000)
    ]
    assert due_s[0] == 20 + 1 - 12 + 1.0, "the records needed 1 s"
    assert due_s[14] == 160 + 1 - 12 + 1.0
    assert due_s[16] == 180 + 1 - 12, "none of the last 16 windows had to wait"


@pytest.mark.parametrize("slow_until_s", [30, 60])
def test_a_slow_start_of_a_pool_is_no_late_arrival(slow_until_s: int) -> None:
    found = slices_until_s(150, 0.1, lambda now_s: 3.0 if now_s < slow_until_s else 0.1)
    waits_s = [planned_s % 10 - 1 for planned_s in found if planned_s > slow_until_s + 10]
    assert max(waits_s) < 0.7, "the records of each window are in the log 0.1 s after it can close"


def test_a_busy_pool_learns_how_long_the_records_need() -> None:
    found = slices_until_s(200, 1.0, lambda now_s: 2.5)
    late = [planned_s for planned_s in found if planned_s > 100]
    assert len(late) == 10, "each window has one slice, after the records that close it"
    assert all(1.0 <= planned_s % 10 - 1 < 1.6 for planned_s in late)


def pipeline(*steps: dict[str, object]) -> Closings | None:
    document: dict[str, object] = {
        "pipeline": "p",
        "input": {"stream": "s"},
        "event_time": {"field": "ts", "delay": "2s"},
        "steps": list(steps),
    }
    checked = check(PipelineSpec.from_document(document), STREAM)
    return closings_of(checked, checked.event_time_rule.delay_ms)


def window(**more: object) -> dict[str, object]:
    return {"name": "w", "by": ["device"], "aggregate": {"n": "count(*)"}, **more}


def test_only_windows_with_known_ends_have_times_of_closing() -> None:
    found = pipeline({"window": window(tumbling="10s"), "emit": [{"elasticsearch": "a"}]})
    assert found is not None and (found.delay_ms, len(found.windows)) == (2_000, 1)
    assert not isinstance(found.windows[0], AnywhereShape)
    assert pipeline({"window": window(session={"gap": "10s"}), "emit": [{"elasticsearch": "a"}]}) is None
    shown = {"elasticsearch": {"name": "a", "updates": "10s"}}
    assert pipeline({"window": window(tumbling="10s"), "emit": [shown]}) is None, "open windows are shown meanwhile"
    assert pipeline({"emit": [{"elasticsearch": "records"}], "name": "all"}) is None, "records are emitted at once"
