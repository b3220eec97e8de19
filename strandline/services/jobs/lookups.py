"""Lookups: state of their sources, jobs that need them, and their deletion."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from strandline.core.described import Described
from strandline.core.lookups.lookup import LookupSpec
from strandline.core.times.durations import format_about
from strandline.ledger.lookups.versions import LookupReader
from strandline.ledger.roles import ApplyLedger
from strandline.ledger.states import LookupRow, LookupSourceRow

_VERSIONS_SHOWN = 100


@dataclass(frozen=True)
class LookupSourceView(Described):
    """State of a lookup's source."""

    description: str
    """Description of the source, as `stream devices`."""
    state: Literal["current", "failing", "old"]
    """`failing`: the last reading failed; `old`: the rows are older than `max_age_ms`."""
    age_ms: int
    """Time since the current version was equal to the source."""
    max_age_ms: int
    every_ms: int
    """Interval of the readings."""
    next_in_ms: int
    """Time until the next reading. For large versions, it can be longer than `every_ms`."""
    failing_ms: int | None
    """Time for which reading has failed; null if it hasn't."""
    error: str
    """Reason why the last reading failed; empty if it didn't."""
    skipped: int
    """Number of records of a stream that can't be rows, since the document was applied."""
    skipped_last: str
    """The last of these records: its position, and the reason."""


@dataclass(frozen=True)
class LookupSummary(Described):
    """A lookup in its current version."""

    name: str
    version: int
    digest: str
    document: dict[str, Any]
    """The lookup's document without its rows."""
    rows: int
    applied_ms: int
    source: LookupSourceView | None
    """State of its source; null if its rows are in its document."""


@dataclass(frozen=True)
class LookupVersionView(Described):
    """One version of a lookup."""

    version: int
    rows: int
    digest: str
    applied_ms: int


@dataclass(frozen=True)
class LookupView(LookupSummary):
    """A lookup in its current version, and its earlier versions."""

    jobs: list[str]
    """Jobs that need the lookup: their current version uses it, or a slice that a replay can read was enriched with it."""
    version_needed: int | None
    """Oldest version whose rows a replay can need; null if no job needs the lookup."""
    versions: list[LookupVersionView]
    """The newest 100 versions, the oldest of them first."""


def lookup_summaries(ledger: LookupReader) -> list[LookupSummary]:
    """Return all lookups, by name."""
    states = ledger.lookup_sources()
    return [lookup_summary(row, states.get(row.name)) for row in ledger.lookups()]


def lookup_summary(row: LookupRow, state: LookupSourceRow | None) -> LookupSummary:
    """Return one lookup. `state`: state of its source, if it is followed."""
    return LookupSummary(**vars(row), source=None if state is None else _source_view(row, state))


def lookup_view(ledger: LookupReader, name: str) -> LookupView:
    """Return one lookup, its versions, and the jobs that need it. Raises NotFound."""
    row, history = ledger.lookup(name), ledger.lookup_history(name, _VERSIONS_SHOWN)
    summary = lookup_summary(row, ledger.lookup_sources().get(name))
    versions = [
        LookupVersionView(version=one.version, rows=one.rows, digest=one.digest, applied_ms=one.applied_ms)
        for one in history.values()
    ]
    jobs, needed = ledger.jobs_with_lookup(name), ledger.lookup_floor(name)
    return LookupView(**vars(summary), jobs=jobs, version_needed=needed, versions=versions)


def delete_lookup(ledger: ApplyLedger, name: str, principal: str | None) -> None:
    """Delete a lookup that no job needs, for `principal`. Raises Conflict if a job needs it; NotFound."""
    ledger.delete_lookup(name)
    ledger.record_event("lookup_deleted", f"lookup {name} is deleted", facts={"lookup": name}, principal=principal)


def lookup_warnings(ledger: LookupReader) -> list[str]:
    """Return a message for each lookup whose source can't be read, or that is too old."""
    return list(lookup_warnings_of(ledger, None).values())


def lookup_warnings_of(ledger: LookupReader, names: Collection[str] | None) -> dict[str, str]:
    """Return lookup -> message, by name, for those of `names` whose source can't be read, or that are too old. `names`: None for
    all."""
    wanted = [one for one in lookup_summaries(ledger) if names is None or one.name in names]
    return {one.name: warning for one in wanted if (warning := _warning(one))}


def _source_view(row: LookupRow, state: LookupSourceRow) -> LookupSourceView:
    source = LookupSpec.described(row.document).source
    assert source is not None
    is_old = state.age_ms > source.age_ms_max
    return LookupSourceView(
        description=source.description,
        state="old" if is_old else "current" if state.failing_ms is None else "failing",
        age_ms=state.age_ms,
        max_age_ms=source.age_ms_max,
        every_ms=source.every,
        next_in_ms=state.due_in_ms,
        failing_ms=state.failing_ms,
        error=state.error,
        skipped=state.skipped,
        skipped_last=state.skipped_last,
    )


def _warning(lookup: LookupSummary) -> str:
    """Return the message for a lookup. Empty if there is no problem."""
    source = lookup.source
    if source is None or source.state == "current":
        return ""
    age = f"lookup {lookup.name} has the content of {source.description} of {format_about(source.age_ms)} ago"
    limit = f", but must not be older than {format_about(source.max_age_ms)}" if source.state == "old" else ""
    why = source.error or "no control service has read it since; check that a control service runs, and see its log"
    return f"{age}{limit}: {why}"
