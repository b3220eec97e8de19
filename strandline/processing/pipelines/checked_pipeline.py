"""A pipeline that fits its stream, as `checker.check` returns it and processing compiles it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from strandline.core.streams.stream import StreamSpec
from strandline.core.times import time_zones
from strandline.core.times.durations import FOREVER_MS
from strandline.ledger.states import EventTimeRule
from strandline.processing.pipelines.event_time import (
    RECORDS,
    EventTimeSource,
    WindowShape,
    places_taken,
    reach_of,
    shape_of_records,
)
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.stages import (
    WHOLE_RANGE_MS,
    Dedupe,
    JoinStage,
    MapRows,
    RecordStage,
    Stage,
    first_dedupe,
)


@dataclass(frozen=True)
class CheckedInput:
    """One stream that a pipeline reads."""

    stream: StreamSpec
    columns_needed: tuple[str, ...]
    """The stream's fields that the pipeline reads, in the order of the schema."""
    event_time_source: EventTimeSource
    event_time_rule: EventTimeRule
    """How event time is treated."""

    @property
    def name(self) -> str:
        """The stream's."""
        return self.stream.stream


@dataclass(frozen=True)
class CheckedPipeline:
    """A pipeline that fits its streams: all that processing needs, picklable."""

    spec: PipelineSpec
    stream: StreamSpec
    """The first of the streams that it reads, which often is the only one; `inputs` has all."""
    stages: tuple[Stage, ...]
    columns_needed: tuple[str, ...]
    """The first stream's fields that the pipeline reads, in the order of the schema."""
    event_time_source: EventTimeSource
    """Of the first stream."""
    event_time_rule: EventTimeRule
    """How event time is treated: that of the first stream, with those of all where there are several."""
    record_stages: tuple[RecordStage, ...] = ()
    """The emissions of records, in their order; none stands behind a window."""
    lookups: tuple[tuple[str, int], ...] = ()
    """The lookups that it uses, each with the version by which slices are enriched that say none."""
    tables: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Lookup -> its rows (an operator's `LookupTable`), where there are no slices that say by which: at the desk."""
    further: tuple[CheckedInput, ...] = ()
    """The further streams that it reads."""

    @property
    def inputs(self) -> tuple[CheckedInput, ...]:
        """All streams that it reads, in the order of the document."""
        rule = self.event_time_rule.of(self.stream.stream)
        return CheckedInput(self.stream, self.columns_needed, self.event_time_source, rule), *self.further

    @property
    def streams(self) -> dict[str, StreamSpec]:
        """Name -> stream, in the order of the document."""
        return {one.name: one.stream for one in self.inputs}

    @property
    def retention_ms(self) -> int:
        """Of the stream that keeps its records for the shortest time; FOREVER_MS is without end."""
        return min(
            (one.stream.retention_ms for one in self.inputs if one.stream.retention_ms != FOREVER_MS),
            default=FOREVER_MS,
        )

    def input_of(self, stream: str) -> CheckedInput:
        """What is read of this stream. Raises KeyError for one that the pipeline doesn't read."""
        return {one.name: one for one in self.inputs}[stream]

    @property
    def job(self) -> str:
        """The job's name."""
        return self.spec.pipeline

    @property
    def all_stages(self) -> tuple[RecordStage | Stage, ...]:
        """All that may emit, in order."""
        return (*self.record_stages, *self.stages)

    @property
    def takers(self) -> tuple[tuple[int, ...], ...]:
        """For each window the places of those that take its results."""
        taken = places_taken(self.windows)
        return tuple(tuple(at for at, some in enumerate(taken) if place in some) for place in range(len(taken)))

    def taken_by(self, window: str) -> tuple[str, ...]:
        """The windows whose results the one of this name takes: of a join up to two; none: it takes records alone."""
        names = [stage.name for stage in self.stages]
        taken = places_taken(self.windows)[names.index(window)]
        return tuple(names[one] for one in taken if one != RECORDS)

    @property
    def first_stages(self) -> tuple[Stage, ...]:
        """The windows that take records: of a pipeline without branches one."""
        taken = places_taken(self.windows)
        return tuple(stage for stage, some in zip(self.stages, taken, strict=True) if RECORDS in some)

    @property
    def functions(self) -> dict[str, str]:
        """The Python functions that it calls -> the package of each, with its release."""
        steps = [step for stage in self.all_stages for step in stage.steps_before]
        steps += [step for stage in self.stages for step in stage.post_steps]
        return {step.function: step.package for step in steps if isinstance(step, MapRows)}

    @property
    def reach_ms(self) -> int:
        """How far back in event time open state can go: as far as all windows of a path together depend on events, where that is
        most. What a `distinct` reaches back, which is the whole range, is not counted."""
        horizons = [stage.dedupe.within_ms for stage in self.record_stages if stage.dedupe is not None]
        is_distinct = self.dedupe is not None and self.dedupe.is_distinct
        return max([reach_of(self.windows), *horizons]) - (WHOLE_RANGE_MS if is_distinct else 0)

    @property
    def dedupe(self) -> Dedupe | None:
        """What leaves repeats out: of a pipeline one step at most."""
        return first_dedupe(self.all_stages)

    @property
    def kept(self) -> dict[str, WindowShape]:
        """Of each stage that has a state, so that a start reads records again for it: windows, and emissions of records behind a
        `dedupe`."""
        kept = {stage.name: stage.shape for stage in self.stages}
        return kept | {
            stage.name: shape_of_records(stage.dedupe.within_ms)
            for stage in self.record_stages
            if stage.dedupe is not None
        }

    @property
    def zone_rules(self) -> str | None:
        """The version of the rules of time zones where results depend on them: by days of a zone, by functions of zones, or by
        times that come as text of a zone's clocks. Else None."""
        is_asked = (
            any(stage.zone for stage in self.stages)
            or "_UTC_TIMESTAMP(" in repr(self.all_stages)
            or any(one.tz for stream in self.streams.values() for one in stream.fields.values())
        )
        return time_zones.VERSION if is_asked else None

    @property
    def compiled(self) -> tuple[object, ...]:
        """All that results depend on, besides what is recorded with the slices: equal of two pipelines that compute the same."""
        types = self.stream.types
        columns = tuple(sorted((name, types[name]) for name in self.columns_needed))
        first = self.stages, self.record_stages, columns, self.event_time_source, self.zone_rules
        return (*first, self._of_streams) if self.further else first

    @property
    def _of_streams(self) -> list[object]:
        """What results depend on of each of several streams: its name and place, and what is read of it."""
        return [
            (
                one.name,
                tuple(sorted((name, one.stream.types[name]) for name in one.columns_needed)),
                one.event_time_source,
            )
            for one in self.inputs
        ]

    @property
    def digest(self) -> str:
        """`compiled` in a few characters."""
        branching = [(stage.takes, stage.takes_window) for stage in self.stages]
        has_branches = any(one != (None, False) for one in branching)
        compiled = (*self.compiled, branching) if has_branches else self.compiled
        if self.further:
            compiled = (
                *compiled,
                [(one.ways, one.came) for one in self.stages],
                [one.ways for one in self.record_stages],
            )
        if any(counts := [one.count for one in self.stages]):
            compiled = (*compiled, counts)
        if any(revised := [one.revise_ms for one in self.stages]):
            compiled = (*compiled, "revised", revised)
        joins = [one.added_later for one in self.stages if isinstance(one, JoinStage)]
        if any(any(one) for one in joins):
            compiled = (*compiled, joins)
        return hashlib.sha256(repr(compiled).encode()).hexdigest()

    @property
    def windows(self) -> tuple[WindowShape, ...]:
        """Those of each stage, in order."""
        return tuple(stage.shape for stage in self.stages)


def aliases_of(pipeline: CheckedPipeline) -> dict[str, tuple[str, ...]]:
    """Stage -> the aliases that it emits to."""
    return {
        stage.name: tuple(emit.name for emit in stage.emits if emit.kind == "elasticsearch")
        for stage in pipeline.all_stages
    }
