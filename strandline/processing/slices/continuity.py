"""Checks that the log still contains the records that a job has read.

A log can end before an offset that the job has read: after a power cut, or if the new leader of a partition lacked records. A
topic can be deleted and recreated. Then other records get the same offsets, and the offsets don't show it. So a run checks when
it begins, and before it records each slice with records:

* The topic must have the id that it had when the stream was registered.
* No partition may end before the last slice does.
* In each partition, the record batch that contains the last record of the last slice must have the checksum recorded with the
  slice. Between slices, only partitions with new records are checked.

A source task also compares that checksum when it has read its part of a slice (`RangeReader`): the log may be cut off after the
run's check. No window is computed before all tasks have read.

If a check fails, the run ends with LogChanged: the job has results of records that no longer exist, and only a person can decide
what to do with them.

A broker that lags behind may report for a moment that something is missing. That becomes LogChanged only if it lasts for
DOUBT_MS; until then no slice is cut. Another id or checksum is LogChanged immediately, because a lag doesn't cause it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from strandline.core.errors import LogChanged, NotFound, StrandlineError
from strandline.ledger.states import SliceRow
from strandline.log.batch_checksums import LogPosition
from strandline.processing.slices.look import Checksums, LogQuestions

DOUBT_MS = 10_000
POLL_S = 0.2
_ANEW = (
    "To use its name again, run strandline apply with the stream's document: the refusal lists the commands. Or register the "
    "stream under another name, and submit a pipeline of another name, with other names for its emissions, that reads it."
)

Vector = Mapping[int, int]


class SealPositions(NamedTuple):
    """Log positions whose record batches have checksums that are queried before a slice is recorded."""

    new: list[LogPosition]
    """The last records of the slice. Their checksums are recorded with it. Query them before `old`."""
    old: list[LogPosition]
    """The last records of the slice before it, in the partitions that grew. Their checksums must be those recorded with it."""


class LogContinuity:
    """Checks for one run that a stream still contains what the job has read. Every method also raises LogUnavailable."""

    def __init__(
        self,
        job: str,
        stream: str,
        topic_id: str | None,
        index: LogQuestions,
        monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        """`topic_id`: id of the topic when the stream was registered. None if it isn't known."""
        self._job = job
        self._stream = stream
        self._topic_id = topic_id
        self._index = index
        self._ends = PendingMismatch(monotonic_ms)
        self._records = PendingMismatch(monotonic_ms)
        self._topic = PendingMismatch(monotonic_ms)

    def require(self, last: SliceRow | None) -> None:
        """Wait until the log contains the end of the job's last slice, as it was recorded. Raises LogChanged if it doesn't.

        `last`: None if the job has no slice. Then only the topic is checked."""
        while not self._holds(last):
            time.sleep(POLL_S)

    def _holds(self, last: SliceRow | None) -> bool:
        try:
            self.require_same_topic()
            if last is not None:
                ends = last.offsets.get(self._stream, {})
                if not self.reaches(self._index.ends(self._stream), ends):
                    return False
                return self._records.is_settled(self._check_records(last, ends.keys()))
        except NotFound as error:
            self.mark_suspect(error)
            return False
        return True

    def reaches(self, ends: Vector, read: Vector) -> bool:
        """Return True if each partition of `read` exists, and ends at or after its offset in `read`. If False, the caller cuts
        no slice and looks again. Raises LogChanged if that lasts for DOUBT_MS, or for another topic; NotFound without a topic."""
        short = next((partition for partition, offset in read.items() if ends.get(partition, -1) < offset), None)
        if short is None:
            return self._ends.is_settled(None)
        self.require_same_topic()
        end = f"ends at offset {ends[short]}" if short in ends else "is not there"
        return self._ends.is_settled(
            f"stream {self._stream}, partition {short} {end}, but slices of job {self._job} go up to offset {read[short]}: "
            f"{self._cut_off()}"
        )

    def seal_positions(self, row: SliceRow, done: SliceRow | None) -> SealPositions:
        """Return the positions whose checksums `sealed` compares and records. `done`: the slice before `row`."""
        firsts = row.offsets_first[self._stream]
        known = done.checksums.get(self._stream, {}) if done is not None else {}
        last = {p: end - 1 for p, end in row.offsets[self._stream].items() if end > 0}
        grown = {p for p, offset in last.items() if offset >= firsts.get(p, 0)}
        wanted = {p: offset for p, offset in last.items() if p in grown or p not in known}
        return SealPositions(
            self._positions(wanted), self._positions(self._known_ends(done, grown)) if done is not None else []
        )

    def sealed(self, row: SliceRow, done: SliceRow | None, new: Checksums, old: Checksums) -> SliceRow | None:
        """Return the unrecorded slice `row` with its checksums. None if a record at the end of `row`, or of the slice `done`
        before it, isn't in the log: then the caller plans nothing and looks again.

        `new` and `old` contain the checksums of `seal_positions`. The new ones were queried first: if the old ones exist
        afterwards, the log was not cut off below them in between. Raises LogChanged if a record is another one, or missing for
        DOUBT_MS.
        """
        positions = self.seal_positions(row, done)
        firsts = row.offsets_first[self._stream]
        known = done.checksums.get(self._stream, {}) if done is not None else {}
        found = _found(positions.new, new)
        grown = {one.partition: one.offset for one in positions.new if one.offset >= firsts.get(one.partition, 0)}
        problem = self._compare(done, positions.old, _found(positions.old, old)) if done is not None else None
        if not self._records.is_settled(problem or self._missing(grown, found)):
            return None
        return replace(row, checksums={**row.checksums, self._stream: {**known, **found}})

    def require_same_topic(self, topic_id: str | None = None) -> None:
        """Raise LogChanged if the topic was deleted and recreated. `topic_id`: its current id. None to query it: then NotFound is
        raised if there is no topic."""
        present_id = self._index.topic_id(self._stream) if topic_id is None else topic_id
        require_same_topic(self._job, self._stream, self._topic_id, present_id, _ANEW)

    def mark_suspect(self, missing: NotFound) -> None:
        """Note that a look found no topic. The caller cuts no slice and looks again. Raises LogChanged if no look found the topic
        for DOUBT_MS."""
        try:
            self._topic.is_settled(
                f"the topic of stream {self._stream}, which job {self._job} reads, was deleted. {_ANEW}"
            )
        except LogChanged as error:
            raise error from missing

    def clear_suspect(self) -> None:
        """Note that a look found the topic: the time of `mark_suspect` ends."""
        self._topic.is_settled(None)

    def _check_records(self, last: SliceRow, partitions: Collection[int]) -> str | None:
        """Return a message about a missing last record of the slice in these partitions. None if none is missing. Raises
        LogChanged if a last record is another one."""
        offsets = self._known_ends(last, partitions)
        return self._compare(last, self._positions(offsets), self._index.checksums(self._stream, offsets))

    def _known_ends(self, last: SliceRow, partitions: Collection[int]) -> Vector:
        """Return the last offset of the slice in those of these partitions whose checksums it has."""
        known = last.checksums.get(self._stream, {})
        return {p: last.offsets[self._stream][p] - 1 for p in known if p in partitions}

    def _positions(self, offsets: Vector) -> list[LogPosition]:
        return [LogPosition(self._stream, partition, offset) for partition, offset in offsets.items()]

    def _compare(self, last: SliceRow, positions: Collection[LogPosition], found: Vector) -> str | None:
        known, offsets = last.checksums.get(self._stream, {}), {one.partition: one.offset for one in positions}
        for partition, checksum in found.items():
            if checksum != known[partition]:
                raise LogChanged(
                    f"stream {self._stream}, partition {partition} holds another record at offset {offsets[partition]} than when "
                    f"slice {last.number} of job {self._job} was cut: {self._cut_off()}"
                )
        return self._missing(offsets, found)

    def _missing(self, offsets: Vector, found: Vector) -> str | None:
        """Return a message about an offset that isn't in `found`. None if none is missing, or retention removed all of these."""
        missing = offsets.keys() - found.keys()
        starts = self._index.starts(self._stream) if missing else {}
        for partition in sorted(missing):
            if starts.get(partition, 0) <= offsets[partition]:
                return (
                    f"stream {self._stream}, partition {partition} does not hold offset {offsets[partition]} any more, "
                    f"up to which slices of job {self._job} go: {self._cut_off()}"
                )
        return None

    def _cut_off(self) -> str:
        return (
            "the log was cut off there, by a power cut or by the election of a broker that lacked records. Restore the log and "
            f"start the job again (strandline job start {self._job}). Or submit the pipeline under another name, with other "
            "names for its emissions, to compute from the records that the log contains now."
        )


class PendingMismatch:
    """A problem of the log that counts only if it lasts for DOUBT_MS."""

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._since_ms: int | None = None

    def is_settled(self, problem: str | None) -> bool:
        """Return True if `problem` is None, otherwise False. Raises LogChanged(problem) once all calls for DOUBT_MS had one."""
        if problem is None:
            self._since_ms = None
            return True
        now_ms = self._monotonic_ms()
        self._since_ms = now_ms if self._since_ms is None else self._since_ms
        if now_ms - self._since_ms >= DOUBT_MS:
            raise LogChanged(problem)
        return False


def require_same_topic(job: str, stream: str, known_id: str | None, present_id: str, what_now: str) -> None:
    """Raise LogChanged if the topic, whose id is `present_id`, is not the one that was registered as the stream's."""
    if known_id is not None and known_id != present_id:
        raise LogChanged(
            f"stream {stream} is another topic than the one that job {job} has read (topic id {present_id}, known is "
            f"{known_id}). The topic was deleted and recreated, so its offsets belong to other records. {what_now}"
        )


def _found(positions: Collection[LogPosition], checksums: Checksums) -> dict[int, int]:
    """Return partition -> checksum of those places that the log holds. Raises the errors among the answers."""
    found = {}
    for one in positions:
        checksum = checksums.get(one)
        if isinstance(checksum, StrandlineError):
            raise checksum
        if checksum is not None:
            found[one.partition] = checksum
    return found
