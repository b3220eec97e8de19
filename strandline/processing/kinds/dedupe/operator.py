"""An operator without work: duplicates are found after the exchange (`operators/dedupe`), because they depend on other rows."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.processing.kinds.dedupe.step import Dedupe
from strandline.processing.operators.row_operator import RowOperator, StepRows


class DedupeOperator(RowOperator):
    """Lets all rows through."""

    def __init__(self, _step: Dedupe, types: Mapping[str, str]) -> None:
        self.types = types

    def apply(self, rows: StepRows) -> None:
        """Do nothing."""


operator_of = DedupeOperator
