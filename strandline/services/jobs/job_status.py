"""The status of a job, from the ledger's rows and Kafka's offsets. Reads only."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Literal

from strandline.core.described import Described
from strandline.core.errors import LogUnavailable, NotFound
from strandline.core.times.durations import FOREVER_MS, format_about, format_duration
from strandline.ledger.progress import JobProgress
from strandline.ledger.roles import LedgerReader
from strandline.ledger.states import (
    COMPLETED,
    Completed,
    Desired,
    EventRow,
    JobRow,
    JobState,
    LeaseRow,
    Offsets,
    SenderFaults,
    SliceRow,
    SliceStatus,
    Totals,
    offset_count,
)
from strandline.log.answers import good
from strandline.log.kafka_status import KafkaStatus, LogRange, lag_records
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.stored import check_stored, inputs_of, shapes_of_version, spec_of_version
from strandline.processing.slices.rewind import RUN_BEGINS, RewindCost, plan_of_job, rewind_cost
from strandline.services.jobs.backfills import BackfillView, backfill_view
from strandline.services.jobs.explanation import ExplanationView, JobExplanationView, JobFacts, explain, notes_of
from strandline.services.jobs.lookups import lookup_warnings

RETENTION_LEFT_SHARE_MIN = 0.25
"""The status warns when less than this share of the retention is left."""
_RATE_SLICES = 20
_SLICE_LONG_S = 10.0
"""A slice that is not done after so long may wait for a store."""
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
"""The verbs that change something in each state. The others are allowed, and change nothing."""


@dataclass(frozen=True)
class LastStartView(Described):
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


@dataclass(frozen=True)
class LeaderView(Described):
    """The control service that leads a job."""

    name: str
    address: str
    """Its REST API."""
    lease_epoch: int
    """Rises by one with every new leader, and with every start of a leader."""
    lease_until_ms: int
    """When the lease runs out unless it is renewed, by the ledger's clock."""


@dataclass(frozen=True)
class BatchView(Described):
    """How far a batch has come. Records are counted by offsets, and the end of a transaction counts as one."""

    records_read: int
    records_left: int
    share: float
    """Of the records, from 0 to 1."""
    records_per_s: float | None
    """Over the last slices; null before the first one with records."""
    seconds_left: float | None
    """By that rate."""


@dataclass(frozen=True)
class RewindView(Described):
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


@dataclass(frozen=True)
class JobStatus(Described):
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

    @property
    def verbs(self) -> tuple[str, ...]:
        """The verbs that would change something now."""
        return () if self.state == COMPLETED else _VERBS[JobState(self.state)]


_LAST_START_FACTS = {one.name for one in fields(LastStartView)}


class StreamRanges:
    """Asks Kafka for each stream once, and for no other after it did not answer: an answer about many streams then waits for it
    as long as one about a single stream. Make one for each answer."""

    def __init__(self, log: KafkaStatus, wait_s: float | None = None) -> None:
        """`wait_s`: how long Kafka is waited for, for all streams together; None: as long as `log` waits, and for each."""
        self._log = log
        self._until = None if wait_s is None else time.monotonic() + wait_s
        self._is_away = False
        self._known: dict[str, LogRange | None] = {}

    def of(self, streams: Collection[str]) -> dict[str, LogRange | None]:
        """What Kafka holds of each; None: unknown. While Kafka is away the status matters most: it shows all but the lag."""
        self.load(streams)
        return {stream: self._known.get(stream) for stream in streams}

    def load(self, streams: Collection[str]) -> None:
        """Ask Kafka for all of these streams at once."""
        unknown = list(dict.fromkeys(stream for stream in streams if stream not in self._known))
        left_s = None if self._until is None else self._until - time.monotonic()
        if not unknown or self._is_away or (left_s is not None and left_s <= 0):
            return
        found = self._log.ranges_of(unknown, left_s)
        self._known |= dict.fromkeys(unknown) | good(found)
        self._is_away = all(isinstance(one, LogUnavailable) for one in found.values())


def job_status(ledger: LedgerReader, ranges: StreamRanges, job: JobRow) -> JobStatus:
    """Return what is known of a job."""
    return job_statuses(ledger, ranges, [job])[0]


def job_statuses(ledger: LedgerReader, ranges: StreamRanges, jobs: Sequence[JobRow]) -> list[JobStatus]:
    """Return what is known of each of these jobs. Kafka and the ledger are asked once for all of them, except for the costs of
    rewinds."""
    names = [job.name for job in jobs]
    progress, started = ledger.progress_of(names), ledger.last_events(names, RUN_BEGINS)
    leases = ledger.leases()
    backfills = {row.job: backfill_view(row) for row in reversed(ledger.open_backfills())}
    streams = {job.name: input_streams(ledger, job) for job in jobs}
    ranges.load([stream for of_job in streams.values() for stream in of_job])
    return [
        _status(
            ledger,
            progress.get(job.name, JobProgress(job, None, None))._replace(job=job),
            ranges.of(streams[job.name]),
            _leader(leases.get(job.name)),
            _last_start(started.get(job.name)),
            backfills.get(job.name),
        )
        for job in jobs
    ]


def _status(
    ledger: LedgerReader,
    progress: JobProgress,
    held: dict[str, LogRange | None],
    leader: LeaderView | None,
    last_start: LastStartView | None,
    backfill: BackfillView | None,
) -> JobStatus:
    job, last_slice, checkpoint, totals = progress
    streams = list(held)
    position = _position(ledger, progress)
    rewind, warnings = _told_by_pipeline(ledger, job)
    faults = checkpoint.sender_faults if checkpoint else SenderFaults()
    return JobStatus(
        name=job.name,
        version=job.version,
        desired=job.desired,
        state=COMPLETED if job.has_completed else job.state,
        message=job.message,
        epoch=job.epoch,
        generation=job.generation,
        restores=job.restores,
        created_ms=job.created_ms,
        updated_ms=job.updated_ms,
        stream=streams[0],
        streams=streams,
        leader=leader,
        slice=checkpoint.slice if checkpoint else None,
        watermark_ms=last_slice.watermark_ms if last_slice else None,
        latest_event_ms=checkpoint.latest_event_ms if checkpoint else None,
        lag_records=_left(job, held, position),
        batch=_batch(ledger, progress, position),
        counts=totals,
        last_emission=checkpoint.emitted if checkpoint else {},
        rewind=rewind if last_slice and not job.has_completed else None,
        last_start=last_start,
        backfill=backfill,
        warnings=warnings,
        sender_faults=faults,
        notes=notes_of(job.name, faults),
    )


def _told_by_pipeline(ledger: LedgerReader, job: JobRow) -> tuple[RewindView | None, list[str]]:
    """What a rewind would cost, and what is wrong with what the job uses. One whose stream or lookup is gone is shown with a
    warning: an answer about all jobs would fail with it, and so would the stop that precedes its deletion."""
    try:
        pipeline = present_pipeline(ledger, job)
    except NotFound as error:
        return None, [str(error)]
    cost = rewind_cost(ledger, plan_of_job(ledger, pipeline), job.name)
    warnings = lookup_warnings(ledger, [name for name, _ in pipeline.lookups]) if pipeline.lookups else []
    return rewind_view(cost, pipeline.retention_ms), warnings


def explanation(
    ledger: LedgerReader, ranges: StreamRanges, job: JobRow, store_away: Callable[[CheckedPipeline], str | None]
) -> ExplanationView:
    """Why the job has no output, or what it waits for. `store_away`: tells the store of a pipeline's results that does not
    answer; asked only where a slice takes long."""
    pipeline, held = present_pipeline(ledger, job), ranges.of(input_streams(ledger, job))
    progress = ledger.progress_of([job.name]).get(job.name, JobProgress(job, None, None))
    _, last_slice, checkpoint, totals = progress
    position = _position(ledger, progress)
    first = ledger.floor(job.name) + 1
    early = [row.reached for row in ledger.slices(job.name, first, first + 1)]
    return explain(
        JobFacts(
            job=job,
            pipeline=pipeline,
            held=held,
            lag_records=_left(job, held, position),
            last_slice=last_slice,
            checkpoint=checkpoint,
            totals=totals,
            reached_early=early[-1] if early else {},
            now_ms=int(time.time() * 1000),
            store_away=store_away(pipeline) if last_slice is not None and _takes_long(last_slice) else None,
        )
    )


def explanations(
    ledger: LedgerReader, ranges: StreamRanges, store_away: Callable[[CheckedPipeline], str | None]
) -> list[JobExplanationView]:
    """The explanation of each job, by name. A job whose stream or lookup no longer exists is explained by that."""
    jobs = ledger.jobs()
    ranges.load([stream for job in jobs for stream in input_streams(ledger, job)])
    return [_explained(ledger, ranges, job, store_away) for job in jobs]


def _explained(
    ledger: LedgerReader, ranges: StreamRanges, job: JobRow, store_away: Callable[[CheckedPipeline], str | None]
) -> JobExplanationView:
    try:
        found = explanation(ledger, ranges, job, store_away)
    except NotFound as error:
        step = f"apply its document again, or stop and delete the job: strandline job delete {job.name}"
        found = ExplanationView(cause="missing", sentence=str(error), next=step, notes=[])
    return JobExplanationView(job=job.name, **vars(found))


def _takes_long(last_slice: SliceRow) -> bool:
    planned_s = time.time() - last_slice.planned_ms / 1000
    return last_slice.status is SliceStatus.PLANNED and planned_s > _SLICE_LONG_S


def rewind_view(cost: RewindCost, retention_ms: int) -> RewindView:
    """A rewind's cost as it is shown. `retention_ms` is of the stream's document; FOREVER_MS is without end."""
    left_ms, warning = None, ""
    if cost.needed_since_ms is not None and cost.records and retention_ms != FOREVER_MS:
        left_ms = cost.needed_since_ms + retention_ms - time.time_ns() // 1_000_000
        if left_ms < retention_ms * RETENTION_LEFT_SHARE_MIN:
            warning = _warning(left_ms, retention_ms)
    return RewindView(records=cost.records, seconds=round(cost.seconds, 1), retention_left_ms=left_ms, warning=warning)


def _warning(left_ms: int, retention_ms: int) -> str:
    lost, kept = "records that the open windows came from", f"the stream's retention of {format_duration(retention_ms)}"
    what = f"in {format_about(left_ms)} {kept} begins to remove {lost}"
    if left_ms <= 0:
        what = f"{kept} may have removed {lost}, and a restart would fail"
    return f"{what}: raise the retention, or see why no window closes"


def present_pipeline(ledger: LedgerReader, job: JobRow, *, is_strict: bool = False) -> CheckedPipeline:
    """Return the job's current version, checked against the current documents of its streams.

    What doesn't fit them is left out: a stream can have changed without the pipeline, if applying both was interrupted.
    `is_strict`: the pipeline is to be run. Raises InvalidDocument then.
    """
    documents = [ledger.stream(stream).document for stream in input_streams(ledger, job)]
    row = ledger.job_version(job.name, job.version)
    if row.lookup_versions:
        spec = PipelineSpec.from_document(row.document)
        lookups = shapes_of_version(ledger, job.name, job.version, spec)
        return check_stored(spec, documents, lookups, is_strict=is_strict)
    return _checked_before(json.dumps(row.document), *map(json.dumps, documents), is_strict=is_strict)


@lru_cache(maxsize=256)
def _checked_before(pipeline: str, *streams: str, is_strict: bool) -> CheckedPipeline:
    """The pipeline of registered documents. Cached: status is asked for often, and documents seldom change."""
    spec = PipelineSpec.from_document(json.loads(pipeline))
    return check_stored(spec, map(json.loads, streams), {}, is_strict=is_strict)


def input_streams(ledger: LedgerReader, job: JobRow) -> list[str]:
    """The streams that the job's present version reads, in the order of its document."""
    return inputs_of(ledger, job.name, job.version)


def _last_start(event: EventRow | None) -> LastStartView | None:
    if event is None:
        return None
    shown = {name: value for name, value in event.facts.items() if name in _LAST_START_FACTS}
    return LastStartView(at_ms=event.at_ms, **shown)


def _leader(lease: LeaseRow | None) -> LeaderView | None:
    if lease is None or not lease.is_held:
        return None
    return LeaderView(name=lease.holder, address=lease.address, lease_epoch=lease.epoch, lease_until_ms=lease.until_ms)


def _lag(held: dict[str, LogRange | None], position: Offsets | None) -> int | None:
    """How many records are to be read; None: unknown."""
    if position is None:
        return None
    lags = [lag_records(one, position.get(stream, {})) for stream, one in held.items() if one]
    return sum(lags) if len(lags) == len(held) else None


def _left(job: JobRow, held: dict[str, LogRange | None], position: Offsets | None) -> int | None:
    """How many records are to be read, of a batch up to its ends; None: unknown."""
    return _lag(held, position) if job.ends is None or position is None else offset_count(position, job.ends)


def _batch(ledger: LedgerReader, progress: JobProgress, position: Offsets | None) -> BatchView | None:
    job = progress.job
    if job.ends is None or position is None:
        return None
    read, left, rate = progress.totals.records, offset_count(position, job.ends), _records_per_s(ledger, job)
    return BatchView(
        records_read=read,
        records_left=left,
        share=1.0 if not left else round(read / (read + left), 4),
        records_per_s=rate,
        seconds_left=0.0 if not left else round(left / rate, 1) if rate else None,
    )


def _records_per_s(ledger: LedgerReader, job: JobRow) -> float | None:
    """Of the last slices of one run, from the plan of the first of them to the commit of the last."""
    last = ledger.checkpoints(job.name, limit=_RATE_SLICES)
    rows = [row for row in last if row.epoch == last[0].epoch and row.records]
    planned = ledger.slices(job.name, rows[-1].slice, rows[-1].slice) if rows else []
    if not planned:
        return None
    took_ms = max(1, rows[0].committed_ms - planned[0].planned_ms)
    return round(1_000 * sum(row.records for row in rows) / took_ms, 1)


def _position(ledger: LedgerReader, progress: JobProgress) -> Offsets | None:
    """The offsets after the last committed slice; before the first slice, those where the job will begin. None: unknown."""
    if (last := progress.last_slice) is not None:  # a slice begins where the one before it ends
        return last.offsets if last.status is SliceStatus.COMMITTED else last.offsets_first
    spec = spec_of_version(ledger, progress.job.name, progress.job.version)
    return {} if all(read.start == "earliest" for read in spec.reads) else None
