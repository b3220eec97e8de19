"""Rows of Parquet as JSON objects, with times as Python has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa

_encode = msgspec.json.Encoder(enc_hook=str).encode

ROWS_AT_ONCE = 256
"""Maximum number of rows that are unpacked in one step. A file of 444 bytes can hold thousands of long strings, which it stores
once."""


def json_rows(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Each row as a JSON object. Times become ISO 8601 text, and decimals text with all their digits. Raises as `python_rows`."""
    return map(_encode, python_rows(batch))


def python_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Each row as a dictionary. Raises ArrowException; ValueError where Python has no such time, or two columns have one name."""
    names = batch.schema.names
    if len(set(names)) < len(names):
        repeated = next(name for at, name in enumerate(names) if name in names[:at])
        raise ValueError(f"more than one column is called {repeated}; give each a name of its own")
    try:
        return _in_microseconds(batch).to_pylist()  # type: ignore[no-any-return]
    except OverflowError as error:
        raise ValueError(f"a time is beyond the years 1 to 9999, or a duration too long ({error})") from error
    except LookupError as error:
        raise ValueError(f"the zone of a time is not known: {error}") from error


def _in_microseconds(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with their times cut to microseconds: Python has no finer ones, and pyarrow gives those of pandas or none."""
    schema = pa.schema([field.with_type(_microseconds_of(field.type)) for field in batch.schema])
    return batch if schema == batch.schema else batch.cast(schema, safe=False)


def _microseconds_of(kind: pa.DataType) -> pa.DataType:
    """The type with microseconds for nanoseconds, also within structs, lists and maps."""
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
