"""Which version of its stream's document a run records with the next slice that it cuts.

A version that leaves the pipeline as it is compiled (an optional field more, other bounds, another path) counts from the next
slice on. One that compiles it otherwise (a wider type) needs another run, which computes the open windows anew in the new types.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # this module travels to every Python worker, which needs neither SQL nor pydantic
    from strandline.ledger.ledger import Ledger


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

    def __init__(self, ledger: Ledger, job: str, pipeline_version: int, stream: str, compiled: int) -> None:
        """`compiled`: the version by which the run's pipeline is compiled."""
        self._ledger = ledger
        self._job = job
        self._pipeline_version = pipeline_version
        self._stream = stream
        self._compiled = compiled
        self._judged = {compiled: Fit.ALIKE}

    def version(self) -> int | None:
        """The present version; None when this run can't take it, and may plan nothing. What was in the log before this call may
        be decoded by it. Raises LedgerUnavailable."""
        present, fit = self._look()
        return present if fit is Fit.ALIKE else None

    def needs_another_run(self) -> bool:
        """Whether the run has to make room for one that takes the present version. Raises LedgerUnavailable."""
        return self._look()[1] is Fit.OTHERWISE

    def _look(self) -> tuple[int, Fit]:
        present = self._ledger.stream_version(self._stream)
        if present not in self._judged:
            self._judged[present] = self._judge(present)
        return present, self._judged[present]

    def _judge(self, present: int) -> Fit:
        from strandline.core.errors import InvalidDocument
        from strandline.processing.pipelines.stored import load_pipeline

        try:
            own, new = (
                load_pipeline(self._ledger, self._job, self._pipeline_version, {self._stream: version})
                for version in (self._compiled, present)
            )
        except InvalidDocument:
            return Fit.NOT_AT_ALL
        return Fit.ALIKE if own.compiled == new.compiled else Fit.OTHERWISE
