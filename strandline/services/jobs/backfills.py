"""Backfills as the status of jobs and the API show them."""

from __future__ import annotations

from dataclasses import dataclass, fields

from strandline.core.described import Described
from strandline.ledger.states import BackfillRow, BackfillState


@dataclass(frozen=True)
class WindowRangeView(Described):
    """Windows by their end."""

    after_ms: int
    """They end after it."""
    up_to_ms: int
    """The last one ends at it."""


@dataclass(frozen=True)
class BackfillView(Described):
    """Windows that are computed again, as a generation of their own."""

    job: str
    generation: int
    """Counted from 2; 1 is what the job itself writes. The indices are `{emit name}.gN-yyyy.MM`."""
    version: int
    """Of the pipeline that computes them."""
    from_ms: int
    to_ms: int | None
    """As requested; null: up to what was emitted then."""
    windows: dict[str, WindowRangeView]
    """Stage -> its windows."""
    state: BackfillState
    message: str
    """Why it is in this state; empty when there is nothing to say."""
    done_ms: int | None
    """All windows that end at or before this time are written; null while none is."""
    records: int
    """About how many are to be read."""
    records_done: int
    results: dict[str, int]
    """Stage -> results."""
    refused: dict[str, int]
    """Stage -> results that the index refused; each has a dead letter."""
    sample: list[str]
    """Why the index refused the first of them."""
    attempts: int
    """How many processes have worked on it."""
    requested_ms: int
    updated_ms: int
    ended_ms: int | None


_SHOWN = {field.name for field in fields(BackfillView)}


def backfill_view(row: BackfillRow) -> BackfillView:
    """Return the backfill as it is shown."""
    shown = {name: value for name, value in vars(row).items() if name in _SHOWN}
    windows = {stage: WindowRangeView(**one._asdict()) for stage, one in row.windows.items()}
    return BackfillView(**{**shown, "windows": windows, "attempts": row.epoch})
