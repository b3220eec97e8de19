"""The pipeline of the simulated job, and what its versions change."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import Any

from strandline.core.streams.stream import StreamSpec
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.pipelines.model.pipeline import PipelineSpec

JOB, STREAM, RESULTS = "j", "s", "shorts"
STREAM_DOCUMENT: dict[str, Any] = {
    "stream": STREAM,
    "schema": {"device": "string", "ts": {"type": "timestamp", "unit": "ms"}, "power": "long"},
}
MINUTE = WindowShape(60_000, 60_000)
SHORTS = [
    WindowShape(*shape)
    for shape in ((10_000, 10_000), (15_000, 15_000), (20_000, 20_000), (20_000, 5_000), (15_000, 10_000))
]
"""Shapes of the short windows. In the last one, no window ends where another starts."""


@dataclass(frozen=True)
class Version:
    """Behaviour of a version of the pipeline."""

    below: int
    short: WindowShape
    """Tumbling or sliding."""
    delay_ms: int
    watermark: str
    idle: str | None
    ahead_s: int = 60

    @property
    def windows(self) -> dict[str, WindowShape]:
        return {"short": self.short, "minute": MINUTE}


def first_version(chance: random.Random) -> Version:
    delay_ms, idle = chance.choice([2_000, 5_000, 20_000]), chance.choice([None, "5s", "30s"])
    return Version(90, chance.choice(SHORTS), delay_ms, chance.choice(["partitions", "partitions", "newest"]), idle)


def new_version(chance: random.Random, before: Version) -> Version:
    return Version(
        chance.choice([50, 90]),
        chance.choice(SHORTS),
        chance.choice([1_000, before.delay_ms, 30_000]),
        chance.choice(["partitions", "newest"]),
        chance.choice([None, "5s", "30s"]),
        chance.choice([60, 120]),
    )


@cache
def pipeline_of(version: Version) -> CheckedPipeline:
    return check(pipeline_of_document(document_of(version)), StreamSpec.from_document(STREAM_DOCUMENT))


@cache
def shapes_of(version: Version) -> tuple[WindowShape, ...]:
    """Return the windows of the stages of its pipeline, in order."""
    return pipeline_of(version).windows


_PIPELINES: dict[int, tuple[dict[str, Any], PipelineSpec]] = {}
_read_document = PipelineSpec.from_document


def pipeline_of_document(document: dict[str, Any]) -> PipelineSpec:
    """Return what `PipelineSpec.from_document` gives for a stored document.

    Each run requests those of the runs before it, and a document is read only once, because neither it nor the model
    ever changes.
    """
    known = _PIPELINES.get(id(document))
    if known is None:  # which keeps the document, so that no other ever has its id
        known = _PIPELINES[id(document)] = document, _read_document(document)
    return known[1]


@cache
def document_of(version: Version) -> dict[str, Any]:
    """Return the document as the ledger stores it.

    There are a few hundred versions in all, and every history has a few of them.
    """
    short, emit = version.short, [{"elasticsearch": "short"}, {"stream": RESULTS}]
    if short.size_ms == short.every_ms:
        windows: dict[str, Any] = {"tumbling": f"{short.size_ms}ms"}
    else:
        windows = {"sliding": {"size": f"{short.size_ms}ms", "every": f"{short.every_ms}ms"}}
    sums = {"n": "count(*)", "total": "sum(power)"}
    sums_of_sums = {"n": "sum(n)", "total": "sum(total)"}
    return {
        "pipeline": JOB,
        "input": {"stream": STREAM},
        "event_time": {
            "field": "ts",
            "delay": f"{version.delay_ms}ms",
            "watermark": version.watermark,
            "idle_timeout": version.idle,
            "max_ahead": f"{version.ahead_s}s",
        },
        "steps": [
            {"where": f"power < {version.below}"},
            {"window": {"name": "short", **windows, "by": ["device"], "aggregate": sums}, "emit": emit},
            {
                "window": {"name": "minute", "tumbling": "1m", "by": ["device"], "aggregate": sums_of_sums},
                "emit": [{"elasticsearch": "minute"}],
            },
        ],
    }
