"""Converts strings to JSON values: a sender, a line, a topic, or a URL has a string for a value that is declared as another
type."""

from __future__ import annotations

import re

import msgspec

NUMBER = r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?"
"""A JSON number. For re.ASCII."""
NUMBER_LINES = re.compile(rf"(?:{NUMBER}\n)*+".encode())
"""Numbers, each with a line end."""
_NUMBER = re.compile(NUMBER, re.ASCII)
_encode = msgspec.json.encode


def json_of_text(text: str, field_type: str) -> bytes:
    """Return the string as JSON of the field's type. If that is impossible, return a JSON string, which the decoder rejects."""
    if field_type == "boolean" and text in ("true", "false"):
        return text.encode()
    if field_type not in ("string", "boolean") and is_number_text(text):
        return text.encode()
    return _encode(text)


def is_number_text(text: str) -> bool:
    """Return True if the string is a JSON number."""
    return _NUMBER.fullmatch(text) is not None
