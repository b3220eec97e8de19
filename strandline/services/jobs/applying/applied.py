"""What became of one document that was applied."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Applied:
    """What became of one document."""

    kind: Literal["stream", "lookup", "pipeline", "notice"]
    name: str
    outcome: Literal["created", "changed", "unchanged"]
    version: int
    notes: list[str] = field(default_factory=list)
    """What else is to be known: what the change of a stream, or of a lookup, means for each job that uses it."""
