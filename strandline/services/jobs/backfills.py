"""Backfills in the form of the status of jobs and the API."""

from __future__ import annotations

from dataclasses import dataclass, fields

from strandline.core.described import Described
from strandline.ledger.states import BackfillRow, BackfillState


@dataclass(frozen=True)
class WindowRangeView(Described):
    """Range of windows by their end."""

    after_ms: int
    """Exclusive lower bound of the ends of the windows."""
    up_to_ms: int
    """End of the last window."""


@dataclass(frozen=True)
class BackfillView(Described):
    """Windows that are recomputed as a separate generation."""

    job: str
    generation: int
    """Number of the generation, from 2. The job itself writes generation 1. The indices are `{emit name}.gN-yyyy.MM`."""
    version: int
    """Version of the pipeline that computes them."""
    from_ms: int
    to_ms: int | None
    """Requested end; null for the windows emitted at the time of the request."""
    windows: dict[str, WindowRangeView]
    """Stage -> range of its windows."""
    state: BackfillState
    message: str
    """Reason for the state; empty if there is none."""
    done_ms: int | None
    """All windows that end at or before this time are written; null if none is written."""
    records: int
    """Approximate number of records to read."""
    records_done: int
    results: dict[str, int]
    """Stage -> number of results."""
    refused: dict[str, int]
    """Stage -> number of results that the index refused. Each has a dead letter."""
    sample: list[str]
    """Reasons for which the index refused the first of them."""
    attempts: int
    """Number of processes that have worked on it."""
    requested_ms: int
    updated_ms: int
    ended_ms: int | None


_SHOWN = {field.name for field in fields(BackfillView)}


def backfill_view(row: BackfillRow) -> BackfillView:
    """Return the backfill in the form of the API."""
    shown = {name: value for name, value in vars(row).items() if name in _SHOWN}
    windows = {stage: WindowRangeView(**one._asdict()) for stage, one in row.windows.items()}
    return BackfillView(**{**shown, "windows": windows, "attempts": row.epoch})
