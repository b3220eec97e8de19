"""The `map` step: columns that a Python function of an installed package computes from a batch of rows.

The values of a row must depend only on that row. To check this, some batches are computed again in two parts, and different
values stop the job. If the function raises an error, the batch is halved until each row that fails is alone. Such a row has a
problem, and the other rows have their values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.errors import FunctionUnusable
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.kinds.map_rows.step import MapRows
from strandline.processing.operators.row_operator import Mask, RowOperator, RowProblem, StepRows, missing
from strandline.processing.pipelines.functions.installed import first_line, installed_function, package_of

CHECKED_FIRST = 4
"""Number of batches that each process computes twice, from its first batch."""
CHECKED_EVERY = 100
"""After these batches, one batch of this number is computed twice."""


class MapOperator(RowOperator):
    """Adds the columns that the function of the step returns."""

    def __init__(self, step: MapRows, types: Mapping[str, str]) -> None:
        self._step = step
        self._mapped = MappedRows(step)
        self.types = {**types, **dict(step.added)}
        self.columns_read = step.reads

    def apply(self, rows: StepRows) -> Mask | None:
        step = self._step
        computed, errors = self._mapped(rows.columns, len(rows.places))
        good = np.ones(len(rows.places), np.bool_)
        for row, text in sorted(errors.items()):
            good[row] = False
            message = f"{step.path}: {step.function} failed with {text}"
            rows.problems.append(RowProblem(int(rows.places[row]), step.number, step.path, message))
        inputs = [rows.columns[name] for name in step.reads]
        for name, values in computed.items():
            if name not in step.may_be_null:
                failed = good & missing(values, inputs)
                message = f"{step.path}: {step.function} returned no value for {name}"
                rows.problems += [
                    RowProblem(row, step.number, step.path, message) for row in rows.places[failed].tolist()
                ]
                good &= ~failed
        rows.columns.update(computed)
        return good


operator_of = MapOperator


class MappedRows:
    """The calls of the function of one step in one process."""

    def __init__(self, step: MapRows) -> None:
        self._step = step
        self._schema = pa.schema([(name, arrow_type(kind)) for name, kind in step.columns])
        self._function: Callable[..., Any] | None = None
        self._batches = 0

    def __call__(self, columns: Mapping[str, pa.Array], rows: int) -> tuple[dict[str, pa.Array], dict[int, str]]:
        """Return the new columns, and the error of each row for which the function fails. Such rows have no values.

        Raises FunctionUnusable, which stops the job: the function isn't as the pipeline specifies.
        """
        batch = pa.RecordBatch.from_arrays([columns[name] for name in self._step.reads], list(self._step.reads))
        given, errors = self._computed(batch)
        self._batches += 1
        if self._batches <= CHECKED_FIRST or self._batches % CHECKED_EVERY == 0:
            self._refuse_other_values(batch, given, errors)
        return dict(zip(self._schema.names, given.columns, strict=True)), errors

    def _computed(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Compute rows with at most two calls for each row, and with one call if no row fails."""
        if not batch.num_rows:
            return self._nothing(0), {}
        try:
            answer = self._loaded()(batch)
        except FunctionUnusable:
            raise
        except Exception as error:  # noqa: BLE001  any error of an external function is a problem of its rows
            if batch.num_rows == 1:
                return self._nothing(1), {0: f"{type(error).__name__}: {first_line(error)}"}
            return self._in_two(batch)
        return self._checked(answer, batch.num_rows), {}

    def _in_two(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
        half = batch.num_rows // 2
        # A copy, so that the function can't find out which rows came before.
        first, errors = self._computed(_copied(batch.slice(0, half)))
        second, more = self._computed(_copied(batch.slice(half)))
        return pa.concat_batches([first, second]), errors | {half + row: text for row, text in more.items()}

    def _nothing(self, rows: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.nulls(rows, kind) for kind in self._schema.types], schema=self._schema)

    def _loaded(self) -> Callable[..., Any]:
        """Return the function. It is imported at the first call, because only processes that compute rows need it."""
        if self._function is None:
            here, wanted = package_of(self._step.function), self._step.package
            self._function = installed_function(self._step.function)
            if here != wanted:
                raise FunctionUnusable(
                    f"{self._step.path}: {self._step.function} belongs to {here} here, but to {wanted or 'no package'} where "
                    "the job was started; install the same package everywhere, and restart the job"
                )
        return self._function

    def _checked(self, answer: object, rows: int) -> pa.RecordBatch:
        """Return the answer of the function. Raises FunctionUnusable if its form isn't that of the step."""
        wanted = ", ".join(f"{name}: {kind}" for name, kind in self._step.columns)
        if not isinstance(answer, pa.RecordBatch):
            raise self._unusable(f"returned a {type(answer).__name__}; expected a RecordBatch with {wanted}")
        if answer.num_rows != rows:
            raise self._unusable(f"returned {answer.num_rows} rows for {rows}; expected one for each, in their order")
        if sorted(answer.schema.names) != sorted(self._schema.names):
            raise self._unusable(f"returned the columns {', '.join(answer.schema.names)}; expected {wanted}")
        given = []
        for name, kind in zip(self._schema.names, self._schema.types, strict=True):
            column = answer.column(name)
            if pa.types.is_null(column.type):
                column = pa.nulls(rows, kind)
            if column.type != kind:
                raise self._unusable(f"returned {name} as {column.type}; expected {kind}")
            given.append(column)
        return pa.RecordBatch.from_arrays(given, schema=self._schema)

    def _refuse_other_values(self, batch: pa.RecordBatch, given: pa.RecordBatch, errors: Mapping[int, str]) -> None:
        again, other_errors = self._in_two(batch) if batch.num_rows > 1 else self._computed(batch)
        names = [
            name
            for name, one, other in zip(self._schema.names, given.columns, again.columns, strict=True)
            if not _is_same(one, other)
        ]
        if names or errors.keys() != other_errors.keys():
            what = f"other values of {', '.join(names)}" if names else "errors for other rows"
            raise self._unusable(
                f"returned {what} when it was called again with the same rows, in two parts. The values of a row must depend "
                "only on that row, not on other rows, earlier calls, random numbers, or the clock: else a replay has other "
                "results"
            )

    def _unusable(self, what: str) -> FunctionUnusable:
        return FunctionUnusable(f"{self._step.path}: {self._step.function} of {self._step.package} {what}")


def _copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.take(pa.array(range(batch.num_rows), pa.int64()))


def _is_same(one: pa.Array, other: pa.Array) -> bool:
    """Compare to the last bit, also within lists and structs. Arrow's own comparison regards NaN as different from itself."""
    if not one.is_valid().equals(other.is_valid()):
        return False
    if pa.types.is_struct(one.type):
        return all(map(_is_same, one.flatten(), other.flatten()))
    if pa.types.is_list(one.type):
        lengths = map(pc.list_value_length, (one, other))
        return _is_same(*lengths) and _is_same(one.flatten(), other.flatten())
    if pa.types.is_floating(one.type):
        one, other = (pc.fill_null(array, 0.0).view(pa.int64()) for array in (one, other))
    return bool(one.equals(other))
