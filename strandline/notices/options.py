"""Parts of documents that several conditions and channels share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer

from strandline.core.document_model import DocumentModel
from strandline.core.streams.entrances import SecretSpec


class NoOptions(DocumentModel):
    """A condition without options."""


def _share(value: object) -> object:
    if isinstance(value, str) and value.endswith("%") and value[:-1].isascii() and value[:-1].isdigit():
        return float(value[:-1]) / 100
    raise ValueError(f"{value!r} is not a share; write 90%")


Share = Annotated[
    float,
    BeforeValidator(_share),
    Field(gt=0, le=1),
    PlainSerializer(lambda share: f"{share:.0%}", return_type=str),
]
"""Written as `90%`."""
TextOrSecret = str | SecretSpec
"""A string, or `{secret: NAME}`."""
