"""Which version of the document of each of its streams a run records with the next slice that it cuts.

A version that leaves the pipeline as it is compiled (an optional field more, other bounds, another path) counts from the next
slice on. One that compiles it otherwise (a wider type) needs another run, which computes the open windows anew in the new types.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from strandline.core.errors import NotFound

if TYPE_CHECKING:  # this module travels to every Python worker, which needs neither SQL nor pydantic
    from strandline.ledger.roles import LedgerReader
    from strandline.ledger.states import StreamVersions


class Fit(Enum):
    """What a version of the stream's document is to a run."""

    ALIKE = auto()
    """The pipeline is compiled to the same."""
    OTHERWISE = auto()
    """The pipeline is compiled to something else."""
    NOT_AT_ALL = auto()
    """The pipeline can't read it. Another version of the pipeline comes in a moment, or had better come."""


class SchemaInForce:
    """The version in force, for one run."""

    def __init__(self, ledger: LedgerReader, job: str, pipeline_version: int, compiled: StreamVersions) -> None:
        """`compiled`: by which version of the document of each stream the run's pipeline is compiled."""
        self._ledger = ledger
        self._job = job
        self._pipeline_version = pipeline_version
        self._compiled = compiled
        self._judged = {tuple(compiled.values()): Fit.ALIKE}

    def versions(self, present: StreamVersions) -> StreamVersions | None:
        """Return the current versions of the streams, among `present`; None when this run can't take one, and may plan nothing.
        What was in the log before these were read may be decoded by them. Raises LedgerUnavailable; NotFound if a stream isn't
        among them."""
        own = {stream: present[stream] for stream in self._compiled if stream in present}
        if missing := self._compiled.keys() - own.keys():
            raise NotFound(f"There is no stream {', '.join(sorted(missing))}.")
        return own if self._fit(own) is Fit.ALIKE else None

    def needs_another_run(self) -> bool:
        """Whether the run has to make room for one that takes the present version. Raises LedgerUnavailable."""
        return self._fit({stream: self._ledger.stream_version(stream) for stream in self._compiled}) is Fit.OTHERWISE

    def _fit(self, present: StreamVersions) -> Fit:
        versions = tuple(present.values())
        if versions not in self._judged:
            self._judged[versions] = self._judge(present)
        return self._judged[versions]

    def _judge(self, present: StreamVersions) -> Fit:
        from strandline.core.errors import InvalidDocument
        from strandline.processing.pipelines.stored import load_pipeline

        try:
            own, new = (
                load_pipeline(self._ledger, self._job, self._pipeline_version, versions)
                for versions in (self._compiled, present)
            )
        except InvalidDocument:
            return Fit.NOT_AT_ALL
        return Fit.ALIKE if own.identity == new.identity else Fit.OTHERWISE
