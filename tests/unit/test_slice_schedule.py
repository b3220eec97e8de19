"""A member whose windows have known ends has a slice when a window can close. The others have slices at an interval."""

from __future__ import annotations

import pytest

from strandline.core.streams.stream import StreamSpec
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.event_time import AnywhereShape, WindowShape
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.run.slice_schedule import Closings, closings_of

STREAM = StreamSpec.from_document({"stream": "s", "schema": {"device": "string", "ts": "timestamp", "x": "double"}})


@pytest.mark.parametrize(("wall_ms", "closes_ms", "expected_s"), [
    (101_000, 100_000, 10.0),  # the next window ends at 110 s, and the delay is 1 s
    (110_000, 100_000, 1.0),
    (111_000, 100_000, 0.5),  # it can close now
    (500_000, 100_000, 0.5),  # event time is far behind
    (111_000, None, 0.5),
])  # fmt: skip
def test_the_next_slice_is_due_when_a_window_can_close(wall_ms: int, closes_ms: int | None, expected_s: float) -> None:
    windows = [WindowShape(60_000, 60_000), WindowShape(10_000, 10_000)]
    assert Closings(windows, 1_000, lambda: wall_ms).wait_s(closes_ms) == expected_s


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
    closings = Closings([WindowShape(10_000, 10_000)], 1_000, lambda: now_s * 1_000)
    assert closings.due_s(quiet_s, now_s, 100_000) == expected_s


def pipeline(*steps: dict[str, object]) -> Closings | None:
    document = {
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
