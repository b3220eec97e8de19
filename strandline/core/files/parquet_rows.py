"""Rows of Parquet as JSON objects, with times that Python can represent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa

_encode = msgspec.json.Encoder(enc_hook=str).encode

ROWS_AT_ONCE = 256
"""Maximum number of rows that are unpacked in one step. A file of 444 bytes can contain thousands of long strings, each stored
once."""


def json_rows(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Return each row as a JSON object. Times become ISO 8601 strings, and decimals strings with all their digits. Raises as
    `python_rows`."""
    return map(_encode, python_rows(batch))


def python_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return each row as a dictionary. Raises ArrowException; ValueError if Python can't represent a time, or if two columns
    have the same name."""
    names = batch.schema.names
    if len(set(names)) < len(names):
        repeated = next(name for at, name in enumerate(names) if name in names[:at])
        raise ValueError(f"more than one column has the name {repeated}; give each column its own name")
    try:
        return _in_microseconds(batch).to_pylist()  # type: ignore[no-any-return]
    except OverflowError as error:
        raise ValueError(f"a time is beyond the years 1 to 9999, or a duration is too long ({error})") from error
    except LookupError as error:
        raise ValueError(f"unknown time zone: {error}") from error


def _in_microseconds(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with times truncated to microseconds. Python has no finer times, and pyarrow would return those of
    pandas."""
    schema = pa.schema([field.with_type(_microseconds_of(field.type)) for field in batch.schema])
    return batch if schema == batch.schema else batch.cast(schema, safe=False)


def _microseconds_of(kind: pa.DataType) -> pa.DataType:
    """Return the type with microseconds instead of nanoseconds, also in structs, lists, and maps."""
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if kind == pa.time64("ns"):
        return pa.time64("us")
    if kind == pa.duration("ns"):
        return pa.duration("us")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_microseconds_of(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_microseconds_of(kind.key_type), _microseconds_of(kind.item_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(_microseconds_of(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_microseconds_of(kind.value_type), kind.list_size)
    return pa.list_(_microseconds_of(kind.value_type)) if pa.types.is_list(kind) else kind
