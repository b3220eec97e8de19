"""The source task: decode a part of the log, validate it, run the record steps, and cut the rows into blobs by bucket."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.errors import BadRecord
from strandline.core.record_headers import REASON_LATE
from strandline.processing.formats.decoder import Decoder
from strandline.processing.formats.format import SessionState
from strandline.processing.operators.blobs import batch_of, pack
from strandline.processing.operators.cascade import Chunk
from strandline.processing.operators.dedupe.candidates import Candidates
from strandline.processing.operators.dedupe.duplicates import record_hashes
from strandline.processing.operators.record_chain import RecordsAtStage, RecordsAtWindow, SteppedRecords
from strandline.processing.operators.record_rows import pack_record_rows
from strandline.processing.slices.sender_faults import TOLERANCE_MS, PartitionFacts, Times, keys_ahead
from strandline.processing.source.decoding import DecodedChunk, RecordReader, SessionsRead, decode_pieces
from strandline.processing.source.slice_rows import (
    FACTS,
    RECORD_ROWS,
    REJECTED,
    REJECTED_SCHEMA,
    WORK,
    SliceRowBlob,
    SourceFacts,
    add_facts,
    batches_of,
    encode,
    kind_of_records,
    parts_by_size,
    to_every_bucket,
)
from strandline.processing.source.source_config import Piece, TaskConfig
from strandline.results.writer import ELEMENT, LATE, OFFSET

_REJECTED_BYTES = 4 << 20
"""Approximate maximum size in bytes of a blob of rejected records. A blob with one record may be larger."""


@dataclass(frozen=True)
class Reject:
    """A rejected record of a chunk."""

    index: int
    """Index of the row in the chunk."""
    reason: str
    message: str
    step: str
    taken_by: str | None = None
    """The stages that received the record anyway, through other branches."""


class SourceTask:
    """Reads the pieces of one task, and returns their rows for the keyed tasks."""

    def __init__(self, config: TaskConfig) -> None:
        self._config = config
        self._cascade = config.cascade
        self._chains = [config.record_chain(at) for at in range(len(config.types))]
        self._decoders: dict[str, Decoder] = {}
        """Stream -> decoder. It takes longer to make one than to decode 20 records."""

    def read(
        self, pieces: Sequence[Piece], *, is_new: bool, work: bytes | None, restores: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield the task's rows of ROWS_SCHEMA: accepted and rejected records, and facts. See `slice_rows`.

        `work`: sent to every bucket, if it isn't None. `restores`: True if results of committed slices are emitted again.

        Raises BadRecord if the job must end at a bad record. No bucket has received rows of the slice by then, because Spark
        starts the buckets after all tasks have read.
        """
        return batches_of(self.blobs(pieces, is_new=is_new, work=work, restores=restores))

    def blobs(
        self,
        pieces: Sequence[Piece],
        *,
        is_new: bool,
        work: bytes | None,
        restores: bool = False,
        reader: RecordReader | None = None,
    ) -> Iterator[SliceRowBlob]:
        """Yield the rows of `read` as tuples. `reader`: reads the ranges of the pieces. None: the reader of this process."""
        sessions: SessionsRead = {}
        chunks = decode_pieces(
            self._config.decoding, pieces, is_new=is_new, sessions=sessions, reader=reader, decoders=self._decoders
        )
        return self.rows(chunks, is_new=is_new, work=work, sessions=sessions, restores=restores)

    def rows(
        self,
        chunks: Iterable[DecodedChunk],
        *,
        is_new: bool,
        work: bytes | None,
        sessions: Mapping[tuple[str, int], SessionState] = MappingProxyType({}),
        restores: bool = False,
    ) -> Iterator[SliceRowBlob]:
        """See `read`. The chunks are decoded already. `sessions`: the declarations of their records, once all chunks are read."""
        config, facts, began_ns = self._config, list[SourceFacts](), time.thread_time_ns()
        keys = config.bucket_keys
        if work is not None:
            yield from to_every_bucket(keys, WORK, work)
        for chunk in chunks:
            decoded, partition, sequence = chunk.decoded, chunk.label, chunk.offsets[0]
            rejects = [Reject(one.index, one.reason, one.message, "decode") for one in decoded.rejects]
            stepped = self._chains[chunk.place].apply(decoded.arrays, len(decoded.event_time), chunk.tables)
            if stepped.problems:
                places = chunk.accepted_indices()
                rejects += [
                    Reject(places[one.row], one.reason, one.message, one.step, stepped.taken_by.get(one.row))
                    for one in stepped.problems
                ]
                rejects.sort(key=lambda reject: reject.index)
            event_us = decoded.event_time.cast(pa.int64())
            facts.append(_facts_of(chunk, rejects, event_us, is_new=is_new))
            if (is_new or restores) and stepped.at_stages:
                yield from self._record_rows(chunk, stepped.at_stages, event_us)
            candidates = self._candidates(partition, event_us, stepped)
            if candidates is not None and self._cascade.has_deduped_records:
                bucket, cut = self._cascade.cut_records(partition, sequence, _with_positions(chunk, candidates))
                yield keys[bucket], kind_of_records(cut.entry), partition, sequence, cut.blob
            for came in stepped.at_windows:
                for bucket, cut in self._cut(chunk, came, event_us, candidates):
                    yield keys[bucket], kind_of_records(cut.entry), partition, sequence, cut.blob
            if is_new and rejects:
                yield from self._rejected(chunk, rejects)
        if sessions:
            facts.append(self._facts_of_sessions(sessions, is_new=is_new))
        facts.append(SourceFacts(cpu_us=(time.thread_time_ns() - began_ns) // 1_000))
        yield from to_every_bucket(keys, FACTS, encode(add_facts(facts)))

    def _candidates(self, partition: int, event_us: pa.Array, stepped: SteppedRecords) -> Candidates | None:
        """Return the input rows of the `dedupe`, by index among the accepted rows of the chunk. `event_us`: their event times."""
        came, duplicates = stepped.at_dedupe, self._cascade.duplicates
        if came is None or duplicates is None:
            return None
        columns, rows = {name: came.columns[name] for name in duplicates.dedupe.by}, came.rows
        if any(column.null_count for column in columns.values()):
            has_all = reduce(pc.and_, [column.is_valid() for column in columns.values()])
            columns = {name: column.filter(has_all) for name, column in columns.items()}
            rows = rows[has_all.to_numpy(zero_copy_only=False)]
        times = event_us.to_numpy(zero_copy_only=False)[rows]
        failed = np.array([one.row for one in stepped.problems], np.int64)
        seen = record_hashes(duplicates.dedupe, partition, columns, times)
        found = Candidates(columns, seen, rows, ~np.isin(rows, failed))
        if self._config.events_ms is None:
            return found
        horizon_us = duplicates.dedupe.within_ms * 1000
        first_us, end_us = (limit_ms * 1000 for limit_ms in self._config.events_ms)
        return found.chosen((times >= first_us) & (times < end_us + horizon_us))

    def _cut(
        self, chunk: DecodedChunk, at: RecordsAtWindow, event_us: pa.Array, candidates: Candidates | None
    ) -> Iterator[tuple[int, Chunk]]:
        """Yield (bucket, chunk) of the input rows of a first window. `event_us`: of all accepted rows of the chunk. `candidates`:
        all input rows of the pipeline's `dedupe`, whether or not this window follows it."""
        columns, rows = at.came.columns, at.came.rows
        stage = self._config.stages[at.window]
        needs_positions = self._cascade.operators[at.window].needs_positions
        if needs_positions:
            columns = {**columns, **_positions_of(chunk, rows)}
        if stage.revise_ms:
            columns = {**columns, LATE: chunk.late_column(rows)}
        if len(rows) < len(event_us):
            event_us = event_us.take(pa.array(rows))
        if self._config.events_ms is not None:
            first_us, end_us = (limit_ms * 1000 for limit_ms in self._config.events_ms)
            is_inside = pc.and_(pc.greater_equal(event_us, first_us), pc.less(event_us, end_us))
            event_us = event_us.filter(is_inside)
            columns = {name: column.filter(is_inside) for name, column in columns.items()}
            rows = rows[is_inside.to_numpy(zero_copy_only=False)]
        here = None
        if candidates is not None and at.side in stage.deduped_sides[:1]:  # once, be both sides behind it
            here = _with_positions(chunk, candidates) if needs_positions else candidates.with_rows(rows)
        return self._cascade.cut(chunk.label, chunk.offsets[0], event_us, columns, at.window, here, at.side)

    def _facts_of_sessions(self, sessions: Mapping[tuple[str, int], SessionState], *, is_new: bool) -> SourceFacts:
        """Return the declarations of the task's partitions at its end. They are stored in the ledger first."""
        if is_new:
            from strandline.processing.source.kept_sessions import sessions_of_process  # only where a stream needs it

            sessions_of_process(self._config.decoding.ledger_url).keep(sessions.values())
        packed: dict[str, dict[int, str]] = {}
        for (stream, partition), one in sessions.items():
            packed.setdefault(stream, {})[partition] = one.packed()
        return SourceFacts(sessions=packed)

    def _record_rows(
        self, chunk: DecodedChunk, at_stages: Sequence[RecordsAtStage], event_us: pa.Array
    ) -> Iterator[SliceRowBlob]:
        """Yield rows with the records of a chunk that are emitted as records. Those of a partition go to one bucket, in order."""
        offsets, elements = np.asarray(chunk.offsets, np.int64), chunk.elements
        if chunk.decoded.rejects:
            places = chunk.accepted_indices()
            offsets = offsets[np.array(places, np.int64)]
            elements = None if elements is None else [elements[at] for at in places]
        keys = self._config.bucket_keys
        for records in at_stages:
            if len(records.rows):
                blob = pack_record_rows(records, chunk.label, event_us, offsets, elements)
                yield keys[chunk.label % len(keys)], RECORD_ROWS, chunk.label, chunk.offsets[0], blob

    def _rejected(self, chunk: DecodedChunk, rejects: list[Reject]) -> Iterator[SliceRowBlob]:
        """Yield rows with the rejected records of a chunk, for their dead letters. Raises BadRecord if the job must end."""
        config = self._config
        if config.crashes:
            for one in rejects:
                if one.reason != REASON_LATE:
                    place = f"stream {chunk.stream}, partition {chunk.partition}, offset {chunk.offsets[one.index]}"
                    if (element := chunk.element_at(one.index)) is not None:
                        place += f", element {element}"
                    raise BadRecord(one.reason, f"{place}: {one.message}", one.step)
        if config.late_is_dropped:
            rejects = [one for one in rejects if one.reason != REASON_LATE]
        key = config.bucket_keys[chunk.label % len(config.bucket_keys)]
        rows = (
            (
                chunk.stream,
                chunk.partition,
                chunk.offsets[one.index],
                chunk.value_at(one.index),
                one.reason,
                one.message,
                one.step,
                chunk.element_at(one.index),
                one.taken_by,
            )
            for one in rejects
        )
        for part in parts_by_size(rows, lambda row: len(row[3] or b""), _REJECTED_BYTES):
            yield key, REJECTED, chunk.label, part[0][2], pack([batch_of(part, REJECTED_SCHEMA)])


def _with_positions(chunk: DecodedChunk, candidates: Candidates) -> Candidates:
    """Return the input rows of a `dedupe` in this chunk, with their log positions."""
    accepted = np.array(chunk.accepted_indices(), np.int64)[candidates.rows]
    offsets = np.asarray(chunk.offsets, np.int64)[accepted]
    elements = None if chunk.elements is None else [chunk.elements[at] for at in accepted.tolist()]
    return candidates.placed(offsets, elements)


def _positions_of(chunk: DecodedChunk, rows: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
    """Return the log positions of these rows. `rows`: their indices among the accepted rows of the chunk."""
    offsets, elements = np.asarray(chunk.offsets, np.int64), chunk.elements
    places = np.array(chunk.accepted_indices(), np.int64)[rows] if chunk.decoded.rejects else rows
    element = pa.nulls(len(rows), pa.int32())
    if elements is not None:
        element = pa.array([elements[at] for at in places.tolist()], pa.int32())
    return {OFFSET: pa.array(offsets[places]), ELEMENT: element}


def _facts_of(chunk: DecodedChunk, rejects: list[Reject], event_us: pa.Array, *, is_new: bool) -> SourceFacts:
    """Return the facts of one chunk. `event_us`: event times of its accepted rows."""
    log_ms = np.asarray(chunk.log_times_ms, np.int64)
    facts = SourceFacts(
        records=len(chunk.offsets),
        rejected=Counter(reject.reason for reject in rejects),
        latest_log_ms=int(log_ms.max()),
        bytes=chunk.stored_bytes,
    )
    here = PartitionFacts(facts.records, dict(facts.rejected))
    if is_new and rejects:
        _add_rejected_senders(here, chunk, rejects, log_ms)
    if len(event_us):
        event_ms = event_us.to_numpy(zero_copy_only=False) // 1000
        if chunk.decoded.rejects:
            log_ms = np.delete(log_ms, [reject.index for reject in chunk.decoded.rejects])
        ahead_ms = int((event_ms - log_ms).max())
        latest_ms = int(event_ms.max())
        logged_ms = latest_ms if ahead_ms <= 0 else int(np.minimum(event_ms, log_ms).max())
        facts.latest_ms = {chunk.stream: {chunk.partition: latest_ms}}
        facts.logged_ms = {chunk.stream: {chunk.partition: logged_ms}}
        if ahead_ms > 0:
            facts.ahead_ms = {chunk.stream: {chunk.partition: ahead_ms}}
        if is_new and ahead_ms > TOLERANCE_MS:
            here.add(PartitionFacts(keys_ahead=_accepted_ahead(chunk, event_ms - log_ms, log_ms)))
    if is_new:
        facts.partitions = {chunk.stream: {chunk.partition: here}}
    return facts


def _accepted_ahead(chunk: DecodedChunk, ahead_ms: Times, log_ms: Times) -> dict[str, tuple[int, int]]:
    """Return the keys of accepted rows that are ahead of their log time. `ahead_ms`, `log_ms`: of each accepted row."""
    keys = None if chunk.key is None else chunk.decoded.arrays.get(chunk.key)
    places = chunk.accepted_indices() if keys is None else []
    return keys_ahead(ahead_ms, log_ms, keys, lambda row: chunk.sender_at(places[row]))


def _add_rejected_senders(here: PartitionFacts, chunk: DecodedChunk, rejects: list[Reject], log_ms: Times) -> None:
    """Add the sender of the last record of each reason, and the senders of records that were rejected because they are too far
    ahead of their log time. `log_ms`: of each row."""
    for reason, index in {one.reason: one.index for one in rejects}.items():
        here.senders[reason] = int(chunk.offsets[index]), chunk.sender_at(index) or ""
    too_far = [(one.index, one.ahead_ms) for one in chunk.decoded.rejects if one.ahead_ms is not None]
    if too_far:
        places, ahead_ms = np.array(too_far, np.int64).T
        found = keys_ahead(ahead_ms, log_ms[places], None, lambda row: chunk.sender_at(int(places[row])))
        here.add(PartitionFacts(keys_ahead=found))
