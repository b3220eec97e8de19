"""Lookups: their registration, and the jobs that need them."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query

from strandline.services.jobs import lookups
from strandline.services.jobs.lookup_rows import LookupChanges, LookupRows, lookup_changes, lookup_rows
from strandline.services.jobs.lookups import LookupView, lookup_summaries, lookup_view
from strandline.services.rest.dependencies import INTEGER_MAX, Caller, Control
from strandline.services.rest.views import DeletedLookupView, LookupList

router = APIRouter(tags=["lookups"])

ROWS_PAGE_MAX = 1_000
Version = Annotated[int, Path(ge=1, le=INTEGER_MAX)]


@router.get("/v1/lookups")
def list_lookups(control: Control) -> LookupList:
    """Return all lookups, by name."""
    return LookupList(lookups=lookup_summaries(control.ledger))


@router.get("/v1/lookups/{name}")
def show_lookup(control: Control, name: str) -> LookupView:
    """Return one lookup, its versions, and the jobs that need it."""
    return lookup_view(control.ledger, name)


@router.get("/v1/lookups/{name}/rows")
def list_lookup_rows(
    control: Control,
    name: str,
    key: Annotated[
        str, Query(max_length=250, description="Only rows whose key contains this string, in any case")
    ] = "",
    version: Annotated[int | None, Query(ge=1, le=INTEGER_MAX)] = None,
    skip: Annotated[int, Query(ge=0, le=INTEGER_MAX)] = 0,
    limit: Annotated[int, Query(ge=1, le=ROWS_PAGE_MAX)] = 100,
) -> LookupRows:
    """Return rows of the current version, or of another one whose rows are kept, in pages."""
    found = lookup_rows(control.ledger, control.run_limited, name, version, key, skip, limit)
    if skip + limit >= found.matches:
        return found
    query = {"key": key, "version": found.version, "skip": skip + limit, "limit": limit}
    return replace(found, next=f"/v1/lookups/{name}/rows?{urlencode(query)}")


@router.get("/v1/lookups/{name}/versions/{version}/changes")
def show_lookup_changes(control: Control, name: str, version: Version) -> LookupChanges:
    """Return the rows in which a version differs from the version before it, if the rows of both are kept."""
    return lookup_changes(control.ledger, control.run_limited, name, version)


@router.delete("/v1/lookups/{name}")
def delete_lookup(control: Control, caller: Caller, name: str) -> DeletedLookupView:
    """Delete a lookup that no job needs."""
    lookups.delete_lookup(control.ledger, name, caller)
    return DeletedLookupView(lookup=name)
