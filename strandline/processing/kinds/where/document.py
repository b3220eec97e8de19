"""The field `where` of a step."""

from __future__ import annotations

from strandline.core.document_model import DocumentModel
from strandline.processing.pipelines.model.expression_text import ExpressionText


class Fields(DocumentModel):
    """Fields that the kind adds to a step."""

    where: ExpressionText | None = None
    """Keeps the records for which this condition is true."""
