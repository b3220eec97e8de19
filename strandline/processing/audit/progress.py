"""The progress of an audit, as JSON lines on stdout for the control service."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

_LOOK_S = 0.3


def tell(what: str, content: Any) -> None:
    """Write one line: `{what: content}`."""
    print(json.dumps({what: content}), flush=True)


@dataclass
class Progress:
    """The present step of an audit; written whenever it changes."""

    step: str = ""
    done: int = 0
    total: int = 0
    """Spark tasks of this step; 0 while that is unknown."""
    _stages: dict[int, tuple[int, int]] = field(default_factory=dict)

    @contextmanager
    def of(self, step: str, spark: SparkSession) -> Iterator[None]:
        """Write how many of Spark's tasks are done while the block runs."""
        self.step, self.done, self.total, self._stages = step, 0, 0, {}
        tell("progress", {"step": step, "done": 0, "total": 0})
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(_LOOK_S):
                self._look(spark)

        watcher = threading.Thread(target=watch, name="audit-progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def _look(self, spark: SparkSession) -> None:
        tracker = spark.sparkContext.statusTracker()
        for number in tracker.getActiveStageIds():
            info = tracker.getStageInfo(number)
            if info is not None:
                self._stages[number] = (info.numCompletedTasks, info.numTasks)
        for number in self._stages.keys() - set(tracker.getActiveStageIds()):
            self._stages[number] = (self._stages[number][1],) * 2
        done, total = (sum(values) for values in zip(*self._stages.values(), strict=True)) if self._stages else (0, 0)
        if (done, total) != (self.done, self.total):
            self.done, self.total = done, total
            tell("progress", {"step": self.step, "done": done, "total": total})
