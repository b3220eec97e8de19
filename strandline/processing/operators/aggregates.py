"""All aggregates of a window stage: values computed for each row, partial results of each group, and final results. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import pyarrow as pa

from strandline.processing.aggregates.contract import AggregateCall
from strandline.processing.aggregates.kernel import Kernel, Partials
from strandline.processing.columns.codes import Codes
from strandline.processing.operators.aggregate_calls import AggregateCalls
from strandline.processing.pipelines.row_step import Column


class StageAggregates(AggregateCalls):
    """All aggregates of one window stage, from the rows to the results."""

    def __init__(self, stage: str, aggregates: Sequence[Column], types: Mapping[str, str]) -> None:
        super().__init__(stage, aggregates, types)
        self._kept: list[tuple[AggregateCall, Kernel]] = []
        """The calls that keep partial results, each with its kernel."""
        self._finished: list[tuple[int, Kernel]] = []
        """For each call, the index of its partial results in `_kept`, and the kernel that finishes them."""
        indices: dict[Hashable, int] = {}
        for number, call in enumerate(self.calls):
            kernel = call.function.kernel(call)
            shared = call.function.shared_state(call)
            key: Hashable = number if shared is None else (shared, call.arguments)
            index = indices.setdefault(key, len(self._kept))
            if index == len(self._kept):
                self._kept.append((call, kernel))
            self._finished.append((index, kernel))

    @property
    def partial_types(self) -> list[pa.DataType]:
        """Types of the columns of all partial results."""
        return [kind for _, kernel in self._kept for kind in kernel.partial_types]

    def fold(
        self,
        state: Sequence[pa.Array],
        state_codes: Codes,
        arguments: Sequence[pa.Array],
        row_codes: Codes,
        groups: int,
    ) -> list[pa.Array]:
        """Return the partial results of all functions after new rows. See `Kernel.fold`."""
        folded: list[pa.Array] = []
        for (call, kernel), partials in zip(self._kept, self._split(state), strict=True):
            rows = [arguments[at] for at in call.arguments]
            folded += kernel.fold(partials, state_codes, rows, row_codes, groups)
        return folded

    def merge(self, partials: Sequence[pa.Array], codes: Codes, groups: int) -> list[pa.Array]:
        """Combine the partial results of all functions. See `Kernel.merge`."""
        merged: list[pa.Array] = []
        for (_, kernel), columns in zip(self._kept, self._split(partials), strict=True):
            merged += kernel.merge(columns, codes, groups)
        return merged

    def finish(self, partials: Sequence[pa.Array], groups: int) -> tuple[list[pa.Array], pa.Array]:
        """Return the result columns, and a column with the problem of each result as a string: null if it has none."""
        parts = self._split(partials)
        return self.results([kernel.finish(parts[index]) for index, kernel in self._finished], groups)

    def _split(self, columns: Sequence[pa.Array]) -> list[Partials]:
        parts, first = [], 0
        for _, kernel in self._kept:
            end = first + len(kernel.partial_types)
            parts.append(list(columns[first:end]))
            first = end
        return parts
