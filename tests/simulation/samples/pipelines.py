"""The pipelines over the meters: counters, whose results are final, and windows whose results late records revise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from strandline.core.streams.stream import StreamSpec
from strandline.processing.operators.cascade import Cascade
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.source.decoding import task_config
from strandline.processing.source.slice_rows import bucket_keys
from strandline.processing.source.source_task import SourceTask
from tests.simulation.chance import Chance
from tests.simulation.samples.history import HOUR_MS, MINUTE_MS, STREAM

JOB = "meter-job"
STREAM_DOCUMENT: dict[str, Any] = {
    "stream": STREAM,
    "partitions": 3,
    "key": "meter",
    "schema": {
        "meter": "string",
        "ts": {"type": "timestamp", "unit": "ms"},
        "wh": "double?",
        "level": "double",
    },
}
USED = {"n": "count(*)", "used": "increase(wh)"}
COUNTERS: dict[str, list[dict[str, Any]]] = {
    "quarters": [{"name": "used", "tumbling": "15m", "aggregate": USED}],
    "rates": [
        {
            "name": "used",
            "tumbling": "1h",
            "aggregate": {"used": "increase(wh, '6h')", "rate": "rate(wh, '6h')", "on_s": "duration(level > 1, '6h')"},
        }
    ],
    "records": [
        {
            "name": "used",
            "previous": {"within": "1h"},
            "aggregate": {"wh": "current(wh)", "was": "lag(wh)", "step": "delta(wh)", "used": "increase(wh)"},
        }
    ],
    "hours": [
        {"name": "used", "tumbling": "15m", "aggregate": USED},
        {"name": "hours", "tumbling": "1h", "aggregate": {"n": "sum(n)", "used": "sum(used)"}},
    ],
}
"""Form -> its windows."""
OFTEN = ["quarters"] * 3 + ["records"] * 3 + ["rates", "hours"]
"""Forms with the share of each. The last two take more time."""
LEVELS = {"n": "count(*)", "total": "sum(level)", "most": "max(wh)"}
REVISED: dict[str, tuple[dict[str, Any], int, int]] = {
    "tumbling": ({"tumbling": "30m"}, 30 * MINUTE_MS, 30 * MINUTE_MS),
    "sliding": ({"sliding": {"size": "1h", "every": "20m"}}, HOUR_MS, 20 * MINUTE_MS),
    "cumulative": ({"cumulative": {"size": "1h", "step": "20m"}}, HOUR_MS, 20 * MINUTE_MS),
    "of all meters": ({"tumbling": "30m"}, 30 * MINUTE_MS, 30 * MINUTE_MS),
}
"""Form -> its windows, with their size and step."""


@dataclass(frozen=True)
class Setup:
    """A pipeline. Equal ones are compiled once."""

    form: str
    delay_ms: int
    idle_ms: int | None
    revise_ms: int = 0

    @property
    def is_revised(self) -> bool:
        return self.revise_ms > 0

    @property
    def by(self) -> tuple[str, ...]:
        return () if self.form == "of all meters" else ("meter",)

    @property
    def document(self) -> dict[str, Any]:
        idle = None if self.idle_ms is None else f"{self.idle_ms}ms"
        windows = COUNTERS.get(self.form) or [{"name": "used", **REVISED[self.form][0], "aggregate": LEVELS}]
        return {
            "pipeline": JOB,
            "input": {"stream": STREAM},
            "event_time": {"field": "ts", "delay": f"{self.delay_ms}ms", "idle_timeout": idle},
            **({"late": {"revise": f"{self.revise_ms}ms"}} if self.is_revised else {}),
            "steps": [
                {"window": {**one, "by": list(self.by)}, "emit": [{"elasticsearch": one["name"]}]} for one in windows
            ],
        }

    @cached_property
    def pipeline(self) -> CheckedPipeline:
        return check(PipelineSpec.from_document(self.document), StreamSpec.from_document(STREAM_DOCUMENT))

    @cached_property
    def _compiled(self) -> dict[int, Compiled]:
        return {}

    def compiled(self, buckets: int) -> Compiled:
        if buckets not in self._compiled:
            self._compiled[buckets] = Compiled(self.pipeline, buckets)
        return self._compiled[buckets]


class Compiled:
    """The tasks of a pipeline for some number of buckets. They contain only constants."""

    def __init__(self, pipeline: CheckedPipeline, buckets: int) -> None:
        self.keys = bucket_keys(buckets, 2)
        self.config = task_config(pipeline, "nowhere", self.keys)
        self.source = SourceTask(self.config)
        self.cascade = Cascade(pipeline.stages, buckets)


@cache
def setup_of(form: str, delay_ms: int, idle_ms: int | None, revise_ms: int) -> Setup:
    return Setup(form, delay_ms, idle_ms, revise_ms)


TIMES = [
    (0, None, 20 * MINUTE_MS),
    (MINUTE_MS, 20 * MINUTE_MS, 60 * HOUR_MS),
    (MINUTE_MS, None, 3 * HOUR_MS),
    (30 * MINUTE_MS, HOUR_MS, 60 * HOUR_MS),
]
"""Delay, idle timeout, and for how long late records revise results."""


def draw_counters(chance: Chance) -> Setup:
    delay_ms, idle_ms, _ = chance.choice(TIMES)
    return setup_of(chance.choice(OFTEN), delay_ms, idle_ms, 0)


def draw_revised(chance: Chance) -> Setup:
    return setup_of(chance.choice([*REVISED]), *chance.choice(TIMES))
