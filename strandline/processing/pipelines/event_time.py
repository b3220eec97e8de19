"""The windows of a pipeline as numbers: where they begin and end. Pure, and light to import, because every Python worker needs
it.

All times are milliseconds of event time. An event in the last millisecond before a window's end belongs to the window. An event
at its end doesn't.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

from strandline.core.times.durations import format_duration, format_windows


@dataclass(frozen=True)
class EventTimeSource:
    """The source of the event time of records."""

    field: str | None
    """Timestamp field of the stream. None if log time is event time."""
    or_log: bool = False
    """True if the log time of a record is its event time when the field is missing or null."""

    def __str__(self) -> str:
        if self.field is None:
            return "log time"
        return f"field {self.field}{', or log time' if self.or_log else ''}"


RECORDS = -1
"""Index that replaces the index of a window: a first stage reads records."""


@dataclass(frozen=True)
class WindowShape:
    """Windows of one stage. Each is `size_ms` long. One window begins at every multiple of `every_ms` since 1970, plus
    `offset_ms`."""

    size_ms: int
    every_ms: int
    offset_ms: int = 0
    reads: tuple[int, ...] = field(default=(), kw_only=True)
    """Indices, among all windows of the pipeline, of the earlier windows whose results the stage reads; RECORDS for records. A
    join can read two. Empty for a pipeline without branches: each window reads the window before it, and the first reads
    records."""
    horizon_ms: int = field(default=0, kw_only=True)
    """Maximum difference in event time, in ms, to other records that decide whether and how a record counts: its possible
    originals, and the records in `memory_ms`."""
    revise_ms: int = field(default=0, kw_only=True)
    """Time in ms after the end of a window, in event time, for which late records revise its result. 0 if they don't."""

    kind: ClassVar[str] = "windows"
    begin_together: ClassVar[bool] = False
    """True if several windows begin together and end one after another."""

    @property
    def time_zone(self) -> str | None:
        """Time zone with whose days the windows begin. None if there is none."""
        return None

    @property
    def memory_ms(self) -> int:
        """Maximum time before a record of other records that are part of its window, although their own windows have closed."""
        return 0

    @property
    def is_of_two(self) -> bool:
        """True if a window has only its record and the record before it, so that it computes the difference of the two itself. In
        other windows, another stage computes the differences before."""
        return False

    @property
    def spacing_ms(self) -> int:
        """Time from the beginning of a window to that of the next one, or between the ends of cumulative windows. Minimum for
        sessions."""
        return self.every_ms

    @property
    def overlaps(self) -> bool:
        """True if windows of equal size overlap, so that they share panes. False for windows made by records, even if a record is
        in several of them."""
        return self.every_ms < self.size_ms

    @property
    def needs_whole_keys(self) -> bool:
        """True if the windows of a key can be determined only from all its rows together."""
        return False

    @property
    def numbering(self) -> tuple[str, ...]:
        """Columns that distinguish results of one key whose windows can be equal."""
        return ()

    @property
    def result_windows(self) -> WindowShape:
        """Windows of the results: where they begin and end."""
        return self

    @property
    def identity(self) -> dict[str, object]:
        """Everything that determines where windows begin and end, as a JSON object."""
        return {
            "kind": self.kind,
            "size_ms": self.size_ms,
            "every_ms": self.every_ms,
            "offset_ms": self.offset_ms,
            "time_zone": self.time_zone,
        }

    @property
    def reach_ms(self) -> int:
        """Maximum time in ms before its end from which a window can depend on events."""
        return self.size_ms

    @property
    def grid_ms(self) -> int:
        """Windows begin at multiples of this time in ms, plus `offset_ms`."""
        return self.every_ms

    @property
    def ends_move(self) -> bool:
        """True if the last record of a window determines its end, so that more records can move the end."""
        return False

    def last_end(self, at_ms: int) -> int:
        """Return the end of the last window that ends at or before `at_ms`."""
        first_ms = self.offset_ms + self.size_ms
        return (at_ms - first_ms) // self.every_ms * self.every_ms + first_ms

    def last_start(self, at_ms: int) -> int:
        """Return the start of the last window that begins at or before `at_ms`."""
        return (at_ms - self.offset_ms) // self.every_ms * self.every_ms + self.offset_ms

    def first_end(self, after_ms: int) -> int:
        """Return the end of the first window that ends after `after_ms`."""
        return self.last_end(after_ms) + self.every_ms

    def first_start(self, after_ms: int) -> int:
        """Return the earliest event time that windows that end after `after_ms` depend on. It is the beginning of the first of
        these windows, unless its results depend on more."""
        return self.first_begin(after_ms)

    def first_begin(self, after_ms: int) -> int:
        """Return the start of the first window that ends after `after_ms`."""
        return self.first_end(after_ms) - self.size_ms

    def last_end_holding(self, event_ms: int) -> int:
        """Return the end of the last window that can depend on an event at `event_ms`."""
        return self.last_start(event_ms) + self.size_ms

    def last_open_end(self, event_ms: int) -> int:
        """Return the end of the last window that can contain an event, if no event is later than `event_ms`."""
        return self.last_end_holding(event_ms)

    def may_end_in(self, after_ms: int, up_to_ms: int) -> bool:
        """Return True if a window can end in (`after_ms`, `up_to_ms`], so that a search is useful."""
        return self.last_end(up_to_ms) > after_ms

    def __str__(self) -> str:
        offset = f", {format_duration(self.offset_ms)} later" if self.offset_ms else ""
        return format_windows(self.size_ms, self.every_ms) + offset


LOOK_MS_MIN = 1_000
"""Minimum event time in ms between two searches for windows whose ends are in the rows."""


@dataclass(frozen=True)
class AnywhereShape(WindowShape):
    """*Windows made by records*: the records of a key determine where its windows begin and end, so these times can be any."""

    @property
    def ends_move(self) -> bool:
        return True

    @property
    def overlaps(self) -> bool:
        return False

    @property
    def needs_whole_keys(self) -> bool:
        return True

    @property
    def grid_ms(self) -> int:
        return 1

    def last_end(self, at_ms: int) -> int:
        return at_ms

    def last_start(self, at_ms: int) -> int:
        return at_ms

    def first_end(self, after_ms: int) -> int:
        return after_ms + 1

    def first_start(self, after_ms: int) -> int:
        return after_ms + 1 - self.reach_ms

    def last_end_holding(self, event_ms: int) -> int:
        return event_ms + self.reach_ms

    def may_end_in(self, after_ms: int, up_to_ms: int) -> bool:
        """Return True if a multiple of an interval is in (`after_ms`, `up_to_ms`]. Only the rows determine where windows end,
        so a search at regular intervals is enough."""
        return up_to_ms // LOOK_MS_MIN > after_ms // LOOK_MS_MIN


def places_taken(windows: Iterable[WindowShape]) -> list[tuple[int, ...]]:
    """Return, for each window of a pipeline, the indices of the windows whose results it reads, or RECORDS. A join can have
    two."""
    return [shape.reads or (at - 1,) for at, shape in enumerate(windows)]


def reach_of(windows: Sequence[WindowShape]) -> int:
    """Return the maximum time in ms by which open windows of a pipeline reach back in event time. It is the sum of `reach_ms`
    over the windows of a path, for the longest path."""
    reaches: list[int] = []
    for shape, taken in zip(windows, places_taken(windows), strict=True):
        own_ms = shape.reach_ms + shape.horizon_ms + shape.revise_ms
        reaches.append(own_ms + max(0 if one == RECORDS else reaches[one] for one in taken))
    return max(reaches, default=0)


def last_ends(windows: Sequence[WindowShape], event_ms: int) -> Iterator[int]:
    """Yield, for each stage, the end of the last window that depends on an event at `event_ms`, or on a result of this event.

    `windows`: in the order of the stages. In a window that reads results, a result counts as an event at the last moment of its
    own window.
    """
    ends: list[int] = []
    for shape, taken in zip(windows, places_taken(windows), strict=True):
        last_ms = max(event_ms if one == RECORDS else ends[one] - 1 for one in taken)
        ends.append(shape.last_end_holding(shape.horizon_ms + last_ms))
        yield ends[-1]


def open_until(
    windows: Sequence[WindowShape], latest_event_ms: int | None, known_ends: Mapping[int, int] = MappingProxyType({})
) -> int | None:
    """Return the end of the last window of all stages that can contain an event so far. None before the first accepted record.

    `known_ends`: index of a stage -> the end of a window that contains an event. Later records can extend a session."""
    if latest_event_ms is None:
        return None
    return max(_open_ends(windows, latest_event_ms, known_ends), default=latest_event_ms)


def _open_ends(
    windows: Sequence[WindowShape], latest_event_ms: int, known_ends: Mapping[int, int] = MappingProxyType({})
) -> list[int]:
    """Return, for each stage, the end of its last window that can contain an event, if no event is later than
    `latest_event_ms`. `known_ends`: see `open_until`."""
    ends: list[int] = []
    for at, (shape, taken) in enumerate(zip(windows, places_taken(windows), strict=True)):
        last_ms = shape.last_open_end(max(latest_event_ms if one == RECORDS else ends[one] - 1 for one in taken))
        ends.append(max(last_ms, known_ends.get(at, last_ms)))
    return ends


def closes_a_window(
    windows: Sequence[WindowShape], from_ms: int | None, to_ms: int | None, open_until_ms: int | None
) -> bool:
    """Return True if a window that can contain an event ends in (`from_ms`, `to_ms`]. `open_until_ms`: see `open_until`."""
    if to_ms is None or open_until_ms is None or not windows:
        return False
    last_ms = min(to_ms, open_until_ms)
    if from_ms is None or from_ms < open_until_ms == last_ms:
        return True
    return any(shape.may_end_in(from_ms, last_ms) for shape in windows)


def first_event(windows: Sequence[WindowShape], after_ms: int) -> int:
    """Return the earliest event time on which a window of the last of these stages can depend, if it ends after `after_ms`.

    A window of a later stage contains windows of the stages that it reads, which can begin before it. So each stage is
    considered in turn. If several paths lead back, the path that leads back furthest counts.
    """
    taken = places_taken(windows)
    first = {len(windows) - 1: after_ms}
    found = []
    for at in reversed(range(len(windows))):
        if at not in first:
            continue
        start_ms = windows[at].first_start(first[at]) - windows[at].horizon_ms
        for before in taken[at]:
            if before == RECORDS:
                found.append(start_ms)
            else:
                first[before] = min(start_ms, first.get(before, start_ms))
    return min(found, default=after_ms)


def earliest_event(windows: Sequence[WindowShape], emitted_ms: Sequence[int], latest_event_ms: int | None) -> int:
    """Return the earliest event time that a window can contain that isn't emitted, or can still be revised.

    If none of these events can count any more, the result is later than all of them, even if windows reach back to them. For
    example, a session that has ended doesn't affect later sessions.

    Args:
        emitted_ms: End of the last window that each stage has emitted.
        latest_event_ms: Event time of the latest event so far. None if there are no events.
    """
    first_ms = min(
        first_event(windows[: stage + 1], emitted - windows[stage].revise_ms)
        for stage, emitted in enumerate(emitted_ms)
    )
    if latest_event_ms is None or may_still_count(windows, emitted_ms, latest_event_ms):
        return first_ms
    return max(first_ms, latest_event_ms + 1)


def may_still_count(windows: Sequence[WindowShape], emitted_ms: Sequence[int], latest_event_ms: int) -> bool:
    """Return True if an event up to `latest_event_ms` can still count. It can be in a window that isn't emitted, in a result
    that late records can revise, or the original of a duplicate. `emitted_ms`: see `earliest_event`."""
    # Records are kept as possible originals for the horizon. So a record counts like the last event that it could affect.
    horizon_ms = max((shape.horizon_ms for shape in windows), default=0)
    ends = _open_ends(windows, latest_event_ms + horizon_ms)
    return any(end + shape.revise_ms > emitted for end, shape, emitted in zip(ends, windows, emitted_ms, strict=True))


def shape_of_records(horizon_ms: int) -> WindowShape:
    """Return the state of an emission of records with a horizon, in the form of windows: a new record depends on no event before
    the horizon."""
    return WindowShape(1, 1, reads=(RECORDS,), horizon_ms=horizon_ms)
