"""Names of columns in one array, and rows of values in another: `{columns: $.columns, rows: $.values}`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from types import GenericAlias
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from strandline.core.json_paths import JsonPath, path_text
from strandline.core.record_headers import REASON_SCHEMA
from strandline.processing.formats.json_rows import resolve
from strandline.processing.formats.record_fields import RecordField, Rejection, shown
from strandline.processing.formats.shapes.shape import QuickRows, RawValue, RowsOfRecord, ShapeConfig
from strandline.processing.formats.shapes.typed_elements import can_be_typed, decoder_of, extract_of, typed

TABLES_REMEMBERED_MAX = 1_000
_array_of = msgspec.json.Decoder(list[Raw]).decode
_names_of = msgspec.json.Decoder(list[str]).decode
_rows_of = msgspec.json.Decoder(list[list[Raw]]).decode


@dataclass(frozen=True, eq=False)
class _TableReader:
    """Reads the rows of tables with the same names."""

    names: list[str]
    read: Callable[[Raw], list[Any]]
    extracts: Mapping[int, Callable[[list[Any]], list[Any]]]
    """Index of a path -> function from rows to the values of its column."""


class NamedColumns:
    """Opens an array of names and an array of rows. The first step of a field's path is the name of its column."""

    def __init__(self, config: ShapeConfig, fields: Sequence[RecordField], paths: Sequence[JsonPath]) -> None:
        self.containers = config.containers
        self._index = next((at for at, field in enumerate(fields) if field.name == config.index), None)
        self.own_only = frozenset(at for at in (self._index,) if at is not None)
        self._paths = paths
        self._types = (
            [typed(field) for field in fields] if len(paths) == len(fields) and all(map(can_be_typed, fields)) else None
        )
        self.quick_types: Sequence[Any] = () if self._types is None else (Raw, Raw)
        self._reader_of = lru_cache(maxsize=TABLES_REMEMBERED_MAX)(self._make_reader)

    def rows_of(self, containers: Sequence[bytes | None]) -> RowsOfRecord | Rejection:
        try:
            names = _names_of(containers[0] or b"")
        except msgspec.DecodeError:
            return self._no_array(0, containers[0], "an array of names")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            return Rejection(REASON_SCHEMA, f"{path_text(self.containers[0])}: has the name {twice!r} twice")
        try:
            rows = _rows_of(containers[1] or b"")
        except msgspec.DecodeError:
            return self._no_array(1, containers[1], "an array of arrays")
        wrong = next((row for row in rows if len(row) != len(names)), None)
        if wrong is not None:
            return Rejection(
                REASON_SCHEMA,
                f"{path_text(self.containers[1])}: has a row of {len(wrong)} values, and there are {len(names)} names",
            )
        places = {name: at for at, name in enumerate(names)}
        return [self._row(row, places, number) for number, row in enumerate(rows)]

    def _row(self, values: Sequence[Raw], places: dict[str, int], number: int) -> list[RawValue]:
        row: list[RawValue] = [UNSET] * len(self._paths)
        for at, path in enumerate(self._paths):
            if path and (place := places.get(str(path[0]))) is not None:
                found = resolve(bytes(values[place]), path[1:])
                row[at] = UNSET if found is None else Raw(found)
        if self._index is not None:
            row[self._index] = Raw(b"%d" % number)
        return row

    def _no_array(self, number: int, text: bytes | None, expected: str) -> Rejection:
        found = "it is missing" if text is None else f"got {shown(text)}"
        return Rejection(REASON_SCHEMA, f"{path_text(self.containers[number])}: expected {expected}, {found}")

    def letters_of(self, containers: Sequence[bytes], row: int) -> Sequence[bytes]:
        return [containers[0], b"[%b]" % bytes(_array_of(containers[1])[row])]

    def quick_rows_of(self, containers: Sequence[Sequence[Any]]) -> QuickRows | None:
        found = list(map(self._reader_of, map(bytes, containers[0])))
        readers = [reader for reader in found if reader is not None]
        if len(readers) < len(found):
            return None
        tables = [reader.read(text) for reader, text in zip(readers, containers[1], strict=True)]
        counts = list(map(len, tables))
        strings = Counter(name for reader in readers for name in reader.names)
        columns: dict[int, list[Any]] = {at: [] for reader in set(readers) for at in reader.extracts}
        for reader, some in groupby(zip(readers, tables, strict=True), key=itemgetter(0)):
            rows = [row for _, table in some for row in table]
            for at, column in columns.items():
                extract = reader.extracts.get(at)
                column += [UNSET] * len(rows) if extract is None else extract(rows)
        quick = QuickRows(counts, columns, Counter(), sum(counts), strings=strings)
        if self._index is not None:
            quick.add_index(self._index)
        return quick

    def _make_reader(self, text: bytes) -> _TableReader | None:
        """Return the reader of tables with these names. None if there is none."""
        try:
            names = _names_of(text)
        except msgspec.DecodeError:
            return None
        used = {at: str(path[0]) for at, path in enumerate(self._paths) if path and str(path[0]) in names}
        is_plain = len(set(used.values())) == len(used) and all(len(self._paths[at]) == 1 for at in used)
        if self._types is None or not used or not is_plain or len(set(names)) < len(names):
            return None
        kinds = dict.fromkeys(names, Raw) | {name: self._types[at] for at, name in used.items()}
        members = [(f"f{place}", kind) for place, kind in enumerate(kinds.values())]
        row: Any = msgspec.defstruct("Row", members, array_like=True, forbid_unknown_fields=True, gc=False)
        extracts = {at: extract_of(f"f{names.index(name)}") for at, name in used.items()}
        return _TableReader(names, decoder_of(GenericAlias(list, row)), extracts)
