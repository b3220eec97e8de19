"""Words for joins."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from strandline.core.times.durations import format_duration
from strandline.processing.kinds.join.step import JoinStage
from strandline.processing.kinds.stage_words import (
    JsonObject,
    StageInGraph,
    StageWords,
    bytes_of,
    emits_in_words,
    step_in_words,
)
from strandline.processing.pipelines.stages import LEFT, RIGHT, Stage


class JoinWords(StageWords):
    """Words for rows that are joined."""

    def graph(self, here: StageInGraph) -> JsonObject:
        """Return the join as plain data. `size_ms`: the longest window of a result."""
        stage, pipeline, operator = _join(here.stage), here.pipeline, here.operator
        spec = next(one.join for one in pipeline.spec.steps if one.join is not None and one.join.name == stage.name)
        row_bytes, key_bytes = bytes_of(operator.state_schema), bytes_of(operator.key_schema)
        sides = {LEFT: ("left", spec.left), RIGHT: ("right", spec.right)}
        streams = {side: [pipeline.inputs[one.stream].name for one in stage.inputs[side].paths] for side in sides}
        holds_ms = [stage.size_ms if stage.in_windows else stage.hold_ms(side) for side in (LEFT, RIGHT)]
        return {
            "name": stage.name,
            "from": f"{spec.left}, {spec.right}",
            "steps_before": [
                f"{sides[side][0]}: {step_in_words(step)}"
                + (f" ({pipeline.inputs[path.stream].name})" if len(streams[side]) > 1 else "")
                for side, path in stage.record_paths
                for step in path.steps
            ]
            + [
                f"{sides[side][0]}: {step_in_words(step)}"
                for side, given in stage.result_inputs
                for step in given.steps
            ],
            "windows": str(stage.shape),
            "size_ms": stage.size_ms,
            "every_ms": stage.every_ms,
            "by": dict(zip(stage.by, stage.by_types, strict=True)),
            "aggregates": {},
            "steps_after": [step_in_words(step) for step in stage.post_steps],
            "emits": list(emits_in_words(stage)),
            "merged_from_parts": False,
            "join": {
                "type": stage.type,
                "left": spec.left,
                "left_streams": streams[LEFT],
                "right": spec.right,
                "right_streams": streams[RIGHT],
                "add": dict(spec.add),
                "left_is_held_ms": holds_ms[LEFT] + here.delay_ms,
                "right_is_held_ms": holds_ms[RIGHT] + here.delay_ms,
                "max_rows": stage.max_rows,
                "latest": stage.is_latest,
            },
            "state": {"bytes_a_row": row_bytes, "bytes_a_key": key_bytes, "partials": []},
            "results_after_ms": here.delay_ms,
        }

    def hints(self, stage: Stage, graph: JsonObject, delay_ms: int) -> Iterator[str]:
        join = _join(stage)
        if join.is_latest:
            yield (
                f"'{stage.name}' keeps the latest row on the right of each key until it is "
                f"{format_duration(join.before_ms)} old, and rows that wait for the watermark"
            )
            return
        rows_bytes = graph["state"]["bytes_a_row"] * join.max_rows * 2
        yield (
            f"'{stage.name}' keeps each row while a partner can arrive, up to {rows_bytes:,} bytes for each key "
            f"(max_rows: {join.max_rows:,} on each side), and more while rows wait for the watermark. If both sides have "
            f"max_rows, they make {join.max_rows**2:,} results, which are in memory together if they close together"
        )

    def closing(self, stage: Stage, closed_ms: int, newest_ms: int, time: Callable[[int], str]) -> tuple[int, str]:
        if _join(stage).in_windows:
            end_ms = stage.shape.first_end(closed_ms)
            return end_ms, f"the window of stage {stage.name} that ends at {time(end_ms)}"
        end_ms = stage.shape.last_open_end(newest_ms)
        words = f"the last row that join {stage.name} holds until a partner can no longer come, at {time(end_ms)}"
        return end_ms, words

    def results_name(self, stage: Stage) -> str:
        return "" if _join(stage).in_windows else "joined rows"


def _join(stage: Stage) -> JoinStage:
    assert isinstance(stage, JoinStage), "chosen by the kind of the stage"
    return stage


WORDS = JoinWords()
