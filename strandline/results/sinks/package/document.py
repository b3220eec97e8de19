"""The field `sink` of an emission."""

from __future__ import annotations

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import FieldName, Name


class SinkSpec(DocumentModel):
    """An emission to a sink of a package: an entry point of the group `strandline.sinks`."""

    use: FieldName
    """Name of the entry point."""
    name: Name
    """Name of the emission in the sink."""
    options: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """Options, which only the sink interprets. No secrets."""
