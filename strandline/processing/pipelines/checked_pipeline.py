"""A pipeline that fits its stream, as `checker.check` returns it and processing compiles it."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.core.stream import StreamSpec
from strandline.processing.pipelines.event_time import EventTimeRule
from strandline.processing.pipelines.model import PipelineSpec
from strandline.processing.pipelines.stages import Stage


@dataclass(frozen=True)
class CheckedPipeline:
    """A pipeline that fits its stream: all that processing needs, picklable."""

    spec: PipelineSpec
    stream: StreamSpec
    stages: tuple[Stage, ...]
    columns_needed: tuple[str, ...]
    """The stream's fields that the pipeline reads, in the order of the schema."""
    event_time_field: str
    delay_ms: int
    idle_timeout_ms: int | None
    max_ahead_ms: int | None

    @property
    def job(self) -> str:
        """The job's name."""
        return self.spec.pipeline

    @property
    def reach_ms(self) -> int:
        """How far back in event time open state can go: the sizes of all windows together."""
        return sum(stage.size_ms for stage in self.stages)

    @property
    def event_time_rule(self) -> EventTimeRule:
        """How event time is treated."""
        return EventTimeRule(self.delay_ms, self.idle_timeout_ms, tuple(stage.size_ms for stage in self.stages))


def aliases_of(pipeline: CheckedPipeline) -> dict[str, tuple[str, ...]]:
    """Stage -> the aliases that it emits to."""
    return {
        stage.name: tuple(emit.name for emit in stage.emits if emit.kind == "elasticsearch")
        for stage in pipeline.stages
    }
