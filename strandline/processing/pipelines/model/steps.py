"""The steps of a pipeline: what is done with records and with results of windows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import FIELD_NAMES_SCHEMA, Duration, FieldName, Name
from strandline.core.documents import Path
from strandline.core.field_types import TYPE_NAMES, normal_type
from strandline.processing.pipelines.joins.join_spec import JoinSpec
from strandline.processing.pipelines.model.emissions import EmitSpec
from strandline.processing.pipelines.model.windows import HAVING, ExpressionText, WindowSpec


class MapSpec(DocumentModel):
    """Fields that a Python function of an installed package computes."""

    function: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$", max_length=200)]
    """`package.module:function`. The setting ALLOW_FUNCTIONS must name it or its module."""
    reads: list[str] = Field(min_length=1)
    """The fields that it gets, as the columns of a RecordBatch of Arrow."""
    columns: dict[FieldName, str] = Field(min_length=1, json_schema_extra=FIELD_NAMES_SCHEMA)
    """The fields that it gives: name -> type; with a `?` behind the type no value is an answer."""
    deterministic: bool
    """Must be true: the same record gives the same values in each run, whatever records are beside it."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if not self.deterministic:
            yield (
                ("deterministic",),
                "must be true: a result is the same in every replay, so the same record must give the same values whenever, and "
                "with whatever other records, the function is called",
            )
        for name, kind in self.columns.items():
            try:
                if normal_type(kind.removesuffix("?")) is None:
                    yield ("columns", name), f"'{kind}' is not a type; expected one of: {', '.join(TYPE_NAMES)}"
            except ValueError as error:
                yield ("columns", name), f"{kind}: {error}"


def _as_pairs(value: object) -> object:
    """`site_id` and `[country, plant]` are short for the mapping of each name to itself."""
    names = [value] if isinstance(value, str) else value
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        if len(set(names)) < len(names):
            raise ValueError("a name stands twice")
        return {name: name for name in names}
    return value


_PAIRS_SCHEMA = WithJsonSchema(
    {
        "anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string"}, "minItems": 1},
            {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1},
        ]
    }
)


class EnrichSpec(DocumentModel):
    """Adds fields of a lookup to records, by the row that has their key."""

    lookup: Name
    """Which."""
    key: Annotated[dict[str, str], BeforeValidator(_as_pairs), Field(min_length=1), _PAIRS_SCHEMA]
    """The column that holds the key, which is called as the lookup's; a list of several; or {field of the lookup: column}."""
    add: Annotated[dict[FieldName, str], BeforeValidator(_as_pairs), Field(min_length=1), _PAIRS_SCHEMA]
    """The lookup's fields that become columns: a list, or {column: field of the lookup}."""
    optional: bool = False
    """Whether a record without a row goes on, with nulls; else it is a dead letter."""


class DedupeSpec(DocumentModel):
    """Leaves out records that come again, as senders send them that heard no answer."""

    by: list[str] = Field(min_length=1)
    """The fields that are equal in a record and its repeats. The stream's key is among them."""
    within: Duration
    """How far apart in event time a record and its repeat may be: less than this."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.within == 0:
            yield ("within",), "no two records would be compared; expected at least 1ms"
        for number, name in enumerate(self.by):
            if name in self.by[:number]:
                yield ("by", number), f"'{name}' stands twice"


class DistinctSpec(DocumentModel):
    """Leaves out, in a batch, every record whose fields another one before it had."""

    by: list[str] = Field(min_length=1)
    """The fields. The stream's key is among them."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        for number, name in enumerate(self.by):
            if name in self.by[:number]:
                yield ("by", number), f"'{name}' stands twice"


def _places(value: object) -> object:
    if value == "updates":
        raise ValueError(
            "results that come before their window closes are said of a place: write "
            "[{elasticsearch: {name: NAME, updates: 10s}}]"
        )
    return value


class StepSpec(DocumentModel):
    """One step: `derive`, `where`, `map`, `select`, `drop`, `enrich`, `dedupe`, `distinct`, `window` or `join` with or without
    `emit` beside it, or `emit` alone. Each may say by `from` what it takes; a join says it by `left` and `right`."""

    VERBS: ClassVar[tuple[str, ...]] = (
        "derive",
        "where",
        "map",
        "select",
        "drop",
        "enrich",
        "dedupe",
        "distinct",
        "window",
        "join",
    )
    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": [verb]} for verb in VERBS]
            + [
                {
                    "required": ["emit"],
                    "not": {"anyOf": [{"required": ["window"]}, {"required": ["join"]}]},
                }  # type: ignore[dict-item]
            ]
        },
    )

    NOT_SUPPORTED: ClassVar[dict[str, str]] = {
        "lookup": "fields of a lookup come by 'enrich: {lookup: NAME, key: FIELD}'",
        "filter": "to keep some records, write 'where: CONDITION'",
        "aggregate": "aggregates stand in a window: 'window: {name: NAME, tumbling: 1m, by: [...], aggregate: {...}}'",
        "having": HAVING,
        "sort": "results have no order in an index, a table or a stream: sort where they are read, or at the desk with pipeline "
        "run --sort; for the first few of a window, top_n(x, n)",
        "cogroup": "to group the records of several streams by one key, unite them with 'from: [a, b]', and let each aggregate "
        "say which it takes: count(*) filter (where side = 'a')",
    }
    derive: dict[FieldName, ExpressionText] | None = Field(
        default=None, min_length=1, json_schema_extra=FIELD_NAMES_SCHEMA
    )
    """New fields: name -> expression over the fields before this step."""
    where: ExpressionText | None = None
    """Keeps the records for which this is true."""
    map: MapSpec | None = None
    """New fields by a Python function: {function, reads, columns, deterministic}."""
    select: list[str] | None = Field(default=None, min_length=1)
    """Keeps these fields alone, in this order."""
    drop: list[str] | None = Field(default=None, min_length=1)
    """Leaves these fields out."""
    enrich: EnrichSpec | None = None
    """Adds fields of a lookup: {lookup, key, add}."""
    dedupe: DedupeSpec | None = None
    """Leaves repeats out: {by, within}."""
    distinct: DistinctSpec | None = None
    """Of a batch: leaves repeats out, however far apart they are: {by}."""
    window: WindowSpec | None = None
    """Collects records by time and key."""
    join: JoinSpec | None = None
    """Puts rows of two ways together: {name, left, right, on, within}."""
    emit: Annotated[list[EmitSpec] | None, BeforeValidator(_places)] = Field(default=None, min_length=1)
    """Where results go: beside `window` or behind it those of the window; before the first window one for each record."""
    name: FieldName | None = None
    """By which further steps may take `from` it. Of an `emit` of records also the stage's name; else that is called like the
    first place, with `_` for what no name may hold. A window has its name inside `window`."""
    source: str | Annotated[list[str], Field(min_length=1)] | None = Field(default=None, alias="from")
    """The name of a step above, or of a stream, from which it takes; without it, the step before. A list unites: the records of
    each, with the fields that all have."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        verbs = [verb for verb in self.VERBS if getattr(self, verb) is not None]
        if self.emit is not None and verbs and verbs not in (["window"], ["join"]):
            yield (
                ("emit",),
                f"'emit' stands beside 'window' or 'join', or in a step of its own, not beside '{verbs[0]}'",
            )
        elif len(verbs) != 1 and not (self.emit is not None and not verbs):
            found = f"has {' and '.join(verbs)}" if verbs else "has none"
            yield (), f"a step is exactly one of {', '.join(self.VERBS)}, emit, and this one {found}"
        elif self.name is not None and self.window is not None:
            yield ("name",), "a window's name stands inside 'window'; remove this one"
        elif self.name is not None and self.join is not None:
            yield ("name",), "a join's name stands inside 'join'; remove this one"
        if self.join is not None and self.source is not None:
            yield ("from",), "a join says by 'left' and 'right' what it takes; remove this"

    @property
    def stage_name(self) -> str | None:
        """The name of the stage, if this step is a window or a join."""
        stage = self.window or self.join
        return None if stage is None else stage.name

    @property
    def taken(self) -> tuple[str, ...]:
        """The names of what it takes from; none: the step before."""
        if self.source is None:
            return ()
        return (self.source,) if isinstance(self.source, str) else tuple(self.source)

    @property
    def own_name(self) -> str | None:
        """By which others may take from it."""
        return self.stage_name or self.name

    @property
    def names_taken(self) -> list[tuple[Path, str]]:
        """The names of what it takes from, and where each stands; none: the step before."""
        if self.join is not None:
            return [(("join", "left"), self.join.left), (("join", "right"), self.join.right)]
        if len(self.taken) == 1:
            return [(("from",), self.taken[0])]
        return [(("from", number), name) for number, name in enumerate(self.taken)]

    @property
    def record_stage_name(self) -> str:
        """The name of the stage, if this step is an emission of records."""
        assert self.emit, "asked of an emission"
        name = self.name or re.sub(r"[^A-Za-z0-9_]", "_", self.emit[0].name).strip("_") or "records"
        return f"emit_{name}" if name[0].isdigit() else name
