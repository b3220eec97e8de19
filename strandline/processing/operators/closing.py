"""The windows that become final in one step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Closing:
    """The windows that become final in one step: those that end after `after_ms` and at or before `up_to_ms`."""

    after_ms: int | None
    """None for no lower limit: before the first window closes, and if the state starts empty, in the first batch of a rewind or
    in a chunk of a backfill. The emission leaves out results that an earlier run emitted."""
    up_to_ms: int | None
    """None if no window becomes final."""
    emitted_ms: int | None = None
    """Windows that end at or before this time are emitted. New rows revise them. None if no revision is requested."""
    gives_results: bool = True
    """False if no stage and no emission reads the results. A replay can close many more windows in one step than a normal step.
    """
