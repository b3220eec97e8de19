"""Debezium's change events in JSON, with or without the schema around them, to JSON objects with the changed row at `row`.

The row is `after`, of a deletion `before`. Fields without a path are columns of the row; a path leads from the event, as `$.op`
or `$.source.ts_ms`. A tombstone (no value), which follows a deletion, says nothing new and gives no row: the caller skips it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import Raw

from strandline.core.record_headers import REASON_DECODE, REASON_SCHEMA
from strandline.processing.formats.columns.json_columns import ChangeColumns
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
"""The member under which the changed row stands."""
_PAYLOAD = "payload"
_OPERATIONS = {b'"c"': "after", b'"r"': "after", b'"u"': "after", b'"d"': "before"}
"""Operation -> where its row stands: created, read by a snapshot, updated, deleted."""
_members_of = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.encode


def fields_of_changes(fields: Sequence[RecordField]) -> tuple[RecordField, ...]:
    """The fields with a path each: those that have none are columns of the row."""
    return tuple(field if field.path is not None else replace(field, path=(ROW, field.name)) for field in fields)


class ChangeEvents:
    """Reads the change events of one stream."""

    def __init__(self, fields: Sequence[RecordField]) -> None:
        """`fields` as `fields_of_changes` returns them."""
        self._wanted = sorted({str(field.path[0]) for field in fields if field.path} - {ROW})
        self.columns = ChangeColumns(fields, ROW).columns

    def objects(self, values: Sequence[bytes | None], _sources: Sequence[bytes | None]) -> list[JsonText]:
        """Each event as a JSON object of its `row` and what else the fields want of it."""
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
            return Rejection(REASON_SCHEMA, f"an event of operation {shown(operation)} holds no row")
        row = members.get(where)
        if row is None or bytes(row)[:1] != b"{":
            found = "it is missing" if row is None else f"got {shown(bytes(row))}"
            return Rejection(REASON_SCHEMA, f"{where}: expected the row as an object, {found}")
        return _encode({ROW: row} | {name: members[name] for name in self._wanted if name in members})


def row_of_change(event: dict[str, Any]) -> dict[str, Any] | None:
    """The row of an event that is read already; None if it is no change of a row."""
    payload = event.get(_PAYLOAD, event)
    if not isinstance(payload, dict) or not isinstance(operation := payload.get("op"), str):
        return None
    row = payload.get(_OPERATIONS.get(f'"{operation}"'.encode(), ""))
    return row if isinstance(row, dict) else None


def _repeated(text: bytes, members: dict[str, Raw]) -> str | None:
    """A name that an object has twice."""
    # Nothing is shorter than what is written here, with each member once: in a text of this length nothing else has room.
    if len(_encode(members)) == len(text):
        return None
    return next((name for name, number in Counter(top_level_keys(text)).items() if number > 1), None)
