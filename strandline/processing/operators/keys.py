"""Keys as small whole numbers: the `by` fields of many rows, each combination numbered from 0. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.processing.columns.codes import Codes


@dataclass(frozen=True)
class EncodedKeys:
    """The key of each row as a number, and the distinct keys by their number."""

    codes: Codes
    table: pa.RecordBatch
    """One row a key, one column a `by` field, in the order of first appearance. Without `by` fields it has one empty row."""


def encode_keys(columns: Sequence[pa.Array], schema: pa.Schema, rows: int) -> EncodedKeys:
    """Number the keys of `rows` rows; a null is a key like any other. Cost grows with the rows, not with the keys."""
    if not columns:
        return EncodedKeys(np.zeros(rows, np.int64), no_columns(1 if rows else 0))
    codes, values = _encode(columns[0])
    parts = [(codes, values)]
    for column in columns[1:]:
        more, values = _encode(column)
        parts.append((more, values))
        # Two numbers become one; numbered again, it stays small however many columns follow.
        codes, _ = _encode(pa.array(codes * max(1, len(values)) + more))
    first = np.zeros(int(codes.max()) + 1 if rows else 0, np.int64)
    first[codes[::-1]] = np.arange(rows - 1, -1, -1)
    distinct = [values.take(pa.array(numbers[first])) for numbers, values in parts]
    return EncodedKeys(codes, pa.RecordBatch.from_arrays(distinct, schema=schema))


def merge_keys(tables: Sequence[pa.RecordBatch], schema: pa.Schema) -> tuple[list[Codes], pa.RecordBatch]:
    """Several key tables as one, and for each of them the new number of each of its keys."""
    counts = [table.num_rows for table in tables]
    columns = [pa.concat_arrays([table.column(at) for table in tables]) for at in range(len(schema))]
    encoded = encode_keys(columns, schema, sum(counts))
    ends = np.cumsum(counts)
    return [encoded.codes[end - count : end] for count, end in zip(counts, ends.tolist(), strict=True)], encoded.table


def key_ranks(table: pa.RecordBatch) -> Codes:
    """For each key its place in the order of the keys' values, nulls last: the order in which results leave."""
    if not table.num_columns:
        return np.zeros(table.num_rows, np.int64)
    sortable = pa.table(
        [_sortable(column) for column in table.columns], names=[str(at) for at in range(table.num_columns)]
    )
    order = pc.sort_indices(sortable, sort_keys=[(name, "ascending") for name in sortable.column_names]).to_numpy()
    ranks = np.empty(table.num_rows, np.int64)
    ranks[order] = np.arange(table.num_rows)
    return ranks


VIRTUAL_BUCKETS = 256
"""A bucket holds one or more of them. Where partial results of several buckets are merged, they are merged in the order of the
virtual buckets, so it doesn't matter how many buckets there are."""


def virtual_buckets_of(table: pa.RecordBatch) -> Codes:
    """For each key the virtual bucket that it belongs to, from 0. The same on every machine and in every version."""
    if not table.num_columns:
        return np.zeros(table.num_rows, np.int64)
    texts = [_text(column).to_pylist() for column in table.columns]
    numbers = [
        zlib.crc32("\x1f".join(_part(text) for text in row).encode()) % VIRTUAL_BUCKETS
        for row in zip(*texts, strict=True)
    ]
    return np.array(numbers, np.int64)


def without_times(column: pa.Array) -> pa.Array:
    """Times as microseconds since 1970, for Python, which has none beyond the year 9999; what is no time as it is."""
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def no_columns(rows: int) -> pa.RecordBatch:
    """A batch without columns that has rows all the same, which Arrow only makes from a struct."""
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))


def _encode(column: pa.Array) -> tuple[Codes, pa.Array]:
    encoded = column.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary


def _sortable(column: pa.Array) -> pa.Array:
    return column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column


def _text(column: pa.Array) -> pa.Array:
    column = without_times(column)
    return column if pa.types.is_string(column.type) else column.cast(pa.string())


def _part(text: str | None) -> str:
    return "\x00" if text is None else text
