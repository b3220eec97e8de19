"""Keys as small integers: each combination of the `by` fields of many rows gets a number from 0. Pure."""

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
    """One row for each key, one column for each `by` field, in the order of first occurrence. One empty row without `by`
    fields."""


def encode_keys(columns: Sequence[pa.Array], schema: pa.Schema, rows: int) -> EncodedKeys:
    """Number the keys of `rows` rows. A null is a key like any other. The cost depends on the rows, not on the keys."""
    if not columns:
        return EncodedKeys(np.zeros(rows, np.int64), no_columns(1 if rows else 0))
    codes, values = _encode(columns[0])
    parts = [(codes, values)]
    for column in columns[1:]:
        more, values = _encode(column)
        parts.append((more, values))
        # Two numbers become one. It is numbered again, so it stays small, however many columns follow.
        codes, _ = _encode(pa.array(codes * max(1, len(values)) + more))
    first = np.zeros(int(codes.max()) + 1 if rows else 0, np.int64)
    first[codes[::-1]] = np.arange(rows - 1, -1, -1)
    distinct = [values.take(pa.array(numbers[first])) for numbers, values in parts]
    return EncodedKeys(codes, pa.RecordBatch.from_arrays(distinct, schema=schema))


def merge_keys(tables: Sequence[pa.RecordBatch], schema: pa.Schema) -> tuple[list[Codes], pa.RecordBatch]:
    """Return several key tables as one, and for each table the new number of each key."""
    counts = [table.num_rows for table in tables]
    columns = [pa.concat_arrays([table.column(at) for table in tables]) for at in range(len(schema))]
    encoded = encode_keys(columns, schema, sum(counts))
    ends = np.cumsum(counts)
    return [encoded.codes[end - count : end] for count, end in zip(counts, ends.tolist(), strict=True)], encoded.table


def key_ranks(table: pa.RecordBatch) -> Codes:
    """Return the rank of each key in the order of the keys' values, nulls last. Results are emitted in this order."""
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
"""Number of virtual buckets. A bucket contains one or more of them. Partial results of several buckets are merged in the order
of the virtual buckets, so results don't depend on the number of buckets."""


def virtual_buckets_of(table: pa.RecordBatch) -> Codes:
    """Return the virtual bucket of each key, from 0. It is the same on every machine and in every version."""
    if not table.num_columns:
        return np.zeros(table.num_rows, np.int64)
    texts = [_text(column).to_pylist() for column in table.columns]
    numbers = [
        zlib.crc32("\x1f".join(_part(text) for text in row).encode()) % VIRTUAL_BUCKETS
        for row in zip(*texts, strict=True)
    ]
    return np.array(numbers, np.int64)


def without_times(column: pa.Array) -> pa.Array:
    """Return times as microseconds since 1970, because Python has none after the year 9999. Other columns are returned
    unchanged."""
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def no_columns(rows: int) -> pa.RecordBatch:
    """Return a batch without columns that still has rows, which Arrow can only create from a struct."""
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
