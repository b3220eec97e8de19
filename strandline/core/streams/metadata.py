"""Values that the log contains next to a record, and that can fill fields: `metadata` of the stream document."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

_FORM = re.compile(
    r"key|timestamp|source|sender|file|url|topic(?:\[(-?\d{1,3})(:)?\])?|retained|(?:header|property)\.(.{1,200})"
)
METADATA_FORM = (
    "key, timestamp, source, sender, file, url, topic, topic[-1], topic[2:], retained, header.NAME, or property.NAME"
)


def check_metadata(text: object) -> object:
    """Return `text`. Raises ValueError if it names no metadata of a record."""
    if isinstance(text, str) and _FORM.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not metadata of a record; expected one of {METADATA_FORM}")
    return text


MetadataName = Annotated[str, BeforeValidator(check_metadata), WithJsonSchema({"type": "string", "examples": ["key"]})]
"""Metadata of a record that fills a field, as `key`, `topic[-1]`, or `header.site`."""
