"""Refusal of pipelines that read results of their own, and of pipelines that would read results as records of senders."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from strandline.core.errors import Conflict
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.result_streams import emissions_to_streams, streams_of_windows


class ResultsRead:
    """Checks which results of jobs the pipelines that are applied together read, and how."""

    def __init__(self, specs: Mapping[str, PipelineSpec], submitted: Collection[str]) -> None:
        """Args: specs: Job -> its pipeline, for all jobs after the application. submitted: Jobs whose pipelines are
        applied now.
        """
        self._specs, self._submitted = specs, submitted
        self._emitters = {stream: job for job, spec in specs.items() for _, stream in emissions_to_streams(spec)}
        self._before = {
            job: [self._emitters[stream] for stream in spec.streams if stream in self._emitters]
            for job, spec in specs.items()
        }
        """Job -> jobs whose results it reads."""
        self._of_windows = {stream for spec in specs.values() for stream in streams_of_windows(spec)}

    def refuse_beside_streams(self, submitted: str) -> None:
        """Raise Conflict if a job would read results and other streams, but not wait for the results (`watermark:
        emissions`). With the rules for records of senders, some results would be late for it.

        `submitted`: The job that is refused: the reader, or the emitter of the results if the reader's pipeline isn't
        applied now.
        """
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
                        f"job {job} reads stream {read.stream} and others by the rules for senders, but job {emitter} would "
                        f"emit results to it, and some would be late. Apply the pipelines of both jobs together; then job {job} "
                        "waits for the results"
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
