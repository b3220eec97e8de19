"""Sessions: where they begin and end."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.core.times.durations import format_duration
from strandline.processing.pipelines.event_time import LOOK_MS_MIN, AnywhereShape

_LOOKS_A_GAP = 10
"""Number of searches for sessions that end while no record arrives, in the time of one gap."""


@dataclass(frozen=True)
class SessionShape(AnywhereShape):
    """Sessions: each ends when for `every_ms`, the gap, no event follows its last one, and lasts `size_ms` at most.

    Event times of one key that are less than the gap apart make a *chain*. A chain is one session, [first event, last event +
    gap), unless it lasts longer than `size_ms`. Then its first session ends at its *first cut*, `size_ms` after the beginning
    of the first event's pane. What follows is cut at every multiple of `size_ms` since 1970; the rule as code is in
    `operator.py`. So where a chain began must be known to `size_ms` only, however long it is: what makes a
    session that ends at E lies in its `reach_ms` before E.
    """

    kind = "session"

    @property
    def gap_ms(self) -> int:
        """How long no event may follow."""
        return self.every_ms

    @property
    def pane_ms(self) -> int:
        """Events of one key in one pane are in one session: it is no longer than the gap, and a cut is never inside. The longest
        part of the greatest length that is no longer than the gap, where there is one of more than half a gap."""
        least = -(-self.size_ms // self.every_ms)
        parts = next((parts for parts in range(least, 2 * least) if self.size_ms % parts == 0), least)
        return self.size_ms // parts

    @property
    def cut_ms(self) -> int:
        """How long a session is at most: `size_ms`, in whole panes."""
        return self.size_ms // self.pane_ms * self.pane_ms

    @property
    def reach_ms(self) -> int:
        """A session of greatest length, and as much again before it, with a gap: there it shows whether its chain began so early
        that the session begins at a cut."""
        return 2 * self.size_ms + self.every_ms

    def last_open_end(self, event_ms: int) -> int:
        return event_ms + self.gap_ms

    def may_end_in(self, after_ms: int, up_to_ms: int) -> bool:
        """Where sessions end is in the records, so it is looked for now and then."""
        step_ms = max(LOOK_MS_MIN, self.gap_ms // _LOOKS_A_GAP)
        return up_to_ms // step_ms > after_ms // step_ms

    def __str__(self) -> str:
        return f"sessions with a gap of {format_duration(self.gap_ms)}, {format_duration(self.size_ms)} at most"
