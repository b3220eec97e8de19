"""The windows of the two stages, computed from nothing but their shapes."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.processing.pipelines.event_time import WindowShape
from tests.simulation.versions import MINUTE, Version

Key = tuple[str, int, int, str]
"""Of a result: stage, window start and end, device."""
Results = dict[Key, tuple[int, int]]
Sums = dict[Key, list[int]]
"""Of windows that are open: records, power."""


def windows_holding(shape: WindowShape, event_ms: int) -> list[tuple[int, int]]:
    """(start, end) of each, the first one first."""
    last = event_ms // shape.every_ms * shape.every_ms
    starts = range(last, event_ms - shape.size_ms, -shape.every_ms)
    return [(start, start + shape.size_ms) for start in reversed(starts)]


def last_end(shape: WindowShape, at_ms: int) -> int:
    return (at_ms - shape.size_ms) // shape.every_ms * shape.every_ms + shape.size_ms


def windows_of(version: Version, event_ms: int) -> Iterator[tuple[str, int, int]]:
    """(stage, start, end) of each window in which an event counts, as often as it counts there."""
    for start, end in windows_holding(version.short, event_ms):
        yield "short", start, end
        for first, last in windows_holding(MINUTE, end - 1):
            yield "minute", first, last


def add(sums: Sums, key: Key, n: int, total: int) -> None:
    held = sums.setdefault(key, [0, 0])
    held[0] += n
    held[1] += total
