"""The sketches of aggregates once more, as their authors describe them: what the audit compares with.

Shares the hash of values with the operators, and nothing else: registers are sorted by DuckDB, and a bin comes from a double's
mantissa and exponent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

RANKS = 52
"""Of a hash of 63 bits 12 choose the register, and the rest has a rank: one more than the zeros behind its last one bit."""
_REGISTERS = 1 << 12
_BINS_AN_OCTAVE = 64
_EXPONENT_LEAST = -1021
"""Of a normal double, as `frexp` counts."""
_INFINITE, _NO_NUMBER = 200_000, 200_001
"""The bins of what is no finite number: beyond all others."""


def bins_of(values: pa.Array) -> pa.Array:
    """The bin of each double: octaves of `_BINS_AN_OCTAVE` equal bins, from 1 on for the least number above 0, below 0 the same
    with a minus. Null for a null."""
    doubles = values.fill_null(0.0).to_numpy(zero_copy_only=False)
    size = np.abs(np.where(np.isfinite(doubles), doubles, 0.0))
    mantissas, exponents = np.frexp(size)
    octave = exponents.astype(np.int64) - _EXPONENT_LEAST
    normal = (octave + 1) * _BINS_AN_OCTAVE + np.floor((mantissas - 0.5) * 2 * _BINS_AN_OCTAVE).astype(np.int64)
    # Numbers below the normal ones are as far apart as those of the least octave.
    small = np.floor(np.ldexp(np.where(octave < 0, size, 0.0), 1022) * _BINS_AN_OCTAVE).astype(np.int64)
    bins = np.where(size == 0, 0, np.where(octave < 0, small, normal) + 1)
    bins = np.where(np.isinf(doubles), _INFINITE, bins) * np.where(doubles < 0, -1, 1)
    return pa.array(
        np.where(np.isnan(doubles), _NO_NUMBER, bins), mask=~values.is_valid().to_numpy(zero_copy_only=False)
    )


def middles_of(bins: pa.Array) -> pa.Array:
    """The middle of each bin."""
    return pa.array([None if one is None else _middle(int(one)) for one in bins.to_pylist()], pa.float64())


def _middle(number: int) -> float:
    if number < 0:
        return -_middle(-number)
    if number in (0, _INFINITE, _NO_NUMBER):
        return {0: 0.0, _INFINITE: math.inf, _NO_NUMBER: math.nan}[number]
    octave, part = divmod(number - 1, _BINS_AN_OCTAVE)
    if octave == 0:
        return math.ldexp((part + 0.5) / _BINS_AN_OCTAVE, _EXPONENT_LEAST - 1)
    return math.ldexp(1 + (part + 0.5) / _BINS_AN_OCTAVE, octave - 1 + _EXPONENT_LEAST - 1)


def percentiles_of(counts: pa.Array, low: pa.Array, high: pa.Array, share: float) -> pa.Array:
    """Between the two values around the place of the percentile, in proportion, as Spark does it."""
    found = []
    for count, below, above in zip(counts.to_pylist(), low.to_pylist(), high.to_pylist(), strict=True):
        place = (count - 1) * share
        if below is None or below == above or place == math.floor(place):
            found.append(below)
        else:
            found.append((math.ceil(place) - place) * below + (place - math.floor(place)) * above)
    return pa.array(found, pa.float64())


def distinct_of(histograms: pa.Array) -> pa.Array:
    """The estimate of how many distinct values there are. `histograms`: how many registers have each rank, for each window."""
    return pa.array([_estimate(dict(one or ())) for one in histograms.to_pylist()], pa.int64())


def _estimate(counts: Mapping[int, int]) -> int:
    """Ertl (arXiv:1702.01284, algorithm 6)."""
    empty = _REGISTERS - sum(counts.values())
    if empty == _REGISTERS:
        return 0
    total = _REGISTERS * _tau(1 - counts.get(RANKS, 0) / _REGISTERS)
    for rank in range(RANKS - 1, 0, -1):
        total = 0.5 * (total + counts.get(rank, 0))
    total += _REGISTERS * _sigma(empty / _REGISTERS)
    return round(_REGISTERS * (_REGISTERS / (2 * math.log(2))) / total)


def _sigma(x: float) -> float:
    total, factor, before = x, 1.0, -1.0
    while total != before:
        x, before = x * x, total
        total, factor = total + x * factor, factor * 2
    return total


def _tau(x: float) -> float:
    if x in (0.0, 1.0):
        return 0.0
    total, factor, before = 1 - x, 1.0, -1.0
    while total != before:
        x, before, factor = math.sqrt(x), total, factor * 0.5
        total -= (1 - x) ** 2 * factor
    return total / 3
