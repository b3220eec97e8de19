"""One run of one version of a job, with all that its steps need to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # some modules that Python workers load use this one, but workers need neither SQL nor pydantic
    from strandline.core.settings import Settings
    from strandline.ledger.roles import RunLedger
    from strandline.ledger.states import RunRow
    from strandline.log.index import LogIndex
    from strandline.processing.pipelines.checked_pipeline import CheckedPipeline


@dataclass(frozen=True)
class JobRun:
    """A run, the pipeline that it runs, and its access to the ledger and the log. Stays in the driver."""

    settings: Settings
    ledger: RunLedger
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
    def version(self) -> int:
        """Version of the pipeline."""
        return self.row.version

    @property
    def streams(self) -> list[str]:
        """Streams that the job reads, in the order of the document."""
        return self.pipeline.spec.streams
