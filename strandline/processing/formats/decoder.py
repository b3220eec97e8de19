"""Converts the bytes of many records to typed Arrow columns: about three million small records per CPU-second.

The outcome of a record depends on its bytes, its log time, and the watermark. It never depends on neighbours or on how records
are divided into calls, so it is a pure function of the log. `RecordValidator` defines the outcome of one record. The fast path
here can only accept records. It passes every doubtful record to the validator.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.core.record_headers import (
    REASON_DECODE,
    REASON_FUTURE_EVENT,
    REASON_LATE,
    REASON_SCHEMA,
    REASON_TIME_UNIT,
)
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.formats.columns.declared import array_of, as_declared, micros_of
from strandline.processing.formats.columns.read_columns import DecodedColumns
from strandline.processing.formats.decimals import DecimalParser
from strandline.processing.formats.field_parsers.field_parser import FieldParser
from strandline.processing.formats.record_fields import (
    NESTING_MAX,
    JsonText,
    NestedParser,
    RecordField,
    RecordValidator,
    Rejection,
    is_utf8,
    may_nest_deep,
)
from strandline.processing.formats.source_fields import FilledTexts
from strandline.processing.formats.timestamps import (
    PER_SECOND,
    Marks,
    Micros,
    format_timestamp,
    likely_unit,
    parse_timestamp_column,
)
from strandline.processing.pipelines.event_time import EventTimeSource

__all__ = ["Decoded", "Decoder", "RecordField", "RejectedRecord"]

_BLOCK_ROWS = 1_024
"""Number of rows whose bytes are tested together. It is low enough that one bad record costs little, and high enough that the
test of a row costs almost nothing."""
_GROUP_ROWS = 32
"""Number of doubtful rows that are searched for repeated keys together. If one can have them, the rows are searched one by one.
"""
_QUOTE = ord('"')
_QUOTES_OF = {str: 4, msgspec.UnsetType: 0, type(None): 2, bool: 2, int: 2, float: 2}
"""Number of quotes of a field, by the type of its value: two for its key, and two more for a string. None for a missing field."""
_NEAR_MICROS = 366 * 86_400 * 1_000_000
"""An event time within a year of the arrival is near to it."""

_NULL = msgspec.Raw(b"null")

RowIndices = npt.NDArray[np.int64]
NEVER_LATE = np.iinfo(np.int64).min
"""Watermark of a slice for which no record can be late."""
NEVER_AHEAD = np.iinfo(np.int64).max
"""Limit on the time ahead of the log time, for which no record is too far ahead."""


@dataclass(frozen=True)
class RejectedRecord:
    """A rejected record."""

    index: int
    """Index among the values of the call."""
    reason: str
    """`decode`, `schema`, `time_unit`, `future_event` or `late`: the first of these that applies."""
    message: str
    ahead_ms: int | None = None
    """How far a record with reason `future_event` is ahead of its log time. None for other reasons."""


@dataclass(frozen=True)
class Decoded:
    """The result of one call."""

    arrays: dict[str, pa.Array]
    """Requested columns of the accepted records, in the order of the values."""
    event_time: pa.Array
    """Event time of the accepted records, `timestamp('us', tz='UTC')`."""
    rejects: list[RejectedRecord]
    """Rejected records in the order of the values."""
    latest_event_ms: int | None
    """Latest event time of the accepted records, rounded down. None if there are no accepted records."""
    misfits: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Field -> number of accepted records whose value has another type, and is null (`or_null`)."""


class Decoder:
    """Decodes the records of one stream for one job. Keeps no state between calls.

    Raises ValueError if the event-time field isn't a declared timestamp, or a column isn't declared.
    """

    def __init__(
        self,
        fields: Sequence[RecordField],
        event_time: EventTimeSource,
        columns_needed: Sequence[str],
        late_limit: str = "the watermark",
    ) -> None:
        """`late_limit`: name of the time before which a record is late, for dead letters. Empty if no record is late."""
        self._late_limit = late_limit
        names = [field.name for field in fields]
        event_time_fields = [] if event_time.field is None else [event_time.field]
        unknown = sorted({*event_time_fields, *columns_needed} - set(names))
        if unknown:
            raise ValueError(f"no declared field {', '.join(unknown)}; declared are {', '.join(names)}")
        self._fields = list(fields)
        self._event_time: int | None = None
        """Index of the event-time field. None if log time is event time."""
        for name in event_time_fields:
            self._event_time = at = names.index(name)
            if fields[at].type != "timestamp":
                raise ValueError(f"the event-time field {name} is a {fields[at].type}, not a timestamp")
            # A record without event time belongs to no window, whatever the declaration of the field says.
            self._fields[at] = replace(fields[at], required=not event_time.or_log)
        self._needed = [(name, names.index(name)) for name in columns_needed]
        self._validator = RecordValidator(self._fields)
        self._parse = msgspec.json.Decoder(self._validator.row_type).decode
        self._keys = [f'"{name}"'.encode() for name in names]
        self._extracts = [_extract_of(at) for at in range(len(fields))]

    def decode(
        self,
        values: Sequence[JsonText],
        log_times_ms: Sequence[int],
        late_below_ms: Micros | int | None,
        max_ahead_ms: Micros | int | None = None,
    ) -> Decoded:
        """Return the accepted records as columns, and the rejected records with their reasons.

        1. Read each record into a row. For records that can't be read, the `RecordValidator` returns the reason.
        2. Read the timestamps and decimals of all rows.
        3. Let the validator check each doubtful row: a value is missing or invalid, or a name may be repeated.
        4. Reject records that are too far ahead of their log time, then late records.
        5. Build columns of the accepted rows.

        `late_below_ms`: a record with an earlier event time is rejected as late. If late records revise results, this is the time
        below which a record is too old for a revision.
        `max_ahead_ms`: maximum time ahead of the log time. Both are one number for all records, or one number for each record.
        None, NEVER_LATE, and NEVER_AHEAD mean no limit.
        """
        if isinstance(values, DecodedColumns):
            return self._decode_columns(values, log_times_ms, late_below_ms, max_ahead_ms)
        rows, sources, rejects = self._read_rows(values)
        columns = _Columns(self._validator, [partial(extract, rows) for extract in self._extracts], len(rows))
        keep = np.ones(len(rows), np.bool_)
        keep[[reject.index for reject in rejects] if rows else []] = False
        for at in sorted(columns.doubtful | self._doubtful_texts(sources, columns)):
            rejection = self._validate(values, at) if keep[at] else None
            if isinstance(rejection, Rejection):
                rejects.append(RejectedRecord(at, rejection.reason, rejection.message))
                keep[at] = False
        event_micros = self._event_micros(columns, np.asarray(log_times_ms, np.int64)[: len(rows)])
        self._reject_by_time(event_micros, keep, log_times_ms, late_below_ms, max_ahead_ms, rejects)
        rejects.sort(key=lambda reject: reject.index)
        accepted_micros = event_micros[keep]
        return Decoded(
            arrays={name: columns.array(at, keep) for name, at in self._needed},
            event_time=pa.array(accepted_micros).cast(arrow_type("timestamp")),
            rejects=rejects,
            latest_event_ms=int(accepted_micros.max()) // 1000 if len(accepted_micros) else None,
            misfits=columns.count_misfits(keep),
        )

    def _decode_columns(
        self,
        read: DecodedColumns,
        log_times_ms: Sequence[int],
        late_below_ms: Micros | int | None,
        max_ahead_ms: Micros | int | None,
    ) -> Decoded:
        """Return the result of `decode`. Records that the columns don't represent are decoded from their text."""
        count, columns = len(read), read.columns
        fits = read.fits.copy()
        for field in self._fields:
            fits &= as_declared(field, columns.get(field.name), count)
        others = np.flatnonzero(~fits)
        event_micros = np.asarray(log_times_ms, np.int64)[:count] * 1000
        if self._event_time is not None:
            field = self._fields[self._event_time]
            column = columns.get(field.name)
            if column is not None:
                event_micros = np.where(fits & column.present, micros_of(field, column), event_micros)
        keep, rejects = fits.copy(), list[RejectedRecord]()
        self._reject_by_time(event_micros, keep, log_times_ms, late_below_ms, max_ahead_ms, rejects)
        rejects.sort(key=lambda reject: reject.index)
        accepted_micros = event_micros[keep]
        decoded = Decoded(
            arrays={name: array_of(self._fields[at], columns.get(name), keep) for name, at in self._needed},
            event_time=pa.array(accepted_micros).cast(arrow_type("timestamp")),
            rejects=rejects,
            latest_event_ms=int(accepted_micros.max()) // 1000 if len(accepted_micros) else None,
        )
        if len(others) == 0:
            return decoded
        rest = self.decode(
            read.of(others.tolist()),
            [log_times_ms[at] for at in others.tolist()],
            *(limit[others] if isinstance(limit, np.ndarray) else limit for limit in (late_below_ms, max_ahead_ms)),
        )
        return _in_order(decoded, np.flatnonzero(keep), rest, others)

    def _event_micros(self, columns: _Columns, log_times_ms: Micros) -> Micros:
        """Return the event time of each row. It has no meaning for doubtful rows, which the validator reads."""
        if self._event_time is None:
            return log_times_ms * 1000
        if self._fields[self._event_time].required:
            return columns.micros[self._event_time]
        return np.where(columns.valid[self._event_time], columns.micros[self._event_time], log_times_ms * 1000)

    def _read_rows(self, values: Sequence[JsonText]) -> tuple[list[Any], Sequence[Any], list[RejectedRecord]]:
        """Return a row for each value, the bytes of each row, and the rejects.

        A good record replaces each rejected one in the rows and in the bytes, so that indices stay the same. The caller leaves it
        out. There are no rows if all records are rejected.
        """
        rows: list[Any] = []
        rejects = []
        unread = iter(values)
        while len(rows) < len(values):
            try:
                # Stops at the first record that can't be read, and keeps the rows before it.
                rows.extend(map(self._parse, unread))  # type: ignore[arg-type]  # None raises TypeError
            except (ValueError, TypeError, RecursionError):
                index = len(rows)
                row = self._validate(values, index)
                if isinstance(row, Rejection):
                    rejects.append(RejectedRecord(index, row.reason, row.message))
                rows.append(row)
        if not rejects:
            return rows, values, rejects
        good = next((at for at, row in enumerate(rows) if not isinstance(row, Rejection)), None)
        if good is None:
            return [], [], rejects
        sources = list(values)
        for reject in rejects:
            rows[reject.index], sources[reject.index] = rows[good], values[good]
        return rows, sources, rejects

    def _validate(self, values: Sequence[JsonText], at: int) -> Any:
        """Return the record as a row, or the reason why it is rejected. If it can't be read, the reason is about the record
        without the fields of its source: they would move the position of the mistake."""
        found = self._validator.validate(values[at])
        if isinstance(values, FilledTexts) and isinstance(found, Rejection) and found.reason == REASON_DECODE:
            as_sent = self._validator.validate(values.without_sources[at])
            if isinstance(as_sent, Rejection) and as_sent.reason == REASON_DECODE:
                return as_sent
        return found

    def _doubtful_texts(self, values: Sequence[Any], columns: _Columns) -> set[int]:
        """Return the rows that can break a rule that the parser doesn't check: UTF-8, depth of nesting, and unique keys.

        Each test reads all bytes of a block. Rows are only tested one by one if it fails.
        """
        doubtful: set[int] = set()
        for first in range(0, len(values), _BLOCK_ROWS):
            block = values[first : first + _BLOCK_ROWS]
            # A row begins and ends with a brace or a blank, so no character, key, or escape can span two rows.
            text = b"".join(block)
            data = np.frombuffer(text, np.uint8)
            if not is_utf8(text):
                doubtful.update(first + at for at, value in enumerate(block) if not is_utf8(value))
            # Each member of a row has two quotes for its key, and two more for a string. If there are no other quotes, no row
            # contains anything else: no second key, no key with an escape, and nothing nested.
            quotes = columns.quotes[first : first + _BLOCK_ROWS]
            left_over = np.count_nonzero(data == _QUOTE) - quotes.sum()
            if left_over == 0:
                continue
            brackets = np.count_nonzero(data == ord("{")) + np.count_nonzero(data == ord("["))
            if brackets >= len(block) + NESTING_MAX:
                doubtful.update(first + at for at, value in enumerate(block) if may_nest_deep(value))
            rows = np.arange(first, first + len(block))
            if left_over >= len(block) and not self._may_repeat_keys(text, rows, columns):
                continue
            lengths = np.fromiter(map(len, block), np.int64, len(block))
            counts = np.add.reduceat(data == _QUOTE, lengths.cumsum() - lengths, dtype=np.int64)
            doubtful.update(self._repeated_keys(values, rows[counts != quotes], columns))
        return doubtful

    def _repeated_keys(self, values: Sequence[Any], rows: RowIndices, columns: _Columns) -> list[int]:
        """Return the rows that can have a declared key twice."""
        found = []
        for first in range(0, len(rows), _GROUP_ROWS):
            group = rows[first : first + _GROUP_ROWS]
            places = group.tolist()
            if self._may_repeat_keys(b"".join([values[at] for at in places]), group, columns):
                for at in places:
                    value = values[at]
                    if b"\\" in value or any(value.count(key) > 1 for key in self._keys):
                        found.append(at)
        return found

    def _may_repeat_keys(self, text: bytes, rows: RowIndices, columns: _Columns) -> bool:
        """Return False if no key can be written with an escape, and the number of each key is the number of rows that have it."""
        return b"\\" in text or any(
            text.count(key) != columns.count_present(at, rows) for at, key in enumerate(self._keys)
        )

    def _reject_by_time(
        self,
        event_micros: Micros,
        keep: Marks,
        log_times_ms: Sequence[int],
        late_below_ms: Micros | int | None,
        max_ahead_ms: Micros | int | None,
        rejects: list[RejectedRecord],
    ) -> None:
        """Clear `keep` and add a reject for each kept row before 1970, too far ahead of its log time, or too late."""
        name = "log time" if self._event_time is None else self._fields[self._event_time].name
        if self._event_time is not None:
            self._reject_by_unit(self._fields[self._event_time], event_micros, keep, log_times_ms, rejects)
        for at in np.flatnonzero(keep & (event_micros < 0)).tolist():
            keep[at] = False  # nearly always a time in another unit than the declared unit
            message = f"{name}: {format_timestamp(event_micros[at])} is before 1970-01-01 UTC; is the unit right?"
            rejects.append(RejectedRecord(at, REASON_SCHEMA, message))
        if max_ahead_ms is not None:
            most_ms = np.broadcast_to(np.asarray(max_ahead_ms, np.int64), len(log_times_ms))[: len(keep)]
            # Rounded up, so that one microsecond over the limit is too much.
            ahead_ms = -(-event_micros // 1000) - np.asarray(log_times_ms, np.int64)[: len(keep)]
            for at in np.flatnonzero(keep & (ahead_ms > most_ms)).tolist():
                keep[at] = False
                message = f"{name}: {format_timestamp(event_micros[at])} is {ahead_ms[at]} ms ahead of its log time"
                message += f", more than {most_ms[at]} ms"
                rejects.append(RejectedRecord(at, REASON_FUTURE_EVENT, message, int(ahead_ms[at])))
        if late_below_ms is not None and self._late_limit:
            limits_ms = np.broadcast_to(np.asarray(late_below_ms, np.int64), len(log_times_ms))[: len(keep)]
            for at in np.flatnonzero(keep & (event_micros // 1000 < limits_ms)).tolist():
                keep[at] = False
                limit = f"{self._late_limit} {format_timestamp(limits_ms[at] * 1000)}"
                message = f"{name}: {format_timestamp(event_micros[at])} is before {limit}"
                rejects.append(RejectedRecord(at, REASON_LATE, message))

    def _reject_by_unit(
        self,
        field: RecordField,
        event_micros: Micros,
        keep: Marks,
        log_times_ms: Sequence[int],
        rejects: list[RejectedRecord],
    ) -> None:
        """Clear `keep` and add a reject for each kept row that is far from its log time, but near to it in another unit."""
        log_micros = np.asarray(log_times_ms, np.int64)[: len(keep)] * 1000
        is_far = keep & (np.abs(event_micros - log_micros) > _NEAR_MICROS)
        if not is_far.any():
            return
        # As floats, because a product can exceed 64 bits. Times that are near are checked exactly.
        factors = [PER_SECOND[field.time_unit] / per_second for per_second in PER_SECOND.values()]
        near = [np.abs(event_micros * factor - log_micros) <= 1.001 * _NEAR_MICROS for factor in factors]
        for at in np.flatnonzero(is_far & np.any(near, axis=0)).tolist():
            micros = int(event_micros[at])
            likely = likely_unit(micros, field.time_unit, int(log_micros[at]), _NEAR_MICROS)
            if likely is not None:
                keep[at] = False
                message = (
                    f"{field.name}: as {field.time_unit} it is {format_timestamp(micros)}, as {likely[0]} it would be "
                )
                message += f"{format_timestamp(likely[1])}, when it arrived; is the unit right?"
                rejects.append(RejectedRecord(at, REASON_TIME_UNIT, message))


class _Columns:
    """The rows of one call, by field."""

    def __init__(self, validator: RecordValidator, extracts: list[Callable[[], list[Any]]], rows: int) -> None:
        self._fields = validator.fields
        self._extracts = extracts
        self._arrays: dict[int, pa.Array] = {}
        self._values: dict[int, list[Any]] = {}
        """Values of fields that were read without an array, because most of them aren't requested."""
        self._missing: dict[int, Marks] = {}
        self.micros: dict[int, Micros] = {}
        """Timestamps, by the index of the field."""
        self.valid: dict[int, Marks] = {}
        """Rows with a timestamp, by the index of the field."""
        self.doubtful: set[int] = set()
        """Rows with a string that isn't a time, a decimal that doesn't fit, or bytes that aren't UTF-8."""
        self.misfits: dict[int, Marks] = {}
        """Rows in which a value of another type is null, by the index of the field."""
        self.quotes = np.zeros(rows, np.int64)
        """Number of quotes of each row, if it contains only declared fields, each once."""
        for at, field in enumerate(validator.fields):
            decimal_parser = validator.decimal_parsers.get(at)
            if at in validator.parsers:
                self._read_parsed(at, validator.parsers[at])
            elif decimal_parser is not None:
                self._read_decimals(at, decimal_parser)
            elif at in validator.nested_parsers:
                self._read_nested(at, validator.nested_parsers[at])
            elif field.required and field.type != "timestamp":
                self.quotes += 4 if field.type == "string" else 2
            else:
                self._read_values(at)

    def count_present(self, at: int, rows: RowIndices) -> int:
        """Return the number of rows that have a field, including nulls."""
        return len(rows) - (int(self._missing[at][rows].sum()) if at in self._missing else 0)

    def count_misfits(self, keep: Marks) -> dict[str, int]:
        """Return, by field, the number of kept rows with a value of another type that is null."""
        counts = {self._fields[at].name: int(np.count_nonzero(marks & keep)) for at, marks in self.misfits.items()}
        return {name: count for name, count in counts.items() if count}

    def array(self, at: int, keep: Marks) -> pa.Array:
        """Return one field of the kept rows."""
        array = self._arrays.get(at)
        if array is None:
            values = self._values[at] if at in self._values else self._extracts[at]()
            # A missing member is UNSET among the values, which Arrow can't convert.
            array = pa.array(values, arrow_type(self._fields[at].type), mask=self._missing.get(at))
        return array if keep.all() else array.filter(pa.array(keep))

    def _read_values(self, at: int) -> None:
        values = self._extracts[at]()
        field = self._fields[at]
        kinds = set(map(type, values))
        quotes: npt.NDArray[np.int64] | int
        if len(kinds) == 1:
            quotes = _QUOTES_OF[next(iter(kinds))]
        else:
            quotes = np.fromiter(map(_QUOTES_OF.__getitem__, map(type, values)), np.int64, len(values))
        self.quotes += quotes
        if msgspec.UnsetType in kinds:
            self._missing[at] = np.broadcast_to(quotes, len(values)) == 0
        if field.type != "timestamp":
            self._values[at] = values
            return
        if msgspec.UnsetType in kinds:
            kinds = kinds - {msgspec.UnsetType} | {type(None)}
            values = [None if value is msgspec.UNSET else value for value in values]
        self.micros[at], valid = parse_timestamp_column(values, field.time_unit, kinds, field.tz)
        self.valid[at] = valid
        missing = np.flatnonzero(~valid)
        self.doubtful.update(row for row in missing.tolist() if values[row] is not None)
        mask = ~valid if len(missing) else None
        self._arrays[at] = pa.array(self.micros[at], mask=mask).cast(arrow_type(field.type))

    def _raw_values(self, at: int) -> list[msgspec.Raw]:
        """Return the JSON values of a field, with `null` for missing members, and record where they are missing.

        Bytes that aren't UTF-8 are also replaced by `null`: the row is doubtful, and no parser has to expect them.
        """
        texts = self._extracts[at]()
        if msgspec.UnsetType in set(map(type, texts)):
            self._missing[at] = np.array([text is msgspec.UNSET for text in texts], np.bool_)
            texts = [_NULL if text is msgspec.UNSET else text for text in texts]
        if not is_utf8(b"".join(texts)):  # a value begins and ends with ASCII, so no character spans two values
            broken = [row for row, text in enumerate(texts) if not is_utf8(bytes(text))]
            self.doubtful.update(broken)
            for row in broken:
                texts[row] = _NULL
        return texts

    def _read_decimals(self, at: int, parser: DecimalParser) -> None:
        field = self._fields[at]
        texts = self._raw_values(at)
        self._arrays[at], strings = parser.parse_column(texts)
        self.quotes += np.where(self._missing.get(at, False), 0, 2 + 2 * strings)
        for row in np.flatnonzero(self._arrays[at].is_null()).tolist():
            if field.required or bytes(texts[row]) != b"null":
                self.doubtful.add(row)

    def _read_parsed(self, at: int, parser: FieldParser) -> None:
        field = self._fields[at]
        texts = self._raw_values(at)
        parsed = parser.parse_column(texts)
        self._arrays[at] = parsed.array
        self.misfits[at] = parsed.misfits
        self.quotes += np.where(self._missing.get(at, False), 0, 2 + 2 * parsed.strings)
        nulls = np.array(parsed.array.is_null())
        self.doubtful.update(np.flatnonzero(nulls if field.required else nulls & ~parsed.absent).tolist())
        if field.type == "timestamp":
            self.valid[at] = ~nulls
            self.micros[at] = parsed.array.cast(pa.int64()).fill_null(0).to_numpy()

    def _read_nested(self, at: int, parser: NestedParser) -> None:
        """Parse the arrays or structs of field `at` into its column. Rows with an invalid value become doubtful, so the
        validator checks them. The quotes inside of the values aren't counted, so the names of such rows are checked for
        repetitions, too."""
        field = self._fields[at]
        texts = self._raw_values(at)
        values = [parser.parse(bytes(text)) for text in texts]
        self._arrays[at] = pa.array(values, arrow_type(field.type))
        self.quotes += np.where(self._missing.get(at, False), 0, 2)
        for row, value in enumerate(values):
            if value is None and (field.required or bytes(texts[row]) != b"null"):
                self.doubtful.add(row)


def _in_order(one: Decoded, places: RowIndices, other: Decoded, other_places: RowIndices) -> Decoded:
    """Join the results of two parts of the same records. `places`: indices of the accepted rows of `one`. `other_places`:
    indices of all records of `other`."""
    accepted = np.delete(other_places, [reject.index for reject in other.rejects])
    order = pa.array(np.argsort(np.concatenate([places, accepted])))
    rejects = [*one.rejects, *(replace(reject, index=int(other_places[reject.index])) for reject in other.rejects)]
    return Decoded(
        arrays={name: pa.concat_arrays([array, other.arrays[name]]).take(order) for name, array in one.arrays.items()},
        event_time=pa.concat_arrays([one.event_time, other.event_time]).take(order),
        rejects=sorted(rejects, key=lambda reject: reject.index),
        latest_event_ms=max(
            (one_ms for one_ms in (one.latest_event_ms, other.latest_event_ms) if one_ms is not None), default=None
        ),
        misfits=dict(Counter(one.misfits) + Counter(other.misfits)),
    )


def _extract_of(at: int) -> Callable[[list[Any]], list[Any]]:
    """Return a function from rows to the values of one field. Python specializes code with a fixed attribute name, which takes
    half the time of an attrgetter."""
    extract: Callable[[list[Any]], list[Any]] = eval(f"lambda rows: [row.f{at} for row in rows]")  # noqa: S307
    return extract
