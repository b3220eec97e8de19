"""Jobs: their state, their slices, and commands. A command returns 202 immediately: it writes the desired state to
the ledger, and the supervisor acts on it. Poll the job.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Annotated, cast

from fastapi import APIRouter, Query, Request, Response

from strandline.ledger.states import JobRow
from strandline.processing.desk.pipeline_graph import pipeline_graph
from strandline.processing.source.kept_lookups import with_present_tables
from strandline.services.jobs.explanation import ExplanationView
from strandline.services.jobs.histories import HistoryView, JobHistoryView
from strandline.services.jobs.job_lifecycle import StartPosition
from strandline.services.jobs.job_status import (
    StreamRanges,
    explanation,
    explanations,
    job_status,
    job_statuses,
    present_pipeline,
)
from strandline.services.jobs.orders import Verb, order
from strandline.services.jobs.previews import PreviewView, preview
from strandline.services.jobs.result_views import kibana_objects
from strandline.services.jobs.runner_logs import runner_log
from strandline.services.rest.dependencies import INTEGER_MAX, Caller, Control, MayReadTopics, require_readable
from strandline.services.rest.kept_answers import NOT_MODIFIED, MaxAge
from strandline.services.rest.routes.documents import Records, Seconds
from strandline.services.rest.views import (
    CheckpointList,
    DeletedJobView,
    DocumentTextView,
    ExplanationList,
    HistoryList,
    JobList,
    JobVersionList,
    JobVersionView,
    JobView,
    KibanaView,
    LogView,
    PipelineGraphView,
    RunList,
    SliceList,
    checkpoint_view,
    job_view,
    run_view,
)

router = APIRouter(tags=["jobs"])

NAMES_MAX = 100
"""Maximum number of jobs that a request names."""
APPLIED = ("job_created", "job_changed")
"""Kinds of the events of a new version."""
Limit = Annotated[int, Query(ge=1, le=1000)]

Names = Annotated[
    list[str] | None,
    Query(
        max_length=NAMES_MAX,
        description="Only jobs with these names. Without it, all jobs. A job that doesn't exist is left out.",
    ),
]


@router.get("/v1/jobs", response_model=JobList, responses=NOT_MODIFIED)
def list_jobs(request: Request, control: Control, name: Names = None, max_age_s: MaxAge = 0) -> Response:
    """Return all jobs, by name."""

    def compute() -> JobList:
        found = job_statuses(control.ledger, StreamRanges(control.log), _chosen(control, name))
        return JobList(jobs=[job_view(one) for one in found])

    return control.kept_jobs.respond(request, _question(name), max_age_s, compute)


@router.get("/v1/jobs/{name}")
def show_job(control: Control, name: str) -> JobView:
    """Return one job: state, position, lag, counts, and the commands that would change something now."""
    return job_view(job_status(control.ledger, StreamRanges(control.log), control.ledger.job(name)))


@router.get("/v1/jobs/{name}/explanation")
def explain_job(control: Control, name: str) -> ExplanationView:
    """Explain why the job has no output, or what it waits for: one cause in a sentence, and what to do."""
    job, store = control.ledger.job(name), control.unavailable_store
    return explanation(control.ledger, StreamRanges(control.log), job, store, control.newest_results)


@router.get("/v1/explanations", response_model=ExplanationList, responses=NOT_MODIFIED)
def explain_jobs(request: Request, control: Control, name: Names = None, max_age_s: MaxAge = 0) -> Response:
    """Return the explanation of each job, by name. It also covers jobs whose stream or lookup no longer exists."""

    def compute() -> ExplanationList:
        found = explanations(
            control.ledger,
            StreamRanges(control.log),
            _chosen(control, name),
            control.unavailable_store,
            control.newest_results,
        )
        return ExplanationList(explanations=found)

    return control.kept_explanations.respond(request, _question(name), max_age_s, compute)


@router.get("/v1/jobs/{name}/log")
def show_log(
    control: Control,
    name: str,
    lines: Annotated[int, Query(ge=1, le=10_000, description="Number of last lines.")] = 100,
    after: Annotated[
        int | None,
        Query(
            ge=0,
            le=INTEGER_MAX,
            description="Instead of the last lines: the lines after this byte, from an earlier response.",
        ),
    ] = None,
) -> LogView:
    """Return the log of the current or last run: the last lines, or the lines after a position. Passwords are
    removed.
    """
    part = runner_log(control.ledger, control.data_dir, name, lines, after)
    return LogView(lines=part.lines, byte_next=part.byte_next)


@router.get("/v1/jobs/{name}/graph")
def show_graph(control: Control, name: str) -> PipelineGraphView:
    """Return the stages of the pipeline: their state, their reach, their cost, and the time of their results."""
    job = control.ledger.job(name)
    pipeline = present_pipeline(control.ledger, job)
    return PipelineGraphView(**pipeline_graph(pipeline))


@router.get("/v1/jobs/{name}/document")
def show_document(
    control: Control,
    name: str,
    version: Annotated[int | None, Query(ge=1, le=INTEGER_MAX, description="Default: the newest version")] = None,
) -> DocumentTextView:
    """Return the document of a job as it was applied, in YAML."""
    found = control.ledger.job_version(name, version)
    return DocumentTextView(name=name, version=found.version, text=found.text)


@router.get("/v1/jobs/{name}/versions")
def list_versions(control: Control, name: str) -> JobVersionList:
    """Return the versions of the job, the newest first, with the time and the principal that applied each. `GET
    .../document` has their documents.
    """
    current = control.ledger.job(name).version
    events = [one for kind in APPLIED for one in control.ledger.events_of_kind(name, kind)]
    principals = {one.facts.get("version"): one.principal for one in events}
    return JobVersionList(
        versions=[
            JobVersionView(
                version=one.version,
                created_ms=one.created_ms,
                applied_by=principals.get(one.version),
                is_current=one.version == current,
            )
            for one in control.ledger.job_versions(name)
        ]
    )


@router.get("/v1/jobs/{name}/preview")
def preview_job(
    control: Control,
    may_read_topics: MayReadTopics,
    name: str,
    stream: str | None = None,
    records: Records = 1_000,
    seconds: Seconds = None,
) -> PreviewView:
    """Run the pipeline of the job over the newest records of its stream, or over the records that arrive within some
    seconds, and close all windows. Writes nothing, and the job keeps running.
    """
    job = control.ledger.job(name)
    pipeline = present_pipeline(control.ledger, job, is_strict=True)
    pipeline = with_present_tables(control.ledger, pipeline)
    read = stream or pipeline.inputs[0].name
    require_readable(control, read, may_read_topics=may_read_topics)
    return preview(control.log, pipeline, read, records, seconds, control.run_limited)


@router.get("/v1/jobs/{name}/kibana")
def show_kibana_objects(
    control: Control,
    name: str,
    links: Annotated[
        str,
        Query(pattern="^(https?://.+)?$", description="Address of this API for browsers. Documents link to it."),
    ] = "",
) -> KibanaView:
    """Return data views, searches, and a dashboard for the results of the job, as saved objects of Kibana."""
    job = control.ledger.job(name)
    pipeline = present_pipeline(control.ledger, job)
    return KibanaView(objects=kibana_objects(pipeline, links))


@router.post("/v1/jobs/{name}/start", status_code=202)
def start_job(control: Control, caller: Caller, name: str, response: Response) -> JobView:
    """Start the job. It rewinds to its last emission first. A running job keeps running."""
    return _order(control, name, "start", response, caller)


@router.post("/v1/jobs/{name}/stop", status_code=202)
def stop_job(control: Control, caller: Caller, name: str, response: Response) -> JobView:
    """Stop the job after its current slice. Open windows stay open until the next start."""
    return _order(control, name, "stop", response, caller)


@router.post("/v1/jobs/{name}/drain", status_code=202)
def drain_job(control: Control, caller: Caller, name: str, response: Response) -> JobView:
    """Read the log to its end, close every open window, and stop. Records of these windows that arrive later are
    late.
    """
    return _order(control, name, "drain", response, caller)


@router.post("/v1/jobs/{name}/restart", status_code=202)
def restart_job(control: Control, caller: Caller, name: str, response: Response) -> JobView:
    """Stop the job after its current slice, and start a new run with a higher epoch."""
    return _order(control, name, "restart", response, caller)


@router.post("/v1/jobs/{name}/restore", status_code=202)
def restore_job(control: Control, caller: Caller, name: str, response: Response) -> JobView:
    """Start a run that restores the results that a store lost. The run replays the recorded slices from the first
    one with a missing result, and emits their results again under the same ids. `restores` is false when all are
    restored.
    """
    return _order(control, name, "restore", response, caller)


@router.delete("/v1/jobs/{name}")
def delete_job(
    control: Control, caller: Caller, name: str, results: bool = False, dead_letters: bool = False
) -> DeletedJobView:
    """Delete a stopped job. Its results and dead letters are kept unless requested. For a deleted job, the request
    deletes them now.
    """
    deleted = control.lifecycle.delete(name, results=results, dead_letters=dead_letters, principal=caller)
    control.supervisor.wake()
    return DeletedJobView(**vars(deleted))


@router.post("/v1/jobs/{name}/reset")
def reset_job(
    control: Control,
    caller: Caller,
    name: str,
    to: Annotated[
        str,
        Query(
            pattern=r"^(start|earliest|latest|\d{1,15})$",
            description="Start in the document, an end of the log, or a log time (ms).",
        ),
    ],
) -> JobView:
    """Reset a stopped job to a position of its stream. Its results begin a new generation, and its aliases show no
    older results.
    """
    position = int(to) if to.isdecimal() else cast(StartPosition, to)  # as the pattern says
    job = control.lifecycle.reset(name, position, caller)
    control.supervisor.wake()
    return job_view(job_status(control.ledger, StreamRanges(control.log), job))


@router.get("/v1/jobs/{name}/slices")
def list_slices(
    control: Control, name: str, after: Annotated[int, Query(ge=0, le=INTEGER_MAX)] = 0, limit: Limit = 100
) -> SliceList:
    """Return the slices of the job with a number above `after`, in order. The ledger may no longer contain the
    oldest.
    """
    control.ledger.job(name)
    after = max(after, control.ledger.floor(name) - 1)
    rows = control.ledger.slices(name, after + 1, after + limit)
    following = f"/v1/jobs/{name}/slices?after={after + limit}&limit={limit}" if len(rows) == limit else None
    return SliceList(slices=rows, next=following)


@router.get("/v1/jobs/{name}/checkpoints")
def list_checkpoints(
    control: Control,
    name: str,
    before: Annotated[
        int | None, Query(ge=0, le=INTEGER_MAX, description="Only slices with a lower number; default: all.")
    ] = None,
    limit: Limit = 100,
) -> CheckpointList:
    """Return the committed slices of the job, the newest first: records, rejected records, results, and event time."""
    control.ledger.job(name)
    rows = control.ledger.checkpoints(name, limit, before)
    following = f"/v1/jobs/{name}/checkpoints?before={rows[-1].slice}&limit={limit}" if len(rows) == limit else None
    return CheckpointList(checkpoints=[checkpoint_view(row) for row in rows], next=following)


@router.get("/v1/jobs/{name}/runs")
def list_runs(control: Control, name: str, limit: Limit = 100) -> RunList:
    """Return the newest runs of the job, the oldest of them first: begin, end, and outcome."""
    control.ledger.job(name)
    return RunList(runs=[run_view(row) for row in control.ledger.runs(name, limit)])


@router.get("/v1/jobs/{name}/history")
def show_history(control: Control, name: str) -> HistoryView:
    """Return counts of the job in the last 24 hours, in steps of 10 minutes."""
    return control.histories.of(control.ledger.job(name))


@router.get("/v1/histories", response_model=HistoryList, responses=NOT_MODIFIED)
def list_histories(request: Request, control: Control, name: Names = None, max_age_s: MaxAge = 0) -> Response:
    """Return counts of each job in the last 24 hours, by name, in steps of 10 minutes."""

    def compute() -> HistoryList:
        found = [JobHistoryView(job=one.name, **vars(control.histories.of(one))) for one in _chosen(control, name)]
        return HistoryList(histories=found)

    return control.kept_histories.respond(request, _question(name), max_age_s, compute)


def _question(names: list[str] | None) -> Hashable:
    """Return the key of a response about these jobs. None for all."""
    return None if names is None else frozenset(names)


def _chosen(control: Control, names: list[str] | None) -> list[JobRow]:
    """Return the rows of these jobs, by name. None for all."""
    if names is None:
        return control.ledger.jobs()
    found = control.ledger.jobs_named(names)
    return [found[name] for name in sorted(found)]


def _order(control: Control, name: str, verb: Verb, response: Response, caller: str | None) -> JobView:
    job = order(control.ledger, name, verb, caller)
    control.supervisor.wake()
    response.headers["Location"] = f"/v1/jobs/{name}"
    return job_view(job_status(control.ledger, StreamRanges(control.log), job))
