"""Which versions of the lookups that a pipeline uses a run records with the next slice that it cuts."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # this module travels to every Python worker, which needs neither SQL nor pydantic
    from strandline.ledger.lookups.versions import LookupReader
    from strandline.ledger.states import LookupVersions

UsedLookups = tuple[tuple[str, tuple[str, ...]], ...]
"""The lookups that a pipeline uses, each with the fields that it adds."""


class LookupsInForce:
    """The versions in force, for one run. Any version will do that has the fields: types and key are the same in all."""

    def __init__(self, ledger: LookupReader, used: UsedLookups) -> None:
        self._ledger = ledger
        self._used = dict(used)
        self._looked: dict[str, tuple[int, bool]] = {}
        """Lookup -> the version that was looked at last, and whether it has the fields."""

    @property
    def names(self) -> Collection[str]:
        """The lookups that the pipeline uses."""
        return self._used.keys()

    def versions(self, present: LookupVersions | None = None) -> LookupVersions | None:
        """The present version of each lookup; None when one lacks a field that the pipeline adds: then the run may plan nothing,
        because a version of the pipeline that does without comes in a moment. What was in the log before the versions were read
        may be enriched by them. `present`: versions that were read, and perhaps those of other lookups; None: they are read now.
        Raises LedgerUnavailable, NotFound."""
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
    """What several steps use. `adds`: (lookup, fields) of each."""
    found: dict[str, dict[str, None]] = {}
    for name, fields in adds:
        found.setdefault(name, {}).update(dict.fromkeys(fields))
    return tuple((name, tuple(fields)) for name, fields in found.items())
