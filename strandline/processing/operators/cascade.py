"""All windows of a pipeline in one operator. Within one bucket, the results of a stage become rows of the stages that read
them. Pure.

The bucket of a record is a hash of fields by which every stage of its branch groups (`branches.py`). So a bucket contains all
records of its keys, a whole branch is computed in it, and no result crosses to another bucket. There is one exception.

A last stage of a path is *split* if it groups by no field that the stages before it share. It is also split if it is the only
stage and has no key. Each bucket then keeps its own partial results of the stage's windows. When these windows close, the
partial results of all buckets go to one bucket and are merged there. Each result has the label of its virtual bucket, or of its
input partition in a first stage. The results are merged in the order of the labels, so they don't depend on the number of
buckets.

If the stages before the last one share no field either, everything is in one bucket. The same is true for a last stage of
windows made by records that would be split, because a single bucket can't determine where their windows end.

If a `dedupe` is before the first window of a branch, duplicates are left out here, before the window. The fields of the bucket
are among the fields that it compares, or a whole partition is in one bucket. If it is before an emission of records, each
partition is deduplicated in one bucket.

A bucket has one state, with all windows of all branches, and the records that each `dedupe` keeps. Large parts of the state can
be stored separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.columns.codes import Codes
from strandline.processing.operators.blobs import pack, unpack
from strandline.processing.operators.closing import Closing
from strandline.processing.operators.dedupe.candidates import Candidates, DuplicateRecords, flags_in
from strandline.processing.operators.dedupe.dedupe_state import DedupeState, Flags, RecordHashes
from strandline.processing.operators.dedupe.duplicates import DuplicatesOperator
from strandline.processing.operators.keys import encode_keys, virtual_buckets_of, without_times
from strandline.processing.operators.open_groups import OpenGroups, OpenGroupsOperator, Segment
from strandline.processing.operators.row_operator import RowProblem
from strandline.processing.operators.row_steps import RowSteps
from strandline.processing.operators.segments import SegmentStore
from strandline.processing.operators.windows import ClosedWindows, Rows, WindowOperator
from strandline.processing.pipelines.graph.branches import Branch, entries_of, plan_branches
from strandline.processing.pipelines.kind_registry import part_of
from strandline.processing.pipelines.stages import LEFT, RecordStage, Stage, first_dedupe
from strandline.results.writer import PROBLEM, WINDOW_END, WINDOW_START

_ARGUMENT = "argument_{}"

SegmentStores = Callable[[int], SegmentStore]
"""Return the store of large segments of a bucket's state by a number: of each `dedupe`, then of each window of each branch."""


@dataclass(frozen=True)
class StageResults:
    """Final results of one stage in one step, ordered by window and key; see `WindowOperator.result_schema`."""

    stage: str
    rows: pa.RecordBatch
    failed: pa.RecordBatch
    """Results that a later stage can't use, because a step before it has no value; `problem` has the reason. Each result occurs
    once, even if several stages can't use it."""
    revised: pa.RecordBatch | None = None
    """Results that were final before and have changed, with their new values. None if there are none."""


@dataclass(frozen=True)
class StepResult:
    """The outcome of one step."""

    state: bytes
    results: list[StageResults]
    """Results of each stage in the order of the pipeline, without split stages."""
    parts: list[tuple[int, int, bytes]]
    """For split stages: (bucket that merges, index of the stage, partial results of closed windows)."""
    duplicates: int = 0
    """Number of rows that a `dedupe` has left out. Each is counted once, in one bucket."""
    repeated_records: DuplicateRecords | None = None
    """Duplicates for emissions of records after the `dedupe`. None if there is no such emission."""


@dataclass(frozen=True)
class OpenStage:
    """Open groups of one stage in a bucket, with its segments read."""

    at: int
    """Index of the stage."""
    groups: OpenGroups
    segments: list[Segment]


@dataclass(frozen=True)
class Chunk:
    """Rows of one input partition for one bucket, as they cross the exchange."""

    partition: int
    """Label of the partition (`partition_labels`). For a single stream, the number of the partition."""
    sequence: int
    """Index among the chunks of the partition."""
    blob: bytes
    entry: int = 0
    """Index in `Cascade.entries` of the branch and window that reads it."""


class Cascade:
    """The stages of one pipeline. Contains only constants; state and rows are arguments and results."""

    def __init__(
        self,
        stages: Sequence[Stage],
        buckets: int,
        record_stages: Sequence[RecordStage] = (),
    ) -> None:
        """`buckets`: number of buckets over which `keys.virtual_buckets_of` spreads the keys. Results don't depend on it.
        `record_stages`: those after a `dedupe` need the cascade."""
        self.buckets = buckets
        self.operators: list[WindowOperator] = []
        self.branches = plan_branches(stages)
        self.entries = entries_of(self.branches)
        """Entries of chunks: (index of the branch, index of the window in it)."""
        self._post_steps: list[RowSteps | None] = []
        consumers = [consumer for at, stage in enumerate(stages) for consumer in _takers_at(at, stage, stages)]
        for stage in stages:
            self.operators.append(_operator_of(stage, dict(stage.inputs[LEFT].columns)))
            self._post_steps.append(RowSteps(stage.post_steps, stage.window_types) if stage.post_steps else None)
        self._open = [OpenGroupsOperator(one) for one in self.operators]
        self._consumers = [[one for one in consumers if one.taken == at] for at in range(len(stages))]
        self.split_stages = [at for branch in self.branches for at in branch.split] if buckets > 1 else []
        """Indices of the stages whose results are returned by `merge`, not by `step`."""
        dedupe = first_dedupe([*record_stages, *stages])
        self.duplicates = None if dedupe is None else DuplicatesOperator(dedupe)
        """Operator that leaves out duplicates, before some or all branches and emissions of records. None without a `dedupe`."""
        self._deduped = [at for at, (_, first) in enumerate(self.entries) if stages[first].dedupe is not None]
        self.has_deduped_records = any(stage.dedupe is not None for stage in record_stages)
        """True if an emission of records is after the `dedupe`."""

    @property
    def is_split(self) -> bool:
        """True if results of a stage are returned by `merge`."""
        return bool(self.split_stages)

    def cut(
        self,
        partition: int,
        sequence: int,
        event_us: pa.Array,
        columns: dict[str, pa.Array],
        first: int = 0,
        candidates: Candidates | None = None,
        side: int = LEFT,
    ) -> Iterator[tuple[int, Chunk]]:
        """Divide records, after the record steps, into (bucket, chunk). Runs where records are decoded.

        - `partition`: label of the partition.
        - `event_us`: event time of each record, in microseconds.
        - `first`: index of the first window that reads them.
        - `candidates`: records that reached the `dedupe` before that window, with log positions if its operator needs them.
          None if there is no `dedupe`.
        - `side`: input of the window.
        """
        if not self.operators:
            return
        operator, events = self.operators[first], event_us.to_numpy(zero_copy_only=False)
        rows = operator.rows_of_records(side, partition, events, columns)
        if not len(rows.panes) and not candidates:
            return
        for number, (place, entry) in enumerate(self.entries):
            if entry != first:
                continue
            branch = self.branches[place]
            if first in branch.split:
                blob = self._pack(rows, np.arange(len(rows.panes)), candidates)
                yield partition % self.buckets, Chunk(partition, sequence, blob, number)
                continue
            bucket_of_row = self._buckets_of(branch, rows.key_table)[rows.keys]
            bucket_of_candidate = np.zeros(0, np.int64)
            if candidates is not None:
                keys = encode_keys(
                    [candidates.columns[name] for name in branch.bucket_by],
                    pa.schema([self.operators[first].key_schema.field(name) for name in branch.bucket_by]),
                    len(candidates),
                )
                bucket_of_candidate = self._buckets_of(branch, keys.table)[keys.codes]
            for bucket in np.unique(np.concatenate([bucket_of_row, bucket_of_candidate])).tolist():
                chosen = np.flatnonzero(bucket_of_row == bucket)
                here = candidates and candidates.chosen(bucket_of_candidate == bucket).with_rows(chosen)
                yield bucket, Chunk(partition, sequence, self._pack(rows, chosen, here), number)

    def cut_records(self, partition: int, sequence: int, candidates: Candidates) -> tuple[int, Chunk]:
        """Return (bucket, chunk) of the records that reached the `dedupe` before an emission of records, with their log
        positions."""
        return partition % self.buckets, Chunk(partition, sequence, pack([candidates.packed()]), len(self.entries))

    def _buckets_of(self, branch: Branch, keys: pa.RecordBatch) -> Codes:
        if not branch.bucket_by:
            return np.zeros(keys.num_rows, np.int64)
        return virtual_buckets_of(keys.select(branch.bucket_by)) % self.buckets

    def step(
        self,
        state: bytes | None,
        chunks: Sequence[Chunk],
        closing: Closing,
        stores: SegmentStores | None = None,
        *,
        emits: bool = True,
    ) -> StepResult:
        """Process the new rows of one slice in one bucket. Return the new state, and the results that become final.

        1. Fold the chunks into the first stage of their branch, by partition and sequence, whatever the order of the argument.
           Leave out duplicates.
        2. Pass the results of each stage through the steps to the stages that read them.
        3. If a stage is split, divide its closed windows by the bucket that merges them.

        `stores`: stores of this bucket. None if everything is in the state. `emits`: True if the results are emitted. If not,
        results that no stage here reads are left out.

        Raises StrandlineError if a segment isn't in its store.
        """
        states, dedupe_states = self._unpack_state(state)
        ordered = sorted(chunks, key=lambda one: (one.partition, one.sequence))
        results: dict[int, StageResults] = {}
        parts: list[tuple[int, int, bytes]] = []
        after: list[OpenGroups] = []
        dedupe_states_after: list[DedupeState] = []

        def duplicates_among(batches: Sequence[pa.RecordBatch]) -> list[Flags]:
            number = len(dedupe_states_after)
            kept, duplicates = self._duplicates(dedupe_states[number], batches, closing, stores and stores(number))
            dedupe_states_after.append(kept)
            return duplicates

        counts: list[int] = []
        rows_at: dict[tuple[int, int], list[Rows]] = {}
        for number, entry in enumerate(self.entries):
            given = [unpack(chunk.blob) for chunk in ordered if chunk.entry == number]
            partitions = [chunk.partition for chunk in ordered if chunk.entry == number]
            rows_at[entry] = [self._rows(*pair) for pair in zip(partitions, given, strict=True)]
            if number in self._deduped:
                candidates = {place: batches[2] for place, batches in enumerate(given) if len(batches) > 2}
                duplicates = duplicates_among(list(candidates.values()))
                counts.append(_counted(list(candidates.values()), duplicates))
                of_chunks = dict(zip(candidates, zip(candidates.values(), duplicates, strict=True), strict=True))
                rows_at[entry] = self._without_duplicates(entry[1], rows_at[entry], partitions, of_chunks)
        for number, branch in enumerate(self.branches):
            rows = {at: rows_at.get((number, at), []) for at in branch.stages}
            for at in branch.stages:
                is_taken = any(one.at in branch.stages for one in self._consumers[at])
                wanted = replace(closing, gives_results=emits or is_taken)
                store = stores and stores(self._dedupe_count + len(after))
                kept, windows = self._open[at].step(states[len(after)], rows.pop(at), wanted, store)
                after.append(kept)
                if at in self.split_stages:
                    parts += [(bucket, at, part) for one in windows for bucket, part in self._cut_windows(one)]
                    continue
                revised = [one for one in windows if one.is_revision]
                closed = self.operators[at].finish([one for one in windows if not one.is_revision])
                shown = self._behind_steps(at, closed)
                consumers = [one for one in self._consumers[at] if at in branch.emits or one.at in branch.stages]
                rows_of_consumers, failed = self._rows_of_results(branch, consumers, closed, shown)
                for consumer, some in rows_of_consumers:
                    rows[consumer].append(some)
                if at in branch.emits:
                    anew = self.operators[at].finish(revised) if revised else None
                    results[at] = StageResults(self.operators[at].stage.name, shown, failed, anew)
        repeated = None
        if self.has_deduped_records:
            of_records = [chunk for chunk in ordered if chunk.entry == len(self.entries)]
            batches = [unpack(chunk.blob)[0] for chunk in of_records]
            duplicates = duplicates_among(batches)
            counts.insert(0, _counted(batches, duplicates))
            places = zip([chunk.partition for chunk in of_records], batches, duplicates, strict=True)
            repeated = DuplicateRecords.of(list(places))
        windows = [part for one in after for part in one.packed()]
        packed = pack([*windows, *(part for one in dedupe_states_after for part in one.packed())])
        in_order = [results[at] for at in sorted(results)]
        return StepResult(packed, in_order, parts, counts[0] if counts else 0, repeated)

    def _duplicates(
        self, dedupe_state: DedupeState, batches: Sequence[pa.RecordBatch], closing: Closing, store: SegmentStore | None
    ) -> tuple[DedupeState, list[Flags]]:
        """Return the new state of the `dedupe`, and a mask of the duplicates among the candidates of each batch."""
        assert self.duplicates is not None, "only called with a dedupe"
        parts = [RecordHashes.unpacked(one) for one in batches]
        kept, duplicates = self.duplicates.step(dedupe_state, RecordHashes.joined(parts), closing, store)
        return kept, np.split(duplicates, np.cumsum([len(one) for one in parts])[:-1]) if parts else []

    def _without_duplicates(
        self,
        first: int,
        rows: Sequence[Rows],
        partitions: Sequence[int],
        duplicates: Mapping[int, tuple[pa.RecordBatch, Flags]],
    ) -> list[Rows]:
        """Return the rows of each chunk without the duplicates that the `dedupe` before the window found.

        `first`: index of the first window that reads the rows. `partitions`: partition of each chunk.
        `duplicates`: index of a chunk -> its records that reached the `dedupe`, and a mask of the duplicates among them.
        """
        kept = self.operators[first].without_duplicates(rows, partitions, duplicates)
        return [_only(one, kept[place]) if place in kept else one for place, one in enumerate(rows)]

    def merge(self, stage: int, parts: Sequence[bytes]) -> StageResults:
        """Return the results of the split stage with this index. `parts`: the parts from all buckets for one bucket, in any
        order."""
        operator = self.operators[stage]
        closed = self._behind_steps(stage, operator.finish_parts([ClosedWindows(*unpack(part)) for part in parts]))
        return StageResults(operator.stage.name, closed, closed.slice(0, 0))

    def open_stage(self, at: int, state: bytes, stores: SegmentStores | None = None) -> OpenStage:
        """Return the open groups of the stage with this index, for `open_results` and `open_parts`. `stores`: as for `step`.

        Raises StrandlineError if a segment isn't in its store.
        """
        held = [(branch, one) for branch in self.branches for one in branch.stages]
        states, _ = self._unpack_state(state)
        number = next(place for place, (branch, one) in enumerate(held) if one == at and at in branch.emits)
        groups = states[number]
        return OpenStage(at, groups, self._open[at].read(groups, stores and stores(self._dedupe_count + number)))

    def open_results(self, stage: OpenStage, closed_ms: int | None, rows_max: int) -> pa.RecordBatch:
        """Return the current results of the stage's windows that end after `closed_ms`, after its steps: at most about
        `rows_max`.

        The stage must not be split.
        """
        windows = self._open[stage.at].open_windows(stage.groups, stage.segments, closed_ms, rows_max)
        return self._behind_steps(stage.at, self.operators[stage.at].finish(windows))

    def open_parts(self, stage: OpenStage, closed_ms: int | None, rows_max: int) -> list[tuple[int, bytes]]:
        """Return the current partial results of a split stage: (bucket that merges, part for `merge`). See `open_results`."""
        windows = self._open[stage.at].open_windows(stage.groups, stage.segments, closed_ms, rows_max)
        return [part for one in windows for part in self._cut_windows(one)]

    def _behind_steps(self, at: int, closed: pa.RecordBatch) -> pa.RecordBatch:
        """Return the results of one stage after the steps before its emission. A result that fails there stays, with its
        problem. So does a result that had a problem before, which no step can read."""
        steps = self._post_steps[at]
        return closed if steps is None else results_behind_steps(steps, closed, self.operators[at].stage)

    def _cut_windows(self, closed: ClosedWindows) -> Iterator[tuple[int, bytes]]:
        """Yield (bucket that merges, part) of closed windows."""
        bucket_of_key = virtual_buckets_of(closed.keys) % self.buckets
        numbers = closed.groups.column(1).to_numpy()
        bucket_of_row = bucket_of_key[numbers]
        for bucket in np.unique(bucket_of_row).tolist():
            part = closed.groups.take(pa.array(np.flatnonzero(bucket_of_row == bucket)))
            yield bucket, pack([closed.keys, part])

    def _rows_of_results(
        self, branch: Branch, consumers: Sequence[_Consumer], closed: pa.RecordBatch, shown: pa.RecordBatch
    ) -> tuple[list[tuple[int, Rows]], pa.RecordBatch]:
        """Return the results of one stage as rows of the stages that read them: (index of that stage, rows). Also return the
        results for which a step on the path to such a stage has no value.

        `branch`: only its stages get rows. `consumers`: stages that read the results. `closed`: results before the `post_steps`,
        `shown`: after them, as they are emitted. A result with a problem isn't a row of a later stage.
        """
        rows: list[tuple[int, Rows]] = []
        failed: list[pa.RecordBatch] = []
        for consumer in consumers:
            results = closed if consumer.before_post_steps else shown
            good = results.filter(results.column(PROBLEM).is_null())
            stepped = consumer.steps.apply(dict(zip(good.schema.names, good.columns, strict=True)), good.num_rows)
            failed.append(_failed(good, stepped.problems))
            if consumer.at in branch.stages and len(stepped.rows):
                rows.append((consumer.at, self._rows_of(branch, consumer, stepped.columns)))
        if not consumers:
            return rows, shown.slice(0, 0)
        if len(consumers) == 1 and not consumers[0].before_post_steps:
            return rows, failed[0]
        return rows, each_once(failed, shown, self.operators[consumers[0].taken].stage.identifying)

    def _rows_of(self, branch: Branch, consumer: _Consumer, columns: dict[str, pa.Array]) -> Rows:
        # A window's results belong to its last microsecond.
        last_us = columns[WINDOW_END].to_numpy(zero_copy_only=False) * 1000 - 1
        before = self.operators[consumer.taken].stage
        return self.operators[consumer.at].rows_of_results(
            consumer.side, before, lambda: labels_of_results(branch, consumer.at, columns), last_us, columns
        )

    @property
    def _dedupe_count(self) -> int:
        """Number of `dedupe` states of a bucket."""
        return len(self._deduped) + self.has_deduped_records

    def _unpack_state(self, state: bytes | None) -> tuple[list[OpenGroups], list[DedupeState]]:
        """Return the state of each window of each branch, and of each `dedupe` before a branch. That of emissions of records is
        last."""
        stages = [at for branch in self.branches for at in branch.stages]
        if state is None:
            empty = [OpenGroups(self.operators[at].empty_state()) for at in stages]
            return empty, [DedupeState()] * self._dedupe_count
        parts = iter(unpack(state))
        groups = [OpenGroups.unpacked(parts) for _ in stages]
        return groups, [DedupeState.unpacked(next(parts), next(parts)) for _ in range(self._dedupe_count)]

    @staticmethod
    def _pack(rows: Rows, chosen: np.ndarray, candidates: Candidates | None = None) -> bytes:
        """Pack the chosen rows with only their keys, so that a blob contains nothing of other buckets."""
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
        beside = [] if candidates is None else [candidates.packed()]
        return pack([table, pa.RecordBatch.from_arrays(columns, names), *beside])

    @staticmethod
    def _rows(partition: int, batches: Sequence[pa.RecordBatch]) -> Rows:
        table, rows = batches[:2]
        keys = rows.column(1).to_numpy(zero_copy_only=False).astype(np.int64)
        return Rows(partition, rows.column(0).to_numpy(zero_copy_only=False), keys, table, rows.columns[2:])


def _only(rows: Rows, kept: Flags) -> Rows:
    """Return the rows of the mask `kept`. A key without rows disappears from the state later."""
    if kept.all():
        return rows
    arguments = [one.filter(pa.array(kept)) for one in rows.arguments]
    return replace(rows, panes=rows.panes[kept], keys=rows.keys[kept], arguments=arguments)


def _counted(batches: Sequence[pa.RecordBatch], duplicates: Sequence[Flags]) -> int:
    return sum(int((flags_in(one) & flags).sum()) for one, flags in zip(batches, duplicates, strict=True))


@dataclass(frozen=True)
class _Consumer:
    """A stage that reads the results of another stage."""

    at: int
    """Index of the window or join that reads."""
    side: int
    """Side of a join."""
    taken: int
    """Index of the stage that is read."""
    before_post_steps: bool
    """See `StageInput.before_post_steps`."""
    steps: RowSteps
    """Steps between the two stages."""


def _takers_at(at: int, stage: Stage, stages: Sequence[Stage]) -> Iterator[_Consumer]:
    """Yield the inputs of the stage with this index that are results of other stages. A join can have two."""
    for side, given in stage.result_inputs:
        assert given.stage is not None
        before = stages[given.stage]
        types = before.window_types if given.before_post_steps else before.field_types
        yield _Consumer(at, side, given.stage, given.before_post_steps, RowSteps(given.steps, types))


def labels_of_results(branch: Branch, at: int, columns: Mapping[str, pa.Array]) -> int | Codes:
    """Return the partition of these rows of the stage with this index, which reads results.

    It is the virtual bucket of each row if the stage is split, otherwise 0 for all rows. The rows of one label are ordered by
    window and key.
    """
    if at not in branch.split:
        return 0
    names = list(branch.bucket_by)
    return virtual_buckets_of(pa.RecordBatch.from_arrays([columns[name] for name in names], names))


def _operator_of(stage: Stage, types: dict[str, str]) -> WindowOperator:
    """Return the operator of a stage, by its kind. `types`: columns that the stage can read."""
    operator: WindowOperator = part_of(stage.kind, "operator", stage.kind_package).operator_of(stage, types)
    return operator


def results_behind_steps(steps: RowSteps, results: pa.RecordBatch, stage: Stage) -> pa.RecordBatch:
    """Return the results of a window after the stage's `post_steps`: WINDOW_START, WINDOW_END, the stage's fields, PROBLEM.

    Results that have a problem, from before or from a step, stay. Their dead letters contain the known values, and null for the
    others.
    """
    own = [name for name in stage.identifying if name not in stage.by]
    names = [WINDOW_START, WINDOW_END, *stage.field_types, *own, PROBLEM]
    schema = pa.schema(
        [
            results.schema.field(0),
            results.schema.field(1),
            *((name, arrow_type(kind)) for name, kind in stage.field_types.items()),
            *(results.schema.field(name) for name in own),
            (PROBLEM, pa.string()),
        ]
    )
    is_good = results.column(PROBLEM).is_null()
    good, bad = results.filter(is_good), results.filter(pc.invert(is_good))
    columns = dict(zip(good.schema.names, good.columns, strict=True))
    stepped = steps.apply(columns, good.num_rows)
    kept = pa.RecordBatch.from_arrays([stepped.columns[name] for name in names], schema=schema)
    bad = pa.concat_batches([bad, _failed(good, stepped.problems)])
    return pa.concat_batches([kept, _as_far_as_known(bad, schema)]) if bad.num_rows else kept


def _as_far_as_known(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with these columns: null if they have none with this name and type."""
    known = set(rows.schema.names)
    columns = [
        rows.column(one.name)
        if one.name in known and rows.column(one.name).type == one.type
        else pa.nulls(rows.num_rows, one.type)
        for one in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def each_once(failed: Sequence[pa.RecordBatch], shown: pa.RecordBatch, identifying: Sequence[str]) -> pa.RecordBatch:
    """Return the results that fail on the paths to later stages, each once, with the first problem. Results that have a problem
    where they are emitted are left out. `shown`: all emitted results. `identifying`: see `Stage.identifying`."""
    if not failed:
        return shown.slice(0, 0)
    names = [WINDOW_START, WINDOW_END, *identifying]
    found: set[tuple[object, ...]] = set()
    kept = []
    for rows in [shown.filter(shown.column(PROBLEM).is_valid()), *failed]:
        keys = list(zip(*(without_times(rows.column(name)).to_pylist() for name in names), strict=True))
        new = [place for place, key in enumerate(keys) if key not in found]
        found.update(keys)
        kept.append(_as_far_as_known(rows.take(pa.array(new, pa.int64())), shown.schema))
    return pa.concat_batches(kept[1:])


def _failed(results: pa.RecordBatch, problems: Sequence[RowProblem]) -> pa.RecordBatch:
    rows = results.take(pa.array([one.row for one in problems], pa.int64()))
    messages = pa.array([one.message for one in problems], pa.string())
    return rows.set_column(rows.schema.get_field_index(PROBLEM), PROBLEM, messages)


@lru_cache(maxsize=8)
def cascade_of(stages: tuple[Stage, ...], buckets: int, record_stages: tuple[RecordStage, ...] = ()) -> Cascade:
    """Return the cascade of these stages. It is compiled once in each process, because each slice has a task."""
    return Cascade(stages, buckets, record_stages)
