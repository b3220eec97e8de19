"""Which windows become final in one step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Closing:
    """Which windows become final in one step: those that end after `after_ms` and at or before `up_to_ms`."""

    after_ms: int | None
    """None: no lower limit. So it is before the first window closes, and where the state begins empty: in the first batch of a
    rewind and in each chunk of a backfill. The emission leaves out what an earlier run emitted."""
    up_to_ms: int | None
    """None: no window."""
    emitted_ms: int | None = None
    """Windows that end at or before it are emitted: new rows of theirs revise them. None: no revision is asked for."""
    gives_results: bool = True
    """Not where nobody takes them: what a replay closes may be many times what one step closes later."""
