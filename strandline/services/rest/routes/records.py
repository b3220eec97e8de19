"""The life of a record, and the records of a result."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from strandline.processing.lineage.views import RecordLife, ResultSources
from strandline.services.jobs.results import job_of_alias
from strandline.services.rest.dependencies import INTEGER_MAX, Control

router = APIRouter(tags=["records"])

Number = Annotated[int, Path(ge=0, le=INTEGER_MAX)]


@router.get("/v1/jobs/{name}/records/{stream}/{partition}/{offset}")
def show_record_life(control: Control, name: str, stream: str, partition: Number, offset: Number) -> RecordLife:
    """Return the life of one record in a job: its fields, the outcome of each step, and each result that contains it.
    The operators of the job compute it from the log, so it is exact for all slices in the ledger.
    """
    return control.traces.of_record(control.ledger, name, stream, partition, offset)


@router.get("/v1/results/{alias}/{document}/sources")
def list_result_sources(control: Control, alias: str, document: str) -> ResultSources:
    """Return exactly the records that one result contains. The operators of the job compute them from the log."""
    job = job_of_alias(control.ledger, alias)
    return control.traces.of_result(control.ledger, control.elasticsearch_url, job, alias, document)
