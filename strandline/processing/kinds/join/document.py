"""The step `join`: fields, and the checks that need only the text of a document."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import FIELD_NAMES_SCHEMA, Duration, FieldName, names_alike
from strandline.core.documents import Path
from strandline.processing.kinds.join.step import JoinType
from strandline.processing.pipelines.model.stage_spec import StageSpec
from strandline.processing.pipelines.stages import Stage
from strandline.processing.pipelines.straddling import straddling_problems

JOINED_ROWS_MAX = 1_000_000
_MAX_ROWS = 10_000
_OF_A_SIDE = r"^(left|right)\.[A-Za-z_]\w*$"


def _within(value: object) -> object:
    """Return the mapping of a duration: `10s` is the same time before and after."""
    return {"before": value, "after": value} if isinstance(value, str) else value


def _of_a_side(value: str) -> str:
    if not re.search(_OF_A_SIDE, value):
        raise ValueError(f"expected left.FIELD or right.FIELD, got {value!r}")
    return value


class WithinSpec(DocumentModel):
    """Maximum difference in event time between two rows that are joined."""

    before: Duration = 0
    """Maximum time by which the row on the right is earlier than the row on the left."""
    after: Duration = 0
    """Maximum time by which the row on the right is later than the row on the left."""


class JoinSpec(StageSpec):
    """Joins rows of two inputs that have the same key and are close in event time."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": [one]} for one in ("within", "tumbling", "same_window")]}
    )
    left: str
    """Name of a step above, or of a stream, whose rows are on the left. After a window, the rows are its results."""
    right: str
    """Name of the step or stream whose rows are on the right."""
    on: Annotated[list[str], Field(min_length=1)]
    """Fields that are equal in both rows. They must have the same names on both sides. A null equals nothing."""
    within: Annotated[WithinSpec, BeforeValidator(_within)] | None = None
    """Interval of the row on the right around the row on the left: {before, after}, both included."""
    tumbling: Duration | None = None
    """Instead of `within`: size of the windows. Both rows must be in the same window."""
    same_window: Literal[True] | None = None
    """Instead of `within`: both rows must be results of windows with the same start and end."""
    latest: Literal[True] | None = None
    """With `within`: join only the latest row on the right that is not later than the row on the left."""
    type: JoinType = "inner"
    """Rows without a partner that are results too: none (`inner`), those of the left (`left`), or those of both sides (`full`).
    """
    add: dict[
        FieldName, Annotated[str, AfterValidator(_of_a_side), Field(json_schema_extra={"pattern": _OF_A_SIDE})]
    ] = Field(default_factory=dict, json_schema_extra=FIELD_NAMES_SCHEMA)
    """Fields of the joined row in addition to `on`: name -> `left.FIELD` or `right.FIELD`."""
    max_rows: Annotated[int, Field(ge=1, le=JOINED_ROWS_MAX)] = _MAX_ROWS
    """Maximum number of rows of one side and key, within reach of each other, that are joined. More rows become dead letters."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if [self.within, self.tumbling, self.same_window].count(None) != 2:
            yield (), "a join has exactly one of: within, tumbling, same_window"
        if self.tumbling == 0:
            yield ("tumbling",), "a window without length contains no records; expected at least 1ms"
        if self.latest:
            yield from self._of_latest()
        for number, name in enumerate(self.on):
            if name in self.on[:number]:
                yield ("on", number), f"'{name}' is listed twice"
            if name in self.add:
                yield (
                    ("add", name),
                    f"'{name}' is a field of 'on', which joined rows contain anyway; choose another name",
                )
        for name in (*self.on, *self.add):
            if name.startswith("_"):
                path: Path = ("add", name) if name in self.add else ("on", self.on.index(name))
                yield path, f"'{name}' begins with '_', but Elasticsearch reserves such names; choose another name"
        for name, message in names_alike((*self.on, *self.add)):
            yield ("add",) if name in self.add else ("on",), message

    def _of_latest(self) -> Iterator[tuple[Path, str]]:
        if self.within is None or self.within.after or not self.within.before:
            yield (
                ("latest",),
                "needs only 'within: {before: ...}', the maximum age of the latest row on the right; later rows are never joined",
            )
        if self.type == "full":
            yield (
                ("type",),
                "'full' would return each row on the right without a partner; expected inner, or left, which keeps rows of "
                "the left",
            )
        if self.max_rows != _MAX_ROWS:
            yield ("max_rows",), "a row has at most one partner, so no limit is needed; remove it"

    @property
    def sides(self) -> list[tuple[Path, str]]:
        return [(("left",), self.left), (("right",), self.right)]

    @property
    def result_fields(self) -> list[tuple[str, Path]]:
        keys: list[tuple[str, Path]] = [(name, ("on", number)) for number, name in enumerate(self.on)]
        return [*keys, *((name, ("add", name)) for name in self.add)]

    def problems_after(self, stage: Stage, before: Stage) -> Iterator[tuple[Path, str]]:
        if self.tumbling is not None:
            yield from straddling_problems(stage, before, [(("tumbling",), self.tumbling)])

    @property
    def before_ms(self) -> int:
        return self.within.before if self.within is not None else self.tumbling or 0

    @property
    def after_ms(self) -> int:
        return self.within.after if self.within is not None else self.tumbling or 0


class Fields(DocumentModel):
    """Fields that the kind adds to a step."""

    join: JoinSpec | None = None
    """Joins rows of two inputs: {name, left, right, on, within}."""
