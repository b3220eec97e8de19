"""The pipeline of the simulated job, and what its versions change."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import Any

from strandline.core.documents import YamlDocument, read_documents
from strandline.core.stream import StreamSpec
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.pipelines.model import PipelineSpec

JOB, STREAM, RESULTS = "j", "s", "shorts"
TEXT = """
stream: s
schema: {{device: string, ts: {{type: timestamp, unit: ms}}, power: long}}
---
pipeline: j
input: {{stream: s}}
event_time: {{field: ts, delay: {delay}ms, watermark: {watermark}, idle_timeout: {idle}, max_ahead: {ahead}s}}
steps:
  - where: power < {below}
  - window: {{name: short, {short}, by: [device], aggregate: {{n: count(*), total: sum(power)}}}}
    emit: [{{elasticsearch: short}}, {{stream: shorts}}]
  - window: {{name: minute, tumbling: 1m, by: [device], aggregate: {{n: sum(n), total: sum(total)}}}}
    emit: [{{elasticsearch: minute}}]
"""
MINUTE = WindowShape(60_000, 60_000)
SHORTS = [
    WindowShape(*shape)
    for shape in ((10_000, 10_000), (15_000, 15_000), (20_000, 20_000), (20_000, 5_000), (15_000, 10_000))
]
"""Of the last, no window ends where one begins."""


@dataclass(frozen=True)
class Version:
    """What a version of the pipeline does."""

    below: int
    short: WindowShape
    """Tumbling or sliding."""
    delay_ms: int
    watermark: str
    idle: str
    ahead_s: int = 60

    @property
    def windows(self) -> dict[str, WindowShape]:
        return {"short": self.short, "minute": MINUTE}


def first_version(chance: random.Random) -> Version:
    delay_ms, idle = chance.choice([2_000, 5_000, 20_000]), chance.choice(["null", "5s", "30s"])
    return Version(90, chance.choice(SHORTS), delay_ms, chance.choice(["partitions", "partitions", "newest"]), idle)


def new_version(chance: random.Random, before: Version) -> Version:
    return Version(
        chance.choice([50, 90]),
        chance.choice(SHORTS),
        chance.choice([1_000, before.delay_ms, 30_000]),
        chance.choice(["partitions", "newest"]),
        chance.choice(["null", "5s", "30s"]),
        chance.choice([60, 120]),
    )


@cache
def pipeline_of(version: Version) -> CheckedPipeline:
    stream, pipeline = documents_of(version)
    return check(PipelineSpec.parse(pipeline), StreamSpec.parse(stream))


_PIPELINES: dict[str, PipelineSpec] = {}
_read_document = PipelineSpec.from_document


def pipeline_of_document(document: dict[str, Any]) -> PipelineSpec:
    """What `PipelineSpec.from_document` makes of a stored document. Each run asks for those of the runs before it, and a document
    that was read is not read again: the model never changes."""
    key = repr(document)
    if key not in _PIPELINES:
        _PIPELINES[key] = _read_document(document)
    return _PIPELINES[key]


def document_of(version: Version) -> dict[str, Any]:
    return dict(documents_of(version)[1].data)


@cache
def documents_of(version: Version) -> tuple[YamlDocument, ...]:
    """Its stream and its pipeline. There are some hundred versions in all, and every history has a few of them."""
    text = TEXT.format(
        delay=version.delay_ms,
        idle=version.idle,
        watermark=version.watermark,
        ahead=version.ahead_s,
        below=version.below,
        short=_window_text(version.short),
    )
    return tuple(read_documents(text, "simulation.yaml"))


def _window_text(shape: WindowShape) -> str:
    if shape.size_ms == shape.every_ms:
        return f"tumbling: {shape.size_ms}ms"
    return f"sliding: {{size: {shape.size_ms}ms, every: {shape.every_ms}ms}}"
