"""The Arrow type of each field type."""

from __future__ import annotations

import pyarrow as pa

from strandline.core.field_types import NULL, digits_of, element_of, members_of

_ARROW = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    NULL: pa.null(),
}


def arrow_type(name: str) -> pa.DataType:
    """Return the Arrow type of a field type. A timestamp is microseconds UTC, as in Spark."""
    if (element := element_of(name)) is not None:
        return pa.list_(arrow_type(element))
    if members := members_of(name):
        return pa.struct([(member, arrow_type(kind)) for member, kind in members.items()])
    digits = digits_of(name)
    return pa.decimal128(*digits) if digits else _ARROW[name]
