"""Lookups: how each is followed, who needs it, and its deletion."""

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
    """How a lookup's source is followed."""

    told: str
    """What it is, as `stream devices`."""
    state: Literal["current", "failing", "old"]
    """`failing`: the last reading failed; `old`: the rows are older than `max_age_ms`."""
    age_ms: int
    """How long ago the present version was what the source said."""
    max_age_ms: int
    every_ms: int
    """How often it is read."""
    next_in_ms: int
    """When it is read again; for large versions later than `every_ms`."""
    failing_ms: int | None
    """For how long reading has failed."""
    error: str
    """Why the last reading failed; empty: it did not."""
    skipped: int
    """Records of a stream that could be no rows, since the document was applied."""
    skipped_last: str
    """The last of them: where it stands, and why."""


@dataclass(frozen=True)
class LookupSummary(Described):
    """A lookup in its present version."""

    name: str
    version: int
    digest: str
    document: dict[str, Any]
    """The lookup's document without its rows."""
    rows: int
    applied_ms: int
    source: LookupSourceView | None
    """Null: its rows came with its document."""


@dataclass(frozen=True)
class LookupVersionView(Described):
    """One version of a lookup."""

    version: int
    rows: int
    digest: str
    applied_ms: int


@dataclass(frozen=True)
class LookupView(LookupSummary):
    """A lookup in its present version, and the versions before."""

    jobs: list[str]
    """Those that need it: because their present versions use it, or slices that a replay may read went by it."""
    version_needed: int | None
    """The oldest version whose rows a replay may need; null: no job needs the lookup."""
    versions: list[LookupVersionView]
    """The newest 100, the oldest of them first."""


def lookup_summaries(ledger: LookupReader) -> list[LookupSummary]:
    """All lookups, by name."""
    states = ledger.lookup_sources()
    return [lookup_summary(row, states.get(row.name)) for row in ledger.lookups()]


def lookup_summary(row: LookupRow, state: LookupSourceRow | None) -> LookupSummary:
    """One lookup. `state`: how its source is read, if it is followed."""
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
    """Delete a lookup that no job needs, for `principal`. Raises NotFound, Conflict."""
    ledger.delete_lookup(name)
    ledger.record_event("lookup_deleted", f"lookup {name} is deleted", facts={"lookup": name}, principal=principal)


def lookup_warnings(ledger: LookupReader, names: Collection[str] | None = None) -> list[str]:
    """A sentence for each of these lookups, or of all, that can't be read or is too old."""
    wanted = [one for one in lookup_summaries(ledger) if names is None or one.name in names]
    return [told for one in wanted if (told := _warning(one))]


def _source_view(row: LookupRow, state: LookupSourceRow) -> LookupSourceView:
    source = LookupSpec.described(row.document).source
    assert source is not None
    is_old = state.age_ms > source.age_ms_max
    return LookupSourceView(
        told=source.told,
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
    """Empty where nothing is wrong."""
    source = lookup.source
    if source is None or source.state == "current":
        return ""
    age = f"lookup {lookup.name} is as {source.told} was {format_about(source.age_ms)} ago"
    limit = f", and should not be older than {format_about(source.max_age_ms)}" if source.state == "old" else ""
    why = source.error or "no control service has read it since: see that one runs, and what its log says"
    return f"{age}{limit}: {why}"
