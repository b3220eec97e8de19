"""Percentiles again, as the authors of the sketch describe it: the values with which the audit compares results.

Shares no code with the kernel: a bin is computed from the mantissa and the exponent of a double.
"""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from strandline.processing.aggregates.contract import AuditQuery, AuditRows

_BINS_AN_OCTAVE = 64
_EXPONENT_LEAST = -1021
"""Exponent of the smallest normal double, as `frexp` counts."""
_INFINITE, _NO_NUMBER = 200_000, 200_001
"""Bins of values that aren't finite. They are beyond all others."""


def bin_name(argument: str) -> str:
    """Return the column that contains the bins of an argument."""
    return f"bin_of_{argument}"


def percentile_query(argument: str, share: float, rows: AuditRows, bins_max: int) -> AuditQuery:
    """Return the query for the number of values, the values around the percentile by their ranks, and the bin at the
    rank, or the lowest bin that is kept.
    """
    number = bin_name(argument)
    rank, count, depth = f"rank_of_{argument}", f"count_of_{argument}", f"depth_of_{argument}"
    part = f"{share!r}::DOUBLE"
    place = f"(({count} - 1) * {part})"
    at_rank = f"greatest(1, {count} - floor({count} - {count} * {part}))"
    own = f"PARTITION BY {rows.group}"
    return AuditQuery(
        (
            f"count({argument})",
            f"max({argument}) FILTER (WHERE {rank} = floor({place}) + 1)",
            f"max({argument}) FILTER (WHERE {rank} = ceil({place}) + 1)",
            f"max({number}) FILTER (WHERE {rank} = {at_rank} OR {depth} = {bins_max})",
        ),
        (
            f"row_number() OVER ({own} ORDER BY {argument} ASC NULLS LAST) AS {rank}",
            f"count({argument}) OVER ({own}) AS {count}",
            f"dense_rank() OVER ({own} ORDER BY {number} DESC NULLS LAST) AS {depth}",
        ),
    )


def bins_of(values: pa.Array) -> pa.Array:
    """Return the bin of each double: octaves of `_BINS_AN_OCTAVE` equal bins, numbered from 1 for the least number above 0.

    Numbers below 0 have negative bins. Null for a null."""
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
    """Return the middle of each bin."""
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
    """Return the percentile between the two values around it, in proportion, as Spark does."""
    found = []
    for count, below, above in zip(counts.to_pylist(), low.to_pylist(), high.to_pylist(), strict=True):
        place = (count - 1) * share
        if below is None or below == above or place == math.floor(place):
            found.append(below)
        else:
            found.append((math.ceil(place) - place) * below + (place - math.floor(place)) * above)
    return pa.array(found, pa.float64())
