"""Dead letters: found by reason, step and time, counted, repaired and put back into their stream.

Everything is done for a piece of the letters at a time, and each piece says where the next one begins: so no request takes
long, and a caller that is killed begins anew. What was put back before is left out, whoever did it
(`processing/emission/put_back.py`).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256

from strandline.core.errors import Conflict, LogTruncated, NotFound, RecordTooLarge
from strandline.core.record_headers import (
    HEADER_PAYLOAD_BYTES,
    HEADER_PAYLOAD_SHA256,
    HEADER_REPLAY_OF,
    HEADER_TAKEN_BY,
    REASON_LATE,
    with_record_metadata,
)
from strandline.ledger.replays import Replay
from strandline.ledger.roles import ReplayLedger
from strandline.ledger.states import JobRow
from strandline.log.index import LogIndex
from strandline.log.kafka_status import KafkaStatus, StoredDeadLetter
from strandline.log.messages import LogReader, offset_of
from strandline.log.reader import OffsetRange
from strandline.log.record_key import key_finder
from strandline.processing.emission.put_back import PutBack, PutBackRecord, put_back
from strandline.processing.formats.format import format_of
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.result_streams import emitter_of
from strandline.processing.pipelines.stored import inputs_of, load_pipeline
from strandline.processing.slices.watermark import greatest, rule_after
from strandline.processing.source.judged_anew import OF_THE_SLICE, RejectedPlace, taken_anew
from strandline.processing.source.kept_lookups import with_present_tables
from strandline.processing.source.kept_sessions import sessions_of_partitions
from strandline.processing.source.prospects import ACCEPTED, Prospect, Prospects
from strandline.processing.source.slice_rows import row_identity

LETTERS_A_LOOK = 20_000
"""So many letters are looked at for one answer."""
LETTERS_A_REPLAY = 2_000
"""So many are put back for one answer."""
LETTER_BYTES_A_REPLAY = 32 << 20
"""Or as many as have so many bytes."""
_GAP_MAX = 2_000
"""Records that are so many offsets apart are read together."""

LEFT_LATE = "late"
LEFT_FAILED_AGAIN = "failed_again"
LEFT_TAKEN = "taken"
LEFT_RESULT = "result"
LEFT_RESULT_STREAM = "result_stream"
LEFT_NO_BYTES = "no_bytes"
LEFT_OTHER_STREAM = "other_stream"
LEFT_COUNTED = "counted"


@dataclass(frozen=True)
class LetterFilter:
    """Which dead letters are wanted. None: any."""

    reason: str | None = None
    step: str | None = None
    since_ms: int | None = None
    """Written at this time or later, by the log's clock."""
    until_ms: int | None = None
    """Written before it."""

    def holds(self, letter: StoredDeadLetter) -> bool:
        return (
            self.reason in (None, letter.headers.get("reason", ""))
            and self.step in (None, letter.headers.get("step", ""))
            and (self.since_ms is None or letter.log_time_ms >= self.since_ms)
            and (self.until_ms is None or letter.log_time_ms < self.until_ms)
        )


@dataclass(frozen=True)
class LetterPage:
    """Some of a job's dead letters."""

    letters: list[StoredDeadLetter]
    after: int | None
    """Look on after this number; None: there are no more."""


@dataclass
class LetterCounts:
    """How many dead letters there are, in a piece of them."""

    letters: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    after: int | None = None


@dataclass
class ReplayReport:
    """What became of a piece of the dead letters, or, in a dry run, would become."""

    matched: int = 0
    put_back: int = 0
    already: int = 0
    """Put back before."""
    unknown: int = 0
    """In doubt, and left out: a call that was killed may have put them back, in a part of the stream that is gone."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Why -> how many of those that match can't be put back, or are not without being asked for."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """What the present version makes of those that are put back: `accepted`, or the reason of the next dead letter."""
    after: int | None = None
    before: int = 0
    """Where the dead letters ended when the replay began: those that it leads to are not a part of it."""


@dataclass(frozen=True)
class Repaired:
    """What became of a repaired dead letter."""

    letter: int
    is_already: bool
    """It was put back before."""
    prospect: Prospect


@dataclass(frozen=True)
class _Original:
    """The record that a letter is of, as the log holds it."""

    value: bytes | None
    key: bytes | None
    headers: dict[str, bytes]
    log_time_ms: int


class DeadLetters:
    """Blocking; safe for several threads and several control services."""

    def __init__(self, ledger: ReplayLedger, log: KafkaStatus, bootstrap: str, record_bytes_max: int) -> None:
        """`record_bytes_max`: the largest record that gateways take."""
        self._ledger = ledger
        self._log = log
        self._bootstrap = bootstrap
        self._record_bytes_max = record_bytes_max
        self._one_at_a_time = threading.Lock()
        """A process has one reader of what was put back."""

    def letter(self, job: str, number: int) -> StoredDeadLetter:
        """Return one dead letter, whole. Raises NotFound, LogUnavailable."""
        self._ledger.job(job)
        found = self._log.dead_letters(job, number - 1, 1)
        if not found or found[0].offset != number:
            raise NotFound(f"job {job} has no dead letter {number} (any more); list them to see which there are")
        return found[0]

    def page(self, job: str, wanted: LetterFilter, after: int, limit: int) -> LetterPage:
        """Up to `limit` dead letters that are wanted, with a number above `after`. There may be more even if it is fewer: so many
        are looked at, at most. Raises NotFound, LogUnavailable."""
        self._ledger.job(job)
        found: list[StoredDeadLetter] = []
        last = after
        for number, letter in enumerate(self._letters(job, wanted, after)):
            if len(found) == limit or number == LETTERS_A_LOOK:
                return LetterPage(found, last)
            last = letter.offset
            if wanted.holds(letter):
                found.append(letter)
        return LetterPage(found, None)

    def counts(self, job: str, wanted: LetterFilter, after: int) -> LetterCounts:
        """How many dead letters with a number above `after` are wanted, of a piece. Raises NotFound, LogUnavailable."""
        self._ledger.job(job)
        counts = LetterCounts()
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
        wanted: LetterFilter,
        after: int,
        before: int | None,
        *,
        again: bool,
        dry_run: bool,
        principal: str | None = None,
    ) -> ReplayReport:
        """Put a piece of the wanted dead letters of the job's present life back into its stream, each at most once, for
        `principal`. `before`: of an earlier answer; None: all that are there now.

        Late ones only where `wanted` asks for them; records that were put back and failed again, and those that came to other
        branches of the pipeline, only with `again`; never those that a later version has read again, and taken, nor into a stream
        of another job's results. Raises Conflict, NotFound, Fenced, LogUnavailable, LedgerUnavailable.
        """
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
            records, judged = self._candidates(pipeline, stream, some, wanted, report, again=again)
            done = self._put_back(stream, records, dry_run=dry_run)
            report.put_back += len(done.now)
            report.already += len(done.before)
            report.unknown += len(done.unknown)
            report.outcomes.update(
                prospect.outcome
                for one, prospect in zip(records, judged, strict=True)
                if one.replay.identity in done.now
            )
        if principal is not None and report.put_back and not dry_run:
            message = f"{principal} put dead letters of job {job} back into their streams: {report.put_back}"
            facts = {"put_back": report.put_back, "after": after, "before": report.before}
            self._ledger.record_event("dead_letters_replayed", message, job, facts=facts, principal=principal)
        return report

    def repair(
        self, job: str, letter: str, payload: bytes, *, anyway: bool, dry_run: bool, principal: str | None = None
    ) -> Repaired:
        """Put the record of one dead letter (its number, or `STREAM/PARTITION/OFFSET`) back with another payload, at most once,
        for `principal`.

        Raises Conflict when the present version would reject it, or a later version has taken the record itself, unless `anyway`;
        Conflict when its stream holds another job's results; NotFound, and as `replay` does.
        """
        row, pipeline = self._job(job)
        found = self._find(row, letter)
        if not _is_of_record(found) or found.headers["stream"] not in pipeline.streams:
            streams = " or ".join(pipeline.streams)
            raise Conflict(
                f"dead letter {found.offset} of job {job} is of a result, not of a record of stream {streams}: it "
                f"can't be put back; compute its window again: strandline job backfill {job}"
            )
        if emitter := emitter_of(self._ledger, found.headers["stream"]):
            raise Conflict(
                f"stream {found.headers['stream']} holds the results of job {emitter}, and nothing else may get into it; mend "
                f"what job {emitter} computes, and compute it again: strandline job backfill {emitter}"
            )
        if HEADER_TAKEN_BY in found.headers and not anyway:
            raise Conflict(
                f"the record of dead letter {found.offset} came to {found.headers[HEADER_TAKEN_BY]} of job {job} all the same, "
                f"where it would count twice; nothing was put back. Mend the pipeline and compute the other stages anew "
                f"(strandline job backfill {job}), or put it back with --anyway"
            )
        if len(payload) > self._record_bytes_max:
            raise Conflict(
                f"the payload has {len(payload)} bytes, and a record may have {self._record_bytes_max} "
                "(STRANDLINE_RECORD_BYTES_MAX)"
            )
        stream = pipeline.input_of(found.headers["stream"]).stream
        originals = self._originals(stream.stream, [found])
        original = originals.get(_place(found))
        headers = original.headers if original else {}
        if not anyway and self._counted(pipeline, stream.stream, [found], originals):
            raise Conflict(
                f"a later version of job {job} has read the record of dead letter {found.offset} again, and taken it as it was "
                "sent: put back, it would count twice; nothing was put back. Put it back all the same with --anyway"
            )
        key = key_finder(stream.key)(payload) if stream.key else None
        partition = None if key is not None else int(found.headers["partition"])
        key = key if key is not None or original is None else original.key
        (prospect,) = self._prospects(pipeline, stream.stream, [payload], [with_record_metadata(headers, key, None)])
        if prospect.outcome != ACCEPTED and not anyway:
            raise Conflict(
                f"the repaired payload would be rejected again ({prospect.outcome}: {prospect.message}); nothing was put back. "
                "Mend it, or put it back all the same with --anyway"
            )
        replay = Replay(_identity(found), job, found.offset, is_repaired=True)
        record = PutBackRecord(replay, payload, key, partition, headers)
        done = self._put_back(stream.stream, [record], dry_run=dry_run)
        if principal is not None and done.now and not dry_run:
            message = f"{principal} put the record of dead letter {found.offset} of job {job} back with another payload"
            facts = {"number": found.offset, "record": replay.identity}
            self._ledger.record_event("dead_letter_repaired", message, job, facts=facts, principal=principal)
        return Repaired(found.offset, not done.now, prospect)

    def origin_of(self, letter: StoredDeadLetter) -> str | None:
        """Of the letter of a record that was put back: what that was put back for, `STREAM/PARTITION/OFFSET`. None of others, and
        where the log no longer says it. Raises LogUnavailable."""
        if not _is_of_record(letter):
            return None
        found = self._originals(letter.headers["stream"], [letter]).get(_place(letter))
        return _text(found.headers.get(HEADER_REPLAY_OF)) if found else None

    def _job(self, job: str) -> tuple[JobRow, CheckedPipeline]:
        row = self._ledger.job(job)
        # A record that is put back is in a slice to come, so the stream's present document counts.
        return row, load_pipeline(self._ledger, job, row.version, self._present_versions(job, row.version))

    def _present_versions(self, job: str, version: int) -> dict[str, int]:
        return {stream: self._ledger.stream_version(stream) for stream in inputs_of(self._ledger, job, version)}

    def _letters(self, job: str, wanted: LetterFilter, after: int) -> Iterator[StoredDeadLetter]:
        """The job's dead letters above a number, the oldest first, from `wanted.since_ms` on. Close it, or read it to its end."""
        held = self._log.dead_letter_range(job, wanted.since_ms or 0)
        if held is None:
            return
        with closing(self._log.read_dead_letters(job, max(after + 1, held.offset_first), held.offset_next)) as lists:
            for letters in lists:
                yield from letters

    def _find(self, row: JobRow, letter: str) -> StoredDeadLetter:
        if letter.isdecimal():
            if int(letter) < row.letters_first:
                raise NotFound(
                    f"dead letter {letter} is of an earlier life of job {row.name}, and the present one may have read the record "
                    "again; nothing was put back. If it was rejected again, repair the new letter: "
                    f"strandline dead-letters list {row.name} --after {row.letters_first - 1}"
                )
            found = self._log.dead_letters(row.name, int(letter) - 1, 1)
            if found and found[0].offset == int(letter):
                return found[0]
        else:
            for one in self._letters(row.name, LetterFilter(), row.letters_first - 1):
                if _identity(one) == letter:
                    return one
        raise NotFound(
            f"job {row.name} has no dead letter {letter} (any more); list them with: strandline dead-letters list {row.name}"
        )

    def _candidates(
        self,
        pipeline: CheckedPipeline,
        stream: str,
        letters: Sequence[StoredDeadLetter],
        wanted: LetterFilter,
        report: ReplayReport,
        *,
        again: bool,
    ) -> tuple[list[PutBackRecord], list[Prospect]]:
        """The records of the letters that can be put back, each once, with their prospects; the report says why others can't."""
        records = dict[str, PutBackRecord]()
        originals = self._originals(stream, [one for one in letters if _is_of_record(one)])
        counted = self._counted(pipeline, stream, letters, originals)
        holds_results = emitter_of(self._ledger, stream) is not None
        for letter in letters:
            why, record = _judge(letter, stream, pipeline.job, originals, wanted, again=again)
            if holds_results and why not in (LEFT_RESULT, LEFT_OTHER_STREAM):
                why, record = LEFT_RESULT_STREAM, None
            elif record is not None and letter.offset in counted:
                why, record = LEFT_COUNTED, None
            if record is None:
                report.left_out[why] += 1
            else:
                records.setdefault(record.replay.identity, record)
        found = list(records.values())
        prospects = self._prospects(
            pipeline,
            stream,
            [one.value for one in found],
            [with_record_metadata(one.headers, one.key, None) for one in found],
        )
        return found, prospects

    def _counted(
        self,
        pipeline: CheckedPipeline,
        stream: str,
        letters: Sequence[StoredDeadLetter],
        originals: Mapping[tuple[int, int], _Original],
    ) -> set[int]:
        """The numbers of the letters whose records a later version has read again, and taken, or will when it begins."""
        judged = [
            one
            for one in letters
            if _is_of_record(one) and one.headers["stream"] == stream and one.headers.get("reason") not in OF_THE_SLICE
        ]
        if not judged:
            return set()
        places = [_rejected_place(one, originals.get(_place(one))) for one in judged]
        versions = {one: self._ledger.stream_version(one) for one in pipeline.streams}
        found = taken_anew(self._ledger, pipeline.job, pipeline, stream, versions, places)
        return {judged[at].offset for at in found}

    def _prospects(
        self,
        pipeline: CheckedPipeline,
        stream: str,
        values: Sequence[bytes | None],
        headers: Sequence[Mapping[str, bytes]],
    ) -> list[Prospect]:
        if not values:
            return []
        last, checkpoint = self._ledger.last_slice(pipeline.job), self._ledger.last_checkpoint(pipeline.job)
        watermark_ms = greatest(last.watermark_ms if last else None, checkpoint.closes_ms if checkpoint else None)
        packed = checkpoint.sessions.get(stream, {}) if checkpoint else {}
        form = format_of(pipeline.input_of(stream).stream.format)
        sessions = sessions_of_partitions(self._ledger, form, packed.values()) if packed else None
        enriched = with_present_tables(self._ledger, pipeline)
        late_below_ms = rule_after(pipeline.event_time_rule, last, checkpoint).late_below_ms(watermark_ms)
        return Prospects(enriched, late_below_ms, sessions=sessions, stream=stream).of_records(
            values, headers, time.time_ns() // 1_000_000
        )

    def _put_back(self, stream: str, records: list[PutBackRecord], *, dry_run: bool) -> PutBack:
        if dry_run or not records:
            known = self._ledger.known_replays(stream, [one.replay.identity for one in records])
            # What is in doubt is not told apart: only the one that puts back may fence others, and look.
            return PutBack({one.replay.identity for one in records} - known.keys(), set(known))
        with self._one_at_a_time, LogIndex(self._bootstrap) as index:
            try:
                return put_back(self._ledger, index, self._bootstrap, stream, records, self._record_bytes_max)
            except RecordTooLarge as error:
                raise Conflict(f"nothing was put back: {error}") from error

    def _originals(self, stream: str, letters: Sequence[StoredDeadLetter]) -> dict[tuple[int, int], _Original]:
        """(partition, offset) -> the record that the letter is of, as far as the log still holds it."""
        found: dict[tuple[int, int], _Original] = {}
        wanted: dict[int, list[int]] = {}
        for letter in letters:
            if letter.headers["stream"] == stream:
                partition, offset = _place(letter)
                wanted.setdefault(partition, []).append(offset)
        if not wanted:
            return found
        with closing(LogReader(self._bootstrap)) as reader:
            starts = LogIndex(self._bootstrap).starts(stream)
            for partition, offsets in wanted.items():
                for first, last in _runs(sorted(one for one in set(offsets) if one >= starts.get(partition, 0))):
                    _read_originals(reader, OffsetRange(stream, partition, first, last + 1), set(offsets), found)
        return found


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
        return  # retention has just removed them


def _by_stream(pipeline: CheckedPipeline, letters: Sequence[StoredDeadLetter]) -> dict[str, list[StoredDeadLetter]]:
    """The letters by the stream that their records are of; what is of no stream that the job reads, with the first."""
    found: dict[str, list[StoredDeadLetter]] = {stream: [] for stream in pipeline.streams}
    for letter in letters:
        found[stream if (stream := letter.headers.get("stream", "")) in found else pipeline.inputs[0].name].append(
            letter
        )
    return found


def _rejected_place(letter: StoredDeadLetter, original: _Original | None) -> RejectedPlace:
    """The record of a letter, with the bytes that the letter is of: of an exploded record, the one element."""
    has_no_bytes = HEADER_PAYLOAD_BYTES in letter.headers and original is not None
    return RejectedPlace(
        *_place(letter),
        original.value if has_no_bytes and original else letter.value,
        with_record_metadata(original.headers, original.key, None) if original else {},
        original.log_time_ms if original else letter.log_time_ms,
    )


def _judge(
    letter: StoredDeadLetter,
    stream: str,
    job: str,
    originals: Mapping[tuple[int, int], _Original],
    wanted: LetterFilter,
    *,
    again: bool,
) -> tuple[str, PutBackRecord | None]:
    """The record that puts the letter back; or why there is none."""
    if not _is_of_record(letter):
        return LEFT_RESULT, None
    if letter.headers["stream"] != stream:
        return LEFT_OTHER_STREAM, None
    if letter.headers.get("reason") == REASON_LATE and wanted.reason != REASON_LATE:
        return LEFT_LATE, None
    original = originals.get(_place(letter))
    if original is not None and HEADER_REPLAY_OF in original.headers and not again:
        return LEFT_FAILED_AGAIN, None
    if HEADER_TAKEN_BY in letter.headers and not again:
        return LEFT_TAKEN, None
    value: bytes | None = letter.value
    if HEADER_PAYLOAD_BYTES in letter.headers:  # the letter had no room for them
        value = original.value if original else None
        if value is None or sha256(value).hexdigest() != letter.headers.get(HEADER_PAYLOAD_SHA256):
            return LEFT_NO_BYTES, None
    replay = Replay(_identity(letter), job, letter.offset, is_repaired=False)
    key, headers = (original.key, original.headers) if original else (None, {})
    return "", PutBackRecord(replay, value, key, _place(letter)[0], headers)


def _runs(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first, last) of offsets that are read together."""
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


def _place(letter: StoredDeadLetter) -> tuple[int, int]:
    return int(letter.headers["partition"]), int(letter.headers["offset"])


def _identity(letter: StoredDeadLetter) -> str:
    """The letter's key in its stream."""
    if not _is_of_record(letter):
        return f"{letter.headers.get('index', '')}/{letter.headers.get('document', '')}"
    element = letter.headers.get("element", "")
    return row_identity(letter.headers["stream"], *_place(letter), int(element) if element.isdecimal() else None)


def _bytes(value: str | bytes | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
