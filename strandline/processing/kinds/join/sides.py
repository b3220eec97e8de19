"""The check of a join against the columns of its two sides. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from strandline.core.documents import Path, did_you_mean
from strandline.core.field_types import is_nested
from strandline.processing.kinds.join.document import JoinSpec
from strandline.processing.kinds.join.step import JoinedColumn
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.pipelines.stages import LEFT, RIGHT, Stage

Columns = Mapping[str, str | None]
"""Columns of one side with their types. The type is None if an error was already reported for it."""
SIDE_NAMES = {"left": LEFT, "right": RIGHT}


def source_of(text: str) -> tuple[int, str]:
    """Return the side and the column that `left.amount` names."""
    side, _, column = text.partition(".")
    return SIDE_NAMES[side], column


def join_problems(
    spec: JoinSpec, sides: tuple[Columns, Columns], is_json: Callable[[str], bool]
) -> Iterator[tuple[Path, str]]:
    """Yield the problems of the fields that the join names: the path in the join, and a message. `is_json`: returns True for a
    column that is a field of a stream and contains JSON."""
    for number, name in enumerate(spec.on):
        missing = [side for side, place in SIDE_NAMES.items() if name not in sides[place]]
        for side in missing:
            yield (
                ("on", number),
                f"the {side} side has no column '{name}'{did_you_mean(name, sides[SIDE_NAMES[side]])}; fields of 'on' must "
                "have the same name on both sides, so derive it there",
            )
        if missing:
            continue
        left, right = (columns[name] for columns in sides)
        if left is not None and right is not None and left != right:
            yield (
                ("on", number),
                f"'{name}' is a {left} on the left and a {right} on the right; derive a column of one type on both sides",
            )
        elif "double" in (left, right):
            yield (
                ("on", number),
                f"'{name}' is a double, which makes no reliable key; use a string, an integer or a decimal",
            )
        elif is_nested(left or right or ""):
            yield (
                ("on", number),
                f"'{name}' is of type {left or right}, but a key must be a single value; derive the part that is the key",
            )
        elif is_json(name):
            yield (
                ("on", number),
                f"'{name}' is json, and two strings of JSON can mean the same; declare the member that is the key",
            )
    for name, text in spec.add.items():
        place, column = source_of(text)
        if column not in sides[place]:
            yield (
                ("add", name),
                f"the {text.partition('.')[0]} side has no column '{column}'{did_you_mean(column, sides[place])}",
            )


def joined_columns(spec: JoinSpec, sides: tuple[Columns, Columns]) -> tuple[JoinedColumn, ...]:
    """Return the fields of joined rows in addition to `on`, except fields with a problem."""
    found = []
    for name, text in spec.add.items():
        side, column = source_of(text)
        if kind := sides[side].get(column):
            found.append(JoinedColumn(name, side, column, kind))
    return tuple(found)


def windows_shared(sides: tuple[Stage | None, Stage | None]) -> tuple[WindowShape | None, list[tuple[Path, str]]]:
    """Return the windows of both sides if they are the same, and the problems, as `join_problems` yields them.

    `sides`: the stages whose results are joined; None for records.
    """
    shapes: list[WindowShape] = []
    problems: list[tuple[Path, str]] = []
    for name, stage in zip(SIDE_NAMES, sides, strict=True):
        if stage is None:
            message = (
                "consists of records, which have no window, but 'same_window' joins results of windows; join records 'within' a "
                "time, or in windows of the join, as 'tumbling: 1m'"
            )
            problems.append(((name,), message))
        elif (shape := stage.windows.result_windows).ends_move:
            message = (
                f"reads the results of '{stage.name}', whose windows begin and end with records, so two of them are rarely "
                "equal; join them 'within' a time"
            )
            problems.append(((name,), message))
        else:
            shapes.append(shape)
    if problems:
        return None, problems
    left, right = shapes
    if left != right:
        message = (
            f"the windows on the left are {left}, those on the right {right}; use equal windows, or join 'within' a time or in "
            "longer windows, as 'tumbling: 1h'"
        )
        problems.append((("same_window",), message))
    return left, problems
