"""The answers of the REST API. Those that equal a row of the ledger, or the answer of a use case, have no class here.

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
from strandline.services.jobs.explanation import JobExplanationView
from strandline.services.jobs.job_status import JobStatus
from strandline.services.jobs.lookups import LookupSummary
from strandline.services.jobs.results import ResultAliasView
from strandline.services.rest.problems import ProblemError, problem_errors


class View(Described, BaseModel):
    """What the API answers with; the docstrings of its fields stand in the API's description."""


class Link(View):
    """A request that would change something now."""

    rel: str
    method: str
    href: str


class Applied(View):
    """What became of one document."""

    kind: Literal["stream", "lookup", "pipeline", "notice"]
    name: str
    outcome: Literal["created", "changed", "unchanged"]
    version: int
    notes: list[str] = []
    """What else is to be known: what the change of a stream, or of a lookup, means for each job that uses it."""


class AppliedList(View):
    applied: list[Applied]


class PartitionView(View):
    partition: int
    offset_first: int
    """The first offset that the log still holds."""
    offset_next: int
    """The offset after the last."""


class StreamList(View):
    streams: list[StreamRow]


class StreamView(View):
    """A registered stream, and what the log holds of it."""

    name: str
    document: dict[str, Any]
    """The registration, with its defaults filled in."""
    version: int
    topic_id: str | None
    """Kafka's id of the topic."""
    created_ms: int
    emitted_by: str | None
    """The job that emits to it; null where its records come from elsewhere."""
    retention_ms: int
    """Of the topic now; -1 is `forever`."""
    records: int
    """In the log now, all partitions together."""
    partitions: list[PartitionView]


class LookupList(View):
    lookups: list[LookupSummary]


class DeletedLookupView(View):
    lookup: str


class UndeclaredFieldView(View):
    """A member of records that no field of the schema takes."""

    path: str
    """As a field's `from` would name it; `[*]` stands for the place of an exploded element."""
    types: list[str]
    """Those seen, the most frequent first."""
    records: int
    """How many of the records that were looked at have it."""
    share: float
    """Their share of the records that were looked at, 0 to 1."""


class UndeclaredView(View):
    """What a stream's newest records hold that its schema doesn't declare."""

    stream: str
    version: int
    """Of the stream's document."""
    records: int
    """How many records were looked at: the newest ones, evenly from all partitions."""
    fields: list[UndeclaredFieldView]
    """The most frequent first, a thousand at most."""


class ProposalView(View):
    """A stream's document, proposed from the newest records of a topic."""

    document: dict[str, Any]
    notes: list[str]
    """What a person should know about it."""
    records: int
    """How many records it was proposed from."""
    accepted: int
    """How many rows of them it accepts."""
    rejected: list[str]
    """Why it rejects the first of the others."""


class PipelineGraphView(View):
    """What a pipeline does and costs."""

    pipeline: str
    inputs: list[dict[str, Any]]
    """Each stream that the pipeline reads: its partitions, the columns that are read, and the treatment of its event time."""
    record_stages: list[dict[str, Any]]
    """Of each emission of records: the steps before it, its fields, and where they go."""
    stages: list[dict[str, Any]]
    """Of each window: the steps before it and behind it, aggregates, emissions, and what it keeps for a key (an estimate, in
    bytes)."""
    exchange: dict[str, Any]
    """By which fields rows are spread over buckets; of several branches, those of the first one."""
    branches: list[dict[str, Any]]
    """Of each branch: its windows, by which fields its rows are spread, and which windows are computed in an earlier one, too."""
    reach_ms: int
    """How far back in event time open windows go."""
    retention: dict[str, Any]
    """What a rewind may need of the log, and what the stream keeps."""
    time_zone_rules: str | None = None
    """By which version of the tz database days of time zones begin, where windows are such."""
    hints: list[str]
    """What costs, and what may surprise."""


class CheckView(View):
    """The check of a pipeline."""

    valid: bool
    problems: list[ProblemError]
    stages: list[StageView]
    """Empty unless it is valid."""
    reach_ms: int | None = None
    """How far back in event time a rewind may have to go."""


def check_view(checked: Checked) -> CheckView:
    """Return the result of a check as the API shows it."""
    problems = problem_errors(checked.problems)
    return CheckView(valid=not problems, problems=problems, stages=checked.stages, reach_ms=checked.reach_ms)


class ExplanationList(View):
    explanations: list[JobExplanationView]


class KibanaView(View):
    """What shows a job's results in Kibana."""

    objects: list[dict[str, Any]]
    """Saved objects of Kibana 8.19, in the order in which it takes them; none if the job emits to no index."""


class DeletedJobView(View):
    """A deleted job, and what became of what it had written."""

    job: str
    indices: list[str]
    """Its indices of results."""
    results: Literal["kept", "deleted"]
    dead_letters: Literal["kept", "deleted"]


class DeletedStreamView(View):
    stream: str
    topic: Literal["kept", "deleted"]


class LogView(View):
    """Some lines of a runner's log."""

    lines: list[str]
    byte_next: int
    """Pass it as `after` for what comes next."""


@dataclass(frozen=True)
class JobView(JobStatus):
    links: list[Link]
    """The requests that would change something now."""


def job_view(status: JobStatus) -> JobView:
    """Return the status of a job with its links."""
    links = [Link(rel=verb, method="POST", href=f"/v1/jobs/{status.name}/{verb}") for verb in status.verbs]
    return JobView(**vars(status), links=links)


class JobList(View):
    jobs: list[JobView]


class SliceList(View):
    slices: list[SliceRow]
    next: str | None = None
    """Where the next page is; null on the last one."""


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
    """Where the next page is; null on the last one."""


def checkpoint_view(row: CheckpointRow) -> CheckpointView:
    """Return the checkpoint as the API shows it."""
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
    """Return the run as the API shows it."""
    return RunView(**{name: value for name, value in vars(row).items() if name in RunView.model_fields})


class ArrivalList(View):
    now_ms: int
    """Time of the service, to compare with."""
    arrivals: list[ArrivalView]


class ResultAliasList(View):
    results: list[ResultAliasView]


class EventList(View):
    events: list[EventRow]
    next: str | None = None
    """Where the next page is; null on the last one."""


class DeadLetterView(View):
    """A record that could not be used. `stream`, `partition`, `offset` and `element` say where it came from and identify it."""

    number: int
    """Its offset in the dead-letter stream; `after` takes it."""
    stream: str
    partition: int | None
    offset: int | None
    element: int | None
    """Of a record that was exploded: the place of the row's element in its array."""
    reason: str
    message: str
    step: str
    log_time_ms: int
    value: str
    """The sender's bytes as text; in a list only the beginning. What is not UTF-8 is shown as U+FFFD."""
    value_bytes: int
    """How many bytes the sender sent."""


class DeadLetterFull(DeadLetterView):
    value_base64: str
    """The sender's bytes, exactly."""
    replay_of: str | None = None
    """Of a record that was put back from a dead letter and failed again: `STREAM/PARTITION/OFFSET` of the first one."""


class DeadLetterList(View):
    dead_letters: list[DeadLetterView]
    next: str | None = None
    """Where the next page is; null on the last one."""


class DeadLetterCounts(View):
    """How many dead letters there are, in a piece of them."""

    letters: int
    reasons: dict[str, int]
    steps: dict[str, int]
    next: str | None = None
    """Where the next piece is counted; null on the last one."""


class ReplayView(View):
    """What became of some dead letters that were put back into their stream; in a dry run, what would."""

    dry_run: bool
    matched: int
    """How many dead letters were asked for: `put_back`, `already`, `unknown` and those left out."""
    put_back: int
    already: int
    """They were put back before."""
    unknown: int
    """A request that was killed may have put them back, into a part of the stream that is gone: they are left out."""
    left_out: dict[str, int]
    """Why -> how many: `late` (they stay late; unless they are asked for), `failed_again` (put back before; unless `again`),
    `taken` (came to other branches of the pipeline; unless `again`),
    `result` (of a result, not of a record), `result_stream` (its stream holds another job's results), `no_bytes` (neither letter
    nor log hold them), `other_stream`, `counted` (a later version has read the record again, and taken it)."""
    outcomes: dict[str, int]
    """What the present version makes of those put back: `accepted`, or the reason for which it rejects them again."""
    next: str | None = None
    """Where the next piece is put back, by POST; null on the last one."""


class RepairView(View):
    """What became of a repaired dead letter; in a dry run, what would."""

    dry_run: bool
    number: int
    """The dead letter."""
    already: bool
    """It was put back before, and not again."""
    outcome: str
    """What the present version makes of the payload: `accepted`, or the reason for which it rejects it."""
    message: str


class BackfillList(View):
    backfills: list[BackfillView]


class HealthView(View):
    status: Literal["ok", "unavailable"]
    checks: dict[str, str] = {}
    """Part -> `ok` or what is wrong; `failing` for who has no right to read it."""


class TokenView(View):
    """A token, without what is secret of it."""

    id: str
    """Stands in the token itself: `sl_ID_SECRET`."""
    name: str
    role: Role | None
    writes: list[str]
    """The streams that it may write to; `*` for all."""
    created_ms: int
    created_by: str
    expires_ms: int | None
    revoked_ms: int | None
    revoked_by: str | None
    used_ms: int | None
    """When it was last used, at most about an hour behind."""


class MadeTokenView(TokenView):
    """A token that was just made."""

    token: str
    """The token itself. It is shown nowhere else."""


class TokenList(View):
    tokens: list[TokenView]
