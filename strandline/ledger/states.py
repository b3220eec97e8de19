"""Rows and states of the ledger, as used by the rest of the platform. Pure data: opens no connection.

Times are integer milliseconds since 1970 UTC (`_ms`). An offset map is `{stream: {partition: offset_next}}`. Maps of
reached event time and of silence have milliseconds instead of offsets.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import sha256
from typing import Any, Literal, NamedTuple

from strandline.core.described import Described

Offsets = dict[str, dict[int, int]]
"""stream -> partition -> offset, or milliseconds."""

PackedSessions = dict[str, dict[int, str]]
"""stream -> partition -> declarations up to that point, packed: hashes reference rows of `decoder_contents`."""

StreamVersions = dict[str, int]
"""Stream -> version of its document."""

LookupVersions = dict[str, int]
"""lookup -> version of its rows."""


def offset_count(firsts: Mapping[str, Mapping[int, int]], ends: Mapping[str, Mapping[int, int]]) -> int:
    """Return the number of offsets from `firsts` to before `ends`.

    A partition that is missing in `firsts` begins at 0.
    """
    return sum(
        end - firsts.get(stream, {}).get(partition, 0)
        for stream, partitions in ends.items()
        for partition, end in partitions.items()
    )


class Desired(StrEnum):
    """State that the operator requested for a job. The control service moves the job's state towards it."""

    RUNNING = "running"
    STOPPED = "stopped"
    DRAINED = "drained"


class JobState(StrEnum):
    """Current state of a job.

        created --> starting --> running --+--> stopping --> stopped --> starting
                        |                  |        ^
                        |                  |        |
                        +------------------+--> draining --> drained --> starting

    From `starting` a job may also become stopping or draining. It becomes `failed` from every state in which it has or
    wants a runner; a new start leaves `failed`. A runner that crashed is restarted: running or draining -> starting. An
    operator may stop a job that never ran or has failed: created or failed -> stopped. A batch drains automatically;
    when it is drained, it has completed.
    """

    CREATED = "created"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    DRAINING = "draining"
    DRAINED = "drained"
    FAILED = "failed"


Completed = Literal["completed"]
COMPLETED: Completed = "completed"
"""Shown instead of a state for a batch that has drained to its ends."""

IDLE_STATES = frozenset({JobState.CREATED, JobState.STOPPED, JobState.DRAINED, JobState.FAILED})
"""States in which a job has no runner that may write."""
JOB_MOVES: dict[JobState, frozenset[JobState]] = {
    JobState.CREATED: frozenset({JobState.STARTING, JobState.STOPPED, JobState.FAILED}),
    JobState.STARTING: frozenset({JobState.RUNNING, JobState.STOPPING, JobState.DRAINING, JobState.FAILED}),
    JobState.RUNNING: frozenset({JobState.STARTING, JobState.STOPPING, JobState.DRAINING, JobState.FAILED}),
    JobState.STOPPING: frozenset({JobState.STOPPED, JobState.FAILED}),
    JobState.DRAINING: frozenset({JobState.STARTING, JobState.STOPPING, JobState.DRAINED, JobState.FAILED}),
    JobState.STOPPED: frozenset({JobState.STARTING}),
    JobState.DRAINED: frozenset({JobState.STARTING}),
    JobState.FAILED: frozenset({JobState.STARTING, JobState.STOPPED}),
}
"""The only table of legal moves. Staying in a state is always legal and changes only the message."""
ORDERED_MOVES: dict[tuple[JobState, Desired], JobState] = {
    (JobState.RUNNING, Desired.STOPPED): JobState.STOPPING,
    (JobState.DRAINING, Desired.STOPPED): JobState.STOPPING,
    (JobState.RUNNING, Desired.DRAINED): JobState.DRAINING,
    # A failed job stays failed until a person starts it again, which is now.
    (JobState.FAILED, Desired.RUNNING): JobState.STARTING,
    (JobState.FAILED, Desired.DRAINED): JobState.STARTING,
}
"""(state, new desired state) -> state that an order sets immediately. The supervisor and the runner make all other
moves."""


class Role(StrEnum):
    """Rights of a principal. Each role includes the rights of the previous one (access/rights.py)."""

    METRICS = "metrics"
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


class SliceKind(StrEnum):
    LIVE = "live"
    """Up to the end of every partition, as seen at one moment."""
    CATCH_UP = "catch_up"
    """Up to one log time in all partitions, because the job lags far behind."""
    IDLE = "idle"
    """Contains no record. Closes windows, because event time has advanced in a silent feed."""
    DRAIN = "drain"
    """Contains no record. Closes every open window."""


class SliceStatus(StrEnum):
    PLANNED = "planned"
    COMMITTED = "committed"


class BackfillState(StrEnum):
    """The state of a backfill.

        requested --> running --> swapping --> complete
            |            |
            +------------+--> cancelled, failed

    `swapping` leads only to `complete`: the alias may already show the new generation. An attempt that finds this state
    swaps again, which changes nothing if the swap was done.
    """

    REQUESTED = "requested"
    RUNNING = "running"
    SWAPPING = "swapping"
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "cancelled"


BACKFILL_MOVES: dict[BackfillState, frozenset[BackfillState]] = {
    BackfillState.REQUESTED: frozenset({BackfillState.FAILED, BackfillState.CANCELLED}),
    BackfillState.RUNNING: frozenset({BackfillState.SWAPPING, BackfillState.FAILED, BackfillState.CANCELLED}),
    BackfillState.SWAPPING: frozenset({BackfillState.COMPLETE}),
    BackfillState.COMPLETE: frozenset(),
    BackfillState.FAILED: frozenset(),
    BackfillState.CANCELLED: frozenset(),
}
"""The legal moves, except that every attempt moves to `running`. Staying is legal while the backfill is open."""
OPEN_BACKFILLS = (BackfillState.REQUESTED, BackfillState.RUNNING, BackfillState.SWAPPING)


@dataclass(frozen=True)
class StreamRow(Described):
    """A registered stream."""

    name: str
    document: dict[str, Any]
    """The registration, with its defaults filled in."""
    version: int
    topic_id: str | None
    """Kafka's id of the topic. Another id under the same name means that the topic was deleted and recreated."""
    created_ms: int


@dataclass(frozen=True)
class LookupRow(Described):
    """A lookup in its current version."""

    name: str
    version: int
    digest: str
    """Digest of fields, key, and rows. Two versions with the same digest are equal."""
    document: dict[str, Any]
    """The lookup's document without its rows."""
    rows: int
    applied_ms: int


@dataclass(frozen=True)
class LookupSourceRow(Described):
    """State of reading a lookup's source."""

    lookup: str
    claim: int
    """Number of readings that were begun, and of changes of the document. Only the newest reading may be recorded."""
    position: Offsets | None
    """Position after the records that the current version contains. None for a query, or if the stream has lost records
    that were not read: then the lookup must be applied again."""
    age_ms: int
    """Milliseconds since the current version was known to be equal to the source."""
    due_in_ms: int
    """Milliseconds until it is read again, or until another process may read it because the reader doesn't respond."""
    failing_ms: int | None
    """Milliseconds for which reading has failed. None if the last reading succeeded."""
    error: str
    """Reason why the last reading failed, or why its rows are not recorded yet. Empty if there is none."""
    skipped: int
    """Number of records of the stream that could not become rows, since the document was applied."""
    skipped_last: str
    """Position of the last of them, and the reason."""


@dataclass(frozen=True)
class JobRow:
    name: str
    version: int
    desired: Desired
    state: JobState
    message: str
    """Reason for the state of the job, for people; may be empty."""
    epoch: int
    """The newest run; 0 before the first. Only this epoch may write slices and checkpoints."""
    created_ms: int
    updated_ms: int
    restarts: int
    """Number of requested restarts. The leader replaces a runner that started before the last request."""
    generation: int = 1
    """Generation of the results that the job writes itself. It rises when the job is reset, and when its name is
    reused."""
    letters_first: int = 0
    """Number of the first dead letter of its current incarnation. Below 0: the running deletion of a deleted job's dead
    letters."""
    ends: Offsets | None = None
    """End offsets of a batch that has begun: it reads each partition up to, but not including, its offset. Null if the
    job has no end, or hasn't begun."""
    restores: bool = False
    """True if the next run restores the results that a store lost."""

    @property
    def has_completed(self) -> bool:
        """True for a batch that has read all records up to its ends and closed every window.

        It has no remaining work.
        """
        return self.ends is not None and self.state is JobState.DRAINED


@dataclass(frozen=True)
class LeaseRow:
    """Lease of a control service on a job. Times are the database's."""

    job: str
    holder: str
    """Name of the control service."""
    epoch: int
    """Rises with every grant. The leader passes it with each write about the job."""
    granted_ms: int
    until_ms: int
    address: str
    """URL of the holder's REST API."""
    data_dir: str
    """Data directory of the holder, on its machine."""
    is_held: bool
    """True if it has neither expired nor been released."""


@dataclass(frozen=True)
class FreeJob:
    """A job that no running control service leads."""

    name: str
    free_for_ms: int
    """Milliseconds since the lease ended. Below 0 if the lease belongs to the requesting service itself, or was granted
    before the database's clock was set back."""


@dataclass(frozen=True)
class JobVersionRow:
    job: str
    version: int
    text: str
    """The YAML as it was submitted."""
    document: dict[str, Any]
    created_ms: int
    lookup_versions: LookupVersions = field(default_factory=dict)
    """Version of each used lookup with which it enriches slices that contain none: these were planned before the job
    used the lookup."""


class Compiled(NamedTuple):
    """Documents with which results are computed from a committed slice on."""

    slice_first: int
    version: int
    """Version of the pipeline."""
    stream_versions: StreamVersions


class JobBase(NamedTuple):
    """State of a job that its new version was checked against."""

    version: int
    """Current version of the job; 0 if the job doesn't exist."""
    floor: int
    """The last slice that could not be replayed any more."""


class StageSink(NamedTuple):
    """Sink of a stage."""

    kind: str
    """`elasticsearch` or `stream`."""
    name: str
    """The alias or the stream."""
    stage: str


@dataclass(frozen=True)
class RunRow:
    job: str
    epoch: int
    version: int
    pid: int
    started_ms: int
    ended_ms: int | None
    outcome: str | None
    message: str
    slots: int = 0
    """Number of buckets. Each writes to Kafka under its own slots (transactional ids). 0 before they may write."""
    stream_versions: StreamVersions = field(default_factory=dict)
    """Version of each stream's document with which the run's pipeline was compiled."""


WatermarkPolicy = Literal["partitions", "newest", "emissions"]
ReachedBound = Literal["log_time", "planned"]


@dataclass(frozen=True)
class EventTimeRule(Described):
    """Treatment of event time by a pipeline.

    It is recorded with each slice, because a later version may have another rule.
    """

    delay_ms: int
    """Delay of the watermark after the event time reached."""
    idle_timeout_ms: int | None
    """Time of silence after which a partition no longer holds the others back. Null if each partition does so forever.
    """
    max_ahead_ms: int | None = None
    """Maximum by which the event time of an accepted record can be after its log time. Null for no limit."""
    watermark: WatermarkPolicy = "partitions"
    """Source of the watermark.
    `partitions`: The partition that lags furthest behind. `newest`: The latest event of all partitions.
    `emissions`: For a stream of results, the closed windows of the job that emits to it, or the latest event if that is
    earlier.
    """
    by_stream: tuple[tuple[str, EventTimeRule], ...] = ()
    """(stream, rule) of each stream, if a job reads several; then the other fields are those of the first stream."""
    revise_ms: int = 0
    """Time after the watermark for which a record still counts, and revises emitted results. 0 if it is late.
    Like the next two fields, it has one value for all streams.
    """
    revises: str = ""
    """Digest of the pipeline whose results are revised. Empty if no results are."""
    revises_after_ms: int | None = None
    """Windows that end at or before it were closed by a pipeline with another digest, and are not revised. Null if
    there are none."""
    bound: ReachedBound = "log_time"
    """Maximum event time of a partition after a record. `log_time`: the log time of the record. `planned`: the time at
    which its slice was planned, because the producers of the stream set its log times."""
    results_from_ms: int | None = None
    """For `emissions`: no result from the begin of the slice on has an earlier event time, according to the checkpoint
    of the emitting job. Null if this is not known yet."""

    @property
    def written(self) -> dict[str, Any]:
        """The rule as JSON, with `by_stream` as a mapping.

        Fields that only revisions, emissions, or several streams need are left out if they have their defaults, because
        the ledger stores a rule with each slice.
        """
        found = {
            name: value
            for name, value in vars(self).items()
            if name not in _LEFT_OUT_OF_RULES or value != _LEFT_OUT_OF_RULES[name]
        }
        if self.by_stream:
            found["by_stream"] = {stream: rule.written for stream, rule in self.by_stream}
        return found

    def late_below_ms(self, watermark_ms: int | None) -> int | None:
        """Return the event time below which records are left out while this watermark is effective. Null: no record can
        be late yet.

        It is the watermark or, if results are revised, a time so far before it that no revisable result can contain the
        records.
        """
        if watermark_ms is None or not self.revise_ms:
            return watermark_ms
        kept_ms = watermark_ms - self.revise_ms
        return kept_ms if self.revises_after_ms is None else max(kept_ms, self.revises_after_ms)

    def of(self, stream: str) -> EventTimeRule:
        """Return the rule of this stream."""
        return next((rule for name, rule in self.by_stream if name == stream), self)

    def by_partitions_where(self, other: EventTimeRule) -> EventTimeRule:
        """Return the rule with the policy `partitions` instead of `newest` for each stream that has `partitions` in the
        other rule."""
        by_stream = tuple((name, rule.by_partitions_where(other.of(name))) for name, rule in self.by_stream)
        is_newest = self.watermark == "newest" and other.watermark == "partitions"
        return replace(self, watermark="partitions" if is_newest else self.watermark, by_stream=by_stream)

    def bounded_by_plan(self, streams: Collection[str]) -> EventTimeRule:
        """Return the rule with the bound `planned` for these streams. A job that reads one stream has a single rule."""
        by_stream = tuple(
            (name, replace(rule, bound="planned") if name in streams else rule) for name, rule in self.by_stream
        )
        first = by_stream[0][1].bound if by_stream else "planned" if streams else self.bound
        return replace(self, bound=first, by_stream=by_stream)

    def with_results_from(self, results_from_ms: Mapping[str, int | None]) -> EventTimeRule:
        """Return the rule with `results_from_ms` for each of these streams.

        A job that reads one stream has a single rule.
        """
        if not results_from_ms:
            return self
        by_stream = tuple(
            (one, replace(rule, results_from_ms=results_from_ms.get(one))) for one, rule in self.by_stream
        )
        first = by_stream[0][1].results_from_ms if by_stream else next(iter(results_from_ms.values()))
        return replace(self, results_from_ms=first, by_stream=by_stream)


_LEFT_OUT_OF_RULES = {"by_stream": (), "revise_ms": 0, "revises": "", "revises_after_ms": None, "results_from_ms": None}
"""Field -> its default."""
_NOT_IN_DIGEST = frozenset({"job", "epoch", "cut_time_ms", "rule", "status", "planned_ms", "checksums"})
"""Fields of a slice that don't affect its results. `rule` and `planned_ms` have their own form in the digest."""


@dataclass(frozen=True)
class SliceRow(Described):
    """A numbered range of the log, and its status. Offsets: stream -> partition -> offset."""

    job: str
    number: int
    """Counted from 1 without gaps."""
    epoch: int
    """The run that planned it; a later run may commit it."""
    version: int
    offsets_first: Offsets
    """Begin of the slice in each partition: equal to `offsets` of the slice before."""
    offsets: Offsets
    """End of the slice in each partition: the offset after its last one, at which the next slice begins."""
    cut_time_ms: int
    watermark_ms: int | None
    """The effective watermark: a record with an earlier event time is late. Null if no record can be late yet."""
    rule: EventTimeRule
    """Treatment of event time in this slice."""
    reached: Offsets
    """stream -> partition -> event time reached (ms) before this slice.

    It is the maximum over the accepted records of min(event time, log time), or of the value that the rule's `bound`
    defines."""
    silence_ms: Offsets
    """stream -> partition -> time (ms) without an accepted record when the slice was planned, if the rule has a
    timeout. If the slice has an accepted record of the partition, the value doesn't apply."""
    kind: SliceKind
    status: SliceStatus
    planned_ms: int
    checksums: Offsets = field(default_factory=dict)
    """stream -> partition -> checksum of the record batch with the last record before `offsets`, if there is one."""
    stream_versions: StreamVersions = field(default_factory=dict)
    """Version of its stream's document with which each record is decoded, in every replay of the slice."""
    sessions: PackedSessions = field(default_factory=dict)
    """stream -> partition -> declarations of the records before the slice, for formats whose records depend on earlier
    ones."""
    lookup_versions: LookupVersions = field(default_factory=dict)
    """Version of each lookup with which its records are enriched, in every replay of the slice."""

    @property
    def digest(self) -> str:
        """Digest of everything in the row that determines the results of the slice: 16 hexadecimal digits.

        It doesn't depend on the run that planned the slice, or on the status. It depends on the time of the plan only
        if this time bounds the event time of a stream (`EventTimeRule.bound`). Two plans under one number have the same
        digest only if they produce the same results. Empty values are left out, so a field that is added later changes
        no digest of a slice that doesn't use it.
        """
        values = {name: value for name, value in vars(self).items() if name not in _NOT_IN_DIGEST and value}
        if "planned" in {rule.bound for rule in (self.rule, *(rule for _, rule in self.rule.by_stream))}:
            values["planned_ms"] = self.planned_ms
        values["rule"] = {name: value for name, value in self.rule.written.items() if value}
        return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def late_below_ms(self) -> int | None:
        """Records with an earlier event time are left out. Null if no record can be late yet."""
        return self.rule.late_below_ms(self.watermark_ms)


@dataclass(frozen=True)
class KeyAhead(Described):
    """A key whose records have event times after their log times."""

    stream: str
    partition: int
    key: str
    """Value of the stream's key field. If it isn't known: the Kafka key, or the source that the gateway recorded."""
    ahead_ms: int
    """Maximum by which the event time of a record was ahead of its log time, in the last slice with such a record."""
    log_ms: int
    """Log time of the last such record."""


@dataclass(frozen=True)
class RejectedPartition(Described):
    """A partition whose records have all been rejected since some slice."""

    stream: str
    partition: int
    slice_first: int
    """The first of these slices."""
    rejected: dict[str, int]
    """Reason -> records since then."""
    senders: dict[str, str]
    """Reason -> sender of one of these records: value of the stream's key field, Kafka key, or the source that the
    gateway recorded (`mqtt:TOPIC`). Reasons without a known sender are left out."""


@dataclass(frozen=True)
class SenderFaults(Described):
    """Faults of senders, for the status of a job. They have no effect on results."""

    keys_ahead: list[KeyAhead] = field(default_factory=list)
    """Keys that were ahead of their log time by more than a second in the last 10 minutes of log time: at most five, the furthest
    first."""
    rejected_partitions: list[RejectedPartition] = field(default_factory=list)
    """Partitions whose records are all rejected: at most five, those with the most records first."""


@dataclass(frozen=True)
class CheckpointRow:
    job: str
    slice: int
    epoch: int
    """The run that committed it."""
    version: int
    emitted: dict[str, int]
    """stage -> end (ms) of the last window that it has emitted."""
    latest_event_ms: int | None
    """The latest event time in all slices so far: never falls."""
    latest_log_ms: int | None
    """The latest log time in all slices so far: never falls."""
    records: int
    accepted: int
    rejected: dict[str, int]
    """reason -> records of this slice."""
    results: dict[str, int]
    """stage -> results of this slice."""
    dead_letter_offsets: dict[int, int]
    """partition of the dead-letter stream -> offset_next after this slice."""
    committed_ms: int
    result_offsets: Offsets = field(default_factory=dict)
    """offset_next after the results of this slice, of each stream that the job emits to or ever did: never falls."""
    closes_ms: int | None = None
    """Windows that end at or before it became final in this slice or before: never falls."""
    reached: Offsets = field(default_factory=dict)
    """stream -> partition -> event time reached (ms) up to and with this slice: never falls. See `SliceRow.reached`."""
    refused: dict[str, int] = field(default_factory=dict)
    """stage -> results of this slice that a store refused; each has a dead letter (reason `result`)."""
    sessions: PackedSessions = field(default_factory=dict)
    """Declarations up to the end of this slice. See `SliceRow.sessions`."""
    accepted_in: Offsets = field(default_factory=dict)
    """stream -> partition -> the last slice with an accepted record of it that wasn't below the watermark: never falls."""
    ahead_ms: Offsets = field(default_factory=dict)
    """stream -> partition -> maximum by which the event time of an accepted record of this slice was ahead of its log
    time. Partitions without such a record are left out."""
    stored: dict[str, int] = field(default_factory=dict)
    """Store -> number of results of this slice that it has confirmed: `index NAME`, `table NAME`, `files STAGE PATH`. A later
    start compares the stores with it."""
    sender_faults: SenderFaults = field(default_factory=SenderFaults)
    """Senders whose clocks or records are wrong, up to and with this slice."""


class RunCost(NamedTuple):
    """Cost of one run so far."""

    job: str
    epoch: int
    cpu_us: int
    """CPU time of the tasks in microseconds."""
    bytes: int
    """Size of the records that were read, as stored in Kafka."""
    state_bytes: int
    """Size of the state after the last slice."""
    cpu_us_recent: int
    """CPU time per second in microseconds, over the last seconds of the run."""


class JobCost(NamedTuple):
    """Cost of a job. `cpu_us` and `bytes` are sums over all its runs since it was created or reset."""

    cpu_us: int
    bytes: int
    state_bytes: int
    cpu_us_recent: int
    noted_ms: int


class SliceCounts(NamedTuple):
    """The counts of a committed slice. The fields are those of `CheckpointRow`."""

    slice: int
    committed_ms: int
    latest_log_ms: int | None
    records: int
    accepted: int
    rejected: dict[str, int]
    results: dict[str, int]


class WindowRange(NamedTuple):
    """Windows by their end: after `after_ms`, up to and with `up_to_ms`."""

    after_ms: int
    up_to_ms: int


@dataclass(frozen=True)
class BackfillRow:
    """Windows of a job that are recomputed under a new generation."""

    job: str
    generation: int
    """Counted from 2; 1 is the generation of the job itself."""
    version: int
    """Version of the pipeline that computes them."""
    from_ms: int
    """Begin of the requested range; `to_ms` is its end."""
    to_ms: int | None
    windows: dict[str, WindowRange]
    """stage -> its windows."""
    slice: int
    """The last committed slice at the request: all windows are of slices up to it."""
    state: BackfillState
    epoch: int
    """The newest attempt; 0 before the first. Only this one may change the row."""
    done_ms: int | None
    """All windows that end up to this time are in the index. None if there are none yet."""
    records: int
    """Approximate number of records to read."""
    records_done: int
    results: dict[str, int]
    """stage -> results."""
    refused: dict[str, int]
    """stage -> results that the index refused; each has a dead letter."""
    sample: list[str]
    """Descriptions of the first refused results."""
    message: str
    requested_ms: int
    updated_ms: int
    ended_ms: int | None
    stream_versions: StreamVersions = field(default_factory=dict)
    """Version of each stream's document with which its pipeline is compiled."""


@dataclass(frozen=True)
class Totals(Described):
    """The sums over committed slices of a job."""

    records: int
    accepted: int
    rejected: dict[str, int]
    """Reason -> records."""
    results: dict[str, int]
    """Stage -> results, including refused ones."""
    refused: dict[str, int] | None = None
    """Stage -> results that a store refused; each has a dead letter (reason `result`). Null only in an audit: they aren't
    compared."""

    @property
    def columns(self) -> dict[str, Any]:
        """The sums as columns of the ledger."""
        return {f"{name}_total": value for name, value in vars(self).items()}


NO_TOTALS = Totals(records=0, accepted=0, rejected={}, results={}, refused={})


@dataclass(frozen=True)
class RegisteredSchemaRow(Described):
    """The schema that the schema registry first returned for a number."""

    kind: str
    """`avro` or `protobuf`."""
    number: int
    document: str
    """JSON: the schema with all schemas that it references."""
    kept_ms: int


@dataclass(frozen=True)
class EventRow(Described):
    """An event."""

    id: int
    job: str | None
    epoch: int | None
    """The run in which it happened."""
    at_ms: int
    kind: str
    message: str
    facts: dict[str, Any]
    principal: str | None = None
    """Principal that caused it. Null if none is known, or if the platform caused it."""


class FollowedEvents:
    """The events that a follower has received.

    If two events are recorded at the same time, the one with the higher number may become visible first. So each query
    begins some numbers earlier.
    """

    BACK = 50
    """Number of events before the newest that each query returns again."""

    def __init__(self, begin: int) -> None:
        """`begin`: Only events with a higher number are returned."""
        self.begin = begin
        self._seen: set[int] = set()

    @property
    def after(self) -> int:
        """The next query requests the events after this number."""
        return max(self.begin, max(self._seen, default=self.begin) - self.BACK)

    def new(self, numbers: Iterable[int]) -> set[int]:
        """Return the numbers that a query found for the first time."""
        found = set(numbers) - self._seen
        self._seen |= found
        last = max(self._seen, default=0)
        self._seen = {one for one in self._seen if one >= last - self.BACK}
        return found


@dataclass(frozen=True)
class TokenRow(Described):
    """A token without its secret, which can't be derived from this row."""

    id: str
    """Part of the token itself, so that the token is found by a look-up."""
    name: str
    digest: str
    """SHA-256 of the secret, in hex. A slow hash would protect a secret that can be guessed, but this one has 256
    random bits. It also signs the holder's datagrams, so it is never shown."""
    role: Role | None
    writes: list[str]
    """The streams that it may write to."""
    created_ms: int
    created_by: str
    expires_ms: int | None
    revoked_ms: int | None
    revoked_by: str | None
    used_ms: int | None
    """Time of the last use, as far as a service has recorded it: at most about an hour late."""

    def is_valid_at(self, now_ms: int) -> bool:
        """Return True if the token may be used at this time."""
        return self.revoked_ms is None and (self.expires_ms is None or now_ms < self.expires_ms)
