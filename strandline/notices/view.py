"""Input of conditions: the ledger at one moment, and what the control service knows of its environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from strandline.core.errors import NotFound
from strandline.core.times.durations import FOREVER_MS, format_duration
from strandline.ledger.roles import NoticeLedger
from strandline.ledger.states import Desired, EventRow, JobRow
from strandline.notices.finding import Finding


@dataclass(frozen=True)
class JobFacts:
    """Facts about a job that the ledger doesn't contain. None if unknown."""

    lag_records: int | None = None
    retention_left_ms: int | None = None
    """Time for which the streams still keep the records that a start reads again."""
    retention_ms: int | None = None


@dataclass(frozen=True)
class StuckWatermark:
    """A watermark that doesn't advance, and the partition that holds it back."""

    watermark_ms: int
    since_ms: int
    """Time at which a slice last advanced the watermark."""
    records: int
    """Number of records that were read since then."""
    stream: str
    partition: int
    reached_ms: int
    """Event time that the partition has reached."""
    newest_ms: int
    """Event time that the newest partition has reached."""
    log_ms: int | None = None
    """Log time of the newest record in the partition. None if it is unknown."""
    devices: tuple[str, ...] = ()
    """Senders of the newest records in the partition, the last one first. Empty if they are unknown."""


@dataclass(frozen=True)
class FoundResult:
    """The newest result of a key."""

    alias: str
    keys: Mapping[str, object]
    values: Mapping[str, object]
    """Fields of the condition, with their values."""
    start_ms: int
    """Start of the window."""
    end_ms: int


def _no_results(job: str, stage: str, where: str, within_ms: int | None) -> Sequence[FoundResult]:
    return ()


@dataclass(frozen=True)
class Surroundings:
    """Functions and values of the control service. Each function can raise StrandlineError."""

    job_facts: Callable[[str], JobFacts] = lambda job: JobFacts()
    """Name of a job -> its facts."""
    stuck_watermark: Callable[[str, int], StuckWatermark | None] = lambda job, since_ms: None
    """Name of a job, time -> its watermark, if it hasn't advanced since this time although records were read."""
    results: Callable[[str, str, str, int | None], Sequence[FoundResult]] = _no_results
    """Job, stage, condition, time to search back from the newest window -> newest results that meet the condition."""
    ask: Callable[[str], tuple[int, bytes]] = lambda url: (0, b"")
    """Send a GET request to an allowed URL. Return status and body."""
    readings: Callable[[], dict[str, Any]] = dict
    """Examine the machine of this control service. See `readings.py`."""
    elasticsearch_url: str = ""


@dataclass
class View:
    """Input of the conditions of one notice in one check."""

    ledger: NoticeLedger
    now_ms: int
    """Time of the clock of the ledger's database."""
    events: Sequence[EventRow]
    """Events that the notice has not handled yet, the oldest first."""
    patterns: Sequence[str] = ("*",)
    """Patterns of the names of the jobs that the notice watches."""
    keywords: frozenset[str] = frozenset()
    """Keywords of all conditions of the notice."""
    surroundings: Surroundings = field(default_factory=Surroundings)

    @cached_property
    def jobs(self) -> dict[str, JobRow]:
        """The watched jobs, by name."""
        return {job.name: job for job in self.ledger.jobs() if self.watches(job.name)}

    def watches(self, job: str | None) -> bool:
        """Return True if the notice watches the job."""
        return job is not None and any(fnmatchcase(job, pattern) for pattern in self.patterns)

    def new_events(self, *kinds: str) -> list[EventRow]:
        """Return the new events of these kinds about watched jobs."""
        return [event for event in self.events if event.kind in kinds and self.watches(event.job)]

    def failure_code(self, event: EventRow) -> str:
        """Return the code of the error with which a job failed; empty if its run reported none."""
        if event.job is None:
            return ""
        failed = self.ledger.last_event(event.job, "run_failed")
        is_its = failed is not None and failed.id < event.id and failed.message == event.message
        return str(failed.facts.get("code", "")) if failed is not None and is_its else ""


def job_subject(job: str) -> str:
    """Return the subject of a problem of a job."""
    return f"job {job}"


def jobs_that_should_run(view: View) -> tuple[list[JobRow], dict[str, str]]:
    """Return the jobs whose progress is checked. Also return subject -> reason why its problems are no longer checked, for jobs
    that were stopped or drained on request. A completed batch is in neither."""
    checked, lost = [], {}
    for job in view.jobs.values():
        if job.has_completed:
            continue
        if job.desired is Desired.RUNNING:
            checked.append(job)
        else:
            lost[job_subject(job.name)] = (
                f"Job {job.name} was {job.desired.value} on request. A remaining problem is reported again after its next start."
            )
    return checked, lost


def stopped_results(view: View, job: str) -> str:
    """Return the consequences of a stopped job: the time since which results are missing, and the retention of its waiting
    records."""
    try:
        checkpoint = view.ledger.last_checkpoint(job)
        row = view.ledger.job(job)
        document = view.ledger.job_version(job, row.version).document
    except NotFound:
        return f"Job {job} was deleted in the meantime."
    since = "since the job was submitted" if checkpoint is None else f"since {show_time(checkpoint.committed_ms)}"
    streams = sorted({str(one["stream"]) for one in _inputs(document)})
    kept = ", ".join(f"stream {name} ({_kept(view, name)})" for name in streams)
    return f"Job {job} has written no results {since}. Its records wait in {kept}; the job reads them after its start."


def _inputs(document: Mapping[str, object]) -> list[dict[str, object]]:
    several = document.get("inputs")
    found = several if isinstance(several, list) else [document.get("input")]
    return [one for one in found if isinstance(one, dict) and "stream" in one]


def _kept(view: View, stream: str) -> str:
    try:
        retention = view.ledger.stream(stream).document.get("retention", "forever")
    except NotFound:
        return "which was deleted"
    return "which keeps records forever" if retention == "forever" else f"which keeps records for {retention}"


def show_time(time_ms: int) -> str:
    """Return a time for people: `2026-11-21 10:15:00Z`."""
    return datetime.fromtimestamp(time_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def show_duration(duration_ms: int) -> str:
    """Return a duration for people."""
    return "forever" if duration_ms == FOREVER_MS else format_duration(duration_ms)


def by_subject(findings: Sequence[Finding]) -> dict[str, Finding]:
    """Return the findings by their subject."""
    return {finding.subject: finding for finding in findings}
