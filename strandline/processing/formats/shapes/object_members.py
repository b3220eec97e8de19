"""Members of an object as rows, with their names as fields: `{members: $.sensors, name: sensor}`.

With `match`, only members whose names match the regular expression are rows. So wide rows become long rows:
`{members: $, match: "temp_(?P<room>.+)"}`. The other members of the object apply to each row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import chain
from types import GenericAlias
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, Raw

from strandline.core.json_paths import JsonPath, path_in_element, path_text
from strandline.core.record_headers import REASON_DECODE, REASON_SCHEMA
from strandline.processing.formats.json_rows import resolve
from strandline.processing.formats.record_fields import RecordField, Rejection, shown, top_level_keys
from strandline.processing.formats.shapes.shape import QuickRows, RawValue, RowsOfRecord, ShapeConfig
from strandline.processing.formats.shapes.typed_elements import TypedElements, can_be_typed, decoder_of, typed
from strandline.processing.formats.text_values import json_of_text

NAMES_REMEMBERED_MAX = 10_000
RECORDS_REMEMBERED_MAX = 100
"""Number of records whose names are remembered together."""
_object_of = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.encode


class ObjectMembers:
    """Opens one object."""

    def __init__(self, config: ShapeConfig, fields: Sequence[RecordField], paths: Sequence[JsonPath]) -> None:
        self.containers = config.containers
        (self._object,) = config.containers
        self._match = None if config.match is None else rf"\A(?:{config.match})\z"
        places = {field.name: at for at, field in enumerate(fields)}
        self._places = places
        self._types = [field.type for field in fields]
        self._name = None if config.name is None else places[config.name]
        self._index = None if config.index is None else places[config.index]
        named = [] if self._match is None else [at for name, at in places.items() if name in _groups(self._match)]
        self._given = {at for at in (self._name, self._index, *named) if at is not None}
        depth = len(self._object)
        self._inner = [path_in_element(path, self._object) for path in paths]
        at_top = not self._object
        is_inside = [path[:depth] == self._object and not (at_top and self._match and path) for path in paths]
        self.own_only = frozenset(at for at in range(len(paths)) if at in self._given or is_inside[at])
        self._own = [at for at in range(len(paths)) if at not in self._given]
        self._elements: TypedElements | None = None
        self.quick_types: Sequence[Any] = ()
        if len(paths) == len(fields) and all(map(can_be_typed, fields)) and self._own:
            try:
                self._elements = TypedElements([(at, self._inner[at], fields[at]) for at in self._own])
                self._read_list = decoder_of(GenericAlias(list, self._elements.type))
                member = self._elements.type if self._match is None else Raw
                self.quick_types = [GenericAlias(dict, (str, member))]
            except ValueError:
                pass
        self._members_of = lru_cache(maxsize=NAMES_REMEMBERED_MAX)(self._read_name)
        self._rows_among = lru_cache(maxsize=RECORDS_REMEMBERED_MAX)(self._find_rows)
        self._readers = [
            (at, lru_cache(maxsize=NAMES_REMEMBERED_MAX)(partial(self._value_in, at, decoder_of(typed(fields[at])))))
            for at in sorted(self._given - {self._index})
            if can_be_typed(fields[at])
        ]
        """Index of each path that names fill, and the reader of a name."""
        others = [str(path[0]) for at, path in enumerate(paths) if at_top and path and not is_inside[at]]
        if any(self._members_of(name) is not None for name in others):
            self.quick_types = ()  # a field reads a member that is also a row

    def rows_of(self, containers: Sequence[bytes | None]) -> RowsOfRecord | Rejection:
        (text,) = containers
        if text is None or text[:1] != b"{":
            found = "it is missing" if text is None else f"got {shown(text)}"
            return Rejection(REASON_SCHEMA, f"{path_text(self._object)}: expected an object, {found}")
        members = _object_of(text)
        if len(names := top_level_keys(text)) != len(members):
            twice = next(name for name in names if names.count(name) > 1)
            return Rejection(REASON_DECODE, f'duplicate key "{twice}"')
        rows: RowsOfRecord = []
        for name, value in members.items():
            given = self._members_of(name)
            if given is None:
                continue
            row: list[RawValue] = [UNSET] * len(self._inner)
            element = bytes(value).strip()
            for at in self._own:
                found_value = resolve(element, self._inner[at])
                row[at] = UNSET if found_value is None else Raw(found_value)
            for at, raw in given.items():
                row[at] = raw
            if self._index is not None:
                row[self._index] = Raw(b"%d" % len(rows))
            rows.append(row)
        return rows

    def letters_of(self, containers: Sequence[bytes], row: int) -> Sequence[bytes]:
        members = _object_of(containers[0])
        rows = [name for name in members if self._members_of(name) is not None]
        return [_encode({name: value for name, value in members.items() if name == rows[row] or name not in rows})]

    def quick_rows_of(self, containers: Sequence[Sequence[Any]]) -> QuickRows | None:
        assert self._elements is not None, "there are no other types"
        (objects,) = containers
        if self._match is None:
            counts, names = list(map(len, objects)), list(chain.from_iterable(objects))
            values = list(chain.from_iterable(map(dict.values, objects)))
        else:
            matching = [self._rows_among(tuple(members)) for members in objects]
            counts, names = list(map(len, matching)), list(chain.from_iterable(matching))
            raws = [members[name] for members, some in zip(objects, matching, strict=True) for name in some]
            values = self._read_list(b"[" + b",".join(raws) + b"]")
        columns, inner_names, brackets = self._elements.read(values)
        for at, read in self._readers:
            columns[at] = list(map(read, names))
        rows = QuickRows(counts, columns, inner_names, brackets, list(map(len, objects)))
        if self._index is not None:
            rows.add_index(self._index)
        return rows

    def _value_in(self, at: int, decode: Callable[[Raw], Any], name: str) -> Any:
        """Return the value of a field that the name of a row fills. UNSET if it doesn't fill the field. Raises
        msgspec.DecodeError if the value isn't as declared."""
        raw = (self._members_of(name) or {}).get(at)
        return UNSET if raw is None else decode(raw)

    def _find_rows(self, names: tuple[str, ...]) -> list[str]:
        """Return the names that are rows. Records of one device mostly have the same names."""
        return [name for name in names if self._members_of(name) is not None]

    def _read_name(self, name: str) -> dict[int, Raw] | None:
        """Return the values of the fields that a name fills. None if the member isn't a row."""
        if self._match is None:
            return {} if self._name is None else {self._name: self._raw(name, self._name)}
        (found,) = pc.extract_regex(pa.array([name]), self._match).to_pylist() if _groups(self._match) else [None]
        if found is None:
            is_row = not _groups(self._match) and pc.match_substring_regex(pa.array([name]), self._match)[0].as_py()
            if not is_row:
                return None
        texts = {self._places[group]: text for group, text in (found or {}).items() if text is not None}
        if self._name is not None:
            texts.setdefault(self._name, name)
        return {at: self._raw(text, at) for at, text in texts.items()}

    def _raw(self, text: str, at: int) -> Raw:
        return Raw(json_of_text(text, self._types[at]))


@lru_cache(maxsize=1_000)
def _groups(pattern: str) -> tuple[str, ...]:
    import re

    return tuple(re.compile(pattern.replace(r"\z", r"\Z")).groupindex)
