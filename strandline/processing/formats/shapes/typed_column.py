"""Typed values of one field as a column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import UNSET, UnsetType

from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.formats.columns.read_columns import Column, Marks
from strandline.processing.formats.record_fields import RecordField
from strandline.processing.formats.timestamps import parse_timestamp_column


def typed_column(field: RecordField, values: list[Any], kinds: set[type]) -> tuple[Column, Marks]:
    """Return the column of typed values, and a mask of the values that it can hold. `kinds`: types of the values."""
    if UnsetType in kinds:
        values = [None if value is UNSET else value for value in values]
        kinds = kinds - {UnsetType} | {type(None)}
    good = np.ones(len(values), np.bool_)
    if field.type == "timestamp":
        micros, valid = parse_timestamp_column(values, field.time_unit, kinds, field.tz)
        present = np.array([value is not None for value in values], np.bool_) if type(None) in kinds else good
        return Column(micros, present & valid, in_micros=True), valid | ~present
    array = pa.array(values, arrow_type(field.type))
    present = np.array(array.is_valid())
    if field.type == "string":
        return Column(array, present), good
    blank = False if field.type == "boolean" else 0
    numbers = array.fill_null(blank) if array.null_count else array
    if field.type == "integer":
        numbers = numbers.cast(pa.int64())
    return Column(numbers.to_numpy(zero_copy_only=False), present), good
