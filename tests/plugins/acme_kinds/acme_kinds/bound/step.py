"""A step that keeps a value between two limits."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.processing.pipelines.row_step import Identity, RowStep


@dataclass(frozen=True)
class Bound(RowStep):
    """Adds a column with the value of another one, kept between two limits."""

    column: str
    name: str
    low: float
    high: float
    kind = "bound"
    keyword = "bound"

    @property
    def identity(self) -> Identity:
        return {"bound": [self.column, self.name, self.low, self.high]}

    @property
    def added(self) -> tuple[tuple[str, str], ...]:
        return ((self.name, "double"),)
