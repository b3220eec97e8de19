"""Condition `watermark_stuck`: records arrive, but the watermark of a job doesn't advance, so no window closes."""

from __future__ import annotations

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import Duration
from strandline.core.times.durations import format_about
from strandline.ledger.states import JobState
from strandline.notices.finding import Finding, Sight
from strandline.notices.view import StuckWatermark, View, job_subject, jobs_that_should_run, show_time


class WatermarkStuckSpec(DocumentModel):
    """Limit of the time without a change of the watermark."""

    hold: Duration = Field(default=300_000, alias="for", json_schema_extra={"default": "5m"})
    """Time for which the watermark doesn't change although records arrive."""


class Fields(DocumentModel):
    watermark_stuck: WatermarkStuckSpec | None = None
    """The watermark of a job doesn't advance although records arrive: `{for: 5m}`."""


def look(options: WatermarkStuckSpec, view: View) -> Sight:
    """Find running jobs whose watermark doesn't advance, with the partition and the device that hold it back."""
    jobs, lost = jobs_that_should_run(view)
    holding, unknown = {}, set()
    for job in jobs:
        subject = job_subject(job.name)
        if job.state is not JobState.RUNNING:
            unknown.add(subject)
            continue
        stuck = view.surroundings.stuck_watermark(job.name, view.now_ms - options.hold)
        if stuck is not None:
            holding[subject] = _finding(job.name, stuck, view.now_ms)
    return Sight(holding=holding, unknown=frozenset(unknown), lost=lost)


def _finding(job: str, stuck: StuckWatermark, now_ms: int) -> Finding:
    where = f"partition {stuck.partition} of stream {stuck.stream}"
    devices = ", ".join(stuck.devices)
    newest = f"The newest event time in {where} is {show_time(stuck.reached_ms)}"
    others = f", in other partitions it is {show_time(stuck.newest_ms)}." if stuck.newest_ms > stuck.reached_ms else "."
    last = ""
    if stuck.log_ms is not None:
        last = f" The newest record there arrived {format_about(max(0, now_ms - stuck.log_ms))} ago"
        last += f", from {devices}." if devices else ", from an unknown sender."
    who = f"device {devices}" if len(stuck.devices) == 1 else f"one of the devices {devices}" if devices else "a device"
    return Finding(
        subject=job_subject(job),
        title=(
            f"The watermark of job {job} doesn't advance: {where} holds it back"
            + (f", device {devices}" if devices else "")
        ),
        reason=(
            f"The watermark has been at {show_time(stuck.watermark_ms)} since {show_time(stuck.since_ms)}, although "
            f"{stuck.records:,} records were read since then. {newest}{others}{last}"
        ),
        affected=(
            f"Windows of job {job} that end after {show_time(stuck.watermark_ms)} don't close, so their results are missing. "
            "No record is lost: the results follow when the watermark advances."
        ),
        action=(
            f"strandline job explain {job}\n"
            f"Check whether {who} is switched on, is connected, and has the right clock.\n"
            "- If it stays silent: set event_time.idle_timeout in the pipeline, for example to 1m, then run:\n"
            "strandline apply FILE"
        ),
        job=job,
    )
