"""The step `window`, and the fields of tumbling and sliding windows. Each other kind of windows adds the fields of its folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Self

from pydantic import ConfigDict, Field, SerializeAsAny

from strandline.core.document_model import DocumentModel, OpenModel
from strandline.core.document_values import FIELD_NAMES_SCHEMA, Duration, FieldName, names_alike
from strandline.core.documents import Path, did_you_mean
from strandline.core.errors import FunctionUnusable
from strandline.core.times.durations import format_duration
from strandline.core.times.time_zones import zone_names
from strandline.processing.kinds.windows.limits import too_many
from strandline.processing.kinds.windows.window_plan import NEEDS_DAYS, WindowPlan
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.pipelines.kind_registry import WINDOW_KEYWORDS, part_of, window_kind_of
from strandline.processing.pipelines.model.expression_text import ExpressionText
from strandline.processing.pipelines.model.package_fields import with_package_fields
from strandline.processing.pipelines.model.stage_spec import HAVING, StageSpec
from strandline.processing.pipelines.stages import Stage


class SlidingSpec(DocumentModel):
    """Windows that overlap."""

    size: Duration
    """Length of each window."""
    every: Duration
    """Time from the beginning of one window to that of the next, counted from 1970-01-01 UTC."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.every == 0:
            yield ("every",), "all windows would begin at the same time; expected at least 1ms"
        elif self.every > self.size:
            yield (
                ("every",),
                f"{format_duration(self.every)} is more than the size of {format_duration(self.size)}: records between two "
                "windows would be in none",
            )
        elif (problem := too_many(self.size, self.every)) is not None:
            yield ("every",), problem


class WindowFields(DocumentModel):
    """Fields that tumbling and sliding windows add to `window`."""

    tumbling: Duration | None = None
    """Length of the windows, each of which begins when the one before ends; instead of sliding."""
    sliding: SlidingSpec | None = None
    """{size, every}; instead of tumbling."""


_OTHER_KINDS = [kind for kind in dict.fromkeys(WINDOW_KEYWORDS.values()) if kind != "windows"]
# A model has the fields of its last base first.
_FIELDS_OF_KINDS = tuple(part_of(kind, "document").WindowFields for kind in reversed(_OTHER_KINDS))


class WindowSpec(*_FIELDS_OF_KINDS, WindowFields, StageSpec, OpenModel):  # type: ignore[misc]  # one class for each kind of windows
    """Windows of event time, counted from 1970-01-01 UTC: tumbling windows follow each other, sliding windows overlap, and
    cumulative windows grow. The records of a key make its sessions, count windows, and windows of `previous`."""

    @classmethod
    def schema_extra(cls, added: tuple[str, ...] = ()) -> dict[str, Any]:
        return {"oneOf": [{"required": [kind]} for kind in (*WINDOW_KEYWORDS, *added)]}

    model_config = ConfigDict(json_schema_extra=lambda schema: schema.update(WindowSpec.schema_extra()))
    NOT_SUPPORTED: ClassVar[dict[str, str]] = {
        "hopping": "windows that overlap are 'sliding: {size: 1m, every: 10s}'",
        "size": "belongs to the kind of window: tumbling: 1m, or sliding: {size: 1m, every: 10s}",
        "group_by": "the fields of the key are 'by: [...]'",
        "having": HAVING,
    }
    offset: Duration | None = None
    """Time by which windows begin later. Not for windows made by records."""
    tz: str | None = None
    """Time zone of the days, as Europe/Berlin, for windows whose length or growth is a number of days. The default is UTC."""
    by: list[str] = Field(default_factory=list)
    """Fields of the key. Without fields, each window has one result."""
    aggregate: dict[FieldName, ExpressionText] = Field(min_length=1, json_schema_extra=FIELD_NAMES_SCHEMA)
    """Result field -> expression with an aggregate function."""

    @classmethod
    def with_packages(cls) -> type[Self]:
        return with_package_fields(cls, "WindowFields")

    @classmethod
    def keywords(cls) -> tuple[str, ...]:
        """Return the fields that have a kind of windows."""
        return (*WINDOW_KEYWORDS, *cls.ADDED)

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        keywords = self.keywords()
        if sum(getattr(self, kind) is not None for kind in keywords) != 1:
            yield (), f"a window has exactly one of: {', '.join(keywords)}"
        elif self.keyword not in self.MISSING:
            try:
                yield from self._of_kind()
            except FunctionUnusable as error:
                yield (self.keyword,), str(error)
        paths: dict[str, Path] = {}
        for name, path in self.result_fields:
            if name in paths:
                yield path, f"'{name}' is listed twice among the fields of the result; choose another name"
            if name.startswith("_"):
                yield path, f"'{name}' begins with '_', but Elasticsearch reserves such names; choose another name"
            paths.setdefault(name, path)
        for name, message in names_alike(paths):
            yield paths[name], message

    def _of_kind(self) -> Iterator[tuple[Path, str]]:
        if self.tz is not None and self.tz not in zone_names():
            yield ("tz",), f"'{self.tz}' is not a time zone{did_you_mean(self.tz, zone_names())}"
        if self.tz is not None and not self.plan.has_time_zone:
            yield ("tz",), NEEDS_DAYS
        yield from self.plan.contradictions(self)

    @property
    def keyword(self) -> str:
        """Field that has the kind of windows."""
        return next(one for one in self.keywords() if getattr(self, one) is not None)

    @property
    def plan(self) -> WindowPlan:
        """Plan of the kind of windows."""
        plan: WindowPlan = part_of(window_kind_of(self.keyword), "plan").PLAN
        if self.tz is not None and plan.kind_in_time_zone:
            plan = part_of(plan.kind_in_time_zone, "plan").PLAN
        return plan

    @property
    def shape(self) -> WindowShape:
        """Shape of the windows: where they begin and end."""
        return self.plan.shape(self)

    @property
    def offset_ms(self) -> int:
        """Time by which windows begin later than the multiples of their distance."""
        return self.offset or 0

    @property
    def result_fields(self) -> list[tuple[str, Path]]:
        keys: list[tuple[str, Path]] = [(name, ("by", number)) for number, name in enumerate(self.by)]
        return [*keys, *((name, ("aggregate", name)) for name in self.aggregate)]

    def problems_after(self, stage: Stage, before: Stage) -> Iterator[tuple[Path, str]]:
        yield from self.plan.problems_after(self, stage, before)


class Fields(DocumentModel):
    """Fields that the kind adds to a step."""

    window: SerializeAsAny[WindowSpec] | None = None
    """Groups records by time and key."""
