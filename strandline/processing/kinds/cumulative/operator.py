"""The operator of cumulative windows: they begin together and end one step after the other, as `windows.py` says of all windows.

A pane is a step. The window of number n ends with pane n, and holds the panes from the beginning of its *whole window* (of the
greatest length) to there. Nothing of a whole window leaves the state before it is over.
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
        """One in which nothing is new is among them, if its whole window has something by then."""
        return panes, self._whole(panes)[1] - 1

    def _whole(self, panes: Codes) -> tuple[Codes, Codes]:
        """Of the whole windows that hold these panes the first pane, and the first one behind."""
        first = panes // self._size_panes * self._size_panes
        return first, first + self._size_panes

    def _open_until_ms(self, groups: pa.RecordBatch) -> int:
        """When the step ends in which the last row is: later windows hold the same."""
        return int(self._panes.starts_ms(groups.column(0).to_numpy()[-1:] + 1)[0])


operator_of = CumulativeOperator
