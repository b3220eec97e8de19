"""The limit on windows that contain the same record."""

from __future__ import annotations

from strandline.core.times.durations import format_duration

WINDOWS_MAX = 10_000
"""Maximum number of windows of one step that contain the same record: each of them is a result."""


def too_many(size_ms: int, apart_ms: int) -> str | None:
    """Return the problem of windows of this size, one each `apart_ms`; None if there is none."""
    if apart_ms == 0 or -(-size_ms // apart_ms) <= WINDOWS_MAX:
        return None
    return (
        f"{format_duration(apart_ms)} puts each record into {-(-size_ms // apart_ms):,} windows of up to "
        f"{format_duration(size_ms)}; expected at most {WINDOWS_MAX:,}, so at least {format_duration(-(-size_ms // WINDOWS_MAX))}"
    )
