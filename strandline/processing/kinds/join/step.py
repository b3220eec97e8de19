"""The checked form of a join. Light to import, because every Python worker needs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from strandline.processing.kinds.join.shape import JoinShape, SameWindowShape
from strandline.processing.pipelines.row_step import Identity
from strandline.processing.pipelines.stages import LEFT, LINEAGE, RIGHT, NumberColumns, Stage, identities
from strandline.results.names import ROWS_JOINED

JoinType = Literal["inner", "left", "full"]


class JoinedColumn(NamedTuple):
    """A field of joined rows: a column of one side."""

    name: str
    side: int
    column: str
    type: str


@dataclass(frozen=True)
class JoinStage(Stage):
    """A join of the rows of two sides whose `by` fields are equal. Both sides have these fields.

    As for a window, `windows` determines when results are final. A result has its own window (`JoinShape`), or the window of both
    rows if these must be in one window. A join has no aggregates.
    """

    keyword = "join"
    has_aggregates = False

    streams_joined: tuple[str, ...] = ()
    """Names of the streams that the pipeline reads, in their order. The log position of a row is a part of its identity."""
    type: JoinType = "inner"
    """Rows without a partner that are results too: none, those of the left side, or those of both sides."""
    columns: tuple[JoinedColumn, ...] = ()
    """Fields in addition to the `by` fields."""
    max_rows: int = 0
    """Maximum number of rows of one side and key within reach of each other that are joined. More rows become dead letters."""

    @property
    def kind(self) -> str:
        return self.keyword

    @property
    def why_not_revised(self) -> str:
        return "needs a window, and joined rows are final immediately; raise the delay instead"

    @property
    def why_no_updates(self) -> str:
        return "shows open windows, but a join has none: its rows are final immediately"

    @property
    def compared_windows(self) -> object:
        """The size of windows that are joined. The other facts are in `upgrade_facts`."""
        return self.size_ms, self.every_ms

    @property
    def upgrade_facts(self) -> dict[str, object]:
        right = self.inputs[RIGHT]
        return {
            "how near rows are": None if self.in_windows and not self.has_same_windows else self.windows,
            "the type": self.type,
            "the fields": self.columns,
            "the steps to the right side": (identities(right.first_steps), right.before_post_steps),
            "max_rows": self.max_rows,
        }

    @property
    def interval(self) -> JoinShape | None:
        """Maximum distance of the rows of a pair. None if they are in one window."""
        return self.windows if isinstance(self.windows, JoinShape) else None

    @property
    def before_ms(self) -> int:
        """Maximum time from a row on the right to its partner on the left, if the row on the right is earlier."""
        return 0 if self.interval is None else self.interval.before_ms

    @property
    def after_ms(self) -> int:
        """Maximum time from a row on the right to its partner on the left, if the row on the right is later."""
        return 0 if self.interval is None else self.interval.after_ms

    @property
    def is_latest(self) -> bool:
        """True if a row of the left side has one partner, the latest that is not later."""
        return self.interval is not None and self.interval.is_latest

    @property
    def in_windows(self) -> bool:
        """True if partners are in one window."""
        return self.interval is None

    @property
    def has_same_windows(self) -> bool:
        """True if partners are results that have the same window."""
        return isinstance(self.windows, SameWindowShape)

    @property
    def reads_results(self) -> bool:
        """True if an input reads the results of another stage."""
        return any(one.stage is not None for one in self.inputs)

    @property
    def needs_whole_keys(self) -> bool:
        """True, because all rows of a key are needed to find the pairs."""
        return True

    @property
    def identifying(self) -> tuple[str, ...]:
        return (*self.by, ROWS_JOINED)

    @property
    def window_types(self) -> dict[str, str]:
        return dict(zip(self.by, self.by_types, strict=True)) | {one.name: one.type for one in self.columns}

    def keeps(self, side: int) -> bool:
        """Return True if rows of this side without a partner are results too."""
        return self.type == "full" or (self.type == "left" and side == LEFT)

    def hold_ms(self, side: int) -> int:
        """Return the maximum time after a row of this side at which a partner can arrive."""
        return self.after_ms if side == LEFT else self.before_ms

    def with_lineage(self, given: Sequence[NumberColumns]) -> tuple[Stage, NumberColumns]:
        sources = [(side, name, kind) for side, columns in enumerate(given) for name, kind in columns]
        made = tuple(JoinedColumn(LINEAGE.format(at), *one) for at, one in enumerate(sources))
        columns = tuple((one.name, one.type) for one in made)
        stage = replace(
            self, columns=(*self.columns, *made), inputs=self._inputs_with(given), emitted=self._emitted_with(columns)
        )
        return stage, columns

    @property
    def identity(self) -> Identity:
        return super().identity | {
            "join": self.type,
            "columns": [list(column) for column in self.columns],
            "max_rows": self.max_rows,
            "streams": list(self.streams_joined),
        }
