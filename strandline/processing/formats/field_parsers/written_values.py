"""Fields of type `any`: a value of any JSON type, as a string with the value as it was written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from strandline.processing.formats.field_parsers.field_parser import ABSENT, NULL, ParsedColumn, are_strings, column_of

_text_of = msgspec.json.Decoder(str).decode


class WrittenValueParser:
    """Returns the content of a string, or the JSON text of a number, a boolean, an object, or an array."""

    def parse(self, text: bytes) -> Any:
        text = text.strip()
        if text == NULL:
            return ABSENT
        return _text_of(text) if text[:1] == b'"' else text.decode()

    def parse_column(self, texts: Sequence[msgspec.Raw]) -> ParsedColumn:
        return column_of([self.parse(bytes(text)) for text in texts], pa.string(), are_strings(texts))
