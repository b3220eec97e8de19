"""Checks of columns by the declared fields. `record_fields.py` has the same rules for the values of one record."""

from __future__ import annotations

import math
import sys

import numpy as np
import pyarrow as pa

from strandline.core.field_types import WHOLE_RANGES
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.formats.columns.read_columns import Column, Marks
from strandline.processing.formats.record_fields import RecordField
from strandline.processing.formats.timestamps import PER_SECOND, Micros, number_range


def as_declared(field: RecordField, column: Column | None, count: int) -> Marks:
    """Return a mask of the records that fit the declared field. `column`: None if no record has the field."""
    if column is None:
        return np.full(count, not field.required)
    values = column.values
    if field.type == "double":
        least = -sys.float_info.max if field.min is None else float(field.min)
        greatest = sys.float_info.max if field.max is None else float(field.max)
        within: Marks = (least <= values) & (values <= greatest)
    elif field.type in WHOLE_RANGES:
        first, last = WHOLE_RANGES[field.type]
        first = first if field.min is None else max(first, math.ceil(field.min))
        last = last if field.max is None else min(last, math.floor(field.max))
        within = (first <= values) & (values <= last)
    elif field.type == "timestamp":
        first, end = number_range("us" if column.in_micros else field.time_unit)
        within = (first <= values) & (values < end)
    else:
        return column.present if field.required else np.ones(count, np.bool_)
    return column.present & within if field.required else within | ~column.present


def micros_of(field: RecordField, column: Column) -> Micros:
    """Return the times of a column of timestamps."""
    numbers: Micros = column.values
    if column.in_micros:
        return numbers
    return numbers // 1_000 if field.time_unit == "ns" else numbers * (1_000_000 // PER_SECOND[field.time_unit])


def array_of(field: RecordField, column: Column | None, keep: Marks) -> pa.Array:
    """Return the column of the records to keep. They must fit the declared field."""
    kind = arrow_type(field.type)
    if column is None:
        return pa.nulls(int(keep.sum()), kind)
    if field.type == "string":
        return column.values if keep.all() else column.values.filter(pa.array(keep))
    values = micros_of(field, column) if field.type == "timestamp" else column.values
    present = column.present[keep]
    return pa.array(values[keep], mask=None if present.all() else ~present).cast(kind)
