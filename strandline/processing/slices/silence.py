"""How long each partition has been silent: what a run's monotonic clock counted while Kafka answered and nothing was pending.

Silence lets event time run on, and what comes afterwards may be late. So whatever is not known to be silence is not counted:

* the time of a look itself;
* more than `GAP_MAX_MS` between two looks: the run was busy or paused, and nobody knows whether Kafka answered;
* while a transaction is open in the partition, or a record in it is in no slice yet.

A partition to which something came begins anew, whether it can be read yet or not: records, or the end of a transaction. All of
them begin anew after an outage, a look that failed or took longer than `LOOK_MAX_MS`: senders and gateways could not reach Kafka
either, and send again only now. So they do in a new run: nobody knows what was between it and the one before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

GAP_MAX_MS = 2_000
LOOK_MAX_MS = 2_000

Vector = dict[int, int]


@dataclass
class _Partition:
    ends: tuple[int, int]
    """Without what open transactions hold, and with it."""
    counted_ms: int
    is_quiet: bool


class SilenceMeter:
    """Counts for one run. The planner looks through it each time that it looks at the log."""

    def __init__(self, monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000) -> None:
        self.monotonic_ms = monotonic_ms
        self._partitions: dict[int, _Partition] = {}
        self._answered_ms: int | None = None
        """When the last look had its answer; None when it had none."""

    def look(self, ask: Callable[[], tuple[Vector, Vector]], read: Mapping[int, int]) -> tuple[Vector, Vector]:
        """Ask, count, and return each partition's end and its silence in ms.

        `ask` gives each partition's end without open transactions, and with them; what it raises passes through. `read` is where
        the last slice ends.
        """
        answered_ms, self._answered_ms = self._answered_ms, None
        began_ms = self.monotonic_ms()
        ends, written = ask()
        self._answered_ms = self.monotonic_ms()
        if answered_ms is None or self._answered_ms - began_ms > LOOK_MAX_MS:
            self._partitions.clear()
        gap_ms = min(began_ms - answered_ms, GAP_MAX_MS) if answered_ms is not None else 0
        for partition, end in ends.items():
            both = end, written.get(partition, end)
            is_quiet = both == (read.get(partition), read.get(partition))
            before = self._partitions.get(partition)
            counted_ms = 0
            if before is not None and before.ends == both:
                counted_ms = before.counted_ms + (gap_ms if is_quiet and before.is_quiet else 0)
            self._partitions[partition] = _Partition(both, counted_ms, is_quiet)
        return ends, {partition: self._partitions[partition].counted_ms for partition in ends}
