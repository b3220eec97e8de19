"""The options `raw` of a stream."""

from __future__ import annotations

from typing import Literal

from strandline.core.document_model import DocumentModel


class RawSpec(DocumentModel):
    """The conversion of a whole record to a string."""

    encoding: Literal["utf8", "base64"] = "utf8"
    """`utf8`: the record is text, and other records become dead letters. `base64`: any bytes, encoded in base64."""
