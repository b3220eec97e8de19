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
            "updates of open windows are an option of a sink: write [{elasticsearch: {name: NAME, updates: 10s}}]"
        )
    return value


class StepSpec(*_FIELDS_OF_KINDS, OpenModel):  # type: ignore[misc]  # one class for each kind of step
    """One step: `derive`, `where`, `map`, `select`, `drop`, `enrich`, `dedupe`, `distinct`, `window` or `join`, or only `emit`. A
    window or join can have `emit` too. `from` names the input of a step. A join names its inputs by `left` and `right`."""

    @classmethod
    def schema_extra(cls, added: tuple[str, ...] = ()) -> dict[str, Any]:
        no_stage = {"anyOf": [{"required": [stage]} for stage in STAGE_KEYWORDS]}
        verbs = [{"required": [verb]} for verb in (*KEYWORDS, *added)]
        return {"oneOf": [*verbs, {"required": ["emit"], "not": no_stage}]}

    model_config = ConfigDict(json_schema_extra=lambda schema: schema.update(StepSpec.schema_extra()))
    NOT_SUPPORTED: ClassVar[dict[str, str]] = {
        "lookup": "to add fields of a lookup, write 'enrich: {lookup: NAME, key: FIELD}'",
        "filter": "to keep some records, write 'where: CONDITION'",
        "aggregate": "aggregates belong to a window: 'window: {name: NAME, tumbling: 1m, by: [...], aggregate: {...}}'",
        "having": HAVING,
        "sort": "results have no order in an index, a table or a stream. Sort them where they are read, or in a local run with "
        "pipeline run --sort; for the first results of a window, use top_n(x, n)",
        "cogroup": "to group the records of several streams by one key, unite them with 'from: [a, b]', and select the "
        "records of each aggregate: count(*) filter (where side = 'a')",
    }
    emit: Annotated[list[EmitSpec] | None, BeforeValidator(_places)] = Field(default=None, min_length=1)
    """Sinks of results: those of the window, in its step or after it; before the first window, one result for each record."""
    name: FieldName | None = None
    """Name by which later steps can read this step in `from`. For an `emit` of records, also the name of the stage; by default
    the name of its first sink, with `_` for characters that names can't contain. A window has its name inside `window`."""
    source: str | Annotated[list[str], Field(min_length=1)] | None = Field(default=None, alias="from")
    """Name of the step above, or of the stream, that this step reads. By default the step before it. A list unites: the records
    of each entry, with the fields that all of them have."""

    @classmethod
    def with_packages(cls) -> type[Self]:
        return with_package_fields(cls, "Fields")

    @classmethod
    def keywords(cls) -> tuple[str, ...]:
        """Return the fields that determine what a step does."""
        return (*KEYWORDS, *cls.ADDED)

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        keywords = self.keywords()
        verbs = [verb for verb in keywords if getattr(self, verb) is not None]
        if self.emit is not None and verbs and (len(verbs) > 1 or verbs[0] not in STAGE_KEYWORDS):
            stages = " or ".join(f"'{one}'" for one in STAGE_KEYWORDS)
            yield ("emit",), f"'emit' is allowed with {stages}, or in its own step, but not with '{verbs[0]}'"
        elif len(verbs) != 1 and not (self.emit is not None and not verbs):
            found = f"has {' and '.join(verbs)}" if verbs else "has none"
            yield (), f"a step is exactly one of {', '.join(keywords)}, emit, but this one {found}"
        elif self.name is not None and self.stage is not None:
            yield ("name",), f"the name of a {verbs[0]} belongs inside '{verbs[0]}'; remove this one"
        if self.sides and self.source is not None:
            sides = " and ".join(f"'{path[-1]}'" for path, _ in self.sides)
            yield ("from",), f"a {verbs[0]} names its inputs by {sides}; remove this"

    @property
    def keyword(self) -> str | None:
        """Field that determines what the step does. None if the step is an emission."""
        return next((one for one in self.keywords() if getattr(self, one) is not None), None)

    @property
    def value(self) -> Any:
        """Value of this field. None if the step is an emission."""
        return None if self.keyword is None else getattr(self, self.keyword)

    @property
    def stage(self) -> StageSpec | None:
        """The stage. None if the step isn't one."""
        return self.value if isinstance(self.value, StageSpec) else None

    @property
    def sides(self) -> list[tuple[Path, str]]:
        """See `StageSpec.sides`. Empty if the step is no stage."""
        return [] if self.stage is None else self.stage.sides

    @property
    def lookups(self) -> tuple[str, ...]:
        """Lookups that the step reads."""
        return tuple(getattr(self.value, "lookups", ()))

    @property
    def stage_name(self) -> str | None:
        """Name of the stage. None if the step isn't one."""
        return None if self.stage is None else self.stage.name

    @property
    def taken(self) -> tuple[str, ...]:
        """Names in `from`. Empty if the step reads the step before it."""
        if self.source is None:
            return ()
        return (self.source,) if isinstance(self.source, str) else tuple(self.source)

    @property
    def own_name(self) -> str | None:
        """Name by which other steps can read it. None if it has no name."""
        return self.stage_name or self.name

    @property
    def names_taken(self) -> list[tuple[Path, str]]:
        """(path, name) of each input that the step names. Empty if it reads the step before it."""
        if self.sides:
            return [((str(self.keyword), *path), name) for path, name in self.sides]
        if len(self.taken) == 1:
            return [(("from",), self.taken[0])]
        return [(("from", number), name) for number, name in enumerate(self.taken)]

    @property
    def record_stage_name(self) -> str:
        """Name of the stage if this step is an emission of records."""
        assert self.emit, "only called for an emission"
        name = self.name or re.sub(r"[^A-Za-z0-9_]", "_", self.emit[0].name).strip("_") or "records"
        return f"emit_{name}" if name[0].isdigit() else name
