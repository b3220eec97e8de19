"""A step that filters rows."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.processing.pipelines.row_step import Identity, RowStep


@dataclass(frozen=True)
class Where(RowStep):
    """Keeps rows for which `sql` is true (not null)."""

    sql: str
    kind = "where"
    keyword = "where"

    @property
    def identity(self) -> Identity:
        return {"where": self.sql}
