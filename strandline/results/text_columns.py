"""Columns as text: as JSON, and as parts of an id.

One call converts a complete column, because a call for each value costs far more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.errors import PermanentError
from strandline.core.field_types import element_of, kind_of, members_of

TIME_OUT_OF_RANGE = "timestamp_out_of_range"
NON_FINITE = "non_finite_number"
TIME_US_MIN, TIME_US_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999."""
_DECIMAL_CONTEXT = Context(prec=80)
_ARROW_TYPES: dict[str, Callable[[pa.DataType], bool]] = {
    "string": lambda arrow: pa.types.is_string(arrow) or pa.types.is_large_string(arrow),
    "long": pa.types.is_integer,
    "integer": pa.types.is_integer,
    "double": pa.types.is_floating,
    "boolean": pa.types.is_boolean,
    "timestamp": pa.types.is_timestamp,
    "decimal": pa.types.is_decimal,
    "array": pa.types.is_list,
    "struct": pa.types.is_struct,
}
_encode_lines = msgspec.json.Encoder().encode_lines


@dataclass(frozen=True, slots=True)
class TextColumn:
    """The values of one field as JSON."""

    texts: pa.BinaryArray
    """Each with a comma appended."""
    problems: dict[int, tuple[str, str]]
    """Row -> (type, reason) of a refusal. Its text is then a string that shows the value."""


def read_column(name: str, array: pa.Array, type_name: str) -> TextColumn:
    """Return the field's values as JSON. Raises PermanentError if the column doesn't have the declared type."""
    kind = kind_of(type_name)
    if not _ARROW_TYPES[kind](array.type):
        raise PermanentError(f"column {name} arrived as {array.type} where {type_name} was declared; this is a bug")
    problems: dict[int, tuple[str, str]] = {}
    if kind == "array":
        return _array_column(name, array, element_of(type_name) or "")
    if kind == "struct":
        return _struct_column(name, array, members_of(type_name))
    if kind == "timestamp":
        times_us = microseconds(array)
        inside = is_time_in_range(times_us)
        values = pc.if_else(inside, iso_texts(times_us, inside), times_us.cast(pa.string())).to_pylist()
        for row in _rows_where(pc.invert(inside)):
            reason = f"{name} lies outside the years 1 to 9999 ({times_us[row].as_py()} us)"
            problems[row] = (TIME_OUT_OF_RANGE, reason)
    else:
        values = array.to_pylist()
        if kind == "decimal":
            values = [None if value is None else format(value, "f") for value in values]
        elif kind == "double":
            for row in _rows_where(pc.invert(pc.is_finite(array))):
                reason = f"{name} is {values[row]}, which JSON cannot hold; guard the expression"
                problems[row] = (NON_FINITE, reason)
                values[row] = str(values[row])
    return TextColumn(_json_texts(values), problems)


def _array_column(name: str, array: pa.Array, element: str) -> TextColumn:
    """Encode the elements of each array as JSON. An element that a document can't contain refuses the row."""
    lengths = pc.list_value_length(array).fill_null(0).to_numpy()
    inner = read_column(name, array.flatten(), element)
    texts, ends = inner.texts.to_pylist(), np.cumsum(lengths).tolist()
    pairs = zip(ends, lengths.tolist(), array.is_valid().to_pylist(), strict=True)
    joined = [
        b"[" + b"".join(texts[end - length : end])[:-1] + b"]," if there else b"null," for end, length, there in pairs
    ]
    rows = np.repeat(np.arange(len(array)), lengths)
    problems = {int(rows[at]): problem for at, problem in reversed(inner.problems.items())}
    return TextColumn(pa.array(joined, pa.binary()), problems)


def _struct_column(name: str, array: pa.Array, members: dict[str, str]) -> TextColumn:
    columns = zip(members.items(), array.flatten(), strict=True)
    inner = [read_column(f"{name}.{member}", column, kind) for (member, kind), column in columns]
    pieces: list[pa.Array | bytes] = [b"{"]
    for member, column in zip(members, inner, strict=True):
        pieces += [msgspec.json.encode(member) + b":", column.texts]
    joined = zip(join_texts(pieces).to_pylist(), array.is_valid().to_pylist(), strict=True)
    texts = [text[:-1] + b"}," if there else b"null," for text, there in joined]
    problems = {row: problem for column in reversed(inner) for row, problem in column.problems.items()}
    return TextColumn(pa.array(texts, pa.binary()), problems)


def id_parts(array: pa.Array, type_name: str) -> pa.BinaryArray:
    """Return each value as the part of an id that `document_id` describes."""
    match kind_of(type_name):
        case "decimal":
            tag, texts = "d", pa.array(map(_plain_digits, array.to_pylist()), pa.string())
        case "double":
            tag, texts = "f", _hexadecimal(array)
        case "boolean":
            tag, texts = "b", pc.if_else(array, "1", "0")
        case "timestamp":
            times_us = microseconds(array)
            # A time that a document can't contain is refused; the id of its dead letter has always contained a number.
            tag, texts = pc.if_else(is_time_in_range(times_us), "t", "i"), times_us.cast(pa.string())
        case "string":
            tag, texts = "s", array.cast(pa.string())
        case _:
            tag, texts = "i", array.cast(pa.string())
    parts = pc.binary_join_element_wise(tag, pc.binary_length(texts).cast(pa.string()), ":", texts, "")
    return (parts.fill_null("n0:") if parts.null_count else parts).cast(pa.binary())


def join_texts(parts: Sequence[pa.Array | bytes]) -> pa.BinaryArray:
    """Concatenate the values of each row. `bytes` are added to every row."""
    known = [pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part for part in parts]
    return pc.binary_join_element_wise(*known, pa.scalar(b"", pa.binary()))


def bytes_between(texts: pa.BinaryArray, first: int, next_: int) -> bytes:
    """Return a copy of the concatenated values of the rows from `first` to before `next_`, as Arrow stores them."""
    ends = text_ends(texts)
    return bytes(memoryview(texts.buffers()[2])[ends[first] : ends[next_]]) if next_ > first else b""


def text_ends(texts: pa.BinaryArray) -> Any:
    """Return the offsets of the values in their buffer: value n is from [n] to before [n + 1]."""
    return np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]


def microseconds(array: pa.Array) -> pa.Int64Array:
    """Return microseconds since 1970 UTC (or null) for each timestamp. A timestamp without a zone is UTC."""
    return array.cast(pa.timestamp("us", tz=array.type.tz)).cast(pa.int64())


def decimal_text(value: Decimal) -> str:
    """Return a decimal's digits without trailing zeros, and zero without a sign."""
    return format(value.normalize(_DECIMAL_CONTEXT) or Decimal(0), "f")


def _json_texts(values: list[Any]) -> pa.BinaryArray:
    """Encode all values in one call. JSON writes a newline in a string as \\n, so each newline here ends a value."""
    lines = _encode_lines(values)
    ends = np.flatnonzero(np.frombuffer(lines, np.uint8) == ord("\n")) + 1
    offsets = np.concatenate([np.zeros(1, np.int64), ends]).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(lines.replace(b"\n", b","))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def is_time_in_range(times_us: pa.Int64Array) -> pa.BooleanArray:
    """Return a mask of the times, in microseconds since 1970 UTC, that are in the years 1 to 9999."""
    return pc.and_(pc.greater_equal(times_us, TIME_US_MIN), pc.less_equal(times_us, TIME_US_MAX))


def iso_texts(times_us: pa.Int64Array, inside: pa.BooleanArray) -> pa.StringArray:
    """Return the result of `format_timestamp` for each time in the range."""
    known = pc.if_else(inside, times_us, 0)
    texts = pc.utf8_replace_slice(known.cast(pa.timestamp("us")).cast(pa.string()), 10, 11, "T")
    is_whole = pa.array(known.fill_null(0).to_numpy() % 1000 == 0)
    short = pc.utf8_slice_codeunits(texts, 0, len("2024-05-01T12:00:00.000"))
    return pc.binary_join_element_wise(pc.if_else(is_whole, short, texts), "Z", "")


def _hexadecimal(doubles: pa.DoubleArray) -> pa.StringArray:
    """Return the 16 digits of each big-endian IEEE 754 double, zero without sign."""
    values = doubles.cast(pa.float64()).to_numpy(zero_copy_only=False)
    digits = np.where(values == 0, 0.0, values).astype(">f8").tobytes().hex().encode("ascii")
    texts = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(doubles), [None, pa.py_buffer(digits)])
    return pc.if_else(doubles.is_valid(), texts.cast(pa.binary()).cast(pa.string()), None)


def _plain_digits(value: Decimal | None) -> str | None:
    return None if value is None else decimal_text(value)


def _rows_where(mask: pa.BooleanArray) -> list[int]:
    return list(pc.indices_nonzero(mask).to_pylist())
