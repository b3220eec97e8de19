"""Cuts the log into slices. Each slice is recorded in the ledger before it is processed, and is never cut again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from strandline.core.errors import Fenced, LedgerBehind, NotFound, StrandlineError
from strandline.ledger.states import (
    CheckpointRow,
    Desired,
    EventTimeRule,
    Offsets,
    SliceKind,
    SliceRow,
    SliceStatus,
    offset_count,
)
from strandline.processing.pipelines.event_time import WindowShape, closes_a_window, open_until
from strandline.processing.slices.continuity import LogContinuity, SealPositions
from strandline.processing.slices.effective_lookups import EffectiveLookups, UsedLookups
from strandline.processing.slices.effective_schema import EffectiveSchema
from strandline.processing.slices.emissions import Emissions, Emitter
from strandline.processing.slices.input_log import InputContinuity, InputLog
from strandline.processing.slices.joint_planning import Draft, count_silence, plan_next_slices
from strandline.processing.slices.look import Checksums, LogQuestions, Look, LookedLog, Wanted
from strandline.processing.slices.silence import SeenEnds, SilenceMeter, Vector
from strandline.processing.slices.watermark import (
    first_records,
    greatest,
    new_records,
    rule_after,
    silence_without,
    watermark_after,
)

if TYPE_CHECKING:  # this module travels to every Python worker, and the ledger's SQL takes half a second to import
    from strandline.ledger.progress import JobProgress
    from strandline.ledger.roles import PlannerLedger
    from strandline.ledger.states import LookupVersions, StreamVersions


@dataclass(frozen=True)
class InputStream:
    """A stream that a job reads, as far as the planner needs to know it."""

    stream: str
    start: str | int = "earliest"
    """`earliest`, `latest` or a log time in ms: where the job's first slice begins."""
    topic_id: str | None = None
    """Topic of the registered stream: the log is read only while the stream has this topic. None if it isn't known."""
    has_senders_times: bool = False
    """True if producers write the log times of the stream: in any order, and perhaps one of them years ahead of all others."""
    stream_version: int | None = None
    """Version of the stream's document with which the run's pipeline is compiled. None if slices don't record a version."""
    end: str | int | None = None
    """For a batch, `latest` or a log time in ms. Its position must be recorded before anything is read (`record_range`)."""


@dataclass(frozen=True)
class PlannerSettings:
    job: str
    version: int
    epoch: int
    inputs: tuple[InputStream, ...]
    """The streams that the job reads, in the order of the document."""
    rows_max: int
    rule: EventTimeRule
    windows: tuple[WindowShape, ...]
    """Windows of each stage, in the order of the stages."""
    emitters: tuple[Emitter, ...] = ()
    """The jobs that emit to input streams of this job. These streams are cut only at the checkpoints of their emitters."""
    lookups: UsedLookups = ()
    """Lookups that the pipeline uses: slices record which version of each enriches their records."""

    @property
    def is_whole(self) -> bool:
        """True if the job reads from the oldest record on."""
        return all(one.start == "earliest" for one in self.inputs)

    @property
    def is_batch(self) -> bool:
        """True if the job ends by itself. Then each of its streams has an end."""
        return any(one.end is not None for one in self.inputs)


FILLING_MS = 1_000
"""Time in ms that the first slice of a job waits for the first records of empty partitions."""


class SlicePlanner:
    """Plans the next slice of one job, for one run. Called between two Spark batches, when the slice before is committed.

    `next_slice` plans for this job alone. The methods from `begin` on are its steps. `plan_next_slices` calls them for the
    planners of one or more jobs. Between the steps it queries the log and the ledger, once for all planners.
    """

    def __init__(
        self,
        settings: PlannerSettings,
        ledger: PlannerLedger,
        index: LogQuestions,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        silence: SilenceMeter | None = None,
        filling_ms: int = FILLING_MS,
        continuity: LogContinuity | None = None,
    ) -> None:
        """`now_ms` is recorded for people; it decides only with the bound `planned`. `continuity`: of the first stream."""
        self._settings = settings
        self._rows_max = settings.rows_max
        self._ledger = ledger
        self._index = index
        self._now_ms = now_ms
        self._silence = silence or SilenceMeter()
        self._filling_ms = filling_ms
        self._filling_since_ms: int | None = None
        """When the run first saw records in a stream that has no slice yet."""
        senders = {one.stream for one in settings.inputs if one.has_senders_times}
        self._rule = settings.rule.bounded_by_plan(senders)
        self._schema: EffectiveSchema | None = None
        self._compiled = {one.stream: one.stream_version for one in settings.inputs if one.stream_version is not None}
        if self._compiled:
            self._schema = EffectiveSchema(ledger, settings.job, settings.version, self._compiled)
        self._lookups = EffectiveLookups(ledger, settings.lookups)
        self._looked = LookedLog(index)
        self._log = InputLog(self._looked, [one.stream for one in settings.inputs])
        logs = {one.stream: LogContinuity(settings.job, one.stream, one.topic_id, index) for one in settings.inputs}
        self._continuity = InputContinuity(
            logs | ({settings.inputs[0].stream: continuity} if continuity else {}), self._log, index
        )
        self._emissions = Emissions(ledger, self._log, settings.emitters)
        self._drain_ends: Vector | None = None
        self._has_ends = not settings.is_batch
        """True if the end of the batch is recorded. Then it never changes until the job is reset or deleted."""

    def record_range(self) -> None:
        """Record where the job begins, as a first slice without records, and where a batch ends. Does nothing if the job has a
        slice, or begins at the oldest record.

        Call it before anything else in a run that can take time or fail. Otherwise a run that fails before its first slice
        wouldn't record where it began, and the next run would begin, or end, later. Records nothing while a transaction is open
        where the job begins. Raises the errors of `next_slice`.
        """
        settings = self._settings
        if not settings.is_whole and self._ledger.last_slice(settings.job) is None:
            begin, readable = self._places({one.stream: one.start for one in settings.inputs}), self._log.ends()
            if any(offset > readable[label] for label, offset in begin.items()):
                return  # the job begins in, or after, a transaction that is still open
            origin = self._empty_slice(None, None, begin, {})
            origin = replace(origin, stream_versions=self._compiled)
            self._ledger.plan_slice(replace(origin, lookup_versions=self._lookups.versions() or {}))
        if not self._has_ends:
            if self._ledger.job(settings.job).ends is None:
                ends = self._places({one.stream: one.end for one in settings.inputs if one.end is not None})
                self._ledger.record_ends(settings.job, settings.epoch, self._log.by_stream(ends))
            self._has_ends = True

    def _places(self, wanted: Mapping[str, str | int]) -> Vector:
        """Return the offsets of a start or end position in each stream. A position at a log time omits no record of an open
        transaction."""
        log, ends = self._log, self._emissions.readable(self._log.ends())
        found: dict[str, Vector] = {"latest": ends, "earliest": ends | log.starts()}
        written = log.ends_with_open() if any(isinstance(one, int) for one in wanted.values()) else {}
        by_label = {}
        for label in ends:
            place = wanted[log.stream_of(label)]
            if str(place) not in found:
                assert isinstance(place, int), "a place is the one end of a log, the other, or a time"
                found[str(place)] = log.offsets_at(place, written)
            by_label[label] = found[str(place)][label]
        return by_label

    def next_slice(self, committed: int = 0) -> SliceRow | None:
        """Plan, record and return the next slice; None when there is nothing to do now.

        `committed`: number of the last slice that this run knows to be committed. Raises LedgerBehind if the ledger doesn't
        contain that commit (any more). Nothing is planned then: a slice planned again under a lost number would hide the loss.

        1. If a slice is planned and not committed, return it as it was cut. For a batch, make sure that its end is recorded.
        2. Plan nothing for a job that must stop, or that has a newer version than this run.
        3. With new records, cut at the end of every partition, or at one log time if the job is far behind. The first slice of a
           job waits a moment for partitions that are still empty. Cut a stream of results at the end of a committed emission, if
           possible of the last one. Seal the slice with the checksums of its last records.
        4. Without new records, plan an empty slice if silence closes a window.
        5. When draining and all is read, plan an empty slice that closes every open window. A batch drains up to its ends.
        6. Record with the slice the current version of the stream's document, and of each lookup that the pipeline uses. They are
           read after the log's ends. So a record that arrives while a version is applied is decoded with that version or a
           later one. Plan nothing if this run can't use a current version.

        Plans nothing if the look missed a partition that was just added. Plans nothing while it isn't certain that the log still
        contains what the job has read; raises Conflict if it doesn't. Raises Fenced if a newer run has planned a slice: this run
        may have another version and would emit other results.
        """
        job = self._settings.job
        clock = self._silence.monotonic_ms
        outcome = plan_next_slices([self], self._ledger, self._index, clock, {job: committed})[job]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    # The steps of planning, in order.

    @property
    def job(self) -> str:
        return self._settings.job

    @property
    def emitting_jobs(self) -> list[str]:
        """The jobs by whose emissions this one is cut."""
        return [one.job for one in self._settings.emitters]

    def limit_rows(self, rows_max: int) -> None:
        """Let the next slices have at most this number of records, and never more than the settings allow."""
        self._rows_max = max(1, min(rows_max, self._settings.rows_max))

    def begin(self, progress: JobProgress | None, committed: int = 0) -> tuple[JobProgress, Wanted] | SliceRow | None:
        """Return the job's progress, and the parts of a look that its next slice needs. If a slice is planned and not committed,
        return that slice. None if nothing must be planned: the job must stop, or has a newer version than this run.

        `progress`: from the ledger, read now. `committed`: as for `next_slice`. Raises NotFound, Fenced, LedgerBehind.
        """
        job = self._settings.job
        if progress is None:
            raise NotFound(f"There is no job {job}.")
        if committed:
            self._require_commit_of(committed, progress.last_slice)
        if not self._has_ends or (progress.last_slice is None and not self._settings.is_whole):
            self.record_range()
            progress = self._progress()
            if progress.last_slice is None and not self._settings.is_whole:
                return None
        done = progress.last_slice
        if done is not None and done.epoch > self._settings.epoch:
            raise Fenced(
                f"slice {done.number} of job {job} was planned by run {done.epoch}: run {self._settings.epoch} ends"
            )
        if done is not None and done.status is SliceStatus.PLANNED:
            return done
        row = progress.job
        if row.desired is Desired.STOPPED or row.version != self._settings.version:
            return None
        return progress, self.wanted(progress)

    def wanted(self, progress: JobProgress | None) -> Wanted:
        """Return which streams a look must contain for this job, and which of their offsets. `progress`: progress of the job, if
        its next slice will be cut with the look. None if only silence is counted."""
        streams = self._log.streams
        may_need_starts = progress is not None and (progress.last_slice is None or bool(self._settings.emitters))
        return Wanted(streams, streams if self._timed_streams() else (), may_need_starts)

    def cut(self, progress: JobProgress, others: Mapping[str, JobProgress], look: Look) -> Draft | None:
        """Return the next slice, which ends where this look or earlier. None if nothing must be planned now.

        `progress`: of this job, and `others`: of the jobs that emit to its streams. Both were read before the look."""
        row = progress.job
        is_draining = row.desired is Desired.DRAINED or row.ends is not None
        self._looked.look, self._emissions.present = look, others
        try:
            planned = self._cut(progress.last_slice, progress.last_checkpoint, row.ends, look, draining=is_draining)
        except NotFound as error:
            self._continuity.mark_suspect(error)
            return None
        finally:
            self._looked.look, self._emissions.present = None, {}
        if planned is None:
            self._continuity.clear_suspect()
            return None
        return Draft(planned, progress.last_slice, is_draining)

    def confirmed(self, draft: Draft, topic_ids: Mapping[str, str | StrandlineError]) -> Draft | None:
        """Return the draft. None if a topic is missing, or has a partition that isn't in the draft: plan nothing and look again.

        `topic_ids`: current ids of the topics. Raises LogChanged if a topic was recreated, or is missing for DOUBT_MS."""
        try:
            self._continuity.require_same_topics(topic_ids)
            is_whole = draft.is_draining or not self._log.lacks_a_partition(draft.row.offsets)
        except NotFound as error:
            self._continuity.mark_suspect(error)
            return None
        if not is_whole:
            # Queried after the ends: so the records of an added partition are newer than all records of the slice, and the next
            # slice reads them. Otherwise event time could advance past existing records.
            self._continuity.clear_suspect()
            return None
        return draft

    def seal_positions(self, draft: Draft) -> SealPositions:
        """Return the positions whose checksums `sealed` needs: none if the slice contains no record."""
        if draft.row.offsets == draft.row.offsets_first:
            return SealPositions([], [])
        return self._continuity.seal_positions(draft.row, draft.done)

    def sealed(self, draft: Draft, new: Checksums, old: Checksums) -> Draft | None:
        """Return the draft with the checksums of its last records. None if `LogContinuity.sealed` finds a record missing."""
        row: SliceRow | None = draft.row
        try:
            if draft.row.offsets != draft.row.offsets_first:
                row = self._continuity.sealed(draft.row, draft.done, new, old)
        except NotFound as error:
            self._continuity.mark_suspect(error)
            return None
        self._continuity.clear_suspect()
        return draft._replace(row=row) if row is not None else None

    @property
    def versioned_streams(self) -> Collection[str]:
        """The streams whose current versions `by_versions` needs."""
        return self._compiled.keys()

    @property
    def used_lookups(self) -> Collection[str]:
        """The lookups whose current versions `by_versions` needs."""
        return self._lookups.names

    def by_versions(self, draft: Draft, streams: StreamVersions, lookups: LookupVersions) -> Draft | None:
        """Return the draft with the versions of streams and lookups with which it is decoded and enriched. None if this run can't
        use one of these versions: a run of another pipeline version must plan the slice."""
        row = draft.row
        if self._schema is not None:
            of_streams = self._schema.versions(streams)
            if of_streams is None:
                return None
            row = replace(row, stream_versions=of_streams)
        of_lookups = self._lookups.versions(lookups)
        if of_lookups is None:
            return None
        return draft._replace(row=replace(row, lookup_versions=of_lookups) if of_lookups else row)

    def _progress(self) -> JobProgress:
        job = self._settings.job
        found = self._ledger.progress_of([job]).get(job)
        if found is None:
            raise NotFound(f"There is no job {job}.")
        return found

    def _require_commit_of(self, number: int, last: SliceRow | None) -> None:
        """Raise LedgerBehind unless the ledger contains the commit of slice `number`. `last`: the last slice in the ledger."""
        job = self._settings.job
        if last is not None and last.epoch <= self._settings.epoch:
            is_planned = last.status is SliceStatus.PLANNED
            if last.number < number or (last.number == number and is_planned):
                known = f"its last slice is {last.number}{', not committed' if is_planned else ''}"
                raise LedgerBehind.of(
                    job, f"{known}, and this run ({self._settings.epoch}) has committed slice {number}"
                )
        elif last is None:
            evidence = f"it contains no slice, and this run ({self._settings.epoch}) has committed slice {number}"
            raise LedgerBehind.of(job, evidence)

    def count_silence(self) -> None:
        """See `joint_planning.count_silence`."""
        checkpoint = self._ledger.last_checkpoint(self._settings.job)
        count_silence([(self, checkpoint)], self._index, self._silence.monotonic_ms)

    def note_silence(self, look: Look, checkpoint: CheckpointRow | None) -> None:
        """Count silence by this look, which was taken after the checkpoint was read. Raises the errors of the look."""
        self._looked.look = look
        try:
            self._look(look, checkpoint)
        finally:
            self._looked.look = None

    def is_to_end(self) -> bool:
        """Return True if the job drains or is a batch: then each slice is due immediately."""
        row = self._ledger.job(self._settings.job)
        return row.desired is Desired.DRAINED or row.ends is not None

    def _cut(
        self,
        done: SliceRow | None,
        checkpoint: CheckpointRow | None,
        ends_of_batch: Offsets | None,
        look: Look,
        *,
        draining: bool,
    ) -> SliceRow | None:
        """Return the next slice, without checksums and versions. None if none is due. Steps 3 to 5 of `next_slice`."""
        firsts = self._log.labelled(done.offsets) if done is not None else self._log.starts()
        ends, silence_ms = self._look(look, checkpoint)
        ends_seen = ends
        if not self._continuity.reaches(ends, firsts):
            return None
        ends = self._emissions.readable(ends, firsts)
        if ends_of_batch is not None:
            self._drain_ends = self._log.labelled(ends_of_batch)
            ends = {partition: min(ends.get(partition, 0), end) for partition, end in self._drain_ends.items()}
        elif draining:
            # Ignore what arrives after the drain began, else a busy feed would never be drained.
            self._drain_ends = self._drain_ends or ends
            ends = self._drain_ends
        else:
            self._drain_ends = None
        # A partition that was added since the last slice starts at 0 and joins because `offsets` has it. The log reaches as far
        # as it was read, but the last emission need not: the job may have read on before the stream had an emitter.
        ends = {partition: max(ends.get(partition, 0), firsts.get(partition, 0)) for partition in ends | firsts}
        row = self._empty_slice(done, checkpoint, firsts, self._silence_of(silence_ms, ends_seen, firsts))
        if done is not None and done.kind is SliceKind.CATCH_UP:
            # What was read may be ahead of what waits. The newest event counts when all is read.
            row = replace(row, rule=row.rule.by_partitions_where(done.rule))
        rows = _count(firsts, ends)
        is_first = checkpoint is None or checkpoint.latest_log_ms is None
        if rows and is_first and not draining and self._is_filling(firsts, ends):
            return None
        if rows > self._rows_max:
            if len(self._log.streams) == 1 and self._emissions.cuts(firsts):
                offsets, cut_time_ms = self._emissions.cut(firsts, ends, self._rows_max)
            else:
                newcomers = self._newcomers(row, ends)
                offsets, cut_time_ms = self._cut_by_log_time(firsts, ends, checkpoint, newcomers)
                if any(offsets[partition] < end for partition, end in newcomers.items()):
                    silence_ms = {}  # that of others may not pass by what waits in them
            offsets_of, silent_ms = self._log.by_stream(offsets), self._silence_of(silence_ms, ends_seen, offsets)
            row = replace(
                row, kind=SliceKind.CATCH_UP, offsets=offsets_of, cut_time_ms=cut_time_ms, silence_ms=silent_ms
            )
            return _with_watermark(row, checkpoint)
        if rows:
            silent_ms = self._silence_of(silence_ms, ends_seen, ends)
            row = replace(row, kind=SliceKind.LIVE, offsets=self._log.by_stream(ends), silence_ms=silent_ms)
            return _with_watermark(row, checkpoint)
        row = _with_watermark(row, checkpoint)
        windows, closed_ms = self._settings.windows, checkpoint.closes_ms if checkpoint is not None else None
        still_open_ms = open_until(windows, checkpoint.latest_event_ms) if checkpoint is not None else None
        is_all_read = all(firsts.get(partition, 0) >= end for partition, end in (self._drain_ends or {}).items())
        if draining and is_all_read and not is_drained(done, checkpoint, windows):
            return replace(row, kind=SliceKind.DRAIN, watermark_ms=greatest(row.watermark_ms, still_open_ms))
        return row if closes_a_window(windows, closed_ms, row.watermark_ms, still_open_ms) else None

    def _timed_streams(self) -> set[str]:
        rule = self._settings.rule
        return {stream for stream in self._log.streams if rule.of(stream).idle_timeout_ms is not None}

    def _look(self, look: Look, checkpoint: CheckpointRow | None) -> tuple[Vector, Vector]:
        """Return label -> end of the partition, and label -> its silence in ms, for streams with an idle timeout."""
        log, timed = self._log, self._timed_streams()
        if not timed:
            return log.ends(), {}

        def seen() -> SeenEnds:
            return SeenEnds(log.ends(), log.ends_with_open(), look.began_ms, look.answered_ms)

        accepted_in = log.labelled(checkpoint.accepted_in) if checkpoint is not None else {}
        ends, silence_ms = self._silence.look(seen, accepted_in, log.not_writable)
        return ends, {at: ms for at, ms in silence_ms.items() if ms and log.stream_of(at) in timed}

    def _silence_of(self, silence_ms: Vector, ends_seen: Vector, offsets: Vector) -> Offsets:
        """Return the silences to record with a slice that ends at `offsets`. A partition that the slice doesn't read to the end
        of the look has none: it isn't known yet whether the remaining records are accepted."""
        whole = {at: ms for at, ms in silence_ms.items() if offsets.get(at, 0) >= ends_seen[at]}
        return {stream: found for stream, found in self._log.by_stream(whole).items() if found}

    def _is_filling(self, firsts: Vector, ends: Vector) -> bool:
        """Return True if the senders of a new stream may still be writing the first records of some partitions.

        Empty partitions don't hold the watermark back. So after a first slice of some partitions, the first records of the others
        could be late. Doesn't wait for a stream of results: its emissions are read completely.
        """
        empty = [p for p, end in ends.items() if end <= firsts.get(p, 0) and not self._emissions.holds(p)]
        if not empty:
            return False
        now_ms = self._silence.monotonic_ms()
        self._filling_since_ms = now_ms if self._filling_since_ms is None else self._filling_since_ms
        if now_ms - self._filling_since_ms < self._filling_ms:
            return True
        written = self._log.ends_with_open()
        return any(written.get(partition, 0) > ends[partition] for partition in empty)

    def _newcomers(self, row: SliceRow, ends: Vector) -> Vector:
        """Return the partitions that have records now and never had an accepted record, with their ends. They don't hold the
        watermark back yet.

        Empty in a job's first slices, before any record is accepted. Leaves out streams whose watermark follows the newest event
        or emissions, because no partition holds these back."""
        log = self._log
        firsts, known = log.labelled(row.offsets_first), log.labelled(row.reached)
        if not known:
            return {}
        return {
            p: end
            for p, end in ends.items()
            if end > firsts.get(p, 0) and p not in known and row.rule.of(log.stream_of(p)).watermark == "partitions"
        }

    def _cut_by_log_time(
        self, firsts: Vector, ends: Vector, checkpoint: CheckpointRow | None, newcomers: Vector
    ) -> tuple[Vector, int]:
        """Return the end of each partition for a slice with at most `rows_max` records, and the log time at which all of them are
        cut. So no partition runs ahead of another in log time. If the first millisecond alone has more records, the slice
        contains all of it. A stream of results is cut after the last emission that was complete by then.

        Log times that producers write may be in any order. The first offset with a time from t on never falls with t, so a cut is
        always found and always advances. But one record far ahead of its time may be before all others. Then the cut is by
        offsets, the same share of each partition.

        The slice holds `newcomers` first, up to their ends, whatever their log times. If it can't hold them all, the other
        partitions wait. This matters if a broker's clock jumps. By log time, the others would then run ahead of older records of
        the newcomers. Newcomers don't hold the watermark back, so these records would be late.
        """
        rows_max, ends_of_all = self._rows_max, ends
        # Where the slice ends at the earliest.
        least = {partition: newcomers.get(partition, firsts.get(partition, 0)) for partition in ends}
        if _count(firsts, least) > rows_max:
            ends, least = least, {partition: firsts.get(partition, 0) for partition in ends}
        rows_least = _count(firsts, least)

        def cut_at(log_time_ms: int) -> tuple[Vector, int]:
            found = self._log.offsets_at(log_time_ms, ends)
            cut = {partition: max(offset, least[partition]) for partition, offset in found.items()}
            cut = self._emissions.whole(cut, firsts, ends_of_all)
            return cut, _count(firsts, cut)

        newest_ms = self._log.newest_log_time()
        low_ms = checkpoint.latest_log_ms if checkpoint is not None and checkpoint.latest_log_ms is not None else 0
        # After a broker's clock was set back, new records have earlier log times than records that were read; so have partitions
        # that waited for newcomers. Then any time may be the cut.
        if low_ms >= newest_ms or cut_at(low_ms)[1] > rows_max:
            low_ms = 0
        high_ms = newest_ms + 1
        fitting: tuple[Vector, int] | None = None
        too_large = (ends, newest_ms)
        while high_ms - low_ms > 1:
            middle_ms = (low_ms + high_ms) // 2
            cut, rows = cut_at(middle_ms)
            if rows > rows_max:
                high_ms, too_large = middle_ms, (cut, middle_ms)
                continue
            low_ms = middle_ms
            if rows:
                fitting = (cut, middle_ms)
            if (rows - rows_least) * 2 >= rows_max - rows_least:
                break
        if fitting is None and any(one.has_senders_times for one in self._settings.inputs):
            share = self._emissions.whole(self._share(firsts, too_large[0]), firsts, ends_of_all)
            return (share if _count(firsts, share) else too_large[0]), too_large[1]
        return fitting or too_large

    def _share(self, firsts: Vector, ends: Vector) -> Vector:
        """Return the ends of about the first `rows_max` records up to `ends`: the same share of each partition, at least one."""
        rows_max, rows = self._rows_max, _count(firsts, ends)
        return {
            partition: begin + -((begin - end) * rows_max // rows)
            for partition, end in ends.items()
            for begin in (firsts.get(partition, 0),)
        }

    def _empty_slice(
        self, done: SliceRow | None, checkpoint: CheckpointRow | None, firsts: Vector, silence_ms: Offsets
    ) -> SliceRow:
        """Return the next slice without records: it ends where it begins, and has no watermark yet."""
        settings, now_ms = self._settings, self._now_ms()
        return SliceRow(
            job=settings.job,
            number=done.number + 1 if done is not None else 1,
            epoch=settings.epoch,
            version=settings.version,
            offsets_first=self._log.by_stream(firsts),
            offsets=self._log.by_stream(firsts),
            cut_time_ms=now_ms,
            watermark_ms=None,
            rule=self._emissions.ruled(rule_after(self._rule, done, checkpoint), firsts),
            reached=checkpoint.reached if checkpoint is not None else {},
            sessions=checkpoint.sessions if checkpoint is not None else {},
            silence_ms=silence_ms,
            checksums=done.checksums if done is not None else {},
            kind=SliceKind.IDLE,
            status=SliceStatus.PLANNED,
            planned_ms=now_ms,
        )


def _with_watermark(row: SliceRow, checkpoint: CheckpointRow | None) -> SliceRow:
    """Return the slice with its watermark. Partitions with records in the slice aren't idle: these may be accepted."""
    found = first_records(row.reached, row.offsets_first, row.offsets)
    silence_ms = silence_without(row.silence_ms, new_records(row.offsets_first, row.offsets))
    return replace(row, watermark_ms=watermark_after(row.rule, checkpoint, silence_ms, first_records=found))


def _count(firsts: Vector, ends: Vector) -> int:
    return offset_count({"": firsts}, {"": ends})


def is_drained(done: SliceRow | None, checkpoint: CheckpointRow | None, windows: Sequence[WindowShape]) -> bool:
    """Return True if the last slice is the last of a drain, is committed, and has closed every open window of this version."""
    if done is None or done.kind is not SliceKind.DRAIN or checkpoint is None or checkpoint.slice != done.number:
        return False
    still_open_ms = open_until(windows, checkpoint.latest_event_ms)
    return still_open_ms is None or (checkpoint.closes_ms is not None and checkpoint.closes_ms >= still_open_ms)
