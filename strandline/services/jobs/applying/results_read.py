"""Which results a pipeline can't read: those that follow from its own, and those that it would read as what senders send."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from strandline.core.errors import Conflict
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.result_streams import emissions_to_streams, streams_of_windows


class ResultsRead:
    """Checks those that the pipelines of one text read."""

    def __init__(self, specs: Mapping[str, PipelineSpec], submitted: Collection[str]) -> None:
        """`specs`: job -> its pipeline, of all that would be there. `submitted`: the jobs of the text."""
        self._specs, self._submitted = specs, submitted
        self._emitters = {stream: job for job, spec in specs.items() for _, stream in emissions_to_streams(spec)}
        self._before = {
            job: [self._emitters[stream] for stream in spec.streams if stream in self._emitters]
            for job, spec in specs.items()
        }
        """Job -> those whose results it reads."""
        self._of_windows = {stream for spec in specs.values() for stream in streams_of_windows(spec)}

    def refuse_beside_streams(self, submitted: str) -> None:
        """Refuse a job of the text that would read results beside streams as it reads others, and so would lose some; or that
        would emit to a stream which a job that isn't in the text reads so. Raises Conflict."""
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
                        f"job {job} reads {read.stream} beside other streams as what senders send, and job {emitter} would emit "
                        f"to it; apply the pipeline of job {job} together with it, so that it waits for the results"
                    )

    def refuse_circle(self, job: str) -> None:
        """Refuse a job that would read what follows from its own results: it would never end. Raises Conflict."""
        if way := find_circle(self._before, job):
            raise Conflict(
                f"job {job} would read what follows from its own results: {' -> '.join(way)}; have one of them read, or emit to, "
                "another stream"
            )


def find_circle(before: Mapping[str, list[str]], job: str) -> list[str]:
    """A way from this job, each time to one that reads results of the one before, back to it; empty if there is none. `before`:
    of each job those whose results it reads."""
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
