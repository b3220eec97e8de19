"""Converts Debezium's change events in JSON, with or without the schema, to JSON objects with the changed row at `row`.

The row is `after`, or `before` for a deletion. Fields without a path are columns of the row. A path begins at the event, as
`$.op` or `$.source.ts_ms`. A tombstone (no value) follows a deletion and contains nothing new: it has no row, and the caller
skips it. A column is missing if the event has Debezium's placeholder for its value: PostgreSQL doesn't send large values that
an update didn't change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw

from strandline.core.record_headers import REASON_DECODE, REASON_SCHEMA
from strandline.processing.formats.columns.json_columns import ChangeColumns
from strandline.processing.formats.columns.read_columns import ColumnsAndMarks
from strandline.processing.formats.record_fields import (
    JsonText,
    RecordField,
    Rejection,
    may_nest_deep,
    shown,
    top_level_keys,
    why_unreadable,
)

ROW = "row"
"""Name of the member with the changed row."""
_PAYLOAD = "payload"
_OPERATIONS = {b'"c"': "after", b'"r"': "after", b'"u"': "after", b'"d"': "before"}
"""Operation -> member with its row: created, read by a snapshot, updated, deleted."""
_ROWS = (ROW, "before", "after")
_UNAVAILABLE = ("__debezium_unavailable_value", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==")
"""Debezium's placeholder, and its form in Base64, for columns of bytes."""
_UNAVAILABLE_TEXTS = tuple(f'"{one}"'.encode() for one in _UNAVAILABLE)
_members_of = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.encode


def fields_of_changes(fields: Sequence[RecordField]) -> tuple[RecordField, ...]:
    """Return the fields, each with a path. Fields without one are columns of the row."""
    return tuple(field if field.path is not None else replace(field, path=(ROW, field.name)) for field in fields)


class ChangeEvents:
    """Reads the change events of one stream."""

    def __init__(self, fields: Sequence[RecordField]) -> None:
        """`fields`: result of `fields_of_changes`."""
        self._wanted = sorted({str(field.path[0]) for field in fields if field.path} - {ROW})
        self._quick = ChangeColumns(fields, ROW)

    def columns(
        self, values: Sequence[bytes | None], _sources: Sequence[bytes | None] = (None,)
    ) -> ColumnsAndMarks | None:
        """See `ColumnReader`. Events with a placeholder are read by their text."""
        if (found := self._quick.columns(values)) is None:
            return None
        columns, fits = found
        for column in columns.values():
            if isinstance(column.values, pa.Array):
                fits &= ~np.array(pc.is_in(column.values, pa.array(_UNAVAILABLE)))
        return columns, fits

    def objects(self, values: Sequence[bytes | None], _sources: Sequence[bytes | None]) -> list[JsonText]:
        """Return each event as a JSON object with its `row`, and the other members that fields need."""
        return [None if value is None else self._object(value) for value in values]

    def _object(self, value: bytes) -> JsonText:
        if (not value.isascii() or may_nest_deep(value)) and (why := why_unreadable(value)) is not None:
            return Rejection(REASON_DECODE, why)
        payload = value
        try:
            members = _members_of(value)
            repeated = _repeated(value, members)
            if _PAYLOAD in members:
                payload = bytes(members[_PAYLOAD])
                members = _members_of(payload)
                repeated = repeated or _repeated(payload, members)
        except msgspec.ValidationError:
            return Rejection(REASON_SCHEMA, f"expected a change event, got {shown(payload)}")
        except (msgspec.DecodeError, RecursionError):
            return Rejection(REASON_DECODE, why_unreadable(value) or "not JSON")
        if repeated is not None:
            return Rejection(REASON_DECODE, f'duplicate key "{repeated}"')
        if "op" not in members:
            return Rejection(REASON_SCHEMA, f"expected a change event with 'op', got {shown(payload)}")
        where = _OPERATIONS.get(operation := bytes(members["op"]))
        if where is None:
            return Rejection(REASON_SCHEMA, f"an event of operation {shown(operation)} has no row")
        row = members.get(where)
        if row is None or bytes(row)[:1] != b"{":
            found = "it is missing" if row is None else f"got {shown(bytes(row))}"
            return Rejection(REASON_SCHEMA, f"{where}: expected the row as an object, {found}")
        taken = {ROW: row} | {name: members[name] for name in self._wanted if name in members}
        if any(one in payload for one in _UNAVAILABLE_TEXTS):
            for name in taken.keys() & _ROWS:
                columns = _columns_of(taken[name])
                if isinstance(columns, Rejection):
                    return columns
                taken[name] = columns
        return _encode(taken)


def row_of_change(event: dict[str, Any]) -> dict[str, Any] | None:
    """Return the row of a parsed event. None if it isn't a change of a row."""
    payload = event.get(_PAYLOAD, event)
    if not isinstance(payload, dict) or not isinstance(operation := payload.get("op"), str):
        return None
    row = payload.get(_OPERATIONS.get(f'"{operation}"'.encode(), ""))
    return row if isinstance(row, dict) else None


def _columns_of(row: Raw) -> Raw | Rejection:
    """Return the row without the columns whose values the event doesn't contain."""
    if bytes(row)[:1] != b"{":
        return row
    members = _members_of(row)
    if (repeated := _repeated(bytes(row), members)) is not None:
        return Rejection(REASON_DECODE, f'duplicate key "{repeated}"')
    return Raw(_encode({name: value for name, value in members.items() if bytes(value) not in _UNAVAILABLE_TEXTS}))


def _repeated(text: bytes, members: dict[str, Raw]) -> str | None:
    """Return a name that an object has twice. None if there is none."""
    # The encoded members, each once, are the shortest form: in a text of this length there is nothing else.
    if len(_encode(members)) == len(text):
        return None
    return next((name for name, number in Counter(top_level_keys(text)).items() if number > 1), None)
