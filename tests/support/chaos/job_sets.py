"""Sets of jobs for the ladder: the jobs of a stack, their documents, and the senders of their streams.

A set of jobs is one class here, or in a module of its own (`shapes/job_set.py`). The stack, the nemesis, and the ladder use only
this contract, so none of them knows a set by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

from tests.support.chaos.checking.pace import Pace
from tests.support.chaos.graph_job import graph_document, graph_job, lookup_document
from tests.support.chaos.more_jobs import ChaosJob, documents_of, jobs_of
from tests.support.chaos.work import JobLoad, RestingLoad, documents, stream_document
from tests.support.faults.history import History

JOB, STREAM = "chaos", "chaos-readings"


class JobSet(Protocol):
    """Jobs that run together, and their input."""

    jobs: list[ChaosJob]
    """A job that reads results of another one is after it."""
    gateways: tuple[str, ...]
    """The gateways that its senders use."""
    has_lookup: bool
    """True if a lookup of these jobs changes while they run."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams to which senders write."""

    def stream_documents(self) -> list[str]:
        """Return the documents of these streams, as YAML."""

    def lookup_documents(self, version: int) -> list[str]:
        """Return the documents of lookups in this version, as YAML."""

    def pipeline_documents(self, pace: Pace, versions: Mapping[str, int]) -> list[str]:
        """Return the document of each job in its version, as YAML. More fields may be appended to each."""

    def load(
        self, stream: str, history: History, ports: Mapping[str, int], *, seed: int, speed: int, rate: int
    ) -> RestingLoad:
        """Return the senders of a stream. `ports`: setting of a gateway -> its port. `rate`: records/s of this stream."""


class ReadingJobs:
    """The job of `work.py`, and the additional ones of `more_jobs.py`."""

    gateways: tuple[str, ...] = ("http",)
    streams: ClassVar[tuple[str, ...]] = (STREAM,)
    has_lookup = False

    def __init__(self, count: int = 1) -> None:
        self.jobs = jobs_of(JOB, STREAM, count)

    def stream_documents(self) -> list[str]:
        return [stream_document(STREAM)]

    def lookup_documents(self, version: int) -> list[str]:
        return []

    def pipeline_documents(self, pace: Pace, versions: Mapping[str, int]) -> list[str]:
        name = self.jobs[0].name
        first = documents(STREAM, name, pace, versions[name]).partition("---\n")[2]
        return [first, *documents_of(self.jobs, pace, versions)]

    def load(
        self, stream: str, history: History, ports: Mapping[str, int], *, seed: int, speed: int, rate: int
    ) -> RestingLoad:
        return JobLoad(history, lambda: ports["http_port"], stream, seed=seed, speed=speed, rate=rate)


class GraphJobs(ReadingJobs):
    """The graph job (`graph_job.py`)."""

    has_lookup = True

    def __init__(self) -> None:
        self.jobs = [graph_job(JOB, STREAM)]

    def lookup_documents(self, version: int) -> list[str]:
        return [lookup_document(version)]

    def pipeline_documents(self, pace: Pace, versions: Mapping[str, int]) -> list[str]:
        return [graph_document(self.jobs[0], pace, versions[self.jobs[0].name])]
