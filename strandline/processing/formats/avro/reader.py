"""Converts Avro records to JSON objects. All have one schema, or each names its schema (Confluent's wire format).

An enum becomes the string of its symbol, and bytes become base64. Numbers that JSON can't represent, such as infinity, become
null. A logical type determines the meaning of a value: a `timestamp-*` or a `date` fits a field of type timestamp, whatever the
unit of the field. A `decimal` fits a number, and a `uuid` fits a string.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import date, timedelta
from decimal import Decimal
from functools import lru_cache
from io import BytesIO
from itertools import count, repeat
from typing import Any

import msgspec

from strandline.core.json_paths import JsonPath, path_in_element
from strandline.core.record_headers import REASON_DECODE
from strandline.core.schemas.avro_schemas import (
    TIMES,
    AvroType,
    LogicalType,
    kind_of,
    meanings_at,
    read_avro_schema,
    types_at,
)
from strandline.processing.formats.avro.columns import avro_columns
from strandline.processing.formats.columns.read_columns import ColumnsAndMarks
from strandline.processing.formats.record_fields import JsonText, RecordField, Rejection
from strandline.processing.formats.timestamps import PER_SECOND, format_timestamp
from strandline.processing.formats.with_schema.registered_schemas import PREFIX_BYTES, RegisteredSchemas, number_of

_SECONDS_A_DAY = 86_400
_EPOCH = date(1970, 1, 1)
_DECIMAL_BYTES_MAX = 32
"""Longer than the longest decimal. A longer value stays a base64 string, which the decoder rejects."""
_ONE_ITEM, _END_OF_ITEMS = b"\x02", b"\0"
"""Encoded block of an array: one item follows; no more items follow."""
_READ_ERRORS = (EOFError, IndexError, ValueError, OverflowError, TypeError, KeyError, StopIteration)
"""Errors of fastavro for bytes that aren't a record."""
_encode = msgspec.json.Encoder(decimal_format="number").encode

Convert = Callable[[Any], Any]


class AvroRecords:
    """Reads the records of one stream that all have one schema."""

    prefix_bytes = 0

    def __init__(self, fields: Sequence[RecordField], explode: JsonPath | None, schema: str) -> None:
        self._type = _record_type(schema, (), tuple(fields), explode)

    def objects(self, values: Sequence[bytes | None], _sources: Sequence[bytes | None]) -> list[JsonText]:
        """Return each record as a JSON object."""
        return [None if value is None else self._type.object(value) for value in values]

    def columns(
        self, values: Sequence[bytes | None], _sources: Sequence[bytes | None] = (None,)
    ) -> ColumnsAndMarks | None:
        """Return the records that can be read as columns."""
        return None if self._type.quick is None else self._type.quick.columns(values)

    def letters(self, value: bytes) -> Callable[[int], bytes]:
        """Return a function that returns the record with an array of only one element."""
        return self._type.letters(value)


class RegisteredAvroRecords:
    """Reads the records of one stream that name their schemas."""

    def __init__(self, fields: Sequence[RecordField], explode: JsonPath | None, schemas: RegisteredSchemas) -> None:
        self._fields = tuple(fields)
        self._explode = explode
        self._schemas = schemas
        self._types: dict[int, RecordType | Rejection] = {}

    def objects(self, values: Sequence[bytes | None], _sources: Sequence[bytes | None]) -> list[JsonText]:
        """Return each record as a JSON object. Raises RegistryUnavailable and SchemaChanged."""
        return [None if value is None else self._object(value) for value in values]

    def columns(
        self, values: Sequence[bytes | None], _sources: Sequence[bytes | None] = (None,)
    ) -> ColumnsAndMarks | None:
        """Return the records that name the same schema as the first one, as columns. Raises the errors of `objects`."""
        model = next((value for value in values if value is not None), b"")
        found = self._type_of(model)
        quick = None if isinstance(found, Rejection) else found.quick
        return None if quick is None else quick.columns(values, model[:PREFIX_BYTES])

    def letters(self, value: bytes) -> Callable[[int], bytes]:
        """Return a function that returns the record with an array of only one element."""
        found = self._type_of(value)
        assert isinstance(found, RecordType)
        letter = found.letters(value[PREFIX_BYTES:])
        return lambda element: value[:PREFIX_BYTES] + letter(element)

    def _object(self, value: bytes) -> JsonText:
        found = self._type_of(value)
        return found if isinstance(found, Rejection) else found.object(value, PREFIX_BYTES)

    def _type_of(self, value: bytes) -> RecordType | Rejection:
        number = number_of(value)
        if isinstance(number, Rejection):
            return number
        found = self._types.get(number)
        if found is None:
            found = self._types[number] = self._read_type(number)
        return found

    def _read_type(self, number: int) -> RecordType | Rejection:
        schema = self._schemas.schema("avro", number)
        if isinstance(schema, Rejection):
            return schema
        try:
            return _record_type(schema.text, tuple(text for _, text in schema.references), self._fields, self._explode)
        except ValueError as error:
            return Rejection(REASON_DECODE, f"schema {number} of the registry can't be used: {error}")


class RecordType:
    """One schema, prepared to read the fields of a stream."""

    def __init__(self, schema: AvroType, fields: Sequence[RecordField], explode: JsonPath | None) -> None:
        """`schema`: result of `read_avro_schema`. Raises ValueError if a field doesn't fit its logical type."""
        import fastavro

        self._read = fastavro.schemaless_reader
        self._parse = fastavro.parse_schema
        # Logical types are read as their physical types, so that they can't fail if no field needs them.
        self._schema: Any = fastavro.parse_schema(_physical(schema, count()))
        self._array = explode or ()
        self._conversions = [
            (path, convert)
            for field in fields
            for path in [field.path or (field.name,)]
            if (convert := _conversion(schema, path, field)) is not None
        ]
        self.quick = avro_columns(schema, fields) if explode is None and not self._conversions else None
        """Reads many records as columns. None if the schema can't be read in this way."""
        self._of_elements: list[tuple[JsonPath, Convert]] = []
        for field in fields if explode is not None else ():
            inner = path_in_element(field.path or (field.name,), self._array)
            if (convert := _conversion(schema, (*self._array, 0, *inner), field)) is not None:
                self._of_elements.append((inner, convert))

    def object(self, value: bytes, first: int = 0) -> JsonText:
        """Return the record that begins at byte `first` as a JSON object."""
        stream = BytesIO(value)
        if first:
            stream.seek(first)
        try:
            found: Any = self._read(stream, self._schema, None)
        except _READ_ERRORS as error:
            return Rejection(REASON_DECODE, f"not a record of the schema: {_why(error)}")
        if (end := stream.tell()) != len(value):
            return Rejection(REASON_DECODE, f"the record ends at byte {end}, but more follows")
        for path, convert in self._conversions:
            _convert_at(found, path, convert)
        if self._of_elements:
            self._convert_elements(found)
        try:
            return _encode(found)
        except (TypeError, ValueError, RecursionError) as error:
            return Rejection(REASON_DECODE, f"the record contains a value that no field can have: {error}")

    def letters(self, value: bytes) -> Callable[[int], bytes]:
        """Return a function: index of an element -> the record with an array of only this element. `value` must be a record."""
        before, elements, behind = self._cut_at_elements(value)
        return lambda element: before + _ONE_ITEM + elements[element] + _END_OF_ITEMS + behind

    def _cut_at_elements(self, value: bytes) -> tuple[bytes, list[bytes], bytes]:
        """Return the bytes before the array, the bytes of each element, and the bytes after the array.

        The bytes are copied, because decoding and encoding can change them: a number in a union can get another branch.
        """
        stream = BytesIO(value)
        kind = self._parse(self._go_to(stream, self._schema, self._array)["items"])
        begin = stream.tell()
        elements = []
        for _ in self._items(stream):
            first = stream.tell()
            self._read(stream, kind, None)
            elements.append(value[first : stream.tell()])
        return value[:begin], elements, value[stream.tell() :]

    def _go_to(self, stream: BytesIO, schema: AvroType, path: JsonPath) -> AvroType:
        """Move to the value at the path, which must exist. Return its type."""
        if isinstance(schema, list):
            return self._go_to(stream, schema[self._number(stream)], path)
        if not path:
            return schema
        kind = kind_of(schema)
        if kind == "record":
            for field in schema["fields"]:
                if field["name"] == path[0]:
                    return self._go_to(stream, field["type"], path[1:])
                self._read(stream, field["type"], None)
        inner, begin = schema["values" if kind == "map" else "items"], 0
        for at, _ in enumerate(self._items(stream)):
            if (self._read(stream, "string", None) if kind == "map" else at) == path[0]:
                begin = stream.tell()  # if a map has a name twice, the last one counts
            self._read(stream, inner, None)
        stream.seek(begin)
        return self._go_to(stream, inner, path[1:])

    def _items(self, stream: BytesIO) -> Iterator[None]:
        """Yield once for each item of an array or a map, at its beginning. The caller reads the item."""
        while count := self._number(stream):
            if count < 0:
                self._number(stream)  # number of bytes of the block
            yield from repeat(None, abs(count))

    def _number(self, stream: BytesIO) -> int:
        number: Any = self._read(stream, "long", None)
        return int(number)

    def _convert_elements(self, found: Any) -> None:
        for step in self._array:
            try:
                found = found[step]
            except (LookupError, TypeError):
                return
        if isinstance(found, list):
            for at in range(len(found)):
                for path, convert in self._of_elements:
                    _convert_at(found, (at, *path), convert)


def _why(error: Exception) -> str:
    """Return the problem of the bytes. Messages of the library aren't used, because they can contain memory addresses."""
    if isinstance(error, UnicodeDecodeError):
        return f"a string isn't UTF-8: {error.reason} at byte {error.start} of the string"
    return "it ends too soon" if isinstance(error, EOFError) else "it ends too soon, or a number in it leads nowhere"


@lru_cache(maxsize=256)
def _record_type(
    schema: str, references: tuple[str, ...], fields: tuple[RecordField, ...], explode: JsonPath | None
) -> RecordType:
    """Return the RecordType of a schema, from a cache. Raises ValueError if the schema or a field in it can't be used."""
    return RecordType(read_avro_schema(schema, references), fields, explode)


def declared_type(schema: AvroType, path: JsonPath) -> str | None:
    """Return the type that a field needs for the logical type at the path. None if there is none, or another logical type."""
    for found in types_at(schema, path):
        if isinstance(found, dict) and (logical := found.get("logicalType")) is not None:
            if logical in TIMES or logical == "date":
                return "timestamp"
            if logical == "decimal":
                return f"decimal({found['precision']},{found.get('scale', 0)})"
    return None


def _physical(schema: AvroType, numbers: Iterator[int]) -> AvroType:
    """Return the schema without logical types, and with a unique name for each type."""
    if isinstance(schema, list):
        return [_physical(one, numbers) for one in schema]
    if isinstance(schema, str):
        return schema
    kind = kind_of(schema)
    if kind in ("record", "error"):
        fields = [{"name": one["name"], "type": _physical(one["type"], numbers)} for one in schema["fields"]]
        return {"type": "record", "name": f"T{next(numbers)}", "fields": fields}
    if kind == "array":
        return {"type": kind, "items": _physical(schema["items"], numbers)}
    if kind == "map":
        return {"type": kind, "values": _physical(schema["values"], numbers)}
    if kind == "enum":
        return {"type": kind, "name": f"T{next(numbers)}", "symbols": schema["symbols"]}
    if kind == "fixed":
        return {"type": kind, "name": f"T{next(numbers)}", "size": schema["size"]}
    return kind


def _conversion(schema: AvroType, path: JsonPath, field: RecordField) -> Convert | None:
    """Return the conversion of the value at the path to a value of the field. None if none is needed. Raises ValueError
    if the type of the field doesn't fit the logical type."""
    try:
        meanings = meanings_at(schema, path, field.type, field.time_unit)
    except ValueError as error:
        raise ValueError(f"field {field.name} {error}") from error
    by_type = {kind: _conversion_of(meaning, field) for kind, meaning in meanings.items()}
    return (lambda value: by_type.get(type(value), _unchanged)(value)) if by_type else None


def _conversion_of(meaning: LogicalType, field: RecordField) -> Convert:
    if meaning.unit is not None:
        unit = meaning.unit
        return lambda value: (
            _time_text(value, unit) if field.type == "string" else _in_unit(value, unit, field.time_unit)
        )
    if meaning.logical_type == "date":
        factor = _SECONDS_A_DAY * PER_SECOND[field.time_unit]
        return lambda value: _date_text(value) if field.type == "string" else value * factor
    if meaning.logical_type == "decimal":
        write: Convert = str if field.type == "string" else _unchanged
        return lambda value: write(_decimal(value, meaning.scale)) if len(value) <= _DECIMAL_BYTES_MAX else value
    return lambda value: str(uuid.UUID(bytes=value))


def _unchanged(value: Any) -> Any:
    return value


def _convert_at(found: Any, path: JsonPath, convert: Convert) -> None:
    """Convert the value at the path, if it exists."""
    try:
        for step in path[:-1]:
            found = found[step]
        value = found[path[-1]]
        if value is not None:
            found[path[-1]] = convert(value)
    except (LookupError, TypeError):
        return


def _in_unit(value: int, unit: str, wanted: str) -> int | str:
    """Return the time as an integer in the wanted unit, or as a string if it isn't a multiple of the unit."""
    number, rest = divmod(value * PER_SECOND[wanted], PER_SECOND[unit])
    return number if rest == 0 else _time_text(value, unit)


def _time_text(value: int, unit: str) -> int | str:
    """Return the time as an ISO 8601 string. Outside of years 1 to 9999, return a number, which the decoder rejects."""
    try:
        return format_timestamp(value * 1_000_000 // PER_SECOND[unit])
    except (OverflowError, ValueError):
        return value


def _date_text(days: int) -> int | str:
    try:
        return (_EPOCH + timedelta(days=days)).isoformat()
    except OverflowError:
        return days


def _decimal(value: bytes, scale: int) -> Decimal:
    # Built from digits, because arithmetic with decimals rounds.
    number = int.from_bytes(value, "big", signed=True)
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))
