"""A step that adds computed columns."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.processing.pipelines.row_step import Column, Identity, RowStep


@dataclass(frozen=True)
class Derive(RowStep):
    """Adds columns. Each expression reads the columns before the step."""

    columns: tuple[Column, ...]
    kind = "derive"
    keyword = "derive"

    @property
    def identity(self) -> Identity:
        return {"derive": [list(column) for column in self.columns]}

    @property
    def added(self) -> tuple[tuple[str, str], ...]:
        return tuple((column.name, column.type) for column in self.columns)
