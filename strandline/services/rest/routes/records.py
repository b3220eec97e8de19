"""The life of a record, the records of a result, and the open windows of a job: replays of the log."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Path, Query

from strandline.processing.lineage.views import WINDOWS_MAX, RecordLife, ResultSources
from strandline.services.jobs.open_windows import OpenWindowList, holding_partition
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


@router.get("/v1/jobs/{name}/windows")
def list_open_windows(
    control: Control,
    name: str,
    stage: Annotated[str | None, Query(description="Only windows of this stage.")] = None,
    key: Annotated[
        str, Query(max_length=200, description="Only windows with a key value that contains this text.")
    ] = "",
    skip: Annotated[int, Query(ge=0, le=WINDOWS_MAX, description="Number of windows before the page.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> OpenWindowList:
    """Return the open windows of a job by key, those that end first, and the partition that holds them open. The
    operators of the job compute them from the log.
    """
    found = control.open_windows.windows(control.ledger, name, stage, key)
    watermark, held_by = holding_partition(control.ledger, control.log, name)
    page = found.windows[skip : skip + limit]
    following = None
    if skip + limit < len(found.windows):
        options = {"key": key, "skip": skip + limit, "limit": limit} | ({} if stage is None else {"stage": stage})
        following = f"/v1/jobs/{quote(name, safe='')}/windows?{urlencode(options)}"
    return OpenWindowList(
        job=name,
        slice=found.slice,
        version=found.version,
        committed_ms=found.committed_ms,
        closed_ms=found.closed_ms,
        watermark=watermark,
        held_by=held_by,
        stages=found.stages,
        matches=found.matches,
        windows=page,
        next=following,
        records_read=found.records_read,
    )
