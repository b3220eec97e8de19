"""The field `derive` of a step."""

from __future__ import annotations

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import FIELD_NAMES_SCHEMA, FieldName
from strandline.processing.pipelines.model.expression_text import ExpressionText


class Fields(DocumentModel):
    """Fields that the kind adds to a step."""

    derive: dict[FieldName, ExpressionText] | None = Field(
        default=None, min_length=1, json_schema_extra=FIELD_NAMES_SCHEMA
    )
    """New fields: name -> expression over the fields before this step."""
