"""Values of the ordinary types, one by one, as the validator of records reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.formats.field_parsers.field_parser import ParsedColumn, are_strings, column_of


class PlainParser:
    """Parses with a function that returns None for a value that doesn't fit."""

    def __init__(self, type_name: str, parse: Callable[[bytes], Any]) -> None:
        self.parse = parse
        self._arrow_type = arrow_type(type_name)

    def parse_column(self, texts: Sequence[msgspec.Raw]) -> ParsedColumn:
        return column_of([self.parse(bytes(text)) for text in texts], self._arrow_type, are_strings(texts))
