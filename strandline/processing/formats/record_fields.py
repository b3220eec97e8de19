"""The declared fields of a record, and the exact validation of one record.

This module decides which records are accepted, one record at a time. `decoder.py` reaches the same decision faster. A
record is rejected as

* `decode` if it isn't JSON in UTF-8, is nested deeper than `NESTING_MAX`, or has a declared field twice (some readers use the
  first value, others the second). Undeclared fields can contain anything, and can occur twice;
* `schema` if it isn't an object, or if a declared field is missing, null although it is required, of another type, or out of
  its range;
* `time_unit` if a number isn't a time in the declared unit, but is a time of this century in another unit.

A number is never converted to a string, nor a string to a number; only a decimal can be either. 1 is a `double`. 1.0 and 1e0 are
each a `long`, up to 2^53.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from strandline.core.field_types import (
    ANY_TYPE,
    JSON_TYPE,
    WHOLE_RANGES,
    digits_of,
    element_of,
    is_nested,
    is_number,
    kind_of,
    members_of,
    normal_type,
)
from strandline.core.json_paths import JsonPath, parse_json_path
from strandline.core.record_headers import REASON_DECODE, REASON_SCHEMA, REASON_TIME_UNIT
from strandline.processing.formats.decimals import DecimalParser
from strandline.processing.formats.field_parsers.field_parser import Absent, FieldParser
from strandline.processing.formats.field_parsers.table import parser_of
from strandline.processing.formats.json_repairs import JsonRepairs
from strandline.processing.formats.timestamps import (
    PER_SECOND,
    format_timestamp,
    number_range,
    parse_timestamp,
    unit_of_century,
)

if TYPE_CHECKING:  # its pydantic takes a fifth of a second to import in every Python worker
    from strandline.core.lookups.lookup import LookupSpec
    from strandline.core.streams.fields import FieldSpec
    from strandline.core.streams.stream import StreamSpec

_SURE_FLOAT = 2**53 - 1
"""Limit up to which each integer that is written as a float is exact."""
NESTING_MAX = 100
"""Maximum depth of objects and arrays. Fixed here, because the parser's own limit depends on its caller's depth."""
_SHOWN_CHARACTERS_MAX = 40

_WHOLE_NUMBER = re.compile(rb"-?\d{1,30}")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)
"""Also matches a string that isn't closed. Otherwise, a search after each of its quotes would cost the square of its length."""
_BRACKET = re.compile(rb"[][{}]")
_NO_VALUE = frozenset((b'""', b'"nan"', b'"na"', b'"n/a"', b'"null"', b'"none"', b'"-"'))
_COMMA_NUMBER = re.compile(rb'"[-+]?\d{1,30},\d{1,30}"')
_BYTE = re.compile(r"\(byte (\d+)\)")
_WORD = re.compile(rb"[A-Za-z]+")
_INSTEAD = {b"NaN": "null", b"Infinity": "null", b"None": "null", b"True": "true", b"False": "false"}
"""Words for values in other languages, some of which Python's `json` writes too -> the JSON value."""
_NO_NUMBERS = frozenset((b"nan", b"inf", b"infinity"))
"""Words that floating-point libraries write for NaN and infinity."""


@dataclass(frozen=True)
class RecordField:
    """One declared field. Raises ValueError for an invalid type, range, or unit."""

    name: str
    type: str
    """`string`, `boolean`, `integer`, `long`, `double`, `timestamp`, or `decimal(precision,scale)`."""
    required: bool = True
    """False if it can be missing or null. Then it is null."""
    min: float | None = None
    """Minimum number that is allowed."""
    max: float | None = None
    """Maximum number that is allowed."""
    unit: str | None = None
    """Unit of a timestamp that is a number: `s`, `ms`, `us` or `ns`. None for `ms`."""
    tz: str | None = None
    """Time zone of a timestamp that is a string without an offset. None for UTC."""
    path: JsonPath | None = None
    """Path of the value in the record. None if the value is the member with the field's name."""
    text: bool = False
    """True if the value can be a string, although its type is another one."""
    joined: tuple[JsonPath, ...] = ()
    """Paths of the strings that are joined to the value with a space. Empty if it is a single value."""
    pattern: str | None = None
    """Pattern of a timestamp that is a string. None for ISO 8601."""
    missing: tuple[str | float, ...] = ()
    """Values that mean null."""
    or_null: bool = False
    """True if a value of another type is null."""
    is_any: bool = False
    """True if the field is a string that accepts a value of any type, as it was written."""
    rest: bool = False
    """True if it contains the members of the object that no other field reads, as one JSON string."""
    earliest: str | None = None
    """Minimum time that is allowed, in ISO 8601. None if there is none, or the field isn't a timestamp."""
    latest: str | None = None
    """Maximum time that is allowed. See `earliest`."""

    def __post_init__(self) -> None:
        if not _is_type(self.type):
            raise ValueError(f"field {self.name}: no type {self.type!r}")
        if self.time_unit not in PER_SECOND:
            raise ValueError(f"field {self.name}: no unit {self.unit!r}; expected one of: {', '.join(PER_SECOND)}")
        if not is_number(self.type) and (self.min, self.max) != (None, None):
            raise ValueError(f"field {self.name}: a {self.type} has no min or max")
        if self.type != "timestamp" and (self.earliest, self.latest) != (None, None):
            raise ValueError(f"field {self.name}: a {self.type} has no earliest or latest time")
        for limit, micros in zip((self.earliest, self.latest), self.limits_micros, strict=True):
            if limit is not None and micros is None:
                raise ValueError(f"field {self.name}: {limit!r} is not a time")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"field {self.name}: min {self.min} is above max {self.max}")

    @property
    def has_parser(self) -> bool:
        """True if the values are read by a parser of `field_parsers.table`."""
        return bool(self.is_any or self.missing or self.or_null or self.pattern or self.earliest or self.latest)

    @property
    def time_unit(self) -> str:
        return self.unit or "ms"

    @property
    def parsed_type(self) -> Any:
        """Type that msgspec parses. It checks everything except timestamps as strings. It keeps the bytes of decimals, arrays,
        structs, and fields with a parser."""
        if self.has_parser or digits_of(self.type) or is_nested(self.type):
            return msgspec.Raw if self.required else msgspec.Raw | msgspec.UnsetType
        return self.plain_type if self.required else self.plain_type | None | msgspec.UnsetType

    @property
    def plain_type(self) -> Any:
        """Type that msgspec parses for a value, without `missing`, `or_null`, and null."""
        if self.type in WHOLE_RANGES:
            first, last = WHOLE_RANGES[self.type]
            least = first if self.min is None else max(first, math.ceil(self.min))
            greatest = last if self.max is None else min(last, math.floor(self.max))
            whole = Annotated[int, msgspec.Meta(ge=least, le=greatest)]
            lowest, highest = max(least, -_SURE_FLOAT), min(greatest, _SURE_FLOAT)
            return whole | Annotated[float, msgspec.Meta(ge=float(lowest), le=float(highest), multiple_of=1)]
        if self.type == "timestamp":
            first, end = number_range(self.time_unit)
            number = Annotated[int, msgspec.Meta(ge=first, lt=end)]
            return number | Annotated[float, msgspec.Meta(ge=float(first), lt=float(end))] | str
        if self.type == "double":
            low = -sys.float_info.max if self.min is None else float(self.min)
            high = sys.float_info.max if self.max is None else float(self.max)
            return Annotated[float, msgspec.Meta(ge=low, le=high)]
        if digits_of(self.type) or is_nested(self.type):
            return msgspec.Raw
        return {"string": str, "boolean": bool}[self.type]

    def is_in_time(self, number: int) -> bool:
        """Return True if the number in the field's unit is in the years that a timestamp can have."""
        first, end = number_range(self.time_unit)
        return first <= number < end

    @property
    def limits_micros(self) -> tuple[int | None, int | None]:
        """`earliest` and `latest` in microseconds since 1970."""
        first, last = (None if one is None else parse_timestamp(one, "us") for one in (self.earliest, self.latest))
        return first, last

    @property
    def expected(self) -> str:
        """Words for messages."""
        if self.type == "timestamp":
            times = [f">= {self.earliest}"] * (self.earliest is not None) + [f"<= {self.latest}"] * (
                self.latest is not None
            )
            within = " " + " and ".join(times) if times else ""
            if self.pattern is not None:
                return f"a timestamp{within} written as {self.pattern}"
            return f"a timestamp{within or ' of years 1 to 9999'} (a number in {self.time_unit}, or ISO 8601 text)"
        if self.type == "boolean":
            return "a boolean (true or false)"
        limits = [f">= {self.min}"] * (self.min is not None) + [f"<= {self.max}"] * (self.max is not None)
        return " ".join([f"{'an' if self.type[0] in 'ai' else 'a'} {self.type}", " and ".join(limits)]).strip()


def record_fields(stream: StreamSpec | LookupSpec) -> tuple[RecordField, ...]:
    """Return the fields of the schema of a stream or a lookup, in a form that is fast to import: every Python worker receives
    them."""
    return tuple(
        RecordField(
            name=name,
            type="string" if spec.type in (JSON_TYPE, ANY_TYPE) else spec.type,
            required=spec.required,
            **_limits(spec),
            unit=spec.unit,
            tz=spec.tz,
            path=None if spec.path is None else parse_json_path(spec.path),
            text=spec.text,
            joined=tuple(map(parse_json_path, spec.joined)),
            pattern=spec.pattern,
            missing=_markers(spec, stream),
            or_null=spec.or_null,
            is_any=spec.type == ANY_TYPE,
            rest=spec.type == JSON_TYPE,
        )
        for name, spec in stream.fields.items()
    )


def _limits(spec: FieldSpec) -> dict[str, Any]:
    names = ("earliest", "latest") if spec.type == "timestamp" else ("min", "max")
    return dict(zip(names, (spec.min, spec.max), strict=True))


def _markers(spec: FieldSpec, stream: StreamSpec | LookupSpec) -> tuple[str | float, ...]:
    """Return the markers of the field, and those of the stream if the field is a single value."""
    is_single = spec.type != JSON_TYPE and not is_nested(spec.type)
    of_stream = getattr(stream, "missing", []) if is_single else []
    return tuple(dict.fromkeys([*spec.missing, *of_stream]))


def _is_type(name: str) -> bool:
    try:
        return normal_type(name) is not None
    except ValueError:
        return False


@dataclass(frozen=True)
class Rejection:
    """The reason why a record is rejected."""

    reason: str
    message: str


JsonText = bytes | Rejection | None
"""Input of the decoder: the text of a JSON object, or the reason why the record isn't one. None for a tombstone."""


BLOCK_RECORDS = 1_024
"""Number of records that are read together. If one needs a closer check, all of them are read one by one."""


def in_blocks(
    at_once: Callable[..., Sequence[JsonText] | None], one: Callable[..., JsonText], *columns: Sequence[Any]
) -> list[JsonText]:
    """Return the result of `one` for each record, in their order. `at_once` must return the same for a block of records, or None.

    `columns`: arguments for each record, of both functions.
    """
    made: list[JsonText] = []
    for first in range(0, len(columns[0]), BLOCK_RECORDS):
        block = [column[first : first + BLOCK_RECORDS] for column in columns]
        made += at_once(*block) or map(one, *block)
    return made


class RecordValidator:
    """Validates records one by one: slow and exact. The outcome depends only on the record's bytes."""

    def __init__(self, fields: list[RecordField]) -> None:
        self.fields = fields
        self.decimal_parsers = {
            at: DecimalParser(field.type, field.min, field.max)
            for at, field in enumerate(fields)
            if digits_of(field.type) and not field.has_parser
        }
        """By the index of the field."""
        self.nested_parsers = {
            at: NestedParser(field.type, field.time_unit) for at, field in enumerate(fields) if is_nested(field.type)
        }
        """By the index of the field."""
        self.parsers: dict[int, FieldParser] = {
            at: parser_of(field, _plain_parse(field)) for at, field in enumerate(fields) if field.has_parser
        }
        """By the index of the field."""
        self.repairs = JsonRepairs([marker for field in fields for marker in field.missing])
        self.row_type = _row_type([(field, field.parsed_type) for field in fields])
        raw_fields = [(field, msgspec.Raw | msgspec.UnsetType) for field in fields]
        self._raw_row = msgspec.json.Decoder(_row_type(raw_fields, optional=True))
        self._parsers = [msgspec.json.Decoder(field.parsed_type) for field in fields]

    def validate(self, value: JsonText) -> Any:
        """Return the record as a row of `row_type`, or the reason why it is rejected.

        1. The bytes must be JSON.
        2. No declared field may occur twice.
        3. Every declared field must be as declared.
        """
        if isinstance(value, Rejection):
            return value
        try:
            text = self._readable(value)
            raw_row = self._read_raw(text)
        except _RejectedError as error:
            return error.rejection
        names = {field.name for field in self.fields}
        given = [name for name in top_level_keys(text) if name in names]
        if len(given) != len(set(given)):
            twice = next(name for name in given if given.count(name) > 1)
            return Rejection(REASON_DECODE, f'duplicate key "{twice}"')
        parsed = {}
        for at, field in enumerate(self.fields):
            raw = getattr(raw_row, f"f{at}")
            try:
                parsed[f"f{at}"] = msgspec.UNSET if raw is msgspec.UNSET else self._parse_field(at, bytes(raw))
            except msgspec.ValidationError:
                return _wrong_value(field, bytes(raw))
            if field.required and parsed[f"f{at}"] is msgspec.UNSET:
                return Rejection(REASON_SCHEMA, f"{field.name}: required but missing")
        return self.row_type(**parsed)

    def _read_raw(self, value: bytes) -> Any:
        """Return the row with every declared field as its bytes. Raises `_RejectedError`."""
        try:
            return self._raw_row.decode(value)
        except msgspec.ValidationError as error:
            raise _RejectedError(REASON_SCHEMA, f"expected an object, got {shown(value.strip())}") from error

    def _readable(self, value: bytes | None) -> bytes:
        """Return the JSON text, repaired where the stream allows it. Raises `_RejectedError`."""
        if value is None:
            raise _RejectedError(REASON_DECODE, "no value (a tombstone)")
        text = readable_text(value, self.repairs)
        if isinstance(text, Rejection):
            raise _RejectedError(text.reason, text.message)
        return text

    def _parse_field(self, at: int, raw: bytes) -> Any:
        """Return the value of one field in the form of the row. Raises ValidationError."""
        field = self.fields[at]
        value = self._parsers[at].decode(raw)
        if at in self.parsers:
            found = self.parsers[at].parse(raw)
            if found is None or (field.required and isinstance(found, Absent)):
                raise msgspec.ValidationError("not what is declared")
            return value
        is_time_text = field.type == "timestamp" and isinstance(value, str)
        if is_time_text and parse_timestamp(value, field.time_unit, field.tz) is None:
            raise msgspec.ValidationError("not a time")
        if at in self.decimal_parsers:
            absent = raw == b"null" and not field.required
            if not absent and self.decimal_parsers[at].parse(raw) is None:
                raise msgspec.ValidationError("not a decimal that fits")
        if at in self.nested_parsers:
            absent = raw == b"null" and not field.required
            if not absent and self.nested_parsers[at].parse(raw) is None:
                raise msgspec.ValidationError("not what is declared")
        return value


class NestedParser:
    """Parses the values of one field that is an array or a struct. Values in it can be null, and members of a struct can be
    missing. Apart from this, they have the rules of a field of their own. A struct has each name once."""

    def __init__(self, type_name: str, time_unit: str) -> None:
        parsed, self._convert = _nested(type_name, time_unit)
        self._decode = msgspec.json.Decoder(parsed).decode
        self._has_names = bool(members_of(element_of(type_name) or type_name))

    def parse(self, text: bytes) -> Any:
        """Return the value in Arrow's form, a list or a dict. None if it isn't a value of the type, or is null."""
        try:
            value = self._convert(self._decode(text))
            if self._has_names:
                _names_once.decode(text.decode())
        except (msgspec.DecodeError, ValueError):
            return None
        return value


def _nested(type_name: str, time_unit: str) -> tuple[Any, Callable[[Any], Any]]:
    """Return the type that msgspec parses, and the function that converts its value, which raises ValueError."""
    if (element := element_of(type_name)) is not None:
        parsed, convert = _nested_or_null(element, time_unit)
        return GenericAlias(list, (parsed,)), lambda values: [convert(value) for value in values]
    if members := members_of(type_name):
        inner = [_nested_or_null(kind, time_unit) for kind in members.values()]
        fields: list[Any] = [(f"f{at}", kind | msgspec.UnsetType, msgspec.UNSET) for at, (kind, _) in enumerate(inner)]
        names = dict(zip((name for name, *_ in fields), members, strict=True))
        return msgspec.defstruct("Nested", fields, rename=names), lambda value: {
            name: convert(getattr(value, attribute))
            for (attribute, name), (_, convert) in zip(names.items(), inner, strict=True)
        }
    if digits_of(type_name):
        parser = DecimalParser(type_name, None, None)
        return msgspec.Raw, lambda raw: _there(parser.parse(bytes(raw)))
    parsed = RecordField("", type_name, unit=time_unit).parsed_type
    if kind_of(type_name) == "timestamp":
        return parsed, lambda value: _there(parse_timestamp(value, time_unit))
    return parsed, (lambda value: int(value)) if type_name in WHOLE_RANGES else (lambda value: value)


def _nested_or_null(type_name: str, time_unit: str) -> tuple[Any, Callable[[Any], Any]]:
    parsed, convert = _nested(type_name, time_unit)
    is_raw = parsed is msgspec.Raw

    def convert_some(value: Any) -> Any:
        is_null = value is None or value is msgspec.UNSET or (is_raw and bytes(value) == b"null")
        return None if is_null else convert(value)

    return parsed if is_raw else parsed | None, convert_some


def _there(value: Any) -> Any:
    if value is None:
        raise ValueError("not a value of the type")
    return value


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a name occurs twice")


_names_once = json.JSONDecoder(object_pairs_hook=_refuse_repeats, parse_int=str, parse_float=str)


def _plain_parse(field: RecordField) -> Callable[[bytes], Any]:
    """Return a function from JSON to a value of the field's type in the form of Arrow; None if it isn't such a value."""
    if digits_of(field.type):
        return DecimalParser(field.type, field.min, field.max).parse
    decode = msgspec.json.Decoder(field.plain_type).decode

    def parse(raw: bytes) -> Any:
        try:
            value = decode(raw)
        except msgspec.ValidationError:
            return None
        return parse_timestamp(value, field.time_unit, field.tz) if field.type == "timestamp" else value

    return parse


def _wrong_value(field: RecordField, raw: bytes) -> Rejection:
    """Return the rejection of a value that doesn't fit the field. A number that is a time of this century in another unit has
    its own reason."""
    if field.type == "timestamp" and _WHOLE_NUMBER.fullmatch(raw) and not field.is_in_time(int(raw)):
        micros = int(raw) * 1_000_000 // PER_SECOND[field.time_unit]
        likely = unit_of_century(micros, field.time_unit)
        if likely is not None:
            message = f"{field.name}: {shown(raw)} is no time in {field.time_unit}; as {likely[0]} it would be "
            return Rejection(REASON_TIME_UNIT, f"{message}{format_timestamp(likely[1])}; is the unit right?")
    return Rejection(REASON_SCHEMA, f"{field.name}: expected {field.expected}, got {shown(raw)}{_remedy(field, raw)}")


def _remedy(field: RecordField, raw: bytes) -> str:
    """Return the remedy for a string that other tools write instead of a number."""
    if not is_number(field.type):
        return ""
    if raw.lower() in _NO_VALUE:
        return "; where there is none, leave it out"
    return "; write a point, not a comma" if _COMMA_NUMBER.fullmatch(raw) else ""


_raw_value = msgspec.json.Decoder(msgspec.Raw)


def not_utf8(error: UnicodeDecodeError, position: int | None = None) -> str:
    """Return the message for bytes that aren't UTF-8. `position`: index of the byte in the record. None for that of the error."""
    return f"not UTF-8: {error.reason} (byte {error.start if position is None else position})"


def is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def may_nest_deep(value: bytes) -> bool:
    """Return False if the bytes are certainly not nested deeper than `NESTING_MAX`. Cheap."""
    return len(value) > 2 * NESTING_MAX and value.count(b"{") + value.count(b"[") > NESTING_MAX


def readable_text(value: bytes, repairs: JsonRepairs) -> bytes | Rejection:
    """Return the JSON text of a record, repaired if it can't be read otherwise, or the reason why it can't be read. The reason
    names the position in the record, not in the repaired text."""
    why = why_unreadable(value)
    if why is None:
        return value
    repaired = repairs.repaired(value)
    if repaired is not None:
        why = why_unreadable(repaired, lambda at: repairs.position_in(value, at))
        if why is None:
            return repaired
    return Rejection(REASON_DECODE, why)


def why_unreadable(value: bytes, position_in_record: Callable[[int], int] = lambda at: at) -> str | None:
    """Return the reason why the bytes aren't readable JSON. None if they are.

    `position_in_record`: function from a byte of `value` to the byte of the record that the reason names.
    """
    try:
        value.decode()
    except UnicodeDecodeError as error:
        return not_utf8(error, position_in_record(error.start))
    if _nesting(value) > NESTING_MAX:
        return f"nested deeper than {NESTING_MAX} levels"
    try:
        _raw_value.decode(value)  # the whole text must be well formed, before its content is read
    except msgspec.DecodeError as error:
        text = str(error).removeprefix("JSON is malformed: ")
        place = _BYTE.search(text)
        word = None if place is None else _WORD.match(value, int(place[1]))
        instead = None if word is None else _INSTEAD.get(word[0])
        remedy = "" if word is None or instead is None else f"; JSON has no {word[0].decode()}: write {instead}"
        if word is not None and word[0].lower() in _NO_NUMBERS:
            remedy = (
                f"{remedy or f'; JSON has no {word[0].decode()}'}, or add 'missing: [{word[0].decode()}]' to the stream"
            )
        if place is not None:
            text = f"{text[: place.start()]}(byte {position_in_record(int(place[1]))}){text[place.end() :]}"
        return f"not JSON: {text[0].lower()}{text[1:]}{remedy}"
    return None


class _RejectedError(Exception):
    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.rejection = Rejection(reason, message)


def _row_type(fields: list[tuple[RecordField, Any]], *, optional: bool = False) -> Any:
    """Return a struct with the members f0, f1, ..., so that a field can have any name."""
    members: list[Any] = [
        (f"f{at}", kind) if field.required and not optional else (f"f{at}", kind, msgspec.UNSET)
        for at, (field, kind) in enumerate(fields)
    ]
    names = {f"f{at}": field.name for at, (field, _) in enumerate(fields)}
    # gc=False: rows contain no references to each other, and ten thousand new objects would start the collector ten times.
    return msgspec.defstruct("Row", members, rename=names, kw_only=True, gc=False)


_PAIRS = json.JSONDecoder(object_pairs_hook=list, parse_int=str, parse_float=str)
"""Created once, because creating it costs more than using it."""


def top_level_keys(value: bytes) -> list[str]:
    """Return the names of an object's members in their order, with repeated ones. The text must be well formed."""
    pairs: list[Any] = _PAIRS.decode(value.decode())
    return [name for name, _ in pairs]


def _nesting(value: bytes) -> int:
    depth = deepest = 0
    if value.count(b"{") + value.count(b"[") > NESTING_MAX:
        for bracket in _BRACKET.findall(_STRING.sub(b"", value)):
            depth += 1 if bracket in b"{[" else -1
            deepest = max(deepest, depth)
    return deepest


def shown(raw: bytes) -> str:
    """Return the start of a value for a message, with all control characters escaped."""
    text = raw[: 4 * _SHOWN_CHARACTERS_MAX].decode(errors="ignore")
    cut = text[:_SHOWN_CHARACTERS_MAX]
    return ascii(cut)[1:-1] + ("..." if len(raw) > len(cut.encode()) else "")
