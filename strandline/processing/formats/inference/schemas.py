"""The schema of a proposed document: one field for each path in the sample's records that has values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Set
from itertools import pairwise
from typing import Any

from strandline.core.document_values import FIELD_NAME, RESERVED_FIELDS
from strandline.core.documents import COLUMNS_MAX
from strandline.core.errors import StrandlineError
from strandline.core.json_paths import STEPS_MAX, path_text
from strandline.processing.formats.inference.field_types import (
    ProposedType,
    are_most,
    is_beyond,
    is_code,
    type_of,
    value_of,
)
from strandline.processing.formats.inference.missing_values import is_marker
from strandline.processing.formats.inference.names import is_counted, is_identifier
from strandline.processing.formats.inference.text_hints import hint_of, only_pattern, time_patterns
from strandline.processing.formats.inference.time_order import TimeField, best_time
from strandline.processing.formats.timestamps import parse_timestamp
from strandline.processing.pipelines.expressions import column_text

Path = tuple[str | int, ...]
_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}", re.ASCII)
_CLOCK = re.compile(r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d{1,6})?)?(?: ?[AaPp][Mm])?", re.ASCII)
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
    has_time: bool = False,
    own: Set[Path] = frozenset(),
) -> dict[str, Any]:
    """Return a field for the values at each path. Notes for the user are added to `notes`.

    `own`: paths of values that belong to one row, if others belong to the whole record.

    Raises NoSampleError if no field remains.

    Args:
        rows: Number of rows.
        is_text: True if the values are strings, whatever their meaning.
        declared: Known types.
        has_time: True if each row has its time in another field.
    """
    schema: dict[str, Any] = {}
    whole: list[str] = []
    times: list[TimeField] = []
    if len(found) > fields_max:
        notes.append(f"{len(found) - fields_max:,} fields that occur in the fewest records are left out")
        found = dict(sorted(found.items(), key=lambda one: -len(one[1]))[:fields_max])
    within = _counts_within(found)
    joined = _times_in_two(found, rows, notes)
    for path, values in found.items():
        if path in joined:
            if (whole_time := joined[path]) is not None:
                schema[name := _field_name((*path[:-1], "at"), schema)] = whole_time
                times.append(TimeField(name, len(path), 0, is_own=not own or path in own))
            continue
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
        if proposed.spec["type"] == "long" and type_known is None and not is_counted(str(path[-1])):
            whole.append(name)
        lacking = rows - len(known) + ("missing" in proposed.spec) * sum(map(is_marker, known))
        if proposed.spec["type"] == "timestamp":
            times.append(TimeField(name, len(path), lacking, is_own=not own or path in own))
        elif lacking and are_most(rows - lacking, rows) and is_identifier(str(path[-1])):
            notes.append(
                f"{name}: records without it: {lacking:,} of {rows:,}; if it identifies the sender, declare it as "
                "required, so that nothing is computed without it"
            )
        notes += _notes_of(name, proposed.spec, known, proposed.unfitting)
        schema[name] = spec
    if not schema:
        raise NoSampleError("the records of the sample contain no value that a field can have")
    if not has_time and (time := best_time(times, rows)) is not None and time.lacking:
        schema[time.name] = _required(schema[time.name])
        notes.append(
            f"{time.name}: records without it: {time.lacking:,} of {rows:,}; they become dead letters, because it is the event "
            f"time. To use their log time instead, declare {time.name} as optional, and add else: log to the event time"
        )
    if whole:
        notes.append(
            f"{', '.join(whole)}: all values of the sample are integers, and a fraction, as 26.5, would be rejected; declare a "
            "measured field as double"
        )
    return schema


def _type_of(path: Path, known: list[Any], *, is_text: bool) -> ProposedType:
    """The type for the values. None of them may be null. Arrays among them count as values that don't fit."""
    values = [one for one in known if not isinstance(one, list)]
    proposed = type_of(str(path[-1]), values, is_text=is_text)
    if proposed.spec["type"] == "string" and (pattern := only_pattern(values)) is not None:
        proposed = ProposedType({"type": "timestamp", "pattern": pattern})
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


def _required(spec: dict[str, Any] | str) -> dict[str, Any] | str:
    """Return the declaration of a field that each record must have."""
    if isinstance(spec, str):
        return spec.removesuffix("?")
    return {key: value for key, value in spec.items() if key != "required"}


def _times_in_two(found: Mapping[Path, list[Any]], rows: int, notes: list[str]) -> dict[Path, dict[str, Any] | None]:
    """Return path of a date -> field that joins it with the time next to it. The path of the time has None."""
    joined: dict[Path, dict[str, Any] | None] = {}
    for date, time in pairwise(found):
        dates, times = found[date], found[time]
        if date in joined or len(dates) != rows or len(times) != rows or not rows:
            continue
        if not _are(_DATE, dates) or not _are(_CLOCK, times):
            continue
        texts = [f"{day} {clock}" for day, clock in zip(dates, times, strict=True)]
        is_iso = all(parse_timestamp(text, "ms") is not None for text in texts)
        patterns = [] if is_iso else time_patterns(texts)
        spec: dict[str, Any] = {"type": "timestamp", "from": [path_text(date), path_text(time)]}
        if len(patterns) == 1:
            spec["pattern"] = patterns[0]
        elif not is_iso:
            either = " or ".join(map(json.dumps, patterns))
            notes.append(
                f"{path_text(date)} and {path_text(time)} are one time, with the pattern {either}; declare {spec}"
            )
            continue
        notes.append(
            f"at is {path_text(date)} and {path_text(time)}, without a time zone, so it is read as UTC; otherwise add tz: "
            f"{SOME_ZONE} or another zone"
        )
        joined |= {date: spec, time: None}
    return joined


def _are(form: re.Pattern[str], values: list[Any]) -> bool:
    return all(isinstance(value, str) and form.fullmatch(value) for value in values)


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
    if spec["type"] == "any":
        yield (
            f"{name} has values of several types, as {_shown_types(known)}, so it is read as they are written; convert it in a "
            f'pipeline: derive: {{{name}_number: "try_cast({column_text(name)} as double)"}}'
        )
    if "missing" in spec:
        yield f"{name}: {', '.join(map(_shown, spec['missing']))} is read as no value (missing)"
    if spec.get("text") and spec["type"] in ("long", "double"):
        yield f"{name} has numbers in quotes, which are read as numbers (text: true)"
    if unfitting:
        yield unfitting_note(name, spec, known, unfitting)
    texts = [value for value in known if isinstance(value, str)]
    if spec["type"] == "timestamp" and "pattern" in spec:
        if "X" not in spec["pattern"] and "'UTC'" not in spec["pattern"] and "'GMT'" not in spec["pattern"]:
            yield f"{name} has no time zone, so it is read as UTC; otherwise add tz: {SOME_ZONE} or another zone"
    elif spec["type"] == "timestamp" and any(map(_is_of_a_clock, texts)):
        yield f"{name} has no time zone, so it is read as UTC; otherwise add tz: {SOME_ZONE} or another zone"
    if spec["type"] == "string" and len(texts) == len(known) and all(map(_is_whole_number, texts)):
        yield (
            f"{name} has numbers in quotes that can be identifiers, so it is a string; if they are measured, write "
            f"{{type: double, text: true}}"
        )
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


def _is_whole_number(text: str) -> bool:
    return not isinstance(value_of(text), str | bool) and not is_code(text) and not is_beyond(text)


def _shown_types(known: list[Any]) -> str:
    """Return a value of each type."""
    return " and ".join(_shown(value) for value in {type(value): value for value in reversed(known)}.values())


def _is_of_a_clock(text: str) -> bool:
    """Return True if the time has no zone, so that it depends on the location of the clock."""
    return parse_timestamp(text, "ms") != parse_timestamp(text, "ms", SOME_ZONE)


def _field_name(path: Path, taken: dict[str, Any]) -> str:
    """Return the last name on the path as a field name. If it is taken, prefix the names before it."""
    steps = [re.sub(r"\W", "_", str(step), flags=re.ASCII) for step in path]
    if path and isinstance(path[-1], int):
        steps = [f"{steps[-2] if len(steps) > 1 else 'column'}_{path[-1] + 1}"]
    lower = {name.lower() for name in taken}
    for count in range(1, len(steps) + 1):
        name = "_".join(steps[-count:])
        name = name if FIELD_NAME.fullmatch(name) and not name.startswith("_") else f"f_{name.lstrip('_')}"[:200]
        if name.lower() not in lower and name.lower() not in RESERVED_FIELDS:
            return name
    return next(f"{name}_{number}" for number in range(2, len(taken) + 3) if f"{name}_{number}".lower() not in lower)
