"""The options of frames in the document of a stream."""

from __future__ import annotations

from typing import Literal

from strandline.core.document_model import DocumentModel


class FramesSpec(DocumentModel):
    """Options of frames."""

    byte_order: Literal["little", "big"] = "little"
    """Order of the bytes of a number."""
