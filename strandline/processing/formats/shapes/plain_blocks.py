"""Reads records of a shape that are plain: many records by one call, or none if one of them needs a closer check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET

from strandline.core.json_paths import JsonPath
from strandline.processing.formats.json_rows import FastReader, FieldPaths, can_be_read_fast, resolve
from strandline.processing.formats.record_fields import (
    NESTING_MAX,
    RecordField,
    is_utf8,
    may_nest_deep,
    top_level_keys,
)
from strandline.processing.formats.shapes.shape import QuickRows, Shape
from strandline.processing.formats.shapes.typed_elements import can_be_typed, decoder_of, typed

_BLOCK_RECORDS = 64
"""Number of records that are read together. If one of them isn't plain, they are read again in smaller blocks."""

Bytes = npt.NDArray[np.uint8]


class PlainBlock(NamedTuple):
    """Some plain records that follow each other."""

    places: range
    """Indices of the records."""
    own: QuickRows
    shared: Mapping[int, Sequence[Any]]
    """Index of a path -> the value outside of the rows in each record. UNSET if the record has none."""


class PlainBlocks:
    """Reads the records of one stream. A record is plain if all its values are as declared, and no rule needs a closer check."""

    def __init__(self, fields: Sequence[RecordField], paths: FieldPaths, shape: Shape, bytes_max: int) -> None:
        """`bytes_max`: maximum size of the rows of a plain record together."""
        self._fields = paths
        self._shape = shape
        self._bytes_max = bytes_max
        self._is_whole = () in shape.containers
        """True if a record is the container of its rows."""
        self._containers: list[JsonPath] = [] if self._is_whole else list(shape.containers)
        self._shared = [at for at in range(len(paths.paths)) if at not in shape.own_only]
        """Indices of the paths whose values can be outside of the rows."""
        read = [*self._containers, *(paths.paths[at] for at in self._shared)]
        types = [] if self._is_whole else list(shape.quick_types)
        types += [typed(fields[at]) for at in self._shared]
        self.can_read = bool(shape.quick_types) and all(map(can_be_typed, fields)) and can_be_read_fast(read)
        """False if no record can be read in this way."""
        if not self.can_read:
            return
        self._read = FastReader(read, types) if read else None
        """Reads the containers, and the values outside of them. None if there are only rows."""
        self._read_whole = decoder_of(shape.quick_types[0]) if self._is_whole else None
        are_typed = frozenset[int]() if self._read is None else self._read.typed
        if not are_typed >= set(range(len(self._containers))):
            self.can_read = False  # a field reads a value that contains the rows
        self._decoders = [
            None if number in are_typed else decoder_of(types[number])
            for number in range(len(self._containers), len(read))
        ]
        """Decoder of each value outside of the rows. None if the value is typed already."""

    def blocks(self, values: Sequence[bytes | None]) -> Iterator[PlainBlock]:
        """Yield the plain records in their order."""
        for first in range(0, len(values), _BLOCK_RECORDS):
            yield from self._halves(values, range(first, min(first + _BLOCK_RECORDS, len(values))))

    def _halves(self, values: Sequence[bytes | None], places: range) -> Iterator[PlainBlock]:
        block = self._block(values, places)
        if block is not None:
            yield block
        elif len(places) > 1:
            middle = (places.start + places.stop) // 2
            yield from self._halves(values, range(places.start, middle))
            yield from self._halves(values, range(middle, places.stop))

    def _block(self, values: Sequence[bytes | None], places: range) -> PlainBlock | None:
        """Return the rows of these records, if all of them are plain."""
        records = [value for value in values[places.start : places.stop] if value is not None]
        if len(records) < len(places):
            return None
        text = b"".join(records)
        if b"\\" in text or not is_utf8(text):
            return None
        read = [] if self._read is None else list(map(self._read, records))
        if None in read:
            return None
        columns: list[Sequence[Any]] = list(zip(*read, strict=True))
        opened = columns[: len(self._containers)]
        if any(UNSET in containers for containers in opened):
            return None
        try:
            if self._read_whole is not None:
                opened = [list(map(self._read_whole, records))]
            rows = self._shape.quick_rows_of(opened)
            shared = [
                column if decode is None else [UNSET if raw is UNSET else decode(raw) for raw in column]
                for decode, column in zip(self._decoders, columns[len(self._containers) :], strict=True)
            ]
        except (msgspec.DecodeError, RecursionError):
            return None
        if rows is None or self._have_too_many_bytes(records, rows.counts):
            return None
        data = np.frombuffer(text, np.uint8)
        if self._nest_deep(records, data, rows) or self._repeat_names(records, data, columns, rows):
            return None
        return PlainBlock(places, rows, dict(zip(self._shared, shared, strict=True)))

    def _have_too_many_bytes(self, records: Sequence[bytes], counts: Sequence[int]) -> bool:
        """Return True if the rows of a record, each with the record's other members, can have more than the maximum size."""
        if max(counts) * max(map(len, records)) <= self._bytes_max:
            return False
        sizes = [len(one) - sum(len(resolve(one, path) or b"") for path in self._containers) for one in records]
        return any(count * size > self._bytes_max for count, size in zip(counts, sizes, strict=True))

    def _nest_deep(self, records: Sequence[bytes], data: Bytes, rows: QuickRows) -> bool:
        """Return True if a record is nested too deep. `data`: bytes of all records."""
        of_record = 1 + len(self._containers) + (0 if self._read is None else self._read.objects)
        count = np.count_nonzero(data == ord("{")) + np.count_nonzero(data == ord("["))
        others = int(count) - rows.brackets - of_record * len(records)
        # No value is nested in more than one row, so the other rows of the known brackets don't count.
        return others + of_record + 1 > NESTING_MAX and any(may_nest_deep(one) and _nests_deep(one) for one in records)

    def _repeat_names(
        self, records: Sequence[bytes], data: Bytes, columns: Sequence[Sequence[Any]], rows: QuickRows
    ) -> bool:
        """Return True if an object that is read by names has a name twice. `columns`: values at the paths of the records."""
        outside = Counter[str]() if self._read is None else self._read.names_in(columns)
        count = rows.names.total() + sum(rows.sizes or ())
        if rows.sizes is None or not self._is_whole:  # otherwise, the sizes include the other members
            count += outside.total()
        if _count_members(data) == count:
            return False  # all members were read, so each has a name of its own
        known = rows.names + outside + (rows.strings or Counter())
        if not self._fields.have_names_once(records, data.tobytes(), known):
            return True
        (path,) = self._shape.containers if rows.sizes else ((),)
        texts = [resolve(one, path) or b"" for one in records] if rows.sizes else []
        return any(len(top_level_keys(text)) != size for text, size in zip(texts, rows.sizes or (), strict=True))


def _count_members(data: Bytes) -> int:
    """Return the number of members of all objects in some JSON without escapes, or a higher number."""
    is_colon = data[1:] == ord(":")
    before = data[:-1]
    return int(np.count_nonzero(is_colon & ((before == ord('"')) | (before <= ord(" ")))))


def _nests_deep(value: bytes) -> bool:
    """Return True if a JSON text without escapes is nested deeper than NESTING_MAX."""
    data = np.frombuffer(value, np.uint8)
    is_outside = np.cumsum(data == ord('"'), dtype=np.uint8) % 2 == 0
    steps = np.zeros(len(data), np.int32)
    steps[is_outside & ((data == ord("{")) | (data == ord("[")))] = 1
    steps[is_outside & ((data == ord("}")) | (data == ord("]")))] = -1
    return bool(steps.cumsum().max() > NESTING_MAX)
