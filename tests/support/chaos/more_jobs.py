"""The jobs of a run.

If more jobs than the first (`work.py`) are requested, a second one reads the results of its short windows, and a third
one reads the same input as the first. All others are copies of the second and the third in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.support.chaos.checking import pipelines
from tests.support.chaos.checking.pace import AGAIN, ALL, DELAY_MS, IDLE_MS, LONG, MAX_AHEAD_MS, SHORT, Pace
from tests.support.chaos.checking.pipelines import Pipeline
from tests.support.chaos.checking.versions import Version

JOBS_MAX = 50
_SECOND = """\
pipeline: {name}
input: {{stream: {stream}}}
event_time: {{field: window_start, delay: 0s, max_ahead: {ahead}}}
steps:
  - derive: {{crowd: n / busy}}
  - window:
      name: {stage}
      tumbling: {size}
      by: [client]
      aggregate:
        n: sum(n)
        parts: count(*)
        load: avg(load)
        peak: max(peak)
        crowd: max(crowd)
        total: sum(total * {times})
        cost: sum(cost)
    emit: [{{elasticsearch: {name}-{stage}}}]
"""
_THIRD = """\
pipeline: {name}
input: {{stream: {stream}}}
event_time: {{field: ts, delay: {delay}, idle_timeout: {idle}, max_ahead: {ahead}}}
steps:
  - derive: {{load: power / rated}}
  - where: load < {load_below}
  - window:
      name: {stage}
      sliding: {{size: {size}, every: {every}}}
      by: []
      aggregate:
        n: count(*)
        load: avg(load)
        mean: "round(avg(load), 2)"
        peak: max(power)
        total: sum(count * {times})
        cost: sum(cost)
    emit: [{{elasticsearch: {name}-{stage}}}]
"""


@dataclass(frozen=True)
class ChaosJob:
    name: str
    stream: str
    """What it reads."""
    stages: tuple[str, ...]
    """Stages with windows."""
    pipeline: Callable[[Pace], Pipeline]
    """What the checker knows of it."""
    document: str = ""
    """To be filled in by `documents_of`; that of the first job is in `work.py`."""
    results: str | None = None
    """The stream to which its first stage emits."""
    records: str | None = None
    """The stage that emits records without a window, if there is one."""

    @property
    def emissions(self) -> tuple[str, ...]:
        return self.stages if self.records is None else (self.records, *self.stages)


def jobs_of(name: str, stream: str, count: int) -> list[ChaosJob]:
    """Return the first job and the additional ones. A job that reads results of another is after it."""
    results = f"{name}-{SHORT}"
    found = [ChaosJob(name, stream, (SHORT, LONG), pipelines.first, results=results)]
    for number in range((JOBS_MAX + 1) // 2):
        copy = f"-{number}" if number else ""
        found += [
            ChaosJob(f"{name}-second{copy}", results, (AGAIN,), pipelines.second, _SECOND),
            ChaosJob(f"{name}-third{copy}", stream, (ALL,), pipelines.third, _THIRD),
        ]
    return found[:count]


def documents_of(jobs: list[ChaosJob], pace: Pace, versions: Mapping[str, int]) -> list[str]:
    """Return the documents of the additional jobs, as YAML, each in its version.

    More fields may be appended to each.
    """
    return [
        job.document.format(
            name=job.name,
            stream=job.stream,
            stage=job.stages[0],
            size=f"{pace.long_ms}ms",
            every=f"{pace.short_ms}ms",
            delay=f"{DELAY_MS}ms",
            idle=f"{IDLE_MS}ms",
            ahead=f"{MAX_AHEAD_MS}ms",
            load_below=Version(versions[job.name]).load_below,
            times=Version(versions[job.name]).times,
        )
        for job in jobs[1:]
    ]
