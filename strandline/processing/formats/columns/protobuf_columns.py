"""Flat Protobuf messages as columns: numbers, strings, and booleans in the order of their field numbers, each at most once. All
Protobuf writers write them in this form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strandline.processing.formats.columns.byte_walk import ByteScanner
from strandline.processing.formats.columns.read_columns import (
    Column,
    ColumnsAndMarks,
    Marks,
    as_doubles,
    can_be_read,
    is_whole,
)
from strandline.processing.formats.record_fields import RecordField

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

_VARINT, _LENGTH = 0, 2
_KINDS = {
    "TYPE_DOUBLE": (1, "<f8"), "TYPE_FLOAT": (5, "<f4"), "TYPE_FIXED64": (1, "<u8"), "TYPE_FIXED32": (5, "<u4"),
    "TYPE_SFIXED64": (1, "<i8"), "TYPE_SFIXED32": (5, "<i4"), "TYPE_INT64": (_VARINT, "i8"), "TYPE_INT32": (_VARINT, "i4"),
    "TYPE_UINT64": (_VARINT, "u8"), "TYPE_UINT32": (_VARINT, "u4"), "TYPE_SINT64": (_VARINT, "zigzag"),
    "TYPE_BOOL": (_VARINT, "bool"), "TYPE_STRING": (_LENGTH, "text"),
}  # fmt: skip
"""Wire type and kind of each type. Other types are left to other readers."""
_FLOATS = ("<f8", "<f4")


@dataclass(frozen=True)
class MessageField:
    """A field of a message."""

    tag: bytes
    kind: str
    """Kind of its value, from `_KINDS`."""
    may_be_missing: bool = True
    """True if a value that wasn't sent is missing. False if it is zero or empty."""
    field: RecordField | None = None
    """Field of the stream that it fills."""


class ProtobufColumns:
    """Reads the messages of one type."""

    def __init__(self, members: Sequence[MessageField]) -> None:
        self._members = members

    def columns(self, values: Sequence[bytes | None]) -> ColumnsAndMarks | None:
        """Return the columns of the records that have the usual form, and a mask of these records. See `ColumnReader`."""
        walk = ByteScanner(values)
        columns: dict[str, Column] = {}
        for member in self._members:
            is_sent = walk.is_next(member.tag)
            walk.skip(len(member.tag), is_sent)
            column = read_member(walk, member, is_sent)
            if member.field is not None:
                present = is_sent if member.may_be_missing else np.ones(len(walk), np.bool_)
                columns[member.field.name] = Column(column.values, present)
        walk.end()
        return columns, walk.fits


def protobuf_columns(descriptor: Descriptor, fields: Sequence[RecordField]) -> ProtobufColumns | None:
    """Return a reader of the type's messages. None if it can't read one of the fields."""
    named = {field.name: field for field in fields}
    if not all(map(can_be_read, fields)):
        return None
    members = []
    for one in sorted(descriptor.fields, key=lambda one: one.number):
        wire_and_kind = _kind_of(one)
        field = named.get(one.name)
        if wire_and_kind is not None and (field is None or _fits(wire_and_kind[1], field)):
            tag = _varint(one.number << 3 | wire_and_kind[0])
            members.append(MessageField(tag, wire_and_kind[1], one.has_presence, field))
        elif field is not None:
            return None
    return None if any(one.is_required for one in descriptor.fields) else ProtobufColumns(members)


def _kind_of(one: FieldDescriptor) -> tuple[int, str] | None:
    # If a record has several members of a oneof, the last one counts.
    is_choice = one.containing_oneof is not None and len(one.containing_oneof.fields) > 1
    if one.is_repeated or is_choice:
        return None
    names = {getattr(one, name): name for name in _KINDS}
    return _KINDS.get(names.get(one.type, ""))


def _fits(kind: str, field: RecordField) -> bool:
    if field.type in ("string", "boolean"):
        return kind == {"string": "text", "boolean": "bool"}[field.type]
    is_number = kind not in ("text", "bool")
    return is_number and not (is_whole(field) and kind in _FLOATS)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))


def read_member(walk: ByteScanner, member: MessageField, is_sent: Marks) -> Column:
    """Read the next member where it was sent. Elsewhere its value is 0 or empty."""
    kind, field = member.kind, member.field
    if kind == "text":
        lengths = walk.varint(is_sent).astype(np.int64)
        texts = walk.text(lengths, is_sent)
        # A string that wasn't sent is empty, not null.
        return texts if member.may_be_missing else Column(texts.values.fill_null(""), is_sent)
    if kind in _FLOATS:
        found = np.where(is_sent, walk.doubles_at(kind, walk.at), 0.0)
        walk.fixed(kind, is_sent)
        return Column(found, is_sent)
    if kind[0] == "<":
        raw = np.where(is_sent, walk.fixed(kind, is_sent), 0)
        numbers = raw.astype(np.int64)
        walk.fits &= (numbers >= 0) | (kind[1] == "i")
    elif kind == "zigzag":
        numbers = walk.zigzag(is_sent)
    else:
        numbers = walk.varint(is_sent).astype(np.int64)
        if kind == "bool":
            walk.fits &= (numbers == 0) | (numbers == 1)
            return Column(numbers == 1, is_sent)
        if kind != "i8":
            least, greatest = {"i4": (-(2**31), 2**31 - 1), "u4": (0, 2**32 - 1), "u8": (0, 2**63 - 1)}[kind]
            walk.fits &= (least <= numbers) & (numbers <= greatest)
    if field is None or field.type != "double":
        return Column(numbers, is_sent)
    doubles, are_sure = as_doubles(numbers)
    walk.fits &= are_sure
    return Column(doubles, is_sent)
