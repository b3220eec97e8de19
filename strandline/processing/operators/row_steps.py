"""The steps between windows, on columns: derived columns, filters, fields of lookups, and the rows for which a value is missing.
Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.record_headers import REASON_EXPRESSION, REASON_LOOKUP
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.operators.casting import cast
from strandline.processing.operators.evaluation import ColumnExpression
from strandline.processing.operators.functions.mapped_rows import MappedRows
from strandline.processing.operators.keys import without_times
from strandline.processing.operators.lookups.lookup_table import LookupTable
from strandline.processing.pipelines.stages import Dedupe, Derive, Enrich, MapRows, RowStep, Select, Where

Tables = Mapping[str, LookupTable]
NO_TABLES: Tables = {}
_SHOWN_CHARACTERS_MAX = 100


@dataclass(frozen=True)
class RowProblem:
    """A row for which a derived column or a filter has no value although all that it reads was there, or a lookup has no row."""

    row: int
    """Index of the row among the input rows."""
    number: int
    """Index of the step in the document."""
    step: str
    """Path of the step, or of the column in it."""
    message: str
    reason: str = REASON_EXPRESSION


def first_problems(problems: Iterable[RowProblem]) -> list[RowProblem]:
    """Of each row the problem of the step that stands first in the document, whichever branch came to it first."""
    found: dict[int, RowProblem] = {}
    for one in problems:
        known = found.setdefault(one.row, one)
        if one.number < known.number:
            found[one.row] = one
    return list(found.values())


@dataclass(frozen=True)
class SteppedRows:
    """What is left of the rows that came in."""

    columns: dict[str, pa.Array]
    rows: npt.NDArray[np.int64]
    """The place of each kept row among those that came in, ascending."""
    problems: list[RowProblem]
    """The rows that are left out because of a problem, ascending; a filter that is false leaves rows out silently."""


class RowSteps:
    """The steps of one stage, but for `dedupe`, compiled for columns of known types. Holds nothing that results depend on.
    Columns whose names begin with `@` are the platform's own, and stay whatever is selected."""

    def __init__(self, steps: Sequence[RowStep], types: Mapping[str, str]) -> None:
        known = dict(types)
        self._steps: list[tuple[Derive | Where | Select | MapRows | Enrich, list[ColumnExpression]]] = []
        self._mapped: dict[MapRows, MappedRows] = {}
        for step in steps:
            if isinstance(step, Where):
                self._steps.append((step, [ColumnExpression(step.sql, known)]))
            elif isinstance(step, MapRows):
                self._steps.append((step, []))
                self._mapped[step] = MappedRows(step)
                known |= dict(step.columns)
            elif isinstance(step, Dedupe):
                continue  # done behind the exchange
            elif isinstance(step, Select):
                self._steps.append((step, []))
                known = {name: known[name] for name in step.names}
            elif isinstance(step, Enrich):
                self._steps.append((step, []))
                known |= {column.name: column.type for column in step.columns}
            elif isinstance(step, Derive):
                self._steps.append((step, [ColumnExpression(column.sql, known) for column in step.columns]))
                known |= {column.name: column.type for column in step.columns}
        self.types = known
        """All columns after the last step."""

    @property
    def columns_read(self) -> tuple[str, ...]:
        """The columns that the steps read, derived ones among them."""
        names = [name for _, parts in self._steps for one in parts for name in one.columns]
        names += [name for step in self._mapped for name in step.reads]
        names += [name for step, _ in self._steps if isinstance(step, Enrich) for name in step.key_columns]
        return tuple(dict.fromkeys(names))

    def apply(self, columns: Mapping[str, pa.Array], rows: int, tables: Tables = NO_TABLES) -> SteppedRows:
        """Derive, filter and enrich. A row with a problem goes no further, whatever a later filter would say of it. A filter that
        lacks what it reads leaves the row out, as one that is false. `tables`: lookup -> the rows that are in force."""
        kept, places = dict(columns), np.arange(rows)
        problems: list[RowProblem] = []
        for step, expressions in self._steps:
            if isinstance(step, Select):
                # Fields that nothing reads are not decoded.
                names = [*(name for name in kept if name.startswith("@")), *step.names]
                kept = {name: kept[name] for name in names if name in kept}
                continue
            if isinstance(step, Where):
                keep = self._filter(step, expressions[0], kept, places, problems)
            elif isinstance(step, MapRows):
                keep = self._map(step, kept, places, problems)
            elif isinstance(step, Enrich):
                keep = _enrich(step, tables[step.lookup], kept, places, problems)
            else:
                keep = self._derive(step, expressions, kept, places, problems)
            if not keep.all():
                chosen = pa.array(np.flatnonzero(keep))
                kept = {name: column.take(chosen) for name, column in kept.items()}
                places = places[keep]
        problems.sort(key=lambda problem: problem.row)
        return SteppedRows(kept, places, problems)

    def _filter(
        self,
        step: Where,
        expression: ColumnExpression,
        columns: Mapping[str, pa.Array],
        places: npt.NDArray[np.int64],
        problems: list[RowProblem],
    ) -> npt.NDArray[np.bool_]:
        """Return for which rows the step's condition is true."""
        values = expression(columns, len(places))
        failed = _failed(values, [columns[name] for name in expression.columns])
        if failed.any():
            failed &= expression.fails(columns, len(places))
        problems += _problems(places[failed], step.number, step.path, step.sql)
        keep: npt.NDArray[np.bool_] = values.fill_null(False).to_numpy(zero_copy_only=False)
        return keep

    def _map(
        self,
        step: MapRows,
        columns: dict[str, pa.Array],
        places: npt.NDArray[np.int64],
        problems: list[RowProblem],
    ) -> npt.NDArray[np.bool_]:
        """Add the columns that the step's function gives; return which rows have no problem."""
        computed, errors = self._mapped[step](columns, len(places))
        good = np.ones(len(places), np.bool_)
        for row, text in sorted(errors.items()):
            good[row] = False
            problems.append(
                RowProblem(int(places[row]), step.number, step.path, f"{step.path}: {step.function} failed with {text}")
            )
        inputs = [columns[name] for name in step.reads]
        for name, values in computed.items():
            if name not in step.may_be_null:
                failed = good & _failed(values, inputs)
                text = f"{step.path}: {step.function} gave no value for {name}"
                problems += [RowProblem(row, step.number, step.path, text) for row in places[failed].tolist()]
                good &= ~failed
        columns.update(computed)
        return good

    def _derive(
        self,
        step: Derive,
        expressions: list[ColumnExpression],
        columns: dict[str, pa.Array],
        places: npt.NDArray[np.int64],
        problems: list[RowProblem],
    ) -> npt.NDArray[np.bool_]:
        """Add the step's columns, all computed from the columns before it; return which rows have no problem."""
        count = len(places)
        good = np.ones(count, np.bool_)
        computed = {}
        for column, expression in zip(step.columns, expressions, strict=True):
            values = cast(expression(columns, count), expression.type, column.type)
            computed[column.name] = values
            failed = good & _failed(values, [columns[name] for name in expression.columns])
            if failed.any():
                # What is not a number is there, and nobody's choice.
                failed &= values.is_valid().to_numpy(zero_copy_only=False) | expression.fails(columns, count)
            problems += _problems(places[failed], step.number, f"{step.path}.{column.name}", column.sql)
            good &= ~failed
        columns.update(computed)
        return good


def _enrich(
    step: Enrich,
    table: LookupTable,
    columns: dict[str, pa.Array],
    places: npt.NDArray[np.int64],
    problems: list[RowProblem],
) -> npt.NDArray[np.bool_]:
    """Add the fields of each row's match; return which rows go on."""
    keys = [columns[name] for name in step.key_columns]
    found = table.find(keys)
    columns.update(
        (one.name, table.column(one.sql, kind).cast(kind).take(found))
        for one in step.columns
        for kind in (arrow_type(one.type),)
    )
    if step.optional or not found.null_count:
        return np.ones(len(places), np.bool_)
    keep: npt.NDArray[np.bool_] = found.is_valid().to_numpy(zero_copy_only=False)
    missed = np.flatnonzero(~keep)
    values = [_shown(key.take(pa.array(missed))) for key in keys]
    for at, key in zip(missed.tolist(), zip(*values, strict=True), strict=True):
        shown = " and ".join(f"{name} {value}" for name, value in zip(step.key_columns, key, strict=True))
        text = f"{step.path}: lookup {table.name} has no row for {shown} (version {table.version})"
        problems.append(RowProblem(int(places[at]), step.number, step.path, text, REASON_LOOKUP))
    return keep


def _shown(values: pa.Array) -> list[str]:
    if pa.types.is_timestamp(values.type):
        texts = cast(values, "timestamp", "string").to_pylist()
        return [
            "null" if us is None else text or f"{us} us"  # beyond the years that are written
            for us, text in zip(without_times(values).to_pylist(), texts, strict=True)
        ]
    return [_shown_value(value) for value in values.to_pylist()]


def _shown_value(value: object) -> str:
    if value is None:
        return "null"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[:_SHOWN_CHARACTERS_MAX]}..."


def _problems(rows: npt.NDArray[np.int64], number: int, step: str, sql: str) -> list[RowProblem]:
    text = f"{step}: no value from {sql} (a division by zero, an overflow or a null)"
    return [RowProblem(row, number, step, text) for row in rows.tolist()]


def _failed(values: pa.Array, inputs: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
    """Where there is no value, or one that is not a number, although every input is there."""
    if pa.types.is_floating(values.type):
        lost = pc.is_null(values, nan_is_null=True)
    elif not values.null_count:
        return np.zeros(len(values), np.bool_)
    else:
        lost = values.is_null()
    failed: npt.NDArray[np.bool_] = lost.to_numpy(zero_copy_only=False)
    for column in inputs:
        if column.null_count:
            failed = failed & column.is_valid().to_numpy(zero_copy_only=False)
    return failed
