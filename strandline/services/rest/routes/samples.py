"""Samples of records: propose documents for them, and preview documents over them. Nothing is registered or written."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Base64Bytes, Field

from strandline.core.document_values import check_name
from strandline.core.errors import InvalidDocument, Problem
from strandline.processing.source.kept_lookups import with_present_tables
from strandline.services.jobs.document_forms import DocumentForm, SentDocuments
from strandline.services.jobs.samples import (
    SamplePreviewView,
    SampleProposalView,
    pipeline_of,
    preview_sample,
    propose_documents,
)
from strandline.services.rest.dependencies import Control
from strandline.services.rest.routes.documents import PipelineName, Source
from strandline.services.rest.views import View

router = APIRouter(tags=["documents"])

_SAMPLE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/octet-stream": {
                "schema": {
                    "type": "string",
                    "format": "binary",
                    "description": "Records as a device sends them, or a file of records",
                }
            }
        },
    }
}


async def _sample(request: Request) -> bytes:
    return await request.body()


class SampleOfDocuments(View):
    """Documents, and a sample of the records of their stream."""

    documents: str
    """A stream, or a pipeline with its stream. The stream can be a registered one."""
    form: DocumentForm = DocumentForm.YAML
    """Form of the documents."""
    sample: Base64Bytes = Field(min_length=1)
    """Records as a device sends them, or a file of records, in base64."""


@router.post("/v1/samples/proposal", openapi_extra=_SAMPLE_BODY)
def propose_from_sample(
    control: Control,
    sample: Annotated[bytes, Depends(_sample)],
    name: Annotated[str, Query(max_length=200, description="Name of the stream")] = "readings",
) -> SampleProposalView:
    """Propose the document of a stream and a first pipeline from sample records. Changes nothing."""
    try:
        check_name(name)
    except ValueError as error:
        raise InvalidDocument([Problem(str(error), path="query.name")]) from error
    return control.run_limited("proposal", propose_documents, name, sample)


@router.post("/v1/samples/preview")
def preview_over_sample(
    control: Control,
    wanted: SampleOfDocuments,
    source: Source = "<request>",
    pipeline: PipelineName = None,
) -> SamplePreviewView:
    """Decode sample records by the document of their stream, run the pipeline over them, and close all windows. Writes
    nothing.
    """
    with SentDocuments(wanted.documents.encode(), wanted.form).as_yaml(source, control.run_limited) as text:
        batch = control.applier.check(text, source)
        chosen = pipeline_of(batch, pipeline, source)
    if chosen is not None:
        chosen = with_present_tables(control.ledger, chosen)
    return preview_sample(batch, chosen, wanted.sample, control.run_limited)
