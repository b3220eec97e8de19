"""Fields of type `any`: a value of any JSON type, as a string with the value as it was written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
        quick = self._plain_column(texts) if texts else None
        return quick or column_of([self.parse(bytes(text)) for text in texts], pa.string(), are_strings(texts))

    def _plain_column(self, texts: Sequence[msgspec.Raw]) -> ParsedColumn | None:
        """Return the column of values without escapes, and without blanks around them. None for other values."""
        column = pa.array(list(map(bytes, texts)), pa.binary())
        _, offsets, content = column.buffers()
        data, bounds = np.frombuffer(content, np.uint8), np.frombuffer(offsets, np.int32)[: len(column) + 1]
        firsts, lasts = data[bounds[:-1]], data[bounds[1:] - 1]
        if min(firsts.min(), lasts.min()) <= ord(" ") or (data == ord("\\")).any():
            return None
        strings, absent = firsts == ord('"'), firsts == ord("n")
        if strings.any():
            column = pc.if_else(pa.array(strings), pc.binary_slice(column, 1, -1), column)
        if absent.any():
            column = pc.if_else(pa.array(absent), pa.scalar(None, pa.binary()), column)
        return ParsedColumn(column.cast(pa.string()), absent, np.zeros(len(texts), np.bool_), strings)
