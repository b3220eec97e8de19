"""The steps of a pipeline: what is done with records and with results of windows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, ConfigDict, Field

from strandline.core.document_model import OpenModel
from strandline.core.document_values import FieldName
from strandline.core.documents import Path
from strandline.processing.pipelines.kind_registry import KEYWORDS, STAGE_KEYWORDS, part_of
from strandline.processing.pipelines.model.emissions import EmitSpec
from strandline.processing.pipelines.model.package_fields import with_package_fields
from strandline.processing.pipelines.model.stage_spec import HAVING, StageSpec

# A model has the fields of its last base first.
_FIELDS_OF_KINDS = tuple(part_of(kind, "document").Fields for kind in reversed(dict.fromkeys(KEYWORDS.values())))


def _places(value: object) -> object:
    if value == "updates":
        raise ValueError(
            "results that come before their window closes are said of a place: write "
            "[{elasticsearch: {name: NAME, updates: 10s}}]"
        )
    return value


class StepSpec(*_FIELDS_OF_KINDS, OpenModel):  # type: ignore[misc]  # one class for each kind of step
    """One step: `derive`, `where`, `map`, `select`, `drop`, `enrich`, `dedupe`, `distinct`, `window` or `join` with or without
    `emit` beside it, or `emit` alone. Each may say by `from` what it takes; a join says it by `left` and `right`."""

    @classmethod
    def schema_extra(cls, added: tuple[str, ...] = ()) -> dict[str, Any]:
        no_stage = {"anyOf": [{"required": [stage]} for stage in STAGE_KEYWORDS]}
        verbs = [{"required": [verb]} for verb in (*KEYWORDS, *added)]
        return {"oneOf": [*verbs, {"required": ["emit"], "not": no_stage}]}

    model_config = ConfigDict(json_schema_extra=lambda schema: schema.update(StepSpec.schema_extra()))
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
    emit: Annotated[list[EmitSpec] | None, BeforeValidator(_places)] = Field(default=None, min_length=1)
    """Where results go: beside `window` or behind it those of the window; before the first window one for each record."""
    name: FieldName | None = None
    """By which later steps may take `from` it. Of an `emit` of records also the stage's name; else that is called like the
    first place, with `_` for what no name may hold. A window has its name inside `window`."""
    source: str | Annotated[list[str], Field(min_length=1)] | None = Field(default=None, alias="from")
    """The name of a step above, or of a stream, from which it takes; without it, the step before. A list unites: the records of
    each, with the fields that all have."""

    @classmethod
    def with_packages(cls) -> type[Self]:
        return with_package_fields(cls, "Fields")

    @classmethod
    def keywords(cls) -> tuple[str, ...]:
        """Return the fields that say what is done with rows."""
        return (*KEYWORDS, *cls.ADDED)

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        keywords = self.keywords()
        verbs = [verb for verb in keywords if getattr(self, verb) is not None]
        if self.emit is not None and verbs and (len(verbs) > 1 or verbs[0] not in STAGE_KEYWORDS):
            stages = " or ".join(f"'{one}'" for one in STAGE_KEYWORDS)
            yield ("emit",), f"'emit' stands beside {stages}, or in a step of its own, not beside '{verbs[0]}'"
        elif len(verbs) != 1 and not (self.emit is not None and not verbs):
            found = f"has {' and '.join(verbs)}" if verbs else "has none"
            yield (), f"a step is exactly one of {', '.join(keywords)}, emit, and this one {found}"
        elif self.name is not None and self.stage is not None:
            yield ("name",), f"a {verbs[0]}'s name stands inside '{verbs[0]}'; remove this one"
        if self.sides and self.source is not None:
            sides = " and ".join(f"'{path[-1]}'" for path, _ in self.sides)
            yield ("from",), f"a {verbs[0]} says by {sides} what it takes; remove this"

    @property
    def keyword(self) -> str | None:
        """The field that says what is done with rows. None if the step is an emission."""
        return next((one for one in self.keywords() if getattr(self, one) is not None), None)

    @property
    def value(self) -> Any:
        """The value of this field. None if the step is an emission."""
        return None if self.keyword is None else getattr(self, self.keyword)

    @property
    def stage(self) -> StageSpec | None:
        """The stage, if the step is one."""
        return self.value if isinstance(self.value, StageSpec) else None

    @property
    def sides(self) -> list[tuple[Path, str]]:
        """See `StageSpec.sides`. Empty if the step is no stage."""
        return [] if self.stage is None else self.stage.sides

    @property
    def lookups(self) -> tuple[str, ...]:
        """The lookups that the step reads."""
        return tuple(getattr(self.value, "lookups", ()))

    @property
    def stage_name(self) -> str | None:
        """The name of the stage, if this step is one."""
        return None if self.stage is None else self.stage.name

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
        if self.sides:
            return [((str(self.keyword), *path), name) for path, name in self.sides]
        if len(self.taken) == 1:
            return [(("from",), self.taken[0])]
        return [(("from", number), name) for number, name in enumerate(self.taken)]

    @property
    def record_stage_name(self) -> str:
        """The name of the stage, if this step is an emission of records."""
        assert self.emit, "asked of an emission"
        name = self.name or re.sub(r"[^A-Za-z0-9_]", "_", self.emit[0].name).strip("_") or "records"
        return f"emit_{name}" if name[0].isdigit() else name
