"""Texts of values to JSON: where a sender, a line, a topic or a URL gives text for what is declared as another type."""

from __future__ import annotations

import re

import msgspec

NUMBER = r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?"
"""A number as JSON writes it; for re.ASCII."""
NUMBER_LINES = re.compile(rf"(?:{NUMBER}\n)*+".encode())
"""Numbers, each with the end of its line."""
_NUMBER = re.compile(NUMBER, re.ASCII)
_encode = msgspec.json.encode


def json_of_text(text: str, field_type: str) -> bytes:
    """The text as JSON of the field's type; where that is impossible, as a string, which the decoder rejects."""
    if field_type == "boolean" and text in ("true", "false"):
        return text.encode()
    if field_type not in ("string", "boolean") and is_number_text(text):
        return text.encode()
    return _encode(text)


def is_number_text(text: str) -> bool:
    """Whether the text is a number as JSON writes it."""
    return _NUMBER.fullmatch(text) is not None
