"""The windows of joined rows: where they begin and end."""

from __future__ import annotations

from dataclasses import dataclass, field

from strandline.core.times.durations import format_duration
from strandline.processing.pipelines.event_time import AnywhereShape, WindowShape


@dataclass(frozen=True)
class JoinShape(AnywhereShape):
    """Windows of an interval join. The window of a joined row begins with its earlier row. It ends 1 ms after the millisecond
    of its later row. The window of a row without a partner ends when no partner can arrive any more.

    A row on the left at `t` matches rows on the right from `before_ms` before it to `after_ms` after it, both included. `size_ms`
    is the length of the longest window. `every_ms` is 1, because windows can end anywhere.
    """

    before_ms: int = 0
    after_ms: int = 0
    is_latest: bool = False
    """True if a row on the left matches only the latest of these rows."""
    kind = "join"

    @property
    def spacing_ms(self) -> int:
        return self.size_ms

    @property
    def identity(self) -> dict[str, object]:
        return {**super().identity, "within": [self.before_ms, self.after_ms], "latest": self.is_latest}

    @property
    def reach_ms(self) -> int:
        """Time in ms before the end of a result in which rows can decide it: the row, all possible partners, and the rows before
        these that count for `max_rows`. A join with the latest row doesn't count rows."""
        if self.is_latest:
            return self.size_ms
        return self.before_ms + self.after_ms + self.size_ms

    def last_open_end(self, event_ms: int) -> int:
        return event_ms + self.size_ms

    def __str__(self) -> str:
        if self.is_latest:
            return f"joined with the latest within {format_duration(self.before_ms)} before"
        return f"joined within {format_duration(self.before_ms)} before and {format_duration(self.after_ms)} after"


@dataclass(frozen=True)
class SameWindowShape(WindowShape):
    """Windows of a join of results with the same window. Each joined row has that window, and depends on all results that ended
    with it. `of`: windows of both sides. `size_ms` is their size."""

    of: WindowShape = field(kw_only=True)
    kind = "same_window"

    @property
    def needs_whole_keys(self) -> bool:
        return True

    @property
    def result_windows(self) -> WindowShape:
        return self.of

    @property
    def identity(self) -> dict[str, object]:
        return {**super().identity, "of": self.of.identity}

    @property
    def reach_ms(self) -> int:
        return 1

    @property
    def grid_ms(self) -> int:
        return self.of.grid_ms

    def last_end(self, at_ms: int) -> int:
        return self.of.last_end(at_ms)

    def last_start(self, at_ms: int) -> int:
        return self.of.last_start(at_ms)

    def first_end(self, after_ms: int) -> int:
        return self.of.first_end(after_ms)

    def first_start(self, after_ms: int) -> int:
        """Return the last millisecond of the first window that ends after `after_ms`, which is the event time of its results."""
        return self.first_end(after_ms) - self.reach_ms

    def first_begin(self, after_ms: int) -> int:
        return self.of.first_begin(after_ms)

    def last_end_holding(self, event_ms: int) -> int:
        return self.first_end(event_ms)

    def may_end_in(self, after_ms: int, up_to_ms: int) -> bool:
        return self.of.may_end_in(after_ms, up_to_ms)

    def __str__(self) -> str:
        return f"joined in the same window, {self.of}"
