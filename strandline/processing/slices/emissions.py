"""Cuts of streams of results, for the jobs that read them. A slice ends where an emission of the writing job ends.

So an emission is read completely or not at all. Its windows end after those of all earlier emissions, so none of its results is
late after theirs. None is late after records of other streams either. For this, the checkpoint of the emission states a lower
bound for the event time of later results, and this bound holds the other streams back.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.ledger.states import CheckpointRow, EventTimeRule, SliceStatus, offset_count
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.slices.input_log import InputLog
from strandline.processing.slices.silence import Vector
from strandline.results.names import WINDOW_FIELDS

if TYPE_CHECKING:  # this module travels to every Python worker, and the ledger's SQL takes half a second to import
    from strandline.ledger.progress import JobProgress
    from strandline.ledger.roles import LedgerReader


@dataclass(frozen=True)
class Emitter:
    """The job that emits to one of the streams that are read."""

    stream: str
    job: str
    event_time_field: str | None = None
    """Event-time field with which the results are read. None if they are read by log time."""
    is_former: bool = False
    """True if the job's current version doesn't emit to the stream. Then its emissions count until all of them are read."""


class Emissions:
    """Determines where slices of a job end in its streams of results: at ends of emissions. Reads the ledger only."""

    def __init__(self, ledger: LedgerReader, log: InputLog, emitters: Sequence[Emitter]) -> None:
        self._ledger = ledger
        self._log = log
        self._emitters = {one.stream: one for one in emitters}
        self.present: Mapping[str, JobProgress] = {}
        """Progress of emitters, read before the look at the log, so the log reaches at least as far. For other jobs, the ledger
        is queried."""
        self._checkpoints: dict[tuple[str, int], CheckpointRow] = {}
        """Checkpoints that this look has read: it tries many cuts, and each cut needs the same checkpoints."""
        self._shapes: dict[tuple[str, int, str], tuple[str, WindowShape] | None] = {}
        """(job, version, stream) -> the stage that emits to it, and its windows. None if no stage emits, or one emits records."""

    def holds(self, label: int) -> bool:
        """Return True if the partition with this label is one of a stream of results."""
        return self._log.stream_of(label) in self._emitters

    def cuts(self, firsts: Vector) -> bool:
        """Return True if a slice that begins at `firsts` must end at the end of an emission, in at least one stream."""
        return bool(self._effective(firsts))

    def _effective(self, firsts: Vector | None) -> dict[str, Emitter]:
        """Return the emitters whose emissions are still to be read from `firsts` on. None: from an unknown position on.

        Records that come after the last emission of a former emitter are other senders', and are read like those of any stream.
        """
        return {
            stream: one
            for stream, one in self._emitters.items()
            if not (one.is_former and self._has_ended(one) and self._is_read(one, firsts))
        }

    def _has_ended(self, emitter: Emitter) -> bool:
        """True if the former emitter emits nothing to the stream any more: the slices of its older versions are committed."""
        known = self.present.get(emitter.job)
        last = known.last_slice if known is not None else self._ledger.last_slice(emitter.job)
        if last is None or last.status is not SliceStatus.PLANNED:
            return True
        from strandline.processing.pipelines.result_streams import emissions_to_streams
        from strandline.processing.pipelines.stored import spec_of_version

        spec = spec_of_version(self._ledger, emitter.job, last.version)
        return all(stream != emitter.stream for _, stream in emissions_to_streams(spec))

    def _is_read(self, emitter: Emitter, firsts: Vector | None) -> bool:
        """True if all emissions of the former emitter are before `firsts`."""
        last = self._last_checkpoint(emitter.job)
        if firsts is None or last is None:
            return True
        emitted = self._log.labelled({emitter.stream: last.result_offsets.get(emitter.stream, {})})
        return all(firsts.get(label, 0) >= end for label, end in emitted.items())

    def readable(self, ends: Vector, firsts: Vector | None = None) -> Vector:
        """Return the offsets up to which the streams may be read now: their ends; for a stream of results, the end of the last
        committed emission. `firsts`: where the next slice begins. None if `ends` is where a job begins or a batch ends."""
        self._checkpoints.clear()
        effective = self._effective(firsts)
        if not effective:
            return ends
        last = {stream: self._last_checkpoint(one.job) for stream, one in effective.items()}
        begun = {stream for stream, row in last.items() if row is not None and stream in row.result_offsets}
        starts = {} if begun == last.keys() else self._log.starts()
        emitted = self._log.labelled(
            {stream: row.result_offsets[stream] for stream, row in last.items() if row is not None and stream in begun}
        )
        found = dict(ends)
        for label in (one for one in ends if self._log.stream_of(one) in effective):
            has_begun = self._log.stream_of(label) in begun
            found[label] = min(ends[label], emitted.get(label, 0)) if has_begun else starts[label]
        return found

    def cut(self, firsts: Vector, ends: Vector, rows_max: int) -> tuple[Vector, int]:
        """Return the end of the last emission before `ends` up to which a slice holds at most `rows_max` records, and the time
        of its commit. The job must read a single stream. If the first new emission is larger, the slice holds all of it."""
        (emitter,) = self._emitters.values()
        last = self._last_checkpoint(emitter.job)
        assert last is not None, "records of a stream of results are read only from a checkpoint on"

        def rows_up_to(number: int) -> int:  # where emissions end never falls
            return offset_count({"": firsts}, {"": self._ends_at(emitter, number, firsts, ends)})

        def cut_above(floor: int) -> tuple[Vector, int]:
            # A reader that is farther behind than the emitter's oldest checkpoint takes all up to that one in one slice.
            numbers = range(max(1, floor), last.slice + 1)
            fitting = bisect_right(numbers, rows_max, key=rows_up_to)
            number = numbers[fitting - 1 if fitting and rows_up_to(numbers[fitting - 1]) else fitting]
            return self._ends_at(emitter, number, firsts, ends), self._checkpoint(emitter, number).committed_ms

        return self._ledger.above_floor(emitter.job, cut_above)

    def whole(self, cut: Vector, firsts: Vector, ends: Vector) -> Vector:
        """Return the cut, moved back in each stream of results to the end of its last complete emission."""
        found = dict(cut)
        for emitter in self._effective(firsts).values():
            found |= self._whole_of(emitter, cut, firsts, ends)
        return found

    def _whole_of(self, emitter: Emitter, cut: Vector, firsts: Vector, ends: Vector) -> Vector:
        """Return the end, in each partition, of the last emission of this job that is completely before the cut."""
        of_stream = {label: end for label, end in cut.items() if self._log.stream_of(label) == emitter.stream}

        def is_whole(number: int) -> bool:
            emitted = self._ends_at(emitter, number, firsts, ends)
            return all(emitted[label] <= end for label, end in of_stream.items())

        number = self._last(emitter, is_whole)
        emitted = firsts if number is None else self._ends_at(emitter, number, firsts, ends)
        return {label: emitted.get(label, 0) for label in of_stream}

    def ruled(self, rule: EventTimeRule, firsts: Vector) -> EventTimeRule:
        """Return the rule with a lower bound for the event time of results from `firsts` on, for each stream whose watermark
        follows emissions."""
        reading = [one for one in self._emitters.values() if rule.of(one.stream).watermark == "emissions"]
        return rule.with_results_from({one.stream: self._results_from_ms(one, firsts) for one in reading})

    def _results_from_ms(self, emitter: Emitter, firsts: Vector) -> int | None:
        """Return a lower bound, in event-time ms, for the results of this emitter at or after the offsets `firsts`.

        It is taken from the emitter's last checkpoint whose results are all before `firsts`: the window ends that were emitted by
        then. None without such a checkpoint or window, or if results aren't read by the start or end of their window."""
        read = self._log.by_stream(firsts)[emitter.stream]

        def is_read(number: int) -> bool:
            emitted = self._checkpoint(emitter, number).result_offsets.get(emitter.stream, {})
            return all(end <= read.get(partition, 0) for partition, end in emitted.items())

        number = self._last(emitter, is_read)
        if number is None:
            return None
        row = self._checkpoint(emitter, number)
        stage = self._stage(emitter, row.version)
        if stage is None or (emitted_ms := row.emitted.get(stage[0])) is None:
            return None
        start, end = WINDOW_FIELDS
        if emitter.event_time_field == end:
            return stage[1].first_end(emitted_ms)
        return stage[1].first_begin(emitted_ms) if emitter.event_time_field == start else None

    def _stage(self, emitter: Emitter, version: int) -> tuple[str, WindowShape] | None:
        key = emitter.job, version, emitter.stream
        if key not in self._shapes:
            from strandline.processing.pipelines.stored import load_pipeline

            stages = load_pipeline(self._ledger, emitter.job, version).stages
            self._shapes[key] = next(((one.name, one.shape) for one in stages if emitter.stream in one.streams), None)
        return self._shapes[key]

    def _last(self, emitter: Emitter, is_so: Callable[[int], bool]) -> int | None:
        """Return the last slice of the emitter for which `is_so` is true. None if there is none. It must be true for all earlier
        slices, too."""
        last = self._last_checkpoint(emitter.job)
        if last is None:
            return None
        self._checkpoints[emitter.job, last.slice] = last

        def above(floor: int) -> int | None:
            if is_so(last.slice):
                return last.slice
            numbers = range(max(1, floor), last.slice)
            count = bisect_left(numbers, True, key=lambda number: not is_so(number))
            return numbers[count - 1] if count else None

        return self._ledger.above_floor(emitter.job, above)

    def _last_checkpoint(self, job: str) -> CheckpointRow | None:
        known = self.present.get(job)
        return known.last_checkpoint if known is not None else self._ledger.last_checkpoint(job)

    def _checkpoint(self, emitter: Emitter, number: int) -> CheckpointRow:
        key = emitter.job, number
        if key not in self._checkpoints:
            self._checkpoints[key] = self._ledger.checkpoint(*key)
        return self._checkpoints[key]

    def _ends_at(self, emitter: Emitter, number: int, firsts: Vector, ends: Vector) -> dict[int, int]:
        """Return the end of that slice's emission in the stream's partitions, limited to `firsts` and `ends`."""
        offsets = self._checkpoint(emitter, number).result_offsets.get(emitter.stream, {})
        emitted = self._log.labelled({emitter.stream: offsets})
        return {
            label: max(min(emitted.get(label, 0), end), firsts.get(label, 0))
            for label, end in ends.items()
            if self._log.stream_of(label) == emitter.stream
        }
