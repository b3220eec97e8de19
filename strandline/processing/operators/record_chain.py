"""The steps of a pipeline up to its first window, and the emissions of records among them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.processing.operators.row_steps import RowSteps, SteppedRows, Tables
from strandline.processing.pipelines.stages import RecordStage, RowStep

_NO_TABLES: Tables = {}
Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RecordsAtStage:
    """What comes to one emission of records."""

    stage: RecordStage
    columns: dict[str, pa.Array]
    rows: Places
    """The place of each row among those that came in, ascending."""


class RecordChain:
    """All steps that are done to records, each once. A record that fails behind an emission was emitted there all the same, and
    goes no further."""

    def __init__(self, stages: Sequence[RecordStage], steps: Sequence[RowStep], types: Mapping[str, str]) -> None:
        """`steps`: all of them; those of each stage in `stages` are some of the first."""
        self._stages = stages
        self._pieces: list[RowSteps] = []
        done = 0
        for until in [*(len(stage.pre_steps) for stage in stages), len(steps)]:
            piece = RowSteps(steps[done:until], types)
            self._pieces.append(piece)
            done, types = until, piece.types

    def apply(
        self, columns: Mapping[str, pa.Array], rows: int, tables: Tables = _NO_TABLES
    ) -> tuple[SteppedRows, list[RecordsAtStage]]:
        """What is left behind the last step, with all problems, as `RowSteps.apply` gives it; and what comes to each stage."""
        stepped = self._pieces[0].apply(columns, rows, tables)
        if len(self._pieces) == 1:
            return stepped, []
        at_stages: list[RecordsAtStage] = []
        problems = list(stepped.problems)
        for stage, piece in zip(self._stages, self._pieces[1:], strict=True):
            places = stepped.rows
            at_stages.append(RecordsAtStage(stage, {name: stepped.columns[name] for name, _ in stage.fields}, places))
            further = piece.apply(stepped.columns, len(places), tables)
            problems += [replace(one, row=int(places[one.row])) for one in further.problems]
            stepped = SteppedRows(further.columns, places[further.rows], [])
        problems.sort(key=lambda problem: problem.row)
        return SteppedRows(stepped.columns, stepped.rows, problems), at_stages


@lru_cache(maxsize=8)
def record_chain_of(
    stages: tuple[RecordStage, ...], steps: tuple[RowStep, ...], types: tuple[tuple[str, str], ...]
) -> RecordChain:
    """The chain of these steps, compiled once in each process."""
    return RecordChain(stages, steps, dict(types))
