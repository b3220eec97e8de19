"""One run of one version of a job, as each step of it needs to know it."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import RunRow
from strandline.log.index import LogIndex
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline


@dataclass(frozen=True)
class JobRun:
    """A run, what it runs, and its way to the ledger and the log."""

    settings: Settings
    ledger: Ledger
    index: LogIndex
    row: RunRow
    pipeline: CheckedPipeline

    @property
    def job(self) -> str:
        return self.row.job

    @property
    def epoch(self) -> int:
        return self.row.epoch

    @property
    def stream(self) -> str:
        """The stream that the job reads."""
        return self.pipeline.spec.input.stream
