"""The cells of many lines, found by their separators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strandline.processing.formats.columns.byte_walk import Int64Array
from strandline.processing.formats.columns.cell_walk import CellScanner, is_any


def cut(
    cells: CellScanner, separators: bytes, count: int, in_order: Sequence[bytes] | None = None
) -> list[Int64Array] | None:
    """Return the beginning of each cell, and finally the position after the line. Mark lines with another number of cells, or
    with other separators.

    None if most lines have another number of cells. Then the lines are read one by one, because each cell would cost a scan of
    all lines.
    """
    places = np.flatnonzero(is_any(cells.data, separators))
    first, found = cells.first_and_count(places, count - 1)
    cells.walk.fits &= found == count - 1
    if not cells.walk.fits.any() or 2 * np.count_nonzero(cells.walk.fits) < len(cells.walk):
        return None
    starts = [cells.starts]
    for at in range(count - 1):
        here = places[np.minimum(first + at, len(places) - 1)]
        if in_order is not None:
            cells.walk.fits &= cells.data[here] == in_order[at][0]
        starts.append(here + 1)
    return [*starts, cells.ends + 1]
