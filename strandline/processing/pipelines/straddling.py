"""The rule for windows of equal distances that read the results of other windows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from strandline.core.documents import Path
from strandline.core.times.durations import format_duration
from strandline.processing.pipelines.calendars import days_begin_at_multiples
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.pipelines.stages import Stage


def straddling_problems(stage: Stage, before: Stage, lengths: Iterable[tuple[Path, int]]) -> Iterator[tuple[Path, str]]:
    """Yield the problems of windows that would contain different numbers of the windows before them.

    A result counts in the windows that contain the last moment of its own window. They must begin and end where windows of
    `before` begin. `lengths`: lengths in ms that must fit, with their paths in the stage.
    """
    windows, earlier = stage.windows, before.windows.result_windows
    if earlier.ends_move:
        return
    every = format_duration(earlier.spacing_ms)
    if earlier.begin_together:
        every = f"the {every} between the ends"
    elif earlier.overlaps:
        every = f"the {every} between the beginnings"
    for inner, length_ms in lengths:
        if length_ms % earlier.spacing_ms:
            yield (
                inner,
                f"{format_duration(length_ms)} of window '{stage.name}' is not a multiple of "
                f"{every} of window '{before.name}' before it, whose windows would straddle",
            )
    if not _begin_together(windows, earlier):
        zone, offset_ms = earlier.time_zone, earlier.offset_ms
        name, own = ("tz", f"days of {windows.time_zone}") if windows.time_zone else ("offset", "windows")
        begins = f"days of {zone}" if zone else f"a multiple of {format_duration(earlier.spacing_ms)}"
        begins += f" and {format_duration(offset_ms)}" if offset_ms else ""
        yield (
            (name,),
            f"{own} of '{stage.name}' begin inside windows of '{before.name}' ({begins}), which would straddle them; "
            "use the same time zone, and an offset that fits",
        )


def _begin_together(windows: WindowShape, before: WindowShape) -> bool:
    """Return True if a window begins where a window before it begins, regardless of sizes."""
    if before.time_zone is not None:
        return windows.time_zone == before.time_zone and windows.offset_ms == before.offset_ms
    if windows.time_zone is not None:
        return days_begin_at_multiples(windows.time_zone, windows.offset_ms, before.spacing_ms, before.offset_ms)
    return (windows.offset_ms - before.offset_ms) % before.spacing_ms == 0
