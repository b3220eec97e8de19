"""Jobs: their state, the verbs that change it, their slices and dead letters, and the events of all.

A verb answers 202 at once: it writes what is desired into the ledger, and the supervisor acts on it. Poll the job.
"""

from __future__ import annotations

import base64
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from strandline.core.errors import Conflict, NotFound
from strandline.ledger.states import Desired, JobState
from strandline.log.kafka_status import LogRange, StoredDeadLetter
from strandline.processing.desk.pipeline_graph import pipeline_graph
from strandline.services.rest.dependencies import INTEGER_MAX, Control
from strandline.services.rest.job_status import explanation, input_stream, job_view, present_pipeline
from strandline.services.rest.previews import preview
from strandline.services.rest.result_views import kibana_objects
from strandline.services.rest.routes.documents import Records, Seconds
from strandline.services.rest.views import (
    DeadLetterFull,
    DeadLetterList,
    DeadLetterView,
    EventList,
    ExplanationView,
    JobList,
    JobView,
    KibanaView,
    PipelineGraphView,
    PreviewView,
    SliceList,
)

router = APIRouter(tags=["jobs"])

PREVIEW_CHARACTERS = 200
Limit = Annotated[int, Query(ge=1, le=1000)]
_SHOWN: dict[tuple[JobState, Desired], JobState] = {
    (JobState.RUNNING, Desired.STOPPED): JobState.STOPPING,
    (JobState.DRAINING, Desired.STOPPED): JobState.STOPPING,
    (JobState.RUNNING, Desired.DRAINED): JobState.DRAINING,
    # A failed job stays failed until a person starts it again, which is now.
    (JobState.FAILED, Desired.RUNNING): JobState.STARTING,
    (JobState.FAILED, Desired.DRAINED): JobState.STARTING,
}
"""(state, what is desired) -> the state that a verb sets at once. The supervisor and the runner make all other moves."""


@router.get("/v1/jobs")
def list_jobs(control: Control) -> JobList:
    """All jobs, by name."""
    ranges: dict[str, LogRange | None] = {}
    return JobList(jobs=[job_view(control.ledger, control.log, job, ranges) for job in control.ledger.jobs()])


@router.get("/v1/jobs/{name}")
def show_job(control: Control, name: str) -> JobView:
    """One job: state, position, lag, counts, and the verbs that would change something now."""
    return job_view(control.ledger, control.log, control.ledger.job(name))


@router.get("/v1/jobs/{name}/explanation")
def explain_job(control: Control, name: str) -> ExplanationView:
    """Why the job has no output, or what it waits for: one cause, in a sentence, and what to do."""
    return explanation(control.ledger, control.log, control.ledger.job(name))


@router.get("/v1/jobs/{name}/graph")
def show_graph(control: Control, name: str) -> PipelineGraphView:
    """What the job's pipeline does and costs: stages, what each keeps, how far back it reaches, when results come."""
    job = control.ledger.job(name)
    pipeline = present_pipeline(control.ledger, job, input_stream(control.ledger, job))
    return PipelineGraphView(**pipeline_graph(pipeline))


@router.get("/v1/jobs/{name}/preview")
def preview_job(
    control: Control, name: str, stream: str | None = None, records: Records = 1_000, seconds: Seconds = None
) -> PreviewView:
    """Run the job's pipeline over the newest records of its stream, or over those that come within some seconds, and close all
    windows. Writes nothing; the job itself goes on."""
    job = control.ledger.job(name)
    pipeline = present_pipeline(control.ledger, job, input_stream(control.ledger, job))
    return preview(control.log, pipeline, stream or pipeline.stream.stream, records, seconds)


@router.get("/v1/jobs/{name}/kibana")
def show_kibana_objects(
    control: Control,
    name: str,
    links: Annotated[
        str,
        Query(pattern="^(https?://.+)?$", description="This API's address as browsers reach it: documents link to it."),
    ] = "",
) -> KibanaView:
    """Data views, searches and a dashboard for the job's results, as Kibana's saved objects."""
    job = control.ledger.job(name)
    pipeline = present_pipeline(control.ledger, job, input_stream(control.ledger, job))
    return KibanaView(objects=kibana_objects(pipeline, links))


@router.post("/v1/jobs/{name}/start", status_code=202)
def start_job(control: Control, name: str, response: Response) -> JobView:
    """Start the job. It rewinds to its last emission first. A running job goes on."""
    return _order(control, name, Desired.RUNNING, response)


@router.post("/v1/jobs/{name}/stop", status_code=202)
def stop_job(control: Control, name: str, response: Response) -> JobView:
    """End the job after its current slice. Open windows stay open until the next start."""
    return _order(control, name, Desired.STOPPED, response)


@router.post("/v1/jobs/{name}/drain", status_code=202)
def drain_job(control: Control, name: str, response: Response) -> JobView:
    """Read the log to its end, close every open window, then end. Later records of those windows are late."""
    return _order(control, name, Desired.DRAINED, response)


@router.post("/v1/jobs/{name}/restart", status_code=202)
def restart_job(control: Control, name: str, response: Response) -> JobView:
    """End the job's run after its current slice and start a new one, with a higher epoch."""
    control.ledger.ask_restart(name)
    return _order(control, name, Desired.RUNNING, response)


@router.get("/v1/jobs/{name}/slices")
def list_slices(
    control: Control, name: str, after: Annotated[int, Query(ge=0, le=INTEGER_MAX)] = 0, limit: Limit = 100
) -> SliceList:
    """The job's slices with a number above `after`, in order. The oldest may have been removed from the ledger."""
    control.ledger.job(name)
    after = max(after, control.ledger.floor(name) - 1)
    rows = control.ledger.slices(name, after + 1, after + limit)
    following = f"/v1/jobs/{name}/slices?after={after + limit}&limit={limit}" if len(rows) == limit else None
    return SliceList(slices=rows, next=following)


@router.get("/v1/jobs/{name}/dead-letters")
def list_dead_letters(
    control: Control, name: str, after: Annotated[int, Query(ge=-1, le=INTEGER_MAX)] = -1, limit: Limit = 100
) -> DeadLetterList:
    """Records and results that could not be used, the oldest first, each with the reason and its source coordinates."""
    control.ledger.job(name)
    found = control.log.dead_letters(name, after, limit)
    following = f"/v1/jobs/{name}/dead-letters?after={found[-1].offset}&limit={limit}" if len(found) == limit else None
    return DeadLetterList(dead_letters=[_dead_letter_view(one) for one in found], next=following)


@router.get("/v1/jobs/{name}/dead-letters/{number}")
def show_dead_letter(control: Control, name: str, number: Annotated[int, Path(ge=0, le=INTEGER_MAX)]) -> DeadLetterFull:
    """One dead letter, with the sender's bytes whole."""
    control.ledger.job(name)
    found = control.log.dead_letters(name, number - 1, 1)
    if not found or found[0].offset != number:
        raise NotFound(f"job {name} has no dead letter {number} (any more); list them to see which there are")
    view = _dead_letter_view(found[0]).model_dump()
    view["value"] = found[0].value.decode("utf-8", "replace")
    return DeadLetterFull(**view, value_base64=base64.b64encode(found[0].value).decode("ascii"))


@router.get("/v1/events")
def list_events(
    control: Control, job: str | None = None, after: Annotated[int, Query(ge=0, le=INTEGER_MAX)] = 0, limit: Limit = 100
) -> EventList:
    """What happened, the oldest first; to follow, pass the last id as `after`."""
    if job is not None:
        control.ledger.job(job)
    rows = control.ledger.events(job, after, limit)
    about = f"&job={job}" if job else ""
    following = f"/v1/events?after={rows[-1].id}&limit={limit}{about}" if len(rows) == limit else None
    return EventList(events=rows, next=following)


def _order(control: Control, name: str, desired: Desired, response: Response) -> JobView:
    """Move the state first: a runner that obeys at once then finds its own last move allowed."""
    job = control.ledger.job(name)
    shown = _SHOWN.get((job.state, desired))
    if shown is not None:
        with suppress(Conflict):  # the runner was faster; the supervisor follows what is desired
            control.ledger.move_job(name, shown)
    job = control.ledger.set_desired(name, desired)
    control.supervisor.wake()
    response.headers["Location"] = f"/v1/jobs/{name}"
    return job_view(control.ledger, control.log, job)


def _dead_letter_view(letter: StoredDeadLetter) -> DeadLetterView:
    headers = letter.headers
    return DeadLetterView(
        number=letter.offset,
        stream=headers.get("stream", ""),
        partition=_number(headers.get("partition")),
        offset=_number(headers.get("offset")),
        element=_number(headers.get("element")),
        reason=headers.get("reason", ""),
        message=headers.get("message", ""),
        step=headers.get("step", ""),
        log_time_ms=letter.log_time_ms,
        value=letter.value[: 4 * PREVIEW_CHARACTERS].decode("utf-8", "replace")[:PREVIEW_CHARACTERS],
        value_bytes=len(letter.value),
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
