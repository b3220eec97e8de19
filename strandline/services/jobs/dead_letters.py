"""Dead letters: search by reason, step, kind, and time, counts, repair, requeue into their stream, and the outcome there.

Each call processes a limited number of dead letters, and returns the start of the next part. So no request takes long, and a
caller that was killed starts again. Records that any call requeued before are skipped (`processing/emission/requeue.py`).
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from itertools import islice
from typing import Literal

from strandline.core.described import Described
from strandline.core.errors import Conflict, LogTruncated, NotFound, RecordTooLarge
from strandline.core.record_headers import (
    HEADER_PAYLOAD_BYTES,
    HEADER_PAYLOAD_SHA256,
    HEADER_REPLAY_LETTER,
    HEADER_REPLAY_OF,
    HEADER_TAKEN_BY,
    REASON_LATE,
    with_record_metadata,
)
from strandline.ledger.replays import Replay
from strandline.ledger.roles import ReplayLedger
from strandline.ledger.states import JobRow, Offsets
from strandline.log.index import LogIndex
from strandline.log.kafka_status import KafkaStatus, StoredDeadLetter
from strandline.log.messages import LogReader, offset_of
from strandline.log.reader import OffsetRange
from strandline.log.record_key import key_finder
from strandline.processing.emission.requeue import RequeueRecord, RequeueResult, requeue
from strandline.processing.formats.format import format_of
from strandline.processing.lineage.dry_run import ACCEPTED, DryRun, DryRunOutcome
from strandline.processing.lineage.reevaluation import OF_THE_SLICE, ReplayCandidate, find_reaccepted
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.result_streams import emitter_of
from strandline.processing.pipelines.stored import inputs_of, load_pipeline
from strandline.processing.slices.watermark import greatest, rule_after
from strandline.processing.source.kept_lookups import with_present_tables
from strandline.processing.source.kept_sessions import sessions_of_partitions
from strandline.processing.source.slice_rows import row_identity
from strandline.services.jobs.payload_edits import PayloadEdit, check_edits, edited

LETTERS_A_LOOK = 20_000
"""Maximum number of dead letters that are read for one response."""
LETTERS_A_REPLAY = 2_000
"""Maximum number of dead letters that are requeued for one response."""
LETTER_BYTES_A_REPLAY = 32 << 20
"""Maximum size in bytes of the dead letters that are requeued for one response."""
_LETTERS_BACK = 2_000
"""Number of dead letters that are read together if the newest are listed first."""
_GAP_MAX = 2_000
"""Maximum distance in offsets of records that are read together."""
PREVIEW_CHARACTERS = 200
REPAIRS_SHOWN = 100
"""Maximum number of repaired records in one response."""
REQUEUED_SHOWN = 100
"""Maximum number of requeued records in one response."""
_REQUEUED_READ_MAX = 200_000
"""Maximum number of records that are read to find the requeued ones."""
_VARIABLE = re.compile(
    r"""((?<!\w)(?:got|value|is)\ (?:[a-z]+\ )?)'[^']*'   # a value
    |(?<!\w)'[^']*'                                      # a name, which stays
    |"[^"]*"|(?<![\w.])-?\d+(?:\.\d+)?                    # a value, a number
    """,
    re.VERBOSE,
)

LEFT_LATE = "late"
LEFT_FAILED_AGAIN = "failed_again"
LEFT_ACCEPTED_ELSEWHERE = "accepted_elsewhere"
LEFT_RESULT = "result"
LEFT_RESULT_STREAM = "result_stream"
LEFT_NO_BYTES = "no_bytes"
LEFT_OTHER_STREAM = "other_stream"
LEFT_COUNTED = "counted"
LEFT_NOT_EDITED = "not_edited"
LEFT_REJECTED_AGAIN = "rejected_again"


def kind_of(message: str) -> str:
    """Return the message of a dead letter without its values. Records with the same mistake have the same kind."""

    def replaced(found: re.Match[str]) -> str:
        if found[1] is not None:
            return f"{found[1]}…"
        return found[0] if found[0].startswith("'") else "…"

    return _VARIABLE.sub(replaced, message)


@dataclass(frozen=True)
class DeadLetterFilter:
    """Filter of dead letters. None matches any value."""

    reason: str | None = None
    step: str | None = None
    since_ms: int | None = None
    """Earliest time of writing, by the log's clock."""
    until_ms: int | None = None
    """Exclusive upper bound of the time of writing."""
    kind: str | None = None
    """Message without its values, see `kind_of`."""
    record: str | None = None
    """Record of the dead letter, as `STREAM/PARTITION/OFFSET`; of an exploded record, all its elements."""

    def holds(self, letter: StoredDeadLetter) -> bool:
        return (
            self.reason in (None, letter.headers.get("reason", ""))
            and self.step in (None, letter.headers.get("step", ""))
            and (self.since_ms is None or letter.log_time_ms >= self.since_ms)
            and (self.until_ms is None or letter.log_time_ms < self.until_ms)
            and (self.record is None or (_is_of_record(letter) and self.record == _record_of(letter)))
            and (self.kind is None or self.kind == kind_of(letter.headers.get("message", "")))
        )


@dataclass(frozen=True)
class DeadLetterPage:
    """A page of a job's dead letters."""

    letters: list[StoredDeadLetter]
    after: int | None
    """Number after which the next page begins. None if there are no more."""


@dataclass(frozen=True)
class NewestDeadLetters:
    """A page of a job's dead letters, the newest first."""

    letters: list[StoredDeadLetter]
    before: int | None
    """Number before which the next page ends. None if there are no more."""


@dataclass
class FilteredCounts:
    """Number of dead letters in a part of them."""

    letters: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    after: int | None = None


@dataclass(frozen=True)
class RepairOutcome(Described):
    """A record that was edited, and its outcome with the current version."""

    number: int
    """Number of the dead letter."""
    value: str
    """The edited payload as text; only the beginning."""
    outcome: str
    """`accepted`, or the reason for which it would be rejected again."""
    message: str


@dataclass(frozen=True)
class RequeuedRecord(Described):
    """A requeued record in its stream."""

    dead_letter: int
    """Number of the dead letter from which it was requeued."""
    stream: str
    partition: int
    offset: int
    state: Literal["waiting", "accepted", "rejected"]
    """`waiting`: the job has not read it yet. `rejected`: it is a dead letter again."""
    reason: str
    message: str
    rejected_as: int | None
    """Number of the new dead letter."""


@dataclass
class RequeuedRecords:
    """Outcome of requeued records."""

    waiting: int = 0
    accepted: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    """Reason -> number of requeued records that are dead letters again."""
    records: list[RequeuedRecord] = field(default_factory=list)
    """At most REQUEUED_SHOWN of them, the rejected ones first."""
    is_complete: bool = True
    """False if the records are among too many others, or if the stream no longer contains all of them."""


@dataclass
class Requeued(RequeueResult):
    """Outcome of a call that requeued records."""

    written: list[OffsetRange] = field(default_factory=list)
    """Ranges of the stream that contain the records. They can contain records of others."""


@dataclass
class ReplayReport:
    """Outcome of a replay of a part of the dead letters; in a dry run, the expected outcome."""

    matched: int = 0
    requeued: int = 0
    requeued_before: int = 0
    """Number of dead letters that were requeued before."""
    unknown: int = 0
    """Number of skipped dead letters in doubt: a killed call may have requeued them, and that part of the stream no longer
    exists."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Reason -> number of matching dead letters that can't be requeued, or are requeued only on request."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Outcome with the current version -> number of requeued records: `accepted`, or the reason of the next dead letter."""
    after: int | None = None
    before: int = 0
    """End of the dead letters at the begin of the replay. Dead letters that result from the replay are not a part of it."""
    repairs: list[RepairOutcome] = field(default_factory=list)
    """If the records were edited: at most REPAIRS_SHOWN of them, those that would be rejected again first."""
    written: list[OffsetRange] = field(default_factory=list)
    """Ranges of the streams that contain the requeued records."""


@dataclass(frozen=True)
class Repaired:
    """Outcome of a repaired dead letter."""

    letter: int
    is_already: bool
    """True if the dead letter was requeued before."""
    dry_run: DryRunOutcome
    written: list[OffsetRange]
    """Ranges of the stream that contain the requeued record."""
    letter_first: int
    """If the record is rejected again, its new dead letter has at least this number."""


@dataclass(frozen=True)
class _Original:
    """Record of a dead letter, from the log."""

    value: bytes | None
    key: bytes | None
    headers: dict[str, bytes]
    log_time_ms: int


class DeadLetters:
    """Blocking. Safe for several threads and several control services."""

    def __init__(self, ledger: ReplayLedger, log: KafkaStatus, bootstrap: str, record_bytes_max: int) -> None:
        """Args: record_bytes_max: Maximum size of a record that gateways accept."""
        self._ledger = ledger
        self._log = log
        self._bootstrap = bootstrap
        self._record_bytes_max = record_bytes_max
        self._one_at_a_time = threading.Lock()
        """A process has one reader of requeued records."""

    def letter(self, job: str, number: int) -> StoredDeadLetter:
        """Return one dead letter with all bytes. Raises NotFound, LogUnavailable."""
        self._ledger.job(job)
        found = self._log.dead_letters(job, number - 1, 1)
        if not found or found[0].offset != number:
            raise NotFound(
                f"job {job} has no dead letter {number} (any more); to list them, run strandline "
                f"dead-letters list {job}"
            )
        return found[0]

    def page(self, job: str, wanted: DeadLetterFilter, after: int, limit: int) -> DeadLetterPage:
        """Return up to `limit` matching dead letters with a number above `after`. Raises NotFound, LogUnavailable. A page can
        be shorter although there are more, because the number of dead letters that are read is limited."""
        self._ledger.job(job)
        return DeadLetterPage(*_first_matching(self._letters(job, wanted, after), wanted, limit))

    def newest(self, job: str, wanted: DeadLetterFilter, before: int | None, limit: int) -> NewestDeadLetters:
        """Return up to `limit` matching dead letters, the newest first. Raises NotFound, LogUnavailable. A page can be shorter
        although there are more, because the number of dead letters that are read is limited.

        Args: before: Only dead letters with a lower number. None for all.
        """
        self._ledger.job(job)
        return NewestDeadLetters(*_first_matching(self._letters_back(job, wanted, before), wanted, limit))

    def counts(self, job: str, wanted: DeadLetterFilter, after: int) -> FilteredCounts:
        """Count the matching dead letters with a number above `after`, in one part. Raises NotFound, LogUnavailable."""
        self._ledger.job(job)
        counts = FilteredCounts()
        for number, letter in enumerate(self._letters(job, wanted, after)):
            if number == LETTERS_A_LOOK:
                break
            counts.after = letter.offset
            if wanted.holds(letter):
                counts.letters += 1
                counts.reasons[letter.headers.get("reason", "")] += 1
                counts.steps[letter.headers.get("step", "")] += 1
        else:
            counts.after = None
        return counts

    def replay(
        self,
        job: str,
        wanted: DeadLetterFilter,
        after: int,
        before: int | None,
        *,
        force: bool,
        dry_run: bool,
        principal: str | None = None,
        edits: Sequence[PayloadEdit] | None = None,
    ) -> ReplayReport:
        """Requeue a part of the matching dead letters of the job's current incarnation, each at most once, for `principal`.

        With `edits`, each payload is edited first. Then records that failed again after a replay are requeued, and records that
        would be rejected again need `force`. Records that the edits don't change are skipped.

        Late records are requeued only if `wanted` selects them. Records that failed again after a replay, and records that
        reached other branches of the pipeline, need `force`. Records that a later version has read again and accepted are never
        requeued, and no record goes into a stream of another job's results. Raises Conflict, NotFound, Fenced, LogUnavailable,
        LedgerUnavailable.
        Args: before: Value of an earlier response. None for all current dead letters.
        """
        if edits is not None:
            check_edits(edits)
        row, pipeline = self._job(job)
        held = self._log.dead_letter_range(job)
        report = ReplayReport(before=(held.offset_next if held else 0) if before is None else before)
        letters: list[StoredDeadLetter] = []
        size, last = 0, max(after, row.letters_first - 1)
        for number, letter in enumerate(self._letters(job, wanted, last)):
            if letter.offset >= report.before:
                break
            if len(letters) == LETTERS_A_REPLAY or size > LETTER_BYTES_A_REPLAY or number == LETTERS_A_LOOK:
                report.after = letter.offset - 1
                break
            if wanted.holds(letter):
                letters.append(letter)
                size += len(letter.value)
        report.matched = len(letters)
        for stream, some in _by_stream(pipeline, letters).items():
            candidates = self._candidates(pipeline, stream, some, wanted, report, edits, force=force)
            if edits is not None and not force:
                candidates = self._accepted(stream, candidates, report)
            done = self._requeue(stream, [one for one, _ in candidates], dry_run=dry_run)
            report.requeued += len(done.now)
            report.requeued_before += len(done.before)
            report.unknown += len(done.unknown)
            report.written += done.written
            tried = [(one, outcome) for one, outcome in candidates if one.replay.identity in done.now]
            report.outcomes.update(outcome.outcome for _, outcome in tried)
            if edits is not None:
                report.repairs += [_repair_outcome(one, outcome) for one, outcome in tried]
        report.repairs = sorted(report.repairs, key=lambda one: (one.outcome == ACCEPTED, one.number))[:REPAIRS_SHOWN]
        if principal is not None and report.requeued and not dry_run:
            done_to = "requeued" if edits is None else "repaired and requeued"
            message = f"{principal} {done_to} dead letters of job {job}: {report.requeued}"
            facts: dict[str, object] = {"requeued": report.requeued, "after": after, "before": report.before}
            if edits is not None:
                facts["edits"] = [asdict(one) for one in edits]
            self._ledger.record_event("dead_letters_replayed", message, job, facts=facts, principal=principal)
        return report

    def repair(
        self, job: str, letter: str, payload: bytes, *, force: bool, dry_run: bool, principal: str | None = None
    ) -> Repaired:
        """Requeue the record of one dead letter (number or `STREAM/PARTITION/OFFSET`) with another payload, at most once.

        Raises Conflict if the current version would reject it, or if a later version has accepted the record, unless `force`.
        Raises Conflict if its stream contains another job's results. Raises NotFound, and the errors of `replay`.
        """
        row, pipeline = self._job(job)
        held = self._log.dead_letter_range(job)
        end = held.offset_next if held else 0
        found = self._find(row, letter)
        if not _is_of_record(found) or found.headers["stream"] not in pipeline.streams:
            streams = " or ".join(pipeline.streams)
            raise Conflict(
                f"dead letter {found.offset} of job {job} belongs to a result, not to a record of stream "
                f"{streams}, so it can't be requeued; recompute its window: strandline job backfill {job}"
            )
        if emitter := emitter_of(self._ledger, found.headers["stream"]):
            raise Conflict(
                f"stream {found.headers['stream']} contains only results of job {emitter}. Nothing was requeued; correct the "
                f"pipeline of job {emitter}, and recompute the results: strandline job backfill {emitter}"
            )
        if HEADER_TAKEN_BY in found.headers and not force:
            raise Conflict(
                f"dead letter {found.offset}: {found.headers[HEADER_TAKEN_BY]} of job {job} have accepted this record, so it "
                "would count twice. Nothing was requeued; correct the pipeline and recompute the other stages "
                f"(strandline job backfill {job}), or pass --force"
            )
        if len(payload) > self._record_bytes_max:
            raise Conflict(
                f"the payload has {len(payload)} bytes, but a record can have at most {self._record_bytes_max} "
                "(STRANDLINE_RECORD_BYTES_MAX); pass a smaller payload"
            )
        stream = pipeline.input_of(found.headers["stream"]).stream
        originals = self._originals(stream.stream, [found])
        original = originals.get(_log_position(found))
        headers = original.headers if original else {}
        if not force and self._counted(pipeline, stream.stream, [found], originals):
            raise Conflict(
                f"dead letter {found.offset}: a later version of job {job} has already accepted this record, so it would count "
                "twice. Nothing was requeued; to requeue it anyway, pass --force"
            )
        replay = Replay(_identity(found), job, found.offset, is_repaired=True)
        record = _with_payload(
            RequeueRecord(replay, b"", original.key if original else None, _log_position(found)[0], headers),
            payload,
            stream.key,
        )
        (outcome,) = self._current_outcomes(
            pipeline, stream.stream, [payload], [with_record_metadata(headers, record.key, None)]
        )
        if outcome.outcome != ACCEPTED and not force:
            raise Conflict(
                f"the new payload would be rejected again ({outcome.outcome}: {outcome.message}). Nothing was requeued; "
                "correct the payload, or pass --force"
            )
        done = self._requeue(stream.stream, [record], dry_run=dry_run)
        if principal is not None and done.now and not dry_run:
            message = f"{principal} put the record of dead letter {found.offset} of job {job} back with another payload"
            facts = {"number": found.offset, "record": replay.identity}
            self._ledger.record_event("dead_letter_repaired", message, job, facts=facts, principal=principal)
        return Repaired(found.offset, not done.now, outcome, done.written, end)

    def requeued(self, job: str, written: Sequence[OffsetRange], letter_first: int) -> RequeuedRecords:
        """Return what became of requeued records of the job. Raises NotFound, LogUnavailable.

        Args: written: Ranges of a `ReplayReport`. letter_first: Dead letters of these records have at least this number.
        """
        self._ledger.job(job)
        read = self._read_offsets(job)
        found = RequeuedRecords()
        requeued = self._requeued_in(job, written, found)
        letters = list(islice(self._letters(job, DeadLetterFilter(), letter_first - 1), LETTERS_A_LOOK))
        found.is_complete &= len(letters) < LETTERS_A_LOOK
        rejected = {
            (letter.headers["stream"], *_log_position(letter)): letter for letter in letters if _is_of_record(letter)
        }
        for (stream, partition, offset), number in requeued.items():
            letter = rejected.get((stream, partition, offset))
            reason = letter.headers.get("reason", "") if letter else ""
            message = letter.headers.get("message", "") if letter else ""
            is_read = offset < read.get(stream, {}).get(partition, 0)
            state: Literal["waiting", "accepted", "rejected"] = (
                "rejected" if letter else "accepted" if is_read else "waiting"
            )
            found.waiting += state == "waiting"
            found.accepted += state == "accepted"
            found.rejected.update([reason] if letter else [])
            again = letter.offset if letter else None
            found.records.append(RequeuedRecord(number, stream, partition, offset, state, reason, message, again))
        found.records = sorted(found.records, key=lambda one: one.state != "rejected")[:REQUEUED_SHOWN]
        return found

    def _read_offsets(self, job: str) -> Offsets:
        """Return stream -> partition -> offset up to which the job has committed the records."""
        last, checkpoint = self._ledger.last_slice(job), self._ledger.last_checkpoint(job)
        if last is None or checkpoint is None:
            return {}
        return last.offsets if last.number == checkpoint.slice else last.offsets_first

    def _requeued_in(
        self, job: str, written: Sequence[OffsetRange], found: RequeuedRecords
    ) -> dict[tuple[str, int, int], int]:
        """Return (stream, partition, offset) -> number of the dead letter of each record in the ranges that was requeued for the
        job. Sets `found.is_complete`."""
        numbers: dict[tuple[str, int, int], int] = {}
        prefix = f"{job}/".encode()
        left = _REQUEUED_READ_MAX
        with closing(LogReader(self._bootstrap)) as reader:
            for place in written:
                end = min(place.offset_next, place.offset_first + left)
                found.is_complete &= end == place.offset_next
                left -= end - place.offset_first
                try:
                    for messages in reader.read(OffsetRange(place.stream, place.partition, place.offset_first, end)):
                        for message in messages:
                            of = dict(message.headers() or ()).get(HEADER_REPLAY_LETTER)
                            if of is not None and _bytes(of).startswith(prefix):
                                number = int(_bytes(of).removeprefix(prefix))
                                numbers[place.stream, place.partition, offset_of(message)] = number
                except LogTruncated:
                    found.is_complete = False
        return numbers

    def origin_of(self, letter: StoredDeadLetter) -> str | None:
        """Return the origin of a requeued record of a dead letter, `STREAM/PARTITION/OFFSET`. Raises LogUnavailable. None for
        other records, and if the log no longer contains it."""
        if not _is_of_record(letter):
            return None
        found = self._originals(letter.headers["stream"], [letter]).get(_log_position(letter))
        return _text(found.headers.get(HEADER_REPLAY_OF)) if found else None

    def _job(self, job: str) -> tuple[JobRow, CheckedPipeline]:
        row = self._ledger.job(job)
        # A requeued record will be in a future slice, so the stream's current document applies.
        return row, load_pipeline(self._ledger, job, row.version, self._present_versions(job, row.version))

    def _present_versions(self, job: str, version: int) -> dict[str, int]:
        return {stream: self._ledger.stream_version(stream) for stream in inputs_of(self._ledger, job, version)}

    def _letters(self, job: str, wanted: DeadLetterFilter, after: int) -> Iterator[StoredDeadLetter]:
        """Yield the job's dead letters above a number from `wanted.since_ms`, the oldest first. Close it, or read it to its
        end."""
        held = self._log.dead_letter_range(job, wanted.since_ms or 0)
        if held is None:
            return
        with closing(self._log.read_dead_letters(job, max(after + 1, held.offset_first), held.offset_next)) as lists:
            for letters in lists:
                yield from letters

    def _letters_back(self, job: str, wanted: DeadLetterFilter, before: int | None) -> Iterator[StoredDeadLetter]:
        """Yield the job's dead letters below a number down to `wanted.since_ms`, the newest first."""
        held = self._log.dead_letter_range(job, wanted.since_ms or 0)
        if held is None:
            return
        end = held.offset_next if before is None else min(before, held.offset_next)
        while end > held.offset_first:
            first = max(held.offset_first, end - _LETTERS_BACK)
            with closing(self._log.read_dead_letters(job, first, end)) as lists:
                part = [letter for letters in lists for letter in letters]
            yield from reversed(part)
            end = first

    def _find(self, row: JobRow, letter: str) -> StoredDeadLetter:
        if letter.isdecimal():
            if int(letter) < row.letters_first:
                raise NotFound(
                    f"dead letter {letter} is from before the reset of job {row.name}, which may have read the record again. "
                    "Nothing was requeued; if it was rejected again, repair the new dead letter: "
                    f"strandline dead-letters list {row.name} --after {row.letters_first - 1}"
                )
            found = self._log.dead_letters(row.name, int(letter) - 1, 1)
            if found and found[0].offset == int(letter):
                return found[0]
        else:
            for one in self._letters(row.name, DeadLetterFilter(), row.letters_first - 1):
                if _identity(one) == letter:
                    return one
        raise NotFound(
            f"job {row.name} has no dead letter {letter} (any more); to list them, run strandline dead-letters "
            f"list {row.name}"
        )

    def _candidates(
        self,
        pipeline: CheckedPipeline,
        stream: str,
        letters: Sequence[StoredDeadLetter],
        wanted: DeadLetterFilter,
        report: ReplayReport,
        edits: Sequence[PayloadEdit] | None,
        *,
        force: bool,
    ) -> list[tuple[RequeueRecord, DryRunOutcome]]:
        """Return the records of the dead letters that can be requeued, each once, and what the current version would do
        with each. The report counts the others.
        """
        key = pipeline.input_of(stream).stream.key
        records = dict[str, RequeueRecord]()
        originals = self._originals(stream, [one for one in letters if _is_of_record(one)])
        counted = self._counted(pipeline, stream, letters, originals)
        holds_results = emitter_of(self._ledger, stream) is not None
        for letter in letters:
            why, record = _classify(
                letter, stream, pipeline.job, originals, wanted, is_repaired=edits is not None, force=force
            )
            if holds_results and why not in (LEFT_RESULT, LEFT_OTHER_STREAM):
                why, record = LEFT_RESULT_STREAM, None
            elif record is not None and letter.offset in counted:
                why, record = LEFT_COUNTED, None
            if record is not None and edits is not None:
                try:
                    record = _with_payload(record, edited(record.value or b"", edits), key)
                except ValueError:
                    why, record = LEFT_NOT_EDITED, None
            if record is None:
                report.skipped[why] += 1
            else:
                records.setdefault(record.replay.identity, record)
        found = list(records.values())
        outcomes = self._current_outcomes(
            pipeline,
            stream,
            [one.value for one in found],
            [with_record_metadata(one.headers, one.key, None) for one in found],
        )
        return list(zip(found, outcomes, strict=True))

    def _accepted(
        self, stream: str, candidates: list[tuple[RequeueRecord, DryRunOutcome]], report: ReplayReport
    ) -> list[tuple[RequeueRecord, DryRunOutcome]]:
        """Return the repaired records that the current version accepts, and those that may have been requeued before. The report
        contains the others."""
        known = self._ledger.known_replays(stream, [one.replay.identity for one, _ in candidates])
        chosen = []
        for one, outcome in candidates:
            if outcome.outcome == ACCEPTED or one.replay.identity in known:
                chosen.append((one, outcome))
            else:
                report.skipped[LEFT_REJECTED_AGAIN] += 1
                report.outcomes[outcome.outcome] += 1
                report.repairs.append(_repair_outcome(one, outcome))
        return chosen

    def _counted(
        self,
        pipeline: CheckedPipeline,
        stream: str,
        letters: Sequence[StoredDeadLetter],
        originals: Mapping[tuple[int, int], _Original],
    ) -> set[int]:
        """Return the numbers of the dead letters whose records a later version has accepted, or will accept when it begins."""
        candidates = [
            one
            for one in letters
            if _is_of_record(one) and one.headers["stream"] == stream and one.headers.get("reason") not in OF_THE_SLICE
        ]
        if not candidates:
            return set()
        places = [_replay_candidate(one, originals.get(_log_position(one))) for one in candidates]
        versions = {one: self._ledger.stream_version(one) for one in pipeline.streams}
        found = find_reaccepted(self._ledger, pipeline.job, pipeline, stream, versions, places)
        return {candidates[at].offset for at in found}

    def _current_outcomes(
        self,
        pipeline: CheckedPipeline,
        stream: str,
        values: Sequence[bytes | None],
        headers: Sequence[Mapping[str, bytes]],
    ) -> list[DryRunOutcome]:
        if not values:
            return []
        last, checkpoint = self._ledger.last_slice(pipeline.job), self._ledger.last_checkpoint(pipeline.job)
        watermark_ms = greatest(last.watermark_ms if last else None, checkpoint.closes_ms if checkpoint else None)
        packed = checkpoint.sessions.get(stream, {}) if checkpoint else {}
        form = format_of(pipeline.input_of(stream).stream.format)
        sessions = sessions_of_partitions(self._ledger, form, packed.values()) if packed else None
        enriched = with_present_tables(self._ledger, pipeline)
        late_below_ms = rule_after(pipeline.event_time_rule, last, checkpoint).late_below_ms(watermark_ms)
        return DryRun(enriched, late_below_ms, sessions=sessions, stream=stream).of_records(
            values, headers, time.time_ns() // 1_000_000
        )

    def _requeue(self, stream: str, records: list[RequeueRecord], *, dry_run: bool) -> Requeued:
        if dry_run or not records:
            known = self._ledger.known_replays(stream, [one.replay.identity for one in records])
            # Records in doubt aren't distinguished: only a call that requeues can fence others and check them.
            return Requeued({one.replay.identity for one in records} - known.keys(), set(known))
        with self._one_at_a_time, LogIndex(self._bootstrap) as index:
            starts = index.ends_with_open(stream)
            try:
                done = requeue(self._ledger, index, self._bootstrap, stream, records, self._record_bytes_max)
            except RecordTooLarge as error:
                raise Conflict(f"nothing was requeued: {error}") from error
            ends = index.ends_with_open(stream) if done.now else starts
        ranges = [OffsetRange(stream, partition, starts.get(partition, 0), end) for partition, end in ends.items()]
        written = [one for one in ranges if one.offset_first < one.offset_next]
        return Requeued(done.now, done.before, done.unknown, written)

    def _originals(self, stream: str, letters: Sequence[StoredDeadLetter]) -> dict[tuple[int, int], _Original]:
        """Return (partition, offset) -> record of the dead letter, as far as the log still contains it."""
        found: dict[tuple[int, int], _Original] = {}
        wanted: dict[int, list[int]] = {}
        for letter in letters:
            if letter.headers["stream"] == stream:
                partition, offset = _log_position(letter)
                wanted.setdefault(partition, []).append(offset)
        if not wanted:
            return found
        with closing(LogReader(self._bootstrap)) as reader:
            starts = LogIndex(self._bootstrap).starts(stream)
            for partition, offsets in wanted.items():
                for first, last in _runs(sorted(one for one in set(offsets) if one >= starts.get(partition, 0))):
                    _read_originals(reader, OffsetRange(stream, partition, first, last + 1), set(offsets), found)
        return found


def _first_matching(
    letters: Iterator[StoredDeadLetter], wanted: DeadLetterFilter, limit: int
) -> tuple[list[StoredDeadLetter], int | None]:
    """Return up to `limit` matching dead letters, and the number of the last one that was read. None instead of the number if
    all were read. At most LETTERS_A_LOOK are read."""
    found: list[StoredDeadLetter] = []
    last: int | None = None
    for number, letter in enumerate(letters):
        if len(found) == limit or number == LETTERS_A_LOOK:
            return found, last
        last = letter.offset
        if wanted.holds(letter):
            found.append(letter)
    return found, None


def _read_originals(
    reader: LogReader, offsets: OffsetRange, wanted: set[int], found: dict[tuple[int, int], _Original]
) -> None:
    try:
        for messages in reader.read(offsets):
            for message in messages:
                if offset_of(message) in wanted:
                    headers = {str(name): _bytes(value) for name, value in list(message.headers() or ())}
                    value, key = message.value(), message.key()
                    found[offsets.partition, offset_of(message)] = _Original(
                        None if value is None else _bytes(value),
                        None if key is None else _bytes(key),
                        headers,
                        message.timestamp()[1],
                    )
    except LogTruncated:
        return  # retention has just deleted them


def _by_stream(pipeline: CheckedPipeline, letters: Sequence[StoredDeadLetter]) -> dict[str, list[StoredDeadLetter]]:
    """Group the dead letters by the stream of their records. Those of other streams go to the first stream."""
    found: dict[str, list[StoredDeadLetter]] = {stream: [] for stream in pipeline.streams}
    for letter in letters:
        found[stream if (stream := letter.headers.get("stream", "")) in found else pipeline.inputs[0].name].append(
            letter
        )
    return found


def _replay_candidate(letter: StoredDeadLetter, original: _Original | None) -> ReplayCandidate:
    """Return the record of a dead letter with the bytes of the dead letter: for an exploded record, those of one element."""
    has_no_bytes = HEADER_PAYLOAD_BYTES in letter.headers and original is not None
    return ReplayCandidate(
        *_log_position(letter),
        original.value if has_no_bytes and original else letter.value,
        with_record_metadata(original.headers, original.key, None) if original else {},
        original.log_time_ms if original else letter.log_time_ms,
    )


def _classify(
    letter: StoredDeadLetter,
    stream: str,
    job: str,
    originals: Mapping[tuple[int, int], _Original],
    wanted: DeadLetterFilter,
    *,
    is_repaired: bool = False,
    force: bool,
) -> tuple[str, RequeueRecord | None]:
    """Return the record that requeues the dead letter, or the reason why there is none."""
    if not _is_of_record(letter):
        return LEFT_RESULT, None
    if letter.headers["stream"] != stream:
        return LEFT_OTHER_STREAM, None
    if letter.headers.get("reason") == REASON_LATE and wanted.reason != REASON_LATE:
        return LEFT_LATE, None
    original = originals.get(_log_position(letter))
    if original is not None and HEADER_REPLAY_OF in original.headers and not force and not is_repaired:
        return LEFT_FAILED_AGAIN, None
    if HEADER_TAKEN_BY in letter.headers and not force:
        return LEFT_ACCEPTED_ELSEWHERE, None
    value: bytes | None = letter.value
    if HEADER_PAYLOAD_BYTES in letter.headers:  # the dead letter had no space for them
        value = original.value if original else None
        if value is None or sha256(value).hexdigest() != letter.headers.get(HEADER_PAYLOAD_SHA256):
            return LEFT_NO_BYTES, None
    replay = Replay(_identity(letter), job, letter.offset, is_repaired)
    key, headers = (original.key, original.headers) if original else (None, {})
    return "", RequeueRecord(replay, value, key, _log_position(letter)[0], headers)


def _with_payload(record: RequeueRecord, payload: bytes, key_field: str | None) -> RequeueRecord:
    """Return the record with another payload. If this has a key, the key chooses the partition.

    Args: key_field: Field of the stream's key. None if the stream has none.
    """
    key = key_finder(key_field)(payload) if key_field else None
    partition = None if key is not None else record.partition
    return replace(record, value=payload, key=record.key if key is None else key, partition=partition)


def _repair_outcome(record: RequeueRecord, outcome: DryRunOutcome) -> RepairOutcome:
    return RepairOutcome(record.replay.letter, preview_of(record.value or b""), outcome.outcome, outcome.message)


def preview_of(value: bytes) -> str:
    """Return the beginning of a payload as text. Bytes that aren't UTF-8 are shown as U+FFFD."""
    return value[: 4 * PREVIEW_CHARACTERS].decode("utf-8", "replace")[:PREVIEW_CHARACTERS]


def _runs(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of offsets that are read together."""
    first = last = -1
    for offset in offsets:
        if first >= 0 and offset - last > _GAP_MAX:
            yield first, last
            first = offset
        first = offset if first < 0 else first
        last = offset
    if first >= 0:
        yield first, last


def _is_of_record(letter: StoredDeadLetter) -> bool:
    return (
        all(letter.headers.get(name, "").isdecimal() for name in ("partition", "offset")) and "stream" in letter.headers
    )


def _log_position(letter: StoredDeadLetter) -> tuple[int, int]:
    return int(letter.headers["partition"]), int(letter.headers["offset"])


def _record_of(letter: StoredDeadLetter) -> str:
    partition, offset = _log_position(letter)
    return f"{letter.headers['stream']}/{partition}/{offset}"


def _identity(letter: StoredDeadLetter) -> str:
    """Return the key of the dead letter in its stream."""
    if not _is_of_record(letter):
        return f"{letter.headers.get('index', '')}/{letter.headers.get('document', '')}"
    element = letter.headers.get("element", "")
    return row_identity(letter.headers["stream"], *_log_position(letter), int(element) if element.isdecimal() else None)


def _bytes(value: str | bytes | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
