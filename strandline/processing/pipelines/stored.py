"""Loads a job's pipeline from the ledger. Starts no Spark, so the control service may use it too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.core.stream import StreamSpec
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model import PipelineSpec

if TYPE_CHECKING:  # the ledger's SQL takes half a second to import
    from strandline.ledger.ledger import Ledger


def load_pipeline(ledger: Ledger, job: str, version: int) -> CheckedPipeline:
    """One version of a job's pipeline, checked against its stream. Raises NotFound, InvalidDocument."""
    spec = PipelineSpec.from_document(ledger.job_version(job, version).document)
    stream = StreamSpec.from_document(ledger.stream(spec.input.stream).document)
    return check(spec, stream)
