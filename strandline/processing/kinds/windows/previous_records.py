"""Windows whose aggregates need the record before each record, as `increase(x)` in `tumbling: 15m`.

The record before can be in an earlier window. So such a window becomes two stages. The first is a stage of the kind `previous`,
which is not emitted. It computes the calls for each record, and passes on the columns that the window reads. The second is the
window, with aggregates over these results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from strandline.core.documents import Path
from strandline.core.times.durations import format_duration
from strandline.processing.aggregates.contract import AcrossWindows
from strandline.processing.pipelines.aggregate_nodes import read_call
from strandline.processing.pipelines.checks.check_context import CheckContext, step_number
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.pipelines.expression_types import infer_type
from strandline.processing.pipelines.expressions import aggregate_calls_in, packages_called, parse_expression, tree_of
from strandline.processing.pipelines.kind_registry import part_of
from strandline.processing.pipelines.row_step import Column
from strandline.processing.pipelines.stages import Stage

WITHIN_MS_MIN = 3_600_000
"""Maximum time between two records if the call doesn't contain it, in windows of at most this size. In longer windows, it is
their size."""


def aggregates_of_records(
    context: CheckContext, path: Path, name: str, windows: WindowShape, by: Sequence[str], columns: Sequence[Column]
) -> tuple[Column, ...]:
    """Add the first stage to `context`, and return the aggregates of the window over its results.

    If no aggregate needs previous records, add no stage, and return the aggregates unchanged.
    """
    if windows.is_of_two or not any(map(_needs_previous, columns)):
        return tuple(columns)
    calls = _Calls(context, by)
    rewritten = [(one.name, calls.rewritten(one.sql)) for one in columns]
    if len(calls.within) > 1:
        times = " and ".join(format_duration(one) for one in sorted(filter(None, calls.within)))
        context.add(
            (*path, "aggregate"), f"the calls have different times between two records ({times}); write one time"
        )
    within_ms = max(filter(None, calls.within), default=max(WITHIN_MS_MIN, windows.memory_ms or windows.size_ms))
    by_types = {one: context.columns.get(one) for one in by}
    made = tuple(calls.made.values())
    context.end_stage(
        Stage(
            name=f"{name}.previous",
            windows=part_of("previous", "plan").PLAN.of(within_ms),
            by=tuple(by),
            by_types=tuple(kind or "" for kind in by_types.values()),
            aggregates=made,
            emits=(),
            inputs=(context.output.stage_input(),),
            number=step_number(path),
            packages=tuple(packages_called(one.sql for one in made).items()),
        ),
        by_types | {one.name: one.type for one in made},
    )
    types = {column: kind for column, kind in context.columns.items() if kind is not None}
    return tuple(Column(one, sql, infer_type(parse_expression(sql), types)) for one, sql in rewritten)


def _needs_previous(column: Column) -> bool:
    """Whether a call in this aggregate needs the record before each record."""
    return any(_across_windows(call) is not None for call in aggregate_calls_in(column.sql))


@dataclass
class _Calls:
    """Columns of the first stage, collected from the aggregates of the window."""

    context: CheckContext
    by: Sequence[str]
    made: dict[str, Column] = field(default_factory=dict)
    """SQL of a call -> its column."""
    within: set[int | None] = field(default_factory=set)
    """Times between two records that the calls contain, None for a call without one."""

    def rewritten(self, sql: str) -> str:
        """Return the expression over the output of the first stage."""
        tree = tree_of(sql).transform(self._without_calls)
        for column in list(tree.find_all(exp.Column)):
            if column.name not in self.by and not column.meta.get("is_made"):
                self._column(column.name, f"current({_sql(column)})")
        return _sql(tree)

    def _without_calls(self, node: exp.Expr) -> exp.Expr:
        condition = node.expression if isinstance(node, exp.Filter) else None
        call = node.this if isinstance(node, exp.Filter) else node
        if not isinstance(call, exp.AnonymousAggFunc) or (found := _across_windows(call)) is None:
            return node
        self.within.add(found.within_ms)
        names = [self._column(self._free_name(), one) for one in found.calls]
        behind = "" if condition is None else f" FILTER({_sql(condition).strip()})"
        made = tree_of(f"({found.value.format(*(f'`{one}`' for one in names), filter=behind)})")
        for column in made.find_all(exp.Column):
            column.meta["is_made"] = column.name in names
        return made

    def _column(self, name: str, sql: str) -> str:
        """Return the name of the column with the value of this call."""
        expression = parse_expression(sql)
        if expression.sql not in self.made:
            types = {one: kind for one in expression.columns if (kind := self.context.columns[one]) is not None}
            self.made[expression.sql] = Column(name, expression.sql, infer_type(expression, types))
        return self.made[expression.sql].name

    def _free_name(self) -> str:
        taken = {*self.context.columns, *(one.name for one in self.made.values())}
        return next(name for at in range(len(taken) + 1) if (name := f"previous_{at}") not in taken)


def _across_windows(call: exp.AnonymousAggFunc) -> AcrossWindows | None:
    read = read_call(call)
    return read.function.across_windows(tuple(map(_sql, read.columns)), read.parameters)


def _sql(node: exp.Expr) -> str:
    return str(node.sql(dialect="spark", identify=True))
