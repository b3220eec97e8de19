"""The recomputation of one span: its records are decoded into tables, and one query over a table computes the windows of a stage.

It shares only the decoder and the expressions with a running job. It has no slices, no state, no watermark, and no replay.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.record_headers import REASON_EXPRESSION, REASON_LATE
from strandline.processing.audit.event_times import LatestTimes
from strandline.processing.audit.index_reader import EndRange
from strandline.processing.audit.parts import Account
from strandline.processing.audit.plan import VersionSpan
from strandline.processing.audit.reconciliation import DEAD_LETTERS, RESULT_LETTERS, Row, Side
from strandline.processing.audit.records.duplicates import DuplicatesQuery, places_of
from strandline.processing.audit.sinks.rows import computed_row
from strandline.processing.audit.stores import ROWS_SCHEMA
from strandline.processing.audit_queries.stage_query import POSITION, StageQuery, query_of, same_position
from strandline.processing.audit_queries.stored_columns import restored, stored_type
from strandline.processing.audit_queries.table import Database, Table, TableWriter
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.columns.codes import Codes
from strandline.processing.emission.result_shapes import document_shape, letter_shape
from strandline.processing.operators.blobs import batch_of
from strandline.processing.operators.cascade import each_once, labels_of_results, results_behind_steps
from strandline.processing.operators.row_steps import RowSteps, first_problems
from strandline.processing.pipelines.graph.branches import plan_branches
from strandline.processing.pipelines.row_step import RowStep
from strandline.processing.pipelines.stages import Emit, RecordPath, RecordStage, Stage, StageInput
from strandline.processing.source.decoding import DecodedChunk, decode_pieces
from strandline.processing.source.recorded_slices import LogTask
from strandline.processing.source.source_config import DecodingConfig
from strandline.results.document import DocumentShape
from strandline.results.names import KEYS_BESIDE
from strandline.results.sinks.registry import sink_of, sink_of_store, store_of
from strandline.results.writer import ELEMENT, EVENT_US, LATE, OFFSET, PARTITION, PROBLEM, WINDOW_END


@dataclass(frozen=True)
class RecordsPart:
    """Some records of a span, which become rows of its first windows. Rejected records become expected dead letters."""

    name: str
    decoding: DecodingConfig
    first: tuple[tuple[Stage, int, RecordPath, Table], ...]
    """For each path of the stream's records to a window or a join: the stage, its input, the path, and the table of its rows."""
    types: Mapping[str, str]
    """Fields of the stream."""
    events_from_ms: int
    events_before_ms: int
    """Only records in [`events_from_ms`, `events_before_ms`) are needed for the span's windows."""
    has_late_letters: bool
    task: LogTask
    compared: Table
    """Table of the rows to compare."""
    emissions: tuple[RecordsToCompare, ...] = ()
    """Emissions of records. The documents of the span's own slices are compared."""
    duplicates_query: DuplicatesQuery | None = None
    """Query that leaves out duplicates. None if there is no `dedupe`."""

    @property
    def rows(self) -> int:
        return sum(piece.offsets.offset_count for piece in self.task.pieces)

    def run(self) -> Account:
        account = Account()
        firsts = [(stage, side, RowSteps(path.steps, self.types), table) for stage, side, path, table in self.first]
        emissions = [(one, RowSteps(one.steps, self.types)) for one in self.emissions]
        ends = np.array([piece.offsets.offset_next for piece in self.task.pieces])
        with ExitStack() as tables:
            windows = [
                (
                    query_of(stage, side, dict(stage.inputs[side].columns)),
                    steps,
                    tables.enter_context(table.writer(f"{self.name}-{side}")),
                )
                for stage, side, steps, table in firsts
            ]
            letters = tables.enter_context(self.compared.writer(self.name))
            came = (
                None if self.duplicates_query is None else tables.enter_context(self.duplicates_query.writer(self.name))
            )
            later = {
                one.stage: tables.enter_context(one.later.writer(self.name))
                for one in self.emissions
                if one.later is not None
            }
            for chunk in decode_pieces(self.decoding, self.task.pieces):
                offsets, decoded = chunk.offsets, chunk.decoded
                rejected = {reject.index: reject.reason for reject in decoded.rejects}
                accepted = chunk.accepted_indices()
                at_emissions = [
                    (one, steps.apply(decoded.arrays, len(accepted), chunk.tables))
                    for one, steps in emissions
                    if self.task.own
                ]
                at_windows = [
                    (query, steps.apply(decoded.arrays, len(accepted), chunk.tables), rows)
                    for query, steps, rows in windows
                ]
                problems = [one for _, stepped in at_emissions for one in stepped.problems]
                problems += [one for _, stepped, _ in at_windows for one in stepped.problems]
                rejected |= {accepted[one.row]: one.reason for one in first_problems(problems)}
                if self.task.own:
                    account.records += len(offsets)
                    account.rejected.update(rejected.values())
                    letters.append(self._letters({chunk.identity_at(at): rejected[at] for at in sorted(rejected)}))
                if came is not None:
                    came.append(chunk, np.array(accepted, np.int64), rejected, own=self.task.own)
                event_us = decoded.event_time.cast(pa.int64()).to_numpy(zero_copy_only=False)
                if self.task.own:
                    places = np.searchsorted(ends, np.array(offsets, np.int64)[accepted], "right")
                    log_ms = np.asarray(chunk.log_times_ms, np.int64)[accepted]
                    self._note_latest(account, places, event_us // 1000, log_ms)
                for emission, stepped in at_emissions:
                    records = emission.records_of(
                        chunk, np.array(accepted, np.int64)[stepped.rows], event_us[stepped.rows], stepped.columns
                    )
                    if emission.stage in later:
                        later[emission.stage].append(emission.kept(records))
                        continue
                    letters.append(emission.rows_of(records))
                    account.results[emission.stage] += records.num_rows
                for query, stepped, rows in at_windows:
                    event_ms = event_us[stepped.rows] // 1000
                    wanted = np.flatnonzero((event_ms >= self.events_from_ms) & (event_ms < self.events_before_ms))
                    columns = {name: column.take(pa.array(wanted)) for name, column in stepped.columns.items()}
                    chosen = stepped.rows[wanted]
                    if query.stage.revise_ms:
                        columns[LATE] = chunk.late_column(chosen)
                    places = np.array(accepted, np.int64)[chosen]
                    stands = places_of(chunk, places, query.whole_element) if query.needs_positions else ()
                    rows.append(query.rows(pa.array(event_us[chosen]), columns, stands))
        return account

    def _note_latest(self, account: Account, places: np.ndarray, event_ms: np.ndarray, log_ms: np.ndarray) -> None:
        """Add the latest times in each part of the task. `places`: index of the part of each accepted record."""
        for place in np.unique(places):
            first, is_here = self.task.pieces[place].offsets, places == place
            key = first.stream, first.partition, first.offset_first
            logged_ms = np.minimum(event_ms[is_here], log_ms[is_here])
            times = LatestTimes(int(event_ms[is_here].max()), int(logged_ms.max()))
            account.latest[key] = times.with_others(account.latest.get(key, times))

    def _letters(self, rejected: Mapping[str, str]) -> pa.RecordBatch:
        rows = [
            Row(DEAD_LETTERS, identity, Side.COMPUTED, "", None, None, reason.encode())
            for identity, reason in rejected.items()
            if self.has_late_letters or reason != REASON_LATE
        ]
        return batch_of(rows, ROWS_SCHEMA)


@dataclass(frozen=True)
class RecordsToCompare:
    """One emission of records, and the documents that its stores must contain. Pickled."""

    stage: str
    steps: tuple[RowStep, ...]
    """All steps before it, from the stream of these records."""
    shapes: tuple[tuple[str, DocumentShape], ...]
    """(store, shape of its documents)."""
    requested: EndRange
    """Range of event times of the documents to compare."""
    schema: pa.Schema
    """Schema of its records."""
    later: Table | None = None
    """Table that keeps its records until the duplicates are known. None if there is no `dedupe` before it."""

    def records_of(
        self, chunk: DecodedChunk, places: np.ndarray, event_us: np.ndarray, columns: Mapping[str, pa.Array]
    ) -> pa.RecordBatch:
        """Return these rows of a chunk as the stage emits them. `places`: index of each row in the chunk."""
        offsets = np.asarray(chunk.offsets, np.int64)[places]
        elements = [None] * len(places) if chunk.elements is None else [chunk.elements[at] for at in places]
        values = [columns[name] for name in self.schema.names[_OWN_COLUMNS:]]
        own = [
            pa.array(event_us, pa.int64()),
            pa.array(np.full(len(places), chunk.label, np.int32)),
            pa.array(offsets),
            pa.array(elements, pa.int32()),
        ]
        return pa.RecordBatch.from_arrays([*own, *values], schema=self.schema)

    def kept(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return records in the form in which they are kept."""
        assert self.later is not None, "only called with a dedupe"
        places = [records.column(PARTITION), records.column(OFFSET), records.column(ELEMENT).fill_null(0)]
        stored = [restored(column, stored_type(column.type)) for column in records.columns]
        return pa.RecordBatch.from_arrays([*places, *stored], schema=self.later.schema)

    def unpacked(self, kept: pa.RecordBatch) -> pa.RecordBatch:
        """Return kept records in their original form."""
        columns = kept.columns[len(POSITION) :]
        whole = [restored(column, field.type) for column, field in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(whole, schema=self.schema)

    def rows_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows to compare for these records."""
        times_ms = pc.divide(batch.column(EVENT_US), 1000).to_pylist()
        rows = [
            computed_row(store, sink, one, time_ms, is_good=True)
            for store, shape in self.shapes
            for sink in [sink_of_store(store)]
            for one, time_ms in zip(shape.documents(batch, 0, 0), times_ms, strict=True)
            if self.requested.holds(time_ms)
        ]
        return batch_of(rows, ROWS_SCHEMA)


@dataclass(frozen=True)
class Results:
    """Some results of one stage."""

    rows: pa.RecordBatch
    without_value: pa.RecordBatch
    """Rows of `rows` whose values don't fit their type, or for which a step before a later stage has no value."""


class Recomputation:
    """The recomputation of one span. Run `parts` first, in any process; then `compute` in this one."""

    def __init__(
        self,
        span: VersionSpan,
        decoding: DecodingConfig,
        tasks: Sequence[LogTask],
        directory: Path,
        compared: Table,
        requested: EndRange = EndRange(),  # noqa: B008
    ) -> None:
        """`directory`: for the span's tables. `compared`: table of the rows to compare. `requested`: times to audit."""
        self.span = span
        self.duplicates = 0
        """Number of the span's own records that were left out as duplicates. Set by `compute`."""
        self._compared = compared
        self._directory = directory
        self._stages: list[tuple[StageQuery, Table]] = []
        self._following: dict[int, list[_Following]] = defaultdict(list)
        """Index of a stage -> the inputs of later stages that read its results."""
        pipeline = span.pipeline
        self._branches = plan_branches(pipeline.stages)
        first = []
        for at, stage in enumerate(pipeline.stages):
            following = [_Following.of(at, side, given, pipeline.stages) for side, given in stage.result_inputs]
            for one in following:
                self._following[one.stage].append(one)
            paths = stage.record_paths
            query = (
                query_of(stage, paths[0][0], dict(stage.inputs[paths[0][0]].columns)) if paths else following[0].query
            )
            table = Table(directory / stage.name, query.row_schema)
            table.create()
            self._stages.append((query, table))
            first += [(stage, side, path, table) for side, path in paths]
        self._duplicates_query = DuplicatesQuery.of(pipeline, directory, span.events_from_ms)
        self._emissions = tuple(
            RecordsToCompare(
                one.name,
                one.paths[0].steps,
                tuple((store, shape) for _, store, shape in self._shapes(one)),
                requested,
                _schema_of_records(one),
                None if one.dedupe is None else _kept_records(directory / one.name, _schema_of_records(one)),
            )
            for one in pipeline.record_stages
            if not span.is_backfill
        )
        streams = list(pipeline.streams)
        of_tasks = [streams.index(task.pieces[0].offsets.stream) for task in tasks]
        self.parts = [
            RecordsPart(
                name=f"{directory.name}-{number}",
                decoding=decoding,
                first=tuple(one for one in first if one[2].stream == of_tasks[number]),
                types=pipeline.inputs[of_tasks[number]].stream.types,
                events_from_ms=span.events_from_ms,
                events_before_ms=span.events_before_ms,
                has_late_letters=pipeline.spec.late != "drop",
                task=task,
                compared=compared,
                emissions=tuple(
                    replace(one, steps=path.steps)
                    for one, stage in zip(self._emissions, pipeline.record_stages, strict=False)
                    for path in stage.paths
                    if path.stream == of_tasks[number]
                ),
                duplicates_query=self._duplicates_query
                if self._duplicates_query and self._duplicates_query.stream == streams[of_tasks[number]]
                else None,
            )
            for number, task in enumerate(tasks)
        ]

    def compute(self, database: Database) -> Counter[str]:
        """Compute the span's windows, stage by stage, and write the resulting documents. Returns stage -> results."""
        counts: Counter[str] = Counter()
        if self._duplicates_query is not None:
            self.duplicates = self._duplicates_query.compute(database)
        with self._compared.writer(f"{self._directory.name}-documents") as documents:
            of_records = self._compare_records(database, documents)
            for at, stage in enumerate(self.span.pipeline.stages):
                shapes = self._shapes(stage)
                counts[stage.name] += 0
                for inside in self.results(database, at):
                    counts[stage.name] += inside.rows.num_rows
                    documents.append(self._result_letters(stage, inside.without_value))
                    for emit, store, shape in shapes:
                        shown = (
                            self._without_replaced(emit.name, inside.rows)
                            if sink_of(emit).has_generations
                            else inside.rows
                        )
                        documents.append(_documents(store, shape, shown))
        return of_records + Counter({name: counts[name] for name in self.span.windows if name in counts})

    def _compare_records(self, database: Database, documents: TableWriter) -> Counter[str]:
        """Write the documents of records, if duplicates among them had to be found first. Returns stage -> results."""
        counts: Counter[str] = Counter()
        for one in self._emissions:
            if one.later is not None and self._duplicates_query is not None:
                for batch in database.query(self._duplicates_query.without_duplicates(one.later, same_position)):
                    records = one.unpacked(batch)
                    documents.append(one.rows_of(records))
                    counts[one.stage] += records.num_rows
        return counts

    def results(self, database: Database, at: int) -> Iterator[Results]:
        """Yield the results of the stage with index `at` whose windows are in the span, in no order. Also append all
        its results to the tables of the stages that read them.
        """
        query, table = self._stages[at]
        post_steps = RowSteps(query.stage.post_steps, query.stage.window_types)
        ends = self.span.windows.get(query.stage.name)
        with ExitStack() as tables:
            consumers = [
                (one, tables.enter_context(self._stages[one.at][1].writer(f"results-{at}-{one.side}")))
                for one in self._following[at]
            ]
            for given in query.results(database, table, self._without_duplicates(query, table)):
                batch = results_behind_steps(post_steps, given, query.stage) if query.stage.post_steps else given
                failed = []
                for one, following in consumers:
                    rows, failed_here = self._rows_of_next(one, given, batch)
                    following.append(rows)
                    failed.append(failed_here)
                bad = pa.concat_batches(
                    [
                        batch.filter(pc.is_valid(batch.column(PROBLEM))),
                        each_once(failed, batch, query.stage.identifying),
                    ]
                )
                if ends is not None:
                    yield Results(batch.filter(_ends_in(batch, ends)), bad.filter(_ends_in(bad, ends)))

    def _without_duplicates(self, query: StageQuery, table: Table) -> str | None:
        """Return a query of the rows of a stage that no `dedupe` leaves out. None if all rows count."""
        if self._duplicates_query is None or query.stage.dedupe is None:
            return None
        return f"({self._duplicates_query.without_duplicates(table, query.same_position)})"

    def _rows_of_next(
        self, following: _Following, given: pa.RecordBatch, shown: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return results as rows of the next stage, and the results for which a step before that stage has no value.

        A result that is a dead letter isn't a row of the next stage. `shown`: results after the steps before the emission.
        """
        query = following.query
        results = given if following.before_post_steps else shown
        good = results.filter(results.column(PROBLEM).is_null())
        stepped = following.steps.apply(dict(zip(good.schema.names, good.columns, strict=True)), good.num_rows)
        failed = good.take(pa.array([problem.row for problem in stepped.problems], pa.int64()))
        # A window's results belong to its last moment.
        last_us = pc.subtract(pc.multiply(stepped.columns[WINDOW_END], 1000), 1)
        before = self.span.pipeline.stages[following.stage]

        def labels() -> Codes:
            branch = next(one for one in self._branches if following.at in one.stages)
            return np.asarray(labels_of_results(branch, following.at, stepped.columns))

        return query.rows_of_results(before, last_us, stepped.columns, labels), failed

    def _result_letters(self, stage: Stage, results: pa.RecordBatch) -> pa.RecordBatch:
        """Return the dead letters that must exist for these results, which have no value. None for a window in an index
        that a newer generation replaced.
        """
        span = self.span
        shape = letter_shape(span.pipeline, stage, span.version, span.generation, is_backfill=span.is_backfill)
        results = results if shape.is_stream else self._without_replaced(shape.emit_name, results)
        documents = shape.documents(results.drop_columns([PROBLEM]), 0, 0)
        identities = [f"{one.index or ''}/{one.id}" for one in documents]
        store, reason = RESULT_LETTERS + stage.name, REASON_EXPRESSION.encode()
        rows = [
            Row(store, identity, Side.COMPUTED, "", end_ms, None, reason)
            for identity, end_ms in zip(identities, results.column(WINDOW_END).to_pylist(), strict=True)
        ]
        return batch_of(rows, ROWS_SCHEMA)

    def _shapes(self, stage: Stage | RecordStage) -> list[tuple[Emit, str, DocumentShape]]:
        """Return the store and the shape of its documents for each emission whose results are compared. A backfill only writes to
        indices."""
        span, again = self.span, self.span.is_backfill
        return [
            (emit, store, document_shape(span.pipeline, stage, emit, span.version, span.generation, is_backfill=again))
            for emit in stage.emits
            for store in [store_of(emit)]
            if sink_of(emit).has_generations or (not again and sink_of(emit).is_compared)
        ]

    def _without_replaced(self, alias: str, results: pa.RecordBatch) -> pa.RecordBatch:
        """Leave out windows that a later generation replaced."""
        for newer in self.span.replaced.get(alias, ()):
            results = results.filter(pc.invert(_ends_in(results, EndRange(newer.after_ms, newer.up_to_ms))))
        return results


@dataclass(frozen=True)
class _Following:
    """The input of a stage that reads the results of another stage."""

    at: int
    """Index of the reading stage."""
    side: int
    """Side of a join."""
    stage: int
    """Index of the stage whose results are read."""
    before_post_steps: bool
    steps: RowSteps
    query: StageQuery

    @staticmethod
    def of(at: int, side: int, given: StageInput, stages: Sequence[Stage]) -> _Following:
        assert given.stage is not None, "the input reads results"
        stage, before = stages[at], stages[given.stage]
        steps = RowSteps(given.steps, before.window_types if given.before_post_steps else before.field_types)
        kinds = {**before.window_types, **KEYS_BESIDE}
        places = [pa.int64(), *(arrow_type(kinds[name]) for name in before.identifying)]
        query = query_of(stage, side, steps.types, places)
        return _Following(at, side, given.stage, given.before_post_steps, steps, query)


_OWN_COLUMNS = 4
"""Number of internal columns of an emitted record: event time, partition, offset, element."""


def _schema_of_records(stage: RecordStage) -> pa.Schema:
    own = [(EVENT_US, pa.int64()), (PARTITION, pa.int32()), (OFFSET, pa.int64()), (ELEMENT, pa.int32())]
    return pa.schema([*own, *((name, arrow_type(kind)) for name, kind in stage.fields)])


def _kept_records(directory: Path, schema: pa.Schema) -> Table:
    place = zip(POSITION, (pa.int32(), pa.int64(), pa.int32()), strict=True)
    table = Table(directory, pa.schema([*place, *((field.name, stored_type(field.type)) for field in schema)]))
    table.create()
    return table


def _ends_in(results: pa.RecordBatch, ends: EndRange) -> pa.Array:
    end_ms = results.column(WINDOW_END)
    return pc.and_(pc.greater(end_ms, ends.after_ms or 0), pc.less_equal(end_ms, ends.up_to_ms or 0))


def _documents(store: str, shape: DocumentShape, results: pa.RecordBatch) -> pa.RecordBatch:
    """Return the documents that the store must contain, as rows to compare."""
    columns = zip(
        shape.documents(results.drop_columns([PROBLEM]), 0, 0),
        results.column(WINDOW_END).to_pylist(),
        results.column(PROBLEM).is_null().to_pylist(),
        strict=True,
    )
    sink = sink_of_store(store)
    rows = [computed_row(store, sink, one, end_ms, is_good=is_good) for one, end_ms, is_good in columns]
    return batch_of(rows, ROWS_SCHEMA)
