"""Segments: parts of a state that never change and are stored next to it, under names that follow from their bytes. Pure.

A state contains the names of its segments. It stays small, and a step writes only what is new. A segment that a state no longer
needs stays in its store for some steps, because Spark may take an older state again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from hashlib import sha256
from typing import Protocol

_KEPT_STEPS = 4
"""Number of steps for which an unused segment stays in its store. Spark can use the state before the last one again."""

Unused = tuple[tuple[str, int], ...]
"""Names of segments that a state no longer needs, each with the number of steps since then."""


class SegmentStore(Protocol):
    """Store of the large segments of one state."""

    def add(self, segment: bytes) -> str:
        """Store a segment and return its name. Adding the same bytes again changes nothing."""

    def read(self, names: Sequence[str]) -> list[memoryview]:
        """Return the segments of these names. The names must be all that the state contains.

        Raises StrandlineError if a segment is missing or differs from what was added.
        """

    def remove(self, name: str) -> None:
        """Remove a segment that no state needs. Do nothing if the store doesn't contain it."""


class MemorySegments:
    """Segments in memory, for one process that keeps its state there."""

    def __init__(self) -> None:
        self._segments: dict[str, bytes] = {}

    @property
    def bytes_kept(self) -> int:
        return sum(map(len, self._segments.values()))

    def add(self, segment: bytes) -> str:
        name = name_of(segment)
        self._segments[name] = segment
        return name

    def read(self, names: Sequence[str]) -> list[memoryview]:
        return [memoryview(self._segments[name]) for name in names]

    def remove(self, name: str) -> None:
        self._segments.pop(name, None)


def name_of(segment: bytes | memoryview) -> str:
    """Return the name of a segment of these bytes: their SHA-256 sum."""
    return sha256(segment).hexdigest()


def unused_after(unused: Unused, names: Iterable[str], used: Collection[str], store: SegmentStore) -> Unused:
    """Return the unused segments after one more step, each with the number of steps since it was used.

    Remove the segments from the store that were unused for long enough.

    Args:
        unused: Unused segments before the step.
        names: Names of the segments that the state had before the step.
        used: Names of the segments that it has now.
    """
    older = [(name, steps + 1) for name, steps in unused if name not in used]
    for name, steps in older:
        if steps >= _KEPT_STEPS:
            store.remove(name)
    kept = [(name, steps) for name, steps in older if steps < _KEPT_STEPS]
    return (*kept, *((name, 0) for name in names if name not in used))
