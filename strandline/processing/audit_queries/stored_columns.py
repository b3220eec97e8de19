"""Columns as the audit stores them: timestamps as microseconds, and decimals as their unscaled values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_UNSCALED = pa.decimal128(38, 0)


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which a column is stored, also if timestamps and decimals are nested in it."""
    if pa.types.is_list(kind):
        return pa.list_(stored_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, stored_type(field.type)) for field in kind])
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return _UNSCALED if pa.types.is_decimal(kind) else kind


def restored(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the column in the type `kind`, with the same bits: a stored column in its type in the pipeline, or a column of the
    pipeline in its `stored_type`."""
    if array.type == kind:
        return array
    if pa.types.is_list(kind):
        lengths = pc.list_value_length(array).fill_null(0).to_numpy()
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        values = restored(array.flatten(), kind.value_type)
        return pa.ListArray.from_arrays(offsets, values, mask=array.is_null() if array.null_count else None)
    if pa.types.is_struct(kind):
        members = [restored(member, field.type) for member, field in zip(array.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=array.is_null())
    return array.view(kind)
