"""Rows of a version of a lookup, searched by key, and the rows in which it differs from the version before it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from strandline.core.described import Described
from strandline.core.errors import NotFound
from strandline.core.lookups.lookup import LookupSpec
from strandline.core.lookups.packed_rows import unpack_rows
from strandline.ledger.lookups.versions import LookupReader
from strandline.services.processes.limited_work import RunLimited

CHANGES_SHOWN = 100
"""Maximum number of changed rows in a response. All are counted."""


@dataclass(frozen=True)
class LookupRows(Described):
    """A page of the rows of a version."""

    lookup: str
    version: int
    key: list[str]
    """Fields of the key."""
    matches: int
    """Number of rows that match the search."""
    page: list[dict[str, Any]]
    """Rows that match, in the order of the version."""
    next: str | None = None
    """Path of the next page; null if there is none."""


@dataclass(frozen=True)
class LookupRowChange(Described):
    """A row that differs between two versions."""

    before: dict[str, Any] | None
    """Row of the earlier version; null if the row was added."""
    after: dict[str, Any] | None
    """Row of the version; null if the row was removed."""


@dataclass(frozen=True)
class LookupChanges(Described):
    """The rows in which a version differs from the version before it."""

    lookup: str
    version: int
    earlier: int
    """Number of the version before it."""
    added: int
    removed: int
    changed: int
    page: list[LookupRowChange]
    """The first 100 differing rows."""


def lookup_rows(
    ledger: LookupReader, run_limited: RunLimited, name: str, version: int | None, key: str, skip: int, limit: int
) -> LookupRows:
    """Return the rows of a version, or of the current one, whose key contains a string.

    Raises NotFound if the ledger doesn't keep the version or its rows any more.
    """
    row = ledger.lookup(name) if version is None else ledger.lookup_version(name, version)
    fields, packed = LookupSpec.described(row.document).key, ledger.lookup_table(row.digest)
    matches, page = run_limited("search in a lookup", find_rows, fields, packed, key, skip, limit)
    return LookupRows(name, row.version, list(fields), matches, page)


def lookup_changes(ledger: LookupReader, run_limited: RunLimited, name: str, version: int) -> LookupChanges:
    """Return the rows in which a version differs from the version before it.

    Raises NotFound if the ledger doesn't keep one of the versions or its rows any more.
    """
    history = ledger.lookup_history(name)
    earlier = max((number for number in history if number < version), default=None)
    if version not in history or earlier is None:
        raise NotFound(f"Lookup {name} has no version before version {version} in the ledger.")
    fields = LookupSpec.described(history[version].document).key
    tables = [ledger.lookup_table(history[one].digest) for one in (earlier, version)]
    counts, page = run_limited("comparison of a lookup", find_changes, fields, *tables)
    return LookupChanges(name, version, earlier, *counts, [LookupRowChange(*one) for one in page])


def find_rows(key: list[str], packed: str, search: str, skip: int, limit: int) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of rows whose key contains a string, in any case, and a page of them."""
    wanted = search.lower()
    found = [row for row in _rows(packed) if any(wanted in str(row.get(name)).lower() for name in key)]
    return len(found), found[skip : skip + limit]


Change = tuple[dict[str, Any] | None, dict[str, Any] | None]
"""Row before and after."""


def find_changes(key: list[str], before: str, after: str) -> tuple[tuple[int, int, int], list[Change]]:
    """Return the numbers of added, removed, and changed rows, and the first of them."""
    old, new = ({json.dumps([row.get(name) for name in key]): row for row in _rows(text)} for text in (before, after))
    added: list[Change] = [(None, row) for one, row in new.items() if one not in old]
    removed: list[Change] = [(row, None) for one, row in old.items() if one not in new]
    changed: list[Change] = [(old[one], row) for one, row in new.items() if one in old and old[one] != row]
    return (len(added), len(removed), len(changed)), [*changed, *added, *removed][:CHANGES_SHOWN]


def _rows(packed: str) -> list[dict[str, Any]]:
    text = unpack_rows(packed)
    return [json.loads(line) for line in text.split(b"\n")] if text else []
