"""Converts JSON objects to flat ones: fields at any paths, strings for numbers, and a row for each element of an array.

There is a fast path, which only reads well-formed records, and a slow path, which defines the outcome:

* A path that doesn't exist (a missing member, or no object or array on the path) is a missing field.
* An object that has a name twice is rejected if that name is a step of any path, because some readers use the first value, and
  others the second.
* A record is rejected completely if it doesn't have the array to explode.

In an element, each field is searched in the element first, then in the record. So members next to the array apply to all of its
elements. In the element, the path of the array is that of the element.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from strandline.core.json_paths import JsonPath, path_in_element, path_text
from strandline.core.record_headers import REASON_DECODE, REASON_SCHEMA
from strandline.processing.formats.json_repairs import JsonRepairs
from strandline.processing.formats.record_fields import (
    BLOCK_RECORDS,
    JsonText,
    RecordField,
    Rejection,
    may_nest_deep,
    readable_text,
    shown,
)
from strandline.processing.formats.text_values import json_of_text

EXPLODED_BYTES_MAX = 64 << 20
"""Maximum number of bytes of all rows of one record, and of its dead letters if each row becomes one."""

ROWS_A_PART = 10_000
_Value = Raw | UnsetType
_object_of = msgspec.json.Decoder(dict[str, Raw]).decode
_array_of = msgspec.json.Decoder(list[Raw]).decode
_text_of = msgspec.json.Decoder(str).decode
_encode = msgspec.json.encode
_NO_MEMBER = re.compile(r'["\\\x00-\x1f]')
"""Characters that msgspec doesn't allow in the names of a struct's members."""


T = TypeVar("T")


class Rows(NamedTuple):
    """The rows of some records."""

    texts: Sequence[JsonText]
    places: Sequence[int] | None = None
    """Index of each row's record. None if each record is one row."""
    elements: Sequence[int | None] | None = None
    """Index of each row's element in its array. None for a record that is rejected completely."""
    whole_of: Callable[[int], JsonText] | None = None
    """Returns a row before its fields were read. Only for formats whose rows depend on earlier records."""

    def of_each(self, column: Sequence[T]) -> Sequence[T]:
        """Return, for each row, the value of its record in the column."""
        return column if self.places is None else [column[place] for place in self.places]


class JsonRows:
    """Converts each record to one row."""

    def __init__(self, fields: Sequence[RecordField]) -> None:
        self._fields = FieldPaths(fields)

    def rows(self, values: Sequence[JsonText]) -> list[JsonText]:
        """Return the row of each record. A value that isn't a JSON object stays unchanged: the decoder rejects it."""
        rows: list[JsonText] = []
        for first in range(0, len(values), BLOCK_RECORDS):
            block = values[first : first + BLOCK_RECORDS]
            rows += self._fields.rows_at_once(block) or map(self._row, block)
        return rows

    def _row(self, value: JsonText) -> JsonText:
        if not isinstance(value, bytes):
            return value
        value = self._fields.readable(value)
        found = self._fields.read(value)
        return self._fields.written(self._fields.with_rest(value, found)) if isinstance(found, list) else found


class ExplodedRows:
    """Converts each element of an array in the record to a row."""

    def __init__(self, fields: Sequence[RecordField], array: JsonPath) -> None:
        self._fields = FieldPaths(fields, [array])
        self._array = array
        self._name = path_text(array)
        self._paths = [path_in_element(path, array) for path in self._fields.paths]
        self._read = FastReader(self._paths) if can_be_read_fast(self._paths) else lambda _: None

    def parts(self, values: Iterable[JsonText]) -> Iterator[Rows]:
        """Yield the rows of the records, in parts of whole records. Each part except the last has at least ROWS_A_PART rows, or
        EXPLODED_BYTES_MAX bytes."""
        return rows_in_parts(map(self._rows, values))

    def letters(self, value: bytes) -> Callable[[int], bytes]:
        """Return a function: index of an element -> the record with an array of only this element."""
        elements: list[Raw] = []

        def cut(raw: bytes, path: JsonPath) -> Raw:
            if not path:
                elements.extend(_array_of(raw))
                return Raw(b"[\0]")  # JSON can't contain this byte
            members: Any = _object_of(raw) if isinstance(path[0], str) else _array_of(raw)
            members[path[0]] = cut(bytes(members[path[0]]), path[1:])
            return Raw(_encode(members))

        before, behind = bytes(cut(value, self._array)).split(b"\0")
        return lambda element: before + bytes(elements[element]) + behind

    def _rows(self, value: JsonText) -> list[bytes] | JsonText:
        if not isinstance(value, bytes):
            return value
        beside = self._fields.read(value)
        if not isinstance(beside, list):
            return beside
        array = resolve(value, self._array)
        if array is None or array[:1] != b"[":
            found = "it is missing" if array is None else f"got {shown(array)}"
            return Rejection(REASON_SCHEMA, f"{self._name}: expected an array, {found}")
        elements = _array_of(array)
        size = max(len(value) - len(array), sum(len(bytes(one)) for one in beside if one is not UNSET))
        if len(elements) * size > EXPLODED_BYTES_MAX:
            return too_large(self._array)
        rows = []
        for element in elements:
            own = self._read(element) or _resolved(bytes(element), self._paths)
            rows.append(self._fields.written([o if o is not UNSET else b for o, b in zip(own, beside, strict=True)]))
        return rows


def rows_in_parts(records: Iterable[list[bytes] | JsonText]) -> Iterator[Rows]:
    """Yield the rows of the records, in parts of whole records. Each part except the last has at least ROWS_A_PART rows, or
    EXPLODED_BYTES_MAX bytes. `records`: rows of each record, or the reason why it has none."""
    texts: list[JsonText] = []
    places: list[int] = []
    elements: list[int | None] = []
    size = 0
    for place, found in enumerate(records):
        if isinstance(found, list):
            size += sum(map(len, found))
            texts += found
            elements += range(len(found))
            places += [place] * len(found)
        else:
            texts.append(found)
            elements.append(None)
            places.append(place)
        if len(texts) >= ROWS_A_PART or size >= EXPLODED_BYTES_MAX:
            yield Rows(texts, places, elements)
            texts, places, elements = [], [], []
            size = 0
    if texts:
        yield Rows(texts, places, elements)


class FieldPaths:
    """Reads the values at the paths of the fields, and writes a flat object of them."""

    def __init__(
        self,
        fields: Sequence[RecordField],
        containers: Sequence[JsonPath] = (),
        starts: bytes | None = None,
        filled: Sequence[str] = (),
    ) -> None:
        """Prepare the paths.

        - `containers`: arrays and objects that are opened.
        - `starts`: first characters that a record can have. Default: that of an array if a path begins with an index, else that
          of an object.
        - `filled`: fields that no member of the record fills.
        """
        self._starts = starts or _starts_of(fields)
        """First characters that a record can have."""
        self.paths: list[JsonPath] = [(field.name,) if field.path is None else field.path for field in fields]
        self._texts = [(at, field.type) for at, field in enumerate(fields) if field.text]
        joined = [(at, path) for at, field in enumerate(fields) for path in field.joined]
        self._joined = {
            at: [len(fields) + place for place, (of, _) in enumerate(joined) if of == at] for at, _ in joined
        }
        """Field -> indices of the strings that are joined to its value, after those of all fields."""
        self.paths += [path for _, path in joined]
        self._count = len(fields)
        self._repairs = JsonRepairs([marker for field in fields for marker in field.missing])
        self._rest = next((at for at, field in enumerate(fields) if field.rest), None)
        rest_path = None if self._rest is None else (fields[self._rest].name,)
        self._taken = {path[0] for path in self.paths if path and path != rest_path}
        """Members that fields read, completely or in part."""
        of_fields = [path for at, path in enumerate(self.paths) if at >= len(fields) or fields[at].name not in filled]
        self._names = {step for path in (*of_fields, *containers) for step in path if isinstance(step, str)}
        self._spelled = {name: _encode(name) for name in sorted(self._names)}
        ways = {
            path[: end + 1]
            for path in (*self.paths, *containers)
            for end, step in enumerate(path)
            if isinstance(step, str)
        }
        places = Counter(way[-1] for way in ways)
        self._places = [(_encode(name), places[name]) for name in sorted(self._names)]
        """Each name, and the number of its occurrences in a record that has every field."""
        members: list[Any] = [(f"f{at}", _Value, UNSET) for at in range(len(fields))]
        names = {f"f{at}": field.name for at, field in enumerate(fields)}
        self._flat = msgspec.defstruct("Flat", members, rename=names, gc=False)
        self._read = FastReader(self.paths) if can_be_read_fast(self.paths) else None
        self._pairs = json.JSONDecoder(object_pairs_hook=self._refuse_repeats, parse_int=str, parse_float=str)

    def rows_at_once(self, values: Sequence[JsonText]) -> list[bytes] | None:
        """Return the rows of simple records, which have every field, and each name once. None if a record can need a closer
        check."""
        if self._rest is not None or self._read is None:
            return None
        try:
            text = b"".join(values)  # type: ignore[arg-type]
        except TypeError:  # not bytes
            return None
        if not text.isascii() or b"\\" in text or any(map(may_nest_deep, values)):  # type: ignore[arg-type]
            return None
        # If each record has every name, which is checked next, none has a name twice, because there are no more names.
        if any(text.count(name) > places * len(values) for name, places in self._places):
            return None
        found = self._read.all(values)  # type: ignore[arg-type]
        if found is None:
            return None
        if self._texts or self._joined:
            return [self.written(list(one)) for one in found]
        return [_encode(self._flat(*one)) for one in found]

    def read(self, value: bytes) -> list[_Value] | bytes | Rejection:
        """Return the value at each path, or the record itself if it isn't a readable object. `value`: result of `readable`."""
        is_plain = value.isascii() and b"\\" not in value and not may_nest_deep(value)
        if self._read is not None and is_plain and not any(value.count(name) > 1 for name in self._spelled.values()):
            values = self._read(value)
            if values is not None:
                return values
        if self._starts == b"[" and is_plain and b"{" not in value and all(len(path) == 1 for path in self.paths):
            try:
                return _at_positions(value, self.paths)
            except msgspec.DecodeError:  # not an array
                pass
        text = readable_text(value, self._repairs)
        if isinstance(text, Rejection):
            return text  # here, because the position in the reason is that in the record, before its source adds fields
        if text is not value:
            return value
        if (start := value.lstrip()[:1]) not in (self._starts[:1], self._starts[-1:]):
            if self._starts == b"[":
                return Rejection(REASON_SCHEMA, f"expected an array, got {shown(value.strip())}")
            return value
        try:
            self._pairs.decode(value.decode())
        except _RepeatedNameError as error:
            return Rejection(REASON_DECODE, f'duplicate key "{error}"')
        if start == b"[" and all(len(path) == 1 for path in self.paths):
            return _at_positions(value, self.paths)
        return _resolved(value, self.paths)

    def have_names_once(self, values: Sequence[bytes], text: bytes, known: Mapping[str, int]) -> bool:
        """Return True if no object in these records has one of the names twice.

        `text`: all records, which have no escapes. `known`: number of strings and members with each name that were read in them.
        """
        if all(text.count(spelled) == known.get(name, 0) for name, spelled in self._spelled.items()):
            return True
        try:
            for value in values:
                self._pairs.decode(value.decode())
        except _RepeatedNameError:
            return False
        return True

    def with_rest(self, value: bytes, values: list[_Value]) -> list[_Value]:
        """Return the values, with the object's other members if a field reads them. `value`: an object that was read."""
        if self._rest is not None:
            left = {name: raw for name, raw in _object_of(value).items() if name not in self._taken}
            values[self._rest] = Raw(_encode(_encode(left).decode())) if left else UNSET
        return values

    def readable(self, value: bytes) -> bytes:
        """Return the text, repaired if it can't be read otherwise."""
        if value[:1] == b"{" and not self._repairs.has_words:
            return value
        text = readable_text(value, self._repairs)
        return value if isinstance(text, Rejection) else text

    def written(self, values: list[_Value]) -> bytes:
        if self._joined:
            for at, places in self._joined.items():
                values[at] = _joined_text([values[place] for place in places])
            del values[self._count :]
        for at, field_type in self._texts:
            value = values[at]
            if value is not UNSET and (raw := bytes(value).lstrip())[:1] == b'"':
                values[at] = Raw(json_of_text(_text_of(raw).strip(), field_type))
        return _encode(self._flat(*values))

    def _refuse_repeats(self, pairs: list[tuple[str, Any]]) -> None:
        seen = set()
        for name, _ in pairs:
            if name in self._names:
                if name in seen:
                    raise _RepeatedNameError(name)
                seen.add(name)


def resolve(value: bytes, path: JsonPath) -> bytes | None:
    """Return the value at the path of a readable JSON text. None if the path doesn't exist."""
    here = value.strip()
    for step in path:
        found: Raw | None = None
        if isinstance(step, str):
            found = _object_of(here).get(step) if here[:1] == b"{" else None
        elif here[:1] == b"[":
            items = _array_of(here)
            found = items[step] if step < len(items) else None
        if found is None:
            return None
        here = bytes(found).strip()
    return here


def _resolved(value: bytes, paths: Sequence[JsonPath]) -> list[_Value]:
    found = [resolve(value, path) for path in paths]
    return [UNSET if one is None else Raw(one) for one in found]


def with_value(value: bytes, path: JsonPath, text: bytes) -> bytes:
    """Return the JSON text with another value at the path."""
    if not path:
        return text
    members: Any = _object_of(value) if isinstance(path[0], str) else _array_of(value)
    members[path[0]] = Raw(with_value(bytes(members[path[0]]), path[1:], text))
    return _encode(members)


def _joined_text(parts: Sequence[_Value]) -> _Value:
    """Return some strings and numbers joined with a space. UNSET if one is missing."""
    texts = []
    for part in parts:
        raw = b"" if part is UNSET else bytes(part).strip()
        if raw[:1] == b'"':
            texts.append(_text_of(raw).strip())
        elif raw and raw != b"null":
            texts.append(raw.decode())
        else:
            return UNSET
    return Raw(_encode(" ".join(texts)))


def _starts_of(fields: Sequence[RecordField]) -> bytes:
    is_array = any(field.path and isinstance(field.path[0], int) for field in fields)
    return b"[" if is_array else b"{"


def _at_positions(value: bytes, paths: Sequence[JsonPath]) -> list[_Value]:
    """Return the values at single indices of an array."""
    items = _array_of(value)
    return [items[step] if isinstance(step, int) and step < len(items) else UNSET for (step,) in paths]


def too_large(array: JsonPath) -> Rejection:
    """Return the rejection of a record whose rows, or whose dead letters, would have too many bytes."""
    return Rejection(
        REASON_SCHEMA,
        f"{path_text(array)}: its elements, each with the other members of the record, have more than {EXPLODED_BYTES_MAX} bytes",
    )


class _RepeatedNameError(Exception):
    pass


def can_be_read_fast(paths: Sequence[JsonPath]) -> bool:
    """Return True if each path begins with a name, and each name on it can be the name of a struct's member."""
    return all(path and isinstance(path[0], str) for path in paths) and not any(
        isinstance(step, str) and _NO_MEMBER.search(step) for path in paths for step in path
    )


class FastReader:
    """Reads all paths of an object in one step, in C. If that fails, the result is None. If a path doesn't exist, its value is
    UNSET.

    All paths must pass `can_be_read_fast`. Structs nest as the paths do. A path is read in structs as far as it consists of
    names, and not inside a value that another path reads completely.
    """

    def __init__(self, paths: Sequence[JsonPath], types: Sequence[Any] = ()) -> None:
        """`types`: type of the value at each path, for values that are typed instead of raw."""
        heads = [
            path[: next((at for at, step in enumerate(path) if isinstance(step, int)), len(path))] for path in paths
        ]
        whole = set(heads)
        heads = [next(head[:end] for end in range(1, len(head) + 1) if head[:end] in whole) for head in heads]
        self._rests = [
            (at, path[len(head) :]) for at, (path, head) in enumerate(zip(paths, heads, strict=True)) if path != head
        ]
        counts = Counter(heads)
        self.typed = frozenset(at for at, _ in enumerate(types) if counts[heads[at]] == 1 and paths[at] == heads[at])
        """Indices of the paths whose values are typed. If paths share a value, it is raw."""
        tree: dict[str, Any] = {}
        for at, head in enumerate(heads):
            node = tree
            for step in head[:-1]:
                node = node.setdefault(step, {})  # type: ignore[arg-type]
            node[head[-1]] = types[at] | UnsetType if at in self.typed else _Value  # type: ignore[index]
        numbers: dict[JsonPath, str] = {}
        self._decode = msgspec.json.Decoder(_struct(tree, (), numbers)).decode
        self._heads = {head: at for at, head in enumerate(heads)}
        self._objects = Counter(str(way[-1]) for way in numbers if way not in self._heads)
        """Name -> number of objects with this name on the paths. Each of them exists in an object that was read."""
        self.objects = self._objects.total()
        """Number of objects on the paths in each object that is read."""
        attributes = [".".join(numbers[head[:end]] for end in range(1, len(head) + 1)) for head in heads]
        one = attrgetter(*attributes)
        self._values = one if len(attributes) > 1 else lambda row: (one(row),)

    def all(self, values: Sequence[bytes]) -> list[Sequence[_Value]] | None:
        """Return the values at all paths of each object. None if any value is missing."""
        if self._rests:
            found: list[Any] = [self(value) for value in values]
            return None if None in found or any(UNSET in one for one in found) else found
        try:
            found = [self._values(row) for row in map(self._decode, values)]
        except (msgspec.DecodeError, AttributeError, RecursionError):
            return None
        return None if any(UNSET in one for one in found) else found

    def names_in(self, columns: Sequence[Sequence[Any]]) -> Counter[str]:
        """Return the number of members with each name that were read in some objects. `columns`: values at each path. Names on
        the paths inside of a value aren't counted."""
        count = len(columns[0])
        names = Counter({name: objects * count for name, objects in self._objects.items()})
        for head, at in self._heads.items():
            names[str(head[-1])] += count - columns[at].count(UNSET)
        return names

    def __call__(self, value: bytes | Raw) -> list[Any] | None:
        """Return the value at each path of an object. None if the object must be read in another way."""
        try:
            values = list(self._values(self._decode(value)))
        except (
            msgspec.DecodeError,
            AttributeError,
            RecursionError,
        ):  # a value isn't an object, or a member is missing
            return None
        for at, rest in self._rests:
            if values[at] is not UNSET:
                (values[at],) = _resolved(bytes(values[at]), [rest])
        return values


def _struct(tree: dict[str, Any], path: JsonPath, numbers: dict[JsonPath, str]) -> Any:
    members: list[Any] = []
    rename: dict[str, str] = {}
    for name, below in tree.items():
        numbers[*path, name] = attribute = f"f{len(members)}"
        rename[attribute] = name
        kind = _struct(below, (*path, name), numbers) | UnsetType if isinstance(below, dict) else below
        members.append((attribute, kind, UNSET))
    return msgspec.defstruct("Member", members, rename=rename, gc=False)
