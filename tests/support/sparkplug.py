"""Payloads of Sparkplug B, written by hand from the specification's schema: nothing is shown to the reader by its own writer."""

from __future__ import annotations

import struct
from typing import Any

SPARKPLUG = "spBv1.0"
_DATATYPES = {
    "Int8": 1, "Int16": 2, "Int32": 3, "Int64": 4, "UInt8": 5, "UInt16": 6, "UInt32": 7, "UInt64": 8, "Float": 9, "Double": 10,
    "Boolean": 11, "String": 12, "DateTime": 13, "Text": 14, "UUID": 15, "DataSet": 16, "Bytes": 17, "File": 18, "Template": 19,
    "Int8Array": 22, "Int16Array": 23, "Int32Array": 24, "Int64Array": 25, "UInt8Array": 26, "UInt16Array": 27,
    "UInt32Array": 28, "UInt64Array": 29, "FloatArray": 30, "DoubleArray": 31, "BooleanArray": 32, "StringArray": 33,
    "DateTimeArray": 34,
}  # fmt: skip


def topic(kind: str, node: str = "n1", device: str = "", group: str = "g") -> bytes:
    """The header of a record of this type."""
    return f"mqtt:{SPARKPLUG}/{group}/{kind}/{node}{'/' if device else ''}{device}".encode()


def payload(*metrics: bytes, seq: int | None = None, time: int | None = None) -> bytes:
    made = b"" if time is None else _number(1, time)
    made += b"".join(_bytes(2, metric) for metric in metrics)
    return made if seq is None else made + _number(3, seq)


def metric(
    name: str | None = None,
    value: Any = None,
    datatype: str | None = None,
    alias: int | None = None,
    time: int | None = None,
    *,
    kind: str | None = None,
    **flags: bool,
) -> bytes:
    """`datatype`: declared type. `kind`: type of the encoded value, if it isn't declared."""
    made = b"" if name is None else _bytes(1, name.encode())
    for field, number in ((2, alias), (3, time), (4, None if datatype is None else _DATATYPES[datatype])):
        made += b"" if number is None else _number(field, number)
    for field, flag in ((5, "is_historical"), (6, "is_transient"), (7, "is_null")):
        made += _number(field, 1) if flags.get(flag) else b""
    return made if value is None else made + _value(kind or datatype or "", value)


def _value(kind: str, value: Any) -> bytes:
    if kind in ("Int8", "Int16", "Int32", "UInt8", "UInt16", "UInt32"):
        return _number(10, value & 0xFFFFFFFF)
    if kind in ("Int64", "UInt64", "DateTime"):
        return _number(11, value & 0xFFFFFFFFFFFFFFFF)
    if kind == "Float":
        return b"\x65" + struct.pack("<f", value)
    if kind == "Double":
        return b"\x69" + struct.pack("<d", value)
    if kind == "Boolean":
        return _number(14, int(value))
    if kind in ("String", "Text", "UUID"):
        return _bytes(15, value.encode())
    return _bytes({"DataSet": 17, "Template": 18}.get(kind, 16), value)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])
