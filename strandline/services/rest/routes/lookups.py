"""Lookups: their registration, and the jobs that need them."""

from __future__ import annotations

from fastapi import APIRouter

from strandline.services.jobs import lookups
from strandline.services.jobs.lookups import LookupView, lookup_summaries, lookup_view
from strandline.services.rest.dependencies import Caller, Control
from strandline.services.rest.views import DeletedLookupView, LookupList

router = APIRouter(tags=["lookups"])


@router.get("/v1/lookups")
def list_lookups(control: Control) -> LookupList:
    """Return all lookups, by name."""
    return LookupList(lookups=lookup_summaries(control.ledger))


@router.get("/v1/lookups/{name}")
def show_lookup(control: Control, name: str) -> LookupView:
    """Return one lookup, its versions, and the jobs that need it."""
    return lookup_view(control.ledger, name)


@router.delete("/v1/lookups/{name}")
def delete_lookup(control: Control, caller: Caller, name: str) -> DeletedLookupView:
    """Delete a lookup that no job needs."""
    lookups.delete_lookup(control.ledger, name, caller)
    return DeletedLookupView(lookup=name)
