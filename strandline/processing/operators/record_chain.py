"""The steps of a pipeline up to its first windows, and the emissions of records among them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.processing.operators.row_operator import NO_TABLES, RowProblem, Tables
from strandline.processing.operators.row_steps import RowSteps, SteppedRows, first_problems
from strandline.processing.pipelines.row_step import DuplicateFilter, RowStep, duplicate_filter_of
from strandline.processing.pipelines.stages import LEFT, RecordStage, Stage

RowIndices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RecordsAtStage:
    """The records that reach one emission of records."""

    stage: RecordStage
    columns: dict[str, pa.Array]
    rows: RowIndices
    """Index of each row among the input rows, ascending."""


class RecordsAtWindow(NamedTuple):
    """The records that reach one first window, or one side of a join."""

    window: int
    """Index of the window in the pipeline."""
    came: SteppedRows
    side: int = LEFT
    """Side of a join."""


@dataclass
class SteppedRecords:
    """The outcome of the input records."""

    at_windows: list[RecordsAtWindow]
    at_stages: list[RecordsAtStage]
    problems: list[RowProblem]
    """Rows that fail on a path to a window or an emission, ascending. Each occurs once, with the problem of the first branch
    where it fails."""
    taken_by: dict[int, str] = field(default_factory=dict)
    """Row with a problem -> the stages in other branches that it still reached, for example `minutes,alarms`."""
    at_dedupe: SteppedRows | None = None
    """Records that reach the pipeline's `dedupe`. None if there is none."""


class _First(NamedTuple):
    """A window that reads records, or one side of a join."""

    window: int
    side: int


@dataclass
class _ChainNode:
    """A linear sequence of steps, and the consumers of its output."""

    steps: RowSteps
    has_dedupe: bool = False
    """True if the first step is a `dedupe`."""
    windows: list[_First] = field(default_factory=list)
    stages: list[RecordStage] = field(default_factory=list)
    following: list[_ChainNode] = field(default_factory=list)


class RecordChain:
    """All steps for records. Branches share the steps with which they begin, so each step is computed once.

    A record that fails after an emission was still emitted there, and isn't passed on. A record that fails in one branch is
    still read by the others.
    """

    def __init__(
        self, stages: Sequence[RecordStage], windows: Sequence[Stage], types: Mapping[str, str], stream: int = 0
    ) -> None:
        """`windows`: windows of the pipeline, in their order. `types`: fields of the stream of the records. `stream`: index of
        this stream among those that the pipeline reads."""
        consumers: list[tuple[tuple[RowStep, ...], RecordStage | _First]] = [
            (path.steps, stage) for stage in stages for path in stage.paths if path.stream == stream
        ]
        consumers += [
            (path.steps, _First(at, side))
            for at, window in enumerate(windows)
            for side, path in window.record_paths
            if path.stream == stream
        ]
        self._whole = _pieces(consumers, 0, types)
        self._names = [window.name for window in windows]
        self._has_branches = _has_branches(self._whole)

    def apply(self, columns: Mapping[str, pa.Array], rows: int, tables: Tables = NO_TABLES) -> SteppedRecords:
        """Return the records that reach each first window and each emission, and the records that fail. `tables`: lookup -> its
        effective rows."""
        found = SteppedRecords([], [], [])
        self._apply(self._whole, columns, np.arange(rows), tables, found)
        if self._has_branches and found.problems:
            found.problems[:] = first_problems(found.problems)
            found.taken_by.update(self._taken_by(found, np.array([one.row for one in found.problems])))
        found.problems.sort(key=lambda problem: problem.row)
        return found

    def _taken_by(self, found: SteppedRecords, failed: RowIndices) -> dict[int, str]:
        came = [(stage.stage.name, stage.rows) for stage in found.at_stages]
        came += [(self._names[one.window], one.came.rows) for one in found.at_windows]
        taken: dict[int, list[str]] = {}
        for name, rows in came:
            for row in failed[np.isin(failed, rows)].tolist():
                taken.setdefault(row, []).append(name)
        return {row: ",".join(dict.fromkeys(names)) for row, names in taken.items()}

    def _apply(
        self,
        piece: _ChainNode,
        columns: Mapping[str, pa.Array],
        came: RowIndices,
        tables: Tables,
        found: SteppedRecords,
    ) -> None:
        """Apply the steps of a piece and of those after it, and add the outcome to `found`. `came`: index of each row among the
        input rows."""
        if piece.has_dedupe:
            found.at_dedupe = SteppedRows(dict(columns), came, [])
        stepped = piece.steps.apply(columns, len(came), tables)
        places = came[stepped.rows]
        found.problems.extend(replace(one, row=int(came[one.row])) for one in stepped.problems)
        for stage in piece.stages:
            kept = {name: stepped.columns[name] for name, _ in stage.fields}
            found.at_stages.append(RecordsAtStage(stage, kept, places))
        for first in piece.windows:
            found.at_windows.append(RecordsAtWindow(first.window, SteppedRows(stepped.columns, places, []), first.side))
        for one in piece.following:
            self._apply(one, stepped.columns, places, tables, found)


def _pieces(
    consumers: Sequence[tuple[tuple[RowStep, ...], RecordStage | _First]], done: int, types: Mapping[str, str]
) -> _ChainNode:
    """Return the steps that these consumers share after the first `done`, with all that follow. Steps that differ only in their
    position in the document are equal."""
    until = _shared([steps for steps, _ in consumers])
    steps = consumers[0][0][done:until] if consumers else ()
    dedupe = duplicate_filter_of(steps[1:])
    if dedupe is not None:  # a dedupe begins a new sequence
        until = done + steps.index(dedupe)
        steps = steps[: until - done]
    piece = _ChainNode(RowSteps(steps, types), isinstance(next(iter(steps), None), DuplicateFilter))
    following: dict[RowStep, list[tuple[tuple[RowStep, ...], RecordStage | _First]]] = {}
    for steps, consumer in consumers:
        if len(steps) > until:
            following.setdefault(steps[until], []).append((steps, consumer))
        elif isinstance(consumer, _First):
            piece.windows.append(consumer)
        else:
            piece.stages.append(consumer)
    piece.following = [_pieces(some, until, piece.steps.types) for some in following.values()]
    return piece


def _has_branches(piece: _ChainNode) -> bool:
    return len(piece.following) > 1 or any(map(_has_branches, piece.following))


def _shared(all_steps: Sequence[tuple[RowStep, ...]]) -> int:
    """Return the number of steps with which all of them begin."""
    count = 0
    for together in zip(*all_steps, strict=False):
        if any(one != together[0] for one in together):
            break
        count += 1
    return count


@lru_cache(maxsize=32)
def record_chain_of(
    stages: tuple[RecordStage, ...], windows: tuple[Stage, ...], types: tuple[tuple[str, str], ...], stream: int = 0
) -> RecordChain:
    """Return the chain of these steps for one stream. It is compiled once in each process."""
    return RecordChain(stages, windows, dict(types), stream)
