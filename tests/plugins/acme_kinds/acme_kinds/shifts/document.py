"""The field `shifts` of a window."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from strandline.core.document_model import DocumentModel

TimeOfDay = Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]


class WindowFields(DocumentModel):
    """Fields that the kind adds to `window`."""

    shifts: list[TimeOfDay] | None = Field(default=None, min_length=1)
    """Times of the day, in UTC, when one window ends and the next one begins: ['06:00', '14:00', '22:00']."""
