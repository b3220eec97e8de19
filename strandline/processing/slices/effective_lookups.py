"""Versions of lookups that a run records with its next slice."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # this module travels to every Python worker, which needs neither SQL nor pydantic
    from strandline.ledger.lookups.versions import LookupReader
    from strandline.ledger.states import LookupVersions

UsedLookups = tuple[tuple[str, tuple[str, ...]], ...]
"""The lookups that a pipeline uses, each with the fields that it adds."""


class EffectiveLookups:
    """Current versions of lookups, for one run. A run can use any version that has the fields: all versions have the same types
    and key."""

    def __init__(self, ledger: LookupReader, used: UsedLookups) -> None:
        self._ledger = ledger
        self._used = dict(used)
        self._looked: dict[str, tuple[int, bool]] = {}
        """Lookup -> the version that was checked last, and True if it has the fields."""

    @property
    def names(self) -> Collection[str]:
        """The lookups that the pipeline uses."""
        return self._used.keys()

    def versions(self, present: LookupVersions | None = None) -> LookupVersions | None:
        """Return the current version of each lookup. None if one lacks a field that the pipeline adds: then the run must plan
        nothing, because a version of the pipeline without the field follows in a moment.

        Records that were in the log before the versions were read may be enriched with them. `present`: versions that were read
        before, also of other lookups; None to read them now. Raises LedgerUnavailable, NotFound."""
        if not self._used:
            return {}
        if present is None or self._used.keys() - present.keys():
            present = self._ledger.present_lookups(tuple(self._used))
        own = {name: present[name] for name in self._used}
        return own if all([self._has_fields(name, version) for name, version in own.items()]) else None

    def _has_fields(self, name: str, version: int) -> bool:
        looked, has_fields = self._looked.get(name, (0, False))
        if looked != version:
            document = self._ledger.lookup_version(name, version).document
            has_fields = document["schema"].keys() >= set(self._used[name])
            self._looked[name] = version, has_fields
        return has_fields


def used_lookups(adds: Iterable[tuple[str, Iterable[str]]]) -> UsedLookups:
    """Return the lookups of several steps, with all fields that these add. `adds`: (lookup, fields) of each step."""
    found: dict[str, dict[str, None]] = {}
    for name, fields in adds:
        found.setdefault(name, {}).update(dict.fromkeys(fields))
    return tuple((name, tuple(fields)) for name, fields in found.items())
