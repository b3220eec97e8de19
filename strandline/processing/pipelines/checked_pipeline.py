"""A pipeline that fits its stream, as `checker.check` returns it and processing compiles it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from strandline.core.stream import StreamSpec
from strandline.ledger.states import EventTimeRule
from strandline.processing.pipelines import calendars
from strandline.processing.pipelines.event_time import EventTimeSource, WindowShape
from strandline.processing.pipelines.model import PipelineSpec
from strandline.processing.pipelines.stages import RecordStage, RowStep, Stage


@dataclass(frozen=True)
class CheckedPipeline:
    """A pipeline that fits its stream: all that processing needs, picklable."""

    spec: PipelineSpec
    stream: StreamSpec
    stages: tuple[Stage, ...]
    columns_needed: tuple[str, ...]
    """The stream's fields that the pipeline reads, in the order of the schema."""
    event_time_source: EventTimeSource
    event_time_rule: EventTimeRule
    """How event time is treated."""
    record_stages: tuple[RecordStage, ...] = ()
    """The emissions of records, in their order; all stand before the first window."""

    @property
    def job(self) -> str:
        """The job's name."""
        return self.spec.pipeline

    @property
    def all_stages(self) -> tuple[RecordStage | Stage, ...]:
        """All that may emit, in order."""
        return (*self.record_stages, *self.stages)

    @property
    def record_steps(self) -> tuple[RowStep, ...]:
        """All steps that are done to records."""
        return (self.stages or self.record_stages[-1:])[0].pre_steps

    @property
    def reach_ms(self) -> int:
        """How far back in event time open state can go: as far as all windows together depend on events."""
        return sum(stage.shape.reach_ms for stage in self.stages)

    @property
    def compiled(self) -> tuple[object, ...]:
        """All that results depend on, besides what is recorded with the slices: equal of two pipelines that compute the same."""
        types = self.stream.types
        columns = tuple(sorted((name, types[name]) for name in self.columns_needed))
        rules = calendars.VERSION if any(stage.zone for stage in self.stages) else None
        return self.stages, self.record_stages, columns, self.event_time_source, rules

    @property
    def digest(self) -> str:
        """`compiled` in a few characters."""
        return hashlib.sha256(repr(self.compiled).encode()).hexdigest()

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
