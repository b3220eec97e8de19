"""Hashes of several columns together, which identify values in a state. Pure.

A state stores them, so they must never change.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from strandline.processing.columns.codes import Codes

SEEDS = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)
"""Seeds of two hashes of 63 bits, which together identify values. Among a thousand million values in the state, two would collide
with a probability of 1 : 10**20."""
_FACTOR = np.uint64(0x9FB21C651E98DF25)
_POSITIVE = np.uint64((1 << 63) - 1)
Mixed = npt.NDArray[np.uint64]


def mixed(state: Mixed, values: Codes) -> Mixed:
    """Return the hash of each row after one more value. `state`: hash of its values before."""
    found = (state ^ values.view(np.uint64)) * _FACTOR
    return found ^ (found >> np.uint64(29))


def positive(state: Mixed) -> Codes:
    """Return 63 bits of each hash, as a number that isn't negative."""
    return (state & _POSITIVE).view(np.int64)
