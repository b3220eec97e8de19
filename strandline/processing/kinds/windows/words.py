"""Words for windows of one size. Those of other kinds of windows are derived from these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

from strandline.core.times.durations import format_duration
from strandline.processing.kinds.stage_words import (
    JsonObject,
    StageInGraph,
    StageWords,
    bytes_of,
    emits_in_words,
    step_in_words,
)
from strandline.processing.pipelines.stages import Stage

_MANY_PARTIALS = 100


class WindowWords(StageWords):
    """Words for windows of one size."""

    def graph(self, here: StageInGraph) -> JsonObject:
        stage = here.stage
        return {
            "name": stage.name,
            "from": here.source,
            "steps_before": [step_in_words(step) for step in here.steps],
            "windows": str(stage.shape),
            "size_ms": stage.size_ms,
            "every_ms": stage.every_ms,
            "by": dict(zip(stage.by, stage.by_types, strict=True)),
            "aggregates": {column.name: column.sql for column in stage.aggregates},
            "steps_after": [step_in_words(step) for step in stage.post_steps],
            "emits": list(emits_in_words(stage)),
            "merged_from_parts": here.is_split,
            "join": None,
            "state": {
                **self.state(here),
                "partials": [str(kind) for kind in here.operator.aggregates.partial_types],
            },
            "results_after_ms": here.delay_ms,
        }

    def state(self, here: StageInGraph) -> JsonObject:
        """Return what the operator keeps for a key: `keeps` in words, and at least `bytes_a_key`. Override it if the state isn't
        panes."""
        stage, operator = here.stage, here.operator
        panes = -(-(stage.size_ms + here.delay_ms + stage.revise_ms) // operator.pane_ms) + 1
        row_bytes, key_bytes = bytes_of(operator.state_schema), bytes_of(operator.key_schema)
        return {
            "keeps": f"{panes:,} panes of {format_duration(operator.pane_ms)}",
            "pane_ms": operator.pane_ms,
            "panes_open": panes,
            "bytes_a_pane_and_key": row_bytes,
            "bytes_a_key": key_bytes + panes * row_bytes,
        }

    def hints(self, stage: Stage, graph: JsonObject, delay_ms: int) -> Iterator[str]:
        if stage.revise_ms:
            yield (
                f"late records revise the results of '{stage.name}' for {format_duration(stage.revise_ms)}: closed windows "
                "stay in its state for this time, and a rewind reads back this much more"
            )
        if any(kind.startswith("list") for kind in graph["state"]["partials"]):
            yield (
                f"'{stage.name}' keeps lists of values. A list is limited, but larger than other partial results: up to 80 kB "
                "for each aggregate, pane, key, and partition, or more if strings are counted"
            )
        if graph["state"].get("panes_open", 0) > _MANY_PARTIALS:
            many = f"{graph['state']['panes_open']:,} partial results"
            yield self.many_partials(stage, many, f"one for each {format_duration(graph['state']['pane_ms'])}")
        if stage.overlaps:
            times = -(-stage.size_ms // stage.every_ms)
            yield f"'{stage.name}' writes up to {times} results for each {format_duration(stage.size_ms)} and key"

    def many_partials(self, stage: Stage, many: str, each: str) -> str:
        """Return the hint on many partial results of one key. `many`: how many there are. `each`: the time that one covers."""
        return f"'{stage.name}' keeps {many} for a key, {each}; a longer distance between windows or a shorter delay keeps fewer"

    def closing(self, stage: Stage, closed_ms: int, newest_ms: int, time: Callable[[int], str]) -> tuple[int, str]:
        end_ms = stage.shape.first_end(closed_ms)
        return end_ms, f"the window of stage {stage.name} that ends at {time(end_ms)}"


class SettledWords(WindowWords):
    """Words for windows whose rows wait in the state until their order is final."""

    keeps: ClassVar[str]
    """What remains of each key after its rows are settled: one row of the state, in words."""

    def state(self, here: StageInGraph) -> JsonObject:
        row_bytes, key_bytes = bytes_of(here.operator.state_schema), bytes_of(here.operator.key_schema)
        return {
            "keeps": f"{self.keeps}; rows of {format_duration(here.delay_ms)}, {row_bytes:,} bytes each",
            "bytes_a_key": key_bytes + row_bytes,
            "bytes_a_waiting_row": row_bytes,
        }


WORDS = WindowWords()
