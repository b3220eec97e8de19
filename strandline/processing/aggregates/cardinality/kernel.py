"""The approximate count of distinct values: HyperLogLog on columns. Pure.

The registers are those of Flajolet, Fusy, Gandouet and Meunier ("HyperLogLog: the analysis of a near-optimal cardinality
estimation algorithm", 2007). The estimate is that of Ertl ("New cardinality estimation algorithms for HyperLogLog sketches",
arXiv:1702.01284, algorithm 6). It needs no tables, and no switch between small and large counts.

A register is a maximum, and the estimate depends only on the registers. So it depends neither on the order of records nor on the
number of times that a value occurs.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.processing.aggregates.kernel import CallValues, Collecting, Partials, as_lists, flattened
from strandline.processing.columns.codes import Codes
from strandline.processing.columns.values import is_valid, numpy_of

REGISTER_BITS = 12
"""4,096 registers: the standard error is 1.04 / sqrt(4096) = 1.6 %. It determines results, so it isn't a setting."""
HASH_BITS = 63
REGISTERS = 1 << REGISTER_BITS
RANK_MAX = HASH_BITS - REGISTER_BITS + 1
"""Rank of a hash without a one bit after the bits of the register. The rank of any other hash is one more than the number of its
zeros after the last one bit."""
_RANK_BITS = 6
_ENTRY_BITS = REGISTER_BITS + _RANK_BITS
_GROUPS_AT_ONCE = 8_192

Doubles = npt.NDArray[np.float64]


class Cardinality(Collecting):
    """Keeps a list of the registers that aren't empty, as register * 64 + rank. The arguments are hashes."""

    partial_types = (pa.list_(pa.int32()),)

    def combine(
        self, partials: Partials, codes: Codes, argument: pa.Array | None, row_codes: Codes, groups: int
    ) -> Partials:
        entries, entry_codes = flattened(partials[0], codes)
        pairs = entry_codes << _ENTRY_BITS | numpy_of(entries)
        if argument is not None:
            there = is_valid(argument)
            new = _entries(numpy_of(argument.fill_null(0))[there])
            pairs = np.concatenate([pairs, row_codes[there] << _ENTRY_BITS | new])
        pairs = np.sort(numpy_of(pa.array(pairs).unique()))
        # The last pair of a register has the highest rank.
        is_last = np.ones(len(pairs), np.bool_)
        is_last[:-1] = pairs[1:] >> _RANK_BITS != pairs[:-1] >> _RANK_BITS
        pairs = pairs[is_last]
        kept = pa.array((pairs & ((1 << _ENTRY_BITS) - 1)).astype(np.int32))
        return [as_lists(kept, pairs >> _ENTRY_BITS, groups)]

    def finish(self, partials: Partials) -> CallValues:
        entries, codes = flattened(partials[0], np.arange(len(partials[0])))
        ranks = numpy_of(entries).astype(np.int64) & ((1 << _RANK_BITS) - 1)
        found = [np.zeros(0, np.int64)]
        for first in range(0, len(partials[0]), _GROUPS_AT_ONCE):
            low, high = np.searchsorted(codes, [first, first + _GROUPS_AT_ONCE])
            groups = min(_GROUPS_AT_ONCE, len(partials[0]) - first)
            places = (codes[low:high] - first) * (RANK_MAX + 1) + ranks[low:high]
            counts = np.bincount(places, minlength=groups * (RANK_MAX + 1)).reshape(groups, RANK_MAX + 1)
            found.append(_estimates(counts.astype(np.float64)))
        return CallValues(pa.array(np.concatenate(found)))


def _entries(hashes: Codes) -> Codes:
    """Return the register and the rank of each hash, as the state contains them."""
    rest = hashes >> REGISTER_BITS
    # The lowest one bit is a power of two, which a double represents exactly.
    _, ranks = np.frexp((rest & -rest).astype(np.float64))
    return (hashes & (REGISTERS - 1)) << _RANK_BITS | np.where(rest == 0, RANK_MAX, ranks)


def _estimates(counts: Doubles) -> Codes:
    """Return the estimate for each row of `counts`, the number of registers with each rank. Rank 0 is computed here: the
    registers without another rank are empty."""
    counts[:, 0] = REGISTERS - counts[:, 1:].sum(axis=1)
    total = REGISTERS * _tau(1 - counts[:, RANK_MAX] / REGISTERS)
    for rank in range(RANK_MAX - 1, 0, -1):
        total = 0.5 * (total + counts[:, rank])
    with np.errstate(divide="ignore"):
        total = total + REGISTERS * _sigma(counts[:, 0] / REGISTERS)
        estimates = REGISTERS * (REGISTERS / (2 * math.log(2))) / total
    return np.rint(estimates).astype(np.int64)


def _sigma(x: Doubles) -> Doubles:
    """Return x + x**2 * 1 + x**4 * 2 + x**8 * 4 ...; infinity for 1."""
    factor, total, power = np.ones_like(x), x.copy(), x.copy()
    total[x == 1] = np.inf
    for _ in range(64):
        power = power * power
        more = total + power * factor
        if np.array_equal(more, total):
            break
        total, factor = more, factor * 2
    return total


def _tau(x: Doubles) -> Doubles:
    """Return (1 - x - (1 - sqrt(x))**2 / 2 - (1 - sqrt(sqrt(x)))**2 / 4 ...) / 3; 0 for 0 and 1."""
    total, factor, root = 1 - x, np.ones_like(x), x.copy()
    for _ in range(64):
        root, factor = np.sqrt(root), factor * 0.5
        more = total - (1 - root) ** 2 * factor
        if np.array_equal(more, total):
            break
        total = more
    return np.where((x == 0) | (x == 1), 0.0, total / 3)
