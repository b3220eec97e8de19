"""The operator of tumbling and sliding windows: `operators/windows.py`, which those of other windows are derived from."""

from __future__ import annotations

from strandline.processing.operators.windows import WindowOperator

operator_of = WindowOperator
