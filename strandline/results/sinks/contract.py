"""Contract suite of a writer. Tests call it for each sink of Strandline and of packages (docs/packages.md)."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from strandline.core.errors import Divergence
from strandline.results.document import Document, DocumentShape
from strandline.results.records.record_document import RecordShape
from strandline.results.writer import (
    ELEMENT,
    EVENT_US,
    OFFSET,
    PARTITION,
    WINDOW_END,
    WINDOW_START,
    CommittedWriter,
    Refused,
    StoreWriter,
)

_NOON_MS = 1_714_564_800_000
_DAY_MS = 86_400_000
_ROWS = 250
_DIGESTS = {1: "9f86d081884c7d65", 2: "60303ae22b998861"}
"""Emission -> digest of its slice."""
_FIELDS = (
    ("device", "string"),
    ("n", "long"),
    ("load", "double"),
    ("is_on", "boolean"),
    ("cost", "decimal(10,2)"),
    ("seen", "timestamp"),
)


class SinkUnderTest(Protocol):
    """A new, empty instance of the sink."""

    @property
    def shape_changes(self) -> dict[str, object]:
        """Changes to the shape of its documents: `emit_name`, and `is_elsewhere` if it isn't an index."""

    def writer(self, shape: DocumentShape) -> StoreWriter:
        """Return a writer to the instance."""

    def ids(self) -> list[str]:
        """Return the ids of all results that readers of the sink see, with duplicates."""


def window_shape(sink: SinkUnderTest) -> DocumentShape:
    return replace(DocumentShape("contract", "job", "windows", 1, _FIELDS[:1], _FIELDS[1:]), **sink.shape_changes)  # type: ignore[arg-type]


def record_shape(sink: SinkUnderTest) -> RecordShape:
    shape = RecordShape("contract", "job", "records", 1, (), _FIELDS, input_streams=("farm",))
    return replace(shape, **sink.shape_changes)  # type: ignore[arg-type]


def batch_of(shape: DocumentShape, rows: Sequence[int], load: float | None = None) -> pa.RecordBatch:
    """Return these rows, over two days. `load`: one value for all rows, instead of their own."""
    times = [_NOON_MS + row % 2 * _DAY_MS for row in rows]
    if shape.has_window:
        columns = {
            WINDOW_START: pa.array([time - 60_000 for time in times], pa.int64()),
            WINDOW_END: pa.array(times, pa.int64()),
        }
    else:
        columns = {
            EVENT_US: pa.array([time * 1000 + 1 for time in times], pa.int64()),
            PARTITION: pa.array([1] * len(rows), pa.int32()),
            OFFSET: pa.array(list(rows), pa.int64()),
            ELEMENT: pa.array([None if row % 3 else row for row in rows], pa.int32()),
        }
    columns |= {
        "device": pa.array([f"t-{row}" for row in rows]),
        "n": pa.array([None if row % 7 == 0 else row for row in rows], pa.int64()),
        "load": pa.array([row / 7 if load is None else load for row in rows], pa.float64()),
        "is_on": pa.array([row % 2 == 0 for row in rows]),
        "cost": pa.array([row * 100 for row in rows], pa.decimal128(10, 2)),
        "seen": pa.array([time * 1000 for time in times], pa.timestamp("us", "UTC")),
    }
    return pa.RecordBatch.from_pydict(columns)


def check_sink(sink: SinkUnderTest, shape: DocumentShape) -> None:
    """Raise AssertionError unless a writer of the sink keeps the contracts of ResultWriter, StoreWriter, and
    CommittedWriter.

    1. It pickles, and `prepare` can be called again.
    2. A written result is stored once, also if another run writes it again in other pieces.
    3. A run that crashes before the commit leaves no results that count twice.
    4. A row that no store can contain is returned, and doesn't affect other rows.
    5. Another value under the same id is a Divergence, and changes nothing.
    """
    writer: StoreWriter = pickle.loads(pickle.dumps(sink.writer(shape)))  # noqa: S301
    writer.prepare(None)
    writer.prepare(_NOON_MS)
    assert sink.ids() == [], "the sink must be empty before"
    rows = list(range(1, _ROWS + 1))
    wanted = sorted(one.id for one in shape.documents(batch_of(shape, rows), 1, 1) if isinstance(one, Document))
    report = writer.write_batches([batch_of(shape, rows[:100])], 1, 1, _DIGESTS[1])  # crashes here
    assert report.rows == 100, f"the report counts {report.rows} of 100 rows"
    for epoch, pieces in enumerate(([rows], [rows[:33], rows[33:]], [rows[200:], rows[:200]]), start=2):
        parts: list[str] = []
        for piece in pieces:
            report = writer.write_batches([batch_of(shape, piece)], epoch, 1, _DIGESTS[1])
            assert (report.created + report.already, report.refused) == (len(piece), []), report
            parts += report.parts
        _commit(writer, 1, epoch, parts)
        assert sorted(sink.ids()) == wanted, f"after run {epoch} readers see {len(sink.ids())} of {len(wanted)} results"
    report = writer.write_batches([], 5, 2, _DIGESTS[2])
    assert report.rows == 0, "the report counts rows, but none were written"
    _check_refusals(sink, writer, shape, wanted)
    changed = batch_of(shape, rows, load=-1.0)
    try:
        report = writer.write_batches([changed], 6, 1, _DIGESTS[1])
        _commit(writer, 1, 6, report.parts)
    except Divergence:
        pass
    else:
        raise AssertionError("another value under the same id must raise Divergence")


def _check_refusals(sink: SinkUnderTest, writer: StoreWriter, shape: DocumentShape, before: list[str]) -> None:
    good, bad = batch_of(shape, [1001, 1002]), batch_of(shape, [1003], load=float("nan"))
    report = writer.write_batches([good, bad], 5, 2, _DIGESTS[2])
    assert len(report.refused) == 1, report
    assert isinstance(report.refused[0], Refused), report
    assert report.created == 2, report
    _commit(writer, 2, 5, report.parts)
    assert len(sink.ids()) == len(before) + 2, "a refused row must not spoil the others"


def _commit(writer: StoreWriter, emission: int, epoch: int, parts: Sequence[str]) -> None:
    if parts:
        assert isinstance(writer, CommittedWriter), "only a CommittedWriter has parts"
        writer.commit(emission, epoch, parts, _DIGESTS[emission])
