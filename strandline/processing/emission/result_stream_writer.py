"""Writes results to a stream, each once, by transactions.

A record is a document as `results/document.py` makes it. Its key is the field that the stream declares as key; it chooses the
partition as the gateways do. Its headers say which result it is and which run wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from strandline.core.errors import RecordTooLarge
from strandline.core.record_headers import (
    HEADER_EMISSION,
    HEADER_EPOCH,
    HEADER_ID,
    HEADER_JOB,
    HEADER_SLICE_DIGEST,
    HEADER_STAGE,
)
from strandline.log.messages import LogMessage
from strandline.log.record_key import key_finder
from strandline.log.transactions import Entry, SlotConfig, TransactionSlot
from strandline.processing.emission.transactional_ids import id_of_result_stream
from strandline.results.comparison import differences
from strandline.results.document import Document, DocumentShape
from strandline.results.writer import Refused, WriteReport

RESULTS_A_TRANSACTION = 5_000
_END_BYTES = len('{"@timestamp":"2024-05-01T12:01:00.000Z"')
"""A document begins with its window's end."""


@dataclass(frozen=True)
class ResultStream:
    """One stage's emission to one stream. Spark pickles it for the executors."""

    bootstrap: str
    shape: DocumentShape
    key: str | None
    """The field of the document that is the record's key."""
    record_bytes_max: int
    """Size of the largest record that gateways accept. Results aren't larger either, so readers need no other limit."""


@dataclass(frozen=True)
class StreamWriteContext:
    """The writing task, and the part of the stream that may already contain its records."""

    task: int
    """The task's number in its stage: a later attempt of the task uses the same transactional id, and so fences this one."""
    written_before: Mapping[int, int]
    """End of the stream at the last checkpoint: partition -> offset."""


class ResultStreamWriter:
    """A ResultWriter over one stream, for one attempt of one task.

    `require_current_epoch` raises Fenced unless the run of this epoch is still the job's current one.
    """

    def __init__(
        self, stream: ResultStream, context: StreamWriteContext, require_current_epoch: Callable[[int], None]
    ) -> None:
        self._stream = stream
        self._context = context
        self._require_current_epoch = require_current_epoch
        self._slot: TransactionSlot | None = None
        self._find_key = key_finder(stream.key) if stream.key else lambda _source: None

    def write_batches(
        self, batches: Iterable[pa.RecordBatch], epoch: int, emission: int, slice_digest: str = ""
    ) -> WriteReport:
        """Write the rows of a stage that aren't in the stream yet; see `ResultWriter`. Raises LogUnavailable, Fenced;
        RecordTooLarge if the topic doesn't accept the largest record; Divergence if the stream has another value of a result."""
        report = WriteReport()
        slot = self._slot = self._slot or self._of_run(epoch)
        documents: list[tuple[Document, bytes | None]] = []
        for batch in batches:
            for row in self._stream.shape.documents(batch, epoch, emission, slice_digest):
                if isinstance(row, Refused):
                    report.refused.append(row)
                    continue
                size, size_max = len(row.source), self._stream.record_bytes_max
                if size > size_max:
                    reason = f"a result of {size} bytes is larger than a record may be (STRANDLINE_RECORD_BYTES_MAX, {size_max})"
                    report.refused.append(Refused(row.id, row.index, None, RecordTooLarge.code, reason, row.source))
                else:
                    documents.append((row, self._find_key(row.source)))
        # In one order, whatever order Spark has them in: by the window's end, then by key. Records come in that of the log.
        if self._stream.shape.has_window:
            documents.sort(key=lambda one: (one[0].source[:_END_BYTES], one[1] or b"", one[0].id))
        for start in range(0, len(documents), RESULTS_A_TRANSACTION):
            chunk = documents[start : start + RESULTS_A_TRANSACTION]
            created = slot.write([self._entry(document, key, epoch, emission, slice_digest) for document, key in chunk])
            report.created += created
            report.already += len(chunk) - created
        return report

    def _of_run(self, epoch: int) -> TransactionSlot:
        shape = self._stream.shape
        config = SlotConfig(
            self._stream.bootstrap,
            shape.emit_name,
            epoch,
            self._require_current_epoch,
            identity_of=lambda message: result_header(message, HEADER_ID),
            failpoints="stream",
            # Placed as the gateways place keys.
            settings={"partitioner": "murmur2_random"},
            record_bytes_max=self._stream.record_bytes_max,
            differences=_differences,
            must_reach=True,
        )
        name = id_of_result_stream(shape.job, shape.stage, shape.emit_name, self._context.task)
        return TransactionSlot(config, name, self._context.written_before)

    def _entry(self, document: Document, key: bytes | None, epoch: int, emission: int, slice_digest: str) -> Entry:
        shape = self._stream.shape
        headers: list[tuple[str, str | bytes | None]] = [
            (HEADER_JOB, shape.job.encode()),
            (HEADER_STAGE, shape.stage.encode()),
            (HEADER_EMISSION, b"%d" % emission),
            (HEADER_EPOCH, b"%d" % epoch),
            (HEADER_ID, document.id.encode()),
        ]
        if slice_digest:
            headers.append((HEADER_SLICE_DIGEST, slice_digest.encode()))
        return Entry(document.id, document.source, key, headers)


def _differences(held: bytes, computed: bytes) -> list[str]:
    try:
        there = msgspec.json.decode(held, type=dict[str, Any])
    except msgspec.MsgspecError:
        return ["it is no JSON object"]
    return differences(there, msgspec.json.decode(computed), "the stream")


def result_header(message: LogMessage, wanted: str) -> str:
    """Return the value of a header as text. Empty if the record doesn't have the header."""
    for name, value in dict(message.headers() or ()).items():
        if name == wanted and isinstance(value, bytes):
            return value.decode("utf-8", "replace")
    return ""
