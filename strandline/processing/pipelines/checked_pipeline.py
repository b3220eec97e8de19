"""A pipeline that fits its stream, as `checker.check` returns it and processing compiles it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from strandline.core.streams.format_registry import package_of
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
from strandline.processing.pipelines.row_step import WHOLE_RANGE_MS, DuplicateFilter, Identity, RowStep
from strandline.processing.pipelines.stages import RecordPath, RecordStage, Stage, first_dedupe
from strandline.results.sinks.registry import sink_of


@dataclass(frozen=True)
class CheckedInput:
    """One stream that a pipeline reads."""

    stream: StreamSpec
    columns_needed: tuple[str, ...]
    """Fields of the stream that the pipeline reads, in the order of the schema."""
    columns_computed: tuple[str, ...]
    """Those of them that it reads for anything but the fields of records that are emitted as they are."""
    event_time_source: EventTimeSource
    event_time_rule: EventTimeRule
    """How event time is treated."""

    @property
    def name(self) -> str:
        """Name of the stream."""
        return self.stream.stream

    def identity(self, columns: Iterable[str]) -> Identity:
        """What results depend on that use these columns of the stream."""
        source = self.event_time_source
        package = package_of(self.stream.format)
        return {
            "stream": self.name,
            "columns": sorted([name, self.stream.types[name]] for name in columns),
            "event_time": [source.field, source.or_log],
            **({"format": [self.stream.format, package]} if package else {}),
        }


@dataclass(frozen=True)
class CheckedPipeline:
    """A pipeline that fits its streams: all that processing needs, picklable."""

    spec: PipelineSpec
    inputs: tuple[CheckedInput, ...]
    """The streams that it reads, in the order of the document."""
    stages: tuple[Stage, ...]
    event_time_rule: EventTimeRule
    """How event time is treated: the rule of the first stream, and with several streams the rule of each."""
    record_stages: tuple[RecordStage, ...] = ()
    """The emissions of records, in their order; none stands behind a window."""
    lookups: tuple[tuple[str, int], ...] = ()
    """The lookups that it uses, each with the version by which slices are enriched that say none."""
    tables: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Lookup -> its rows (an operator's `LookupTable`), where there are no slices that say by which: at the desk."""

    @property
    def has_several_inputs(self) -> bool:
        """True if it reads more than one stream."""
        return len(self.inputs) > 1

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
    def record_paths(self) -> tuple[RecordPath, ...]:
        """All paths of records to stages."""
        of_windows = (path for stage in self.stages for _, path in stage.record_paths)
        return (*(path for stage in self.record_stages for path in stage.paths), *of_windows)

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
    def row_steps(self) -> list[RowStep]:
        """All steps that take rows one by one."""
        before = [step for stage in self.all_stages for step in stage.steps_before]
        return before + [step for stage in self.stages for step in stage.post_steps]

    @property
    def functions(self) -> dict[str, str]:
        """The Python functions that it calls -> the package of each, with its release."""
        return {name: package for step in self.row_steps for name, package in step.functions.items()}

    @property
    def packages(self) -> dict[str, str]:
        """Functions, formats and kinds of packages that the pipeline uses -> the package of each, with its release."""
        formats = {name: package for one in self.inputs if (package := package_of(name := one.stream.format))}
        kinds = {step.kind: step.kind_package for step in self.row_steps if step.kind_package}
        kinds |= {stage.kind: stage.kind_package for stage in self.stages if stage.kind_package}
        functions = self.functions | {name: package for stage in self.stages for name, package in stage.packages}
        return functions | formats | kinds

    @property
    def reach_ms(self) -> int:
        """How far back in event time open state can go: as far as all windows of a path together depend on events, where that is
        most. What a `distinct` reaches back, which is the whole range, is not counted."""
        horizons = [stage.dedupe.within_ms for stage in self.record_stages if stage.dedupe is not None]
        is_distinct = self.dedupe is not None and self.dedupe.compares_all
        return max([reach_of(self.windows), *horizons]) - (WHOLE_RANGE_MS if is_distinct else 0)

    @property
    def dedupe(self) -> DuplicateFilter | None:
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
            any(stage.windows.time_zone for stage in self.stages)
            or "_UTC_TIMESTAMP(" in json.dumps([stage.identity for stage in self.all_stages])
            or any(one.tz for stream in self.streams.values() for one in stream.fields.values())
        )
        return time_zones.VERSION if is_asked else None

    @property
    def identity(self) -> Identity:
        """All that results depend on, except the facts recorded with slices, and the sinks. Equal for two pipelines that compute
        the same."""
        return {
            "inputs": [one.identity(one.columns_needed) for one in self.inputs],
            "stages": [stage.identity for stage in self.stages],
            "record_stages": [stage.identity for stage in self.record_stages],
            "zone_rules": self.zone_rules,
        }

    @property
    def digest(self) -> str:
        """Hash of all that the state of windows and of `dedupe` depends on. A snapshot, or a result to be revised, is used only
        by a pipeline with the same digest. Emissions of records keep no state, except after a `dedupe`."""
        state = {
            "inputs": [one.identity(one.columns_computed) for one in self.inputs],
            "stages": [stage.identity for stage in self.stages],
            "record_stages": [one for stage in self.record_stages if (one := stage.state_identity)],
            "zone_rules": self.zone_rules,
        }
        return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()

    @property
    def windows(self) -> tuple[WindowShape, ...]:
        """Those of each stage, in order."""
        return tuple(stage.shape for stage in self.stages)


def aliases_of(pipeline: CheckedPipeline) -> dict[str, tuple[str, ...]]:
    """Stage -> the aliases that it emits to."""
    return {
        stage.name: tuple(emit.name for emit in stage.emits if sink_of(emit).has_generations)
        for stage in pipeline.all_stages
    }
