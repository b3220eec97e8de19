"""Converts Protobuf messages to JSON objects. All have one type, or each names its type (Confluent's wire format).

Only the values at the fields' paths are read. Names are those of the .proto file. Values are converted as follows:

- enum: the name of its value, or its number for a field of numbers;
- bytes: a base64 string;
- `google.protobuf.Timestamp`: fits a field of type timestamp;
- `google.protobuf.Duration`: a number of seconds;
- Google's wrappers: the wrapped value.

A field without presence (a plain field of proto3) is never missing: if it wasn't sent, it has its default, 0 or "".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from strandline.core.field_types import is_number
from strandline.core.json_paths import JsonPath
from strandline.core.record_headers import REASON_DECODE, REASON_SCHEMA
from strandline.core.schemas.message_types import read_descriptor_set, read_registered_file
from strandline.processing.formats.columns.protobuf_columns import protobuf_columns
from strandline.processing.formats.columns.read_columns import ColumnsAndMarks
from strandline.processing.formats.json_rows import EXPLODED_BYTES_MAX, too_large
from strandline.processing.formats.record_fields import JsonText, RecordField, Rejection, in_blocks
from strandline.processing.formats.timestamps import PER_SECOND, format_timestamp
from strandline.processing.formats.with_schema.registered_schemas import PREFIX_BYTES, RegisteredSchemas, number_of

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

_NANOS = 10**9
_INDEXES_MAX = 32
"""Maximum number of indices of a message's type, one for each level."""
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_encode = msgspec.json.encode

Message = Any
Plain = Callable[[Any], Any]
"""Converts a value of Protobuf to a value that JSON can represent."""


class ProtobufMessages:
    """Reads the messages of one stream that all have one type."""

    def __init__(self, fields: Sequence[RecordField], explode: JsonPath | None, descriptors: str, message: str) -> None:
        self._type = _type_of_set(descriptors, message, tuple(fields), explode)

    def objects(self, values: Sequence[bytes | None], _sources: Sequence[bytes | None]) -> list[JsonText]:
        """Return each message as a JSON object."""
        return self._type.objects(values)

    def columns(
        self, values: Sequence[bytes | None], _sources: Sequence[bytes | None] = (None,)
    ) -> ColumnsAndMarks | None:
        """Return the messages that can be read as columns."""
        return None if self._type.quick is None else self._type.quick.columns(values)

    def letters(self, value: bytes) -> Callable[[int], bytes]:
        """Return a function that returns the message with an array of only one element."""
        return self._type.letters(value)


class RegisteredProtobufMessages:
    """Reads the messages of one stream that name their schemas."""

    def __init__(
        self,
        fields: Sequence[RecordField],
        explode: JsonPath | None,
        message: str | None,
        schemas: RegisteredSchemas,
    ) -> None:
        """`message`: required type of all messages. None if any type is accepted."""
        self._fields = tuple(fields)
        self._explode = explode
        self._message = message
        self._schemas = schemas
        self._types: dict[tuple[int, tuple[int, ...]], MessageType | Rejection] = {}

    def objects(self, values: Sequence[bytes | None], _sources: Sequence[bytes | None]) -> list[JsonText]:
        """Return each message as a JSON object. Raises RegistryUnavailable and SchemaChanged."""
        return [None if value is None else self._object(value) for value in values]

    def letters(self, value: bytes) -> Callable[[int], bytes]:
        """Return a function that returns the message with an array of only one element."""
        found = self._type_of(value)
        assert not isinstance(found, Rejection)
        kind, first = found
        letter = kind.letters(value[first:])
        return lambda element: value[:first] + letter(element)

    def _object(self, value: bytes) -> JsonText:
        found = self._type_of(value)
        return found if isinstance(found, Rejection) else found[0].object(value[found[1] :])

    def _type_of(self, value: bytes) -> tuple[MessageType, int] | Rejection:
        """Return the type of a message, and the position where the message begins."""
        number = number_of(value)
        if isinstance(number, Rejection):
            return number
        try:
            indexes, first = read_indexes(value, PREFIX_BYTES)
        except ValueError as error:
            return Rejection(REASON_DECODE, str(error))
        found = self._types.get((number, indexes))
        if found is None:
            found = self._read_type(number, indexes)
            if len(self._types) < _TYPES_REMEMBERED_MAX:
                self._types[number, indexes] = found
        return found if isinstance(found, Rejection) else (found, first)

    def _read_type(self, number: int, indexes: tuple[int, ...]) -> MessageType | Rejection:
        schema = self._schemas.schema("protobuf", number)
        if isinstance(schema, Rejection):
            return schema
        try:
            return _type_of_file(schema.text, schema.references, indexes, self._message, self._fields, self._explode)
        except ValueError as error:
            return Rejection(REASON_DECODE, f"schema {number} of the registry can't be used: {error}")


_TYPES_REMEMBERED_MAX = 1_000


class MessageType:
    """One message type, prepared to read the fields of a stream."""

    def __init__(self, descriptor: Descriptor, fields: Sequence[RecordField], explode: JsonPath | None) -> None:
        from google.protobuf.message import DecodeError
        from google.protobuf.message_factory import GetMessageClass

        self._parse: Callable[[Any], Message] = GetMessageClass(descriptor).FromString
        self._errors = (DecodeError, UnicodeDecodeError)
        self._array = explode
        self._has_array = explode is not None and _leads_to_array(descriptor, explode)
        self._plain = _plain_message(descriptor, _wanted(fields, explode))
        self.quick = protobuf_columns(descriptor, fields) if explode is None else None
        """Reads many messages as columns. None if the type can't be read in this way."""

    def objects(self, values: Sequence[bytes | None]) -> list[JsonText]:
        """Return each message as a JSON object of the values that fields read."""
        return in_blocks(self._at_once, self.object, values)

    def _at_once(self, values: Sequence[bytes | None]) -> list[bytes] | None:
        if self._has_array:
            return None
        try:
            return list(map(_encode, map(self._plain, map(self._parse, values))))
        except (*self._errors, ValueError, TypeError):  # a value isn't a message, or is a tombstone
            return None

    def object(self, value: bytes | None) -> JsonText:
        """Return the message as a JSON object of the values that fields read."""
        if value is None:
            return None
        try:
            message = self._parse(value)
            found = _encode(self._plain(message))
        except self._errors as error:
            return Rejection(REASON_DECODE, f"not a message of the type: {error}")
        except ValueError as error:  # a string of proto2 can contain any bytes
            return Rejection(REASON_SCHEMA, f"the message contains a value that no field can have: {error}")
        if self._has_array and (count := len(array := self._array_in(message))) * len(value) > EXPLODED_BYTES_MAX:
            del array[:]  # the other members remain, even if no field reads them
            if count * message.ByteSize() > EXPLODED_BYTES_MAX:
                assert self._array is not None
                return too_large(self._array)
        return found

    def letters(self, value: bytes) -> Callable[[int], bytes]:
        """Return a function: index of an element -> the message with an array of only this element. `value` must be a message."""
        message: Message = self._parse(value)
        array, elements = self._array_in(message), self._array_in(self._parse(value))
        del array[:]

        def letter(element: int) -> bytes:
            array.append(elements[element])
            alone = bytes(message.SerializeToString(deterministic=True))
            del array[:]
            return alone

        return letter

    def _array_in(self, message: Message) -> Any:
        assert self._array is not None
        return attrgetter(".".join(map(str, self._array)))(message)


def _leads_to_array(descriptor: Descriptor, path: JsonPath) -> bool:
    field = descriptor.fields_by_name.get(str(path[0])) if path else None
    if field is None:
        return False
    if len(path) == 1:
        return field.is_repeated and not (field.message_type and field.message_type.GetOptions().map_entry)
    return not field.is_repeated and field.message_type is not None and _leads_to_array(field.message_type, path[1:])


@lru_cache(maxsize=256)
def _type_of_set(
    descriptors: str, message: str, fields: tuple[RecordField, ...], explode: JsonPath | None
) -> MessageType:
    return MessageType(read_descriptor_set(descriptors, message), fields, explode)


@lru_cache(maxsize=256)
def _type_of_file(
    text: str,
    references: tuple[tuple[str, str], ...],
    indexes: tuple[int, ...],
    message: str | None,
    fields: tuple[RecordField, ...],
    explode: JsonPath | None,
) -> MessageType:
    """Return the type of a message, from a cache. Raises ValueError if the file lacks it, or the fields don't fit it."""
    return MessageType(read_registered_file(text, references, indexes, message), fields, explode)


def read_indexes(value: bytes, first: int) -> tuple[tuple[int, ...], int]:
    """Return the indices of a message's type in its schema, and the position where the message begins. Raises ValueError if
    the indices are malformed."""
    count, first = _number(value, first)
    if count == 0:  # short form of [0], the first type of the file
        return (0,), first
    if not 0 < count <= _INDEXES_MAX:
        raise ValueError(f"expected the indices of the message's type in its schema, got {count} of them")
    indexes = []
    for _ in range(count):
        index, first = _number(value, first)
        indexes.append(index)
    return tuple(indexes), first


def _number(value: bytes, first: int) -> tuple[int, int]:
    """Return a zigzag number of variable length, and the position after it."""
    found = 0
    for at in range(5):
        if first + at >= len(value):
            break
        byte = value[first + at]
        found |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), first + at + 1
    raise ValueError("the record ends, or is broken, in the indices of the message's type in its schema")


# --- The parts of a message that fields read, and their conversion

_EACH = 0
"""Step to any element of an array."""


class _Wanted:
    """The fields that read one position of a message: the value itself, and nested values."""

    def __init__(self) -> None:
        self.field: RecordField | None = None
        self.inside: dict[str | int, _Wanted] = {}

    def add(self, path: Iterable[str | int], field: RecordField) -> None:
        here = self
        for step in path:
            here = here.inside.setdefault(_EACH if isinstance(step, int) else step, _Wanted())
        here.field = here.field or field


def _wanted(fields: Sequence[RecordField], explode: JsonPath | None) -> _Wanted:
    wanted = _Wanted()
    for field in fields:
        path = field.path or (field.name,)
        if explode is None or path[: len(explode)] != explode:
            wanted.add(path, field)
        if explode is not None:
            inner = path[len(explode) :] if path[: len(explode)] == explode else path
            wanted.add((*explode, _EACH, *inner), field)
    return wanted


def _plain_message(descriptor: Descriptor, wanted: _Wanted) -> Plain:
    """Return a function from a message of the type to an object of the values that are read."""
    plain_names: list[str] = []
    others: list[tuple[str, bool, Plain]] = []
    for step, inside in wanted.inside.items():
        field = descriptor.fields_by_name.get(str(step))
        if field is None or isinstance(step, int):
            continue
        plain = _plain_field(field, inside)
        if plain is None and not field.has_presence:
            plain_names.append(field.name)
        else:
            others.append((field.name, field.has_presence, plain or _same))
    read = attrgetter(*plain_names) if plain_names else None
    is_one = len(plain_names) == 1
    if read is not None and not is_one and not others:
        members = [(f"f{at}", Any) for at in range(len(plain_names))]
        names = {f"f{at}": name for at, name in enumerate(plain_names)}
        struct = msgspec.defstruct("Plain", members, rename=names, gc=False)
        return lambda message: struct(*read(message))

    def plain_of(message: Message) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if read is not None:
            values = read(message)
            found = {plain_names[0]: values} if is_one else dict(zip(plain_names, values, strict=True))
        for name, may_be_missing, plain in others:
            if not may_be_missing or message.HasField(name):
                found[name] = plain(getattr(message, name))
        return found

    return plain_of


def _same(value: Any) -> Any:
    return value


def _plain_field(field: FieldDescriptor, wanted: _Wanted) -> Plain | None:
    """Return the conversion of a field's value. None if none is needed."""
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        value_field = message.fields_by_name["value"]
        key_type = message.fields_by_name["key"]
        readers = {
            key: _plain_one(value_field, inside) or _same
            for step, inside in wanted.inside.items()
            if (key := _map_key(key_type, step)) is not None
        }
        return lambda entries: {_key_text(key): read(entries[key]) for key, read in readers.items() if key in entries}
    if field.is_repeated:
        read = _plain_one(field, wanted.inside.get(_EACH, wanted)) or _same
        return lambda elements: [read(element) for element in elements]
    return _plain_one(field, wanted)


def _map_key(key: FieldDescriptor, step: str | int) -> Any:
    """Return the step as a key of the map. None if it can't be one."""
    if key.cpp_type == key.CPPTYPE_STRING:
        return str(step)
    if key.cpp_type == key.CPPTYPE_BOOL:
        return {"true": True, "false": False}.get(str(step))
    try:
        return int(step)
    except ValueError:
        return None


def _key_text(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _plain_one(field: FieldDescriptor, wanted: _Wanted) -> Plain | None:
    if (message := field.message_type) is not None:
        return _plain_common(message, wanted.field) or _plain_message(message, wanted)
    if field.enum_type is not None and not (wanted.field is not None and is_number(wanted.field.type)):
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, number)
    return None


def _plain_common(message: Descriptor, field: RecordField | None) -> Plain | None:
    """Return the conversion of a message of Google's common types. None for other types, or if no field reads the whole
    message."""
    if field is None:
        return None
    if message.full_name == "google.protobuf.Timestamp":
        per_second = PER_SECOND[field.time_unit]
        is_text = field.type == "string"
        return lambda time: _time(time.seconds, time.nanos, per_second, is_text=is_text)
    if message.full_name == "google.protobuf.Duration":
        return lambda one: one.seconds if one.nanos == 0 else one.seconds + one.nanos / _NANOS
    return (lambda one: one.value) if message.full_name in _WRAPPERS else None


def _time(seconds: int, nanos: int, per_second: int, *, is_text: bool) -> int | str:
    """Return the time as an integer of the unit. Return a string if it is requested, or if the time isn't a multiple of the
    unit."""
    number, rest = divmod(nanos * per_second, _NANOS)
    if rest == 0 and not is_text:
        return seconds * per_second + number
    try:
        return format_timestamp(seconds * 1_000_000 + nanos // 1_000)
    except (OverflowError, ValueError):
        return seconds * per_second
