"""The monthly indices of one emission: each is made before the first document for it, and never twice.

An index is made once in the life of a job, which the ledger remembers. So an index that is not there although it was made is a
loss, and is told; made again it would be empty, and nobody would know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from strandline.core.errors import IndexMisconfigured
from strandline.results.document import DocumentShape
from strandline.results.elasticsearch_client import RequestRefused
from strandline.results.generations import hide_older
from strandline.results.index_settings import IndexSettings
from strandline.results.mapping import build_mapping, ensure_index_template, make_index
from strandline.results.names import first_index, index_stem
from strandline.results.remedies import stopped_by_request


class MadeIndices(Protocol):
    """Remembers which indices a job made, beyond the life of a process and of the store. Pickles."""

    def names(self) -> set[str]:
        """Those that were made. Raises LedgerUnavailable."""
        ...

    def add(self, index: str) -> None:
        """Remember one; doing it again changes nothing. Raises LedgerUnavailable."""
        ...


@dataclass(frozen=True)
class MonthIndices:
    """The indices of one emission, in one generation."""

    url: str
    shape: DocumentShape
    settings: IndexSettings
    made: MadeIndices

    def make_sure(self, next_end_ms: int | None) -> None:
        """Make sure, before a run's first write, of template, mappings and aliases, and that the newest index made is there, if
        results may still go to it or to an earlier one: of windows that end at `next_end_ms` or later, or of any (None).

        Before that, the alias no longer shows what earlier lives of the job wrote.

        Others may have been deleted, by hand or by a lifecycle policy: nothing is written to them any more. Raises
        IndexMisconfigured, Conflict, IndexUnavailable, LedgerUnavailable.
        """
        # Before the store is looked at: meanwhile another process may make an index and remember it.
        made = self.made.names()
        if self.shape.is_shown:
            hide_older(self.url, self.shape.emit_name, self.shape.generation)
        stem = index_stem(self.shape.emit_name, self.shape.generation)
        first = None if next_end_ms is None else first_index(stem, next_end_ms)
        held = self._ensure_template(first)
        own = [index for index in made if index.startswith(f"{stem}-") and "-" not in index.removeprefix(f"{stem}-")]
        newest = max(own, default=None)
        if newest is not None and newest not in held and (first is None or newest >= first):
            raise self._lost(newest)

    def make_sure_of(self, index: str) -> None:
        """Make the index of a month before a run's first document for it, unless it is there. Raises as `make_sure` does."""
        made = self.made.names()  # before the store is looked at, as above
        if index in self._ensure_template(index):
            if index not in made:
                self.made.add(index)
            return
        if index in made:
            raise self._lost(index)
        shape, mapping = self.shape, build_mapping(self.shape)
        try:
            make_index(self.url, index, shape.emit_name, mapping, is_shown=shape.is_shown, settings=self.settings)
        except RequestRefused as error:
            raise stopped_by_request(error, index, shape.emit_name) from error
        self.made.add(index)

    def _ensure_template(self, first: str | None) -> list[str]:
        shape, mapping = self.shape, build_mapping(self.shape)
        try:
            return ensure_index_template(
                self.url,
                shape.emit_name,
                mapping,
                generation=shape.generation,
                is_shown=shape.is_shown,
                settings=self.settings,
                first=first,
            )
        except RequestRefused as error:
            raise stopped_by_request(error, f"{shape.emit_name}-*", shape.emit_name) from error

    def _lost(self, index: str) -> IndexMisconfigured:
        return IndexMisconfigured(
            f"index {index} is gone, with the results that job {self.shape.job} emitted to it. Run strandline job backfill "
            f"{self.shape.job} --missing, which makes the index again, restores its results, and starts the job; or restore the "
            f"index from a snapshot first"
        )
