"""Versions of stream documents that a run records with its next slice.

If the compiled pipeline is the same with a new version (an added optional field, other bounds, another path), the version is
effective from the next slice. Otherwise (a wider type), another run must recompute the open windows with the new types.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from strandline.core.errors import NotFound

if TYPE_CHECKING:  # this module travels to every Python worker, which needs neither SQL nor pydantic
    from strandline.ledger.roles import LedgerReader
    from strandline.ledger.states import StreamVersions


class SchemaCompatibility(Enum):
    """Effect of a version of the stream's document on a run."""

    ALIKE = auto()
    """The compiled pipeline stays the same."""
    OTHERWISE = auto()
    """The compiled pipeline changes."""
    NOT_AT_ALL = auto()
    """The pipeline can't use the document. Another version of the pipeline must follow."""


class EffectiveSchema:
    """Current versions of stream documents, for one run."""

    def __init__(self, ledger: LedgerReader, job: str, pipeline_version: int, compiled: StreamVersions) -> None:
        """`compiled`: version of each stream's document with which the run's pipeline is compiled."""
        self._ledger = ledger
        self._job = job
        self._pipeline_version = pipeline_version
        self._compiled = compiled
        self._known = {tuple(compiled.values()): SchemaCompatibility.ALIKE}

    def versions(self, present: StreamVersions) -> StreamVersions | None:
        """Return the current versions of the streams, from `present`. None if this run can't use one: then it must plan nothing.

        Records that were in the log before the versions were read may be decoded with them. Raises LedgerUnavailable; NotFound if
        a stream isn't in `present`."""
        own = {stream: present[stream] for stream in self._compiled if stream in present}
        if missing := self._compiled.keys() - own.keys():
            raise NotFound(f"There is no stream {', '.join(sorted(missing))}.")
        return own if self._fit(own) is SchemaCompatibility.ALIKE else None

    def needs_another_run(self, present: StreamVersions | None = None) -> bool:
        """Return True if the run must end, so that another run uses the current version.

        `present`: the current versions, if they were just read. Raises LedgerUnavailable.
        """
        if present is None:
            present = {stream: self._ledger.stream_version(stream) for stream in self._compiled}
        if missing := self._compiled.keys() - present.keys():
            raise NotFound(f"There is no stream {', '.join(sorted(missing))}.")
        return self._fit({one: present[one] for one in self._compiled}) is SchemaCompatibility.OTHERWISE

    def _fit(self, present: StreamVersions) -> SchemaCompatibility:
        versions = tuple(present.values())
        if versions not in self._known:
            self._known[versions] = self._compatibility(present)
        return self._known[versions]

    def _compatibility(self, present: StreamVersions) -> SchemaCompatibility:
        from strandline.core.errors import InvalidDocument
        from strandline.processing.pipelines.stored import load_pipeline

        try:
            own, new = (
                load_pipeline(self._ledger, self._job, self._pipeline_version, versions)
                for versions in (self._compiled, present)
            )
        except InvalidDocument:
            return SchemaCompatibility.NOT_AT_ALL
        return SchemaCompatibility.ALIKE if own.identity == new.identity else SchemaCompatibility.OTHERWISE
