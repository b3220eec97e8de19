"""Edits of payloads, with which several dead letters are repaired in the same way.

Bytes outside of the edited members stay as they are: numbers keep their digits, and members their order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from strandline.core.described import Described
from strandline.core.errors import InvalidDocument, Problem
from strandline.core.json_paths import JsonPath, parse_json_path, path_text

EditKind = Literal["replace", "rename", "number", "set", "remove"]
"""Kinds of edits, in the order in which they are applied."""
EDITS_MAX = 20
_ORDER = get_args(EditKind)
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_DECIMAL_COMMA = re.compile(r"(-?(?:0|[1-9]\d*)),(\d+)")
_BLANKS = re.compile(r"[ \t\r\n]*")
_decoder = json.JSONDecoder()


@dataclass(frozen=True)
class PayloadEdit(Described):
    """An edit of a payload."""

    edit: EditKind
    """- `replace`: replace a string in the whole payload, in any format.
    - `rename`: rename a JSON member.
    - `number`: write a string that contains a number as a number, also one with a decimal comma.
    - `set`: give a member a value, and add it if it is missing.
    - `remove`: remove a member.
    """
    field: str
    """Member: its name, or a path such as `$.sensor.value`. For `replace`, the string to find."""
    to: str = ""
    """For `rename`, the new name of the member. For `replace`, the new string."""
    value: Any = None
    """For `set`, the JSON value."""


class _Member(NamedTuple):
    """Positions of a member of an object, or of an element of an array, in the text."""

    name: str | int
    name_at: int
    """Position of the quote before the name; for an element, of its value."""
    name_end: int
    value_at: int
    value_end: int


def check_edits(edits: Sequence[PayloadEdit]) -> None:
    """Raise InvalidDocument if an edit can't be applied to any payload."""
    problems = [
        Problem(problem, path=f"body.edits.{at}")
        for at, edit in enumerate(edits)
        if (problem := _problem(edit)) is not None
    ]
    if not 0 < len(edits) <= EDITS_MAX:
        problems.append(Problem(f"expected 1 to {EDITS_MAX} edits, got {len(edits)}", path="body.edits"))
    if problems:
        raise InvalidDocument(problems)


def _problem(edit: PayloadEdit) -> str | None:
    if edit.edit == "replace":
        return None if edit.field else "replace needs the string to find, in `field`"
    try:
        path = _path(edit.field)
    except ValueError as error:
        return str(error)
    if not path:
        return f"{edit.field!r} names no member; expected the name of a member, or a path such as $.sensor.value"
    if edit.edit == "rename" and (not edit.to or not isinstance(path[-1], str)):
        return "rename needs the path of a member in `field`, and its new name in `to`"
    return None


def edited(payload: bytes, edits: Sequence[PayloadEdit]) -> bytes:
    """Return the payload after all edits, in the order of `EditKind`. Raises ValueError if it isn't in the form that an edit
    needs, or if no edit changes it."""
    try:
        before = text = payload.decode()
    except UnicodeDecodeError as error:
        raise ValueError("the payload isn't UTF-8, so it can't be edited") from error
    for edit in sorted(edits, key=lambda one: _ORDER.index(one.edit)):
        try:
            text = _applied(text, edit)
        except RecursionError as error:
            raise ValueError("the payload is nested too deeply to be edited") from error
    if text == before:
        raise ValueError("the edits change nothing in this payload")
    return text.encode()


def _applied(text: str, edit: PayloadEdit) -> str:
    if edit.edit == "replace":
        return text.replace(edit.field, edit.to)
    path = _path(edit.field)
    found = _find(text, path)
    if edit.edit == "set":
        value = _json(edit.value)
        return _added(text, path, value) if found is None else text[: found.value_at] + value + text[found.value_end :]
    if found is None:
        return text
    if edit.edit == "rename":
        return text[: found.name_at] + _json(edit.to) + text[found.name_end :]
    if edit.edit == "remove":
        return _removed(text, path, found)
    return text[: found.value_at] + _number(text, path, found) + text[found.value_end :]


def _number(text: str, path: JsonPath, member: _Member) -> str:
    value = _decoder.raw_decode(text, member.value_at)[0]
    if not isinstance(value, str):
        return text[member.value_at : member.value_end]
    stripped = value.strip()
    if comma := _DECIMAL_COMMA.fullmatch(stripped):
        if len(comma[2]) == 3 and comma[1].lstrip("-") != "0":
            raise ValueError(
                f"{path_text(path)}: the string {_json(value)} can be a fraction or thousands; use replace"
            )
        return f"{comma[1]}.{comma[2]}"
    if not _NUMBER.fullmatch(stripped):
        raise ValueError(f"{path_text(path)}: the string {_json(value)} isn't a number")
    return stripped


def _added(text: str, path: JsonPath, value: str) -> str:
    """Return the text with a new member at the end of its object."""
    parent = _find(text, path[:-1]) if len(path) > 1 else _root(text)
    if parent is None or text[parent.value_at] != "{" or not isinstance(path[-1], str):
        raise ValueError(f"{path_text(path)}: there is no object that can have this member")
    end = parent.value_end - 1
    comma = ", " if any(_members(text, parent.value_at)) else ""
    return f"{text[:end]}{comma}{_json(path[-1])}: {value}{text[end:]}"


def _removed(text: str, path: JsonPath, member: _Member) -> str:
    """Return the text without a member, and without the comma before or after it."""
    parent = _find(text, path[:-1]) if len(path) > 1 else _root(text)
    assert parent is not None, "the member has an object"
    siblings = list(_members(text, parent.value_at))
    at = siblings.index(member)
    if at:
        return text[: siblings[at - 1].value_end] + text[member.value_end :]
    end = siblings[1].name_at if len(siblings) > 1 else member.value_end
    return text[: member.name_at] + text[end:]


def _find(text: str, path: JsonPath) -> _Member | None:
    """Return the member at the path. None if there is none. Raises ValueError if the text isn't JSON."""
    member = _root(text)
    for step in path:
        inner = [one for one in _members(text, member.value_at) if one.name == step]
        if not inner:
            return None
        member = inner[-1]  # as the decoders, which read the last one of repeated members
    return member


def _root(text: str) -> _Member:
    """Return the value of the whole text. Raises ValueError if it isn't JSON."""
    at = _after_blanks(text, 1 if text.startswith("\ufeff") else 0)
    try:
        _, end = _decoder.raw_decode(text, at)
    except ValueError as error:
        raise ValueError(f"the payload isn't JSON: {error}") from error
    if _after_blanks(text, end) != len(text):
        raise ValueError(f"the payload isn't JSON: it continues after its end at character {end}")
    return _Member("$", at, at, at, end)


def _members(text: str, at: int) -> Iterator[_Member]:
    """Yield the members of an object or array that begins at this position. Nothing for other values. The text must be JSON."""
    opening = text[at]
    if opening not in "{[":
        return
    at = _after_blanks(text, at + 1)
    index = 0
    while text[at] not in "}]":
        name_at = name_end = at
        name: str | int = index
        if opening == "{":
            name, name_end = _decoder.raw_decode(text, at)
            at = _after_blanks(text, _after_blanks(text, name_end) + 1)
        _, end = _decoder.raw_decode(text, at)
        yield _Member(name, name_at, name_end, at, end)
        at = _after_blanks(text, end)
        if text[at] == ",":
            at = _after_blanks(text, at + 1)
        index += 1


def _after_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at


def _path(field: str) -> JsonPath:
    """Return the path of a member. A text without `$` at its begin is the name of a member of the record. Raises ValueError."""
    return parse_json_path(field) if field.startswith("$") else (field,) if field else ()


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
