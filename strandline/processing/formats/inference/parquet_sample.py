"""The rows of a Parquet file as JSON objects, and the types in its schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from strandline.core.field_types import array_type, decimal_type
from strandline.core.files.parquet_rows import ROWS_AT_ONCE, json_rows
from strandline.processing.formats.inference.schemas import NoSampleError, Path

_SAMPLE_BYTES_MAX = 64 << 20
"""Maximum length in bytes of the rows of a sample as JSON."""


def read_parquet(sample: bytes, rows_max: int) -> tuple[list[bytes], pa.Schema]:
    """Return the first rows of the file, and its schema. Raises NoSampleError."""
    import pyarrow.parquet as pq

    rows: list[bytes] = []
    try:
        with pq.ParquetFile(pa.BufferReader(sample)) as file:
            size = 0
            for batch in file.iter_batches(ROWS_AT_ONCE):
                read = list(json_rows(batch))
                rows += read
                size += sum(map(len, read))
                if len(rows) >= rows_max or size >= _SAMPLE_BYTES_MAX:
                    break
            return rows[:rows_max], file.schema_arrow
    except (pa.ArrowException, OSError, ValueError) as error:
        raise NoSampleError(f"the sample is not a readable Parquet file ({error})") from error


def declared_types(schema: pa.Schema, exploded: Path | None) -> dict[Path, str]:
    """Return the type at each path of a row. `exploded`: path of the array whose elements are rows, together with the other
    members of their record. None if there is none."""
    types = dict(_types_of(schema, ()))
    if exploded is not None:
        kind: pa.DataType = pa.struct(list(schema))
        for step in exploded:
            kind = kind.field(step).type
        types |= dict(_types_of(kind.value_type, ()))
    return types


def _types_of(fields: Iterable[pa.Field], path: Path) -> Iterator[tuple[Path, str]]:
    for field in fields:
        if pa.types.is_struct(field.type):
            yield from _types_of(field.type, (*path, field.name))
        elif (found := _type_of(field.type)) is not None:
            yield (*path, field.name), found


def _type_of(kind: pa.DataType) -> str | None:
    """Return the type of a field for such values, in the form of JSON. None if no field can hold them completely."""
    types = pa.types
    if types.is_dictionary(kind):
        return _type_of(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        element = None if types.is_nested(kind.value_type) else _type_of(kind.value_type)
        return None if element is None else array_type(element)
    if types.is_integer(kind):
        return "integer" if kind.bit_width < 32 or kind == pa.int32() else "long"
    if types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= 38:
        return decimal_type(kind.precision, kind.scale)
    if types.is_boolean(kind):
        return "boolean"
    if types.is_floating(kind):
        return "double"
    if types.is_timestamp(kind) or types.is_date(kind):
        return "timestamp"
    return None if types.is_null(kind) or types.is_nested(kind) else "string"
