"""The table of parsers of fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strandline.processing.formats.field_parsers.field_parser import FieldParser, ParsedField
from strandline.processing.formats.field_parsers.lenient_values import LenientParser
from strandline.processing.formats.field_parsers.limited_times import LimitedTimesParser
from strandline.processing.formats.field_parsers.plain_values import PlainParser
from strandline.processing.formats.field_parsers.written_values import WrittenValueParser

ParseValue = Callable[[bytes], Any]
"""Returns a value of the field's type in the form of Arrow. None if the JSON text is no such value."""


def parser_of(field: ParsedField, parse_plain: ParseValue) -> FieldParser:
    """Return the parser of a field with `has_parser`. `parse_plain`: parses the plain values of its type."""
    plain: FieldParser = PlainParser(field.type, parse_plain)
    if field.is_any:
        plain = WrittenValueParser()
    elif field.pattern is not None:
        from strandline.processing.formats.field_parsers.patterned_times import PatternedTimeParser  # imports kernels

        plain = PatternedTimeParser(field.pattern, field.tz)
    if field.limits_micros != (None, None):
        plain = LimitedTimesParser(plain, *field.limits_micros)
    if not field.missing and not field.or_null:
        return plain
    is_plain = field.type == "double" and field.min is None and field.max is None
    return LenientParser(plain, field.type, field.missing, or_null=field.or_null, is_plain=is_plain)
