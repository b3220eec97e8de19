"""Results of the check of one condition of a notice. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Finding:
    """A problem that a condition found, with all information for the person who is notified."""

    subject: str
    """The affected object, as `job power`. A condition has at most one open problem of a subject."""
    title: str
    """The problem, in one line."""
    affected: str
    """Consequences for records, results, and users."""
    action: str
    """Remedy: exact commands, one per line."""
    reason: str = ""
    """Cause of the problem; empty if unknown."""
    job: str | None = None


@dataclass(frozen=True)
class Happened:
    """A finding that an event caused."""

    event: int
    """Number of the event."""
    at_ms: int
    finding: Finding


@dataclass(frozen=True)
class Sight:
    """Result of one check of one condition. A condition that is based on events opens problems only by `happened`; `holding`
    keeps them open. Another condition opens problems by `holding`."""

    holding: Mapping[str, Finding] = field(default_factory=dict)
    """Subject -> problem that exists now."""
    happened: tuple[Happened, ...] = ()
    unknown: frozenset[str] = frozenset()
    """Subjects whose state is unknown. Their problems stay unchanged."""
    lost: Mapping[str, str] = field(default_factory=dict)
    """Subject -> reason why its state can't become known any more. Its problem ends, and the message has the reason."""
    is_blind: bool = False
    """True if nothing could be checked."""
    by_events: bool = False
    """True if only events open problems."""
    has_end: bool = True
    """False if a problem has no duration, as the end of a batch. Then no message reports that it is over."""
    hold_ms: int = 0
    """Time for which `holding` must contain a problem before it is opened."""
    clear_ms: int = 0
    """Time for which `holding` must not contain a problem before it is over."""
