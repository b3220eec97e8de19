"""The operator of tumbling and sliding windows, `operators/windows.py`. Operators of other windows are derived from it."""

from __future__ import annotations

from strandline.processing.operators.windows import WindowOperator

operator_of = WindowOperator
