"""The fields `select` and `drop` of a step."""

from __future__ import annotations

from pydantic import Field

from strandline.core.document_model import DocumentModel


class Fields(DocumentModel):
    """Fields that the kind adds to a step."""

    select: list[str] | None = Field(default=None, min_length=1)
    """Keeps only these fields, in this order."""
    drop: list[str] | None = Field(default=None, min_length=1)
    """Leaves these fields out."""
