"""Sessions: where they begin and end."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.core.times.durations import format_duration
from strandline.processing.pipelines.event_time import LOOK_MS_MIN, AnywhereShape

_LOOKS_A_GAP = 10
"""Number of searches for sessions that end while no record arrives, in the time of one gap."""


@dataclass(frozen=True)
class SessionShape(AnywhereShape):
    """Sessions. A session ends when no event follows its last one for `every_ms`, the gap. It lasts at most `size_ms`.

    Event times of one key that are less than the gap apart form a *chain*. A chain is one session, [first event, last event +
    gap), unless it lasts longer than `size_ms`. Then its first session ends at its *first cut*, `size_ms` after the beginning
    of the pane of the first event. The rest is cut at every multiple of `size_ms` since 1970. `operator.py` has the rule as code.

    So the beginning of a chain must be known only to a multiple of `size_ms`, however long the chain is. All records that
    determine a session that ends at E are in the `reach_ms` before E.
    """

    kind = "session"

    @property
    def gap_ms(self) -> int:
        """Minimum time between two sessions of one key."""
        return self.every_ms

    @property
    def pane_ms(self) -> int:
        """Length of a pane. All events of one key in one pane are in one session.

        A pane is no longer than the gap, and no cut is inside it. The length is the longest fraction of `size_ms` that is no
        longer than the gap, if that is more than half a gap."""
        least = -(-self.size_ms // self.every_ms)
        parts = next((parts for parts in range(least, 2 * least) if self.size_ms % parts == 0), least)
        return self.size_ms // parts

    @property
    def cut_ms(self) -> int:
        """Maximum length of a session: `size_ms`, rounded down to complete panes."""
        return self.size_ms // self.pane_ms * self.pane_ms

    @property
    def reach_ms(self) -> int:
        """Maximum length of a session, plus the same length and a gap before it. Records in this time show whether the chain
        began so early that the session begins at a cut."""
        return 2 * self.size_ms + self.every_ms

    def last_open_end(self, event_ms: int) -> int:
        return event_ms + self.gap_ms

    def may_end_in(self, after_ms: int, up_to_ms: int) -> bool:
        """Return True at regular intervals, because the records determine where sessions end."""
        step_ms = max(LOOK_MS_MIN, self.gap_ms // _LOOKS_A_GAP)
        return up_to_ms // step_ms > after_ms // step_ms

    def __str__(self) -> str:
        return f"sessions with a gap of {format_duration(self.gap_ms)}, {format_duration(self.size_ms)} at most"
