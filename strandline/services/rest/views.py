"""The answers of the REST API. Those that equal a row of the ledger have no class here: the row itself is the answer.

Times are milliseconds since 1970 UTC (`_ms`).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from strandline.core.described import Described
from strandline.ledger.states import (
    BackfillRow,
    BackfillState,
    CheckpointRow,
    Completed,
    Desired,
    EventRow,
    JobState,
    Offsets,
    Role,
    RunRow,
    SenderFaults,
    SliceRow,
    StreamRow,
    Totals,
)
from strandline.processing.pipelines.upgrade import Change
from strandline.services.rest.problems import ProblemError


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


class RewindView(View):
    """What a start would cost. Recovery, failover and upgrade cost the same: each reads the log again."""

    records: int
    """How many would be read again."""
    seconds: float
    """An estimate for a Spark session that runs already; a cold start takes about ten seconds more."""
    retention_left_ms: int | None
    """How long retention still keeps the records that the rewind needs, if no window closes meanwhile; null when it needs
    none, or records are kept for ever."""
    warning: str = ""
    """What to do, when less than a quarter of the retention is left; else empty."""


class LastStartView(View):
    """How the newest run got the state of its open windows."""

    epoch: int
    way: Literal["rewind", "snapshot"]
    """`rewind`: it read the log again. `snapshot`: it started from Spark's checkpoint on disk (`recovery: snapshot`)."""
    records: int
    """How many it read again, with those of a slice that was planned and not committed."""
    slice_first: int
    """Where it began to read."""
    slice_committed: int
    """The last slice whose results were out."""
    at_ms: int


class JobPlan(View):
    """What applying a pipeline would mean for its job."""

    job: str
    outcome: Literal["created", "changed", "unchanged"]
    version: int
    """The version that the job would have."""
    changes: list[Change]
    """The forbidden ones first."""
    rewind: RewindView | None
    """The rewind that the start of the new version would need; null where there is nothing to rewind."""


class DocumentPlan(View):
    """What applying a stream or a lookup would mean."""

    kind: Literal["stream", "lookup"]
    name: str
    changes: list[Change]
    """The forbidden ones: why applying is refused."""
    notes: list[str]
    """As applying would answer with."""


class PlanView(View):
    """What applying would mean. It is refused where one change is forbidden."""

    documents: list[DocumentPlan]
    """The streams and lookups."""
    jobs: list[JobPlan]


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


class LookupSourceView(View):
    """How a lookup's source is followed."""

    told: str
    """What it is, as `stream devices`."""
    state: Literal["current", "failing", "old"]
    """`failing`: the last reading failed; `old`: the rows are older than `max_age_ms`."""
    age_ms: int
    """How long ago the present version was what the source said."""
    max_age_ms: int
    every_ms: int
    """How often it is read."""
    next_in_ms: int
    """When it is read again; for large versions later than `every_ms`."""
    failing_ms: int | None
    """For how long reading has failed."""
    error: str
    """Why the last reading failed; empty: it did not."""
    skipped: int
    """Records of a stream that could be no rows, since the document was applied."""
    skipped_last: str
    """The last of them: where it stands, and why."""


class LookupSummary(View):
    """A lookup in its present version."""

    name: str
    version: int
    digest: str
    document: dict[str, Any]
    """The lookup's document without its rows."""
    rows: int
    applied_ms: int
    source: LookupSourceView | None
    """Null: its rows came with its document."""


class LookupList(View):
    lookups: list[LookupSummary]


class LookupVersionView(View):
    """One version of a lookup."""

    version: int
    rows: int
    digest: str
    applied_ms: int


class LookupView(LookupSummary):
    """A lookup in its present version, and the versions before."""

    jobs: list[str]
    """Those that need it: because their present versions use it, or slices that a replay may read went by it."""
    version_needed: int | None
    """The oldest version whose rows a replay may need; null: no job needs the lookup."""
    versions: list[LookupVersionView]
    """The newest 100, the oldest of them first."""


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


class PreviewView(View):
    """What a pipeline makes of the newest records of a stream. Nothing of it was written."""

    pipeline: str
    stream: str
    records: int
    accepted: int
    rejected: dict[str, int]
    """Reason -> records."""
    result_counts: dict[str, int]
    """Stage -> results."""
    results: list[dict[str, Any]]
    """The documents, 1,000 at most: as many of each stage."""
    dead_letters: list[dict[str, Any]]
    """Records and results that could not be used, 100 at most."""
    is_cut: bool
    """Whether the stream holds more than was read."""


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


class StageView(View):
    """One compiled stage of a pipeline."""

    name: str
    windows: str
    """Which windows, in words."""
    size_ms: int
    """How long its windows are; of sessions, at most; 0 where it emits records."""
    every_ms: int
    """How far apart they begin: less than `size_ms` where they slide; the gap of sessions."""
    by: dict[str, str]
    """Key field -> type."""
    aggregates: dict[str, str]
    """Result field -> type."""
    emits: list[str]


class CheckView(View):
    """The check of a pipeline."""

    valid: bool
    problems: list[ProblemError]
    stages: list[StageView]
    """Empty unless it is valid."""
    reach_ms: int | None = None
    """How far back in event time a rewind may have to go."""


class ExplanationView(View):
    """Why a job has no output, or what it waits for."""

    cause: str
    """A code for programs, as `window_open`."""
    sentence: str
    next: str
    """What to do."""
    notes: list[str]
    """Faults of senders, whatever the cause is: partitions whose records are all rejected, with the reasons and devices, and keys
    that are ahead of their log time."""


class JobExplanationView(ExplanationView):
    job: str


class ExplanationList(View):
    explanations: list[JobExplanationView]


class KibanaView(View):
    """What shows a job's results in Kibana."""

    objects: list[dict[str, Any]]
    """Saved objects of Kibana 8.19, in the order in which it takes them; none if the job emits to no index."""


class SeriesView(View):
    """One line of a chart."""

    key: str
    """The value of the key; the value's name where there is one line only."""
    points: list[tuple[int, float]]
    """(start of the window in ms since 1970, value), by time. Windows without a value are left out."""


class ResultsView(View):
    """Results of one alias over time."""

    alias: str
    job: str
    stage: str
    size_ms: int
    """Of a window."""
    every_ms: int
    """From one window's start to the next one's."""
    value: str
    operation: str
    """What makes one value of those of several windows: `sum`, `average`, `min` or `max`."""
    by: str | None
    """The key: each of its values is a series. Null: there is one series."""
    from_ms: int | None
    """Windows that start at this time or later; null where there is no result at all."""
    to_ms: int | None
    """The start of the youngest window."""
    step_ms: int
    """So much time is one point: one window, or several when there are more than points."""
    results: int
    """All results in this time, also those of keys that are not drawn."""
    series: list[SeriesView]
    """Of the keys that have most results."""
    counts: Totals
    """Of the whole job, since its beginning: accepted, late and other rejected records."""


class LeaderView(View):
    """The control service that leads a job."""

    name: str
    address: str
    """Its REST API."""
    lease_epoch: int
    """Rises by one with every new leader, and with every start of a leader."""
    lease_until_ms: int
    """When the lease runs out unless it is renewed, by the ledger's clock."""


class BatchView(View):
    """How far a batch has come. Records are counted by offsets, and the end of a transaction counts as one."""

    records_read: int
    records_left: int
    share: float
    """Of the records, from 0 to 1."""
    records_per_s: float | None
    """Over the last slices; null before the first one with records."""
    seconds_left: float | None
    """By that rate."""


class JobView(View):
    name: str
    version: int
    stream: str
    """The input; of several the first."""
    streams: list[str]
    """All inputs, in the order of the document."""
    desired: Desired
    state: JobState | Completed
    """`completed`: a batch that has read its range and closed every window. The ledger calls it `drained`."""
    message: str
    """Why it is in this state; empty when there is nothing to say."""
    epoch: int
    """The newest run; 0 before the first."""
    generation: int
    """Of the results that it writes itself: higher after a reset."""
    restores: bool
    """True until the next run has restored the results that a store lost."""
    leader: LeaderView | None
    """Null while no control service leads the job."""
    created_ms: int
    updated_ms: int
    slice: int | None
    """The last committed slice."""
    watermark_ms: int | None
    """In force for the last planned slice: an older record of it is late."""
    latest_event_ms: int | None
    """The latest event time in all committed slices."""
    lag_records: int | None
    """Records of the log after the last committed slice, of a batch up to its ends; null when Kafka does not answer."""
    batch: BatchView | None
    """Null for a job without an end, and for a batch that has not begun."""
    counts: Totals
    last_emission: dict[str, int]
    """Stage -> end (ms) of the last window that it has emitted."""
    rewind: RewindView | None
    """What a rewind would cost now; null before the first slice, and of a batch that has completed. A start from a snapshot costs
    less."""
    last_start: LastStartView | None
    """Null before the first run."""
    backfill: BackfillView | None
    """The backfill that is requested or runs."""
    warnings: list[str]
    """What is wrong with what it uses: a stream that is gone, lookups whose sources can't be read, or whose rows are too old."""
    sender_faults: SenderFaults
    """Devices whose clocks are ahead, and partitions whose records are all rejected."""
    notes: list[str]
    """The faults of senders as sentences."""
    links: list[Link]
    """The requests that would change something now."""


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


class HistoryView(View):
    """Counts of a job over time. Each list has one value for each step, the oldest first."""

    from_ms: int
    """Begin of the first step."""
    step_ms: int
    records: list[int]
    accepted: list[int]
    rejected: list[int]
    """Rejected records without repeated ones (`duplicate`)."""
    results: list[int]
    runs: list[int]
    """Runs that began."""
    behind_ms: list[int | None]
    """How far the commits were behind the newest log time that they had read, at most; null without a commit."""


class ArrivalPartitionView(View):
    partition: int
    offset_next: int
    newest_ms: int | None
    """Log time of the newest record; null if the partition has none."""


class ArrivalView(View):
    """The newest record of a stream."""

    stream: str
    newest_ms: int | None
    """Log time of the newest record; null if the topic has none, or if Kafka doesn't answer."""
    records: int | None
    """Records in the topic; null if Kafka doesn't answer."""
    partitions: list[ArrivalPartitionView]
    problem: str
    """Why Kafka can't be asked for the stream; empty if it can."""


class ArrivalList(View):
    now_ms: int
    """Time of the service, to compare with."""
    arrivals: list[ArrivalView]


class ResultNumberView(View):
    """A number that can be drawn."""

    name: str
    type: str
    operation: str
    """How the values of several windows become one value."""


class ResultAliasView(View):
    """An alias of results, and the fields of its documents."""

    alias: str
    job: str
    stage: str
    size_ms: int
    every_ms: int
    windows: str
    """Kind of the windows if their size doesn't show it, such as `sessions`; else empty."""
    keys: list[str]
    """Key fields that can make the series of a chart."""
    numbers: list[ResultNumberView]


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


class WindowRangeView(View):
    """Windows by their end."""

    after_ms: int
    """They end after it."""
    up_to_ms: int
    """The last one ends at it."""


class BackfillView(View):
    """Windows that are computed again, as a generation of their own."""

    job: str
    generation: int
    """Counted from 2; 1 is what the job itself writes. The indices are `{emit name}.gN-yyyy.MM`."""
    version: int
    """Of the pipeline that computes them."""
    from_ms: int
    to_ms: int | None
    """As requested; null: up to what was emitted then."""
    windows: dict[str, WindowRangeView]
    """Stage -> its windows."""
    state: BackfillState
    message: str
    """Why it is in this state; empty when there is nothing to say."""
    done_ms: int | None
    """All windows that end at or before this time are written; null while none is."""
    records: int
    """About how many are to be read."""
    records_done: int
    results: dict[str, int]
    """Stage -> results."""
    refused: dict[str, int]
    """Stage -> results that the index refused; each has a dead letter."""
    sample: list[str]
    """Why the index refused the first of them."""
    attempts: int
    """How many processes have worked on it."""
    requested_ms: int
    updated_ms: int
    ended_ms: int | None


class BackfillList(View):
    backfills: list[BackfillView]


def backfill_view(row: BackfillRow) -> BackfillView:
    """A backfill as the API shows it."""
    shown = {name: value for name, value in vars(row).items() if name in BackfillView.model_fields}
    windows = {stage: WindowRangeView(**one._asdict()) for stage, one in row.windows.items()}
    return BackfillView(**{**shown, "windows": windows, "attempts": row.epoch})


class OffsetRangeView(View):
    """A piece of one partition: from `offset_first` up to, but not including, `offset_next`."""

    stream: str
    partition: int
    offset_first: int
    offset_next: int


class ResultRecordsView(View):
    """Where the records of one result stand: all of them are in these ranges, with others that came at the same time."""

    alias: str
    document: str
    """The result's id."""
    job: str
    stage: str
    version: int
    """Of the pipeline that computed it."""
    window_start_ms: int
    window_end_ms: int
    from_ms: int
    """No event before this time counts in it: the window's start, or earlier where a stage before has windows that slide."""
    slice_first: int
    slice_last: int
    """What came in later slices was late for it."""
    ranges: list[OffsetRangeView]


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
