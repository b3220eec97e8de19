"""Elements of an array, with the number of each: `{elements: $.readings, index: n}`, and `$`, if the record is the array.

If all paths of the fields begin with an index, an element is an array. Then a record that is one such array is one row: HTTP
splits an array of arrays into such records.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from types import GenericAlias
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from strandline.core.json_paths import JsonPath, path_in_element, path_text
from strandline.core.record_headers import REASON_SCHEMA
from strandline.processing.formats.json_rows import resolve
from strandline.processing.formats.record_fields import RecordField, Rejection, shown
from strandline.processing.formats.shapes.shape import QuickRows, RawValue, RowsOfRecord, ShapeConfig
from strandline.processing.formats.shapes.typed_elements import TypedElements, can_be_typed

_array_of = msgspec.json.Decoder(list[Raw]).decode


class ListedElements:
    """Opens one array."""

    def __init__(self, config: ShapeConfig, fields: Sequence[RecordField], paths: Sequence[JsonPath]) -> None:
        self.containers = config.containers
        (self._array,) = config.containers
        self._index = next((at for at, field in enumerate(fields) if field.name == config.index), None)
        self._inner = [path_in_element(path, self._array) for path in paths]
        self.own_only = frozenset(at for at, path in enumerate(paths) if path[: len(self._array)] == self._array)
        if not self._array:
            self.own_only = frozenset(range(len(paths)))
        if self._index is not None:
            self.own_only |= {self._index}
        own = [at for at in range(len(paths)) if at != self._index]
        self._is_of_arrays = not self._array and all(isinstance((*self._inner[at], "")[0], int) for at in own)
        self._elements: TypedElements | None = None
        self.quick_types: Sequence[Any] = ()
        if len(paths) == len(fields) and all(map(can_be_typed, fields)) and not self._is_of_arrays:
            try:
                self._elements = TypedElements([(at, self._inner[at], fields[at]) for at in own])
                self.quick_types = [GenericAlias(list, self._elements.type)]
            except ValueError:
                pass

    def rows_of(self, containers: Sequence[bytes | None]) -> RowsOfRecord | Rejection:
        (array,) = containers
        if array is not None and not self._array and array[:1] == b"{":
            elements: list[Raw] = [Raw(array)]  # as HTTP splits the array
        elif array is None or array[:1] != b"[":
            found = "it is missing" if array is None else f"got {shown(array)}"
            return Rejection(REASON_SCHEMA, f"{path_text(self._array)}: expected an array, {found}")
        else:
            elements = _array_of(array)
            if self._is_of_arrays and not all(bytes(one).lstrip()[:1] == b"[" for one in elements):
                elements = [Raw(array)]
        return [self._row(bytes(element).strip(), number) for number, element in enumerate(elements)]

    def _row(self, element: bytes, number: int) -> list[RawValue]:
        found = [resolve(element, path) for path in self._inner]
        row: list[RawValue] = [UNSET if one is None else Raw(one) for one in found]
        if self._index is not None:
            row[self._index] = Raw(b"%d" % number)
        return row

    def letters_of(self, containers: Sequence[bytes], row: int) -> Sequence[bytes]:
        (array,) = containers
        if array[:1] == b"{":
            return containers
        elements = _array_of(array)
        if self._is_of_arrays and not all(bytes(one).lstrip()[:1] == b"[" for one in elements):
            return containers
        return [b"[%b]" % bytes(elements[row])]

    def quick_rows_of(self, containers: Sequence[Sequence[Any]]) -> QuickRows | None:
        assert self._elements is not None, "there are no other types"
        (arrays,) = containers
        columns, names, brackets = self._elements.read(list(chain.from_iterable(arrays)))
        rows = QuickRows(list(map(len, arrays)), columns, names, brackets)
        if self._index is not None:
            rows.add_index(self._index)
        return rows
