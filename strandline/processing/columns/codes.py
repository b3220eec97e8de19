"""Numbers of groups and of rows, as numpy arrays. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int64]
"""Group of each row as a number from 0, or indices of rows."""


def ranges(firsts: Codes, counts: Codes) -> Codes:
    """Return the numbers of several ranges, one range after the other. Each begins at its value of `firsts` and has as many
    numbers as its value of `counts`."""
    numbers: Codes = np.arange(counts.sum()) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
    return numbers
