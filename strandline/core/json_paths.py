"""Paths into a JSON document, as `$.sensors[0].t` or `$["my key"].value`: the part of RFC 9535 that selects a single value."""

from __future__ import annotations

import json
import re

JsonPath = tuple[str | int, ...]
"""Names of members and indices of elements from 0, from the root of the document inwards."""

STEPS_MAX = 20
PATH_FORM = """'$', then '.name', '["any name"]' or '[0]' for each step inwards, as '$.sensors[0].t'"""
_STEP = re.compile(r"""\.([^.\[\]"'\s]+)|\[(\d{1,6})\]|\[("(?:[^"\\]|\\.)*")\]|\['([^'\\]*)'\]""")


def parse_json_path(text: str) -> JsonPath:
    """Return the steps of a path; `$` has none. Raises ValueError if the text isn't a path."""
    steps: list[str | int] = []
    at = 1
    while text.startswith("$") and at < len(text) and (match := _STEP.match(text, at)):
        plain, index, quoted, single = match.groups()
        try:
            steps.append(int(index) if index else _name(quoted) if quoted else single if plain is None else plain)
        except ValueError:
            break
        at = match.end()
    if not text.startswith("$") or at < len(text):
        raise ValueError(f"{text!r} is not a path; expected {PATH_FORM}")
    if len(steps) > STEPS_MAX:
        raise ValueError(f"{text!r} has {len(steps)} steps; at most {STEPS_MAX}")
    return tuple(steps)


def _name(quoted: str) -> str:
    """Return the name. Raises ValueError if it isn't a JSON string, or contains half of a surrogate pair, which can't occur in
    UTF-8."""
    name = str(json.loads(quoted))
    name.encode()
    return name


def path_in_element(path: JsonPath, array: JsonPath) -> JsonPath:
    """Return the path of a field in an element of an exploded record: a path into the array continues after the array."""
    return path[len(array) :] if path[: len(array)] == array else path


def path_text(path: JsonPath) -> str:
    """Return the path in its written form."""
    steps = [
        f"[{step}]" if isinstance(step, int) else f".{step}" if step.isidentifier() else f"[{_quoted(step)}]"
        for step in path
    ]
    return "".join(["$", *steps])


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
