"""The schema of a proposed document: one field for each path in the sample's records that has values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from strandline.core.document_values import FIELD_NAME, RESERVED_FIELDS
from strandline.core.documents import COLUMNS_MAX
from strandline.core.errors import StrandlineError
from strandline.core.json_paths import STEPS_MAX, path_text
from strandline.processing.formats.inference.field_types import ProposedType, are_most, type_of
from strandline.processing.formats.inference.text_hints import hint_of
from strandline.processing.formats.timestamps import parse_timestamp

Path = tuple[str | int, ...]
SOME_ZONE = "Asia/Kolkata"
"""A zone that was never UTC."""


class NoSampleError(StrandlineError):
    """The sample can't be used for a proposal."""

    code = "no_sample"


def leaves(value: dict[str, Any], path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield every value that isn't an object. A list is one value."""
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from leaves(inner, (*path, key))
        else:
            yield (*path, key), inner


def schema_of(
    found: Mapping[Path, list[Any]],
    rows: int,
    notes: list[str],
    *,
    is_text: bool,
    fields_max: int = COLUMNS_MAX,
    declared: Mapping[Path, str] | None = None,
) -> dict[str, Any]:
    """Return a field for the values at each path. Notes for the user are added to `notes`.

    Raises NoSampleError if no field remains.

    Args:
        rows: Number of rows.
        is_text: True if the values are strings, whatever their meaning.
        declared: Known types.
    """
    schema: dict[str, Any] = {}
    times = []
    if len(found) > fields_max:
        notes.append(f"{len(found) - fields_max:,} fields that occur in the fewest records are left out")
        found = dict(sorted(found.items(), key=lambda one: -len(one[1]))[:fields_max])
    within = _counts_within(found)
    for path, values in found.items():
        if len(path) >= STEPS_MAX:
            notes.append(f"{path_text(path)} has more steps than a path may have; left out")
            continue
        known = [value for value in values if value is not None]
        type_known = (declared or {}).get(path)
        if path in within and len(known) < max(1, within[path]):  # an object that some records lack
            if known:
                notes.append(
                    f"{path_text(path)} is an object, but in {len(known):,} of {rows:,} records it has another type, as "
                    f"{_shown(known[0])}; left out"
                )
            continue
        if type_known is None and not are_most(sum(not isinstance(value, list) for value in known), len(known)):
            element = path_text((*path, 0))
            what = "is always null" if not known else f"is an array; read single elements by a path, as {element}"
            notes.append(f"{path_text(path)} {what}; left out")
            continue
        proposed = _type_of(path, known, is_text=is_text) if type_known is None else ProposedType({"type": type_known})
        name = _field_name(path, schema)
        spec = _spec_of(name, path, proposed, is_required=len(known) == rows)
        if proposed.spec["type"] == "timestamp" and len(known) == rows:
            times.append(name)
        notes += _notes_of(name, proposed.spec, known, proposed.unfitting)
        schema[name] = spec
    if not schema:
        raise NoSampleError("the records of the sample contain no value that a field can have")
    if times:
        notes.append(f"for a pipeline: event_time: {{field: {times[0]}, delay: 10s}}")
    else:
        notes.append("no field is a time in every record; for a pipeline: event_time: {from: log}")
    return schema


def _type_of(path: Path, known: list[Any], *, is_text: bool) -> ProposedType:
    """The type for the values. None of them may be null. Arrays among them count as values that don't fit."""
    proposed = type_of(str(path[-1]), [one for one in known if not isinstance(one, list)], is_text=is_text)
    return ProposedType(proposed.spec, proposed.unfitting + [one for one in known if isinstance(one, list)])


def _spec_of(name: str, path: Path, proposed: ProposedType, *, is_required: bool) -> dict[str, Any] | str:
    """Return the shortest declaration of the field."""
    spec = dict(proposed.spec)
    if not is_required:
        spec["required"] = False
    if path != (name,):
        spec["from"] = path_text(path)
    if set(spec) == {"type", "required"}:
        return f"{spec['type']}?"
    return spec if len(spec) > 1 else str(spec["type"])


def _counts_within(found: Mapping[Path, list[Any]]) -> dict[Path, int]:
    """Return path of an object -> number of values of its most frequent member."""
    counts: dict[Path, int] = {}
    for path, values in found.items():
        count = sum(value is not None for value in values)
        for steps in range(1, min(len(path), STEPS_MAX)):
            counts[path[:steps]] = max(count, counts.get(path[:steps], 0))
    return counts


def _notes_of(name: str, spec: dict[str, Any], known: list[Any], unfitting: list[Any]) -> Iterator[str]:
    """Yield notes for the user on one field."""
    if unfitting:
        yield unfitting_note(name, spec, known, unfitting)
    texts = [value for value in known if isinstance(value, str)]
    if spec["type"] == "timestamp" and any(map(_is_of_a_clock, texts)):
        yield f"{name} has no time zone, so it is read as UTC; otherwise add tz: {SOME_ZONE} or another zone"
    if spec["type"] == "string" and texts and (hint := hint_of(name, texts)) is not None:
        yield hint


def unfitting_note(name: str, spec: dict[str, Any], known: list[Any], unfitting: list[Any]) -> str:
    """Return a note with the number of values that don't fit the proposed type, and one of them."""
    how_many = f"{len(unfitting):,} of {len(known):,}, as {_shown(unfitting[0])}"
    if "unit" in spec and not isinstance(unfitting[0], str | bool | list):
        return f"{name}: values that are not times of 2000 to 2099 in {spec['unit']}: {how_many}"
    return f"{name}: values that don't fit {spec['type']}: {how_many}; their records become dead letters"


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:40] + "..."


def _is_of_a_clock(text: str) -> bool:
    """Return True if the time has no zone, so that it depends on the location of the clock."""
    return parse_timestamp(text, "ms") != parse_timestamp(text, "ms", SOME_ZONE)


def _field_name(path: Path, taken: dict[str, Any]) -> str:
    """Return the last name on the path as a field name. If it is taken, prefix the names before it."""
    steps = [re.sub(r"\W", "_", str(step), flags=re.ASCII) for step in path]
    lower = {name.lower() for name in taken}
    for count in range(1, len(steps) + 1):
        name = "_".join(steps[-count:])
        name = name if FIELD_NAME.fullmatch(name) and not name.startswith("_") else f"f_{name.lstrip('_')}"[:200]
        if name.lower() not in lower and name.lower() not in RESERVED_FIELDS:
            return name
    return next(f"{name}_{number}" for number in range(2, len(taken) + 3) if f"{name}_{number}".lower() not in lower)
