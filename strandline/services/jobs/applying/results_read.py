"""Refusal of pipelines that read results of their own, and of pipelines that would read results as records of senders."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from strandline.core.errors import Conflict
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.result_streams import emissions_to_streams, streams_of_windows


class ResultsRead:
    """Checks the results that the pipelines of one text read."""

    def __init__(self, specs: Mapping[str, PipelineSpec], submitted: Collection[str]) -> None:
        """Args: specs: Job -> its pipeline, for all jobs after the application. submitted: Jobs of the text."""
        self._specs, self._submitted = specs, submitted
        self._emitters = {stream: job for job, spec in specs.items() for _, stream in emissions_to_streams(spec)}
        self._before = {
            job: [self._emitters[stream] for stream in spec.streams if stream in self._emitters]
            for job, spec in specs.items()
        }
        """Job -> jobs whose results it reads."""
        self._of_windows = {stream for spec in specs.values() for stream in streams_of_windows(spec)}

    def refuse_beside_streams(self, submitted: str) -> None:
        """Refuse a job that reads results in parallel with other streams with the rules for senders, and so would lose some.
        Also refuse a job that emits to a stream that a job outside of the text reads in this form. Raises Conflict."""
        for job, spec in self._specs.items():
            for read in spec.reads:
                if (
                    len(spec.reads) == 1
                    or read.stream not in self._of_windows
                    or read.event_time.watermark == "emissions"
                ):
                    continue
                emitter = self._emitters[read.stream]
                if submitted == (job if job in self._submitted else emitter):
                    raise Conflict(
                        f"job {job} reads {read.stream} in parallel with other streams as records of senders, but job {emitter} "
                        f"would emit to it. Apply the pipeline of job {job} together with it, so that it waits for the results"
                    )

    def refuse_circle(self, job: str) -> None:
        """Refuse a job that would read results computed from its own results, because it would never end. Raises Conflict."""
        if way := find_circle(self._before, job):
            raise Conflict(
                f"job {job} would read results computed from its own results: {' -> '.join(way)}; let one of "
                "them read from, or emit to, another stream"
            )


def find_circle(before: Mapping[str, list[str]], job: str) -> list[str]:
    """Return a circular path from this job through readers of results. Empty if there is none.

    Args: before: Job -> jobs whose results it reads.
    """
    ways, seen = [[job]], set[str]()
    while ways:
        way = ways.pop()
        for one in before.get(way[0], []):
            if one == job:
                return [job, *way]
            if one not in seen:
                seen.add(one)
                ways.append([one, *way])
    return []
