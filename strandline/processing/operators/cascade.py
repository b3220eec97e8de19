"""All windows of a pipeline in one operator: each stage's results are the next one's rows, within one bucket. Pure.

The bucket of a record is a hash of the fields by which every stage groups. So a bucket holds all records of its keys, a whole
cascade runs in it, and no result crosses to another bucket, with one exception:

Where the last stage groups by none of the fields that the stages before it share (but perhaps by what these have computed), or
there is one stage, without a key, it is *split*: each bucket keeps its own partial results of the stage's windows. When these
close, the partial results of all buckets go to one bucket and are merged there. Each is labelled with its virtual bucket (in a
first stage: with its input partition), and they are merged in the order of the labels, so results don't depend on the number of
buckets.

Where the stages before the last one share no field either, everything is in one bucket; and where a last stage of sessions is of
this kind, because no bucket alone sees where a session ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.processing.operators.blobs import pack, unpack
from strandline.processing.operators.casting import arrow_type
from strandline.processing.operators.keys import Codes, virtual_buckets_of
from strandline.processing.operators.kinds.cumulative import CumulativeOperator
from strandline.processing.operators.kinds.sessions import SessionOperator
from strandline.processing.operators.row_steps import RowProblem, RowSteps
from strandline.processing.operators.windows import ClosedWindows, Closing, Rows, WindowOperator, WindowState
from strandline.processing.pipelines.stages import Stage
from strandline.results.writer import PROBLEM, WINDOW_END, WINDOW_START

_ARGUMENT = "argument_{}"


@dataclass(frozen=True)
class StageResults:
    """What became final of one stage in one step, ordered by window and key; see `WindowOperator.result_schema`."""

    stage: str
    rows: pa.RecordBatch
    failed: pa.RecordBatch
    """Those of them that the next stage can't use, because a step before it gives no value; `problem` says why."""


@dataclass(frozen=True)
class Stepped:
    """What one step gave."""

    state: bytes
    results: list[StageResults]
    """Of each stage, but for a last one that is split."""
    parts: list[tuple[int, bytes]]
    """Of a last stage that is split: (bucket that merges it, partial results of closed windows)."""


@dataclass(frozen=True)
class Chunk:
    """Rows of one input partition for one bucket, as they cross the exchange."""

    partition: int
    sequence: int
    """Their place among the chunks of the partition."""
    blob: bytes


class Cascade:
    """The stages of one pipeline. Holds what is fixed; states and rows are passed in and out."""

    def __init__(self, stages: Sequence[Stage], types: Mapping[str, str], buckets: int) -> None:
        """`types`: the fields of the stream, with their types. `buckets`: into how many buckets keys are spread, by
        `keys.virtual_buckets_of`. Results don't depend on it."""
        self.buckets = buckets
        self.operators: list[WindowOperator] = []
        self._steps: list[RowSteps] = []
        self._post_steps: list[RowSteps | None] = []
        types = dict(types)
        for stage in stages:
            steps = RowSteps(stage.pre_steps, types)
            self._steps.append(steps)
            self.operators.append(_operator_of(stage)(stage, steps.types))
            self._post_steps.append(RowSteps(stage.post_steps, stage.window_types) if stage.post_steps else None)
            types = stage.field_types
        self._is_wide = False
        self._bucket_by = _common_fields(stages)
        if not self._bucket_by and not (stages and stages[-1].gap_ms is not None):
            self._bucket_by = _common_fields(stages[:-1])
            self._is_wide = len(stages) == 1 or bool(self._bucket_by)
        self.is_split = self._is_wide and buckets > 1
        """Whether results of the last stage come from `merge`, not from `step`."""

    @property
    def bucket_by(self) -> list[str]:
        """The fields of which a record's bucket is a hash."""
        return list(self._bucket_by)

    @property
    def record_steps(self) -> RowSteps:
        """What is done to records before the first window."""
        return self._steps[0]

    def cut(
        self, partition: int, sequence: int, event_us: pa.Array, columns: dict[str, pa.Array]
    ) -> Iterator[tuple[int, Chunk]]:
        """Cut records, after the record steps, into (bucket, chunk). Runs where records are decoded.

        `event_us`: the event time of each, in whole microseconds.
        """
        if not self.operators:
            return
        first = self.operators[0]
        rows = first.rows(partition, event_us.to_numpy(zero_copy_only=False), columns)
        if not len(rows.panes):
            return
        if self._is_wide and len(self.operators) == 1:
            yield partition % self.buckets, Chunk(partition, sequence, self._pack(rows, np.arange(len(rows.panes))))
            return
        bucket_of_row = self._buckets_of(rows.key_table)[rows.keys]
        for bucket in np.unique(bucket_of_row).tolist():
            chosen = np.flatnonzero(bucket_of_row == bucket)
            yield bucket, Chunk(partition, sequence, self._pack(rows, chosen))

    def _buckets_of(self, keys: pa.RecordBatch) -> Codes:
        if not self._bucket_by:
            return np.zeros(keys.num_rows, np.int64)
        return virtual_buckets_of(keys.select(self._bucket_by)) % self.buckets

    def step(self, state: bytes | None, chunks: Sequence[Chunk], closing: Closing) -> Stepped:
        """(state, chunks of new rows, what closes) -> (state, results).

        1. Fold the chunks into the first stage, by partition and sequence, whatever their order here.
        2. Each further stage takes the results of the one before it, through its steps.
        3. If the last stage is split, cut what it closes by the bucket that merges it.
        """
        states = self._unpack_state(state)
        rows = [self._rows(chunk) for chunk in sorted(chunks, key=lambda one: (one.partition, one.sequence))]
        results: list[StageResults] = []
        after: list[WindowState] = []
        parts: list[tuple[int, bytes]] = []
        for at, operator in enumerate(self.operators):
            kept, windows = operator.step_in_part(states[at], rows, closing)
            after.append(kept)
            if self.is_split and at + 1 == len(self.operators):
                parts = [part for one in windows for part in self._cut_windows(one)]
                break
            closed = self._behind_steps(at, operator.finish(windows))
            failed = closed.slice(0, 0)
            if at + 1 < len(self.operators):
                rows, failed = self._rows_of_results(at + 1, closed)
            results.append(StageResults(operator.stage.name, closed, failed))
        return Stepped(pack([part for one in after for part in (one.keys, one.groups)]), results, parts)

    def merge(self, parts: Sequence[bytes]) -> StageResults:
        """The results of a last stage that is split, from the parts that all buckets have cut for one bucket, in any order."""
        operator = self.operators[-1]
        closed = self._behind_steps(-1, operator.finish_parts([ClosedWindows(*unpack(part)) for part in parts]))
        return StageResults(operator.stage.name, closed, closed.slice(0, 0))

    def _behind_steps(self, at: int, closed: pa.RecordBatch) -> pa.RecordBatch:
        """One stage's results behind the steps that stand before its emission. One that fails there stays, with the problem; so
        does one that had a problem before, which no step can use."""
        steps = self._post_steps[at]
        return closed if steps is None else results_behind_steps(steps, closed, self.operators[at].stage)

    def _cut_windows(self, closed: ClosedWindows) -> Iterator[tuple[int, bytes]]:
        """(bucket that merges, part) of closed windows."""
        bucket_of_key = virtual_buckets_of(closed.keys) % self.buckets
        numbers = closed.groups.column(1).to_numpy()
        bucket_of_row = bucket_of_key[numbers]
        for bucket in np.unique(bucket_of_row).tolist():
            part = closed.groups.take(pa.array(np.flatnonzero(bucket_of_row == bucket)))
            yield bucket, pack([closed.keys, part])

    def _rows_of_results(self, at: int, results: pa.RecordBatch) -> tuple[list[Rows], pa.RecordBatch]:
        """One stage's results as rows of the next, and those that fail on the way. A result that is a dead letter has no place in
        a further window."""
        operator = self.operators[at]
        good = results.filter(results.column(PROBLEM).is_null())
        columns = dict(zip(good.schema.names, good.columns, strict=True))
        stepped = self._steps[at].apply(columns, good.num_rows)
        failed = _failed(good, stepped.problems)
        if not len(stepped.rows):
            return [], failed
        # A window's results belong to its last microsecond.
        last_us = stepped.columns[WINDOW_END].to_numpy(zero_copy_only=False) * 1000 - 1
        partition: int | Codes = 0
        if self._is_wide and at + 1 == len(self.operators):
            names = list(self._bucket_by)
            partition = virtual_buckets_of(pa.RecordBatch.from_arrays([stepped.columns[name] for name in names], names))
        return [operator.rows(partition, last_us, stepped.columns)], failed

    def _unpack_state(self, state: bytes | None) -> list[WindowState]:
        if state is None:
            return [operator.empty_state() for operator in self.operators]
        parts = unpack(state)
        return [WindowState(parts[at], parts[at + 1]) for at in range(0, len(parts), 2)]

    @staticmethod
    def _pack(rows: Rows, chosen: np.ndarray) -> bytes:
        """The chosen rows with the keys that they have, so that a blob carries nothing of other buckets."""
        used, local = np.unique(rows.keys[chosen], return_inverse=True)
        places = pa.array(chosen)
        columns = [
            pa.array(rows.panes[chosen]),
            pa.array(local.astype(np.int32)),
            *[argument.take(places) for argument in rows.arguments],
        ]
        names = ["pane", "key", *[_ARGUMENT.format(at) for at in range(len(rows.arguments))]]
        table = rows.key_table
        if table.num_columns:
            table = table.take(pa.array(used))
        return pack([table, pa.RecordBatch.from_arrays(columns, names)])

    @staticmethod
    def _rows(chunk: Chunk) -> Rows:
        table, rows = unpack(chunk.blob)
        keys = rows.column(1).to_numpy(zero_copy_only=False).astype(np.int64)
        return Rows(chunk.partition, rows.column(0).to_numpy(zero_copy_only=False), keys, table, rows.columns[2:])


def _operator_of(stage: Stage) -> type[WindowOperator]:
    if stage.gap_ms is not None:
        return SessionOperator
    return CumulativeOperator if stage.is_cumulative else WindowOperator


def _common_fields(stages: Sequence[Stage]) -> list[str]:
    return [name for name in stages[-1].by if all(name in stage.by for stage in stages)] if stages else []


def results_behind_steps(steps: RowSteps, results: pa.RecordBatch, stage: Stage) -> pa.RecordBatch:
    """A window's results behind the stage's `post_steps`: WINDOW_START, WINDOW_END, the stage's fields, PROBLEM. Those that have
    a problem, before or by a step, stay: their dead letters show what is known of them, and null for the rest."""
    names = [WINDOW_START, WINDOW_END, *stage.field_types, PROBLEM]
    schema = pa.schema(
        [
            results.schema.field(0),
            results.schema.field(1),
            *((name, arrow_type(kind)) for name, kind in stage.field_types.items()),
            (PROBLEM, pa.string()),
        ]
    )
    is_good = results.column(PROBLEM).is_null()
    good, bad = results.filter(is_good), results.filter(pc.invert(is_good))
    columns = dict(zip(good.schema.names, good.columns, strict=True))
    stepped = steps.apply(columns, good.num_rows)
    kept = pa.RecordBatch.from_arrays([stepped.columns[name] for name in names], schema=schema)
    bad = pa.concat_batches([bad, _failed(good, stepped.problems)])
    if not bad.num_rows:
        return kept
    known = set(bad.schema.names)
    shown = [
        bad.column(one.name)
        if one.name in known and bad.column(one.name).type == one.type
        else pa.nulls(bad.num_rows, one.type)
        for one in schema
    ]
    return pa.concat_batches([kept, pa.RecordBatch.from_arrays(shown, schema=schema)])


def _failed(results: pa.RecordBatch, problems: Sequence[RowProblem]) -> pa.RecordBatch:
    rows = results.take(pa.array([one.row for one in problems], pa.int64()))
    messages = pa.array([one.message for one in problems], pa.string())
    return rows.set_column(rows.schema.get_field_index(PROBLEM), PROBLEM, messages)


@lru_cache(maxsize=8)
def cascade_of(stages: tuple[Stage, ...], types: tuple[tuple[str, str], ...], buckets: int) -> Cascade:
    """The cascade of these stages, compiled once in each process: a task comes with every slice."""
    return Cascade(stages, dict(types), buckets)
