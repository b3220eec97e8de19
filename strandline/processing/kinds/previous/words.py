"""Words for windows of a record and the record before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from strandline.core.times.durations import format_duration
from strandline.processing.kinds.previous.shape import PreviousShape
from strandline.processing.kinds.stage_words import JsonObject
from strandline.processing.kinds.windows.words import SettledWords
from strandline.processing.pipelines.stages import Stage


class PreviousWords(SettledWords):
    """A window ends with its record."""

    keeps = "the last row"

    def hints(self, stage: Stage, graph: JsonObject, delay_ms: int) -> Iterator[str]:
        shape = stage.windows
        assert isinstance(shape, PreviousShape), "chosen by the kind of the windows"
        yield (
            f"'{stage.name}' keeps each row until event time is {format_duration(delay_ms)} past it, and the last row of each "
            f"key for {format_duration(shape.within_ms)}"
        )

    def closing(self, stage: Stage, closed_ms: int, newest_ms: int, time: Callable[[int], str]) -> tuple[int, str]:
        end_ms = stage.shape.last_open_end(newest_ms)
        return end_ms, f"the window of stage {stage.name} that ends with the newest record, at {time(end_ms)}"

    def results_name(self, stage: Stage) -> str:
        return "records with the one before"


WORDS = PreviousWords()
