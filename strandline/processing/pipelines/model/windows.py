"""Windows of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import FIELD_NAMES_SCHEMA, Duration, FieldName, names_alike
from strandline.core.documents import Path, did_you_mean
from strandline.core.times.durations import format_duration
from strandline.core.times.time_zones import zone_names
from strandline.processing.pipelines.calendars import DAY_MS, days_begin_at_multiples
from strandline.processing.pipelines.event_time import (
    CountShape,
    CumulativeDayShape,
    CumulativeShape,
    DayShape,
    SessionShape,
    WindowShape,
)
from strandline.processing.pipelines.model.expression_text import ExpressionText

HAVING = "a condition on results is a step behind the window: 'where: CONDITION'"

WINDOWS_MAX = 10_000
"""Maximum number of windows of one step that contain the same record: each of them is a result."""


def _too_many(size_ms: int, apart_ms: int) -> str | None:
    """Return the problem of windows of this size, one each `apart_ms`; None if there is none."""
    if apart_ms == 0 or -(-size_ms // apart_ms) <= WINDOWS_MAX:
        return None
    return (
        f"{format_duration(apart_ms)} puts each record into {-(-size_ms // apart_ms):,} windows of up to "
        f"{format_duration(size_ms)}; expected at most {WINDOWS_MAX:,}, so at least {format_duration(-(-size_ms // WINDOWS_MAX))}"
    )


class SlidingSpec(DocumentModel):
    """Windows that overlap."""

    size: Duration
    """How long each is."""
    every: Duration
    """How far apart they begin, counted from 1970-01-01 UTC."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.every == 0:
            yield ("every",), "windows that all begin at once; expected at least 1ms"
        elif self.every > self.size:
            yield (
                ("every",),
                f"{format_duration(self.every)} is more than the size of {format_duration(self.size)}: records between two "
                "windows would be in none",
            )
        elif (problem := _too_many(self.size, self.every)) is not None:
            yield ("every",), problem


class CumulativeSpec(DocumentModel):
    """Windows that begin together and end one step after the other."""

    size: Duration
    """How long the longest is; they begin at its multiples since 1970-01-01 UTC."""
    step: Duration
    """How much longer each is than the one before."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.step == 0:
            yield ("step",), "windows that all end at once; expected at least 1ms"
        elif self.size == 0 or self.size % self.step:
            yield (
                ("size",),
                f"{format_duration(self.size)} is not a multiple of the step of {format_duration(self.step)}, so the last window "
                "would end at no step",
            )
        elif (problem := _too_many(self.size, self.step)) is not None:
            yield ("step",), problem


class SessionSpec(DocumentModel):
    """Windows that records bound: each ends when no record of its key follows for a while."""

    gap: Duration
    """A record that comes so much later than the last one, or later still, begins a new session."""
    max: Duration = Field(default=3_600_000, json_schema_extra={"default": "1h"})
    """How long a session is at most, its last gap included; what goes on is cut."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.gap == 0:
            yield ("gap",), "each record would be a session of its own; expected at least 1ms"
        elif self.max < self.gap:
            yield (
                ("max",),
                f"{format_duration(self.max)} is less than the gap of {format_duration(self.gap)}, which each session lasts; "
                "expected at least as much",
            )


class CountSpec(DocumentModel):
    """Windows that hold so many records of a key each, in the order of event time."""

    size: Annotated[int, Field(ge=1, le=10_000_000)]
    """How many."""
    max: Duration
    """At its multiples since 1970-01-01 UTC counting begins anew, and what is not filled is closed: else a start would have to
    count from the first record of all."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.max == 0:
            yield ("max",), "counting would begin anew at once; expected at least 1ms"


class WindowSpec(DocumentModel):
    """Windows of event time: tumbling, which follow each other, sliding, which overlap, or cumulative, which grow, counted from
    1970-01-01 UTC; sessions, which end when no record comes for a while; or windows of so many records each."""

    KINDS: ClassVar[tuple[str, ...]] = ("tumbling", "sliding", "cumulative", "session", "count")
    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [kind]} for kind in KINDS]})
    NOT_SUPPORTED: ClassVar[dict[str, str]] = {
        "hopping": "windows that overlap are 'sliding: {size: 1m, every: 10s}'",
        "size": "stands in the kind of window: tumbling: 1m, or sliding: {size: 1m, every: 10s}",
        "group_by": "the fields of the key are 'by: [...]'",
        "having": HAVING,
    }
    name: FieldName
    """The stage's name: in results, status and dead letters."""
    tumbling: Duration | None = None
    """The size; instead of sliding."""
    sliding: SlidingSpec | None = None
    """{size, every}; instead of tumbling."""
    cumulative: CumulativeSpec | None = None
    """{size, step}; instead of tumbling."""
    session: SessionSpec | None = None
    """{gap, max}; instead of tumbling."""
    count: CountSpec | None = None
    """{size, max}; instead of tumbling."""
    offset: Duration | None = None
    """Of windows that neither are sessions nor count: so much later they begin."""
    tz: str | None = None
    """Of windows of whole days, or that grow for whole days: the time zone whose days they are, as Europe/Berlin; else UTC's."""
    by: list[str] = Field(default_factory=list)
    """The fields that make the key; none means one result a window."""
    aggregate: dict[FieldName, ExpressionText] = Field(min_length=1, json_schema_extra=FIELD_NAMES_SCHEMA)
    """Result field -> expression with an aggregate function."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if sum(getattr(self, kind) is not None for kind in self.KINDS) != 1:
            yield (), f"a window has exactly one of: {', '.join(self.KINDS)}"
        if self.tumbling == 0:
            yield ("tumbling",), "a window of no length holds nothing; expected at least 1ms"
        elif self.every_ms and not self.ends_anywhere and self.offset_ms >= self._begin_apart_ms:
            yield (
                ("offset",),
                f"expected less than the {format_duration(self._begin_apart_ms)} from one window to the next",
            )
        if self.offset and self.session is not None:
            yield ("offset",), "sessions begin with a record; remove it"
        if self.offset and self.count is not None:
            yield ("offset",), "counting begins at multiples of 'max'; remove it"
        yield from self._time_zone()
        places: list[tuple[str, Path]] = [(name, ("by", number)) for number, name in enumerate(self.by)]
        places += [(name, ("aggregate", name)) for name in self.aggregate]
        paths: dict[str, Path] = {}
        for name, path in places:
            if name in paths:
                yield path, f"'{name}' stands twice among the fields of the result; choose another name"
            if name.startswith("_"):
                yield path, f"'{name}' begins with '_', and Elasticsearch keeps such names for itself; choose another"
            paths.setdefault(name, path)
        for name, message in names_alike(paths):
            yield paths[name], message

    @property
    def ends_anywhere(self) -> bool:
        """Whether records say where they begin and end."""
        return self.session is not None or self.count is not None

    @property
    def _begin_apart_ms(self) -> int:
        return self.every_ms if self.cumulative is None else self.cumulative.size

    def _time_zone(self) -> Iterator[tuple[Path, str]]:
        if self.tz is None:
            return
        if self.tz not in zone_names():
            yield ("tz",), f"'{self.tz}' is not a time zone{did_you_mean(self.tz, zone_names())}"
        lengths = [self.tumbling] if self.tumbling else []
        if self.sliding is not None:
            lengths = [self.sliding.every, self.sliding.size]
        if self.cumulative is not None:
            lengths = [self.cumulative.size]
        if not lengths or any(length % DAY_MS for length in lengths):
            yield (
                ("tz",),
                "a time zone says when days begin, so it needs windows of whole days, as 'tumbling: 1d', 'sliding: {size: 7d, "
                "every: 1d}' or 'cumulative: {size: 1d, step: 1h}'; parts of a day are moved by 'offset'",
            )
        elif self.sliding is not None and self.sliding.size % self.sliding.every:
            yield (
                ("sliding", "size"),
                f"{format_duration(self.sliding.size)} of days of a time zone is not a multiple of 'every', "
                f"{format_duration(self.sliding.every)}",
            )
        elif self.cumulative is not None and self.tz in zone_names():
            step_ms = self.cumulative.step
            if not days_begin_at_multiples(self.tz, self.offset_ms, step_ms, self.offset_ms % step_ms):
                yield (
                    ("cumulative", "step"),
                    f"days of {self.tz} do not always begin where a step of {format_duration(step_ms)} does; expected one that "
                    "fits, as 1h or 15m",
                )

    @property
    def size_ms(self) -> int:
        """How long a window is; a session, a cumulative one or one that counts at most."""
        if self.session is not None:
            return self.session.max
        if self.count is not None:
            return self.count.max
        overlapping = self.sliding or self.cumulative
        return overlapping.size if overlapping is not None else self.tumbling or 0

    @property
    def shape(self) -> WindowShape:
        """The windows as numbers."""
        if self.session is not None:
            return SessionShape(self.size_ms, self.session.gap)
        if self.count is not None:
            return CountShape(self.size_ms, 1, count=self.count.size)
        lengths = self.size_ms, self.every_ms, self.offset_ms
        if self.cumulative is not None:
            return CumulativeShape(*lengths) if self.tz is None else CumulativeDayShape(*lengths, zone=self.tz)
        return WindowShape(*lengths) if self.tz is None else DayShape(*lengths, zone=self.tz)

    @property
    def offset_ms(self) -> int:
        """How much later than the multiples of `every_ms` windows begin."""
        return self.offset or 0

    @property
    def every_ms(self) -> int:
        """How far apart windows begin, cumulative ones end; sessions no closer than their gap."""
        if self.session is not None:
            return self.session.gap
        if self.cumulative is not None:
            return self.cumulative.step
        return self.sliding.every if self.sliding is not None else self.size_ms
