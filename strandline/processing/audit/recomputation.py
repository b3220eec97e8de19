"""The recomputation of one span: its records decoded into tables, and each stage's windows by one query over a table.

It shares only the decoder and the expressions with a running job: no slices, no state, no watermark of its own, no replay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.record_headers import REASON_EXPRESSION, REASON_LATE
from strandline.processing.audit.index_reader import EndRange, encode_result
from strandline.processing.audit.parts import Account
from strandline.processing.audit.plan import VersionSpan
from strandline.processing.audit.reconciliation import DEAD_LETTERS, STREAM_STORE, Row, Side
from strandline.processing.audit.stores import rows_batch
from strandline.processing.audit.table import Database, Table
from strandline.processing.audit.window_query import WindowQuery
from strandline.processing.emission.document_shapes import document_shape
from strandline.processing.operators.row_steps import RowSteps
from strandline.processing.pipelines.stages import Emit, Stage
from strandline.processing.source.decoding import DecodingConfig, decode_pieces, decoder_of
from strandline.processing.source.recorded_slices import LogTask
from strandline.results.document import Document, DocumentShape
from strandline.results.writer import PROBLEM, WINDOW_END


@dataclass(frozen=True)
class RecordsPart:
    """Some records of a span, to be rows of its first stage. Those that are rejected become dead letters to expect."""

    name: str
    decoding: DecodingConfig
    stage: Stage
    types: Mapping[str, str]
    """The stream's fields."""
    events_from_ms: int
    events_before_ms: int
    """Only records from the one time to before the other are needed for the span's windows."""
    has_late_letters: bool
    task: LogTask
    records: Table
    compared: Table
    """The rows to compare."""

    @property
    def rows(self) -> int:
        return sum(piece.offsets.offset_next - piece.offsets.offset_first for piece in self.task.pieces)

    def run(self) -> Account:
        account = Account()
        steps = RowSteps(self.stage.pre_steps, self.types)
        query = WindowQuery(self.stage, steps.types)
        with self.records.writer(self.name) as records, self.compared.writer(self.name) as letters:
            for chunk in decode_pieces(self.decoding, decoder_of(self.decoding), self.task.pieces):
                offsets, decoded = chunk.offsets, chunk.decoded
                rejected = {reject.index: reject.reason for reject in decoded.rejects}
                accepted = [at for at in range(len(offsets)) if at not in rejected]
                stepped = steps.apply(decoded.arrays, len(accepted))
                rejected |= {accepted[problem.row]: REASON_EXPRESSION for problem in stepped.problems}
                if self.task.own:
                    account.records += len(offsets)
                    account.rejected.update(rejected.values())
                    place = f"{chunk.stream}/{chunk.partition}"
                    letters.append(self._letters({f"{place}/{offsets[at]}": rejected[at] for at in sorted(rejected)}))
                event_us = decoded.event_time.cast(pa.int64()).to_numpy(zero_copy_only=False)
                event_ms = event_us[stepped.rows] // 1000
                wanted = pa.array(
                    np.flatnonzero((event_ms >= self.events_from_ms) & (event_ms < self.events_before_ms))
                )
                columns = {name: column.take(wanted) for name, column in stepped.columns.items()}
                records.append(query.rows(pa.array(event_ms).take(wanted), columns))
        return account

    def _letters(self, rejected: Mapping[str, str]) -> pa.RecordBatch:
        return rows_batch(
            [
                Row(DEAD_LETTERS, identity, Side.COMPUTED, "", None, None, reason.encode())
                for identity, reason in rejected.items()
                if self.has_late_letters or reason != REASON_LATE
            ]
        )


class Recomputation:
    """One span. `parts` are run first, in any process; then `compute` in this one."""

    def __init__(
        self, span: VersionSpan, decoding: DecodingConfig, tasks: Sequence[LogTask], directory: Path, compared: Table
    ) -> None:
        """`directory`: for the span's tables. `compared`: the table of rows to compare."""
        self.span = span
        self._compared = compared
        self._stages: list[tuple[RowSteps, WindowQuery, Table]] = []
        pipeline, types = span.pipeline, dict(span.pipeline.stream.types)
        for stage in pipeline.stages:
            steps = RowSteps(stage.pre_steps, types)
            query = WindowQuery(stage, steps.types)
            table = Table(directory / stage.name, query.row_schema)
            table.create()
            self._stages.append((steps, query, table))
            types = stage.field_types
        self.parts = [
            RecordsPart(
                name=f"{directory.name}-{number}",
                decoding=decoding,
                stage=pipeline.stages[0],
                types=pipeline.stream.types,
                events_from_ms=span.events_from_ms,
                events_before_ms=span.events_before_ms,
                has_late_letters=pipeline.spec.late != "drop",
                task=task,
                records=self._stages[0][2],
                compared=compared,
            )
            for number, task in enumerate(tasks)
        ]

    def compute(self, database: Database) -> Counter[str]:
        """Compute the span's windows, stage by stage, and write the documents that they lead to. Returns stage -> results."""
        counts: Counter[str] = Counter()
        with self._compared.writer(f"{self._stages[0][2].directory.parent.name}-documents") as documents:
            for at, stage in enumerate(self.span.pipeline.stages):
                shapes = self._shapes(stage)
                counts[stage.name] += 0
                for inside in self.results(database, at):
                    counts[stage.name] += inside.num_rows
                    for emit, shape in shapes:
                        documents.append(_documents(shape, self._without_replaced(emit, inside)))
        return Counter({name: counts[name] for name in self.span.windows if name in counts})

    def results(self, database: Database, at: int) -> Iterator[pa.RecordBatch]:
        """The results of the stage at this place that lie in the span, in no order; all of them become rows of the next."""
        _, query, table = self._stages[at]
        ends = self.span.windows.get(query.stage.name)
        is_last = at == len(self._stages) - 1
        with nullcontext() if is_last else self._stages[at + 1][2].writer("results") as following:
            for batch in query.results(database, table):
                if following is not None:
                    following.append(self._rows_of_next(at + 1, batch))
                if ends is not None:
                    yield batch.filter(_ends_in(batch, ends))

    def _rows_of_next(self, at: int, results: pa.RecordBatch) -> pa.RecordBatch:
        """Results as rows of the next stage; a result that is a dead letter has no place in it."""
        steps, query, _ = self._stages[at]
        good = results.filter(results.column(PROBLEM).is_null())
        stepped = steps.apply(dict(zip(good.schema.names, good.columns, strict=True)), good.num_rows)
        # A window's results belong to its last moment.
        return query.rows(pc.subtract(stepped.columns[WINDOW_END], 1), stepped.columns)

    def _shapes(self, stage: Stage) -> list[tuple[Emit, DocumentShape]]:
        """A backfill writes to no stream."""
        span = self.span
        return [
            (emit, document_shape(span.pipeline, stage, emit, span.version, span.generation))
            for emit in stage.emits
            if emit.kind == "elasticsearch" or (emit.kind == "stream" and span.generation == 1)
        ]

    def _without_replaced(self, emit: Emit, results: pa.RecordBatch) -> pa.RecordBatch:
        """Without the windows that a later generation replaced."""
        for newer in self.span.replaced.get(emit.name, ()) if emit.kind == "elasticsearch" else ():
            results = results.filter(pc.invert(_ends_in(results, EndRange(newer.after_ms, newer.up_to_ms))))
        return results


def _ends_in(results: pa.RecordBatch, ends: EndRange) -> pa.Array:
    end_ms = results.column(WINDOW_END)
    return pc.and_(pc.greater(end_ms, ends.after_ms or 0), pc.less_equal(end_ms, ends.up_to_ms or 0))


def _documents(shape: DocumentShape, results: pa.RecordBatch) -> pa.RecordBatch:
    """The documents that the index or the stream must show, as rows to compare."""
    store = STREAM_STORE + shape.emit_name if shape.is_stream else shape.emit_name
    rows = []
    columns = zip(
        shape.documents(results.drop_columns([PROBLEM]), 0, 0),
        results.column(WINDOW_END).to_pylist(),
        results.column(PROBLEM).is_null().to_pylist(),
        strict=True,
    )
    for one, end_ms, is_good in columns:
        if isinstance(one, Document) and is_good:
            body = encode_result(msgspec.json.decode(one.source))
            rows.append(Row(store, one.id, Side.COMPUTED, one.index, end_ms, None, body))
        else:
            rows.append(Row(store, one.id, Side.COMPUTED, "", end_ms, None, None))
    return rows_batch(rows)
