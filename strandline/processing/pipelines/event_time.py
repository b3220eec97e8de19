"""How a pipeline treats event time. A module of its own, light to import: it travels to every Python worker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EventTimeRule:
    """All in milliseconds; `idle_timeout_ms` None means that silence closes no window."""

    delay_ms: int
    idle_timeout_ms: int | None
    window_sizes_ms: tuple[int, ...]
