"""The step `join`: all that the text of a document alone can tell."""

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
    """`10s` is short for as much before as after."""
    return {"before": value, "after": value} if isinstance(value, str) else value


def _of_a_side(value: str) -> str:
    if not re.search(_OF_A_SIDE, value):
        raise ValueError(f"expected left.FIELD or right.FIELD, got {value!r}")
    return value


class WithinSpec(DocumentModel):
    """How far apart in event time two rows may be that are joined."""

    before: Duration = 0
    """So much before the row on the left."""
    after: Duration = 0
    """So much after it."""


class JoinSpec(StageSpec):
    """Puts rows of two ways together that have one key and are near each other in event time."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": [one]} for one in ("within", "tumbling", "same_window")]}
    )
    left: str
    """The name of a step above, or of a stream: whose rows are on the left. Behind a window they are its results."""
    right: str
    """The same of the right."""
    on: Annotated[list[str], Field(min_length=1)]
    """The fields in which both are equal; they have them under one name. A null equals nothing."""
    within: Annotated[WithinSpec, BeforeValidator(_within)] | None = None
    """How far apart they may be: {before, after}, of the row on the right seen from that on the left, both included."""
    tumbling: Duration | None = None
    """Instead: they are in one window of this size."""
    same_window: Literal[True] | None = None
    """Instead: both are results of windows, and of the same one in time."""
    latest: Literal[True] | None = None
    """Beside `within`: of the rows on the right only the latest that is not later than the row on the left."""
    type: JoinType = "inner"
    """Which rows without a partner are results, too: none; `left`, those of the left; `full`, those of both."""
    add: dict[
        FieldName, Annotated[str, AfterValidator(_of_a_side), Field(json_schema_extra={"pattern": _OF_A_SIDE})]
    ] = Field(default_factory=dict, json_schema_extra=FIELD_NAMES_SCHEMA)
    """Fields of the joined row beside `on`: name -> `left.FIELD` or `right.FIELD`."""
    max_rows: Annotated[int, Field(ge=1, le=JOINED_ROWS_MAX)] = _MAX_ROWS
    """So many rows of one side and key, within reach of each other, are joined; one more is a dead letter."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if [self.within, self.tumbling, self.same_window].count(None) != 2:
            yield (), "a join has exactly one of: within, tumbling, same_window"
        if self.tumbling == 0:
            yield ("tumbling",), "a window of no length holds nothing; expected at least 1ms"
        if self.latest:
            yield from self._of_latest()
        for number, name in enumerate(self.on):
            if name in self.on[:number]:
                yield ("on", number), f"'{name}' stands twice"
            if name in self.add:
                yield ("add", name), f"'{name}' is a field of 'on', which joined rows have anyway; choose another name"
        for name in (*self.on, *self.add):
            if name.startswith("_"):
                path: Path = ("add", name) if name in self.add else ("on", self.on.index(name))
                yield path, f"'{name}' begins with '_', and Elasticsearch keeps such names for itself; choose another"
        for name, message in names_alike((*self.on, *self.add)):
            yield ("add",) if name in self.add else ("on",), message

    def _of_latest(self) -> Iterator[tuple[Path, str]]:
        if self.within is None or self.within.after or not self.within.before:
            yield (
                ("latest",),
                "needs 'within: {before: ...}' alone, how old the latest row on the right may be; none that is later is taken",
            )
        if self.type == "full":
            yield (
                ("type",),
                "'full' would give each row on the right that nobody took; expected inner, or left, which keeps rows of the left",
            )
        if self.max_rows != _MAX_ROWS:
            yield ("max_rows",), "a row meets one other at most, so nothing is to be bounded; remove it"

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
    """Puts rows of two ways together: {name, left, right, on, within}."""
