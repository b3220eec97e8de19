"""The bytes of many records to typed Arrow columns, at more than a million records a CPU-second.

A record's outcome depends on its own bytes, its log time and the watermark, never on its neighbours or on how records
are cut into calls: what is accepted is a pure function of the log. `RecordValidator` defines the outcome, one record at a
time. The fast path here may only accept; it hands every doubtful record to the validator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import compress
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from strandline.core.record_headers import REASON_FUTURE_EVENT, REASON_LATE, REASON_SCHEMA
from strandline.processing.pipelines.arrow_types import arrow_type
from strandline.processing.source.record_fields import (
    NESTING_MAX,
    DecimalParser,
    RecordField,
    RecordValidator,
    Rejection,
)
from strandline.processing.source.timestamps import Marks, Micros, format_timestamp, parse_timestamp_column

__all__ = ["Decoded", "Decoder", "RecordField", "RejectedRecord"]

_BLOCK_ROWS = 32
"""So many rows are searched for repeated keys together. Only where one is found are its rows searched one by one."""
_QUOTE = ord('"')


@dataclass(frozen=True)
class RejectedRecord:
    """A rejected record."""

    index: int
    """Its index among the values of the call."""
    reason: str
    """`decode`, `schema`, `future_event` or `late`: the first of these that holds."""
    message: str


@dataclass(frozen=True)
class Decoded:
    """What one call read."""

    arrays: dict[str, pa.Array]
    """The columns asked for, of the accepted records, in the order of the values."""
    event_time: pa.Array
    """Of the accepted records, `timestamp('us', tz='UTC')`."""
    rejects: list[RejectedRecord]
    """In the order of the values."""
    latest_event_ms: int | None
    """The greatest event time of the accepted records, rounded down; None when there are none."""


class Decoder:
    """Decodes the records of one stream for one job. Keeps no state between calls.

    Raises ValueError when the event-time field is not a declared timestamp, or a column is not declared.
    """

    def __init__(
        self,
        fields: Sequence[RecordField],
        event_time_field: str,
        columns_needed: Sequence[str],
        max_ahead_ms: int | None,
    ) -> None:
        names = [field.name for field in fields]
        unknown = sorted({event_time_field, *columns_needed} - set(names))
        if unknown:
            raise ValueError(f"no declared field {', '.join(unknown)}; declared are {', '.join(names)}")
        # A record without event time has no place in any window: the field is required whatever its declaration says.
        self._fields = [replace(field, required=True) if field.name == event_time_field else field for field in fields]
        self._event_time = names.index(event_time_field)
        if fields[self._event_time].type != "timestamp":
            raise ValueError(
                f"the event-time field {event_time_field} is a {fields[self._event_time].type}, not a timestamp"
            )
        self._needed = [(name, names.index(name)) for name in columns_needed]
        self._max_ahead_ms = max_ahead_ms
        self._validator = RecordValidator(self._fields)
        self._parse = msgspec.json.Decoder(self._validator.row_type).decode
        self._keys = [f'"{name}"'.encode() for name in names]

    def decode(self, values: Sequence[bytes | None], log_times_ms: Sequence[int], watermark_ms: int | None) -> Decoded:
        """Return the accepted records as columns, and the others with the reason.

        1. Read each record into a row; one that cannot be read goes to the validator.
        2. Read the timestamps and decimals of all rows.
        3. Give the rows that are in doubt to the validator.
        4. Reject what is too far ahead of its log time, then what is behind the watermark.
        5. Lay the accepted rows out as columns.
        """
        rows, indexes, rejects = self._read_rows(values)
        sources = [values[index] for index in indexes] if rejects else values
        columns = _Columns(self._validator, rows)
        keep = np.ones(len(rows), np.bool_)
        for at in sorted(columns.doubtful | self._doubtful_texts(sources, columns)):
            rejection = self._validator.validate(sources[at])
            if isinstance(rejection, Rejection):
                rejects.append(RejectedRecord(indexes[at], rejection.reason, rejection.message))
                keep[at] = False
        event_micros = columns.micros[self._event_time]
        self._reject_by_time(event_micros, keep, indexes, log_times_ms, watermark_ms, rejects)
        rejects.sort(key=lambda reject: reject.index)
        accepted_micros = event_micros[keep]
        return Decoded(
            arrays={name: columns.array(at, keep) for name, at in self._needed},
            event_time=columns.array(self._event_time, keep),
            rejects=rejects,
            latest_event_ms=int(accepted_micros.max()) // 1000 if len(accepted_micros) else None,
        )

    def _read_rows(self, values: Sequence[bytes | None]) -> tuple[list[Any], list[int], list[RejectedRecord]]:
        """Return the rows, the index of the value of each, and the rejects."""
        parse = self._parse
        rows: list[Any] = []
        append = rows.append
        rejects = []
        for index, value in enumerate(values):
            try:
                append(parse(value))  # type: ignore[arg-type]  # None raises TypeError
            except (ValueError, TypeError, RecursionError):
                rejection = self._validator.validate(value)
                if isinstance(rejection, Rejection):
                    rejects.append(RejectedRecord(index, rejection.reason, rejection.message))
                else:
                    append(rejection)
        rejected = {reject.index for reject in rejects}
        return rows, [index for index in range(len(values)) if index not in rejected], rejects

    def _doubtful_texts(self, values: Sequence[Any], columns: _Columns) -> set[int]:
        """Return the rows that may break a rule unknown to the parser: UTF-8 throughout, nesting, each key once.

        Each test looks at all bytes at once and costs next to nothing. Only where it fails are rows tested one by one.
        """
        doubtful: set[int] = set()
        # A row begins and ends with a brace or a blank, so no character, key or escape can span two of them.
        text = b"".join(values)
        if not text.isascii() and not _is_utf8(text):
            doubtful.update(at for at, value in enumerate(values) if not _is_utf8(value))
        if text.count(b"{") + text.count(b"[") >= len(values) + NESTING_MAX:
            doubtful.update(at for at, value in enumerate(values) if _may_nest_deep(value))
        # Each member of a row takes two quotes for its key, and two more for a string. With no quote left over, nothing
        # else stands in any row: no second key, and no key with an escape in it.
        if text.count(b'"') != columns.quotes:
            for first in range(0, len(values), _BLOCK_ROWS):
                doubtful.update(self._repeated_keys(values, columns, first, min(first + _BLOCK_ROWS, len(values))))
        return doubtful

    def _repeated_keys(self, values: Sequence[Any], columns: _Columns, first: int, end: int) -> list[int]:
        """Return the rows of a block that may have a declared key twice.

        There are none when no key can be spelled with an escape, and each key is found as often as rows have it.
        """
        block = b"".join(values[first:end])
        if b"\\" not in block and all(
            block.count(key) == columns.count_present(at, first, end) for at, key in enumerate(self._keys)
        ):
            return []
        return [
            at
            for at in range(first, end)
            if b"\\" in values[at] or any(values[at].count(key) > 1 for key in self._keys)
        ]

    def _reject_by_time(
        self,
        event_micros: Micros,
        keep: Marks,
        indexes: list[int],
        log_times_ms: Sequence[int],
        watermark_ms: int | None,
        rejects: list[RejectedRecord],
    ) -> None:
        """Clear `keep` and add a reject for each kept row before 1970, too far ahead of its log time, or too late."""
        name = self._fields[self._event_time].name
        log_ms = np.asarray(log_times_ms, np.int64)
        if len(indexes) < len(log_ms):
            log_ms = log_ms[indexes]
        for at in np.flatnonzero(keep & (event_micros < 0)).tolist():
            keep[at] = False  # Spark's watermark begins at 1970: Spark would drop earlier records silently
            message = f"{name}: {format_timestamp(event_micros[at])} is before 1970-01-01 UTC; is the unit right?"
            rejects.append(RejectedRecord(indexes[at], REASON_SCHEMA, message))
        if self._max_ahead_ms is not None:
            # Rounded up, so that one microsecond too many is too many.
            ahead_ms = -(-event_micros // 1000) - log_ms
            for at in np.flatnonzero(keep & (ahead_ms > self._max_ahead_ms)).tolist():
                keep[at] = False
                message = f"{name}: {format_timestamp(event_micros[at])} is {ahead_ms[at]} ms ahead of its log time"
                message += f", more than {self._max_ahead_ms} ms"
                rejects.append(RejectedRecord(indexes[at], REASON_FUTURE_EVENT, message))
        if watermark_ms is not None:
            for at in np.flatnonzero(keep & (event_micros // 1000 < watermark_ms)).tolist():
                keep[at] = False
                watermark = format_timestamp(watermark_ms * 1000)
                message = f"{name}: {format_timestamp(event_micros[at])} is before the watermark {watermark}"
                rejects.append(RejectedRecord(indexes[at], REASON_LATE, message))


class _Columns:
    """The rows of one call, field by field."""

    def __init__(self, validator: RecordValidator, rows: list[Any]) -> None:
        self._fields = validator.fields
        self._rows = rows
        self._values: dict[int, list[Any]] = {}
        self._valid: dict[int, Marks] = {}
        self._missing: dict[int, Marks] = {}
        self.micros: dict[int, Micros] = {}
        """The timestamps, by the field's place."""
        self.doubtful: set[int] = set()
        """The rows with a text that is no time, or a decimal that does not fit."""
        self.quotes = 0
        """How many quotes the rows take when nothing stands in them but declared fields, each once."""
        for at, field in enumerate(validator.fields):
            parse_decimal = validator.decimal_parsers.get(at)
            if field.required and field.type != "timestamp" and parse_decimal is None:
                self.quotes += len(rows) * (4 if field.type == "string" else 2)
                continue
            values = self._extract(at)
            kinds = Counter(map(type, values))
            self.quotes += 2 * (len(values) - kinds[msgspec.UnsetType] + kinds[str])
            if kinds[msgspec.UnsetType]:
                self._missing[at] = np.array([value is msgspec.UNSET for value in values], np.bool_)
                values = [None if value is msgspec.UNSET else value for value in values]
            if field.type == "timestamp":
                self._read_timestamps(at, values)
            if parse_decimal is not None:
                values = self._read_decimals(values, field, parse_decimal)
            self._values[at] = values

    def count_present(self, at: int, first: int, end: int) -> int:
        """Return how many of the rows from `first` to before `end` have a field, be it null."""
        missing = self._missing.get(at)
        return end - first - (0 if missing is None else int(missing[first:end].sum()))

    def array(self, at: int, keep: Marks) -> pa.Array:
        """Return one field of the kept rows."""
        field = self._fields[at]
        if field.type == "timestamp":
            valid = self._valid[at][keep]
            return pa.array(self.micros[at][keep], mask=None if valid.all() else ~valid).cast(arrow_type(field.type))
        values = self._values[at] if at in self._values else self._extract(at)
        return pa.array(values if keep.all() else list(compress(values, keep.tolist())), arrow_type(field.type))

    def _extract(self, at: int) -> list[Any]:
        return list(map(attrgetter(f"f{at}"), self._rows))

    def _read_timestamps(self, at: int, values: list[Any]) -> None:
        self.micros[at], self._valid[at] = parse_timestamp_column(values, self._fields[at].time_unit)
        invalid = np.flatnonzero(~self._valid[at]).tolist()
        self.doubtful.update(row for row in invalid if values[row] is not None)

    def _read_decimals(self, values: list[Any], field: RecordField, parse: DecimalParser) -> list[Decimal | None]:
        texts = [None if value is None else bytes(value) for value in values]
        self.quotes += 2 * sum(text is not None and text[0] == _QUOTE for text in texts)
        absent = (None,) if field.required else (None, b"null")
        numbers = [None if text is None or text in absent else parse(text) for text in texts]
        self.doubtful.update(row for row, number in enumerate(numbers) if number is None and texts[row] not in absent)
        return numbers


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _may_nest_deep(value: bytes) -> bool:
    return len(value) > 2 * NESTING_MAX and value.count(b"{") + value.count(b"[") > NESTING_MAX
