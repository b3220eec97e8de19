"""The options `raw` of a stream."""

from __future__ import annotations

from typing import Literal

from strandline.core.document_model import DocumentModel


class RawSpec(DocumentModel):
    """How a whole record becomes text."""

    encoding: Literal["utf8", "base64"] = "utf8"
    """`utf8`: the record is text, and one that is none is a dead letter; `base64`: any bytes, written in base64."""
