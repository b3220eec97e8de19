"""Lookup versions that enrich recorded slices, and the tables of their rows from the ledger. A process loads a table once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from strandline.core.errors import NotFound, PermanentError
from strandline.processing.source.opened_ledger import open_ledger

if TYPE_CHECKING:  # a worker whose pipeline has no lookup starts sooner without what computes
    from strandline.ledger.lookups.versions import LookupReader
    from strandline.ledger.states import SliceRow
    from strandline.processing.operators.lookups.lookup_table import LookupTable
    from strandline.processing.pipelines.checked_pipeline import CheckedPipeline

HELD_BYTES_MAX = 64 << 20
"""Maximum size in bytes of the tables that a process holds in addition to those in use."""


class LookupRef(NamedTuple):
    """One version of a lookup. Spark pickles it with each piece of the log that is enriched with it."""

    name: str
    version: int
    digest: str


class SliceLookups:
    """Versions of lookups that enrich recorded slices. Queries the ledger only for versions that it has not seen."""

    def __init__(self, ledger: LookupReader, bases: Iterable[tuple[str, int]]) -> None:
        """`bases`: the lookups that the pipeline uses, each with the version for slices that record no version of it."""
        self._ledger = ledger
        self._bases = tuple(bases)
        self._digests: dict[tuple[str, int], str] = {}

    def of(self, row: SliceRow) -> tuple[LookupRef, ...]:
        """Return the version of each lookup with which the slice is enriched. Raises LedgerUnavailable."""
        found = []
        for name, base in self._bases:
            version = row.lookup_versions.get(name, base)
            if (name, version) not in self._digests:
                for number, digest in self._ledger.lookup_digests(name, version).items():
                    self._digests[name, number] = digest
            found.append(LookupRef(name, version, self._digests[name, version]))
        return tuple(found)


Tables = dict[str, "LookupTable"]


class LookupTableCache:
    """Cache of lookup tables of one ledger, for one process. It keeps up to `held_bytes_max` of the last used tables."""

    def __init__(self, open_ledger: Callable[[], LookupReader], held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self._open_ledger = open_ledger
        self._held_bytes_max = held_bytes_max
        self._held: OrderedDict[LookupRef, LookupTable] = OrderedDict()

    def tables(self, refs: Sequence[LookupRef]) -> Tables:
        """Return lookup -> table of this version. Raises LedgerUnavailable; PermanentError if a version was removed."""
        missing = [ref for ref in refs if ref not in self._held]
        if missing:
            with closing(self._open_ledger()) as ledger:
                self._held |= {ref: _table(ledger, ref) for ref in missing}
        found = {ref.name: self._held[ref] for ref in refs}
        for ref in refs:
            self._held.move_to_end(ref)
        while len(self._held) > len(refs) and self._bytes_held() > self._held_bytes_max:
            self._held.popitem(last=False)
        return found

    def _bytes_held(self) -> int:
        return sum(table.bytes_held for table in self._held.values())


def _table(ledger: LookupReader, ref: LookupRef) -> LookupTable:
    from strandline.processing.formats.lookups.rows import kept_table

    try:
        packed = ledger.lookup_table(ref.digest)
    except NotFound as error:
        raise PermanentError(
            f"Version {ref.version} of lookup {ref.name} is not kept any more, but slices that must be read again were "
            "enriched with it. Nothing that depends on them was emitted. Submit the pipeline under another name."
        ) from error
    return kept_table(ledger.lookup_version(ref.name, ref.version), packed)


_kept: dict[str, LookupTableCache] = {}


def tables_of_process(ledger_url: str, refs: Sequence[LookupRef]) -> Tables:
    """Return lookup -> table, from the cache of this process, which Spark reuses. `ledger_url`: without its password."""
    if ledger_url not in _kept:
        _kept[ledger_url] = LookupTableCache(lambda: open_ledger(ledger_url))
    return _kept[ledger_url].tables(refs)


def present_tables(ledger: LookupReader, names: Iterable[str]) -> Tables:
    """Return lookup -> table of its current version. Raises NotFound if a lookup doesn't exist, LedgerUnavailable."""
    present: list[Any] = [ledger.lookup(name) for name in names]
    return {row.name: _table(ledger, LookupRef(row.name, row.version, row.digest)) for row in present}


def with_present_tables(ledger: LookupReader, pipeline: CheckedPipeline) -> CheckedPipeline:
    """Return the pipeline with the current table of each lookup whose table it lacks. For local runs, which have no slices."""
    missing = [name for name, _ in pipeline.lookups if name not in pipeline.tables]
    return replace(pipeline, tables={**pipeline.tables, **present_tables(ledger, missing)}) if missing else pipeline


def with_recorded_tables(ledger: LookupReader, pipeline: CheckedPipeline, refs: Sequence[LookupRef]) -> CheckedPipeline:
    """Return the pipeline with the tables that enrich a recorded slice. Raises LedgerUnavailable; PermanentError if the ledger
    no longer contains a table."""
    return replace(pipeline, tables={ref.name: _table(ledger, ref) for ref in refs}) if refs else pipeline
