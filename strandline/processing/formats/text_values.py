"""Texts of values to JSON: where a sender, a line, a topic or a URL gives text for what is declared as another type."""

from __future__ import annotations

import re

import msgspec

from strandline.processing.formats.record_fields import RecordField

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_encode = msgspec.json.encode


def json_of_text(text: str, field_type: str) -> bytes:
    """The text as JSON of the field's type; where that is impossible, as a string, which the decoder rejects."""
    if field_type == "boolean" and text in ("true", "false"):
        return text.encode()
    if field_type not in ("string", "boolean") and _NUMBER.fullmatch(text):
        return text.encode()
    return _encode(text)


def name_in_json(field: RecordField) -> bytes:
    """The field's name as the key of a member, with its colon."""
    return _encode(field.name) + b":"
