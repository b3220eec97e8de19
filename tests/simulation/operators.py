"""The two windows of the simulated job, in the simplest form of what the operators compute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.simulation.log import Record
from tests.simulation.versions import MINUTE, Version
from tests.simulation.windows import Key, Sums, add, windows_holding


@dataclass
class Operators:
    """The two windows, as the operators compute them.

    A step adds rows and closes what ends at or before `to_ms`. Results of the first window enter the second in the same
    step.
    """

    version: Version
    closed_ms: int | None = None
    short: Sums = field(default_factory=dict)
    minute: Sums = field(default_factory=dict)

    def step(self, rows: list[Record], to_ms: int | None) -> list[tuple[Key, tuple[int, int]]]:
        closed_ms, below, shape = self.closed_ms or 0, self.version.below, self.version.short
        for row in rows:
            for start, end in windows_holding(shape, row.event_ms):
                if end <= closed_ms:
                    raise AssertionError(f"an accepted record comes to a closed window: {row}, closed {closed_ms}")
                if row.power < below:
                    add(self.short, ("short", start, end, row.device), 1, row.power)
        self.closed_ms = to_ms
        shorts = list(self._close(self.short))
        for (_, _, short_end, device), (n, total) in shorts:
            for start, end in windows_holding(MINUTE, short_end - 1):
                add(self.minute, ("minute", start, end, device), n, total)
        return [*shorts, *self._close(self.minute)]

    def _close(self, open_: Sums) -> Iterator[tuple[Key, tuple[int, int]]]:
        for key in sorted(key for key in open_ if self.closed_ms is not None and key[2] <= self.closed_ms):
            n, total = open_.pop(key)
            yield key, (n, total)
