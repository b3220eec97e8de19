"""Outcome of the application of one document."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Applied:
    """Outcome of the application of one document."""

    kind: Literal["stream", "lookup", "pipeline", "notice"]
    name: str
    outcome: Literal["created", "changed", "unchanged"]
    version: int
    notes: list[str] = field(default_factory=list)
    """Notes: the effect of the change of a stream, or of a lookup, on each job that uses it."""
