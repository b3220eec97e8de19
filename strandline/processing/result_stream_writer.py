"""Results in a stream, each once: a transactional producer for each place of a stage, and a look at what is there already.

A record is a document as `results/document.py` makes it; its key is the field that the stream's document names, placed as the
gateways place keys; its headers say which result it is and who wrote it. No result is written twice, because

* a *slot* is a place from which a stage's tasks write; it has a transactional id, and who takes that over has ended
  whatever its holder before left open, and lets it commit nothing more;
* whoever takes a slot over asks next whether its run is still the present one, and only then reads what the stream holds
  since the last checkpoint, to its very end, and leaves that out;
* a new run takes over every slot of the runs before it (`result_streams.shut_out_older_runs`) before its first task starts: what
  an older run holds is lost to it, and what it takes over later it gives up again, since it is no longer the present run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
from confluent_kafka import KafkaException, Message, Producer

from strandline.core.errors import LogUnavailable
from strandline.core.failpoints import failpoint
from strandline.core.record import (
    HEADER_EMISSION,
    HEADER_EPOCH,
    HEADER_ID,
    HEADER_JOB,
    HEADER_STAGE,
)
from strandline.ingest.framing import key_finder
from strandline.processing.log_reader import LogIndex, LogReader, OffsetRange
from strandline.processing.transactions import produce, take_over_id
from strandline.results.document import Document, DocumentShape
from strandline.results.writer import Refused, WriteReport

RESULTS_A_TRANSACTION = 5_000
_TIMEOUT_S = 60.0
_RECORD_BYTES_MAX = 1_000_000
"""The producer's own limit, headers and all."""
_HEADERS_BYTES_MAX = 2_048
_END_BYTES = len('{"@timestamp":"2024-05-01T12:01:00.000Z"')
"""A document begins with its window's end."""
_TAKEN_OVER_AT_ONCE = 8


@dataclass(frozen=True)
class ResultStream:
    """One stage's way into one stream. Pickles; goes to the executors."""

    bootstrap: str
    shape: DocumentShape
    key: str | None
    """The field of the document that is the record's key."""


@dataclass(frozen=True)
class Place:
    """From where a task writes."""

    slot: int
    """The task's number in its stage: the same place of any later attempt takes the slot over."""
    written_before: Mapping[int, int]
    """Where the stream ended at the last checkpoint: partition -> offset."""


_readers: dict[tuple[str, int], tuple[LogIndex, LogReader]] = {}
"""(bootstrap, epoch) -> what this process reads with: an index remembers the partitions that a run began with."""


def transactional_id(job: str, stage: str, stream: str, slot: int) -> str:
    """Begins with the job and a colon, which no name has: an ACL for that prefix is for this job alone."""
    return f"{job}:result:{stage}:{stream}:{slot}"


class ResultStreamWriter:
    """A ResultWriter over one stream, for one attempt of one task.

    `require_present` raises Fenced unless the run of this epoch is still the job's present one.
    """

    def __init__(self, stream: ResultStream, place: Place, require_present: Callable[[int], None]) -> None:
        self._stream = stream
        self._place = place
        self._require_present = require_present
        self._producer: Producer | None = None
        self._there: set[str] = set()
        shape = stream.shape
        self._id = transactional_id(shape.job, shape.stage, shape.emit_name, place.slot)
        self._find_key = key_finder(stream.key) if stream.key else lambda _source: None

    def write_batches(self, batches: Iterable[pa.RecordBatch], epoch: int, emission: int) -> WriteReport:
        """Write the rows of a stage as ResultWriter promises. Raises LogUnavailable, Fenced."""
        report = WriteReport()
        documents: list[tuple[Document, bytes | None]] = []
        for batch in batches:
            for row in self._stream.shape.documents(batch, epoch, emission):
                if isinstance(row, Refused):
                    report.refused.append(row)
                    continue
                key = self._find_key(row.source)
                size = len(row.source) + len(key or b"") + _HEADERS_BYTES_MAX
                if size > _RECORD_BYTES_MAX:
                    reason = f"a record of {size} bytes is larger than the {_RECORD_BYTES_MAX} that the log takes"
                    report.refused.append(Refused(row.id, row.index, None, "record_too_large", reason, row.source))
                else:
                    documents.append((row, key))
        # Whatever order Spark has them in: by the window's end, then by key.
        documents.sort(key=lambda one: (one[0].source[:_END_BYTES], one[1] or b"", one[0].id))
        for start in range(0, len(documents), RESULTS_A_TRANSACTION):
            self._write(documents[start : start + RESULTS_A_TRANSACTION], epoch, emission, report)
        return report

    def _write(
        self, documents: Sequence[tuple[Document, bytes | None]], epoch: int, emission: int, report: WriteReport
    ) -> None:
        """Write those that are not in the stream, in one transaction.

        1. Before the attempt's first: take the slot over, see that the run is still the present one, and read what is there.
           Nobody writes under the slot afterwards without taking it over in turn, and then this attempt commits nothing more.
        2. Leave out what is there; write and commit the rest.
        """
        if self._producer is None:
            producer = take_over(self._stream.bootstrap, self._id, self._stream.shape.emit_name)
            failpoint("stream.taken_over")
            self._require_present(epoch)
            self._there = self._present(epoch)
            self._producer = producer
        missing = [one for one in documents if one[0].id not in self._there]
        if missing:
            self._write_transaction(self._producer, missing, epoch, emission)
        report.created += len(missing)
        report.already += len(documents) - len(missing)

    def _present(self, epoch: int) -> set[str]:
        """The ids in the stream since the last checkpoint. Reading to the end waits for the transactions of other slots,
        behind which some of this one may stand."""
        bootstrap, topic = self._stream.bootstrap, self._stream.shape.emit_name
        if (bootstrap, epoch) not in _readers:
            for _, older in _readers.values():
                older.close()
            _readers.clear()
            _readers[bootstrap, epoch] = LogIndex(bootstrap), LogReader(bootstrap)
        index, reader = _readers[bootstrap, epoch]
        starts, ends = index.starts(topic), index.ends_with_open(topic)
        present: set[str] = set()
        for partition, end in ends.items():
            first = max(self._place.written_before.get(partition, 0), starts[partition])
            for messages in reader.read(OffsetRange(topic, partition, first, end)):
                present.update(identity for message in messages if (identity := result_header(message, HEADER_ID)))
        return present

    def _write_transaction(
        self, producer: Producer, documents: Sequence[tuple[Document, bytes | None]], epoch: int, emission: int
    ) -> None:
        shape = self._stream.shape
        common: list[tuple[str, str | bytes | None]] = [
            (HEADER_JOB, shape.job.encode()),
            (HEADER_STAGE, shape.stage.encode()),
            (HEADER_EMISSION, b"%d" % emission),
            (HEADER_EPOCH, b"%d" % epoch),
        ]
        try:
            producer.begin_transaction()
            for document, key in documents:
                headers = [*common, (HEADER_ID, document.id.encode())]
                produce(producer, shape.emit_name, document.source, key, headers)
            producer.flush(_TIMEOUT_S)
            failpoint("stream.before_commit")
            producer.commit_transaction(_TIMEOUT_S)
            failpoint("stream.committed")
        except KafkaException as error:
            raise _unavailable(self._stream.bootstrap, self._id, error) from error


def result_header(message: Message, wanted: str) -> str:
    """The text of one header, empty where the record has none."""
    for name, value in dict(message.headers() or ()).items():
        if name == wanted and isinstance(value, bytes):
            return value.decode("utf-8", "replace")
    return ""


def take_over(bootstrap: str, transactional_id: str, topic: str) -> Producer:
    """A producer that holds the transactional id: what its holder before left open is ended, and it commits nothing more.

    Raises LogUnavailable.
    """
    # Placed as the gateways place keys.
    settings: dict[str, str | int] = {"partitioner": "murmur2_random", "message.max.bytes": _RECORD_BYTES_MAX}
    try:
        return take_over_id(bootstrap, transactional_id, topic, _TIMEOUT_S, settings)
    except KafkaException as error:
        raise _unavailable(bootstrap, transactional_id, error) from error


def take_over_all(bootstrap: str, slots: Sequence[tuple[str, str]]) -> None:
    """Take over each (transactional id, topic) and let it go: no older holder commits anything after this returns.

    Raises LogUnavailable.
    """
    with ThreadPoolExecutor(min(_TAKEN_OVER_AT_ONCE, max(1, len(slots)))) as pool:
        for _ in pool.map(lambda slot: take_over(bootstrap, *slot), slots):
            pass


def _unavailable(bootstrap: str, transactional_id: str, error: KafkaException) -> LogUnavailable:
    return LogUnavailable(
        f"results could not be written to Kafka at {bootstrap} as {transactional_id}: {error.args[0].str()}"
    )
