"""The log time of records without a log time in the input, which is their event time; and a check of event times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.core.errors import InvalidDocument, PermanentError, Problem
from strandline.processing.formats.record_fields import JsonText, RecordField, RecordValidator
from strandline.processing.formats.timestamps import format_timestamp, parse_timestamp_column, unit_of_century
from strandline.processing.pipelines.event_time import EventTimeSource

Times = npt.NDArray[np.int64]
_NO_TIMESTAMP = (
    "the stream has no field of type timestamp, so use the time of the run: --log-time now. Or write a test with arrival times: "
    "strandline pipeline test FILE, whose steps have 'at' (docs/desk.md)"
)


_NULL = msgspec.Raw(b"null")
_EARLY_MICROS = 631_152_000_000_000
"""The beginning of 1990. Devices send no earlier times, but a time that is read in a wrong unit is usually earlier."""


class EarlyTimes:
    """Watches the event times of one stream. If all are before 1990, the schema probably states another unit than the field
    has."""

    def __init__(self, stream: str, fields: Sequence[RecordField], source: EventTimeSource) -> None:
        self._stream = stream
        self._field = next((field for field in fields if field.name == source.field), None)
        self._first: int | None = None
        self._latest = 0

    def watch(self, micros: Times) -> None:
        """Add event times, in microseconds since 1970."""
        if len(micros):
            self._first = int(micros[0]) if self._first is None else self._first
            self._latest = max(self._latest, int(micros.max()))

    @property
    def warning(self) -> str | None:
        """Warning if all event times so far are before 1990. None if one isn't, or if there are none."""
        if self._field is None or self._first is None or self._latest >= _EARLY_MICROS:
            return None
        name, unit = self._field.name, self._field.time_unit
        early = (
            f"all event times of stream {self._stream} are before 1990, the first at {format_timestamp(self._first)}; "
        )
        if (likely := unit_of_century(self._first, unit)) is None:
            return early + f"check the values of field {name}, and its 'unit' in the schema, which is {unit}"
        return (
            f"{early}field {name} is read in {unit}, but in {likely[0]} the first would be {format_timestamp(likely[1])[:10]}; "
            f"if it counts {likely[0]}, write {name}: {{type: timestamp, unit: {likely[0]}}} in the stream's schema"
        )


class LogTimes:
    """Assigns a log time to each row, in log order.

    It is the log time in the input, or the field of the stream in `log_time`. Without these, it is the row's event time, rounded
    up to milliseconds, so that no event time is ahead of it. A row whose time can't be read has that of the row before it. If
    there is no row before it, it has the log time of the next readable row.
    """

    def __init__(self, fields: Sequence[RecordField], source: EventTimeSource, log_time: str | None = None) -> None:
        """`source`: source of event time. `log_time`: field of the stream that contains the log time of a record. None if log
        times are in the input, or follow from event times. Raises InvalidDocument if that field isn't a timestamp of the
        stream."""
        self._field = next((field for field in fields if field.name == (log_time or source.field)), None)
        if log_time is not None and (self._field is None or self._field.type != "timestamp"):
            times = ", ".join(field.name for field in fields if field.type == "timestamp")
            remedy = f"the stream's timestamps are: {times}" if times else _NO_TIMESTAMP
            message = f"can't read log time from '{log_time}'; {remedy}"
            raise InvalidDocument([Problem(message)])
        self._has_timestamps = any(field.type == "timestamp" for field in fields)
        self.are_event_times = log_time is None
        """True if rows without a log time in the input have their event time as log time."""
        self._last_ms: int | None = None
        if self._field is not None:
            optional = replace(self._field, required=False)
            kind = optional.parsed_type
            validator = RecordValidator([optional])
            self._repairs, self._parser = validator.repairs, validator.parsers.get(0)
            shape = msgspec.defstruct("Timed", [("at", kind, msgspec.field(default=None, name=self._field.name))])
            self._read = msgspec.json.Decoder(shape).decode

    def of_rows(self, texts: Sequence[JsonText], given_ms: Sequence[int | None] | None) -> Times:
        """Return the log time of each row. The rows follow those of earlier calls. Raises PermanentError if log time is event
        time and the input has no log times."""
        found = np.zeros(len(texts), np.int64)
        is_known = np.zeros(len(texts), np.bool_)
        if given_ms is None or None in given_ms:
            if self._field is None:
                raise PermanentError(
                    "the event time of the pipeline is log time, but the input has no arrival times; "
                    + ("name the field with them: --log-time FIELD" if self._has_timestamps else _NO_TIMESTAMP)
                )
            micros, is_known = self._times(self._field, [self._value(text) for text in texts])
            found = -(-micros // 1_000)
        if given_ms is not None:
            for at, one_ms in enumerate(given_ms):
                if one_ms is not None:
                    found[at], is_known[at] = one_ms, True
        return self._filled(found, is_known)

    def _times(self, field: RecordField, values: list[Any]) -> tuple[Times, npt.NDArray[np.bool_]]:
        """Return the time of each value in microseconds, and which of the values are times."""
        if self._parser is None:
            return parse_timestamp_column(values, field.time_unit, set(map(type, values)), field.tz)
        times = self._parser.parse_column([_NULL if value is None else value for value in values]).array
        return times.cast(pa.int64()).fill_null(0).to_numpy(), np.array(times.is_valid())

    def _value(self, text: JsonText) -> object:
        if not isinstance(text, bytes):
            return None
        for one in (text, self._repairs.repaired(text)):
            try:
                return None if one is None else self._read(one).at  # type: ignore[attr-defined]
            except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
                continue
        return None

    def _filled(self, found: Times, is_known: npt.NDArray[np.bool_]) -> Times:
        if not len(found):
            return found
        known = np.flatnonzero(is_known)
        if self._last_ms is None:
            self._last_ms = int(found[known[0]]) if len(known) else None
        place = np.maximum.accumulate(np.where(is_known, np.arange(len(found)), -1))
        filled = np.where(place >= 0, found[place], self._last_ms or 0)
        if len(known):
            self._last_ms = int(filled[-1])
        return filled
