"""A computed result as its store must contain it, and a row of a file or a table. Both are rows to compare, made independently.
Pure.

A store must contain the document of the result. A row of a file or a table is converted to such a document, also from its
internal columns. A null column and a missing column mean the same, because a table has the columns of all versions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec

from strandline.processing.audit.index_reader import encode_result
from strandline.processing.audit.reconciliation import Row, Side
from strandline.results.document import Document, format_timestamp
from strandline.results.names import OWN_PREFIX
from strandline.results.sinks.sink import Sink
from strandline.results.sinks.typed_rows import ID, TIME
from strandline.results.writer import Refused

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ORIGIN = ("job", "stage", "stream", "partition", "offset", "element")


def computed_row(store: str, sink: Sink, one: Document | Refused, time_ms: int, *, is_good: bool) -> Row:
    """Return the required content of the store for one result. `sink`: sink of the store. `is_good`: True if it can have a
    document."""
    if not is_good:
        return Row(store, one.id, Side.UNUSABLE, "", time_ms, None, None)
    if not isinstance(one, Document):
        return Row(store, one.id, Side.COMPUTED, "", time_ms, None, None)
    document = msgspec.json.decode(one.source)
    if not sink.is_elsewhere:
        return Row(store, one.id, Side.COMPUTED, one.index, time_ms, None, encode_result(document))
    place = sink.position(one.index, time_ms)
    return Row(store, one.id, Side.COMPUTED, place, time_ms, None, encode_result(_without_nulls(document)))


def stored_row(store: str, place: str, row: Mapping[str, Any], fields: Collection[str]) -> Row:
    """Return a row of a file or a table. `row`: Python values by column. `fields`: names of the columns that form the result."""
    own = {name.removeprefix(OWN_PREFIX): value for name, value in row.items() if name.startswith(OWN_PREFIX)}
    document = {
        "@timestamp": _plain(row.get(TIME)),
        "window": _without_nulls({name: _plain(own.get(f"window_{name}")) for name in ("start", "end")}) or None,
        **{name: _plain(row.get(name)) for name in fields},
        "strandline": _without_nulls({name: own.get(name) for name in _ORIGIN}),
    }
    time, emission = row.get(TIME), own.get("emission")
    end_ms = _microseconds(time) // 1000 if isinstance(time, datetime) else None
    body = encode_result(_without_nulls(document))
    return Row(store, str(row.get(ID) or ""), Side.STORED, place, end_ms, emission, body)


def _without_nulls(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if value is not None}


def _plain(value: Any) -> Any:
    """Return a value as a document contains it."""
    match value:
        case datetime():
            return format_timestamp(_microseconds(value))
        case Decimal():
            return format(value, "f")
        case float() if not math.isfinite(value):  # no writer writes such a value
            return str(value)
        case list():
            return [_plain(one) for one in value]
        case dict():
            return {name: _plain(one) for name, one in value.items()}
    return value


def _microseconds(time: datetime) -> int:
    """Return microseconds since 1970. A time without a zone, as SQLite returns it, is UTC."""
    return ((time if time.tzinfo is not None else time.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)
