"""The windows of a pipeline as numbers: where they begin and end. Pure, and light to import: it travels to every Python worker.

All in milliseconds of event time. An event at the last millisecond before a window's end belongs to it, one at its end doesn't.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class WindowShape:
    """The windows of one stage: each `size_ms` long, one beginning at every multiple of `every_ms` since 1970."""

    size_ms: int
    every_ms: int

    def last_end(self, at_ms: int) -> int:
        """The end of the last window that ends at or before `at_ms`."""
        return (at_ms - self.size_ms) // self.every_ms * self.every_ms + self.size_ms

    def first_start(self, after_ms: int) -> int:
        """The start of the first window that ends after `after_ms`."""
        return self.last_end(after_ms) + self.every_ms - self.size_ms

    def last_end_holding(self, event_ms: int) -> int:
        """The end of the last window that holds an event at `event_ms`."""
        return event_ms // self.every_ms * self.every_ms + self.size_ms


def open_until(windows: Iterable[WindowShape], latest_event_ms: int | None) -> int | None:
    """The end of the last window of all stages that can hold something yet; None before the first accepted record.

    `windows` in the order of the stages: a result of one counts in the next as an event of its window's last moment.
    """
    if latest_event_ms is None:
        return None
    until_ms = event_ms = latest_event_ms
    for shape in windows:
        end_ms = shape.last_end_holding(event_ms)
        until_ms, event_ms = max(until_ms, end_ms), end_ms - 1
    return until_ms


def closes_a_window(
    windows: Iterable[WindowShape], from_ms: int | None, to_ms: int | None, open_until_ms: int | None
) -> bool:
    """Whether a window ends in (`from_ms`, `to_ms`] and, as far as `open_until` knows, can hold something."""
    if to_ms is None or open_until_ms is None:
        return False
    last_ms = min(to_ms, open_until_ms)
    return from_ms is None or any(shape.last_end(last_ms) > from_ms for shape in windows)


def earliest_event(windows: Sequence[WindowShape], emitted_ms: Sequence[int]) -> int:
    """The earliest event time that a window not yet emitted can hold. `emitted_ms`: for each stage the end of the last
    window that it has emitted.

    What a later stage's window holds are windows of the stage before, which may begin before it: so it is asked of each in turn.
    """
    earliest_ms = []
    for stage, emitted in enumerate(emitted_ms):
        event_ms = windows[stage].first_start(emitted)
        for shape in reversed(windows[:stage]):
            event_ms = shape.first_start(event_ms)
        earliest_ms.append(event_ms)
    return min(earliest_ms)
