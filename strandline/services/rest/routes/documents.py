"""Documents in YAML or SQL: apply them, check them, convert them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request

from strandline.core.errors import InvalidDocument
from strandline.processing.pipelines.model.pipeline import json_schema
from strandline.processing.source.kept_lookups import with_present_tables
from strandline.services.jobs.applying.planned_changes import PlanView
from strandline.services.jobs.checking import approval, refusal
from strandline.services.jobs.document_forms import DocumentForm, SentDocuments, converted, functions_of_expressions
from strandline.services.jobs.previews import RECORDS_MAX, SECONDS_MAX, PreviewView, chosen_pipeline, preview
from strandline.services.rest.dependencies import Caller, Control, MayReadTopics, require_readable
from strandline.services.rest.views import Applied, AppliedList, CheckView, ConvertedView, check_view

router = APIRouter(tags=["documents"])

MEDIA_TYPES = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml", "text/plain")
SQL_MEDIA_TYPE = "application/sql"
DOCUMENTS_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/yaml": {"schema": {"type": "string", "description": "One or more YAML documents"}},
            SQL_MEDIA_TYPE: {"schema": {"type": "string", "description": "The same documents as SQL statements"}},
        },
    }
}
Records = Annotated[int, Query(ge=1, le=RECORDS_MAX, description="Number of newest records")]
Seconds = Annotated[float | None, Query(gt=0, le=SECONDS_MAX, description="Seconds to wait for new records")]
PipelineName = Annotated[str | None, Query(description="Name of the pipeline, if there are several")]
Source = Annotated[str, Query(max_length=300, description="Name of the file, for the lines in problems")]


async def _documents_body(request: Request) -> SentDocuments:
    """Return the body as bytes; the reader of documents decodes it and reports problems. Other media types are
    refused.
    """
    media_type = request.headers.get("content-type", MEDIA_TYPES[0]).partition(";")[0].strip().lower()
    if media_type == SQL_MEDIA_TYPE:
        return SentDocuments(await request.body(), DocumentForm.SQL)
    if media_type not in MEDIA_TYPES:
        raise HTTPException(415, f"documents must be sent as {MEDIA_TYPES[0]} or {SQL_MEDIA_TYPE}, not as {media_type}")
    return SentDocuments(await request.body())


DocumentsBody = Annotated[SentDocuments, Depends(_documents_body)]


@router.post("/v1/documents", openapi_extra=DOCUMENTS_BODY)
def apply_documents(
    control: Control,
    caller: Caller,
    body: DocumentsBody,
    source: Source = "<request>",
) -> AppliedList:
    """Register streams and submit pipelines, all or none. A new job starts, and a changed job restarts with its new
    version. The same documents again change nothing.
    """
    with body.as_yaml(source, control.run_limited) as text:
        applied = control.applier.apply(text, source, caller)
    control.supervisor.wake()
    return AppliedList(applied=[Applied(**vars(one)) for one in applied])


@router.get("/v1/documents/schema")
def show_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of documents, for editors. It describes the form; a check also finds
    errors between fields. `x-strandline-functions` lists the functions of expressions.
    """
    return {**json_schema(), "x-strandline-functions": functions_of_expressions()}


@router.post("/v1/documents/conversion", openapi_extra=DOCUMENTS_BODY)
def convert_documents(
    control: Control,
    body: DocumentsBody,
    form: Annotated[DocumentForm, Query(alias="as", description="Form of the response")],
    source: Source = "<request>",
) -> ConvertedView:
    """Return documents in another form, without their comments. Streams that they read need not exist. 409 if a part
    of them has no form in SQL. Changes nothing.
    """
    return ConvertedView(form=form, text=control.run_limited("check", converted, body, form, source))


@router.post("/v1/documents/plan", openapi_extra=DOCUMENTS_BODY)
def plan_documents(
    control: Control,
    body: DocumentsBody,
    source: Source = "<request>",
) -> PlanView:
    """Return the changes that applying the documents would make for each job, and the cost of its start. A change
    that would be refused is marked as forbidden. Changes nothing.
    """
    with body.as_yaml(source, control.run_limited) as text:
        return control.applier.plan(text, source)


@router.post("/v1/pipelines/preview", openapi_extra=DOCUMENTS_BODY)
def preview_pipeline(
    control: Control,
    may_read_topics: MayReadTopics,
    body: DocumentsBody,
    source: Source = "<request>",
    pipeline: PipelineName = None,
    stream: Annotated[str | None, Query(description="Stream to read. Default: the stream of the pipeline")] = None,
    records: Records = 1_000,
    seconds: Seconds = None,
) -> PreviewView:
    """Run a pipeline over the newest records of a stream, or over the records that arrive within some seconds, and
    close all windows. Writes nothing. A viewer can read registered streams only; an operator can read each topic.
    """
    with body.as_yaml(source, control.run_limited) as text:
        chosen = chosen_pipeline(control.applier.check(text, source), pipeline, source)
    chosen = with_present_tables(control.ledger, chosen)
    read = stream or chosen.inputs[0].name
    require_readable(control, read, may_read_topics=may_read_topics)
    return preview(control.log, chosen, read, records, seconds, control.run_limited)


@router.post("/v1/pipelines/check", openapi_extra=DOCUMENTS_BODY)
def check_pipeline(
    control: Control,
    body: DocumentsBody,
    source: Source = "<request>",
) -> CheckView:
    """Check a pipeline against its stream, which can be in the same text. Changes nothing."""
    try:
        with body.as_yaml(source, control.run_limited) as text:
            return check_view(approval(control.applier.check(text, source)))
    except InvalidDocument as error:
        return check_view(refusal(error))
