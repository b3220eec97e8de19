"""Requirements for a stream that a lookup follows: the lookup's fields, ordered keys, and a condition that deletes rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from strandline.core.documents import Path, YamlDocument, did_you_mean
from strandline.core.errors import Problem
from strandline.core.field_types import JSON_TYPE
from strandline.core.lookups.lookup import LookupSpec
from strandline.core.streams.stream import StreamSpec
from strandline.processing.pipelines.expression_types import infer_type
from strandline.processing.pipelines.expressions import ExpressionError, parse_expression, refuse_unknown_columns


def unfit_sources(
    documents: Iterable[YamlDocument], lookups: Mapping[str, LookupSpec], streams: Mapping[str, StreamSpec]
) -> Iterator[Problem]:
    """Yield the reasons why lookups of these documents can't follow the streams that they name. `streams`: all existing
    streams."""
    for document in documents:
        spec = lookups.get(document.name) if document.kind == "lookup" else None
        if spec is None or spec.source is None or spec.source.stream is None:
            continue
        stream = streams.get(spec.source.stream)
        if stream is None:
            hint = did_you_mean(spec.source.stream, streams)
            yield document.problem(("source", "stream"), f"there is no stream '{spec.source.stream}'{hint}")
            continue
        for path, message in problems_of_source(spec, stream):
            yield document.problem(path, message)


def problems_of_source(lookup: LookupSpec, stream: StreamSpec) -> Iterator[tuple[Path, str]]:
    """Yield the reasons why the lookup can't follow this stream, each with the field of the lookup's document."""
    assert lookup.source is not None
    path: Path = ("source", "stream")
    for message in stream.form.problems_of_lookup(stream, deletes=lookup.source.deleted_if is not None):
        yield path, message
    for name, field in lookup.fields.items():
        there = stream.fields.get(name)
        if there is None:
            yield (
                ("schema", name),
                f"stream '{stream.stream}' has no field '{name}'{did_you_mean(name, stream.fields)}; each field must be one "
                "of the stream's",
            )
        elif there.type != field.type:
            yield (
                ("schema", name),
                f"is a {field.type}, but a {there.type} in stream '{stream.stream}'; use that type",
            )
    if stream.partitions > 1 and stream.key not in lookup.key:
        of_stream = "no key" if stream.key is None else f"the key '{stream.key}'"
        yield (
            ("key",),
            f"stream '{stream.stream}' has {stream.partitions} partitions and {of_stream}, so records with one "
            f"{', '.join(lookup.key)} can be in several partitions, where their order is unknown. Include the stream's key in "
            "the lookup's key, or use one partition",
        )
    try:
        deletion_of(lookup, stream)
    except ExpressionError as error:
        yield ("source", "deleted_if"), f"{error} (in: {lookup.source.deleted_if})"


def deletion_of(lookup: LookupSpec, stream: StreamSpec) -> str | None:
    """Return the condition for a record that deletes its row, as SQL. None if no record does. Raises ExpressionError
    if the document's condition isn't a boolean expression over the fields of one record."""
    assert lookup.source is not None
    if lookup.source.deleted_if is None:
        return None
    expression = parse_expression(f"coalesce(({lookup.source.deleted_if}), false)")
    if expression.is_aggregate:
        raise ExpressionError("contains an aggregate; write a condition on the fields of one record")
    types = {name: field.type for name, field in stream.fields.items() if field.type != JSON_TYPE}
    refuse_unknown_columns(expression, types)
    kind = infer_type(expression, types)
    if kind != "boolean":
        raise ExpressionError(f"expected a condition that is true or false, got a {kind}")
    return expression.sql
