"""The monthly indices of one emission: each is created before its first document, and never twice.

An index is created once in an incarnation of a job, and the ledger stores its name. So a missing index that was created
before is a loss, and is reported. If it was recreated, it would be empty, and the loss would not be noticed.
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


class CreatedIndices(Protocol):
    """Names of the indices that a job has created, in the ledger: they outlive a process, and the loss of an index. Pickles."""

    def names(self) -> set[str]:
        """Return the names of the created indices. Raises LedgerUnavailable."""
        ...

    def add(self, index: str) -> None:
        """Add an index. Idempotent. Raises LedgerUnavailable."""
        ...


@dataclass(frozen=True)
class MonthIndices:
    """The indices of one emission, in one generation."""

    url: str
    shape: DocumentShape
    settings: IndexSettings
    made: CreatedIndices

    def make_sure(self, next_end_ms: int | None) -> None:
        """Set up template, mappings, and aliases before a run's first write, and check that the newest created index
        exists.

        Before that, the alias stops showing results of earlier incarnations of the job.

        The newest index is checked only if results can still be written to it or to an earlier one. These are results
        of windows that end at `next_end_ms` or later, or of any window if that is None. Other indices may have been deleted,
        manually or by a lifecycle policy, because they aren't written any more.

        Raises IndexMisconfigured, Conflict, IndexUnavailable, and LedgerUnavailable.
        """
        # Before the store is checked: another process may create an index in the meantime and add its name.
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
        """Create the index of a month before a run's first document for it, unless it exists.

        Raises the errors of `make_sure`.
        """
        made = self.made.names()  # before the store is checked, as above
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
            f"index {index} no longer exists, with the results that job {self.shape.job} emitted to it. Run strandline job "
            f"backfill {self.shape.job} --missing, which recreates the index, restores its results, and starts the job; or "
            f"restore the index from a snapshot first"
        )
