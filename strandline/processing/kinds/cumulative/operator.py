"""The operator of cumulative windows, which begin together and end one step after another. See `operators/windows.py`.

A pane is a step. The *whole window* is the longest one. Window n ends with pane n, and contains the panes from the beginning of
its whole window to pane n. The state keeps all panes of a whole window until it is over.
"""

from __future__ import annotations

import pyarrow as pa

from strandline.processing.columns.codes import Codes
from strandline.processing.operators.windows import WindowOperator


class CumulativeOperator(WindowOperator):
    """One stage of cumulative windows."""

    def _last_window_closed(self, closed_ms: int) -> int:
        return self._panes.at(closed_ms) - 1

    def _borders(self, windows: Codes) -> tuple[Codes, Codes]:
        return self._whole(windows)[0], windows + 1

    def _first_and_last_window(self, panes: Codes) -> tuple[Codes, Codes]:
        """Return the first and the last window that contain each of these panes: the window that ends with the pane, and the
        whole window. So a window without new rows is included."""
        return panes, self._whole(panes)[1] - 1

    def _whole(self, panes: Codes) -> tuple[Codes, Codes]:
        """Return the first pane of the whole window that contains each pane, and the first pane after it."""
        first = panes // self._size_panes * self._size_panes
        return first, first + self._size_panes

    def _open_until_ms(self, groups: pa.RecordBatch) -> int:
        """Return the end of the step that contains the last row. Later windows contain the same rows."""
        return int(self._panes.starts_ms(groups.column(0).to_numpy()[-1:] + 1)[0])


operator_of = CumulativeOperator
