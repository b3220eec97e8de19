"""Percentiles: exact from the values themselves, or approximate from counts of bins. Pure.

An approximate percentile is a DDSketch (Masson, Rim and Lee, "DDSketch: a fast and fully-mergeable quantile sketch with
relative-error guarantees", 2019) with the bins of its linearly interpolated mapping. Each power of two is cut into
`BINS_AN_OCTAVE` equal bins. So the first bits of a double are its bin: no logarithm is needed, and all machines compute the same
bin. A value is within half a bin of the middle of its bin: 0.8 %. Bins are counts, so the result doesn't depend on the order of
records.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.processing.aggregates.kernel import (
    CallValues,
    Collecting,
    Partials,
    as_lists,
    binned,
    by_codes,
    flattened,
)
from strandline.processing.columns.codes import Codes
from strandline.processing.columns.values import is_valid, numpy_of, ordered_bits

EXACT_MAX = 10_000
"""Maximum number of values of a window and key from which a percentile is exact."""
BINS_MAX = 2_048
"""Maximum number of bins. The bins with the largest values are kept, and lower values are counted in the lowest of them. All
three numbers determine results, so they aren't settings."""
BINS_AN_OCTAVE = 64
_BIN_SHIFT = 52 - 6
Doubles = npt.NDArray[np.float64]


class Percentile(Collecting):
    """One percentile. Percentiles of one argument share their partial results, and differ only at the end.

    Columns of partial results:

    - the number of values;
    - the values, without an order; empty above `EXACT_MAX` values. An approximate percentile doesn't have this column;
    - the bins of the values, in ascending order; empty while the values themselves are kept;
    - the number of values in each bin.

    Whether values or bins are kept depends only on the number of all values, because a part with too many values makes
    the whole window have too many.
    """

    def __init__(self, share: float, *, is_exact: bool) -> None:
        self._share = share
        self._is_exact = is_exact
        bins = (pa.list_(pa.int32()), pa.list_(pa.int64()))
        self.partial_types = (pa.int64(), pa.list_(pa.float64()), *bins) if is_exact else (pa.int64(), *bins)

    def combine(
        self, partials: Partials, codes: Codes, argument: pa.Array | None, row_codes: Codes, groups: int
    ) -> Partials:
        counts, *lists, bins, tallies = partials
        totals = np.zeros(groups, np.int64)
        np.add.at(totals, codes, numpy_of(counts))
        values, value_codes = np.zeros(0), np.zeros(0, np.int64)
        if lists:
            found, value_codes = flattened(lists[0], codes)
            values = numpy_of(found)
        if argument is not None:
            there = is_valid(argument)
            values = np.concatenate([values, numpy_of(argument.fill_null(0.0))[there]])
            value_codes = np.concatenate([value_codes, row_codes[there]])
            totals += np.bincount(row_codes[there], minlength=groups)
        is_over = totals > EXACT_MAX if self._is_exact else np.ones(groups, np.bool_)
        to_bins = is_over[value_codes]
        old_bins, bin_codes = flattened(bins, codes)
        old_tallies, _ = flattened(tallies, codes)
        new_bins = binned(
            np.concatenate([bin_codes, value_codes[to_bins]]),
            np.concatenate([numpy_of(old_bins), bins_of(values[to_bins])]),
            np.concatenate([numpy_of(old_tallies), np.ones(int(to_bins.sum()), np.int64)]),
            groups,
            BINS_MAX,
        )
        if not lists:
            return [pa.array(totals), *new_bins]
        values, value_codes = values[~to_bins], value_codes[~to_bins]
        order = by_codes(value_codes)
        return [pa.array(totals), as_lists(pa.array(values[order]), value_codes[order], groups), *new_bins]

    def finish(self, partials: Partials) -> CallValues:
        counts, *lists, bins, tallies = partials
        totals = numpy_of(counts)
        found = self._of_bins(bins, tallies, totals)
        if lists:
            exact = totals <= EXACT_MAX
            found[exact] = self._of_values(lists[0], totals)[exact]
        return CallValues(pa.array(found, mask=totals == 0))

    def _of_values(self, lists: pa.Array, totals: Codes) -> Doubles:
        """Interpolate between the two values around the position, as Spark's `percentile`. Undefined for an empty group."""
        values, codes = flattened(lists, np.arange(len(lists)))
        doubles: Doubles = numpy_of(values)
        if not len(doubles):
            return np.zeros(len(lists))
        ordered = doubles[np.lexsort((doubles, codes))]
        lengths = np.bincount(codes, minlength=len(lists))
        firsts = np.minimum(np.cumsum(lengths) - lengths, len(ordered) - 1)
        place = (np.maximum(lengths, 1) - 1) * self._share
        below, above = np.floor(place), np.ceil(place)
        low = ordered[firsts + below.astype(np.int64)]
        high = ordered[np.minimum(firsts + above.astype(np.int64), len(ordered) - 1)]
        with np.errstate(all="ignore"):
            between = (above - place) * low + (place - below) * high
        found: Doubles = np.where((below == above) | (low == high), low, between)
        return found

    def _of_bins(self, bins: pa.Array, tallies: pa.Array, totals: Codes) -> Doubles:
        """Return the middle of the bin that contains the value at the rank. Undefined for a group without bins."""
        found, codes = flattened(bins, np.arange(len(bins)))
        counted, _ = flattened(tallies, np.arange(len(bins)))
        if not len(found):
            return np.zeros(len(bins))
        reached = np.cumsum(numpy_of(counted))
        of_group = np.bincount(codes, weights=None, minlength=len(bins))
        firsts = np.cumsum(of_group) - of_group
        before = np.concatenate([[0], reached])[firsts]
        # Written in this form, a product that is slightly above an integer counts as that integer.
        rank = np.maximum(totals - np.floor(totals - totals * self._share).astype(np.int64), 1)
        at = np.searchsorted(reached, before + rank, side="left")
        return middles_of(numpy_of(found)[np.minimum(at, len(found) - 1)])


def bins_of(values: Doubles) -> Codes:
    """Return the bin of each value. Bins ascend with the values. 0 for zero; NaN is in the highest bin."""
    bits = ordered_bits(values)
    # A negative value has the negated bin of its absolute value. Zero has its own bin, so the others begin at 1.
    bins = (np.abs(bits) >> _BIN_SHIFT) + 1
    return np.where(bits == 0, 0, np.where(bits < 0, -bins, bins)).astype(np.int32)


def middles_of(bins: Codes) -> Doubles:
    """Return the middle of each bin. Infinity and NaN for the bins of these values."""
    numbers = np.abs(bins.astype(np.int64)) - 1
    bits = np.where(bins == 0, 0, (numbers << _BIN_SHIFT) | (1 << (_BIN_SHIFT - 1)))
    infinite = np.int64(0x7FF) << np.int64(52)
    bits = np.where(numbers << _BIN_SHIFT == infinite, infinite, bits)
    middles = bits.view(np.float64)
    return np.where(bins < 0, -middles, middles)
