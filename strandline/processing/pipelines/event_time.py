"""The windows of a pipeline as numbers: where they begin and end. Pure, and light to import: it travels to every Python worker.

All in milliseconds of event time. An event at the last millisecond before a window's end belongs to it, one at its end doesn't.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class EventTimeSource:
    """Where the event time of a record stands."""

    field: str | None
    """A timestamp field of the stream; None: log time is event time."""
    or_log: bool = False
    """Whether a record in which the field is missing or null has its log time as event time."""

    def __str__(self) -> str:
        if self.field is None:
            return "log time"
        return f"field {self.field}{', or log time' if self.or_log else ''}"


RECORDS = -1
"""The place of what a first window takes, among the windows of a pipeline."""


@dataclass(frozen=True)
class WindowShape:
    """The windows of one stage: each `size_ms` long, one beginning at every multiple of `every_ms` since 1970."""

    size_ms: int
    every_ms: int
    takes: int | None = field(default=None, kw_only=True)
    """The place, among all windows of its pipeline, of those whose results it takes: before its own. RECORDS: it takes records.
    None: as a pipeline without branches, where each takes the results of the one before, and the first takes records."""

    def last_end(self, at_ms: int) -> int:
        """The end of the last window that ends at or before `at_ms`."""
        return (at_ms - self.size_ms) // self.every_ms * self.every_ms + self.size_ms

    def first_end(self, after_ms: int) -> int:
        """The end of the first window that ends after `after_ms`."""
        return self.last_end(after_ms) + self.every_ms

    def first_start(self, after_ms: int) -> int:
        """The start of the first window that ends after `after_ms`."""
        return self.first_end(after_ms) - self.size_ms

    def last_end_holding(self, event_ms: int) -> int:
        """The end of the last window that holds an event at `event_ms`."""
        return event_ms // self.every_ms * self.every_ms + self.size_ms


def places_taken(windows: Iterable[WindowShape]) -> list[int]:
    """For each of a pipeline's windows the place of those whose results it takes, or RECORDS."""
    return [at - 1 if shape.takes is None else shape.takes for at, shape in enumerate(windows)]


def reach_of(windows: Sequence[WindowShape]) -> int:
    """How far back the open windows of a pipeline can go: the sizes of all on one path together, where that is most."""
    reaches: list[int] = []
    for shape, taken in zip(windows, places_taken(windows), strict=True):
        reaches.append(shape.size_ms + (0 if taken == RECORDS else reaches[taken]))
    return max(reaches, default=0)


def last_ends(windows: Sequence[WindowShape], event_ms: int) -> Iterator[int]:
    """For each stage the end of the last window that holds an event at `event_ms`, or a result that comes of it.

    `windows` in the order of the stages: a result of one counts in those that take it as an event of its window's last moment.
    """
    ends: list[int] = []
    for shape, taken in zip(windows, places_taken(windows), strict=True):
        ends.append(shape.last_end_holding(event_ms if taken == RECORDS else ends[taken] - 1))
        yield ends[-1]


def open_until(windows: Sequence[WindowShape], latest_event_ms: int | None) -> int | None:
    """The end of the last window of all stages that can hold something yet; None before the first accepted record."""
    return None if latest_event_ms is None else max(last_ends(windows, latest_event_ms), default=latest_event_ms)


def closes_a_window(
    windows: Sequence[WindowShape], from_ms: int | None, to_ms: int | None, open_until_ms: int | None
) -> bool:
    """Whether a window ends in (`from_ms`, `to_ms`] and, as far as `open_until` knows, can hold something."""
    if to_ms is None or open_until_ms is None or not windows:
        return False
    last_ms = min(to_ms, open_until_ms)
    return from_ms is None or any(shape.last_end(last_ms) > from_ms for shape in windows)


def first_event(windows: Sequence[WindowShape], after_ms: int) -> int:
    """The earliest event time that a window of the last of these stages can hold, if it ends after `after_ms`.

    What a later stage's window holds are windows of the stage whose results it takes, which may begin before it: so it is asked
    of each in turn.
    """
    taken, at = places_taken(windows), len(windows) - 1
    while at != RECORDS:
        after_ms, at = windows[at].first_start(after_ms), taken[at]
    return after_ms


def earliest_event(windows: Sequence[WindowShape], emitted_ms: Sequence[int]) -> int:
    """The earliest event time that a window not yet emitted can hold. `emitted_ms`: for each stage the end of the last
    window that it has emitted."""
    return min(first_event(windows[: stage + 1], emitted) for stage, emitted in enumerate(emitted_ms))
