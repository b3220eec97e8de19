"""The check of `enrich`."""

from __future__ import annotations

from dataclasses import replace

from strandline.core.documents import Path, did_you_mean
from strandline.core.field_types import WHOLE_RANGES
from strandline.processing.kinds.enrich.document import EnrichSpec
from strandline.processing.kinds.enrich.step import Enrich
from strandline.processing.pipelines.checks.check_context import CheckContext, step_number
from strandline.processing.pipelines.lookups.lookup_shapes import LookupShape
from strandline.processing.pipelines.row_step import Column


def check(context: CheckContext, path: Path, enrich: EnrichSpec) -> None:
    """Add a problem to `context` if the step is after a window, the lookup or an added field doesn't exist, the key doesn't fit,
    or an added column isn't new. End the step with the added columns."""
    if (window := context.window_before) is not None:
        context.add(
            path,
            f"is after window '{window.name}', but only records can be enriched: a replay computes results of many slices "
            "together, and each slice can use another version of the lookup. Move it before the window, or emit to a stream "
            "and enrich in a pipeline that reads the stream",
        )
    shape = context.lookups.get(enrich.lookup)
    if shape is None:
        context.add(
            (*path, "lookup"), f"no lookup is called '{enrich.lookup}'{did_you_mean(enrich.lookup, context.lookups)}"
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
                f"a column is already called '{other}'; rename the field of the lookup, as {{{name}_2: {field}}}",
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
    """Add a problem to `context` for each field of the lookup's key without a column of its type. Both sizes of integers fit."""
    if set(enrich.key) != set(shape.key):
        given = ", ".join(enrich.key)
        context.add(
            path,
            f"the key of lookup '{shape.name}' is {', '.join(shape.key)}, but this step has {given}; if a column has another "
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
                f"'{name}' is a {kind}, but '{field}' of lookup '{shape.name}' is a {wanted}; derive a column of that type "
                f"first: cast({name} as {wanted})",
            )
        context.read(name)
