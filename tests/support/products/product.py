"""Messages of one product, and what its documentation states about them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

T0 = 1_793_534_400
"""Time of the first message, in seconds."""
DOUBLE, LONG, STRING, BOOLEAN, TIME, ANY = "double", "long", "string", "boolean", "timestamp", "any"


@dataclass(frozen=True)
class Product:
    """Messages of a product."""

    records: list[Any]
    """JSON values, or lines of text."""
    rows: int
    """Number of readings in the messages."""
    types: dict[str, str]
    """Types in the documentation, of the fields that it describes."""
    explode: Any = None
    """Expected `explode` of the document."""
    format: str = "json"
    """Expected `format` of the document."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Path of a value that isn't in the rows -> reason."""

    @property
    def sample(self) -> bytes:
        """The messages as a file."""
        lines = [one if isinstance(one, str) else json.dumps(one) for one in self.records]
        return "\n".join(lines).encode() + b"\n"


def at(minute: int) -> str:
    """Return an ISO 8601 time in UTC."""
    return f"2026-10-05T06:{minute:02}:00Z"


def seconds(minute: int) -> int:
    """Return a time in seconds."""
    return T0 + 60 * minute


def millis(minute: int) -> int:
    """Return a time in milliseconds."""
    return 1_000 * seconds(minute)
