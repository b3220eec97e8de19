"""The sketches of aggregates once more, as their authors describe them: what the audit compares with.

Shares the hash of values with the operators, and nothing else: HyperLogLog works on single hashes here, and a bin comes from a
double's mantissa and exponent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

_REGISTER_BITS, _HASH_BITS = 12, 63
_REGISTERS = 1 << _REGISTER_BITS
_ZEROS_MAX = _HASH_BITS - _REGISTER_BITS
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


def percentiles_of(bins: pa.Array) -> pa.Array:
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


def distinct_of(hashes: pa.Array) -> pa.Array:
    """The estimate of how many distinct values have these hashes. `hashes`: a list for each window, or null."""
    return pa.array([_estimate(one or ()) for one in hashes.to_pylist()], pa.int64())


def _estimate(hashes: Iterable[int]) -> int:
    """Flajolet and others (2007) for the registers, Ertl (arXiv:1702.01284, algorithm 6) for the estimate."""
    registers = [0] * _REGISTERS
    for number in hashes:
        rest, register = divmod(number, _REGISTERS)
        zeros = (rest & -rest).bit_length() - 1 if rest else _ZEROS_MAX
        registers[register] = max(registers[register], zeros + 1)
    counts = [0] * (_ZEROS_MAX + 2)
    for rank in registers:
        counts[rank] += 1
    if counts[0] == _REGISTERS:
        return 0
    total = _REGISTERS * _tau(1 - counts[-1] / _REGISTERS)
    for count in reversed(counts[1:-1]):
        total = 0.5 * (total + count)
    total += _REGISTERS * _sigma(counts[0] / _REGISTERS)
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
