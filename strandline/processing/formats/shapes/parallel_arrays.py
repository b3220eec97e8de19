"""Arrays that are read in parallel: the values with the same index are a row (`[$.hourly.time, $.hourly.celsius]`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from types import GenericAlias
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from strandline.core.json_paths import JsonPath, path_text
from strandline.core.record_headers import REASON_SCHEMA
from strandline.processing.formats.json_rows import resolve
from strandline.processing.formats.record_fields import RecordField, Rejection, shown
from strandline.processing.formats.shapes.shape import QuickRows, RawValue, RowsOfRecord, ShapeConfig
from strandline.processing.formats.shapes.typed_elements import can_be_typed, typed

_array_of = msgspec.json.Decoder(list[Raw]).decode


class ParallelArrays:
    """Opens several arrays. If there is one path, it is that of the object that contains the arrays."""

    def __init__(self, config: ShapeConfig, fields: Sequence[RecordField], paths: Sequence[JsonPath]) -> None:
        self.containers: Sequence[JsonPath] = config.containers
        if len(self.containers) == 1:
            (within,) = self.containers
            end = len(within) + 1
            self.containers = tuple(dict.fromkeys(path[:end] for path in paths if path[: end - 1] == within != path))
        self._null_if_shorter = config.null_if_shorter
        self._index = next((at for at, field in enumerate(fields) if field.name == config.index), None)
        self._own: list[tuple[int, int, JsonPath]] = [
            (at, number, path[len(array) :])
            for number, array in enumerate(self.containers)
            for at, path in enumerate(paths)
            if path[: len(array)] == array
        ]
        """Index of a path, the array that it leads into, and the rest of the path in an element."""
        self.own_only = frozenset(at for at in (self._index, *(at for at, _, _ in self._own)) if at is not None)
        self._count = len(paths)
        is_typed = (
            len(paths) == len(fields)
            and all(map(can_be_typed, fields))
            and not any(rest for *_, rest in self._own)
            and len(self._own) == len(self.containers) == len({number for _, number, _ in self._own})
        )
        self.quick_types: Sequence[Any] = (
            [GenericAlias(list, typed(fields[at])) for at, _, _ in self._own] if is_typed else ()
        )

    def rows_of(self, containers: Sequence[bytes | None]) -> RowsOfRecord | Rejection:
        arrays: list[list[Raw]] = []
        for path, text in zip(self.containers, containers, strict=True):
            if text is not None and text[:1] == b"[":
                arrays.append(_array_of(text))
            elif text in (None, b"null") and self._null_if_shorter:
                arrays.append([])
            else:
                found = "it is missing" if text is None else f"got {shown(text)}"
                return Rejection(REASON_SCHEMA, f"{path_text(path)}: expected an array, {found}")
        longest = max(map(len, arrays), default=0)
        for path, array in zip(self.containers, arrays, strict=True):
            if len(array) < longest and not self._null_if_shorter:
                return Rejection(
                    REASON_SCHEMA,
                    f"{path_text(path)}: has {len(array)} values, and another array has {longest}; if the last rows lack "
                    "the value, add 'shorter: \"null\"' to 'explode'",
                )
        return [self._row(arrays, number) for number in range(longest)]

    def _row(self, arrays: Sequence[Sequence[Raw]], number: int) -> list[RawValue]:
        row: list[RawValue] = [UNSET] * self._count
        for at, array, rest in self._own:
            if number < len(arrays[array]):
                found = resolve(bytes(arrays[array][number]), rest)
                row[at] = UNSET if found is None else Raw(found)
        if self._index is not None:
            row[self._index] = Raw(b"%d" % number)
        return row

    def letters_of(self, containers: Sequence[bytes], row: int) -> Sequence[bytes]:
        return [
            text if text[:1] != b"[" else b"[%b]" % b",".join(map(bytes, _array_of(text)[row : row + 1]))
            for text in containers
        ]

    def quick_rows_of(self, containers: Sequence[Sequence[Any]]) -> QuickRows | None:
        counts, *others = (list(map(len, arrays)) for arrays in containers)
        if any(other != counts for other in others):
            return None
        columns = {at: list(chain.from_iterable(containers[number])) for at, number, _ in self._own}
        rows = QuickRows(counts, columns, Counter(), 0)
        if self._index is not None:
            rows.add_index(self._index)
        return rows
