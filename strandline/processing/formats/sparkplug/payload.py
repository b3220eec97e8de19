"""The payload of Sparkplug B (`org.eclipse.tahu.protobuf.Payload`), and the value of a metric by its datatype."""

from __future__ import annotations

import base64
import math
import struct
from functools import cache
from typing import Any

import msgspec

from strandline.processing.formats.telemetry.points import message_class

_VALUES = [
    ("float_value", "optional float"), ("double_value", "optional double"), ("boolean_value", "optional bool"),
    ("string_value", "optional string"),
]  # fmt: skip
_MESSAGES = {
    "Payload": [
        ("timestamp", 1, "optional uint64"), ("metrics", 2, "repeated Metric"), ("seq", 3, "optional uint64"),
    ],
    "Metric": [
        ("name", 1, "optional string"), ("alias", 2, "optional uint64"), ("timestamp", 3, "optional uint64"),
        ("datatype", 4, "optional uint32"), ("is_historical", 5, "optional bool"), ("is_transient", 6, "optional bool"),
        ("is_null", 7, "optional bool"), ("int_value", 10, "optional uint32"), ("long_value", 11, "optional uint64"),
        *((name, 12 + at, kind) for at, (name, kind) in enumerate(_VALUES)), ("bytes_value", 16, "optional bytes"),
        ("dataset_value", 17, "optional DataSet"), ("template_value", 18, "optional Template"),
    ],
    "DataSet": [
        ("num_of_columns", 1, "optional uint64"), ("columns", 2, "repeated string"), ("types", 3, "repeated uint32"),
        ("rows", 4, "repeated Row"),
    ],
    "Row": [("elements", 1, "repeated DataSetValue")],
    "DataSetValue": [
        ("int_value", 1, "optional uint32"), ("long_value", 2, "optional uint64"),
        *((name, 3 + at, kind) for at, (name, kind) in enumerate(_VALUES)),
    ],
    "Template": [
        ("version", 1, "optional string"), ("metrics", 2, "repeated Metric"), ("parameters", 3, "repeated Parameter"),
        ("template_ref", 4, "optional string"), ("is_definition", 5, "optional bool"),
    ],
    "Parameter": [
        ("name", 1, "optional string"), ("type", 2, "optional uint32"), ("int_value", 3, "optional uint32"),
        ("long_value", 4, "optional uint64"), *((name, 5 + at, kind) for at, (name, kind) in enumerate(_VALUES)),
    ],
}  # fmt: skip
DATATYPES = (
    "Unknown", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float", "Double", "Boolean", "String",
    "DateTime", "Text", "UUID", "DataSet", "Bytes", "File", "Template", "PropertySet", "PropertySetList", "Int8Array",
    "Int16Array", "Int32Array", "Int64Array", "UInt8Array", "UInt16Array", "UInt32Array", "UInt64Array", "FloatArray",
    "DoubleArray", "BooleanArray", "StringArray", "DateTimeArray",
)  # fmt: skip
"""Names of the datatypes, by their numbers."""
WHOLE_BITS = {"Int8": 8, "Int16": 16, "Int32": 32, "Int64": 64, "UInt8": 8, "UInt16": 16, "UInt32": 32, "UInt64": 64}
_PACKED = {
    "Int8": "b", "Int16": "h", "Int32": "i", "Int64": "q", "UInt8": "B", "UInt16": "H", "UInt32": "I", "UInt64": "Q",
    "Float": "f", "Double": "d", "DateTime": "Q",
}  # fmt: skip
"""Packing of an array's elements, lowest byte first."""


class NoValueError(Exception):
    """The metric has no value of its datatype. The message describes its value."""


@cache
def payload_class() -> Any:
    return message_class("strandline.sparkplug", _MESSAGES, "Payload")


def datatype_name(number: int) -> str | None:
    """Return the name of a datatype that has values. None for 0 and for undefined numbers."""
    return DATATYPES[number] if 0 < number < len(DATATYPES) else None


def members_of_value(metric: Any, datatype: str) -> dict[str, Any]:
    """Return the members of a row that contain the value of a metric. Raises NoValueError if it can't be read.

    A number of any type is `value_double`; an integer also `value_long`. A time is `value_long`, in milliseconds since 1970.
    Bytes are base64 strings. Arrays, data sets, and templates are `value_json`, a string.
    """
    if metric.is_null:
        return {"is_null": True}
    if datatype in WHOLE_BITS:
        number = _whole(metric, datatype)
        return {"value_long": number, "value_double": float(number)}
    if datatype in ("Float", "Double"):
        number = _one_of(metric, datatype, "float_value", "double_value")
        return {"value_double": number} if math.isfinite(number) else {"is_null": True}
    if datatype == "Boolean":
        return {"value_boolean": _one_of(metric, datatype, "boolean_value")}
    if datatype in ("String", "Text", "UUID"):
        return {"value_string": _one_of(metric, datatype, "string_value")}
    if datatype == "DateTime":
        return {"value_long": _one_of(metric, datatype, "long_value")}
    if datatype in ("Bytes", "File"):
        return {"value_string": base64.b64encode(_one_of(metric, datatype, "bytes_value")).decode()}
    if datatype.endswith("Array"):
        return {"value_json": _json(_array(_one_of(metric, datatype, "bytes_value"), datatype.removesuffix("Array")))}
    if datatype in ("DataSet", "Template"):
        return {"value_json": _json(_as_dict(_one_of(metric, datatype, f"{datatype.lower()}_value")))}
    raise NoValueError(f"a metric has no value of datatype {datatype}")


def _whole(metric: Any, datatype: str) -> int:
    """Return an integer. Signed integers are in two's complement, small ones in 32 bits."""
    bits = WHOLE_BITS[datatype]
    number = int(_one_of(metric, datatype, "int_value", "long_value"))
    if datatype.startswith("U"):
        if number >= 1 << bits:
            raise NoValueError(f"{number} is no {datatype}")
        return number
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


def _one_of(metric: Any, datatype: str, *names: str) -> Any:
    for name in names:
        if metric.HasField(name):
            return getattr(metric, name)
    raise NoValueError(f"it has no {' or '.join(names)}, which {datatype} needs, and is not marked as null")


def _array(packed: bytes, element: str) -> list[Any]:
    try:
        if element == "String":
            if packed and not packed.endswith(b"\0"):
                raise ValueError("the last string has no end")
            return [text.decode() for text in packed.split(b"\0")[:-1]]
        if element == "Boolean":
            (count,) = struct.unpack_from("<I", packed)
            if len(packed) != 4 + -(-count // 8):
                raise ValueError(f"its header has {count} elements")
            # In the specification's example, the first element is the highest bit.
            return [bool(packed[4 + at // 8] >> (7 - at % 8) & 1) for at in range(count)]
        form = _PACKED[element]
        count, rest = divmod(len(packed), struct.calcsize(form))
        if rest:
            raise ValueError(f"{len(packed)} bytes are not a multiple of the element size")
        found = struct.unpack(f"<{count}{form}", packed)
    except (ValueError, KeyError, struct.error) as error:
        raise NoValueError(f"its bytes are not a {element}Array: {error}") from error
    return [one if not isinstance(one, float) or math.isfinite(one) else None for one in found]


def _as_dict(message: Any) -> Any:
    from google.protobuf import json_format  # only imported if a stream needs it

    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
