"""Arrays within the elements of an array, or within the members of an object: `{elements: $.items, inner: $.items.datapoints}`.

Each element of an inner array is a row. Paths into the inner array are read from its element, and other paths into the outer
array from the outer element. A path into neither is looked up in the inner element, then in the outer one, then in the record.
An outer element without the inner array is one row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat
from types import GenericAlias
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw

from strandline.core.json_paths import JsonPath, path_in_element, path_text
from strandline.core.record_headers import REASON_SCHEMA
from strandline.processing.formats.json_rows import resolve, with_value
from strandline.processing.formats.record_fields import RecordField, Rejection, shown
from strandline.processing.formats.shapes.listed_elements import ListedElements
from strandline.processing.formats.shapes.object_members import ObjectMembers
from strandline.processing.formats.shapes.shape import QuickRows, RawValue, RowsOfRecord, ShapeConfig
from strandline.processing.formats.shapes.typed_elements import TypedElements, can_be_typed

_array_of = msgspec.json.Decoder(list[Raw]).decode
_object_of = msgspec.json.Decoder(dict[str, Raw]).decode


@dataclass(frozen=True)
class _InnerArray:
    """The inner array as a field of an outer element."""

    plain_type: Any


class InnerElements:
    """Opens one array or object, and an array in each of its elements."""

    def __init__(self, config: ShapeConfig, fields: Sequence[RecordField], paths: Sequence[JsonPath]) -> None:
        assert config.inner is not None, "the kind of this shape"
        self.containers = config.containers
        (outer,) = config.containers
        self._path = config.inner
        self._is_listed = config.outer == "elements"
        self._within = path_in_element(self._path, outer)
        """Path of the inner array in an outer element."""
        shape = ListedElements if self._is_listed else ObjectMembers
        self._outer = shape(replace(config, index=None), fields, [*paths, self._path])
        self._index = next((at for at, field in enumerate(fields) if field.name == config.index), None)
        filled = {at for at, field in enumerate(fields) if field.name in config.filled}
        is_inner = [path[: len(self._path)] == self._path for path in paths]
        is_outer = [path[: len(outer)] == outer and not is_inner[at] for at, path in enumerate(paths)]
        places = [at for at in range(len(paths)) if at not in filled]
        self._inner = [(at, path_in_element(paths[at], self._path)) for at in places if not is_outer[at]]
        self._inner_only = [at for at in places if is_inner[at]]
        self.own_only = self._outer.own_only - {len(paths)} | {
            at for at in range(len(paths)) if at in filled or is_inner[at]
        }
        self._typed: tuple[TypedElements, TypedElements] | None = None
        self.quick_types: Sequence[Any] = ()
        if self._is_listed and self._within and len(paths) == len(fields) and all(map(can_be_typed, fields)):
            try:
                inner = TypedElements([(at, path, fields[at]) for at, path in self._inner])
                array = cast(RecordField, _InnerArray(GenericAlias(list, inner.type)))
                outside = [(at, path_in_element(paths[at], outer), fields[at]) for at in places if not is_inner[at]]
                self._typed = inner, TypedElements([*outside, (len(paths), self._within, array)])
                self.quick_types = [GenericAlias(list, self._typed[1].type)]
            except ValueError:
                self._typed = None

    def rows_of(self, containers: Sequence[bytes | None]) -> RowsOfRecord | Rejection:
        outer = self._outer.rows_of(containers)
        if isinstance(outer, Rejection):
            return outer
        rows: RowsOfRecord = []
        for row in outer:
            array = row.pop()
            text = None if array is UNSET else bytes(array).strip()
            if text is not None and text != b"null" and text[:1] != b"[":
                return Rejection(REASON_SCHEMA, f"{path_text(self._path)}: expected an array, got {shown(text)}")
            rows += self._inner_rows(row, text)
        if self._index is not None:
            for number, row in enumerate(rows):
                row[self._index] = Raw(b"%d" % number)
        return rows

    def _inner_rows(self, outer: list[RawValue], array: bytes | None) -> Iterator[list[RawValue]]:
        row = list(outer)
        for at in self._inner_only:
            row[at] = UNSET
        if array is None or array == b"null":
            yield row
            return
        for element in _array_of(array):
            values = list(row)
            for at, path in self._inner:
                if (found := resolve(bytes(element).strip(), path)) is not None:
                    values[at] = Raw(found)
            yield values

    def letters_of(self, containers: Sequence[bytes], row: int) -> Sequence[bytes]:
        outer = self._outer.rows_of(containers)
        assert not isinstance(outer, Rejection), "called for a row"
        number = 0
        for number, one in enumerate(outer):  # noqa: B007 - the number of the outer element with the row
            array = b"null" if one[-1] is UNSET else bytes(one[-1]).strip()
            size = 1 if array == b"null" else len(_array_of(array))
            if row < size:
                break
            row -= size
        (letter,) = self._outer.letters_of(containers, number)
        if array == b"null":
            return [letter]
        is_array, is_member = letter[:1] == b"[", not self._is_listed
        steps = (0,) if is_array else tuple(_object_of(letter)) if is_member else ()
        return [with_value(letter, (*steps, *self._within), b"[%b]" % bytes(_array_of(array)[row]))]

    def quick_rows_of(self, containers: Sequence[Sequence[Any]]) -> QuickRows | None:
        assert self._typed is not None, "there are no other types"
        inner, outer = self._typed
        (lists,) = containers
        outside, names, _ = outer.read(list(chain.from_iterable(lists)))
        arrays = outside.pop(outer.last)
        if not all(isinstance(array, list) for array in arrays):
            return None
        sizes = list(map(len, arrays))
        columns, inner_names, brackets = inner.read(list(chain.from_iterable(arrays)))
        for at, column in outside.items():
            spread = list(chain.from_iterable(map(repeat, column, sizes)))
            own = columns.get(at)
            columns[at] = (
                spread if own is None else [o if o is not UNSET else s for o, s in zip(own, spread, strict=True)]
            )
        left = iter(sizes)
        counts = [sum(islice(left, len(elements))) for elements in lists]
        rows = QuickRows(counts, columns, names + inner_names, brackets)
        if self._index is not None:
            rows.add_index(self._index)
        return rows
