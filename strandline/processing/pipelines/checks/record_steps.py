"""The checks of steps that take one row after the other: of records, or of results of a window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from strandline.core.documents import Path, did_you_mean, path_text
from strandline.core.errors import FunctionUnusable
from strandline.core.field_types import WHOLE_RANGES, is_nested, normal_type
from strandline.processing.pipelines.checks.check_context import CheckContext, step_number
from strandline.processing.pipelines.functions.installed import installed_function, package_of
from strandline.processing.pipelines.lookups.lookup_shapes import LookupShape
from strandline.processing.pipelines.model.steps import DistinctSpec, EnrichSpec, MapSpec
from strandline.processing.pipelines.stages import (
    WHOLE_RANGE_MS,
    Column,
    Dedupe,
    Derive,
    Enrich,
    MapRows,
    Select,
    Where,
)


def check_derive(context: CheckContext, path: Path, derive: dict[str, str]) -> None:
    """Each name is new, and each expression has a type."""
    columns = []
    for name, text in derive.items():
        column = context.expression((*path, "derive", name), text, aggregate=False)
        if column:
            columns.append(column)
    _are_new(context, (*path, "derive"), derive)
    added = dict.fromkeys(derive) | {column.name: column.type for column in columns}
    context.end_step(Derive(step_number(path), tuple(columns)), {**context.columns, **added})


def check_map(context: CheckContext, path: Path, spec: MapSpec) -> None:
    """Fields that a Python function gives. Whether it may be called is asked of a document that is submitted; of a stored one
    it is asked where the function runs."""
    for number, name in enumerate(spec.reads):
        if name not in context.columns:
            context.add((*path, "reads", number), f"unknown column '{name}'{did_you_mean(name, context.columns)}")
        elif name in spec.reads[:number]:
            context.add((*path, "reads", number), f"'{name}' stands twice")
    if context.output.stage is None:
        for name in spec.reads:
            context.read(name)
    _are_new(context, (*path, "columns"), spec.columns)
    if context.is_submitted:
        try:
            installed_function(spec.function)
        except FunctionUnusable as error:
            context.add((*path, "function"), str(error))
    columns = [(name, normal_type(kind.removesuffix("?")) or kind) for name, kind in spec.columns.items()]
    may_be_null = tuple(name for name, kind in spec.columns.items() if kind.endswith("?"))
    context.end_step(
        MapRows(
            step_number(path),
            spec.function,
            tuple(spec.reads),
            tuple(columns),
            may_be_null,
            package_of(spec.function),
        ),
        {**context.columns, **dict(columns)},
    )


def _are_new(context: CheckContext, path: Path, names: Iterable[str]) -> None:
    before = {name.lower(): name for name in context.columns}
    for name in names:
        if other := before.get(name.lower()):
            context.add((*path, name), f"there is a column '{other}' already; choose another name")


def check_where(context: CheckContext, path: Path, text: str) -> None:
    """The condition is true or false."""
    column = context.expression(path, text, aggregate=False)
    if column and column.type != "boolean":
        context.add(path, f"expected a condition that is true or false, got a {column.type} (in: {text})")
    elif column:
        context.end_step(Where(step_number(path), column.sql))


def check_select(context: CheckContext, path: Path, names: Sequence[str]) -> None:
    """The columns are there, and each is named once."""
    for number, name in enumerate(names):
        if name not in context.columns:
            context.add((*path, number), f"unknown column '{name}'{did_you_mean(name, context.columns)}")
        elif name in names[:number]:
            context.add((*path, number), f"'{name}' stands twice")
    _keep(context, path, [name for name in dict.fromkeys(names) if name in context.columns])


def check_drop(context: CheckContext, path: Path, names: Sequence[str]) -> None:
    """The columns are there, and some are left."""
    for number, name in enumerate(names):
        if name not in context.columns:
            context.add((*path, number), f"unknown column '{name}'{did_you_mean(name, context.columns)}")
    _keep(context, path, [name for name in context.columns if name not in names])


def check_enrich(context: CheckContext, path: Path, enrich: EnrichSpec) -> None:
    """The lookup must be there, its whole key be given in columns of its types, and what is added be new."""
    if (window := context.window_before) is not None:
        context.add(
            path,
            f"stands behind window '{window.name}', and only records are enriched: a replay computes results of many slices "
            "at once, and each slice may have other rows of the lookup. Move it before the window, or emit to a stream and "
            "enrich in a pipeline that reads it",
        )
    shape = context.lookups.get(enrich.lookup)
    if shape is None:
        context.add(
            (*path, "lookup"), f"there is no lookup '{enrich.lookup}'{did_you_mean(enrich.lookup, context.lookups)}"
        )
        context.output = replace(context.output, columns={**context.columns, **dict.fromkeys(enrich.add)})
        return
    _lookup_key(context, (*path, "key"), enrich, shape)
    added = []
    before = {name.lower(): name for name in context.columns}
    for name, field in enrich.add.items():
        if other := before.get(name.lower()):
            context.add(
                (*path, "add"),
                f"there is a column '{other}' already; give the lookup's field another name, as {{{name}_2: {field}}}",
            )
        if field not in shape.types:
            context.add(
                (*path, "add"), f"lookup '{shape.name}' has no field '{field}'{did_you_mean(field, shape.types)}"
            )
        else:
            added.append(Column(name, field, shape.types[field]))
        before.setdefault(name.lower(), name)
    columns = {**context.columns, **dict.fromkeys(enrich.add), **{column.name: column.type for column in added}}
    key = tuple((field, enrich.key[field]) for field in shape.key if field in enrich.key)
    context.end_step(Enrich(step_number(path), shape.name, key, tuple(added), enrich.optional), columns)


def _lookup_key(context: CheckContext, path: Path, enrich: EnrichSpec, shape: LookupShape) -> None:
    """Each field of the lookup's key has a column of its type; whole numbers of both sizes are compared."""
    if set(enrich.key) != set(shape.key):
        given = ", ".join(enrich.key)
        context.add(
            path,
            f"the key of lookup '{shape.name}' is {', '.join(shape.key)}, and this gives {given}; where a column has another "
            f"name, write {{{shape.key[0]}: NAME}}",
        )
        return
    for field, name in enrich.key.items():
        if name not in context.columns:
            context.add(path, f"unknown column '{name}'{did_you_mean(name, context.columns)}")
            continue
        kind, wanted = context.columns[name], shape.types[field]
        if kind is not None and kind != wanted and not {kind, wanted} <= WHOLE_RANGES.keys():
            context.add(
                path,
                f"'{name}' is a {kind}, and '{field}' of lookup '{shape.name}' a {wanted}; derive a column of that type "
                f"first: cast({name} as {wanted})",
            )
        context.read(name)


def check_distinct(context: CheckContext, path: Path, distinct: DistinctSpec) -> None:
    """A dedupe over the whole range: only where that has an end, or what is remembered would grow for ever."""
    if not context.pipeline.is_batch:
        context.add(
            path,
            "remembers every record, so only a batch may have it: add an end to the input, as 'end: latest'; a job that goes "
            f"on leaves repeats out that come within a time: dedupe: {{by: [{', '.join(distinct.by)}], within: 1h}}",
        )
    check_dedupe(context, path, distinct.by, WHOLE_RANGE_MS)


def check_dedupe(context: CheckContext, path: Path, by: list[str], within_ms: int) -> None:
    """One for all branches, before the first window, by the stream's key at least: so that repeats are in one partition."""
    if (window := context.window_before) is not None:
        context.add(
            path, f"stands behind window '{window.name}', whose results come once each; move it before the window"
        )
    if context.dedupes:
        context.add(
            path,
            f"there is a dedupe already, {path_text(context.dedupes[0])}, and a pipeline has one: take from it by "
            "'from', or dedupe by other fields in a pipeline of its own",
        )
    context.dedupes.append(path)
    for number, name in enumerate(by):
        check_key(context, (*path, "by", number), name)
    if window is not None:
        return
    streams = [context.streams[one.stream] for one in context.output.paths]
    if len(streams) > 1:
        context.add(
            path,
            f"stands behind the union of {', '.join(one.stream for one in streams)}, and repeats are in one partition of one "
            f"stream; move it before the union, with 'from: {streams[0].stream}'",
        )
        return
    read = streams[0]
    key, stream = read.key, read.stream
    if read.partitions > 1 and key is None:
        context.add(
            path,
            f"stream '{stream}' has no key, so a record that is sent again may come to another partition, and the log has no "
            "order between partitions; give the stream a 'key', or 'partitions: 1'",
        )
    elif read.partitions > 1 and key not in by:
        context.add(
            (*path, "by"),
            f"expected '{key}' among the fields, the key of stream '{stream}', which a record that is sent again has, too: "
            f"it says in which partition both are; write [{', '.join([str(key), *by])}]",
        )
    context.end_step(Dedupe(step_number(path), tuple(by), within_ms))


def _keep(context: CheckContext, path: Path, names: Sequence[str]) -> None:
    """Go on with these columns alone. Behind a window its `by` fields are among them: they say which result it is."""
    window = context.window_before
    lost = [name for name in window.by if name not in names] if window else []
    if window and lost:
        context.add(path, f"leaves out {', '.join(lost)}, by which window '{window.name}' groups; keep them")
        names = [*lost, *names]
    if not names:
        context.add(path, "leaves no field; expected at least one")
    columns = {name: context.columns[name] for name in names if name in context.columns}
    context.end_step(Select(step_number(path), tuple(columns)), columns)


def check_key(context: CheckContext, path: Path, name: str) -> None:
    """One field of a window's `by`: any in sight that is no double."""
    if name not in context.columns:
        context.add(path, f"unknown column '{name}'{did_you_mean(name, context.columns)}")
    elif context.columns[name] == "double":
        context.add(
            path, f"'{name}' is a double, which makes no reliable key; use a string, a whole number or a decimal"
        )
    elif is_nested(context.columns[name] or ""):
        context.add(
            path, f"'{name}' has the type {context.columns[name]}, which makes no key; group by what stands in it"
        )
    elif not context.window_before:
        if context.is_json(name, context.output.paths):
            context.add(
                path, f"'{name}' is json, of which two texts may mean the same; declare the member that is the key"
            )
        context.read(name)
