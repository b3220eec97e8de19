"""Fields from the sources of records, as columns. Many records have the same source, so each source is read once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.processing.formats.columns.read_columns import (
    SURE_WHOLE_MAX,
    Column,
    ColumnsAndMarks,
    holds_values,
    is_whole,
)
from strandline.processing.formats.record_fields import RecordField

_MANY = 4
"""Minimum average number of records per source for which columns are worth the cost."""
_WHOLE_END = 2**63


def numbered(sources: Sequence[bytes | None]) -> tuple[list[bytes | None], npt.NDArray[np.int64]] | None:
    """Return the different sources, and the index of each record's source. None if there are too many sources."""
    numbers: dict[bytes | None, int] = {}
    of_each = np.array([numbers.setdefault(source, len(numbers)) for source in sources], np.int64)
    return (list(numbers), of_each) if len(numbers) * _MANY <= len(of_each) else None


def source_columns(
    members: Sequence[Sequence[tuple[bytes, bytes]]], of_each: npt.NDArray[np.int64], fields: Sequence[RecordField]
) -> ColumnsAndMarks | None:
    """Return the columns of the fields that the sources fill. None if a column can't hold one of the fields.

    `members`: names and JSON values of each source. `of_each`: index of each record's source.
    """
    given = [{msgspec.json.decode(name): content for name, content in one} for one in members]
    columns: dict[str, Column] = {}
    fits = np.ones(len(given), np.bool_)
    for field in fields:
        contents = [one.get(field.name) for one in given]
        if not any(contents):
            continue
        if not holds_values(field):
            return None
        present = np.array([content is not None for content in contents], np.bool_)
        values = [None if content is None else _value(field, msgspec.json.decode(content)) for content in contents]
        fits &= np.array([value is not None for value in values], np.bool_) | ~present
        if field.type == "string":
            columns[field.name] = Column(pa.array(values, pa.string()).take(pa.array(of_each)), present[of_each])
        else:
            kind = {"double": np.float64, "boolean": np.bool_}.get(field.type, np.int64)
            columns[field.name] = Column(np.array([value or 0 for value in values], kind)[of_each], present[of_each])
    return columns, fits[of_each]


def _value(field: RecordField, value: Any) -> Any:
    """Return the value in the form of the column. None if it must be read from the text."""
    if field.type == "double":
        is_sure = type(value) is float or (type(value) is int and abs(value) <= SURE_WHOLE_MAX)
        return float(value) if is_sure else None
    if is_whole(field):
        return value if type(value) is int and -_WHOLE_END <= value < _WHOLE_END else None
    return value if type(value) is {"string": str, "boolean": bool}[field.type] else None
