"""Words for windows that count records."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from strandline.core.times.durations import format_duration
from strandline.processing.kinds.count.shape import CountShape
from strandline.processing.kinds.stage_words import JsonObject
from strandline.processing.kinds.windows.words import SettledWords
from strandline.processing.pipelines.stages import Stage


class CountWords(SettledWords):
    """A window ends when it is full, or with its period."""

    keeps = "one window"

    def hints(self, stage: Stage, graph: JsonObject, delay_ms: int) -> Iterator[str]:
        yield (
            f"'{stage.name}' keeps each row until event time is {format_duration(delay_ms)} past it, because its order is not "
            f"known before, and one window of each key until the next multiple of {format_duration(stage.size_ms)}"
        )
        yield from super().hints(stage, graph, delay_ms)

    def closing(self, stage: Stage, closed_ms: int, newest_ms: int, time: Callable[[int], str]) -> tuple[int, str]:
        shape = stage.windows
        assert isinstance(shape, CountShape), "chosen by the kind of the windows"
        end_ms = stage.shape.last_end_holding(newest_ms)
        words = f"the window of stage {stage.name} that ends at {time(end_ms)}, or when it has {shape.count:,} records"
        return end_ms, words


WORDS = CountWords()
