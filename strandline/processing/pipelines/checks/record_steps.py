"""The checks of steps that take one row after the other: of records, or of results of a window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strandline.core.documents import Path, did_you_mean, path_text
from strandline.core.errors import FunctionUnusable
from strandline.core.field_types import WHOLE_RANGES, is_nested, normal_type
from strandline.processing.pipelines.checks.walk import Walk, step_number
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


def check_derive(walk: Walk, path: Path, derive: dict[str, str]) -> None:
    """Each name is new, and each expression has a type."""
    columns = []
    for name, text in derive.items():
        column = walk.expression((*path, "derive", name), text, aggregate=False)
        if column:
            columns.append(column)
    _are_new(walk, (*path, "derive"), derive)
    walk.columns |= dict.fromkeys(derive) | {column.name: column.type for column in columns}
    walk.done(Derive(step_number(path), tuple(columns)))


def check_map(walk: Walk, path: Path, spec: MapSpec) -> None:
    """Fields that a Python function gives. Whether it may be called is asked of a document that is submitted; of a stored one
    it is asked where the function runs."""
    for number, name in enumerate(spec.reads):
        if name not in walk.columns:
            walk.add((*path, "reads", number), f"unknown column '{name}'{did_you_mean(name, walk.columns)}")
        elif name in spec.reads[:number]:
            walk.add((*path, "reads", number), f"'{name}' stands twice")
    if walk.stage is None:
        for name in spec.reads:
            walk.read(name)
    _are_new(walk, (*path, "columns"), spec.columns)
    if walk.is_submitted:
        try:
            installed_function(spec.function)
        except FunctionUnusable as error:
            walk.add((*path, "function"), str(error))
    columns = [(name, normal_type(kind.removesuffix("?")) or kind) for name, kind in spec.columns.items()]
    may_be_null = tuple(name for name, kind in spec.columns.items() if kind.endswith("?"))
    walk.columns |= dict(columns)
    walk.done(
        MapRows(
            step_number(path),
            spec.function,
            tuple(spec.reads),
            tuple(columns),
            may_be_null,
            package_of(spec.function),
        )
    )


def _are_new(walk: Walk, path: Path, names: Iterable[str]) -> None:
    before = {name.lower(): name for name in walk.columns}
    for name in names:
        if other := before.get(name.lower()):
            walk.add((*path, name), f"there is a column '{other}' already; choose another name")


def check_where(walk: Walk, path: Path, text: str) -> None:
    """The condition is true or false."""
    column = walk.expression(path, text, aggregate=False)
    if column and column.type != "boolean":
        walk.add(path, f"expected a condition that is true or false, got a {column.type} (in: {text})")
    elif column:
        walk.done(Where(step_number(path), column.sql))


def check_select(walk: Walk, path: Path, names: Sequence[str]) -> None:
    """The columns are there, and each is named once."""
    for number, name in enumerate(names):
        if name not in walk.columns:
            walk.add((*path, number), f"unknown column '{name}'{did_you_mean(name, walk.columns)}")
        elif name in names[:number]:
            walk.add((*path, number), f"'{name}' stands twice")
    _keep(walk, path, [name for name in dict.fromkeys(names) if name in walk.columns])


def check_drop(walk: Walk, path: Path, names: Sequence[str]) -> None:
    """The columns are there, and some are left."""
    for number, name in enumerate(names):
        if name not in walk.columns:
            walk.add((*path, number), f"unknown column '{name}'{did_you_mean(name, walk.columns)}")
    _keep(walk, path, [name for name in walk.columns if name not in names])


def check_enrich(walk: Walk, path: Path, enrich: EnrichSpec) -> None:
    """The lookup must be there, its whole key be given in columns of its types, and what is added be new."""
    if (window := walk.window_before) is not None:
        walk.add(
            path,
            f"stands behind window '{window.name}', and only records are enriched: a replay computes results of many slices "
            "at once, and each slice may have other rows of the lookup. Move it before the window, or emit to a stream and "
            "enrich in a pipeline that reads it",
        )
    shape = walk.lookups.get(enrich.lookup)
    if shape is None:
        walk.add((*path, "lookup"), f"there is no lookup '{enrich.lookup}'{did_you_mean(enrich.lookup, walk.lookups)}")
        walk.columns |= dict.fromkeys(enrich.add)
        return
    _lookup_key(walk, (*path, "key"), enrich, shape)
    added = []
    before = {name.lower(): name for name in walk.columns}
    for name, field in enrich.add.items():
        if other := before.get(name.lower()):
            walk.add(
                (*path, "add"),
                f"there is a column '{other}' already; give the lookup's field another name, as {{{name}_2: {field}}}",
            )
        if field not in shape.types:
            walk.add((*path, "add"), f"lookup '{shape.name}' has no field '{field}'{did_you_mean(field, shape.types)}")
        else:
            added.append(Column(name, field, shape.types[field]))
        before.setdefault(name.lower(), name)
    walk.columns |= dict.fromkeys(enrich.add) | {column.name: column.type for column in added}
    key = tuple((field, enrich.key[field]) for field in shape.key if field in enrich.key)
    walk.pending.append(Enrich(step_number(path), shape.name, key, tuple(added), enrich.optional))


def _lookup_key(walk: Walk, path: Path, enrich: EnrichSpec, shape: LookupShape) -> None:
    """Each field of the lookup's key has a column of its type; whole numbers of both sizes are compared."""
    if set(enrich.key) != set(shape.key):
        given = ", ".join(enrich.key)
        walk.add(
            path,
            f"the key of lookup '{shape.name}' is {', '.join(shape.key)}, and this gives {given}; where a column has another "
            f"name, write {{{shape.key[0]}: NAME}}",
        )
        return
    for field, name in enrich.key.items():
        if name not in walk.columns:
            walk.add(path, f"unknown column '{name}'{did_you_mean(name, walk.columns)}")
            continue
        kind, wanted = walk.columns[name], shape.types[field]
        if kind is not None and kind != wanted and not {kind, wanted} <= WHOLE_RANGES.keys():
            walk.add(
                path,
                f"'{name}' is a {kind}, and '{field}' of lookup '{shape.name}' a {wanted}; derive a column of that type "
                f"first: cast({name} as {wanted})",
            )
        walk.read(name)


def check_distinct(walk: Walk, path: Path, distinct: DistinctSpec) -> None:
    """A dedupe over the whole range: only where that has an end, or what is remembered would grow for ever."""
    if not walk.pipeline.is_batch:
        walk.add(
            path,
            "remembers every record, so only a batch may have it: add an end to the input, as 'end: latest'; a job that goes "
            f"on leaves repeats out that come within a time: dedupe: {{by: [{', '.join(distinct.by)}], within: 1h}}",
        )
    check_dedupe(walk, path, distinct.by, WHOLE_RANGE_MS)


def check_dedupe(walk: Walk, path: Path, by: list[str], within_ms: int) -> None:
    """One for all branches, before the first window, by the stream's key at least: so that repeats are in one partition."""
    if (window := walk.window_before) is not None:
        walk.add(path, f"stands behind window '{window.name}', whose results come once each; move it before the window")
    if walk.dedupes:
        walk.add(
            path,
            f"there is a dedupe already, {path_text(walk.dedupes[0])}, and a pipeline has one: take from it by "
            "'from', or dedupe by other fields in a pipeline of its own",
        )
    walk.dedupes.append(path)
    for number, name in enumerate(by):
        check_key(walk, (*path, "by", number), name)
    streams = [walk.streams[one.stream] for one in walk.paths]
    if len(streams) > 1:
        walk.add(
            path,
            f"stands behind the union of {', '.join(one.stream for one in streams)}, and repeats are in one partition of one "
            f"stream; move it before the union, with 'from: {streams[0].stream}'",
        )
        return
    read = streams[0]
    key, stream = read.key, read.stream
    if read.partitions > 1 and key is None:
        walk.add(
            path,
            f"stream '{stream}' has no key, so a record that is sent again may come to another partition, and the log has no "
            "order between partitions; give the stream a 'key', or 'partitions: 1'",
        )
    elif read.partitions > 1 and key not in by:
        walk.add(
            (*path, "by"),
            f"expected '{key}' among the fields, the key of stream '{stream}', which a record that is sent again has, too: "
            f"it says in which partition both are; write [{', '.join([str(key), *by])}]",
        )
    walk.done(Dedupe(step_number(path), tuple(by), within_ms))


def _keep(walk: Walk, path: Path, names: Sequence[str]) -> None:
    """Go on with these columns alone. Behind a window its `by` fields are among them: they say which result it is."""
    window = walk.window_before
    lost = [name for name in window.by if name not in names] if window else []
    if window and lost:
        walk.add(path, f"leaves out {', '.join(lost)}, by which window '{window.name}' groups; keep them")
        names = [*lost, *names]
    if not names:
        walk.add(path, "leaves no field; expected at least one")
    walk.columns = {name: walk.columns[name] for name in names if name in walk.columns}
    walk.done(Select(step_number(path), tuple(walk.columns)))


def check_key(walk: Walk, path: Path, name: str) -> None:
    """One field of a window's `by`: any in sight that is no double."""
    if name not in walk.columns:
        walk.add(path, f"unknown column '{name}'{did_you_mean(name, walk.columns)}")
    elif walk.columns[name] == "double":
        walk.add(path, f"'{name}' is a double, which makes no reliable key; use a string, a whole number or a decimal")
    elif is_nested(walk.columns[name] or ""):
        walk.add(path, f"'{name}' has the type {walk.columns[name]}, which makes no key; group by what stands in it")
    elif not walk.window_before:
        if walk.is_json(name, walk.paths):
            walk.add(
                path, f"'{name}' is json, of which two texts may mean the same; declare the member that is the key"
            )
        walk.read(name)
