"""The operator of cumulative windows: they begin together and end one step after the other, as `windows.py` says of all windows.

A pane is a step. The window of number n ends with pane n, and holds the panes from the beginning of its *whole window* (of the
greatest length) to there. Nothing of a whole window leaves the state before it is over.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from strandline.processing.operators import windows
from strandline.processing.operators.keys import Codes, key_ranks, ranges
from strandline.processing.operators.windows import ClosedWindows, Closing, WindowOperator


class CumulativeOperator(WindowOperator):
    """One stage of cumulative windows."""

    def _oldest_pane_needed(self, closed_ms: int) -> int:
        return self._whole(self._panes.at(closed_ms))

    def _last_window_closed(self, closed_ms: int) -> int:
        return self._panes.at(closed_ms) - 1

    def _windows_of(self, panes: Codes) -> Iterator[tuple[Codes, Codes]]:
        ends = (panes // self._size_panes + 1) * self._size_panes
        for offset in reversed(range(self._size_panes)):  # the earliest panes of each window first
            places = np.flatnonzero(panes + offset < ends)
            yield places, panes[places] + offset

    def _open_until_ms(self, groups: pa.RecordBatch) -> int:
        """When the step ends in which the last row is: later windows hold the same."""
        return int(self._panes.starts_ms(groups.column(0).to_numpy()[-1:] + 1)[0])

    def _whole(self, pane: int) -> int:
        """The first pane of the whole window that holds this one."""
        return pane // self._size_panes * self._size_panes

    def _closed_windows(
        self, groups: pa.RecordBatch, keys: pa.RecordBatch, closing: Closing
    ) -> Iterator[ClosedWindows]:
        """The windows that become final, in pieces of bounded size, by window and key. One in which nothing is new is among them,
        if its whole window has something by then."""
        if closing.up_to_ms is None or not groups.num_rows:
            return
        panes, ranks, rows_max = groups.column(0).to_numpy(), key_ranks(keys), windows.merged_rows_max(groups)
        after = -1 if closing.after_ms is None else self._panes.at(closing.after_ms)
        last_closed = self._panes.at(closing.up_to_ms) - 1
        for whole in np.unique(panes // self._size_panes).tolist():
            first_pane = whole * self._size_panes
            first = int(panes[np.searchsorted(panes, first_pane)])
            low = first if closing.after_ms is None else max(first, after)
            high = min(first_pane + self._size_panes - 1, last_closed)
            begin = int(np.searchsorted(panes, first_pane))
            while low <= high:
                end, rows = low, 0
                while end <= high and (end == low or rows <= rows_max):
                    rows += int(np.searchsorted(panes, end, "right")) - begin
                    end += 1
                yield self._merge(groups, keys, ranks, begin, range(low, end))
                low = end

    def _merge(
        self, groups: pa.RecordBatch, keys: pa.RecordBatch, ranks: Codes, begin: int, numbers: range
    ) -> ClosedWindows:
        """The windows of these numbers, of one whole window whose rows begin at `begin`."""
        panes = groups.column(0).to_numpy()
        rows = np.arange(begin, int(np.searchsorted(panes, numbers.stop - 1, "right")))
        firsts = np.maximum(panes[rows], numbers.start)
        counts = numbers.stop - firsts
        # A row is in the windows from its own pane on. Rows stay in the order of their panes.
        window = ranges(firsts, counts)
        return self._merged(groups, keys, ranks, np.repeat(rows, counts), window)

    def _times(self, groups: pa.RecordBatch, rows: Codes) -> tuple[Codes, Codes]:
        panes = groups.column(0).to_numpy()[rows]
        return self._panes.starts_ms(panes // self._size_panes * self._size_panes), self._panes.starts_ms(panes + 1)
