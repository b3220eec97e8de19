"""A step that adds fields of a lookup."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.processing.pipelines.row_step import Column, Identity, RowStep


@dataclass(frozen=True)
class Enrich(RowStep):
    """Adds fields of the lookup row that has the record's key."""

    lookup: str
    key: tuple[tuple[str, str], ...]
    """(field of the lookup, column whose value it must have), in the order of the lookup's key."""
    columns: tuple[Column, ...]
    """New columns; `sql` is the name of the lookup's field."""
    optional: bool
    """True if a record without a lookup row continues with nulls. False if it becomes a dead letter."""
    kind = "enrich"
    keyword = "enrich"

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Columns that the step reads."""
        return tuple(column for _, column in self.key)

    @property
    def identity(self) -> Identity:
        return {
            "enrich": self.lookup,
            "key": [list(pair) for pair in self.key],
            "columns": [list(column) for column in self.columns],
            "optional": self.optional,
        }

    @property
    def added(self) -> tuple[tuple[str, str], ...]:
        return tuple((column.name, column.type) for column in self.columns)

    @property
    def lookup_read(self) -> str:
        return self.lookup

    @property
    def lookup_fields(self) -> tuple[str, ...]:
        return tuple(column.sql for column in self.columns)
