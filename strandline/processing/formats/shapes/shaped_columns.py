"""Rows of plain records of a shape as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import UNSET, UnsetType

from strandline.processing.formats.columns.exploded_columns import ElementColumns
from strandline.processing.formats.columns.read_columns import Column
from strandline.processing.formats.record_fields import RecordField
from strandline.processing.formats.shapes.plain_blocks import PlainBlock, PlainBlocks
from strandline.processing.formats.shapes.shape import ShapeConfig
from strandline.processing.formats.shapes.shaped_rows import clock_of, paths_of
from strandline.processing.formats.shapes.table import SHAPES
from strandline.processing.formats.shapes.typed_column import typed_column


class ShapedColumns:
    """Reads the records of one stream as columns, a row for each row of the shape."""

    def __init__(self, fields: Sequence[RecordField], config: ShapeConfig, bytes_max: int) -> None:
        """`bytes_max`: records whose rows can have more bytes together are read one by one."""
        self._all = list(fields)
        self._clock = clock_of(fields, config)
        paths = paths_of(fields, config)
        self._plain = PlainBlocks(fields, paths, SHAPES[config.kind](config, fields, paths.paths), bytes_max)

    def columns(self, values: Sequence[bytes | None]) -> ElementColumns | None:
        """Return the columns of the rows of plain records. None if a field can't be read in this way."""
        if not self._plain.can_read:
            return None
        counts = np.zeros(len(values), np.int64)
        fits = np.zeros(len(values), np.bool_)
        blocks = list(self._plain.blocks(values))
        for block in blocks:
            fits[block.places.start : block.places.stop] = True
            counts[block.places.start : block.places.stop] = block.own.counts
        if not blocks:
            return None
        record_of = np.repeat(np.arange(np.count_nonzero(fits)), counts[fits])
        made: dict[str, Column] = {}
        good = np.ones(len(record_of), np.bool_)
        for at, field in enumerate(self._all):
            found = self._column_of(at, field, blocks, record_of)
            if found is None:
                continue
            made[field.name], are_good = found
            good &= are_good
            if self._clock is not None and self._clock.at == at:
                starts = np.cumsum(counts[fits]) - counts[fits]
                number = np.arange(len(record_of)) - starts[record_of]
                made[field.name] = replace(
                    made[field.name], values=made[field.name].values + number * self._clock.step_us
                )
        if not good.all():
            return self._without(fits, counts, record_of[~good], made, record_of)
        return ElementColumns(made, fits, counts)

    def _column_of(
        self, at: int, field: RecordField, blocks: Sequence[PlainBlock], record_of: Any
    ) -> tuple[Column, Any] | None:
        """Return the column of a field, and a mask of the rows whose value it can hold. None if no row has the field."""
        own: list[Any] = []
        for block in blocks:
            own += block.own.columns.get(at) or [UNSET] * sum(block.own.counts)
        kinds = set(map(type, own))
        if kinds and UnsetType not in kinds:
            return typed_column(field, own, kinds)
        shared = [value for block in blocks for value in block.shared.get(at, ())]
        if kinds > {UnsetType}:
            if shared:
                spread = [shared[record] for record in record_of.tolist()]
                own = [o if o is not UNSET else b for o, b in zip(own, spread, strict=True)]
            return typed_column(field, own, set(map(type, own)))
        kinds = set(map(type, shared))
        if not own or kinds <= {UnsetType}:
            return None
        column, good = typed_column(field, shared, kinds)
        return column.of(record_of), good[record_of]

    def _without(
        self, fits: Any, counts: Any, wrong: Any, made: Mapping[str, Column], record_of: Any
    ) -> ElementColumns:
        """Return the columns without the rows of records with a wrong value."""
        places = np.flatnonzero(fits)
        fits[places[np.unique(wrong)]] = False
        keep = np.flatnonzero(fits[places[record_of]])
        return ElementColumns({name: one.of(keep) for name, one in made.items()}, fits, np.where(fits, counts, 0))
