"""Lookups: what is registered, and who needs it."""

from __future__ import annotations

from fastapi import APIRouter

from strandline.services.rest.dependencies import Caller, Control
from strandline.services.rest.lookup_status import lookup_summaries, lookup_summary
from strandline.services.rest.views import DeletedLookupView, LookupList, LookupVersionView, LookupView

_VERSIONS_SHOWN = 100
router = APIRouter(tags=["lookups"])


@router.get("/v1/lookups")
def list_lookups(control: Control) -> LookupList:
    """All lookups, by name."""
    return LookupList(lookups=lookup_summaries(control.ledger))


@router.get("/v1/lookups/{name}")
def show_lookup(control: Control, name: str) -> LookupView:
    """One lookup, its versions, and the jobs that need it."""
    ledger = control.ledger
    row, history = ledger.lookup(name), ledger.lookup_history(name, _VERSIONS_SHOWN)
    summary = lookup_summary(row, ledger.lookup_sources().get(name))
    versions = [
        LookupVersionView(version=one.version, rows=one.rows, digest=one.digest, applied_ms=one.applied_ms)
        for one in history.values()
    ]
    jobs, needed = ledger.jobs_with_lookup(name), ledger.lookup_floor(name)
    return LookupView(**dict(summary), jobs=jobs, version_needed=needed, versions=versions)


@router.delete("/v1/lookups/{name}")
def delete_lookup(control: Control, caller: Caller, name: str) -> DeletedLookupView:
    """Delete a lookup that no job needs."""
    control.ledger.delete_lookup(name)
    control.ledger.record_event("lookup_deleted", f"lookup {name} is deleted", facts={"lookup": name}, principal=caller)
    return DeletedLookupView(lookup=name)
