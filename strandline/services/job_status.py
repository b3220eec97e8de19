"""A job as the API shows it: the ledger's rows and Kafka's offsets put together. Reads only."""

from __future__ import annotations

from strandline.core.errors import LogUnavailable, NotFound
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import CheckpointRow, JobRow, JobState, Offsets
from strandline.services.log_facts import LogFacts, LogRange, lag_records
from strandline.services.views import CountsView, JobView, LeaderView, Link

_VERBS: dict[JobState, tuple[str, ...]] = {
    JobState.CREATED: ("start", "stop"),
    JobState.STARTING: ("stop", "drain", "restart"),
    JobState.RUNNING: ("stop", "drain", "restart"),
    JobState.STOPPING: ("start", "restart"),
    JobState.STOPPED: ("start", "drain", "restart"),
    JobState.DRAINING: ("stop", "start", "restart"),
    JobState.DRAINED: ("start", "restart"),
    JobState.FAILED: ("start", "stop", "drain", "restart"),
}
"""The verbs worth offering in each state. The others are legal too, and change nothing."""


def job_view(ledger: Ledger, log: LogFacts, job: JobRow, ranges: dict[str, LogRange | None] | None = None) -> JobView:
    """Put together what is known of a job. `ranges` keeps what Kafka said of a stream, for the next job."""
    stream = input_stream(ledger, job)
    ranges = ranges if ranges is not None else {}
    if stream not in ranges:
        ranges[stream] = _range(log, stream)
    last_slice = ledger.last_slice(job.name)
    checkpoint = ledger.last_checkpoint(job.name)
    totals = ledger.totals(job.name)
    held, position = ranges[stream], _position(ledger, job, checkpoint)
    return JobView(
        **vars(job),
        stream=stream,
        leader=_leader(ledger, job),
        slice=checkpoint.slice if checkpoint else None,
        watermark_ms=last_slice.watermark_ms if last_slice else None,
        latest_event_ms=checkpoint.latest_event_ms if checkpoint else None,
        lag_records=lag_records(held, position.get(stream, {})) if held and position is not None else None,
        counts=CountsView(**vars(totals)),
        last_emission=checkpoint.emitted if checkpoint else {},
        links=[Link(rel=verb, method="POST", href=f"/v1/jobs/{job.name}/{verb}") for verb in _VERBS[job.state]],
    )


def input_stream(ledger: Ledger, job: JobRow) -> str:
    """The stream that the job's present version reads."""
    return str(ledger.job_version(job.name, job.version).document["input"]["stream"])


def _leader(ledger: Ledger, job: JobRow) -> LeaderView | None:
    lease = ledger.leases().get(job.name)
    if lease is None or not lease.is_held:
        return None
    return LeaderView(name=lease.holder, address=lease.address, lease_epoch=lease.epoch, lease_until_ms=lease.until_ms)


def _range(log: LogFacts, stream: str) -> LogRange | None:
    try:
        return log.range(stream)
    except (LogUnavailable, NotFound):
        return None  # a status is most wanted when something is away: it shows the rest, and no lag


def _position(ledger: Ledger, job: JobRow, checkpoint: CheckpointRow | None) -> Offsets | None:
    """The offsets after the last committed slice; before the first, where the job will begin. None: not known yet."""
    number = checkpoint.slice if checkpoint else 1
    found = ledger.slices(job.name, number, number)
    if found:
        return found[0].offsets if checkpoint else found[0].offsets_first
    starts_at_first = ledger.job_version(job.name, job.version).document["input"].get("start") != "latest"
    return {} if starts_at_first else None
