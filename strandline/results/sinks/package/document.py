"""The field `sink` of an emission."""

from __future__ import annotations

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import FieldName, Name


class SinkSpec(DocumentModel):
    """An emission to a sink that a package brings: an entry point of the group `strandline.sinks`."""

    use: FieldName
    """The entry point's name."""
    name: Name
    """The place there."""
    options: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """What the sink makes of it. No secrets."""
