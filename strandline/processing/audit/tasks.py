"""What an audit runs in Spark's Python workers. Imports little, because every worker loads it first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from strandline.processing.audit.index_reader import encode_result
from strandline.processing.audit.reconciliation import STREAM_STORE, Finding, Reconciler, Row, Side
from strandline.processing.audit.source import rows_batch
from strandline.results.document import Document, DocumentShape
from strandline.results.writer import WINDOW_END, WINDOW_START

WINDOW = "window"
FINDINGS_DDL = (
    "kind string, store string, label string, count long, id string, place string, end_ms long, detail string"
)
_FINDINGS_SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("store", pa.string()),
        ("label", pa.string()),
        ("count", pa.int64()),
        ("id", pa.string()),
        ("place", pa.string()),
        ("end_ms", pa.int64()),
        ("detail", pa.string()),
    ]
)
_FINDINGS_A_BATCH = 1_000


@dataclass(frozen=True)
class ExpectedDocuments:
    """Makes the documents of one emission, in an executor's Python worker."""

    shape: DocumentShape

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = with_window_times(batch)
            documents = self.shape.documents(rows, 0, 0)
            ends_ms = rows.column(WINDOW_END).to_pylist()
            yield rows_batch([self._row(one, end_ms) for one, end_ms in zip(documents, ends_ms, strict=True)])

    def _row(self, one: object, end_ms: int) -> Row:
        store = STREAM_STORE + self.shape.emit_name if self.shape.is_stream else self.shape.emit_name
        if isinstance(one, Document):
            body = encode_result(msgspec.json.decode(one.source))
            return Row(store, one.id, Side.COMPUTED, one.index, end_ms, None, body)
        return Row(store, one.id, Side.COMPUTED, "", end_ms, None, None)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Reconciling:
    """Compares sorted rows."""

    reconciler: Reconciler

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (
            Row(*values)
            for batch in batches
            for values in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        )
        findings: list[Finding] = []
        for finding in self.reconciler.findings(rows):
            findings.append(finding)
            if len(findings) >= _FINDINGS_A_BATCH:
                yield _findings_batch(findings)
                findings = []
        yield _findings_batch(findings)


def with_window_times(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with the start and end of Spark's `window` (a struct of timestamps) as columns of milliseconds."""
    for name, part in ((WINDOW_START, "start"), (WINDOW_END, "end")):
        times_us = pc.struct_field(batch.column(WINDOW), part).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        batch = batch.append_column(name, pc.divide(times_us, 1000))  # a window has no part of a millisecond
    return batch


def _findings_batch(findings: list[Finding]) -> pa.RecordBatch:
    arrays = [pa.array([getattr(finding, item.name) for finding in findings], item.type) for item in _FINDINGS_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=_FINDINGS_SCHEMA)
