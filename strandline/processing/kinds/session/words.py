"""Words for sessions."""

from __future__ import annotations

from collections.abc import Callable

from strandline.processing.kinds.session.shape import SessionShape
from strandline.processing.kinds.windows.words import WindowWords
from strandline.processing.pipelines.stages import Stage


class SessionWords(WindowWords):
    """Sessions begin and end with records."""

    def results_name(self, stage: Stage) -> str:
        return "sessions"

    def many_partials(self, stage: Stage, many: str, each: str) -> str:
        return f"'{stage.name}' keeps {many} for a key that never pauses, {each}; a shorter 'max' keeps fewer"

    def closing(self, stage: Stage, closed_ms: int, newest_ms: int, time: Callable[[int], str]) -> tuple[int, str]:
        shape = stage.windows
        assert isinstance(shape, SessionShape), "chosen by the kind of the windows"
        end_ms = newest_ms + shape.gap_ms
        return end_ms, f"the session of stage {stage.name} that ends at {time(end_ms)} unless records follow"


WORDS = SessionWords()
