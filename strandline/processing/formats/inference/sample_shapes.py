"""Finds how records of a sample are several rows: the `explode` to propose, and the values of each row."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from strandline.core.document_values import FIELD_NAME, RESERVED_FIELDS
from strandline.core.json_paths import STEPS_MAX, path_text
from strandline.processing.formats.inference.field_types import type_of
from strandline.processing.formats.inference.names import is_identifier, is_measured, is_time, words_of
from strandline.processing.formats.inference.schemas import Path, leaves
from strandline.processing.formats.timestamps import parse_timestamp

Row = dict[Path, Any]
"""Path of each value, as `from` names it -> value."""
_ARRIVAL_NAMES = re.compile(
    r"(?i)(rx_?metadata|rx_?info|gateways?|hotspots?|hops|via|path|errors|alarms|warnings|tags|events?_?log)$"
)
_SIGNAL = frozenset(("rssi", "rssis", "signal"))
_RECEIVER = frozenset(("snr", "lorasnr", "lsnr", "gateway", "gatewayid", "gwid", "gweui", "lrrid"))
"""Words of members that describe the reception by one gateway."""
_PAYLOAD_NAMES = re.compile(r"(?i)(payload|object|data|decoded|measurements?|fields|values|sensors?|value)")
_EPOCH_TEXT = re.compile(r"1\d{9}(?:\d{3})?", re.ASCII)
_NUMBERED = re.compile(r"(?P<prefix>[^\W\d][\w ]*?[\W_]?)(?P<number>\d+|[0-9A-Fa-f]{6,16})", re.ASCII)
_STEP_NAMES = re.compile(
    r"(?i)^(?:sample_?|sampling_?)?(?:step|interval|period|dt|delta_?t)(?P<unit>_?(?:ms|us|s|sec|seconds))?$"
)
_RATE_NAMES = re.compile(r"(?i)^(?:sample_?|sampling_?)?(?:rate|frequency|fs|freq)(?:_?hz)?$")


@dataclass
class SampleShape:
    """A shape of records that are several rows."""

    explode: Any
    """`explode` of the document."""
    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    schema: dict[str, Any] = field(default_factory=dict)
    """Fields that no value of a row fills."""
    array: Path | None = None
    """Path of the array whose elements are rows. None for another shape."""
    own: frozenset[Path] = frozenset()
    """Paths of values that belong to one row, not to the whole record."""


def shape_of(objects: Sequence[dict[str, Any]]) -> tuple[SampleShape | None, list[str]]:
    """Return the shape of these records, and notes on arrays that are no rows. None if a record is one row."""
    notes: list[str] = []
    for find in (
        _table,
        _arrays_of_members,
        _inner_arrays,
        _array_of_objects,
        _members,
        _parallel_arrays,
        _array_of_arrays,
        _steps,
    ):
        found = find(objects, notes)
        if found is not None:
            return found, notes
    return None, notes


def shape_of_lists(records: Sequence[list[Any]]) -> SampleShape | None:
    """Return the shape of records that are arrays. None if the elements of most aren't objects or arrays of single values."""
    elements = [element for record in records for element in record]
    if elements and all(isinstance(one, dict) for one in elements):
        if (nested := _within_elements((), [({}, one) for one in elements])) is not None:
            return nested
        inner, _ = shape_of(elements)
        rows = [dict(leaves(one, ())) for one in elements]
        notes = ["each record is an array, and each element becomes a row"]
        if inner is not None:
            notes.append(f"elements contain another shape ({inner.explode}), which can't be exploded too")
        return SampleShape("$", rows, notes)
    if elements and all(isinstance(one, list) and one and _are_scalars(one) for one in elements):
        return SampleShape("$", [_by_position(one, ()) for one in elements], ["each element of a record becomes a row"])
    return None


def rows_of_positions(records: Sequence[list[Any]]) -> list[Row] | None:
    """Return the rows of records that are arrays of single values. None if they aren't."""
    return [_by_position(one, ()) for one in records] if all(one and _are_scalars(one) for one in records) else None


def _table(objects: Sequence[dict[str, Any]], notes: list[str]) -> SampleShape | None:
    """Names of columns in one array, and rows of values in another."""
    names: Counter[Path] = Counter()
    rows: Counter[Path] = Counter()
    for one in objects:
        for path, value in _short_leaves(one):
            if isinstance(value, list) and value:
                names[path] += all(isinstance(each, str) for each in value) and len(set(value)) == len(value) > 1
                rows[path] += all(isinstance(each, list) and _are_scalars(each) for each in value)
    for rows_path in _usual(rows, objects):
        for names_path in _usual(names, objects):
            if all(_is_table(_at(one, names_path), _at(one, rows_path)) for one in objects):
                found: list[tuple[Row, Row]] = []
                for one in objects:
                    outer = _outer(one, {names_path, rows_path})
                    keys = _at(one, names_path)
                    found += [
                        (outer, {(key,): each for key, each in zip(keys, row, strict=True)})
                        for row in _at(one, rows_path)
                    ]
                explode = {"columns": path_text(names_path), "rows": path_text(rows_path)}
                note = f"each element of {path_text(rows_path)} becomes a row"
                return SampleShape(
                    explode, [outer | own for outer, own in found], [note, *_hidden(found)], own=_own_of(found)
                )
    return None


def _is_table(names: Any, rows: Any) -> bool:
    is_table = isinstance(names, list) and isinstance(rows, list)
    return is_table and all(isinstance(row, list) and len(row) == len(names) for row in rows)


def _array_of_objects(
    objects: Sequence[dict[str, Any]], notes: list[str], *, needs_quantity: bool = True
) -> SampleShape | None:
    """An array of objects that most records have. If there are several, prefer arrays with numbers in their objects, then the
    array with the most objects. If there are readings outside, its objects must have numbers if `needs_quantity`."""
    having: Counter[Path] = Counter()
    elements: dict[Path, list[Any]] = defaultdict(list)
    for one in objects:
        for path, value in _short_leaves(one):
            if isinstance(value, list) and all(isinstance(element, dict) for element in value):
                having[path] += 1
                elements[path] += value
    with_numbers = {path for path, some in elements.items() if any(map(_has_quantity, some))}
    usual = [path for path, some in elements.items() if some and 2 * having[path] >= len(objects)]
    of_arrival = {path for path in usual if _describes_arrival(path, elements[path], objects)}
    notes += [
        f"{path_text(path)} describes how a reading arrived: with one row for each of its elements, the values outside would be "
        f"repeated; to get these rows anyway, write explode: {path_text(path)}"
        for path in sorted(of_arrival, key=path_text)
    ]
    has_readings = any(
        is_measured(str(path[-1])) for one in objects for path, value in leaves(one, ()) if _is_number(value)
    )
    found = max(
        (
            path
            for path in usual
            if path not in of_arrival and (path in with_numbers or not has_readings or not needs_quantity)
        ),
        key=lambda path: (path in with_numbers, len(elements[path])),
        default=None,
    )
    if found is None:
        return None
    note = (
        f"each element of {path_text(found)} becomes a row; to read single elements instead, remove explode and use "
        f"{path_text((*found, 0))}.name"
    )
    parts = [
        (_outer(one, {found}), dict(leaves(element, ())))
        for one in objects
        for element in _at(one, found) or ()
        if isinstance(element, dict)
    ]
    rows = [outer | own for outer, own in parts]
    return SampleShape(path_text(found), rows, [note, *_hidden(parts)], array=found, own=_own_of(parts))


def _own_of(parts: Sequence[tuple[Row, Row]]) -> frozenset[Path]:
    return frozenset(path for _, own in parts for path in own)


def _hidden(parts: Sequence[tuple[Row, Row]]) -> Iterator[str]:
    """Yield notes on values outside of the rows whose path is also a path within them. `parts`: both for each row."""
    for path in dict.fromkeys(path for outer, own in parts for path in outer if path in own):
        yield f"{path_text(path)} of the record is left out, because its rows have a value of this name"


def _inner_arrays(objects: Sequence[dict[str, Any]], notes: list[str]) -> SampleShape | None:
    """An array of objects with arrays of their own, as the data points of each time series."""
    outer = _array_of_objects(objects, [], needs_quantity=False)
    if outer is None or outer.array is None:
        return None
    path = outer.array
    return _within_elements(
        path,
        [
            (_outer(one, {path}), element)
            for one in objects
            for element in _at(one, path) or ()
            if isinstance(element, dict)
        ],
    )


def _within_elements(path: Path, elements: Sequence[tuple[Row, dict[str, Any]]]) -> SampleShape | None:
    """Return the shape of arrays within the elements of the array at `path`. None if they have none with quantities.

    `elements`: values outside of the array, and the element.
    """
    objects = [element for _, element in elements]
    found = _array_of_objects(objects, []) or _array_of_arrays(objects, [])
    if found is None or found.array is None:
        return None
    within, inner = found.array, (*path, *found.array)
    rows: list[Row] = []
    for outer, element in elements:
        own = outer | {(*path, *where): value for where, value in _outer(element, {within}).items()}
        values = _at(element, within)
        rows += [own | _inner_row(value, inner) for value in (values if isinstance(values, list) else [None])]
    note = (
        f"each element of {path_text(inner)} becomes a row, with the values of its element of {path_text(path)}, which are "
        "repeated in its rows"
    )
    own_paths = frozenset(where for row in rows for where in row if where[: len(inner)] == inner)
    return SampleShape({"elements": path_text(path), "inner": path_text(inner)}, rows, [note], own=own_paths)


def _inner_row(value: Any, inner: Path) -> Row:
    if isinstance(value, dict):
        return {(*inner, *where): each for where, each in leaves(value, ())}
    return _by_position(value, inner) if isinstance(value, list) else {}


def _arrays_of_members(objects: Sequence[dict[str, Any]], notes: list[str]) -> SampleShape | None:
    """An object whose members are all arrays of objects of one form, as the readings of each device."""
    paths: Counter[Path] = Counter()
    for one in objects:
        paths.update(path for path, _ in _objects_within(one, ()))
    for path in _usual(paths, objects):
        containers = [found for one in objects if isinstance(found := _at(one, path), dict)]
        arrays = [value for container in containers for value in container.values()]
        names = {name for container in containers for name in container}
        if len(names) < 2 or not all(isinstance(value, list) for value in arrays):
            continue
        if not _have_one_form([element for value in arrays for element in value]):
            continue
        rows = []
        for one in objects:
            container = _at(one, path)
            if isinstance(container, dict):
                outer = _outer_of_members(one, path, container)
                rows += [outer | _inner_row(element, path) for value in container.values() for element in value]
        name = _name_of_members(path, None, is_time=False, rows=rows)
        explode = {"members": path_text(path), "name": name, "inner": path_text(path)}
        note = (
            f"each element of the arrays in {path_text(path)} becomes a row, and the name of its array the field {name}"
        )
        return SampleShape(explode, rows, [note], {name: "string"})
    return None


def _describes_arrival(path: Path, elements: Sequence[dict[str, Any]], objects: Sequence[dict[str, Any]]) -> bool:
    """Return True if the array describes how a reading arrived, and the reading is outside of the array."""
    words = frozenset[str]().union(*(words_of(str(name)) for element in elements for name in element))
    is_reception = bool(words & _SIGNAL) and bool(words & _RECEIVER)
    is_named = _ARRIVAL_NAMES.search(str(path[-1])) is not None
    if not is_reception and not is_named:
        return False
    numbers: dict[Path, set[float]] = defaultdict(set)
    has_payload = False
    for one in objects:
        for where, value in _outer(one, {path}).items():
            if isinstance(value, list):
                has_payload |= any(isinstance(each, dict) for each in value) and where != path
            elif any(_PAYLOAD_NAMES.search(str(step)) for step in where):
                has_payload |= isinstance(value, str | int | float)
            elif _is_number(value) and not is_time(str(where[-1])):
                numbers[where].add(value)
    return has_payload or any(len(some) > 1 for some in numbers.values())


def _parallel_arrays(objects: Sequence[dict[str, Any]], notes: list[str]) -> SampleShape | None:
    """An object with several arrays of single values, which have the same length in each record."""
    groups: dict[Path, Counter[Path]] = defaultdict(Counter)
    for one in objects:
        for path, value in _short_leaves(one):
            if isinstance(value, list) and value and _are_scalars(value):
                groups[path[:-1]][path] += 1
    for within, having in groups.items():
        arrays = _usual(having, objects)
        some = [one for one in objects if all(isinstance(_at(one, path), list) for path in arrays)]
        if len(arrays) < 2 or 2 * len(some) < len(objects):
            continue
        lengths = [{len(_at(one, path)) for path in arrays} for one in some]
        if any(len(each) > 1 for each in lengths) or all(max(each) < 2 for each in lengths):
            continue
        if not any(_is_number(each) for one in some for path in arrays for each in _at(one, path)):
            continue
        only = within and all(path in arrays for one in some for path, _ in leaves(_at(one, within), within))
        explode: Any = {"arrays": path_text(within)} if only else [path_text(path) for path in arrays]
        rows = [
            {path: values[at] for path, values in columns.items()} | _outer(one, set(arrays))
            for one in some
            for columns in [{path: _at(one, path) for path in arrays}]
            for at in range(len(columns[arrays[0]]))
        ]
        note = f"the values of {', '.join(map(path_text, arrays))} with the same index become a row"
        return SampleShape(explode, rows, [note], own=frozenset(arrays))
    return None


def _members(objects: Sequence[dict[str, Any]], notes: list[str]) -> SampleShape | None:
    """An object whose members are named after sensors or times, and have the same form."""
    paths: Counter[Path] = Counter()
    for one in objects:
        paths.update(path for path, _ in _objects_within(one, ()))
    for path in _usual(paths, objects):
        containers = [found for one in objects if isinstance(found := _at(one, path), dict)]
        found = _members_of(path, containers)
        if found is not None:
            match, is_row, is_time = found
            rows = []
            for one in objects:
                container = _at(one, path)
                if not isinstance(container, dict):
                    continue
                members = {name: value for name, value in container.items() if is_row(name)}
                outer = _outer_of_members(one, path, members)
                for value in members.values():
                    own = dict(leaves(value, ())) if isinstance(value, dict) else {path: value}
                    rows.append(outer | own)
            name = _name_of_members(path, match, is_time, rows)
            explode: dict[str, Any] = {"members": path_text(path)}
            if match is None:
                explode["name"] = name
            else:
                explode["match"] = f"(?P<{name}>{match})"
            kind: Any = "string"
            if is_time:
                first = next(iter(containers[0]))
                kind = (
                    {"type": "timestamp", "unit": "s" if len(first) == 10 else "ms", "text": True}
                    if first.isdigit()
                    else "timestamp"
                )
            note = f"each member of {path_text(path)} becomes a row, and its name becomes the field {name}"
            return SampleShape(explode, rows, [note], {name: kind})
    return None


def _members_of(
    path: Path, containers: Sequence[dict[str, Any]]
) -> tuple[str | None, Callable[[str], bool], bool] | None:
    """Return the regular expression of the members that are rows, a function that tells them, and whether they are times. No
    expression if all members are rows. None if no members are rows."""
    names = list(dict.fromkeys(name for one in containers for name in one))
    if len(names) < 2 or not all(names):
        return None
    values = [value for one in containers for value in one.values()]
    if path and all(map(_is_time_name, names)) and (all(map(_is_scalar, values)) or _have_one_form(values)):
        return None, lambda _: True, True
    are_data = len({frozenset(one) for one in containers}) > 1 or any(map(_has_digit, names)) or len(names) > 3
    if path and are_data and _have_one_form(values):
        return None, lambda _: True, False
    prefixes: dict[str, set[str]] = defaultdict(set)
    for name in names:
        if (found := _NUMBERED.fullmatch(name)) is not None:
            prefixes[found["prefix"]].add(name)
    for prefix, some in prefixes.items():
        chosen = [one[name] for one in containers for name in one if name in some]
        if len(some) > 1 and _have_one_form(chosen):
            digits = r"\d+" if all(name[len(prefix) :].isdigit() for name in some) else "[0-9A-Fa-f]+"
            match = re.escape(prefix).replace("\\ ", " ") + digits
            return match, partial(_fits, re.compile(match)), False
    return None


def _fits(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.fullmatch(name) is not None


def _name_of_members(path: Path, match: str | None, is_time: bool, rows: Sequence[Row]) -> str:
    taken = {str(where[-1]).lower() for row in rows for where in row if where}
    if is_time:
        wanted = ["time", "at", "member_time"]
    else:
        text = re.match(r"[A-Za-z]+", match or str(path[-1] if path else ""))
        word = text[0].lower() if text else "member"
        wanted = [word.removesuffix("s") if len(word) > 3 else word, f"{word}_name", "member", "member_name"]
    good = (one for one in wanted if FIELD_NAME.fullmatch(one) and one not in taken and one not in RESERVED_FIELDS)
    return next(good, "name_of_member")


def _outer_of_members(one: dict[str, Any], path: Path, members: Mapping[str, Any]) -> Row:
    """Return the values outside of the members. Other members of the container apply to each row."""
    inside = {(*path, name) for name in members}
    return {where: value for where, value in leaves(one, ()) if not any(where[: len(each)] == each for each in inside)}


def _have_one_form(values: Sequence[Any]) -> bool:
    """Return True if the values are objects with mostly the same members, and some have a number."""
    if len(values) < 2 or not all(isinstance(value, dict) and value for value in values):
        return False
    forms = [{path for path, _ in leaves(value, ())} for value in values]
    common, every = set.intersection(*forms), set.union(*forms)
    return bool(common) and 2 * len(common) >= len(every) and any(map(_has_number, values))


def _array_of_arrays(objects: Sequence[dict[str, Any]], notes: list[str]) -> SampleShape | None:
    """An array of arrays of values, as [[time, value], ...]."""
    having: Counter[Path] = Counter()
    for one in objects:
        for path, value in _short_leaves(one):
            is_array = (
                isinstance(value, list)
                and value
                and all(isinstance(each, list) and each and _are_scalars(each) for each in value)
            )
            widths = {len(each) for each in value} if is_array else set()
            having[path] += len(widths) == 1 and (len(value) > 1 < max(widths) or max(widths) > 2)
    for path in _usual(having, objects):
        rows = [
            _outer(one, {path}) | _by_position(element, path)
            for one in objects
            for element in _at(one, path) or ()
            if isinstance(element, list)
        ]
        note = f"each element of {path_text(path)} becomes a row"
        own = frozenset(where for row in rows for where in row if where[: len(path)] == path)
        return SampleShape(path_text(path), rows, [note], array=path, own=own)
    return None


def _steps(objects: Sequence[dict[str, Any]], notes: list[str]) -> SampleShape | None:
    """An array of numbers, with one time and one step for all of them."""
    having: Counter[Path] = Counter()
    for one in objects:
        for path, value in _short_leaves(one):
            having[path] += isinstance(value, list) and len(value) > 1 and all(map(_is_number, value))
    arrays = _usual(having, objects)
    step = _step_of(objects)
    if len(arrays) != 1 or step is None:
        return None
    (path,) = arrays
    outer = [_outer(one, {path}) for one in objects]
    for where in outer[0]:
        values = [one.get(where) for one in outer]
        if None in values or any(isinstance(value, list) for value in values):
            continue
        name = str(where[-1])
        if FIELD_NAME.fullmatch(name) and type_of(name, values, is_text=False).spec["type"] == "timestamp":
            explode = {"elements": path_text(path), "time": name, "step": step}
            rows = [_outer(one, {path}) | {path: value} for one in objects for value in _at(one, path) or ()]
            note = f"each element of {path_text(path)} becomes a row, {step} after the row before"
            return SampleShape(explode, rows, [note])
    return None


def _step_of(objects: Sequence[dict[str, Any]]) -> str | None:
    """Return the time between two samples. None unless a member has it, with the same value in each record."""
    found: dict[Path, set[float]] = defaultdict(set)
    for one in objects:
        for path, value in leaves(one, ()):
            if _is_number(value):
                found[path].add(value)
    for path, values in found.items():
        (value, *others), name = values, str(path[-1])
        if others or value <= 0:
            continue
        if (named := _STEP_NAMES.match(name)) is not None:
            unit = (named["unit"] or "").strip("_").lower()
            step_ms = value * {"us": 0.001, "s": 1_000, "sec": 1_000, "seconds": 1_000}.get(unit, 1)
        elif _RATE_NAMES.match(name):
            step_ms = 1_000 / value
        else:
            continue
        if step_ms >= 1 and step_ms == int(step_ms):
            return f"{int(step_ms)}ms"
    return None


def _short_leaves(one: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    return ((path, value) for path, value in leaves(one, ()) if len(path) < STEPS_MAX)


def _objects_within(one: dict[str, Any], path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    yield path, one
    if len(path) < STEPS_MAX - 2:
        for name, value in one.items():
            if isinstance(value, dict):
                yield from _objects_within(value, (*path, name))


def _usual(counts: Counter[Path], objects: Sequence[Any]) -> list[Path]:
    return [path for path, count in counts.items() if count and 2 * count >= len(objects)]


def _outer(one: dict[str, Any], paths: set[Path]) -> Row:
    return {path: value for path, value in leaves(one, ()) if path not in paths}


def _at(one: Any, path: Path) -> Any:
    """Return the value at a path of members. None if it doesn't exist."""
    for step in path:
        one = one.get(step) if isinstance(one, dict) else None
    return one


def _by_position(values: Sequence[Any], within: Path) -> Row:
    return {(*within, at): value for at, value in enumerate(values)}


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, dict | list)


def _are_scalars(values: Sequence[Any]) -> bool:
    return all(map(_is_scalar, values))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _has_number(one: dict[str, Any]) -> bool:
    return any(_is_number(value) for _, value in leaves(one, ()))


def _has_quantity(one: dict[str, Any]) -> bool:
    """Return True if a number of the object is no identifier."""
    return any(_is_number(value) and not is_identifier(str(path[-1])) for path, value in leaves(one, ()))


def _has_digit(name: str) -> bool:
    return any(letter.isdigit() for letter in name)


def _is_time_name(name: str) -> bool:
    return _EPOCH_TEXT.fullmatch(name) is not None or (len(name) >= 10 and parse_timestamp(name, "ms") is not None)
