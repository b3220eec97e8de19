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

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RecordsAtStage:
    """What comes to one emission of records."""

    stage: RecordStage
    columns: dict[str, pa.Array]
    rows: Places
    """The place of each row among those that came in, ascending."""


class RecordsAtWindow(NamedTuple):
    """What comes to one first window, or to one side of a join."""

    window: int
    """Its place among the pipeline's."""
    came: SteppedRows
    side: int = LEFT
    """Of a join."""


@dataclass
class SteppedRecords:
    """What became of the records that came in."""

    at_windows: list[RecordsAtWindow]
    at_stages: list[RecordsAtStage]
    problems: list[RowProblem]
    """The rows that fail on the way to a window or an emission, ascending, each once: with the problem of the first branch where
    it fails."""
    taken_by: dict[int, str] = field(default_factory=dict)
    """Row with a problem -> the stages that it came to all the same, in other branches, where there are any: `minutes,alarms`."""
    at_dedupe: SteppedRows | None = None
    """What comes to the pipeline's `dedupe`; None: there is none."""


class _First(NamedTuple):
    """A window that takes records, or one side of a join."""

    window: int
    side: int


@dataclass
class _Piece:
    """Steps that follow each other, and who takes what they leave."""

    steps: RowSteps
    has_dedupe: bool = False
    """Whether the first of them is a `dedupe`."""
    windows: list[_First] = field(default_factory=list)
    stages: list[RecordStage] = field(default_factory=list)
    following: list[_Piece] = field(default_factory=list)


class RecordChain:
    """All steps that are done to records, each once: branches share those with which they begin. A record that fails behind an
    emission was emitted there all the same, and goes no farther; one that fails in a branch is taken by the others all the
    same."""

    def __init__(
        self, stages: Sequence[RecordStage], windows: Sequence[Stage], types: Mapping[str, str], stream: int = 0
    ) -> None:
        """`windows`: those of the pipeline, in their order. `types`: the fields of the stream whose records these are; `stream`:
        its place among those that the pipeline reads."""
        takers: list[tuple[tuple[RowStep, ...], RecordStage | _First]] = [
            (path.steps, stage) for stage in stages for path in stage.paths if path.stream == stream
        ]
        takers += [
            (path.steps, _First(at, side))
            for at, window in enumerate(windows)
            for side, path in window.record_paths
            if path.stream == stream
        ]
        self._whole = _pieces(takers, 0, types)
        self._names = [window.name for window in windows]
        self._has_branches = _has_branches(self._whole)

    def apply(self, columns: Mapping[str, pa.Array], rows: int, tables: Tables = NO_TABLES) -> SteppedRecords:
        """What comes to each first window and to each emission, and what fails on the way. `tables`: lookup -> the rows that are
        in force."""
        found = SteppedRecords([], [], [])
        self._apply(self._whole, columns, np.arange(rows), tables, found)
        if self._has_branches and found.problems:
            found.problems[:] = first_problems(found.problems)
            found.taken_by.update(self._taken_by(found, np.array([one.row for one in found.problems])))
        found.problems.sort(key=lambda problem: problem.row)
        return found

    def _taken_by(self, found: SteppedRecords, failed: Places) -> dict[int, str]:
        came = [(stage.stage.name, stage.rows) for stage in found.at_stages]
        came += [(self._names[one.window], one.came.rows) for one in found.at_windows]
        taken: dict[int, list[str]] = {}
        for name, rows in came:
            for row in failed[np.isin(failed, rows)].tolist():
                taken.setdefault(row, []).append(name)
        return {row: ",".join(dict.fromkeys(names)) for row, names in taken.items()}

    def _apply(
        self, piece: _Piece, columns: Mapping[str, pa.Array], came: Places, tables: Tables, found: SteppedRecords
    ) -> None:
        """`came`: the place of each row among those that came in."""
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
    takers: Sequence[tuple[tuple[RowStep, ...], RecordStage | _First]], done: int, types: Mapping[str, str]
) -> _Piece:
    """The steps that these takers share behind the first `done`, with what comes behind. Steps of a document differ in where they
    stand, so equal ones are one."""
    until = _shared([steps for steps, _ in takers])
    steps = takers[0][0][done:until] if takers else ()
    dedupe = duplicate_filter_of(steps[1:])
    if dedupe is not None:  # it begins a piece
        until = done + steps.index(dedupe)
        steps = steps[: until - done]
    piece = _Piece(RowSteps(steps, types), isinstance(next(iter(steps), None), DuplicateFilter))
    following: dict[RowStep, list[tuple[tuple[RowStep, ...], RecordStage | _First]]] = {}
    for steps, taker in takers:
        if len(steps) > until:
            following.setdefault(steps[until], []).append((steps, taker))
        elif isinstance(taker, _First):
            piece.windows.append(taker)
        else:
            piece.stages.append(taker)
    piece.following = [_pieces(some, until, piece.steps.types) for some in following.values()]
    return piece


def _has_branches(piece: _Piece) -> bool:
    return len(piece.following) > 1 or any(map(_has_branches, piece.following))


def _shared(all_steps: Sequence[tuple[RowStep, ...]]) -> int:
    """With how many steps all of them begin."""
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
    """The chain of these steps for one stream, compiled once in each process."""
    return RecordChain(stages, windows, dict(types), stream)
