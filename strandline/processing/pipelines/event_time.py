"""The windows of a pipeline as numbers: where they begin and end. Pure, and light to import: it travels to every Python worker.

All in milliseconds of event time. An event at the last millisecond before a window's end belongs to it, one at its end doesn't.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from strandline.core.times.durations import format_duration, format_windows


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
    """The windows of one stage: each `size_ms` long, one beginning at every multiple of `every_ms` since 1970, or `offset_ms`
    later."""

    size_ms: int
    every_ms: int
    offset_ms: int = 0
    reads: tuple[int, ...] = field(default=(), kw_only=True)
    """Indices, among all windows of the pipeline, of the earlier ones whose results it reads; RECORDS for records. A join can
    read two. Empty for a pipeline without branches: each window reads the one before it, and the first reads records."""
    horizon_ms: int = field(default=0, kw_only=True)
    """How far from a record others may be that decide whether and how it counts here: those of which it may be a repeat, and
    `memory_ms`."""
    revise_ms: int = field(default=0, kw_only=True)
    """For so long after its end, in event time, late records revise a window's result; 0: they don't."""

    kind: ClassVar[str] = "windows"
    begin_together: ClassVar[bool] = False
    """True if several windows begin at one time and end one after the other."""

    @property
    def time_zone(self) -> str | None:
        """Time zone with whose days the windows begin. None if there is none."""
        return None

    @property
    def memory_ms(self) -> int:
        """Maximum time before a record of other records that are part of its window, although their own windows have closed."""
        return 0

    @property
    def spacing_ms(self) -> int:
        """Time from the beginning of a window to that of the next one, or between the ends of cumulative windows. Minimum for
        sessions."""
        return self.every_ms

    @property
    def overlaps(self) -> bool:
        """True if an event can be in several windows."""
        return self.every_ms < self.size_ms

    @property
    def needs_whole_keys(self) -> bool:
        """True if the windows of a key can be determined only from all its rows together."""
        return False

    @property
    def numbering(self) -> tuple[str, ...]:
        """Columns that tell results of one key apart whose windows can be equal."""
        return ()

    @property
    def result_windows(self) -> WindowShape:
        """The windows of the results: where they begin and end."""
        return self

    @property
    def identity(self) -> dict[str, object]:
        """All that determines where windows begin and end, as a JSON object."""
        return {
            "kind": self.kind,
            "size_ms": self.size_ms,
            "every_ms": self.every_ms,
            "offset_ms": self.offset_ms,
            "time_zone": self.time_zone,
        }

    @property
    def reach_ms(self) -> int:
        """How long before its end a window can depend on events, at most."""
        return self.size_ms

    @property
    def grid_ms(self) -> int:
        """Windows begin at multiples of it, or `offset_ms` later."""
        return self.every_ms

    @property
    def ends_move(self) -> bool:
        """Whether a window ends where its last record says, so later with each that comes."""
        return False

    def last_end(self, at_ms: int) -> int:
        """The end of the last window that ends at or before `at_ms`."""
        first_ms = self.offset_ms + self.size_ms
        return (at_ms - first_ms) // self.every_ms * self.every_ms + first_ms

    def last_start(self, at_ms: int) -> int:
        """The start of the last window that begins at or before `at_ms`."""
        return (at_ms - self.offset_ms) // self.every_ms * self.every_ms + self.offset_ms

    def first_end(self, after_ms: int) -> int:
        """The end of the first window that ends after `after_ms`."""
        return self.last_end(after_ms) + self.every_ms

    def first_start(self, after_ms: int) -> int:
        """Windows that end after `after_ms` depend on no earlier event. It is where the first of them begins, unless its results
        depend on more."""
        return self.first_begin(after_ms)

    def first_begin(self, after_ms: int) -> int:
        """The start of the first window that ends after `after_ms`."""
        return self.first_end(after_ms) - self.size_ms

    def last_end_holding(self, event_ms: int) -> int:
        """The end of the last window that can depend on an event at `event_ms`."""
        return self.last_start(event_ms) + self.size_ms

    def last_open_end(self, event_ms: int) -> int:
        """The end of the last window that can hold something, if no event is later than `event_ms`."""
        return self.last_end_holding(event_ms)

    def may_end_in(self, after_ms: int, up_to_ms: int) -> bool:
        """Whether it is worth looking for a window that ends in (`after_ms`, `up_to_ms`]."""
        return self.last_end(up_to_ms) > after_ms

    def __str__(self) -> str:
        offset = f", {format_duration(self.offset_ms)} later" if self.offset_ms else ""
        return format_windows(self.size_ms, self.every_ms) + offset


LOOK_MS_MIN = 1_000
"""Minimum event time in ms between two searches for windows whose ends are in the rows."""


@dataclass(frozen=True)
class AnywhereShape(WindowShape):
    """Windows that begin and end where records stand, so at any time."""

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
        """Where they end is in the rows, so it is looked for now and then."""
        return up_to_ms // LOOK_MS_MIN > after_ms // LOOK_MS_MIN


def places_taken(windows: Iterable[WindowShape]) -> list[tuple[int, ...]]:
    """For each of a pipeline's windows the places of those whose results it takes, or RECORDS: of a join up to two."""
    return [shape.reads or (at - 1,) for at, shape in enumerate(windows)]


def reach_of(windows: Sequence[WindowShape]) -> int:
    """How far back the open windows of a pipeline can go: as far as all on one path together, where that is most."""
    reaches: list[int] = []
    for shape, taken in zip(windows, places_taken(windows), strict=True):
        own_ms = shape.reach_ms + shape.horizon_ms + shape.revise_ms
        reaches.append(own_ms + max(0 if one == RECORDS else reaches[one] for one in taken))
    return max(reaches, default=0)


def last_ends(windows: Sequence[WindowShape], event_ms: int) -> Iterator[int]:
    """For each stage the end of the last window that depends on an event at `event_ms`, or on a result that comes of it.

    `windows` in the order of the stages: a result of one counts in those that take it as an event of its window's last moment.
    """
    ends: list[int] = []
    for shape, taken in zip(windows, places_taken(windows), strict=True):
        last_ms = max(event_ms if one == RECORDS else ends[one] - 1 for one in taken)
        ends.append(shape.last_end_holding(shape.horizon_ms + last_ms))
        yield ends[-1]


def open_until(windows: Sequence[WindowShape], latest_event_ms: int | None) -> int | None:
    """The end of the last window of all stages that can hold something yet; None before the first accepted record."""
    if latest_event_ms is None:
        return None
    return max(_open_ends(windows, latest_event_ms), default=latest_event_ms)


def _open_ends(windows: Sequence[WindowShape], latest_event_ms: int) -> list[int]:
    """For each stage the end of its last window that can hold something, if no event is later than `latest_event_ms`."""
    ends: list[int] = []
    for shape, taken in zip(windows, places_taken(windows), strict=True):
        ends.append(shape.last_open_end(max(latest_event_ms if one == RECORDS else ends[one] - 1 for one in taken)))
    return ends


def closes_a_window(
    windows: Sequence[WindowShape], from_ms: int | None, to_ms: int | None, open_until_ms: int | None
) -> bool:
    """Whether a window ends in (`from_ms`, `to_ms`] and, as far as `open_until` knows, can hold something."""
    if to_ms is None or open_until_ms is None or not windows:
        return False
    last_ms = min(to_ms, open_until_ms)
    if from_ms is None or from_ms < open_until_ms == last_ms:
        return True
    return any(shape.may_end_in(from_ms, last_ms) for shape in windows)


def first_event(windows: Sequence[WindowShape], after_ms: int) -> int:
    """The earliest event time on which a window of the last of these stages can depend, if it ends after `after_ms`.

    What a later stage's window holds are windows of the stages whose results it takes, which may begin before it: so each of
    them is asked in turn, and of several ways back the one that leads furthest counts.
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
    """The earliest event time that a window can hold that is not emitted yet, or may still be revised. `emitted_ms`: for each
    stage the end of the last window that it has emitted. `latest_event_ms`: of all events so far; None: there are none.

    Where none of these events can count any more, it is later than all of them, however far back windows reach: a session that
    has ended, say, decides nothing of those after it.
    """
    first_ms = min(
        first_event(windows[: stage + 1], emitted - windows[stage].revise_ms)
        for stage, emitted in enumerate(emitted_ms)
    )
    if latest_event_ms is None or may_still_count(windows, emitted_ms, latest_event_ms):
        return first_ms
    return max(first_ms, latest_event_ms + 1)


def may_still_count(windows: Sequence[WindowShape], emitted_ms: Sequence[int], latest_event_ms: int) -> bool:
    """Whether an event up to `latest_event_ms` may count in what is still to come: in a window that is not emitted, in a result
    that late records revise, or as what a later record repeats. `emitted_ms` as in `earliest_event`."""
    # What a record may repeat is remembered for the horizon: as long as if it were the event that comes last in it.
    horizon_ms = max((shape.horizon_ms for shape in windows), default=0)
    ends = _open_ends(windows, latest_event_ms + horizon_ms)
    return any(end + shape.revise_ms > emitted for end, shape, emitted in zip(ends, windows, emitted_ms, strict=True))


def shape_of_records(horizon_ms: int) -> WindowShape:
    """What an emission of records with a horizon keeps, as windows have it: a record that is still to come depends on no event
    from before the horizon."""
    return WindowShape(1, 1, reads=(RECORDS,), horizon_ms=horizon_ms)
