"""Results of a look at one condition of a notice. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Finding:
    """A problem that a condition found, with all that a person must know at night."""

    subject: str
    """The affected object, as `job power`. A condition has at most one open problem of a subject."""
    title: str
    """What is wrong, in one line."""
    affected: str
    """What this means for records, results and users."""
    action: str
    """What to do: exact commands, one a line."""
    reason: str = ""
    """Why, as far as it is known; empty if unknown."""
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
    """Result of one look at one condition.

    A condition that is based on events opens problems by `happened` only; `holding` keeps them open. Another condition opens
    problems by `holding`.
    """

    holding: Mapping[str, Finding] = field(default_factory=dict)
    """Subject -> problem that is there now."""
    happened: tuple[Happened, ...] = ()
    unknown: frozenset[str] = frozenset()
    """Subjects whose state could not be found out: their problems stay as they are."""
    is_blind: bool = False
    """True if nothing could be found out."""
    by_events: bool = False
    """True if only events open problems."""
    has_end: bool = True
    """False if a problem is a moment, as the end of a batch: nothing reports that it is over."""
    hold_ms: int = 0
    """How long `holding` must contain a problem before it is opened."""
    clear_ms: int = 0
    """How long `holding` must not contain a problem before it is over."""
