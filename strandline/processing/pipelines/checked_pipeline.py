"""A pipeline that fits its streams. `checker.check` returns it, and processing compiles it."""

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
    """The fields of `columns_needed` that the pipeline uses, apart from emitting them unchanged with records."""
    event_time_source: EventTimeSource
    event_time_rule: EventTimeRule
    """Rule of event time for this stream."""

    @property
    def name(self) -> str:
        """Name of the stream."""
        return self.stream.stream

    def identity(self, columns: Iterable[str]) -> Identity:
        """Return everything that results depend on if they use these columns of the stream."""
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
    """A pipeline that fits its streams: everything that processing needs. Picklable."""

    spec: PipelineSpec
    inputs: tuple[CheckedInput, ...]
    """Streams that the pipeline reads, in the order of the document."""
    stages: tuple[Stage, ...]
    event_time_rule: EventTimeRule
    """Rule of event time: the rule of the first stream. If the pipeline reads several streams, it contains the rule of each."""
    record_stages: tuple[RecordStage, ...] = ()
    """Emissions of records in their order. None of them is after a window."""
    lookups: tuple[tuple[str, int], ...] = ()
    """Lookups that the pipeline uses, each with the version that enriches slices without a recorded version."""
    tables: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Lookup -> its rows (an operator's `LookupTable`), for local runs, which have no slices that record a version."""

    @property
    def has_several_inputs(self) -> bool:
        """True if the pipeline reads more than one stream."""
        return len(self.inputs) > 1

    @property
    def streams(self) -> dict[str, StreamSpec]:
        """Stream by name, in the order of the document."""
        return {one.name: one.stream for one in self.inputs}

    @property
    def retention_ms(self) -> int:
        """Shortest retention of the streams, in ms. FOREVER_MS if all streams keep their records forever."""
        return min(
            (one.stream.retention_ms for one in self.inputs if one.stream.retention_ms != FOREVER_MS),
            default=FOREVER_MS,
        )

    def input_of(self, stream: str) -> CheckedInput:
        """Return the input of this stream. Raises KeyError if the pipeline doesn't read the stream."""
        return {one.name: one for one in self.inputs}[stream]

    @property
    def job(self) -> str:
        """Name of the job."""
        return self.spec.pipeline

    @property
    def all_stages(self) -> tuple[RecordStage | Stage, ...]:
        """All stages that can emit, in order."""
        return (*self.record_stages, *self.stages)

    @property
    def record_paths(self) -> tuple[RecordPath, ...]:
        """All paths of records to stages."""
        of_windows = (path for stage in self.stages for _, path in stage.record_paths)
        return (*(path for stage in self.record_stages for path in stage.paths), *of_windows)

    @property
    def takers(self) -> tuple[tuple[int, ...], ...]:
        """For each window, the indices of the stages that read its results."""
        taken = places_taken(self.windows)
        return tuple(tuple(at for at, some in enumerate(taken) if place in some) for place in range(len(taken)))

    def taken_by(self, window: str) -> tuple[str, ...]:
        """Return the stages whose results the stage `window` reads; a join can read two. Empty if it reads only records."""
        names = [stage.name for stage in self.stages]
        taken = places_taken(self.windows)[names.index(window)]
        return tuple(names[one] for one in taken if one != RECORDS)

    @property
    def first_stages(self) -> tuple[Stage, ...]:
        """Stages that read records. A pipeline without branches has one."""
        taken = places_taken(self.windows)
        return tuple(stage for stage, some in zip(self.stages, taken, strict=True) if RECORDS in some)

    @property
    def row_steps(self) -> list[RowStep]:
        """All steps that process rows one by one."""
        before = [step for stage in self.all_stages for step in stage.steps_before]
        return before + [step for stage in self.stages for step in stage.post_steps]

    @property
    def functions(self) -> dict[str, str]:
        """Python function that the pipeline calls -> its package, with the release."""
        return {name: package for step in self.row_steps for name, package in step.functions.items()}

    @property
    def packages(self) -> dict[str, str]:
        """Function, format, or kind of a package -> its package, with the release."""
        formats = {name: package for one in self.inputs if (package := package_of(name := one.stream.format))}
        kinds = {step.kind: step.kind_package for step in self.row_steps if step.kind_package}
        kinds |= {stage.kind: stage.kind_package for stage in self.stages if stage.kind_package}
        functions = self.functions | {name: package for stage in self.stages for name, package in stage.packages}
        return functions | formats | kinds

    @property
    def reach_ms(self) -> int:
        """Maximum time in ms by which open state reaches back in event time: the sum over the windows of the longest path. A
        `distinct` reaches back over the whole range, and isn't counted."""
        horizons = [stage.dedupe.within_ms for stage in self.record_stages if stage.dedupe is not None]
        is_distinct = self.dedupe is not None and self.dedupe.compares_all
        return max([reach_of(self.windows), *horizons]) - (WHOLE_RANGE_MS if is_distinct else 0)

    @property
    def dedupe(self) -> DuplicateFilter | None:
        """The step that leaves out duplicates. A pipeline has at most one. None if there is none."""
        return first_dedupe(self.all_stages)

    @property
    def has_late_records(self) -> bool:
        """Whether records can be late: the pipeline has windows that close, or a `dedupe`."""
        return bool(self.stages) or self.dedupe is not None

    @property
    def kept(self) -> dict[str, WindowShape]:
        """Stage with state -> its windows. A start reads records again for these stages: windows, and emissions of records
        after a `dedupe`."""
        kept = {stage.name: stage.shape for stage in self.stages}
        return kept | {
            stage.name: shape_of_records(stage.dedupe.within_ms)
            for stage in self.record_stages
            if stage.dedupe is not None
        }

    @property
    def zone_rules(self) -> str | None:
        """Version of the rules of time zones. None if no result depends on them.

        Results depend on them by days of a zone, by functions of zones, and by times that are sent as local time without an
        offset.
        """
        is_asked = (
            any(stage.windows.time_zone for stage in self.stages)
            or "_UTC_TIMESTAMP(" in json.dumps([stage.identity for stage in self.all_stages])
            or any(one.tz for stream in self.streams.values() for one in stream.fields.values())
        )
        return time_zones.VERSION if is_asked else None

    @property
    def identity(self) -> Identity:
        """Everything that results depend on, except the facts recorded with slices, and the sinks. Two pipelines that compute
        the same have equal identities."""
        return {
            "inputs": [one.identity(one.columns_needed) for one in self.inputs],
            "stages": [stage.identity for stage in self.stages],
            "record_stages": [stage.identity for stage in self.record_stages],
            "zone_rules": self.zone_rules,
        }

    @property
    def digest(self) -> str:
        """Hash of everything that the state of windows and of `dedupe` depends on. Only a pipeline with the same digest uses a
        snapshot, or revises a result. Emissions of records keep no state, except after a `dedupe`."""
        state = {
            "inputs": [one.identity(one.columns_computed) for one in self.inputs],
            "stages": [stage.identity for stage in self.stages],
            "record_stages": [one for stage in self.record_stages if (one := stage.state_identity)],
            "zone_rules": self.zone_rules,
        }
        return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()

    @property
    def windows(self) -> tuple[WindowShape, ...]:
        """Windows of each stage, in the order of the stages."""
        return tuple(stage.shape for stage in self.stages)


def aliases_of(pipeline: CheckedPipeline) -> dict[str, tuple[str, ...]]:
    """Return stage -> the aliases that it emits to."""
    return {
        stage.name: tuple(emit.name for emit in stage.emits if sink_of(emit).has_generations)
        for stage in pipeline.all_stages
    }
