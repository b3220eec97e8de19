"""Words of each kind of stage, for the graph of a pipeline, its hints, and the explanation of a job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from strandline.core.times.durations import format_duration
from strandline.processing.operators.windows import WindowOperator
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.kind_registry import part_of
from strandline.processing.pipelines.row_step import RowStep
from strandline.processing.pipelines.stages import RecordStage, Stage
from strandline.results.names import open_index

JsonObject = dict[str, Any]
"""JSON object."""
TEXT_BYTES = 24
"""Estimated size of a string."""
LIST_VALUES = 20
"""Estimated number of values of a list."""


@dataclass(frozen=True)
class StageInGraph:
    """A stage with its surroundings in the graph of its pipeline."""

    pipeline: CheckedPipeline
    stage: Stage
    operator: WindowOperator
    source: str
    """Names of the streams, of the stage, or of the emission of records that the stage reads. For a join, those of its left
    side."""
    steps: Sequence[RowStep]
    """Steps from the source to the stage."""
    delay_ms: int
    """Longest delay of the inputs."""
    is_split: bool
    """True if its results are merged from parts of several buckets."""


class StageWords(ABC):
    """The words of one kind of stage."""

    @abstractmethod
    def graph(self, here: StageInGraph) -> JsonObject:
        """Return the stage as plain data. The keys are the same for all kinds, except within `join` and `state`."""

    @abstractmethod
    def hints(self, stage: Stage, graph: JsonObject, delay_ms: int) -> Iterator[str]:
        """Yield sentences on the cost of the stage and on surprising behaviour. `graph`: the result of the method `graph`."""

    def results_name(self, stage: Stage) -> str:
        """Return the name of the windows in titles of charts, such as `sessions`, if they begin and end with records. Empty for
        windows of one size, whose length is in the title."""
        return ""

    @abstractmethod
    def closing(self, stage: Stage, closed_ms: int, newest_ms: int, time: Callable[[int], str]) -> tuple[int, str]:
        """Return the end of the window that closes next, and words for it.

        Args:
            closed_ms: Event time up to which windows are closed.
            newest_ms: Event time of the newest record.
            time: Returns a time as the sentence shows it.
        """


def words_of(stage: Stage) -> StageWords:
    """Return the words of the kind of a stage."""
    words: StageWords = part_of(stage.kind, "words").WORDS
    return words


def emits_in_words(stage: RecordStage | Stage) -> Iterator[str]:
    for emit in stage.emits:
        yield f"{emit.kind}: {emit.name}"
        if emit.index.updates_ms is not None:
            every = format_duration(emit.index.updates_ms)
            yield f"{emit.kind}: {open_index(emit.name)}, open windows every {every}"


def step_in_words(step: RowStep) -> str:
    description: str = part_of(step.kind, "words").describe(step)
    return description


def bytes_of(schema: pa.Schema) -> int:
    """Return the approximate number of bytes of a row."""
    total = 0
    for kind in schema.types:
        try:
            total += -(-kind.bit_width // 8)
        except ValueError:  # a string, or a list
            total += TEXT_BYTES * (LIST_VALUES if pa.types.is_list(kind) else 1)
    return total
