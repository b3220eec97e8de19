"""Status of a job, from the ledger's rows and Kafka's offsets. Reads only."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Literal

from strandline.core.described import Described
from strandline.core.errors import FunctionUnusable, LogUnavailable, NotFound, StrandlineError
from strandline.core.times.durations import FOREVER_MS, format_about, format_duration
from strandline.ledger.progress import JobProgress
from strandline.ledger.roles import LedgerReader
from strandline.ledger.states import (
    COMPLETED,
    NO_TOTALS,
    Completed,
    Desired,
    EventRow,
    JobCost,
    JobRow,
    JobState,
    JobVersionRow,
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
from strandline.processing.emission.cost_meter import RECENT_S
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.stored import (
    check_stored,
    inputs_of,
    inputs_of_row,
    shapes_of_version,
    spec_of_row,
)
from strandline.processing.slices.rewind import RUN_BEGINS, RewindCost, rewind_costs
from strandline.processing.slices.watermark import greatest
from strandline.services.jobs.backfills import BackfillView, backfill_view
from strandline.services.jobs.explanation import ExplanationView, JobExplanationView, JobFacts, explain, notes_of
from strandline.services.jobs.lookups import lookup_warnings_of
from strandline.services.jobs.newest_results import NewestResults
from strandline.services.jobs.recent_counts import QUIET_MS_MIN, RECENT_MS, Recent, rejected_share

RETENTION_LEFT_SHARE_MIN = 0.25
"""Share of the retention below which the status warns."""
_RATE_SLICES = 20
MISSING_PARTS = (NotFound, FunctionUnusable)
"""Errors that `present_pipeline` raises if a stream, a lookup, or a package of the pipeline is missing."""
_HOUR_MS = 3_600_000
_SLICE_LONG_S = 10.0
"""Time in seconds after which an uncommitted slice may wait for a store."""
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
"""Commands that change the job in each state. Other commands are allowed, and change nothing."""


@dataclass(frozen=True)
class LastStartView(Described):
    """Start of the newest run: how it restored the state of its open windows."""

    epoch: int
    method: Literal["rewind", "snapshot"]
    """`rewind`: it read the log again. `snapshot`: it started from Spark's checkpoint on disk (`recovery: snapshot`)."""
    records: int
    """Number of records that it read again, including those of a slice that was planned but not committed."""
    slice_first: int
    """Slice at which it began to read."""
    slice_committed: int
    """Last slice whose results were emitted."""
    at_ms: int


@dataclass(frozen=True)
class LeaderView(Described):
    """The control service that leads a job."""

    name: str
    address: str
    """Address of its REST API."""
    lease_epoch: int
    """Epoch of the lease. It increases with every new leader, and with every start of a leader."""
    lease_until_ms: int
    """End of the lease unless it is renewed, by the ledger's clock."""


@dataclass(frozen=True)
class BatchView(Described):
    """Progress of a batch. Records are counted by offsets, and the end of a transaction counts as one."""

    records_read: int
    records_left: int
    share: float
    """Share of the records that were read, from 0 to 1."""
    records_per_s: float | None
    """Rate over the last slices; null before the first slice with records."""
    seconds_left: float | None
    """Remaining time at this rate."""


@dataclass(frozen=True)
class RewindView(Described):
    """Cost of a start. Recovery, failover, and upgrade have the same cost: each reads the log again."""

    records: int
    """Number of records that would be read again."""
    seconds: float
    """Estimated time with a running Spark session. A cold start takes about ten seconds more."""
    retention_left_ms: int | None
    """Time until retention deletes records that the rewind needs, if no window closes. Null if it needs none, or if records are
    kept forever."""
    warning: str = ""
    """Remedy if less than a quarter of the retention remains; otherwise empty."""


@dataclass(frozen=True)
class CostView(Described):
    """Cost of a job: the tasks that read its records, compute, and emit. The JVM and the driver aren't included. Its runs note it
    every few seconds."""

    cores: float
    """Number of cores that it used in the last 30 seconds. 0 if it has done nothing since then."""
    cpu_s: float
    """CPU time in seconds since the job was created or reset, rewinds included."""
    bytes_read: int
    """Size of the records that it read since then, as stored in Kafka, rewinds included."""
    state_bytes: int
    """Size of its state after the last slice. Large parts of a state that are stored in files aren't included."""


@dataclass(frozen=True)
class JobStatus(Described):
    name: str
    version: int
    stream: str
    """Input stream; the first one if there are several."""
    streams: list[str]
    """All input streams, in the order of the document."""
    desired: Desired
    state: JobState | Completed
    """Current state. `completed` is a batch that has read its range and closed every window; the ledger calls it `drained`."""
    message: str
    """Reason for the state; empty if there is none."""
    epoch: int
    """Epoch of the newest run; 0 before the first."""
    generation: int
    """Generation of the results that the job itself writes. A reset increases it."""
    restores: bool
    """True until the next run has restored the results that a store lost."""
    leader: LeaderView | None
    """Leader; null while no control service leads the job."""
    created_ms: int
    updated_ms: int
    slice: int | None
    """Last committed slice."""
    watermark_ms: int | None
    """Current watermark, after the last committed slice. Windows that end at or before it are final, and older records of later
    slices are late. Null before a record was accepted."""
    latest_event_ms: int | None
    """Latest event time in all committed slices."""
    lag_records: int | None
    """Number of records in the log after the last committed slice; for a batch, up to its ends. Null if Kafka doesn't respond."""
    batch: BatchView | None
    """Progress of a batch. Null for a job without an end, and for a batch that has not begun."""
    counts: Totals
    cost: CostView | None
    """Cost of the job; null before its first slice."""
    last_emission: dict[str, int]
    """Stage -> end (ms) of the last emitted window."""
    rewind: RewindView | None
    """Current cost of a rewind; null before the first slice, and for a completed batch. A start from a snapshot costs less."""
    last_start: LastStartView | None
    """Start of the newest run; null before the first run."""
    backfill: BackfillView | None
    """Requested or running backfill; null if there is none."""
    warnings: list[str]
    """Problems of its inputs: a missing stream, lookups whose sources can't be read, or whose rows are too old."""
    sender_faults: SenderFaults
    """Devices whose clocks are ahead, and partitions whose records are all rejected."""
    notes: list[str]
    """Problems of senders as messages."""

    @property
    def verbs(self) -> tuple[str, ...]:
        """Commands that would change the job now."""
        return () if self.state == COMPLETED else _VERBS[JobState(self.state)]


_LAST_START_FACTS = {one.name for one in fields(LastStartView)} - {"at_ms", "method"}


class StreamRanges:
    """Queries Kafka once for each stream of one response, and not again after it didn't respond. So a response about many
    streams waits as long for Kafka as a response about one. Create one for each response."""

    def __init__(self, log: KafkaStatus, wait_s: float | None = None) -> None:
        """Args: wait_s: Maximum time to wait for Kafka for all streams together. None for the timeout of `log`, for each
        stream."""
        self._log = log
        self._until = None if wait_s is None else time.monotonic() + wait_s
        self._is_away = False
        self._known: dict[str, LogRange | None] = {}

    def of(self, streams: Collection[str]) -> dict[str, LogRange | None]:
        """Return the content of Kafka for each stream. None if unknown: while Kafka is unavailable, the status still shows
        everything except the lag."""
        self.load(streams)
        return {stream: self._known.get(stream) for stream in streams}

    def load(self, streams: Collection[str]) -> None:
        """Request the content of all these streams from Kafka in one call."""
        unknown = list(dict.fromkeys(stream for stream in streams if stream not in self._known))
        left_s = None if self._until is None else self._until - time.monotonic()
        if not unknown or self._is_away or (left_s is not None and left_s <= 0):
            return
        found = self._log.ranges_of(unknown, left_s)
        self._known |= dict.fromkeys(unknown) | good(found)
        self._is_away = all(isinstance(one, LogUnavailable) for one in found.values())


def job_status(ledger: LedgerReader, ranges: StreamRanges, job: JobRow) -> JobStatus:
    """Return the status of a job."""
    return job_statuses(ledger, ranges, [job])[0]


def job_statuses(ledger: LedgerReader, ranges: StreamRanges, jobs: Sequence[JobRow]) -> list[JobStatus]:
    """Return the status of each of these jobs, with one request to Kafka, and a few queries of the ledger for all together."""
    names = [job.name for job in jobs]
    progress, started = ledger.progress_of(names), ledger.last_events(names, RUN_BEGINS)
    leases = ledger.leases(names)
    backfills = {row.job: backfill_view(row) for row in reversed(ledger.open_backfills())}
    costs = ledger.costs_of(names)
    documents = _Documents(ledger, jobs)
    ranges.load([stream for job in jobs for stream in documents.streams_of(job)])
    progresses = {job.name: progress.get(job.name, JobProgress(job, None, None))._replace(job=job) for job in jobs}
    rewinds, warnings = _told_by_pipelines(ledger, documents, progresses)
    return [
        _status(
            ledger,
            progresses[job.name],
            documents.versions[job.name],
            ranges.of(documents.streams_of(job)),
            _leader(leases.get(job.name)),
            _last_start(started.get(job.name)),
            backfills.get(job.name),
            costs.get(job.name),
            rewinds.get(job.name),
            warnings[job.name],
        )
        for job in jobs
    ]


class _Documents:
    """Documents of jobs and of their input streams, read with one query each. What changes in the meantime is read again."""

    def __init__(self, ledger: LedgerReader, jobs: Sequence[JobRow]) -> None:
        current = ledger.current_versions_of_jobs([job.name for job in jobs])
        self._ledger = ledger
        self.versions: Mapping[str, JobVersionRow] = {
            job.name: row
            if (row := current.get(job.name)) is not None and row.version == job.version
            else ledger.job_version(job.name, job.version)
            for job in jobs
        }
        self._inputs = {name: inputs_of_row(row) for name, row in self.versions.items()}
        read = {stream for of_job in self._inputs.values() for stream in of_job}
        self._streams = {row.name: row.document for row in ledger.streams(read)}

    def streams_of(self, job: JobRow) -> list[str]:
        """Return the streams that the job reads, in the order of its document."""
        return self._inputs[job.name]

    def pipeline(self, job: JobRow) -> CheckedPipeline:
        """Return the job's pipeline (see `present_pipeline`). Raises NotFound, FunctionUnusable."""
        streams = [
            self._streams[name] if name in self._streams else self._ledger.stream(name).document
            for name in self._inputs[job.name]
        ]
        return _checked(self._ledger, self.versions[job.name], streams, is_strict=False)


def check_pipelines(ledger: LedgerReader, jobs: Sequence[JobRow]) -> Iterator[None]:
    """Check the pipelines of these jobs, one at each step, so that later calls find them in the cache."""
    documents = _Documents(ledger, jobs)
    for job in jobs:
        with suppress(*MISSING_PARTS):  # the status of the job reports it
            documents.pipeline(job)
        yield


def _status(
    ledger: LedgerReader,
    progress: JobProgress,
    version: JobVersionRow,
    held: dict[str, LogRange | None],
    leader: LeaderView | None,
    last_start: LastStartView | None,
    backfill: BackfillView | None,
    cost: JobCost | None,
    rewind: RewindView | None,
    warnings: list[str],
) -> JobStatus:
    job, last_slice, checkpoint, totals = progress
    streams = list(held)
    position = _position(progress, lambda: version)
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
        # A slice records the watermark at its beginning, and closes windows up to that of its checkpoint.
        watermark_ms=greatest(
            last_slice.watermark_ms if last_slice else None, checkpoint.closes_ms if checkpoint else None
        ),
        latest_event_ms=checkpoint.latest_event_ms if checkpoint else None,
        lag_records=_left(job, held, position),
        batch=_batch(ledger, progress, position),
        counts=totals,
        cost=None if cost is None else cost_view(cost, time.time_ns() // 1_000_000),
        last_emission=checkpoint.emitted if checkpoint else {},
        rewind=rewind if last_slice and not job.has_completed else None,
        last_start=last_start,
        backfill=backfill,
        warnings=warnings,
        sender_faults=faults,
        notes=notes_of(job.name, faults, last_slice),
    )


def cost_view(cost: JobCost, now_ms: int) -> CostView:
    """Return the cost of a job in the form of the API."""
    is_recent = now_ms - cost.noted_ms < RECENT_S * 1_000
    return CostView(
        cores=round(cost.cpu_us_recent / 1e6, 4) if is_recent else 0.0,
        cpu_s=round(cost.cpu_us / 1e6, 3),
        bytes_read=cost.bytes,
        state_bytes=cost.state_bytes,
    )


def _told_by_pipelines(
    ledger: LedgerReader, documents: _Documents, progresses: Mapping[str, JobProgress]
) -> tuple[dict[str, RewindView], dict[str, list[str]]]:
    """Return the cost of a rewind of each job, and the problems of its inputs. A job whose stream, lookup, or package no longer
    exists gets a warning and no cost. Otherwise a response about all jobs would fail, and the stop before its deletion too."""
    pipelines, warnings = dict[str, CheckedPipeline](), dict[str, list[str]]()
    for name, progress in progresses.items():
        try:
            pipelines[name] = documents.pipeline(progress.job)
        except MISSING_PARTS as error:
            warnings[name] = [str(error)]
    used = {lookup for pipeline in pipelines.values() for lookup, _ in pipeline.lookups}
    of_lookups = lookup_warnings_of(ledger, used) if used else {}
    for name, pipeline in pipelines.items():
        lookups = {lookup for lookup, _ in pipeline.lookups}
        warnings[name] = [warning for lookup, warning in of_lookups.items() if lookup in lookups]
    costs = rewind_costs(ledger, list(pipelines.values()), progresses)
    return {name: rewind_view(costs[name], one.retention_ms) for name, one in pipelines.items()}, warnings


def explanation(
    ledger: LedgerReader,
    ranges: StreamRanges,
    job: JobRow,
    unavailable_store: Callable[[CheckedPipeline], str | None],
    newest: NewestResults | None = None,
) -> ExplanationView:
    """Return why the job has no output, or what it waits for.

    Args: unavailable_store: Returns the store of a pipeline's results that doesn't respond. Called only if a slice takes long.
        newest: Known newest results. None to read them from the ledger.
    """
    return _Explanations(ledger, ranges, [job], unavailable_store, newest).of(job)


class _Explanations:
    """Explains several jobs, with one request to Kafka, and a few queries of the ledger for all together. Jobs with a new result,
    and jobs without any, need a few more queries each."""

    def __init__(
        self,
        ledger: LedgerReader,
        ranges: StreamRanges,
        jobs: Sequence[JobRow],
        unavailable_store: Callable[[CheckedPipeline], str | None],
        newest: NewestResults | None = None,
    ) -> None:
        self._ledger, self._ranges, self._unavailable_store = ledger, ranges, unavailable_store
        self._documents = _Documents(ledger, jobs)
        ranges.load([stream for job in jobs for stream in self._documents.streams_of(job)])
        self._now_ms = int(time.time() * 1000)
        names = [job.name for job in jobs]
        self._newest = newest or NewestResults(ledger)
        self._results, self._progress = self._newest.of(names)
        self._before = ledger.checkpoints_at(names, self._now_ms - RECENT_MS)

    def of(self, job: JobRow) -> ExplanationView:
        """Return why the job has no output, or what it waits for: also a stream, a lookup, or a package that is missing."""
        try:
            pipeline = self._documents.pipeline(job)
        except NotFound as error:
            return _missing(error, f"apply its document again, or {_deletion_of(job)}")
        except FunctionUnusable as error:
            again = "install the package on each machine, and restart the control services and the job"
            return _missing(error, f"{again}, or {_deletion_of(job)}")
        held = self._ranges.of(self._documents.streams_of(job))
        progress = self._progress.get(job.name, JobProgress(job, None, None))
        _, last_slice, checkpoint, totals = progress
        position = _position(progress, lambda: self._documents.versions[job.name])
        result, takes_long = self._results.get(job.name), last_slice is not None and _takes_long(last_slice)
        recent = None
        if result is not None:
            is_quiet = self._now_ms - result.row.committed_ms >= QUIET_MS_MIN
            reached = self._newest.reached_after(result, checkpoint) if is_quiet else {}
            recent = Recent(result, self._before.get(job.name), totals, self._now_ms, reached)
        return explain(
            JobFacts(
                job=job,
                pipeline=pipeline,
                held=held,
                lag_records=_left(job, held, position),
                last_slice=last_slice,
                checkpoint=checkpoint,
                totals=totals,
                reached_early=self._reached_early(job.name) if recent is None else {},
                now_ms=self._now_ms,
                unavailable_store=self._unavailable_store(pipeline) if takes_long else None,
                recent=recent,
            )
        )

    def totals_of(self, job: JobRow) -> Totals:
        """Return the sums over all committed slices of the job."""
        return self._progress[job.name].totals if job.name in self._progress else NO_TOTALS

    def _reached_early(self, job: str) -> Offsets:
        first = self._ledger.floor(job) + 1
        early = [row.reached for row in self._ledger.slices(job, first, first + 1)]
        return early[-1] if early else {}


def explanations(
    ledger: LedgerReader,
    ranges: StreamRanges,
    jobs: Sequence[JobRow],
    unavailable_store: Callable[[CheckedPipeline], str | None],
    newest: NewestResults,
) -> list[JobExplanationView]:
    """Return the explanation of each of these jobs."""
    found = _Explanations(ledger, ranges, jobs, unavailable_store, newest)
    earlier = ledger.totals_at([job.name for job in jobs], int(time.time() * 1000) - _HOUR_MS)
    return [_explained(found, job, earlier.get(job.name, NO_TOTALS)) for job in jobs]


def _explained(explanations: _Explanations, job: JobRow, earlier: Totals) -> JobExplanationView:
    found = explanations.of(job)
    share = rejected_share(explanations.totals_of(job), earlier)
    return JobExplanationView(job=job.name, rejected_share=round(share, 4), **vars(found))


def _missing(error: StrandlineError, step: str) -> ExplanationView:
    return ExplanationView(cause="missing", message=str(error), next=step, notes=[])


def _deletion_of(job: JobRow) -> str:
    return f"stop and delete the job: strandline job delete {job.name}"


def _takes_long(last_slice: SliceRow) -> bool:
    planned_s = time.time() - last_slice.planned_ms / 1000
    return last_slice.status is SliceStatus.PLANNED and planned_s > _SLICE_LONG_S


def rewind_view(cost: RewindCost, retention_ms: int) -> RewindView:
    """Return the cost of a rewind in the form of the API. `retention_ms`: from the stream's document; FOREVER_MS for no limit."""
    left_ms, warning = None, ""
    if cost.needed_since_ms is not None and cost.records and retention_ms != FOREVER_MS:
        left_ms = cost.needed_since_ms + retention_ms - time.time_ns() // 1_000_000
        if left_ms < retention_ms * RETENTION_LEFT_SHARE_MIN:
            warning = _warning(left_ms, retention_ms)
    return RewindView(records=cost.records, seconds=round(cost.seconds, 1), retention_left_ms=left_ms, warning=warning)


def _warning(left_ms: int, retention_ms: int) -> str:
    lost, kept = "records of the open windows", f"the stream's retention of {format_duration(retention_ms)}"
    what = f"in {format_about(left_ms)} {kept} begins to remove {lost}"
    if left_ms <= 0:
        what = f"{kept} may have removed {lost}, so a restart would fail"
    return f"{what}; raise the retention, or find out why no window closes"


def present_pipeline(ledger: LedgerReader, job: JobRow, *, is_strict: bool = False) -> CheckedPipeline:
    """Return the job's current version, checked against the current documents of its streams.

    Parts that don't fit are left out: a stream can have changed without the pipeline, if applying both was interrupted.
    Raises NotFound, FunctionUnusable if a stream, a lookup, or a package of the pipeline is missing.
    Args: is_strict: True if the pipeline will be run. Then parts that don't fit raise InvalidDocument.
    """
    documents = [ledger.stream(stream).document for stream in input_streams(ledger, job)]
    return _checked(ledger, ledger.job_version(job.name, job.version), documents, is_strict=is_strict)


def _checked(
    ledger: LedgerReader, row: JobVersionRow, documents: list[dict[str, Any]], *, is_strict: bool
) -> CheckedPipeline:
    try:
        if row.lookup_versions:
            spec = spec_of_row(row)
            lookups = shapes_of_version(ledger, row.job, row.version, spec)
            return check_stored(spec, documents, lookups, is_strict=is_strict)
        return _checked_before(json.dumps(row.document), *map(json.dumps, documents), is_strict=is_strict)
    except FunctionUnusable as error:
        raise FunctionUnusable(f"version {row.version} of job {row.job} can't be read: {error}") from error


@lru_cache(maxsize=4_096)
def _checked_before(pipeline: str, *streams: str, is_strict: bool) -> CheckedPipeline:
    """Return the pipeline of registered documents. Cached: status is requested often, and documents seldom change."""
    spec = PipelineSpec.from_document(json.loads(pipeline))
    return check_stored(spec, map(json.loads, streams), {}, is_strict=is_strict)


def input_streams(ledger: LedgerReader, job: JobRow) -> list[str]:
    """Return the streams that the job's current version reads, in the order of its document."""
    return inputs_of(ledger, job.name, job.version)


def _last_start(event: EventRow | None) -> LastStartView | None:
    if event is None:
        return None
    shown = {name: value for name, value in event.facts.items() if name in _LAST_START_FACTS}
    return LastStartView(at_ms=event.at_ms, method=event.facts["way"], **shown)


def _leader(lease: LeaseRow | None) -> LeaderView | None:
    if lease is None or not lease.is_held:
        return None
    return LeaderView(name=lease.holder, address=lease.address, lease_epoch=lease.epoch, lease_until_ms=lease.until_ms)


def _lag(held: dict[str, LogRange | None], position: Offsets | None) -> int | None:
    """Return the number of records to read. None if unknown."""
    if position is None:
        return None
    lags = [lag_records(one, position.get(stream, {})) for stream, one in held.items() if one]
    return sum(lags) if len(lags) == len(held) else None


def _left(job: JobRow, held: dict[str, LogRange | None], position: Offsets | None) -> int | None:
    """Return the number of records to read; for a batch, up to its ends. None if unknown."""
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
    """Return the rate over the last slices of one run, from the plan of the first slice to the commit of the last."""
    last = ledger.checkpoints(job.name, limit=_RATE_SLICES)
    rows = [row for row in last if row.epoch == last[0].epoch and row.records]
    planned = ledger.slices(job.name, rows[-1].slice, rows[-1].slice) if rows else []
    if not planned:
        return None
    took_ms = max(1, rows[0].committed_ms - planned[0].planned_ms)
    return round(1_000 * sum(row.records for row in rows) / took_ms, 1)


def _position(progress: JobProgress, version: Callable[[], JobVersionRow]) -> Offsets | None:
    """Return the offsets after the last committed slice; before the first slice, the start of the job. None if unknown.

    Args: version: Returns the current version of the job. Called only before the first slice.
    """
    if (last := progress.last_slice) is not None:  # a slice begins where the one before it ends
        return last.offsets if last.status is SliceStatus.COMMITTED else last.offsets_first
    return {} if all(read.start == "earliest" for read in spec_of_row(version()).reads) else None
