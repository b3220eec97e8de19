"""A step that calls a Python function of an installed package."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.processing.pipelines.row_step import Identity, RowStep


@dataclass(frozen=True)
class MapRows(RowStep):
    """Adds the columns that a Python function of an installed package computes."""

    function: str
    """`package.module:function`."""
    reads: tuple[str, ...]
    """Columns that the function gets."""
    columns: tuple[tuple[str, str], ...]
    """(name, type) of each column that the function returns."""
    may_be_null: tuple[str, ...]
    """Returned columns in which null is a valid value."""
    package: str
    """Package of the function, with its release."""
    kind = "map_rows"
    keyword = "map"

    @property
    def identity(self) -> Identity:
        return {
            "map": self.function,
            "package": self.package,
            "reads": list(self.reads),
            "columns": [list(column) for column in self.columns],
            "may_be_null": list(self.may_be_null),
        }

    @property
    def added(self) -> tuple[tuple[str, str], ...]:
        return self.columns

    @property
    def functions(self) -> dict[str, str]:
        return {self.function: self.package}
