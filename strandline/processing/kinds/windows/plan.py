"""The check of the step `window`, and the plan of tumbling and sliding windows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from strandline.core.documents import Path
from strandline.core.times.durations import format_duration
from strandline.processing.kinds.windows.document import WindowSpec
from strandline.processing.kinds.windows.previous_records import aggregates_of_records
from strandline.processing.kinds.windows.window_plan import Argument, WindowForm, WindowPlan
from strandline.processing.pipelines.checks.check_context import CheckContext, step_number
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.pipelines.expressions import packages_called
from strandline.processing.pipelines.stages import Stage
from strandline.processing.pipelines.straddling import straddling_problems


def check(context: CheckContext, path: Path, window: WindowSpec) -> None:
    """Add a problem to `context` for each invalid key or aggregate. End the stage with the columns of its results."""
    for number, name in enumerate(window.by):
        context.check_key((*path, "by", number), name)
    aggregates = {
        name: context.expression((*path, "aggregate", name), text, aggregate=True)
        for name, text in window.aggregate.items()
    }
    columns = tuple(column for column in aggregates.values() if column)
    columns = aggregates_of_records(context, path, window.name, window.shape, window.by, columns)
    by_types = {name: context.columns.get(name) for name in window.by}
    context.end_stage(
        Stage(
            name=window.name,
            windows=window.shape,
            by=tuple(window.by),
            by_types=tuple(kind or "" for kind in by_types.values()),
            aggregates=columns,
            emits=(),
            inputs=(context.output.stage_input(),),
            number=step_number(path),
            packages=tuple(packages_called(column.sql for column in columns).items()),
        ),
        by_types | dict.fromkeys(aggregates) | {column.name: column.type for column in columns},
    )


class EqualWindowPlan(WindowPlan):
    """Windows of one size, which begin at equal distances."""

    kind_in_time_zone = "days"
    forms = (
        WindowForm("tumbling", "tumble", (Argument("size"),), ("tumbling",)),
        WindowForm(
            "sliding",
            "hop",
            (Argument("slide", "every"), Argument("size", "size")),
            ("sliding", "size", "every"),
        ),
    )

    def shape(self, window: Any) -> WindowShape:
        return WindowShape(*_lengths(window), window.offset_ms)

    def contradictions(self, window: Any) -> Iterator[tuple[Path, str]]:
        _, every_ms = _lengths(window)
        if window.tumbling == 0:
            yield ("tumbling",), "a window of no length holds nothing; expected at least 1ms"
        elif window.offset_ms >= every_ms:
            yield late_offset(every_ms)

    def problems_after(self, window: Any, stage: Stage, before: Stage) -> Iterator[tuple[Path, str]]:
        size_ms, every_ms = _lengths(window)
        lengths: list[tuple[Path, int]] = [(("sliding", "size"), size_ms), (("sliding", "every"), every_ms)]
        if window.sliding is None:
            lengths = [(("tumbling",), size_ms)]
        yield from straddling_problems(stage, before, lengths)


def _lengths(window: Any) -> tuple[int, int]:
    """Return the size of a window, and the time from one window to the next."""
    if window.sliding is not None:
        return window.sliding.size, window.sliding.every
    return window.tumbling, window.tumbling


def late_offset(distance_ms: int) -> tuple[Path, str]:
    """Return the problem of an offset that isn't less than the distance between windows."""
    return ("offset",), f"expected less than the {format_duration(distance_ms)} from one window to the next"


PLAN = EqualWindowPlan()
