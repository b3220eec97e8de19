"""The windows of the two stages, computed only from their shapes."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.processing.pipelines.event_time import WindowShape
from tests.simulation.versions import MINUTE, Version

Key = tuple[str, int, int, str]
"""Key of a result: stage, window start and end, device."""
Results = dict[Key, tuple[int, int]]
Sums = dict[Key, list[int]]
"""Values of open windows: records, power."""


def windows_holding(shape: WindowShape, event_ms: int) -> list[tuple[int, int]]:
    """(start, end) of each, the first one first."""
    size_ms, every_ms = shape.size_ms, shape.every_ms
    if size_ms == every_ms:
        start = event_ms - event_ms % every_ms
        return [(start, start + size_ms)]
    first = (event_ms - size_ms) // every_ms * every_ms + every_ms
    return [(start, start + size_ms) for start in range(first, event_ms + 1, every_ms)]


def last_end(shape: WindowShape, at_ms: int) -> int:
    return (at_ms - shape.size_ms) // shape.every_ms * shape.every_ms + shape.size_ms


def windows_of(version: Version, event_ms: int) -> Iterator[tuple[str, int, int]]:
    """(stage, start, end) of each window in which an event counts, as often as it counts there."""
    for start, end in windows_holding(version.short, event_ms):
        yield "short", start, end
        for first, last in windows_holding(MINUTE, end - 1):
            yield "minute", first, last


def add(sums: Sums, key: Key, n: int, total: int) -> None:
    held = sums.get(key)
    if held is None:
        sums[key] = [n, total]
    else:
        held[0] += n
        held[1] += total
