"""Kernels: aggregate functions as folds over columns. Pure.

Partial results are columns, so they can be kept, merged, and finished.

Order contract:

- `fold` continues the partial result of a group with its new rows, in their order. Sums of doubles are strict left folds:
  `numpy.bincount` adds values from the first to the last. So the bits don't depend on how rows are divided into calls.
- `merge` combines several partial results of a group in the order of their rows.
- Integers and decimals are summed exactly, so they have no order.
- A value that can't be computed is marked in `CallValues.overflows`. It never becomes a silent null.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.errors import PermanentError
from strandline.processing.columns.codes import Codes, ranges
from strandline.processing.columns.values import numpy_of

_LISTED_MAX = (1 << 31) - 1
_SMALL_MAX = (1 << 32) - 1
_FOLD_ROWS_MAX = 1 << 20
"""Maximum number of integers below 2**32 whose sum a double holds exactly, with its 53 bits."""
Partials = list[pa.Array]
"""Columns of partial results, one row for each group."""


@dataclass(frozen=True)
class CallValues:
    """Values of an aggregate function, one for each group."""

    values: pa.Array
    overflows: npt.NDArray[np.bool_] | None = None
    """True for groups whose value is null because it can't be computed. None if all values could be computed."""
    reason: str = ""
    """Reason for the missing values, as a verb phrase about the function. Empty if the value doesn't fit its type."""


class Kernel(ABC):
    """The computation of one aggregate function."""

    partial_types: tuple[pa.DataType, ...]

    @abstractmethod
    def fold(
        self, state: Partials, state_codes: Codes, arguments: Sequence[pa.Array], row_codes: Codes, groups: int
    ) -> Partials:
        """Return the partial results of `groups` groups: the row of `state`, if the group has one, continued with its new rows.

        `arguments`: values for each row; empty if the function has no argument.
        """

    @abstractmethod
    def merge(self, partials: Partials, codes: Codes, groups: int) -> Partials:
        """Combine the partial results of each group, in the order of their rows.

        The only row of a group must stay the same to the last bit, because other groups determine whether `merge` is called.
        """

    @abstractmethod
    def finish(self, partials: Partials) -> CallValues:
        """Return the value of each row."""


class Mergeable(Kernel):
    """A function for which each input row is a partial result: folding is merging."""

    @abstractmethod
    def lift(self, arguments: Sequence[pa.Array], count: int) -> Partials:
        """Return each row as a partial result."""

    def fold(
        self, state: Partials, state_codes: Codes, arguments: Sequence[pa.Array], row_codes: Codes, groups: int
    ) -> Partials:
        lifted = self.lift(arguments, len(row_codes))
        joined = [pa.concat_arrays([old, new]) for old, new in zip(state, lifted, strict=True)]
        return self.merge(joined, np.concatenate([state_codes, row_codes]), groups)


class Collecting(Kernel):
    """A function whose partial results are bounded lists without an order.

    Their content depends on the values of a group, not on when they arrived. Groups without new values keep their lists
    unchanged, at the cost of a copy.
    """

    @abstractmethod
    def combine(
        self, partials: Partials, codes: Codes, argument: pa.Array | None, row_codes: Codes, groups: int
    ) -> Partials:
        """Return the partial results of groups with several partial results or new values.

        `argument`: values of the new rows; None if there are none.
        """

    def fold(
        self, state: Partials, state_codes: Codes, arguments: Sequence[pa.Array], row_codes: Codes, groups: int
    ) -> Partials:
        return self._combine_some(state, state_codes, arguments[0], row_codes, groups)

    def merge(self, partials: Partials, codes: Codes, groups: int) -> Partials:
        return self._combine_some(partials, codes, None, codes[:0], groups)

    def _combine_some(
        self, partials: Partials, codes: Codes, argument: pa.Array | None, row_codes: Codes, groups: int
    ) -> Partials:
        is_new = np.bincount(codes, minlength=groups) != 1
        is_new[row_codes] = True
        among = is_new[codes]
        old, changed = np.flatnonzero(~among), np.flatnonzero(among)
        numbers = np.cumsum(is_new) - 1
        combined = self.combine(
            [column.take(pa.array(changed)) for column in partials],
            numbers[codes[changed]],
            argument,
            numbers[row_codes],
            int(is_new.sum()),
        )
        if not len(old):
            return combined
        places = np.empty(len(is_new), np.int64)
        places[codes[old]] = old
        places[is_new] = len(codes) + np.arange(len(combined[0]))
        taken = pa.array(places)
        return [pa.concat_arrays([one, more]).take(taken) for one, more in zip(partials, combined, strict=True)]


def flattened(lists: pa.Array, codes: Codes) -> tuple[pa.Array, Codes]:
    """Return all values of the lists, and the code of its list for each value. A null is an empty list."""
    lengths = numpy_of(pc.list_value_length(lists).fill_null(0))
    return lists.flatten(), np.repeat(codes, lengths)


def as_lists(values: pa.Array, codes: Codes, groups: int, are_null: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return one list for each group. `codes` ascend. A group in `are_null` must have no values.

    Raises PermanentError if a column can't contain all values.
    """
    if len(values) > _LISTED_MAX:
        raise PermanentError(
            f"the aggregates of a window keep {len(values):,} values of one bucket of keys. An Arrow column holds at most "
            f"{_LISTED_MAX:,}; use approx_count_distinct and approx_percentile, shorter windows, or more cores (buckets)"
        )
    offsets = np.zeros(groups + 1, np.int32)
    np.cumsum(np.bincount(codes, minlength=groups), out=offsets[1:])
    mask = None if are_null is None or not are_null.any() else pa.array(are_null)
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=mask)


def by_codes(codes: Codes) -> Codes:
    """Return the indices of rows, sorted by code. Rows with one code keep their order."""
    small = len(codes) and int(codes.max()) < 1 << 16
    return np.argsort(codes.astype(np.uint16) if small else codes, kind="stable")


def whole_sums(values: Codes, codes: Codes, groups: int) -> Codes:
    """Return the exact sum of integers for each group. If doubles hold all sums, they are used: that is several times faster."""
    if len(values) <= _FOLD_ROWS_MAX and (
        not len(values) or (values.max() <= _SMALL_MAX and values.min() >= -(1 << 31))
    ):
        return np.bincount(codes, weights=values, minlength=groups).astype(np.int64)
    sums = np.zeros(groups, np.int64)
    np.add.at(sums, codes, values)
    return sums


def binned(codes: Codes, bins: Codes, tallies: Codes, groups: int, bins_max: int) -> Partials:
    """Return the bins of each group in ascending order, each once, and the number of values in each.

    If there are more than `bins_max`, the lowest are counted as one."""
    pairs, places = np.unique(codes << 32 | (bins.astype(np.int64) + (1 << 31)), return_inverse=True)
    sums = np.zeros(len(pairs), np.int64)
    np.add.at(sums, places, tallies)
    of_group = pairs >> 32
    lengths = np.bincount(of_group, minlength=groups)
    from_end = np.cumsum(lengths)[of_group] - 1 - np.arange(len(pairs))
    if len(from_end) and int(from_end.max()) >= bins_max:
        target = np.arange(len(pairs)) + np.maximum(0, from_end - (bins_max - 1))
        lumped = np.zeros(len(pairs), np.int64)
        np.add.at(lumped, target, sums)
        kept = from_end < bins_max
        pairs, sums, of_group = pairs[kept], lumped[kept], of_group[kept]
    numbers = ((pairs & ((1 << 32) - 1)) - (1 << 31)).astype(np.int32)
    return [as_lists(pa.array(numbers), of_group, groups), as_lists(pa.array(sums), of_group, groups)]


def first_of_each(codes: Codes, count: int) -> Codes:
    """Return the indices of the first `count` rows of each code. `codes` ascend."""
    lengths = np.bincount(codes) if len(codes) else np.zeros(0, np.int64)
    places = ranges(np.zeros(len(lengths), np.int64), lengths)
    return np.flatnonzero(places < count)
