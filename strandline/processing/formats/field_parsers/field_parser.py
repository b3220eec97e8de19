"""The contract of a parser of fields: the values of one field, as raw JSON, to a column.

To add a form of values, write a module with a parser, and add a line to `table.PARSERS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

Marks = npt.NDArray[np.bool_]
NULL = b"null"


class Absent:
    """The result for a value that means null."""

    def __init__(self, *, is_misfit: bool) -> None:
        self.is_misfit = is_misfit
        """True if the value has another type, False if it is null or a marker of a missing value."""


ABSENT, MISFIT = Absent(is_misfit=False), Absent(is_misfit=True)


@dataclass(frozen=True)
class ParsedColumn:
    """The values of a field in some records."""

    array: pa.Array
    """Null where a value is absent, or doesn't fit."""
    absent: Marks
    """True where null is the meaning of the value."""
    misfits: Marks
    """True where a value of another type is null."""
    strings: Marks
    """True where the value is a string in JSON."""


class ParsedField(Protocol):
    """The attributes of a `RecordField` that parsers need."""

    @property
    def type(self) -> str: ...
    @property
    def min(self) -> float | None: ...
    @property
    def max(self) -> float | None: ...
    @property
    def limits_micros(self) -> tuple[int | None, int | None]: ...
    @property
    def tz(self) -> str | None: ...
    @property
    def pattern(self) -> str | None: ...
    @property
    def missing(self) -> tuple[str | float, ...]: ...
    @property
    def or_null(self) -> bool: ...
    @property
    def is_any(self) -> bool: ...


class FieldParser(Protocol):
    """Parses the values of one field. Both methods return the same for the same value."""

    def parse(self, text: bytes) -> Any:
        """Return the value in the form of Arrow, ABSENT or MISFIT if it means null, or None if it doesn't fit."""

    def parse_column(self, texts: Sequence[msgspec.Raw]) -> ParsedColumn:
        """Return the values of a column. `null` means a missing member."""


def column_of(values: Sequence[Any], kind: pa.DataType, strings: Marks) -> ParsedColumn:
    """Return the column of values that `parse` returned."""
    absent = np.array([isinstance(value, Absent) for value in values], np.bool_)
    misfits = np.array([value is MISFIT for value in values], np.bool_)
    plain = [None if isinstance(value, Absent) else value for value in values] if absent.any() else values
    return ParsedColumn(pa.array(plain, kind), absent, misfits, strings)


def are_strings(texts: Sequence[msgspec.Raw]) -> Marks:
    """Return a mask of the JSON values that are strings."""
    return np.array([bytes(text)[:1] == b'"' for text in texts], np.bool_)
