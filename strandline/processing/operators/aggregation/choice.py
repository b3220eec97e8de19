"""Aggregates that choose one row of a window and give a value of it: `first`, `last`, `min_by` and `max_by`. Pure.

Which row is chosen depends on what the rows hold and where they stand, not on how they came in slices:
- `first(x)` and `last(x)`: of the rows in which x is not null the earliest, or latest, by event time; of several at one time the
  first, or last, in their order.
- `min_by(x, y)` and `max_by(x, y)`: of the rows in which y is not null the one with the least, or greatest, y; of several the
  earliest by event time, and of these the first in their order.

The order is that of the operator: partitions by their number, and within one by offset.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.columns.codes import Codes
from strandline.processing.columns.values import is_valid, ranks_of
from strandline.processing.operators.aggregation.aggregate import CallValues, Mergeable, Partials

_LEAST, _GREATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class Chosen(Mergeable):
    """One of the four. Its partial result is a row: what it is chosen by, and the value; null in the first column: no row yet."""

    def __init__(self, function: str, argument_types: Sequence[str]) -> None:
        """`argument_types`: of x, of y where the function has one, and of the event time."""
        value, *by = map(arrow_type, argument_types)
        self.partial_types = (*by, value)
        self._is_by_time = len(by) == 1
        self._is_last = function == "last"
        self._are_greatest = [self._is_last] if self._is_by_time else [function == "max_by", False]

    def lift(self, arguments: Sequence[pa.Array], count: int) -> Partials:
        values, *by = arguments
        if self._is_by_time:
            by = [pc.if_else(values.is_valid(), by[0], pa.scalar(None, by[0].type))]
        return [*by, values]

    def merge(self, partials: Partials, codes: Codes, groups: int) -> Partials:
        places = np.flatnonzero(is_valid(partials[0]))
        codes = codes[places]
        for column, is_greatest in zip(partials, self._are_greatest, strict=False):
            ranks = ranks_of(column.take(pa.array(places)))
            best = np.full(groups, _LEAST if is_greatest else _GREATEST)
            (np.maximum if is_greatest else np.minimum).at(best, codes, ranks)
            kept = ranks == best[codes]
            places, codes = places[kept], codes[kept]
        chosen = np.full(groups, -1, np.int64)
        # Of several assignments to one place the last one counts.
        if self._is_last:
            chosen[codes] = places
        else:
            chosen[codes[::-1]] = places[::-1]
        taken = pa.array(chosen, mask=chosen < 0)
        return [column.take(taken) for column in partials]

    def finish(self, partials: Partials) -> CallValues:
        return CallValues(partials[-1])
