"""Flat Avro records as columns: fields are numbers, strings, booleans, or null."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strandline.core.schemas.avro_schemas import AvroType, kind_of
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

_WHOLE = ("int", "long")
_FLOATS = {"float": "<f4", "double": "<f8"}


class AvroColumns:
    """Reads records of one schema. A record can have a prefix."""

    def __init__(self, members: Sequence[tuple[str, int | None, RecordField | None]]) -> None:
        """`members`: (kind, index of null in the union, field that it fills) of each member, in the order of the schema. The
        index is None if the member is no union with null, and the field is None if it fills none."""
        self._members = members

    def columns(self, values: Sequence[bytes | None], prefix: bytes = b"") -> ColumnsAndMarks | None:
        """See `ColumnReader`. `prefix`: bytes before each record."""
        walk = ByteScanner(values)
        if prefix:
            walk.fits &= walk.is_next(prefix)
            walk.skip(len(prefix))
        columns: dict[str, Column] = {}
        for kind, null, field in self._members:
            where: Marks | None = None
            if null is not None:
                branch = walk.zigzag()
                walk.fits &= (branch == 0) | (branch == 1)
                where = branch != null
            column = _read(walk, kind, where, field)
            if field is not None:
                columns[field.name] = column
        walk.end()
        return columns, walk.fits


def avro_columns(schema: AvroType, fields: Sequence[RecordField]) -> AvroColumns | None:
    """Return a reader of records of the schema. None if the schema has parts that it can't read."""
    named = {field.name: field for field in fields}
    if not all(map(can_be_read, fields)):
        return None
    members: list[tuple[str, int | None, RecordField | None]] = []
    for member in schema["fields"]:
        kind, null = _kind_and_null(member["type"])
        field = named.get(member["name"])
        if kind is None or (field is not None and not _fits(kind, field)):
            return None
        members.append((kind, null, field))
    return AvroColumns(members)


def _kind_and_null(schema: AvroType) -> tuple[str | None, int | None]:
    null = None
    if isinstance(schema, list):
        if len(schema) != 2 or "null" not in schema:
            return None, None
        null = schema.index("null")
        schema = schema[1 - null]
    kind = kind_of(schema) if not isinstance(schema, list) else ""
    return kind if kind in (*_WHOLE, *_FLOATS, "string", "boolean") else None, null


def _fits(kind: str, field: RecordField) -> bool:
    if field.type == "double":
        return kind in _WHOLE or kind in _FLOATS
    return kind in _WHOLE if is_whole(field) else kind == field.type


def _read(walk: ByteScanner, kind: str, where: Marks | None, field: RecordField | None) -> Column:
    present = np.ones(len(walk), np.bool_) if where is None else where
    if kind == "string":
        return walk.text(walk.zigzag(where), where)
    if kind == "boolean":
        byte = walk.fixed("u1", where)
        walk.fits &= (byte <= 1) | ~present
        return Column(byte == 1, present)
    if kind in _FLOATS:
        doubles = walk.doubles_at(_FLOATS[kind], walk.at)
        walk.fixed(_FLOATS[kind], where)
        return Column(doubles, present)
    numbers = walk.zigzag(where)
    if field is None or field.type != "double":
        return Column(numbers, present)
    whole, are_sure = as_doubles(numbers)
    walk.fits &= are_sure
    return Column(whole, present)
