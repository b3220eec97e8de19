"""The ledger's rows and states, as the rest of the platform sees them. Pure data: opens no connection.

Times are whole milliseconds since 1970 UTC (`_ms`). An offset map is `{stream: {partition: offset_next}}`; maps of event time
reached and of silence have milliseconds in place of offsets.
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
"""stream -> partition -> what was declared by then, packed: hashes stand for rows of `decoder_contents`."""

StreamVersions = dict[str, int]
"""Stream -> version of its document."""

LookupVersions = dict[str, int]
"""lookup -> version of its rows."""


def offset_count(firsts: Mapping[str, Mapping[int, int]], ends: Mapping[str, Mapping[int, int]]) -> int:
    """How many offsets there are from `firsts` to before `ends`. A partition that `firsts` lacks begins at 0."""
    return sum(
        end - firsts.get(stream, {}).get(partition, 0)
        for stream, partitions in ends.items()
        for partition, end in partitions.items()
    )


class Desired(StrEnum):
    """What the operator asked of a job; the control service moves the job's state towards it."""

    RUNNING = "running"
    STOPPED = "stopped"
    DRAINED = "drained"


class JobState(StrEnum):
    """What a job does now.

        created --> starting --> running --+--> stopping --> stopped --> starting
                        |                  |        ^
                        |                  |        |
                        +------------------+--> draining --> drained --> starting

    From `starting` a job may also become stopping or draining. It becomes `failed` from every state in which it has or
    wants a runner; a new start leaves `failed`. A runner that died is started again: running or draining -> starting. An
    operator may stop a job that never ran or has failed: created or failed -> stopped. A batch drains by itself; drained, it has
    completed.
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
"""What is shown, in place of a state, of a batch that has drained to its ends."""

RESTING = frozenset({JobState.CREATED, JobState.STOPPED, JobState.DRAINED, JobState.FAILED})
"""The states in which a job has no runner that may write."""
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
"""The one table of legal moves. Staying is always legal and changes only the message."""
ORDERED_MOVES: dict[tuple[JobState, Desired], JobState] = {
    (JobState.RUNNING, Desired.STOPPED): JobState.STOPPING,
    (JobState.DRAINING, Desired.STOPPED): JobState.STOPPING,
    (JobState.RUNNING, Desired.DRAINED): JobState.DRAINING,
    # A failed job stays failed until a person starts it again, which is now.
    (JobState.FAILED, Desired.RUNNING): JobState.STARTING,
    (JobState.FAILED, Desired.DRAINED): JobState.STARTING,
}
"""(state, what is desired from now on) -> the state that an order sets at once. The supervisor and the runner make all other
moves."""


class Role(StrEnum):
    """What a principal may do; each may do what the one before it may (access/rights.py)."""

    METRICS = "metrics"
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


class SliceKind(StrEnum):
    LIVE = "live"
    """Up to the end of every partition, as seen at one moment."""
    CATCH_UP = "catch_up"
    """Up to one log time across all partitions, because the job is far behind."""
    IDLE = "idle"
    """Holds no record; closes windows, because event time has run on in a silent feed."""
    DRAIN = "drain"
    """Holds no record; closes every open window."""


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
    """Kafka's id of the topic: another id under the same name means that the topic was deleted and made anew."""
    created_ms: int


@dataclass(frozen=True)
class LookupRow(Described):
    """A lookup in its present version."""

    name: str
    version: int
    digest: str
    """Of fields, key and rows: two versions with the same are the same."""
    document: dict[str, Any]
    """The lookup's document without its rows."""
    rows: int
    applied_ms: int


@dataclass(frozen=True)
class LookupSourceRow(Described):
    """How the reading of a lookup's source goes."""

    lookup: str
    claim: int
    """Counts the readings that were begun, and the changes of the document: only the newest may be recorded."""
    position: Offsets | None
    """Of a stream: where reading goes on, behind what the present version holds. None: of a query; or the stream has lost records
    that were not read, and the lookup must be applied again."""
    age_ms: int
    """How long ago the present version was what the source said."""
    due_in_ms: int
    """When it is read again, or another may read it because the reader says nothing."""
    failing_ms: int | None
    """For how long reading has failed; None: it has not failed the last time."""
    error: str
    """Why the last reading failed, or its rows are not recorded yet; empty when there is nothing to say."""
    skipped: int
    """Records of the stream that could be no rows, since the document was applied."""
    skipped_last: str
    """The last of them: where it stands, and why."""


@dataclass(frozen=True)
class JobRow:
    name: str
    version: int
    desired: Desired
    state: JobState
    message: str
    """Why the job is in this state, for people; may be empty."""
    epoch: int
    """The newest run; 0 before the first. Only this epoch may write slices and checkpoints."""
    created_ms: int
    updated_ms: int
    restarts: int
    """How many restarts were requested. The leader replaces a runner that started before the last request."""
    generation: int = 1
    """Of the results that the job writes itself: it rises when the job is reset, and when its name is used anew."""
    letters_first: int = 0
    """The number of the first dead letter of its present life. Below 0: the deletion that is at work on those of a deleted
    job."""
    ends: Offsets | None = None
    """Of a batch that has begun: the offset before which it ends in each partition. Null: the job has no end, or hasn't begun."""
    restores: bool = False
    """True if the next run restores the results that a store lost."""

    @property
    def has_completed(self) -> bool:
        """Whether it is a batch that has read all up to its ends and closed every window. Nothing is left to do for it."""
        return self.ends is not None and self.state is JobState.DRAINED


@dataclass(frozen=True)
class LeaseRow:
    """Which control service leads a job. Times are the database's."""

    job: str
    holder: str
    """The control service's name."""
    epoch: int
    """One higher with every grant; what a leader writes about the job names it."""
    granted_ms: int
    until_ms: int
    address: str
    """The holder's REST API."""
    data_dir: str
    """Where the holder keeps its files, on its machine."""
    is_held: bool
    """Whether it has neither run out nor been given back."""


@dataclass(frozen=True)
class FreeJob:
    """A job that no living control service leads."""

    name: str
    free_for_ms: int
    """Below 0 where the lease is the asking service's own, or was granted before the database's clock was set back."""


@dataclass(frozen=True)
class JobVersionRow:
    job: str
    version: int
    text: str
    """The YAML as it was given."""
    document: dict[str, Any]
    created_ms: int
    lookup_versions: LookupVersions = field(default_factory=dict)
    """By which version of each lookup that it uses it enriches slices that say none: they were cut before the job used it."""


class Compiled(NamedTuple):
    """From which committed slice on results were computed by which documents."""

    slice_first: int
    version: int
    """Of the pipeline."""
    stream_versions: StreamVersions


class JobBase(NamedTuple):
    """What a new version of a job was checked against."""

    version: int
    """The job's present version; 0 while there is no such job."""
    floor: int
    """The last slice that could not be replayed any more."""


class Place(NamedTuple):
    """Where a stage emits to."""

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
    """How many buckets it has; each writes to Kafka under slots (transactional ids) of its own. 0 before they may write."""
    stream_versions: StreamVersions = field(default_factory=dict)
    """By which version of each stream's document the run's pipeline was compiled."""


WatermarkPolicy = Literal["partitions", "newest", "emissions"]
ReachedBound = Literal["log_time", "planned"]


@dataclass(frozen=True)
class EventTimeRule(Described):
    """How a pipeline treats event time. It is recorded with each slice, so a later version may have another."""

    delay_ms: int
    """How far the watermark stays behind the event time reached."""
    idle_timeout_ms: int | None
    """A partition that has been silent for so long no longer holds the others back. Null: each one does, for ever."""
    max_ahead_ms: int | None = None
    """A record more than this ahead of its log time is refused. Null: none is."""
    watermark: WatermarkPolicy = "partitions"
    """`partitions`: by the partition that is furthest behind. `newest`: by the latest event of all. `emissions`: of a stream of
    results, as far as the job that emits to it has closed its windows; by the latest event where that says less."""
    by_stream: tuple[tuple[str, EventTimeRule], ...] = ()
    """(stream, rule) of each stream, where a job reads several; then what stands beside it is that of the first."""
    revise_ms: int = 0
    """So far behind the watermark a record still counts, and revises results that are emitted. 0: it is late. Like the two that
    follow, it is said once for all streams."""
    revises: str = ""
    """What the results depend on that are revised: the digest of the pipeline. Empty where none are."""
    revises_after_ms: int | None = None
    """Windows that end at or before it were closed by a pipeline of another digest, and are not revised. Null: none were."""
    bound: ReachedBound = "log_time"
    """How far a record advances the event time of its partition at most. `log_time`: to its log time. `planned`: to the time at
    which its slice was planned, because the producers of the stream write its log times."""
    results_from_ms: int | None = None
    """Where `emissions` count: no result from where the slice begins on has an earlier event time, as the checkpoint of the job
    says that emits them. Null: nobody knows yet."""

    @property
    def written(self) -> dict[str, Any]:
        """The rule as JSON, with `by_stream` as a mapping. Fields that only revisions, emissions or several streams need are left
        out where they have their defaults: the ledger keeps a rule with each slice."""
        found = {
            name: value
            for name, value in vars(self).items()
            if name not in _LEFT_OUT_OF_RULES or value != _LEFT_OUT_OF_RULES[name]
        }
        if self.by_stream:
            found["by_stream"] = {stream: rule.written for stream, rule in self.by_stream}
        return found

    def late_below_ms(self, watermark_ms: int | None) -> int | None:
        """Records with an earlier event time are left out while this watermark is in force: those below it, or, where results are
        revised, so far below that no result that may be revised can hold them. Null: no record can be late yet."""
        if watermark_ms is None or not self.revise_ms:
            return watermark_ms
        kept_ms = watermark_ms - self.revise_ms
        return kept_ms if self.revises_after_ms is None else max(kept_ms, self.revises_after_ms)

    def of(self, stream: str) -> EventTimeRule:
        """The rule of this stream."""
        return next((rule for name, rule in self.by_stream if name == stream), self)

    def by_partitions_where(self, other: EventTimeRule) -> EventTimeRule:
        """The same with the policy `partitions`, instead of `newest`, for each stream that has it in the other rule."""
        by_stream = tuple((name, rule.by_partitions_where(other.of(name))) for name, rule in self.by_stream)
        is_newest = self.watermark == "newest" and other.watermark == "partitions"
        return replace(self, watermark="partitions" if is_newest else self.watermark, by_stream=by_stream)

    def bounded_by_plan(self, streams: Collection[str]) -> EventTimeRule:
        """The same rule with the bound `planned` for these streams. A job that reads one stream has just one rule."""
        by_stream = tuple(
            (name, replace(rule, bound="planned") if name in streams else rule) for name, rule in self.by_stream
        )
        first = by_stream[0][1].bound if by_stream else "planned" if streams else self.bound
        return replace(self, bound=first, by_stream=by_stream)

    def with_results_from(self, results_from_ms: Mapping[str, int | None]) -> EventTimeRule:
        """The same rule, with `results_from_ms` of each of these streams. A job that reads one stream has just one rule."""
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
"""Fields of a slice on which its results don't depend. `rule` has its own form in the digest."""


@dataclass(frozen=True)
class SliceRow(Described):
    """A numbered piece of the log, and what came of it. Offsets: stream -> partition -> offset."""

    job: str
    number: int
    """Counted from 1 without gaps."""
    epoch: int
    """The run that planned it; a later run may commit it."""
    version: int
    offsets_first: Offsets
    """Where the slice begins in each partition: equal to `offsets` of the slice before."""
    offsets: Offsets
    """Where the slice ends in each partition: the offset after its last one, at which the next slice begins."""
    cut_time_ms: int
    watermark_ms: int | None
    """The watermark in force: a record with an earlier event time is late. Null: no record can be late yet."""
    rule: EventTimeRule
    """How event time is treated in this slice."""
    reached: Offsets
    """stream -> partition -> event time reached (ms) before this slice: the maximum over the accepted records of
    min(event time, log time), or of what the rule's `bound` says."""
    silence_ms: Offsets
    """stream -> partition -> how long (ms) it had been without an accepted record when the slice was cut, if the rule has a
    timeout. If the slice has an accepted record of the partition, the value doesn't apply."""
    kind: SliceKind
    status: SliceStatus
    planned_ms: int
    checksums: Offsets = field(default_factory=dict)
    """stream -> partition -> the checksum of the record batch that holds the last record before `offsets`, where there is one."""
    stream_versions: StreamVersions = field(default_factory=dict)
    """By which version of its stream's document each record is decoded, wherever and however often the slice is replayed."""
    sessions: PackedSessions = field(default_factory=dict)
    """stream -> partition -> what the records before the slice have declared, of formats whose records depend on those before."""
    lookup_versions: LookupVersions = field(default_factory=dict)
    """By which version of each lookup its records are enriched, wherever and however often the slice is replayed."""

    @property
    def digest(self) -> str:
        """Digest of everything in the row that determines the results of the slice: 16 hexadecimal digits.

        It doesn't depend on the run that planned the slice, on clocks, or on the status. Two plans under one number have the same
        digest only if they give the same results. Empty values are left out, so a field that is added later changes no digest of
        a slice that doesn't use it.
        """
        values = {name: value for name, value in vars(self).items() if name not in _NOT_IN_DIGEST and value}
        values["rule"] = {name: value for name, value in self.rule.written.items() if value}
        return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def late_below_ms(self) -> int | None:
        """Records with an earlier event time are left out. Null: no record can be late yet."""
        return self.rule.late_below_ms(self.watermark_ms)


@dataclass(frozen=True)
class KeyAhead(Described):
    """A key whose records have event times after their log times."""

    stream: str
    partition: int
    key: str
    """Value of the stream's key field. If it isn't known: the Kafka key, or the source that the gateway recorded."""
    ahead_ms: int
    """How far the event time of a record was ahead of its log time, at most, in the last slice with such a record."""
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
    """Reason -> sender of one of these records: value of the stream's key field, Kafka key, or the source that the gateway
    recorded (`mqtt:TOPIC`). Reasons without a known sender are left out."""


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
    """As the slice's, with what its records have declared."""
    accepted_in: Offsets = field(default_factory=dict)
    """stream -> partition -> the last slice with an accepted record of it that wasn't below the watermark: never falls."""
    ahead_ms: Offsets = field(default_factory=dict)
    """stream -> partition -> how far the event time of an accepted record of this slice was ahead of its log time, at most.
    Partitions without such a record are left out."""
    stored: dict[str, int] = field(default_factory=dict)
    """Store -> number of results of this slice that it has confirmed: `index NAME`, `table NAME`, `files STAGE PATH`. A later
    start compares the stores with it."""
    sender_faults: SenderFaults = field(default_factory=SenderFaults)
    """Senders whose clocks or records are wrong, up to and with this slice."""


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
    """Counted from 2; 1 is what the job itself writes."""
    version: int
    """Of the pipeline that computes them."""
    from_ms: int
    """As it was asked for, like `to_ms`."""
    to_ms: int | None
    windows: dict[str, WindowRange]
    """stage -> its windows."""
    slice: int
    """The last committed slice at the request: all windows are of slices up to it."""
    state: BackfillState
    epoch: int
    """The newest attempt; 0 before the first. Only this one may change the row."""
    done_ms: int | None
    """All windows that end up to here are in the index; None: none yet."""
    records: int
    """To be read, about."""
    records_done: int
    results: dict[str, int]
    """stage -> results."""
    refused: dict[str, int]
    """stage -> results that the index refused; each has a dead letter."""
    sample: list[str]
    """Why the first of them were."""
    message: str
    requested_ms: int
    updated_ms: int
    ended_ms: int | None
    stream_versions: StreamVersions = field(default_factory=dict)
    """By which version of each stream's document its pipeline is compiled."""


@dataclass(frozen=True)
class Totals(Described):
    """The sums over committed slices of a job."""

    records: int
    accepted: int
    rejected: dict[str, int]
    """Reason -> records."""
    results: dict[str, int]
    """Stage -> results, those refused included."""
    refused: dict[str, int] | None = None
    """Stage -> results that a store refused; each has a dead letter (reason `result`). Null only in an audit: they aren't
    compared."""

    @property
    def columns(self) -> dict[str, Any]:
        """Their columns in the ledger."""
        return {f"{name}_total": value for name, value in vars(self).items()}


NO_TOTALS = Totals(records=0, accepted=0, rejected={}, results={}, refused={})


@dataclass(frozen=True)
class RegisteredSchemaRow(Described):
    """The schema that the schema registry first gave for a number."""

    kind: str
    """`avro` or `protobuf`."""
    number: int
    document: str
    """JSON: the schema with all that it refers to."""
    kept_ms: int


@dataclass(frozen=True)
class EventRow(Described):
    """Something that happened."""

    id: int
    job: str | None
    epoch: int | None
    """The run that it happened in."""
    at_ms: int
    kind: str
    message: str
    facts: dict[str, Any]
    principal: str | None = None
    """Who caused it; null when nobody said so, or the platform did it by itself."""


class FollowedEvents:
    """Which events somebody who follows them has had. Of two events at once, the one with the greater number may be there first,
    so each look begins some numbers back."""

    _BACK = 50

    def __init__(self, begin: int) -> None:
        """`begin`: only events with a greater number are wanted."""
        self.begin = begin
        self._seen: set[int] = set()

    @property
    def after(self) -> int:
        """The next look asks for the events behind this number."""
        return max(self.begin, max(self._seen, default=self.begin) - self._BACK)

    def new(self, numbers: Iterable[int]) -> set[int]:
        """Those of the numbers that a look found for the first time."""
        found = set(numbers) - self._seen
        self._seen |= found
        last = max(self._seen, default=0)
        self._seen = {one for one in self._seen if one >= last - self._BACK}
        return found


@dataclass(frozen=True)
class TokenRow(Described):
    """A token, without its secret: nobody can make it from this."""

    id: str
    """Stands in the token itself, so that it is found by a look-up."""
    name: str
    digest: str
    """SHA-256 of the secret, in hex. A slow hash would protect a secret that can be guessed; this one has 256 random bits. It
    signs the holder's datagrams, so it is shown to nobody either."""
    role: Role | None
    writes: list[str]
    """The streams that it may write to."""
    created_ms: int
    created_by: str
    expires_ms: int | None
    revoked_ms: int | None
    revoked_by: str | None
    used_ms: int | None
    """When it was last used, as far as a service has said so: at most about an hour behind."""

    def is_valid_at(self, now_ms: int) -> bool:
        """Whether it may be used at this time."""
        return self.revoked_ms is None and (self.expires_ms is None or now_ms < self.expires_ms)
