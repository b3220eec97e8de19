"""Field types in the three worlds they pass through: the stream document, Arrow, Spark."""

from __future__ import annotations

import re

import pyarrow as pa

from strandline.core.stream import StreamSpec
from strandline.processing.source.decoder import FieldSpec

_ARROW = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def arrow_type(name: str) -> pa.DataType:
    """The Arrow type of a field type; a timestamp is microseconds UTC, as in Spark."""
    if name in _ARROW:
        return _ARROW[name]
    digits = _DECIMAL.fullmatch(name)
    if digits is None:
        raise ValueError(f"{name!r} is not a field type")
    return pa.decimal128(int(digits[1]), int(digits[2]))


def field_specs(stream: StreamSpec) -> list[FieldSpec]:
    """The stream's schema as the decoder takes it."""
    return [
        FieldSpec(name=name, type=spec.type, required=spec.required, min=spec.min, max=spec.max, unit=spec.unit)
        for name, spec in stream.fields.items()
    ]
