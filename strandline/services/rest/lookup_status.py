"""How lookups are followed, as the API, metrics and the status of jobs show it. Reads only."""

from __future__ import annotations

from collections.abc import Collection

from strandline.core.lookups.lookup import LookupSpec
from strandline.core.times.durations import format_about
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import LookupRow, LookupSourceRow
from strandline.services.rest.views import LookupSourceView, LookupSummary


def lookup_summaries(ledger: Ledger) -> list[LookupSummary]:
    """All lookups, by name."""
    states = ledger.lookup_sources()
    return [lookup_summary(row, states.get(row.name)) for row in ledger.lookups()]


def lookup_summary(row: LookupRow, state: LookupSourceRow | None) -> LookupSummary:
    """One lookup. `state`: how its source is read, if it is followed."""
    return LookupSummary(**vars(row), source=None if state is None else _source_view(row, state))


def lookup_warnings(ledger: Ledger, names: Collection[str] | None = None) -> list[str]:
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
