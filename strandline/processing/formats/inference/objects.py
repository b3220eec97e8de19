"""The document of a stream whose records are objects: JSON, or maps that are converted to JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from strandline.core.documents import COLUMNS_MAX
from strandline.core.json_paths import path_text
from strandline.processing.formats.inference.embedded_text import with_opened
from strandline.processing.formats.inference.sample import Proposal, Proposed, readable
from strandline.processing.formats.inference.sample_shapes import (
    Row,
    SampleShape,
    rows_of_positions,
    shape_of,
    shape_of_lists,
)
from strandline.processing.formats.inference.schemas import Path, leaves, schema_of
from strandline.processing.formats.inference.time_order import event_time_of, times_of
from strandline.processing.formats.record_fields import JsonText


def propose_for_maps(
    name: str, format_name: str, read: Sequence[JsonText], records: Sequence[bytes]
) -> Proposed | None:
    """Return a document for records of a format that are maps. `read`: JSON objects of the records. None if most aren't maps."""
    objects = [one for one in read if isinstance(one, bytes)]
    if 2 * len(objects) < len(records):
        return None
    maps = list(readable([one.decode() for one in objects]))
    proposal = propose_for_objects(name, maps, explodes=False)
    proposal.document["format"] = format_name
    return proposal, list(records)


def propose_for_objects(
    name: str,
    objects: list[dict[str, Any]],
    *,
    explodes: bool = True,
    declared: Callable[[Path | None], Mapping[Path, str]] | None = None,
) -> Proposal:
    """Return a proposal for objects. `explodes`: True if a record can be several rows. `declared`: returns the known types for
    the path of the array whose elements are rows, or for None."""
    document: dict[str, Any] = {"stream": name, "format": "json"}
    proposal = Proposal(document)
    shape: SampleShape | None = None
    if explodes and declared is None:
        objects, embedded = with_opened(objects)
        if embedded:
            document["embedded"] = embedded
            proposal.notes += [f"the string {one['at']} contains JSON, whose members are read" for one in embedded]
    if explodes:
        shape, notes = shape_of(objects)
        proposal.notes += notes
    types = None if declared is None else declared(None if shape is None else shape.array)
    return _with_rows(proposal, objects, shape, types)


def propose_for_lists(name: str, records: list[list[Any]]) -> Proposal | None:
    """Return a proposal for records that are arrays: of objects, of arrays, or of values by position. None if they are others."""
    proposal = Proposal({"stream": name, "format": "json"})
    shape = shape_of_lists(records)
    if shape is not None:
        return _with_rows(proposal, [], shape, None)
    rows = rows_of_positions(records)
    if rows is None:
        return None
    proposal.notes.append("a record is an array, whose values are read by their positions; choose better names")
    proposal.document["schema"] = _schema_of(rows, proposal, None)
    return proposal


def _with_rows(
    proposal: Proposal, objects: list[dict[str, Any]], shape: SampleShape | None, types: Mapping[Path, str] | None
) -> Proposal:
    document = proposal.document
    if shape is None:
        document["schema"] = _schema_of([dict(leaves(one, ())) for one in objects], proposal, types)
        return proposal
    document["explode"] = shape.explode
    proposal.notes += shape.notes
    document["schema"] = shape.schema | _schema_of(shape.rows, proposal, types, taken=shape.schema, own=shape.own)
    _choose_time(proposal, shape)
    return proposal


def _choose_time(proposal: Proposal, shape: SampleShape) -> None:
    """Choose a time of each row as the event time, if there is one. A note names the time of the whole record."""
    schema = proposal.document["schema"]
    own_paths = set(map(path_text, shape.own))
    own: list[str] = []
    outer: list[str] = []
    for name in times_of(schema):
        spec = schema[name]
        path = spec.get("from", f"$.{name}") if isinstance(spec, dict) else f"$.{name}"
        (own if name in shape.schema or path in own_paths else outer).append(name)
    if own and outer:
        proposal.notes.append(
            f"{own[0]} is a time of each row, so it is the event time; {', '.join(outer)}: of the whole record"
        )
    proposal.event_time = next(iter(own), None)


def _schema_of(
    rows: Sequence[Row],
    proposal: Proposal,
    types: Mapping[Path, str] | None,
    taken: Mapping[str, Any] | None = None,
    own: Set[Path] = frozenset(),
) -> dict[str, Any]:
    found: dict[Path, list[Any]] = defaultdict(list)
    for row in rows:
        for path, value in row.items():
            found[path].append(value)
    fields_max = COLUMNS_MAX - len(taken or ())
    has_time = event_time_of(taken or {}) is not None
    return schema_of(
        found,
        len(rows),
        proposal.notes,
        is_text=False,
        declared=types,
        fields_max=fields_max,
        has_time=has_time,
        own=own,
    )
