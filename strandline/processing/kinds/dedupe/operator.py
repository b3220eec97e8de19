"""Nothing that a row by itself decides: a duplicate is found behind the exchange (`operators/dedupe`)."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.processing.kinds.dedupe.step import Dedupe
from strandline.processing.operators.row_operator import RowOperator, StepRows


class DedupeOperator(RowOperator):
    """Lets all rows through."""

    def __init__(self, _step: Dedupe, types: Mapping[str, str]) -> None:
        self.types = types

    def apply(self, rows: StepRows) -> None:
        """Does nothing."""


operator_of = DedupeOperator
