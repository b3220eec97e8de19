"""Documents: apply them, check them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request

from strandline.core.errors import InvalidDocument
from strandline.processing.pipelines.model.pipeline import json_schema
from strandline.processing.source.kept_lookups import with_present_tables
from strandline.services.jobs.applying.planned_changes import PlanView
from strandline.services.jobs.checking import approval, refusal
from strandline.services.jobs.previews import RECORDS_MAX, SECONDS_MAX, PreviewView, chosen_pipeline, preview
from strandline.services.rest.dependencies import Caller, Control, MayReadTopics, require_readable
from strandline.services.rest.views import Applied, AppliedList, CheckView, check_view

router = APIRouter(tags=["documents"])

MEDIA_TYPES = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml", "text/plain")
YAML_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/yaml": {"schema": {"type": "string", "description": "One or more YAML documents"}}},
    }
}
Records = Annotated[int, Query(ge=1, le=RECORDS_MAX, description="Number of newest records")]
Seconds = Annotated[float | None, Query(gt=0, le=SECONDS_MAX, description="Seconds to wait for new records")]
PipelineName = Annotated[str | None, Query(description="Name of the pipeline, if there are several")]
Source = Annotated[str, Query(max_length=300, description="Name of the file, for the lines in problems")]


async def yaml_body(request: Request) -> bytes:
    """Return the body as bytes; the reader of documents decodes it and reports problems. Other media types are
    refused.
    """
    media_type = request.headers.get("content-type", MEDIA_TYPES[0]).partition(";")[0].strip().lower()
    if media_type not in MEDIA_TYPES:
        raise HTTPException(415, f"documents must be sent as {MEDIA_TYPES[0]}, not as {media_type}")
    return await request.body()


@router.post("/v1/documents", openapi_extra=YAML_BODY)
def apply_documents(
    control: Control,
    caller: Caller,
    body: Annotated[bytes, Depends(yaml_body)],
    source: Source = "<request>",
) -> AppliedList:
    """Register streams and submit pipelines, all or none. A new job starts, and a changed job restarts with its new
    version. The same documents again change nothing.
    """
    applied = control.applier.apply(body, source, caller)
    control.supervisor.wake()
    return AppliedList(applied=[Applied(**vars(one)) for one in applied])


@router.get("/v1/documents/schema")
def show_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of documents, for editors. It describes the form; a check also finds
    errors between fields.
    """
    return json_schema()


@router.post("/v1/documents/plan", openapi_extra=YAML_BODY)
def plan_documents(
    control: Control,
    body: Annotated[bytes, Depends(yaml_body)],
    source: Source = "<request>",
) -> PlanView:
    """Return the changes that applying the documents would make for each job, and the cost of its start. A change
    that would be refused is marked as forbidden. Changes nothing.
    """
    return control.applier.plan(body, source)


@router.post("/v1/pipelines/preview", openapi_extra=YAML_BODY)
def preview_pipeline(
    control: Control,
    may_read_topics: MayReadTopics,
    body: Annotated[bytes, Depends(yaml_body)],
    source: Source = "<request>",
    pipeline: PipelineName = None,
    stream: Annotated[str | None, Query(description="Stream to read. Default: the stream of the pipeline")] = None,
    records: Records = 1_000,
    seconds: Seconds = None,
) -> PreviewView:
    """Run a pipeline over the newest records of a stream, or over the records that arrive within some seconds, and
    close all windows. Writes nothing. A viewer can read registered streams only; an operator can read each topic.
    """
    chosen = chosen_pipeline(control.applier.check(body, source), pipeline, source)
    chosen = with_present_tables(control.ledger, chosen)
    read = stream or chosen.inputs[0].name
    require_readable(control, read, may_read_topics=may_read_topics)
    return preview(control.log, chosen, read, records, seconds, control.run_limited)


@router.post("/v1/pipelines/check", openapi_extra=YAML_BODY)
def check_pipeline(
    control: Control,
    body: Annotated[bytes, Depends(yaml_body)],
    source: Source = "<request>",
) -> CheckView:
    """Check a pipeline against its stream, which can be in the same text. Changes nothing."""
    try:
        return check_view(approval(control.applier.check(body, source)))
    except InvalidDocument as error:
        return check_view(refusal(error))
