"""Responses of the REST API. A response that equals a row of the ledger, or the result of a use case, has no class
here.

Times are milliseconds since 1970 UTC (`_ms`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from strandline.core.described import Described
from strandline.ledger.states import CheckpointRow, EventRow, Offsets, Role, RunRow, SliceRow, StreamRow
from strandline.services.jobs.arrivals import ArrivalView
from strandline.services.jobs.backfills import BackfillView
from strandline.services.jobs.checking import Checked, StageView
from strandline.services.jobs.dead_letters import RepairOutcome, RequeuedRecord
from strandline.services.jobs.document_forms import DocumentForm
from strandline.services.jobs.explanation import JobExplanationView
from strandline.services.jobs.histories import JobHistoryView
from strandline.services.jobs.job_status import JobStatus
from strandline.services.jobs.lookups import LookupSummary
from strandline.services.jobs.results import ResultAliasView
from strandline.services.jobs.shown_settings import SettingView
from strandline.services.rest.problems import ProblemError, problem_errors
from strandline.services.supervision.audit_jobs import AuditSummary


class View(Described, BaseModel):
    """Response of the API. The docstrings of the fields are in the description of the API."""


class Link(View):
    """A request that would change something now."""

    rel: str
    method: str
    href: str


class Applied(View):
    """Outcome of one document."""

    kind: Literal["stream", "lookup", "pipeline", "notice"]
    name: str
    outcome: Literal["created", "changed", "unchanged"]
    version: int
    notes: list[str] = []
    """Remarks: for each job that uses a changed stream or lookup, the effect on this job."""


class AppliedList(View):
    applied: list[Applied]


class PartitionView(View):
    partition: int
    offset_first: int
    """First offset that the log still contains."""
    offset_next: int
    """Offset after the last record."""


class StreamList(View):
    streams: list[StreamRow]


class StreamView(View):
    """A registered stream, and the range of its records in the log."""

    name: str
    document: dict[str, Any]
    """Registered document with its defaults."""
    version: int
    topic_id: str | None
    """Id of the topic in Kafka."""
    created_ms: int
    emitted_by: str | None
    """Name of the job that emits to the stream; null if no job does."""
    retention_ms: int
    """Current retention of the topic in milliseconds; -1 if records are kept forever."""
    records: int
    """Number of records in the log, in all partitions."""
    partitions: list[PartitionView]


class LookupList(View):
    lookups: list[LookupSummary]


class DeletedLookupView(View):
    lookup: str


class UndeclaredFieldView(View):
    """A member of records that no field of the schema reads."""

    path: str
    """Path in the form of `from` of a field; `[*]` is the index of an exploded element."""
    types: list[str]
    """Types of the values, the most frequent first."""
    records: int
    """Number of inspected records that have the member."""
    share: float
    """Share of the inspected records that have the member, 0 to 1."""


class UndeclaredView(View):
    """Members of the newest records that the schema doesn't declare."""

    stream: str
    version: int
    """Version of the document of the stream."""
    records: int
    """Number of inspected records: the newest ones, evenly from all partitions."""
    fields: list[UndeclaredFieldView]
    """Members, the most frequent first, at most 1,000."""


class ProposalView(View):
    """Documents that were proposed from the newest records of a topic. Nothing was registered."""

    document: dict[str, Any]
    """Document of the stream."""
    documents: str
    """Document of the stream and of a first pipeline, in YAML."""
    notes: list[str]
    """Remarks for the reader of the proposal."""
    records: int
    """Number of sample records."""
    accepted: int
    """Number of rows of the sample that the document accepts."""
    rejected: list[str]
    """Reasons for the first rejected rows."""


class ConvertedView(View):
    """Documents in another form."""

    form: DocumentForm
    text: str


class PipelineGraphView(View):
    """Stages of a pipeline, and their cost."""

    pipeline: str
    inputs: list[dict[str, Any]]
    """Streams that the pipeline reads: partitions, columns, and settings of event time."""
    record_stages: list[dict[str, Any]]
    """Emissions of records: the steps before each emission, its fields, and its sinks."""
    stages: list[dict[str, Any]]
    """Windows: the steps before and after each window, aggregates, emissions, and estimated state in bytes per key."""
    exchange: dict[str, Any]
    """Fields that determine the bucket of a row. If there are several branches, the fields of the first one."""
    branches: list[dict[str, Any]]
    """Branches: windows, fields that determine the bucket, and windows that an earlier branch also computes."""
    reach_ms: int
    """Reach of open windows in event time, in milliseconds."""
    retention: dict[str, Any]
    """Part of the log that a rewind can need, and the retention of the stream."""
    time_zone_rules: str | None = None
    """Version of the tz database that determines the days of time zones; null if no window uses them."""
    hints: list[str]
    """Remarks about cost, and about behaviour that can surprise."""


class CheckView(View):
    """Result of the check of a pipeline."""

    valid: bool
    problems: list[ProblemError]
    stages: list[StageView]
    """Stages of the pipeline; empty if it isn't valid."""
    reach_ms: int | None = None
    """Reach of a rewind in event time, in milliseconds."""


def check_view(checked: Checked) -> CheckView:
    """Return the result of a check in the form of the API."""
    problems = problem_errors(checked.problems)
    return CheckView(valid=not problems, problems=problems, stages=checked.stages, reach_ms=checked.reach_ms)


class ExplanationList(View):
    explanations: list[JobExplanationView]


class HistoryList(View):
    histories: list[JobHistoryView]


class KibanaView(View):
    """Saved objects that show the results of a job in Kibana."""

    objects: list[dict[str, Any]]
    """Saved objects of Kibana 8.19, in import order; empty if the job emits to no index."""


class DeletedJobView(View):
    """A deleted job, and the outcome for its results and dead letters."""

    job: str
    indices: list[str]
    """Indices of the results of the job."""
    results: Literal["kept", "deleted"]
    dead_letters: Literal["kept", "deleted"]


class DocumentTextView(View):
    """A document of a stream or a job."""

    name: str
    version: int
    text: str
    """The document in YAML."""


class JobVersionView(View):
    """A version of a job."""

    version: int
    created_ms: int
    applied_by: str | None
    """Principal that applied it. Null if clients aren't authenticated, or if the event no longer exists."""
    is_current: bool


class JobVersionList(View):
    versions: list[JobVersionView]


class RefusedRecordView(View):
    """A record that is too large for the gateway."""

    index: int
    """Index in the request, from 0."""
    reason: str
    detail: str


class AcceptedRecordsView(View):
    """Response of a gateway that has confirmed records. A stream's `http.answer` replaces it."""

    accepted: int
    """Number of records in the log."""
    refused: list[RefusedRecordView] = []


class DeletedStreamView(View):
    stream: str
    topic: Literal["kept", "deleted"]


class LogView(View):
    """Lines of the log of a runner."""

    lines: list[str]
    byte_next: int
    """Value of `after` for the lines that follow."""


@dataclass(frozen=True)
class JobView(JobStatus):
    links: list[Link]
    """Requests that would change something now."""


def job_view(status: JobStatus) -> JobView:
    """Return the status of a job with its links."""
    links = [Link(rel=verb, method="POST", href=f"/v1/jobs/{status.name}/{verb}") for verb in status.verbs]
    return JobView(**vars(status), links=links)


class JobList(View):
    jobs: list[JobView]


class SliceList(View):
    slices: list[SliceRow]
    next: str | None = None
    """Path of the next page; null on the last page."""


class CheckpointView(View):
    """A committed slice."""

    slice: int
    epoch: int
    """Run that committed it."""
    version: int
    committed_ms: int
    records: int
    accepted: int
    rejected: dict[str, int]
    """Reason -> records."""
    results: dict[str, int]
    """Stage -> results."""
    refused: dict[str, int]
    """Stage -> results that a store refused."""
    emitted: dict[str, int]
    """Stage -> end (ms) of the last window that it has emitted."""
    closes_ms: int | None
    """Windows that end at or before it are final."""
    latest_event_ms: int | None
    latest_log_ms: int | None
    reached: Offsets
    """Stream -> partition -> event time reached (ms)."""


class CheckpointList(View):
    checkpoints: list[CheckpointView]
    next: str | None = None
    """Path of the next page; null on the last page."""


def checkpoint_view(row: CheckpointRow) -> CheckpointView:
    """Return the checkpoint in the form of the API."""
    return CheckpointView(**{name: value for name, value in vars(row).items() if name in CheckpointView.model_fields})


class RunView(View):
    """One process that ran the job."""

    epoch: int
    version: int
    started_ms: int
    ended_ms: int | None
    """Null while the run lasts."""
    outcome: str | None
    message: str
    """Reason of the end; empty if there is none."""


class RunList(View):
    runs: list[RunView]


def run_view(row: RunRow) -> RunView:
    """Return the run in the form of the API."""
    return RunView(**{name: value for name, value in vars(row).items() if name in RunView.model_fields})


class ArrivalList(View):
    now_ms: int
    """Time of the service, to compare with."""
    arrivals: list[ArrivalView]


class ResultAliasList(View):
    results: list[ResultAliasView]
    kibana_url: str | None
    """Address of Kibana for browsers. Null if it isn't set."""


class EventList(View):
    events: list[EventRow]
    next: str | None = None
    """Path of the next page; null on the last page."""


class DeadLetterView(View):
    """A record or result that was rejected or refused. `stream`, `partition`, `offset`, and `element` identify it."""

    number: int
    """Offset in the dead-letter stream. `after` has this unit."""
    stream: str
    partition: int | None
    offset: int | None
    element: int | None
    """Index of the element in its array, if the record was exploded."""
    reason: str
    message: str
    kind: str
    """Message without its values. Dead letters with the same reason, step, and kind have the same cause."""
    step: str
    log_time_ms: int
    value: str
    """Bytes of the record as text; only the beginning in a list. Bytes that aren't UTF-8 are shown as U+FFFD."""
    value_bytes: int
    """Size of the record in bytes."""


class DeadLetterFull(DeadLetterView):
    value_base64: str
    """Exact bytes of the record."""
    replay_of: str | None = None
    """`STREAM/PARTITION/OFFSET` of the first record, if this one was requeued and failed again."""


class DeadLetterList(View):
    dead_letters: list[DeadLetterView]
    next: str | None = None
    """Path of the next page; null on the last page."""


class DeadLetterCounts(View):
    """Counts of dead letters, in one part of them."""

    dead_letters: int
    reasons: dict[str, int]
    steps: dict[str, int]
    next: str | None = None
    """Path that counts the next part; null after the last part."""


class RequeueView(View):
    """Outcome of requeueing dead letters; in a dry run, the expected outcome."""

    dry_run: bool
    matched: int
    """Number of dead letters that match the filter: the sum of `requeued`, `requeued_before`, `unknown`, and `skipped`."""
    requeued: int
    requeued_before: int
    """Number of dead letters that were requeued before."""
    unknown: int
    """Number of skipped dead letters that a killed request may have requeued: the stream no longer contains that
    position.
    """
    skipped: dict[str, int]
    """Reason -> number of skipped dead letters.

    The reasons are:
    - `late`: late records stay late; requested by `reason`.
    - `failed_again`: failed again after they were requeued; requested by `force`.
    - `accepted_elsewhere`: accepted by other branches of the pipeline; requested by `force`.
    - `result`: a result, not a record.
    - `result_stream`: a result of another job.
    - `no_bytes`: neither the dead letter nor the log contains the bytes.
    - `other_stream`: the job doesn't read the stream.
    - `counted`: a later version has accepted the record.
    """
    outcomes: dict[str, int]
    """Result in the current version -> number of requeued records: `accepted`, or the reason of the rejection."""
    follow: str | None = None
    """Path that shows what became of the requeued records. Null if none was requeued, and in a dry run."""
    next: str | None = None
    """Path that requeues the next part, by POST; null after the last part."""


class RepairsView(View):
    """Outcome of editing and requeueing dead letters; in a dry run, the expected outcome."""

    dry_run: bool
    matched: int
    """Number of dead letters that match the filter: the sum of `requeued`, `requeued_before`, `unknown`, and `skipped`."""
    requeued: int
    requeued_before: int
    """Number of dead letters that were requeued before."""
    unknown: int
    """Number of skipped dead letters that a killed request may have requeued: the stream no longer contains that
    position.
    """
    skipped: dict[str, int]
    """Reason -> number of skipped dead letters.

    The reasons are those of a requeue, and:
    - `not_edited`: the edits change nothing in the payload, or can't be applied to it.
    - `rejected_again`: the current version would reject the edited record; requested by `force`.
    """
    outcomes: dict[str, int]
    """Result in the current version -> number of edited records: `accepted`, or the reason of the rejection."""
    repairs: list[RepairOutcome]
    """Edited records, at most 100: those that would be rejected again first."""
    follow: str | None = None
    """Path that shows what became of the requeued records. Null if none was requeued, and in a dry run."""
    next: str | None = None
    """Path that repairs the next part, by POST with the same body; null after the last part."""


class RequeuedView(View):
    """Outcome of requeued records."""

    waiting: int
    """Number of records that the job has not read yet."""
    accepted: int
    """Number of records that the job has read and accepted."""
    rejected: dict[str, int]
    """Reason -> number of records that are dead letters again."""
    records: list[RequeuedRecord]
    """Requeued records, at most 100: the rejected ones first."""
    is_complete: bool
    """False if the counts lack records: they are among too many others, or the stream no longer contains them."""


class RepairView(View):
    """Outcome of a repair of a dead letter; in a dry run, the expected outcome."""

    dry_run: bool
    number: int
    """Number of the dead letter."""
    requeued_before: bool
    """True if the dead letter was requeued before. Then it isn't requeued again."""
    outcome: str
    """Result in the current version: `accepted`, or the reason of the rejection."""
    message: str
    follow: str | None = None
    """Path that shows what became of the requeued record. Null if it wasn't requeued, and in a dry run."""


class AuditList(View):
    audits: list[AuditSummary]


class BackfillList(View):
    backfills: list[BackfillView]


class HealthView(View):
    status: Literal["ok", "unavailable"]
    checks: dict[str, str] = {}
    """Part -> `ok` or the problem; only `failing` if the caller has no right to read it."""


class TokenView(View):
    """A token, without its secret."""

    id: str
    """Id of the token, which is part of it: `sl_ID_SECRET`."""
    name: str
    role: Role | None
    writes: list[str]
    """Streams that the token may write to; `*` for all."""
    created_ms: int
    created_by: str
    expires_ms: int | None
    revoked_ms: int | None
    revoked_by: str | None
    used_ms: int | None
    """Time of the last use, accurate to about an hour."""


class MadeTokenView(TokenView):
    """A created token."""

    token: str
    """The token. No other response contains it."""


class SettingList(View):
    settings: list[SettingView]


class TokenList(View):
    tokens: list[TokenView]
