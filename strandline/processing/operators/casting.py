"""Casts between the types of a pipeline, on Arrow columns. A value that the target type can't represent becomes null.

The rules are those of Spark's ANSI `try_cast`, in UTC.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal, DecimalException

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.field_types import NULL, WHOLE_RANGES, decimal_digits, element_of, is_decimal
from strandline.core.times.time_patterns import micros_of_text
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.columns.decimals import EXACT_OF_DOUBLE, rounded_decimals

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP = arrow_type("timestamp")


def cast(array: pa.Array, source: str, target: str) -> pa.Array:
    """Return the values in another type; null if the target has no such value."""
    if array.type == arrow_type(target):
        return array
    if source == NULL or pa.types.is_null(array.type):
        return pa.nulls(len(array), arrow_type(target))
    element = element_of(target)
    if element is not None:
        values = cast(array.flatten(), element_of(source) or NULL, element)
        lengths = pc.list_value_length(array).fill_null(0).to_numpy()
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), values, mask=array.is_null() if array.null_count else None)
    if is_decimal(target):
        return _to_decimal(array, source, arrow_type(target))
    if is_decimal(source):
        source = "decimal"
    return _CASTS[source, target](array)


def decimals_of(array: pa.Array) -> list[Decimal | None]:
    """Return integers and decimals as Python decimals."""
    return [None if value is None else Decimal(value) for value in array.to_pylist()]


def _to_decimal(array: pa.Array, source: str, target: pa.Decimal128Type) -> pa.Array:
    if source in ("integer", "long") and target.precision - target.scale >= decimal_digits(source)[0]:
        return array.cast(pa.decimal128(decimal_digits(source)[0], 0)).cast(target)
    if is_decimal(source):
        kind = array.type
        if target.scale >= kind.scale and target.precision - target.scale >= kind.precision - kind.scale:
            return array.cast(target)
    convert: Callable[[object], Decimal | None] = {
        "double": _decimal_of_double,
        "string": _decimal_of_text,
        "boolean": lambda value: Decimal(int(bool(value))),
    }.get(source, lambda value: Decimal(value))  # type: ignore[arg-type]
    return rounded_decimals([None if value is None else convert(value) for value in array.to_pylist()], target)


def _decimal_of_double(value: object) -> Decimal | None:
    assert isinstance(value, float)
    return Decimal(repr(value)) if math.isfinite(value) else None


_UNSIGNED = r"(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?"
"""Possessive, and unambiguous for each string. Otherwise, a long run of digits before another character would take quadratic
time."""
_NUMBER = re.compile(rf"[+-]?{_UNSIGNED}", re.ASCII)


def _decimal_of_text(value: object) -> Decimal | None:
    text = _trimmed(str(value))
    if not _NUMBER.fullmatch(text):
        return None
    try:
        number = EXACT_OF_DOUBLE.create_decimal(text)
    except DecimalException:  # larger than Python's decimals
        return None
    if not number:
        return Decimal(0)  # whatever the exponent
    return number if number.adjusted() < 40 else None


def _whole(target: str) -> Callable[[pa.Array], pa.Array]:
    """Convert doubles and decimals to integers, rounded towards zero; null for NaN, or if the integer doesn't fit."""
    low, high = WHOLE_RANGES[target]

    def from_numbers(array: pa.Array) -> pa.Array:
        values = [None if value is None else _truncated(value) for value in array.to_pylist()]
        return pa.array([None if v is None or not low <= v <= high else v for v in values], arrow_type(target))

    def from_doubles(array: pa.Array) -> pa.Array:
        values = np.trunc((array.fill_null(0.0) if array.null_count else array).to_numpy(zero_copy_only=False))
        fits = (
            (values >= low) & (values <= high) if target == "integer" else (values >= -(2.0**63)) & (values < 2.0**63)
        )
        valid = fits & array.is_valid().to_numpy(zero_copy_only=False)
        kind = arrow_type(target)
        return pa.array(np.where(fits, values, 0).astype(kind.to_pandas_dtype()), kind, mask=~valid)

    return lambda array: from_doubles(array) if pa.types.is_floating(array.type) else from_numbers(array)


def _truncated(value: float | Decimal) -> int | None:
    return int(value) if math.isfinite(value) else None


def _narrowed(array: pa.Array) -> pa.Array:
    low, high = WHOLE_RANGES["integer"]
    fits = pc.and_(pc.greater_equal(array, low), pc.less_equal(array, high))
    return pc.if_else(fits, array, pa.scalar(None, pa.int64())).cast(pa.int32())


_WHOLE_TEXT = re.compile(r"[+-]?\d+", re.ASCII)
_DOUBLE_TEXT = re.compile(rf"[+-]?{_UNSIGNED}[dDfF]?", re.ASCII)
_SPECIAL = {
    "inf": math.inf,
    "+inf": math.inf,
    "infinity": math.inf,
    "+infinity": math.inf,
    "-inf": -math.inf,
    "-infinity": -math.inf,
    "nan": math.nan,
}
_TRUE, _FALSE = {"t", "true", "y", "yes", "1"}, {"f", "false", "n", "no", "0"}


def _trimmed(text: str) -> str:
    """Return the string without the white space and control characters at both ends that Spark ignores in a cast."""
    first, end = 0, len(text)
    while first < end and _is_blank(text[first]):
        first += 1
    while end > first and _is_blank(text[end - 1]):
        end -= 1
    return text[first:end]


def _is_blank(character: str) -> bool:
    return character <= " " or character == "\x7f"


def _whole_of_text(target: str) -> Callable[[str], int | None]:
    low, high = WHOLE_RANGES[target]

    def convert(text: str) -> int | None:
        text = _trimmed(text)
        if not _WHOLE_TEXT.fullmatch(text) or len(text) > 400:
            return None
        value = int(text)
        return value if low <= value <= high else None

    return convert


def _double_of_text(text: str) -> float | None:
    text = _trimmed(text)
    if (special := _SPECIAL.get(text.lower())) is not None:
        return special
    return float(text.rstrip("dDfF")) if _DOUBLE_TEXT.fullmatch(text) else None


def _boolean_of_text(text: str) -> bool | None:
    word = _trimmed(text).lower()
    return True if word in _TRUE else False if word in _FALSE else None


def _text_of_double(value: float) -> str:
    """Format a double as Java does: plain from 0.001 to 10,000,000, otherwise with an exponent."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).rstrip("0") or "0"
    point = len(digits) + exponent if any(digits) else 1
    minus = "-" if sign else ""
    if not any(digits):
        return f"{minus}0.0"
    text = text.lstrip("0")
    if -3 < point <= 7:
        whole = text[: max(point, 0)].ljust(max(point, 0), "0") or "0"
        part = "0" * max(-point, 0) + text[max(point, 0) :]
        return f"{minus}{whole}.{part or '0'}"
    return f"{minus}{text[0]}.{text[1:] or '0'}E{point - 1}"


def _text_of_time(micros: int) -> str | None:
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:  # outside of the years 1 to 9999
        return None
    text = moment.strftime("%Y-%m-%d %H:%M:%S").rjust(19, "0")
    return f"{text}.{moment.microsecond:06d}".rstrip("0") if moment.microsecond else text


def _each(convert: Callable[..., object], kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    return lambda array: pa.array([None if value is None else convert(value) for value in array.to_pylist()], kind)


def _micros(array: pa.Array) -> pa.Array:
    return array.cast(pa.int64())


def _seconds(array: pa.Array) -> pa.Array:
    micros = _micros(array)
    whole = pc.divide(micros, 1_000_000)
    below = pc.less(pc.subtract(micros, pc.multiply(whole, 1_000_000)), 0)
    return pc.subtract(whole, below.cast(pa.int64()))


def _time_of_whole(array: pa.Array) -> pa.Array:
    limit = 2**63 // 1_000_000
    seconds = array.cast(pa.int64())
    fits = pc.and_(pc.less_equal(seconds, limit), pc.greater_equal(seconds, -limit))
    kept = pc.if_else(fits, seconds, pa.scalar(None, pa.int64()))
    return pc.multiply(kept, 1_000_000).cast(_TIMESTAMP)


def _time_of_number(value: float | Decimal) -> int | None:
    scaled = value * 1_000_000
    if not math.isfinite(scaled):
        return None
    micros = int(scaled)  # rounded towards zero
    return micros if -(2**63) <= micros < 2**63 else None


def _micros_to_time(convert: Callable[..., int | None]) -> Callable[[pa.Array], pa.Array]:
    to_micros = _each(convert, pa.int64())
    return lambda array: to_micros(array).cast(_TIMESTAMP)


_CASTS: dict[tuple[str, str], Callable[[pa.Array], pa.Array]] = {
    ("integer", "long"): lambda array: array.cast(pa.int64()),
    ("integer", "double"): lambda array: array.cast(pa.float64()),
    ("long", "double"): lambda array: array.cast(pa.float64(), safe=False),
    ("long", "integer"): _narrowed,
    ("double", "integer"): _whole("integer"),
    ("double", "long"): _whole("long"),
    ("decimal", "integer"): _whole("integer"),
    ("decimal", "long"): _whole("long"),
    ("decimal", "double"): _each(float, pa.float64()),
    ("string", "integer"): _each(_whole_of_text("integer"), pa.int32()),
    ("string", "long"): _each(_whole_of_text("long"), pa.int64()),
    ("string", "double"): _each(_double_of_text, pa.float64()),
    ("string", "boolean"): _each(_boolean_of_text, pa.bool_()),
    ("string", "timestamp"): _micros_to_time(lambda text: micros_of_text(_trimmed(text))),
    ("boolean", "integer"): lambda array: array.cast(pa.int32()),
    ("boolean", "long"): lambda array: array.cast(pa.int64()),
    ("boolean", "double"): lambda array: array.cast(pa.int32()).cast(pa.float64()),
    ("boolean", "string"): _each(lambda value: "true" if value else "false", pa.string()),
    ("integer", "boolean"): lambda array: pc.not_equal(array, 0),
    ("long", "boolean"): lambda array: pc.not_equal(array, 0),
    ("double", "boolean"): lambda array: pc.not_equal(array, 0.0),
    ("decimal", "boolean"): _each(bool, pa.bool_()),
    ("integer", "string"): lambda array: array.cast(pa.string()),
    ("long", "string"): lambda array: array.cast(pa.string()),
    ("double", "string"): _each(_text_of_double, pa.string()),
    ("decimal", "string"): _each(lambda value: f"{value:f}", pa.string()),
    ("timestamp", "string"): lambda array: _each(_text_of_time, pa.string())(_micros(array)),
    ("timestamp", "long"): _seconds,
    ("timestamp", "double"): lambda array: pc.divide(_micros(array).cast(pa.float64(), safe=False), 1e6),
    ("integer", "timestamp"): _time_of_whole,
    ("long", "timestamp"): _time_of_whole,
    ("double", "timestamp"): _micros_to_time(_time_of_number),
    ("decimal", "timestamp"): _micros_to_time(_time_of_number),
}
